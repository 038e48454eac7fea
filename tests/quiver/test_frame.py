"""The frame: what goes in comes out, and nothing else is ever taken for a frame."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from holdfast.quiver.base.frame import (
    HEADER_BYTES,
    MAGIC,
    NO_WATERMARK,
    NOTHING,
    STAGED,
    Frame,
    FrameFault,
    FrameKind,
    Totals,
    decode,
    encode,
    find_next,
    frame_bytes,
    producer_part,
)

SALT = 0x0123_4567_89AB_CDEF
U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
OFFSETS = st.integers(0, 64).map(lambda n: 8 * n)


def frame_at(
    offset: int,
    body: bytes = b"payload",
    *,
    seq: int = 7,
    salt: int = SALT,
    kind: FrameKind = FrameKind.RAW,
) -> bytes:
    header, padding = encode(salt, offset, kind, seq, 5, 6, NO_WATERMARK, body, NOTHING, 1)
    return header + body + padding


def decoded(content: bytes, offset: int = 0, salt: int = SALT) -> Frame:
    return decode(memoryview(content), offset, salt)


# Round trips.


@given(
    salt=U64,
    offset=OFFSETS,
    kind=st.sampled_from(FrameKind),
    flags=st.sampled_from([0, STAGED]),
    seq=U64,
    ingestion_ns=I64,
    synced_through=U64,
    watermark_ns=I64,
    events=st.integers(0, 2**32 - 1),
    before=st.builds(Totals, st.integers(0, 2**32 - 1), U64),
    payload=st.binary(max_size=300),
    producer=st.none() | st.tuples(st.text(min_size=1, max_size=80), st.integers(0, 2**63 - 1)),
)
def test_every_field_comes_back_as_it_was_written(
    *,
    salt: int,
    offset: int,
    kind: FrameKind,
    flags: int,
    seq: int,
    ingestion_ns: int,
    synced_through: int,
    watermark_ns: int,
    events: int,
    before: Totals,
    payload: bytes,
    producer: tuple[str, int] | None,
) -> None:
    part = b"" if producer is None else producer_part(*encodable(producer))
    name, epoch = (None, 0) if producer is None else encodable(producer)
    header, padding = encode(
        salt,
        offset,
        kind,
        seq,
        ingestion_ns,
        synced_through,
        watermark_ns,
        part + payload,
        before,
        events,
        len(part),
        flags,
    )
    content = bytes(offset) + header + part + payload + padding
    frame = decoded(content, offset, salt)
    assert bytes(frame.payload) == payload
    assert frame._replace(payload=memoryview(b"")) == Frame(
        kind,
        flags,
        seq,
        ingestion_ns,
        synced_through,
        watermark_ns,
        name,
        epoch,
        events,
        before,
        memoryview(b""),
        len(content),
    )
    assert frame.end - offset == frame_bytes(len(part) + len(payload))
    assert frame.end % 8 == 0


def encodable(producer: tuple[str, int]) -> tuple[str, int]:
    """Return the name as text that can be encoded: half a surrogate pair is refused at append."""
    name, epoch = producer
    return name.encode("utf-8", "replace").decode(), epoch


@pytest.mark.parametrize("kind", [FrameKind.ARROW, FrameKind.RAW, FrameKind.CONTROL])
def test_bundles_count_in_the_totals_after_them(kind: FrameKind) -> None:
    header, _ = encode(SALT, 0, kind, 0, 0, 0, NO_WATERMARK, b"", Totals(3, 40), 2)
    assert decoded(header).after == Totals(4, 42)


@pytest.mark.parametrize("kind", [FrameKind.COMMIT, FrameKind.CLOSE])
def test_marks_do_not_count_in_the_totals_after_them(kind: FrameKind) -> None:
    header, _ = encode(SALT, 0, kind, 0, 0, 0, NO_WATERMARK, b"", Totals(3, 40))
    assert decoded(header).after == Totals(3, 40)


# Damage.


def with_flipped_bit(bit: int) -> bytes:
    content = bytearray(bytes(16) + frame_at(16))
    content[16 + bit // 8] ^= 1 << bit % 8
    return bytes(content)


@given(bit=st.integers(0, 8 * (HEADER_BYTES + len(b"payload")) - 1))
def test_every_flipped_bit_of_header_or_body_is_found(bit: int) -> None:
    with pytest.raises(FrameFault) as fault:
        decoded(with_flipped_bit(bit), 16)
    if bit // 8 >= HEADER_BYTES:
        assert fault.value.frame is not None, "with a sound header, seq and end are known"
        assert (fault.value.frame.seq, fault.value.frame.end) == (7, 16 + len(frame_at(16)))
    else:
        assert fault.value.frame is None


def test_a_flipped_bit_of_the_padding_changes_nothing() -> None:
    last_bit = 8 * len(frame_at(16)) - 1
    assert bytes(decoded(with_flipped_bit(last_bit), 16).payload) == b"payload"


@given(st.integers(0, len(frame_at(0)) - 1))
def test_a_frame_cut_anywhere_is_a_typed_fault(size_bytes: int) -> None:
    with pytest.raises(FrameFault) as fault:
        decoded(frame_at(0)[:size_bytes])
    assert (fault.value.frame is not None) == (size_bytes >= HEADER_BYTES)


@given(st.binary(max_size=400), OFFSETS)
def test_garbage_is_never_anything_but_a_typed_fault(content: bytes, offset: int) -> None:
    with pytest.raises(FrameFault):
        decoded(content, offset)


def test_a_huge_length_is_a_fault_and_allocates_nothing() -> None:
    """The header is sound, only the length is that of a frame that cannot be there."""
    header = bytearray(frame_at(0, b"")[:HEADER_BYTES])
    header[12:16] = struct.pack("<I", 2**32 - 8)
    header[72:80] = struct.pack("<Q", xxh3_64_intdigest(bytes(header[:72]), SALT))
    content = bytes(header) + bytes(1000)
    tracemalloc.start()
    try:
        with pytest.raises(FrameFault, match="cut short") as fault:
            decoded(content)
        assert find_next(memoryview(content), 8, SALT) is None
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert fault.value.frame is not None
    assert fault.value.frame.seq == 7
    assert peak_bytes < 100_000


# What looks like a frame and is none.


def test_a_frame_of_another_file_is_not_taken_for_one() -> None:
    with pytest.raises(FrameFault):
        decoded(frame_at(0, salt=SALT + 1))


@pytest.mark.parametrize("moved_bytes", [8, 80, 4096])
def test_a_frame_copied_within_its_own_file_is_not_taken_for_one(moved_bytes: int) -> None:
    content = bytes(moved_bytes) + frame_at(0)
    with pytest.raises(FrameFault):
        decoded(content, moved_bytes)
    assert find_next(memoryview(content), 0, SALT) is None


def test_the_right_magic_alone_is_not_taken_for_a_frame() -> None:
    magic = struct.pack("<Q", MAGIC ^ SALT)
    assert find_next(memoryview(magic * 100), 0, SALT) is None
    assert find_next(memoryview(struct.pack("<Q", MAGIC) * 100), 0, SALT) is None


# Finding the next frame.


@given(
    gap=st.binary(max_size=200).map(lambda b: b[: len(b) // 8 * 8]),
    start=st.integers(0, 100),
)
def test_the_next_frame_is_found_behind_any_garbage(gap: bytes, start: int) -> None:
    content = gap + frame_at(len(gap))
    found = find_next(memoryview(content), min(start, len(gap)), SALT)
    assert found == len(gap)


@pytest.mark.parametrize("around_bytes", [-80, -8, 0, 8])
def test_the_next_frame_is_found_across_the_edges_of_the_search_window(around_bytes: int) -> None:
    offset = (1 << 20) + around_bytes
    content = bytes(offset) + frame_at(offset)
    assert find_next(memoryview(content), 0, SALT) == offset
    assert find_next(memoryview(content), offset + 8, SALT) is None


def test_a_frame_whose_body_is_damaged_is_still_found_by_its_header() -> None:
    content = bytearray(bytes(24) + frame_at(24))
    content[-8] ^= 1
    assert find_next(memoryview(bytes(content)), 0, SALT) == 24


def test_a_payload_full_of_frames_is_searched_once_and_not_once_per_frame() -> None:
    """Each false hit used to copy a megabyte; sixteen of them full of hits took minutes."""
    false_frame = frame_at(0, b"")
    content = bytes(8) + false_frame * (4 * (1 << 20) // len(false_frame))
    assert find_next(memoryview(content), 0, SALT) is None
