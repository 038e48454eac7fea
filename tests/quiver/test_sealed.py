"""Rows between two positions: by the owner, and by others who have only the files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.quiver.batches import data_paths, numbers, plain_rows, seal
from tests.quiver.machine import ROOT
from tests.readers.setting import StillMachine, calm, keep, must_plan

from holdfast.errors import BadInput, Damaged, UnknownPosition, WrongQuiver
from holdfast.quiver import ColumnExtractor, Position, Quiver, QuiverConfig
from holdfast.quiver.base.config import MB
from holdfast.quiver.read.sealed import SealedRead, all_sealed, names_between, scan_sealed

Cell = tuple[int, int, int | None]


def cells(reader: pa.RecordBatchReader) -> list[Cell]:
    """Return position and value of every row."""
    return plain_rows(reader.read_all().select(["_seq", "_row", "n"]))


def read_of(quiver: Quiver, **changes: Any) -> SealedRead:
    """Return what reads all segments of a quiver."""
    start, end = Position(0), Position(2**62)
    found = tuple(names_between(quiver.segments(), start, end))
    return replace(SealedRead(quiver.quiver_id, found), **changes)


def sealed_cells(still: StillMachine, wanted: SealedRead) -> list[Cell]:
    return cells(scan_sealed(still.disk, ROOT, wanted))


def few_files() -> QuiverConfig:
    config = calm()
    return replace(config, segment=replace(config.segment, max_files=2))


POSITIONS = st.builds(Position, st.integers(0, 14), st.integers(0, 4))


@given(
    st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=12),
    POSITIONS,
    POSITIONS,
)
@settings(deadline=None)
def test_the_rows_between_two_positions_are_exactly_those(
    bundles: list[tuple[int, bool]], start: Position, end: Position
) -> None:
    """Over segments, the open buffer, other slots, drift, and opaque files."""
    with StillMachine() as machine:
        quiver = machine.start(few_files())
        stored: list[Cell] = []
        last_sealed = -1
        for number, (rows, then_seal) in enumerate(bundles):
            batch = numbers(*range(number, number + rows))
            if number % 3 == 0:
                batch = batch.append_column(f"extra{number}", batch.column("n"))
            data = {"events": batch, "other": numbers(7)}
            seq = quiver.append(data).seq
            stored += [(seq, row, number + row) for row in range(rows)]
            if then_seal:
                seal(quiver)
                last_sealed = seq
        expected = [cell for cell in stored if start <= Position(*cell[:2]) < end]
        found = quiver.scan(["_seq", "_row", "n"], slot="events", start=start, end=end)
        assert cells(found) == expected
        wanted = read_of(quiver, slot="events", columns=("_seq", "_row", "n"))
        wanted = replace(wanted, start=start, end=end)
        sealed = [cell for cell in expected if cell[0] <= last_sealed]
        assert sealed_cells(machine, wanted) == sealed


def test_the_segments_of_a_range_are_named(still: StillMachine) -> None:
    quiver = still.start()
    for value in range(4):
        quiver.append(numbers(value))
        if value % 2:
            seal(quiver)
    one, two = (segment.path.name for segment in quiver.segments())
    assert names_between(quiver.segments(), Position(1), Position(2)) == [one]
    assert names_between(quiver.segments(), Position(1), Position(2, 1)) == [one, two]
    assert names_between(quiver.segments(), Position(1), Position(9)) == [one, two]
    assert names_between(quiver.segments(), Position(4), Position(9)) == []
    assert names_between(quiver.segments(), Position(0), Position(0)) == []


def test_bundles_are_known_to_be_sealed_or_not(still: StillMachine) -> None:
    quiver = still.start()
    for value in range(4):
        quiver.append(numbers(value))
        if value % 2 == 0:
            seal(quiver)
    refs = must_plan(quiver.cursor("spark")).refs
    assert all_sealed(quiver.segments(), refs[:3])
    assert not all_sealed(quiver.segments(), refs)
    assert not all_sealed(quiver.segments()[1:], refs[:1])
    assert not all_sealed([], refs[:1])
    assert all_sealed([], [])


def test_only_the_record_batches_of_the_range_are_read(still: StillMachine) -> None:
    config = calm()
    segments = replace(config.segment, target_size_bytes=16 * MB)
    quiver = still.start(replace(config, segment=segments))
    for _ in range(2):
        quiver.append(numbers(*range(150_000)))
    segment = seal(quiver)
    first, *_, last = segment.files[0].summary.batches
    assert first is not last
    (path,) = data_paths(segment)
    still.flip(path, 8 * (first.offset + first.length // 2))
    wanted = read_of(quiver, columns=("_seq", "_row", "n"))
    rest = replace(wanted, start=Position(1, 149_990))
    assert sealed_cells(still, rest) == [(1, row, row) for row in range(149_990, 150_000)]
    with pytest.raises(Damaged):
        sealed_cells(still, wanted)


def test_a_slot_without_rows_is_read_like_any_other(still: StillMachine) -> None:
    quiver = still.start()
    quiver.append({"events": numbers(), "other": numbers(1)})
    quiver.append({"events": numbers(), "other": numbers(2)})
    seal(quiver)
    for span in ({}, {"start": Position(1)}, {"end": Position(0, 1)}):
        wanted = read_of(quiver, slot="events", columns=("_seq", "_row", "n"), **span)
        assert sealed_cells(still, wanted) == []
    assert sealed_cells(still, read_of(quiver, slot="other", start=Position(1))) == [(1, 0, 2)]


def test_columns_that_are_nowhere_are_null_and_unknown_slots_are_empty(still: StillMachine) -> None:
    quiver = still.start()
    quiver.append(numbers(1, 2))
    seal(quiver)
    wanted = read_of(quiver, columns=("n", "soon"))
    assert plain_rows(scan_sealed(still.disk, ROOT, wanted).read_all()) == [(1, None), (2, None)]
    nowhere = read_of(quiver, slot="elsewhere", columns=("n",))
    assert scan_sealed(still.disk, ROOT, nowhere).read_all().num_rows == 0


def test_a_segment_that_went_is_told_and_so_is_one_that_goes_while_it_is_read(
    still: StillMachine,
) -> None:
    config = replace(calm(), extractors={"events": ColumnExtractor("n")})
    quiver = still.start(config)
    for value in (1, 2):
        quiver.append(numbers(value))
        seal(quiver)
    wanted = read_of(quiver)
    reader = scan_sealed(still.disk, ROOT, wanted)
    cursor = quiver.cursor("spark")
    cursor.commit(must_plan(cursor))
    keep(quiver)
    assert quiver.segments() == ()
    with pytest.raises(UnknownPosition, match="no longer there"):
        cells(reader)
    with pytest.raises(UnknownPosition, match="no longer there"):
        scan_sealed(still.disk, ROOT, wanted)


def test_a_segment_that_goes_between_two_looks_is_told_as_gone(
    still: StillMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiver = still.start()
    quiver.append(numbers(1))
    segment = seal(quiver)
    wanted = read_of(quiver)
    disk = still.disk
    read_range = disk.read_range

    def read_removed(path: Any, offset: int, size: int) -> bytes:
        monkeypatch.setattr(disk, "read_range", read_range)
        disk.rename(segment.path, ROOT / "trash" / segment.path.name, "test")
        return read_range(path, offset, size)

    monkeypatch.setattr(disk, "read_range", read_removed)
    with pytest.raises(UnknownPosition, match="no longer there"):
        scan_sealed(disk, ROOT, wanted).read_all()


def test_damage_is_told_as_damage(still: StillMachine) -> None:
    quiver = still.start()
    quiver.append(numbers(1))
    segment = seal(quiver)
    wanted = read_of(quiver)
    (path,) = data_paths(segment)
    (file,) = segment.summary.files
    still.flip(path, 8 * (file.batches[0].offset + 20))
    with pytest.raises(Damaged):
        sealed_cells(still, wanted)
    still.scribble(segment.path / "manifest", 0, len(still.disk.read(segment.path / "manifest")))
    with pytest.raises(Damaged, match="manifest"):
        sealed_cells(still, wanted)


def test_positions_of_another_quiver_are_refused(still: StillMachine) -> None:
    quiver = still.start()
    quiver.append(numbers(1))
    seal(quiver)
    with pytest.raises(WrongQuiver, match="not another"):
        scan_sealed(still.disk, ROOT, read_of(quiver, quiver_id="another"))


@pytest.mark.parametrize("name", ["../wal", "tmp-0000000000000001-1", "", "..", "0-0-0-0-0"])
def test_nothing_but_segments_can_be_named(still: StillMachine, name: str) -> None:
    quiver = still.start()
    with pytest.raises(BadInput, match="not the name of a segment"):
        scan_sealed(still.disk, ROOT, read_of(quiver, segments=(name,)))
