"""Names of chunks: what they look like, and what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.store.objects.objects import HASH_BYTES, ChunkHash, ChunkKey, hash_of

HASHES = st.binary(min_size=HASH_BYTES, max_size=HASH_BYTES).map(ChunkHash)


def test_an_address_is_blake3() -> None:
    """The first test vector of BLAKE3's authors: no bytes at all."""
    assert hash_of(b"").hex() == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"


def test_a_name_has_the_hash_and_the_generation() -> None:
    key = ChunkKey(hash_of(b""), 255)
    assert key.object_key() == (
        "chunks/af/af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
        ".00000000000000ff"
    )


@given(chunk=HASHES, generation=st.integers(0, 2**64 - 1))
def test_names_are_read_back(chunk: ChunkHash, generation: int) -> None:
    key = ChunkKey(chunk, generation)
    assert ChunkKey.parse(key.object_key()) == key


@pytest.mark.parametrize(
    "change",
    [
        lambda name: name.upper(),
        lambda name: name[:-1],
        lambda name: name + "0",
        lambda name: "x" + name,
        lambda name: name.replace("chunks/af/", "chunks/aa/"),
        lambda name: name.replace("chunks/af/", "chunks/"),
        lambda name: name.replace(".", "-"),
        lambda name: name + "\n",
        lambda name: "commits/name.1",
    ],
)
def test_what_is_no_name_of_a_chunk_is_told(change: object) -> None:
    assert callable(change)
    assert ChunkKey.parse(change(ChunkKey(hash_of(b""), 1).object_key())) is None
