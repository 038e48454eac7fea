"""Compressed bodies: all that unpacks is unpacked, nothing else, and never too much of it."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from holdfast.bodies import MEMBERS_MAX, Decoding, TooMuch, Undecodable

MB = 1024 * 1024


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


PACKERS: dict[str, tuple[bytes, Callable[[bytes], bytes]]] = {
    "gzip": (b"gzip", gzip.compress),
    "x-gzip": (b"x-gzip", gzip.compress),
    "deflate": (b"deflate", zlib.compress),
    "raw deflate": (b"deflate", raw_deflate),
    "zstd": (b"zstd", zstandard.compress),
}
PACKER = st.sampled_from(sorted(PACKERS))


def unpack(names: list[bytes], pieces: Iterable[bytes], max_bytes: int = 64 * MB) -> bytes:
    decoding = Decoding(names, max_bytes)
    out = b"".join(piece for data in pieces for piece in decoding.feed(data))
    decoding.finish()
    return out


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@given(PACKER, st.binary(max_size=2000), st.integers(1, 50))
def test_what_was_packed_comes_out(packer: str, data: bytes, size: int) -> None:
    name, pack = PACKERS[packer]
    # zlib's own header is how its bare form is told apart; a bare stream may look like one.
    packed = pack(data)
    assert unpack([name], cut(packed, size)) == data


@given(st.lists(PACKER, min_size=1, max_size=3), st.binary(max_size=1000), st.integers(1, 99))
def test_several_encodings_are_undone_in_reverse(
    packers: list[str], data: bytes, size: int
) -> None:
    packed = data
    for packer in packers:
        packed = PACKERS[packer][1](packed)
    assert unpack([PACKERS[packer][0] for packer in packers], cut(packed, size)) == data


@pytest.mark.parametrize("packer", sorted(PACKERS))
def test_a_large_body_comes_out(packer: str) -> None:
    name, pack = PACKERS[packer]
    data = bytes(range(256)) * 20_000
    assert unpack([name], cut(pack(data), 65536)) == data


@pytest.mark.parametrize("packer", ["gzip", "zstd"])
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_members_behind_each_other_are_one_body(packer: str, size: int) -> None:
    name, pack = PACKERS[packer]
    packed = pack(b"one ") + pack(b"") + pack(b"two")
    assert unpack([name], cut(packed, size)) == b"one two"


def test_zeros_behind_a_gzip_body_are_padding() -> None:
    packed = gzip.compress(b"one ") + bytes(100) + gzip.compress(b"two") + bytes(100)
    assert unpack([b"gzip"], cut(packed, 13)) == b"one two"


@pytest.mark.parametrize("packer", sorted(PACKERS))
def test_a_body_that_ends_too_early_is_refused(packer: str) -> None:
    name, pack = PACKERS[packer]
    packed = pack(b"some text that is not too short" * 10)
    for length in range(len(packed)):
        with pytest.raises(Undecodable):
            unpack([name], [packed[:length]])


@pytest.mark.parametrize("packer", sorted(PACKERS))
def test_bytes_behind_a_body_are_refused(packer: str) -> None:
    name, pack = PACKERS[packer]
    for size in (1, 1000):
        with pytest.raises(Undecodable):
            unpack([name], cut(pack(b"text") + b"garbage", size))


@given(st.sampled_from([b"gzip", b"deflate", b"zstd"]), st.binary(max_size=200))
def test_garbage_is_refused(name: bytes, data: bytes) -> None:
    try:
        unpack([name], [data])
    except Undecodable:
        return
    # By chance it was a sound bare deflate stream.
    assert name == b"deflate"


@given(PACKER, st.integers(0, 10_000), st.integers(0, 255))
def test_a_damaged_byte_never_raises_anything_else(packer: str, place: int, value: int) -> None:
    name, pack = PACKERS[packer]
    packed = bytearray(pack(b"the same text again " * 20))
    packed[place % len(packed)] = value
    try:
        unpack([name], [bytes(packed)], MB)
    except (Undecodable, TooMuch):
        return


@pytest.mark.parametrize("packer", sorted(PACKERS))
def test_a_bomb_is_stopped_at_the_bound(packer: str) -> None:
    name, pack = PACKERS[packer]
    bomb = pack(bytes(32 * MB))
    decoding = Decoding([name], MB)
    pieces: list[bytes] = []
    with pytest.raises(TooMuch):
        pieces.extend(decoding.feed(bomb))
    assert sum(map(len, pieces)) <= MB


def test_a_bomb_in_a_bomb_is_stopped_between_the_two() -> None:
    bomb = gzip.compress(gzip.compress(bytes(32 * MB)))
    with pytest.raises(TooMuch):
        unpack([b"gzip", b"gzip"], [bomb], MB)


@pytest.mark.parametrize("packer", ["gzip", "zstd"])
def test_members_have_a_bound(packer: str) -> None:
    name, pack = PACKERS[packer]
    assert unpack([name], [pack(b"") * MEMBERS_MAX]) == b""
    with pytest.raises(Undecodable, match="more than"):
        unpack([name], [pack(b"") * (MEMBERS_MAX + 1)])


def test_a_zstd_window_has_a_bound() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=25, enable_ldm=True)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = packer.compress(b"text") + packer.flush()
    with pytest.raises(Undecodable):
        unpack([b"zstd"], [packed])
