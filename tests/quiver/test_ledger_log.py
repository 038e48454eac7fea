"""The ledger's files: lines, headers and checkpoints come back as they were written."""

from __future__ import annotations

from pathlib import PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.quiver.base.frame import Frame, Totals
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.ledger.log import (
    LedgerFile,
    LedgerHeader,
    LineKind,
    decode_header,
    decode_resolutions,
    encode_resolutions,
    read_ledger_file,
)
from holdfast.quiver.ledger.subscriber import Outcome, Position, Resolution
from holdfast.quiver.log.wal import BLOCK_BYTES, HeaderFault, Hole, NewerVersion, encode_block
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.simulated import SimulatedDisk

LEDGER = PurePath("/ledger")
HEADER = LedgerHeader("6fa459ea-ee8a-4ca4-894e-db77e160355e", 7, 0xDEADBEEF, 1_700_000_000)

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
POSITIONS = st.builds(Position, U64, U32)
RESOLUTIONS = st.builds(
    Resolution,
    st.integers(-(2**63), 2**63 - 1),
    st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}", fullmatch=True),
    U32,
    POSITIONS,
    POSITIONS,
    st.sampled_from(Outcome),
    st.builds(Totals, U64, U64),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
)


def new_disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_dir(LEDGER, "test")
    return disk


def acked(seq: int, reason: str = "") -> Resolution:
    start, end = Position(seq), Position(seq + 1)
    return Resolution(5, "archive", 1, start, end, Outcome.ACKED, Totals(1, 3), reason)


@given(st.lists(RESOLUTIONS, min_size=1, max_size=5))
def test_lines_come_back_as_they_were_written(lines: list[Resolution]) -> None:
    assert list(decode_resolutions(memoryview(encode_resolutions(lines)))) == lines


def test_a_reason_longer_than_its_field_is_cut_and_the_next_line_still_read() -> None:
    lines = [acked(0, "ö" * 40_000), acked(1, "after")]
    first, second = decode_resolutions(memoryview(encode_resolutions(lines)))
    assert first.reason.startswith("öööö")
    assert len(first.reason.encode()) <= 65_538
    assert second == lines[1]


def test_a_reason_that_is_no_text_is_written_in_words() -> None:
    (line,) = decode_resolutions(memoryview(encode_resolutions([acked(0, "half \ud800")])))
    assert line.reason == "half \\ud800"


def test_a_file_holds_its_header_its_checkpoint_and_then_its_lines() -> None:
    disk = new_disk()
    file = LedgerFile.begin(disk, LEDGER, HEADER, {"everything": [1, 2]})
    file.write_resolutions([acked(0), acked(1)])
    file.write_change({"verb": "pause", "name": "archive"}, 9)
    content = read_ledger_file(disk, file.path)
    assert file.path == LEDGER / "0000000000000007.log"
    assert content.header == HEADER
    assert content.checkpoint == {"everything": [1, 2]}
    frames = [item for item in content.items if isinstance(item, Frame)]
    kinds = [LineKind.CHECKPOINT, LineKind.RESOLUTIONS, LineKind.CHANGE]
    assert [frame.kind for frame in frames] == kinds
    assert list(decode_resolutions(frames[1].payload)) == [acked(0), acked(1)]
    assert (frames[2].ingestion_ns, frames[2].end) == (9, len(disk.read(file.path)))
    assert file.lines == 3


@pytest.mark.parametrize("copy", [0, 1])
def test_a_header_survives_the_loss_of_either_copy(copy: int) -> None:
    block = bytearray(HEADER.encode())
    block[copy * 4096 : copy * 4096 + 4096] = bytes(4096)
    assert decode_header(memoryview(bytes(block))) == HEADER


def test_a_header_without_a_sound_copy_is_a_fault_and_a_newer_one_is_not() -> None:
    with pytest.raises(HeaderFault):
        decode_header(memoryview(bytes(BLOCK_BYTES)))
    with pytest.raises(HeaderFault):
        decode_header(memoryview(HEADER.encode())[:-1])
    with pytest.raises(NewerVersion):
        decode_header(memoryview(encode_block(b"HFLDGR\r\n", 2, b"")))


@pytest.mark.parametrize(
    "point",
    [
        QuiverPoint.LEDGER_CREATE,
        QuiverPoint.LEDGER_HEADER,
        QuiverPoint.LEDGER_HEADER_SYNC,
        QuiverPoint.LEDGER_CHECKPOINT,
    ],
)
def test_a_file_that_cannot_be_begun_leaves_nothing_behind(point: QuiverPoint) -> None:
    disk = new_disk()
    faulty = FaultyDisk(disk, [Fault(point, FaultKind.ENOSPC)], disk.die)
    with pytest.raises(OSError, match="no space"):
        LedgerFile.begin(faulty, LEDGER, HEADER, {})
    assert disk.list(LEDGER) == []
    LedgerFile.begin(faulty, LEDGER, HEADER, {})  # the name is free again


def test_half_a_line_is_cut_off_and_the_next_one_follows() -> None:
    disk = new_disk()
    faulty = FaultyDisk(disk, [Fault(QuiverPoint.LEDGER_WRITE, FaultKind.SHORT_WRITE)], disk.die)
    file = LedgerFile.begin(faulty, LEDGER, HEADER, {})
    with pytest.raises(OSError, match="no space"):
        file.write_resolutions([acked(0)])
    assert isinstance(read_ledger_file(disk, file.path).items[-1], Hole)
    file.undo()
    file.write_resolutions([acked(1)])
    last = read_ledger_file(disk, file.path).items[-1]
    assert isinstance(last, Frame)
    assert list(decode_resolutions(last.payload)) == [acked(1)]


def test_a_file_that_does_not_begin_with_a_checkpoint_has_none() -> None:
    disk = new_disk()
    file = LedgerFile.begin(disk, LEDGER, HEADER, {})
    file.write_resolutions([acked(0)])
    disk.overwrite(file.path, BLOCK_BYTES, b"damage")
    assert read_ledger_file(disk, file.path).checkpoint is None
    disk.put(file.path, HEADER.encode())
    assert read_ledger_file(disk, file.path).checkpoint is None
