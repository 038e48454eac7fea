"""The stored form of chunks: fixed bytes, and no damage that goes unnoticed."""

from __future__ import annotations

import struct

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tests.store.chunks.stage import noise

from holdfast.errors import Damaged
from holdfast.store.chunks.codec import HEADER_BYTES, ZSTD, decode, encode
from holdfast.store.objects.objects import ChunkKey, hash_of

COMPRESSIBLE = b"the same words again and again, " * 40
CONTENTS = st.binary(max_size=2000) | st.builds(lambda b, n: b * n, st.binary(max_size=20),
                                                st.integers(0, 200))  # fmt: skip


def key_of(data: bytes) -> ChunkKey:
    return ChunkKey(hash_of(data), 7)


def stored(data: bytes) -> bytes:
    return b"".join(encode(memoryview(data), 3))


def test_bytes_that_cannot_be_compressed_are_stored_as_they_are() -> None:
    data = noise(300)
    assert stored(data) == b"HFCK" + bytes([1, 0, 0, 0]) + struct.pack("<Q", 300) + data


def test_bytes_that_can_be_compressed_are_a_zstd_frame() -> None:
    image = stored(COMPRESSIBLE)
    assert image[:16] == b"HFCK" + bytes([1, 1, 0, 0]) + struct.pack("<Q", len(COMPRESSIBLE))
    assert len(image) < len(COMPRESSIBLE) // 4
    assert zstandard.ZstdDecompressor().decompress(image[16:]) == COMPRESSIBLE


def test_what_was_written_once_is_read_for_ever() -> None:
    """An object as the first version wrote it."""
    image = bytes.fromhex(
        "4846434b010100000001000000000000"
        "28b52ffd6000004d000010414101007b0a6001"
    )  # fmt: skip
    assert decode(image, key_of(b"A" * 256)) == b"A" * 256


@given(data=CONTENTS)
def test_every_content_is_read_back(data: bytes) -> None:
    assert decode(stored(data), key_of(data)) == data


@given(data=CONTENTS, place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_found(data: bytes, place: float, bit: int) -> None:
    image = bytearray(stored(data))
    where = int(place * len(image))
    image[where] ^= 1 << bit
    if image[5] == ZSTD and where >= HEADER_BYTES and read_anyway(image, data):
        return
    with pytest.raises(Damaged, match=hash_of(data).hex()) as raised:
        decode(bytes(image), key_of(data))
    assert raised.value.path == key_of(data).object_key()


def read_anyway(image: bytearray, data: bytes) -> bool:
    """Some bits of a zstd frame say nothing about its content."""
    try:
        return decode(bytes(image), key_of(data)) == data
    except Damaged:
        return False


@given(data=CONTENTS, place=st.floats(0, 1, exclude_max=True))
def test_a_cut_chunk_is_found(data: bytes, place: float) -> None:
    image = stored(data)
    with pytest.raises(Damaged, match=hash_of(data).hex()):
        decode(image[: int(place * len(image))], key_of(data))


@given(data=CONTENTS, more=st.binary(min_size=1, max_size=50))
def test_bytes_behind_the_end_are_found(data: bytes, more: bytes) -> None:
    with pytest.raises(Damaged, match=hash_of(data).hex()):
        decode(stored(data) + more, key_of(data))


@given(data=CONTENTS, other=CONTENTS)
def test_another_chunk_under_the_name_is_found(data: bytes, other: bytes) -> None:
    if data != other:
        with pytest.raises(Damaged, match="do not have its hash"):
            decode(stored(other), key_of(data))


@pytest.mark.parametrize("claim", [2**24 + 1, 2**63])
def test_a_frame_that_claims_much_gets_no_memory(claim: int) -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(2**25))
    image = struct.pack("<4sBBHQ", b"HFCK", 1, 1, 0, claim) + bomb
    with pytest.raises(Damaged, match="claims"):
        decode(image, key_of(b""))
    small = struct.pack("<4sBBHQ", b"HFCK", 1, 1, 0, 100) + bomb
    with pytest.raises(Damaged, match="sizes differ"):
        decode(small, key_of(b""))


@pytest.mark.parametrize(("version", "words"), [(0, "version 0"), (2, "version 2")])
def test_a_version_that_cannot_be_here_is_damage(version: int, words: str) -> None:
    image = bytearray(stored(b"x"))
    image[4] = version
    with pytest.raises(Damaged, match=words):
        decode(bytes(image), key_of(b"x"))
