"""Damage in a segment costs the record batch it hit, is named, and nothing is read wrongly."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from pathlib import PurePath
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.patience import PATIENCE_S
from tests.quiver.batches import (
    column_of,
    data_paths,
    numbers,
    own_rows,
    plain_rows,
    quiet_segments,
    seal,
)
from tests.quiver.machine import SEGMENTS, Machine, contents, disk_with, quiet

from holdfast.errors import Damaged
from holdfast.quiver import Quiver
from holdfast.quiver.base.arrow import has_dictionary
from holdfast.quiver.base.config import MB
from holdfast.quiver.segments import build
from holdfast.quiver.segments.arrow_file import MAGIC
from holdfast.quiver.segments.data_file import split_head
from holdfast.quiver.segments.manifest import FileSummary, Summary
from holdfast.quiver.segments.segment import Segment

Position = tuple[int, int]
SLOTS = ("words", "logs", "raw", "rare", "odd")


class Sample(NamedTuple):
    """A data directory with one segment of several files and record batches."""

    files: dict[PurePath, bytes]
    segment: Segment
    summary: Summary
    rows: dict[str, dict[Position, tuple[Any, ...]]]

    def in_segment(self) -> list[PurePath]:
        return [path for path in self.files if self.segment.path in path.parents]


def scanned(quiver: Quiver, on_damage: Any = "skip") -> dict[str, dict[Position, tuple[Any, ...]]]:
    """Return all rows of all slots by their position."""
    found: dict[str, dict[Position, tuple[Any, ...]]] = {}
    for slot in SLOTS:
        table = quiver.scan(slot=slot, on_damage=on_damage).read_all()
        positions = plain_rows(table.select(["_seq", "_row"]))
        assert len(set(positions)) == len(positions)
        found[slot] = dict(zip(positions, plain_rows(table), strict=True))
    return found


@cache
def sample() -> Sample:
    """Return a segment with plain, dictionary, raw and opaque files, in small record batches."""
    with Machine() as machine, pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "BLOCK_BYTES", 1200)
        quiver = machine.start(quiet(max_files=4))
        for number in range(12):
            words = pa.array([f"word {number % 5}", "common", None]).dictionary_encode()
            quiver.append(
                {
                    "words": pa.record_batch({"word": words, "n": [number] * 3}),
                    "logs": numbers(*range(number, number + 40)),
                }
            )
            quiver.append_raw([f"event {number}".encode() * 20, b"x"], slot="raw")
        for number in range(4):
            quiver.append({"rare": numbers(*range(60)), "odd": numbers(number, column="odd")})
        rows = scanned(quiver)
        segment = seal(quiver)
        assert scanned(quiver, "fail") == rows
        machine.stop()
        return Sample(contents(machine.disk), segment, segment.summary, rows)


def test_the_sample_has_files_of_every_kind_with_several_record_batches() -> None:
    files = sample().summary.files
    assert {file.kind for file in files} == {"arrow", "raw", "opaque"}
    assert all(len(file.batches) >= 2 for file in files)
    assert any(has_dictionary(f.schema.field("word").type) for f in sample().segment.files[:2])


def positions_in(file: FileSummary, batch: int) -> set[Position]:
    """Return the positions that stand in one record batch of a file of the sample."""
    place = [f.name for f in sample().summary.files].index(file.name)
    stored = pa.ipc.open_file(sample().files[sample().segment.path / file.name]).get_batch(batch)
    if file.kind != "opaque":
        return set(plain_rows(stored.select(["_seq", "_row"])))
    found: set[Position] = set()
    for row in stored.to_pylist():
        held = pa.ipc.open_stream(row["payload"]).read_all()
        found |= {(row["_seq"], row["_row"] + offset) for offset in range(held.num_rows)}
    assert found, f"no rows in batch {batch} of file {place}"
    return found


def dictionaries_at(file: FileSummary) -> int:
    """Return where the dictionaries of a file begin; they end at the first record batch."""
    schema, _ = split_head(memoryview(sample().files[sample().segment.path / file.name]))
    return len(MAGIC) + len(schema)


def cost_of(path: PurePath, byte: int) -> set[Position]:
    """Return the positions that damage to one byte of a file may cost."""
    file = next((f for f in sample().summary.files if f.name == path.name), None)
    if file is None:  # the manifest has two copies, and no scan needs the bundle table
        return set()
    every = range(len(file.batches))
    hit = [n for n in every if 0 <= byte - file.batches[n].offset < file.batches[n].length]
    if dictionaries_at(file) <= byte < file.batches[0].offset:
        hit = list(every)
    return {position for batch in hit for position in positions_in(file, batch)}


def damaged(path: PurePath, byte: int, bit: int) -> Machine:
    content = bytearray(sample().files[path])
    content[byte] ^= 1 << bit
    return Machine(disk_with({**sample().files, path: bytes(content)}))


@given(data=st.data())
def test_a_flipped_bit_anywhere_costs_at_most_its_record_batch_and_changes_no_row(
    data: st.DataObject,
) -> None:
    path = data.draw(st.sampled_from(sample().in_segment()))
    byte = data.draw(st.integers(0, len(sample().files[path]) - 1))
    check_flip(path, byte, data.draw(st.integers(0, 7)))


def check_flip(path: PurePath, byte: int, bit: int) -> None:
    cost = cost_of(path, byte)
    with damaged(path, byte, bit) as machine:
        quiver = machine.start()
        assert quiver.recovery.damages == []
        found = scanned(quiver)
        for slot, rows in sample().rows.items():
            expected = {position: row for position, row in rows.items() if position not in cost}
            missing = {position: row for position, row in rows.items() if position in cost}
            kept = {p: row for p, row in found[slot].items() if p not in missing}
            assert kept == expected
            # Whatever is left of the damaged file is right, too.
            assert found[slot].items() <= rows.items()
        check_failing(quiver, path, cost)


def check_failing(quiver: Quiver, path: PurePath, cost: set[Position]) -> None:
    if not cost:
        assert scanned(quiver, "fail") == sample().rows
        return
    with pytest.raises(Damaged) as caught:
        scanned(quiver, "fail")
    assert caught.value.path == str(path)
    assert path.name in str(caught.value)
    assert caught.value.hint


def test_a_flip_in_each_region_of_each_file_is_found() -> None:
    """A byte of each record batch, and of the dictionaries."""
    for file in sample().summary.files:
        path = sample().segment.path / file.name
        places = [batch.offset + batch.length // 2 for batch in file.batches]
        if file.dictionary_checksum:
            places.append(file.batches[0].offset - 1)
        for byte in places:
            assert cost_of(path, byte)
            check_flip(path, byte, 0)


def test_a_flip_in_the_schema_or_the_footer_costs_nothing() -> None:
    """What is needed to read the record batches stands in the manifest."""
    for file in sample().summary.files:
        path = sample().segment.path / file.name
        for byte in (0, 20, dictionaries_at(file) - 1, file.size_bytes - 30, file.size_bytes - 1):
            assert not cost_of(path, byte)
            check_flip(path, byte, 0)


@given(data=st.data())
def test_a_bundle_is_read_whole_or_reported_damaged(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sample().in_segment()))
    byte = data.draw(st.integers(0, len(sample().files[path]) - 1))
    with damaged(path, byte, 0) as machine:
        quiver = machine.start()
        blamed: set[str | None] = set()
        lacking: dict[int, list[str]] = {}
        for seq in range(sample().summary.bundles):
            bundle = quiver.bundle(seq)
            assert bundle is not None
            slots = bundle.sound_slots
            try:
                assert bundle.slots == slots
            except Damaged as error:
                blamed.add(error.path)
                lacking[seq] = list(bundle.damaged_slots)
            for slot, batch in slots.items():
                wanted = [row for (s, _), row in sample().rows[slot].items() if s == seq]
                assert [row[5:] for row in wanted] == plain_rows(batch)
        assert blamed == ({str(path)} if cost_of(path, byte) else set())
        slot = data.draw(st.sampled_from(SLOTS))
        rows = quiver.scan(["_seq"], slot=slot, partial=True).read_all().to_pylist()
        assert all(row["_damaged_slots"] == lacking.get(row["_seq"]) for row in rows)


# ------------------------------------------------------------------- whole files


def one_segment(machine: Machine) -> Segment:
    quiver = machine.start()
    quiver.append({"a": numbers(1, 2), "b": numbers(3)})
    quiver.append({"a": numbers(4)})
    segment = seal(quiver)
    machine.stop()
    return segment


@pytest.mark.parametrize("size_bytes", [0, 1, 7, 100])
def test_a_data_file_cut_short_costs_its_slot_only(machine: Machine, size_bytes: int) -> None:
    path = next(p for p in data_paths(one_segment(machine)) if p.name.endswith("-a.arrow"))
    machine.cut(path, size_bytes % len(machine.disk.read(path)))
    quiver = machine.start()
    assert column_of(quiver, slot="a", on_damage="skip") == []
    assert column_of(quiver, slot="b") == [3]
    with pytest.raises(Damaged, match="cut short") as caught:
        column_of(quiver, slot="a")
    assert caught.value.path == str(path)


def test_a_data_file_with_bytes_appended_costs_nothing(machine: Machine) -> None:
    path = data_paths(one_segment(machine))[0]
    machine.disk.put(path, machine.disk.read(path) + b"more")
    assert column_of(machine.start(), slot="a") == [1, 2, 4]


def test_a_cut_costs_the_record_batches_that_are_gone() -> None:
    for file in sample().summary.files:
        path = sample().segment.path / file.name
        for kept, batch in enumerate(file.batches):
            content = sample().files[path][: batch.offset + batch.length - 1]
            lost = {p for n in range(kept, len(file.batches)) for p in positions_in(file, n)}
            with Machine(disk_with({**sample().files, path: content})) as machine:
                found = scanned(machine.start())
            for slot, rows in sample().rows.items():
                assert found[slot] == {p: row for p, row in rows.items() if p not in lost}


def test_a_missing_data_file_costs_its_slot_only(machine: Machine) -> None:
    path = next(p for p in data_paths(one_segment(machine)) if p.name.endswith("-b.arrow"))
    machine.disk.unlink(path, "test")
    quiver = machine.start()
    assert column_of(quiver, slot="a") == [1, 2, 4]
    assert column_of(quiver, slot="b", on_damage="skip") == []
    with pytest.raises(Damaged, match="cannot be read") as caught:
        column_of(quiver, slot="b")
    assert caught.value.path == str(path)


def test_a_file_of_another_segment_in_its_place_is_damage_and_not_read(machine: Machine) -> None:
    quiver = machine.start()
    paths = []
    for value in (1, 2):
        quiver.append(numbers(value))
        paths += data_paths(seal(quiver))
    machine.stop()
    machine.disk.put(paths[1], machine.disk.read(paths[0]))
    quiver = machine.start()
    assert column_of(quiver, on_damage="skip") == [1]


@pytest.mark.parametrize("end", ["flip", "cut", "remove"])
def test_a_damaged_bundle_table_costs_no_row_and_no_bundle(machine: Machine, end: str) -> None:
    path = one_segment(machine).path / "bundles.arrow"
    if end == "flip":
        machine.flip(path, 8 * 200)
    elif end == "cut":
        machine.cut(path, 100)
    else:
        machine.disk.unlink(path, "test")
    quiver = machine.start()
    assert column_of(quiver, slot="a") == [1, 2, 4]
    # The table is made anew from the rows.
    assert [own_rows(quiver, seq, slot="a") for seq in (0, 1)] == [[(1,), (2,)], [(4,)]]


def test_damage_in_one_segment_leaves_the_others_alone(machine: Machine) -> None:
    quiver = machine.start()
    segments = []
    for value in range(3):
        quiver.append(numbers(value))
        segments.append(seal(quiver))
    quiver.append(numbers(3))
    (file,) = segments[1].summary.files
    machine.scribble(data_paths(segments[1])[0], file.batches[0].offset, file.size_bytes)
    assert column_of(quiver, on_damage="skip") == [0, 2, 3]
    assert [own_rows(quiver, seq) for seq in (0, 2, 3)] == [[(0,)], [(2,)], [(3,)]]


def test_a_damaged_opaque_file_does_not_hide_which_slots_there_are(machine: Machine) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "BLOCK_BYTES", 1500)
        quiver = machine.start(quiet(max_files=2))
        for number in range(10):
            quiver.append(numbers(number, column=f"c{number}"))
        segment = seal(quiver)
    file = next(f for f in segment.summary.files if f.kind == "opaque")
    assert len(file.batches) > 2
    first = file.batches[0]
    machine.scribble(segment.path / file.name, first.offset, first.offset + first.length)
    machine.stop()
    quiver = machine.start()
    found = quiver.scan(["_seq"], on_damage="skip").read_all().num_rows
    assert found == 10 - first.rows
    with pytest.raises(Damaged):
        quiver.scan()


def test_damage_that_appears_after_the_first_read_of_a_batch_is_found_by_the_next(
    machine: Machine,
) -> None:
    quiver = machine.start()
    quiver.append(numbers(1))
    segment = seal(quiver)
    (path,), (file,) = data_paths(segment), segment.summary.files
    assert column_of(quiver) == [1]
    machine.scribble(path, file.batches[0].offset, file.size_bytes)
    with pytest.raises(Damaged):
        column_of(quiver)


# ----------------------------------------------------------------------- threads


def test_many_threads_may_read_one_file_for_the_first_time_at_once(machine: Machine) -> None:
    """Arrow reads the dictionaries of a file with its first batch, and not safely."""
    words = [f"word {number} of many" for number in range(20_000)]
    columns = {
        f"c{n}": pa.DictionaryArray.from_arrays(pa.array(range(20_000), pa.int32()), words)
        for n in range(4)
    }
    quiver = machine.start(quiet_segments(target_size_bytes=64 * MB, compression="zstd"))
    for _ in range(3):
        quiver.append(pa.record_batch({**columns, "fill": [bytes(200)] * 20_000}))
    seal(quiver)
    machine.stop()
    quiver = machine.start()
    file = quiver.segments()[0].files[0]
    count = len(file.summary.batches)
    assert count >= 4
    ready = threading.Barrier(count)
    results: dict[int, Any] = {}

    def read(place: int) -> None:
        ready.wait(PATIENCE_S)
        try:
            results[place] = file.batch(place).num_rows
        except BaseException as error:
            results[place] = error

    threads = [threading.Thread(target=read, args=(place,)) for place in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: batch.rows for n, batch in enumerate(file.summary.batches)}


# --------------------------------------------------------------------- garbage


@pytest.mark.parametrize(
    "make",
    [
        lambda disk: disk.put(SEGMENTS / "notes.txt", b"hello"),
        lambda disk: disk.make_dir(SEGMENTS / "0000000000000009-5-6-2-2", "test"),
        lambda disk: disk.make_dir(SEGMENTS / "tmp-0000000000000009-1", "test"),
        lambda disk: disk.put(SEGMENTS / "0000000000000009-5-6-2-2", b"a file, not a folder"),
    ],
    ids=["a foreign file", "an empty segment", "an unfinished segment", "a file for a segment"],
)
def test_garbage_among_the_segments_never_stops_a_start(
    machine: Machine, make: Callable[[Any], None]
) -> None:
    one_segment(machine)
    make(machine.disk)
    quiver = machine.start()
    assert column_of(quiver, slot="a") == [1, 2, 4]
    quiver.append({"a": numbers(5)})
    quiver.flush()
    assert column_of(quiver, slot="a") == [1, 2, 4, 5]
    machine.stop()
    assert column_of(machine.start(), slot="a") == [1, 2, 4, 5]
