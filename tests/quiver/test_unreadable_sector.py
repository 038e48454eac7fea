"""A sector that cannot be read costs what lies in it, is named, and ends no process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import PurePath

import pytest
from tests.patience import until
from tests.quiver.batches import data_paths
from tests.quiver.machine import (
    NO_SEAL,
    ROOT,
    SEGMENTS,
    WAL,
    Machine,
    contents,
    disk_with,
    take_apart,
)

from holdfast.errors import Damaged
from holdfast.quiver import Outcome, Quiver
from holdfast.quiver.base.config import MB
from holdfast.quiver.base.frame import Frame
from holdfast.quiver.segments import build, manifest
from holdfast.quiver.segments.segment import Segment
from holdfast.quiver.tools.fsck import fsck
from holdfast.quiver.tools.inspect import inspect
from holdfast.quiver.tools.salvage import salvage
from holdfast.quiver.tools.scrub import scrub
from holdfast.seam import Seam
from holdfast.seam.disk import PAGE_BYTES
from holdfast.seam.faulty import FaultyDisk
from holdfast.seam.randomness import seeded_randomness
from holdfast.seam.simulated import SimulatedBusError, SimulatedDisk

NEW = PurePath("/new")
READER = "reader"
SEALED, EVENTS = 24, 36


def event(seq: int) -> bytes:
    return (b"%04d" % seq) * 700


@cache
def stored() -> dict[PurePath, bytes]:
    """Return a store that was killed: two segments in small blocks, a tail, some of it read."""
    with Machine() as machine, pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "BLOCK_BYTES", 9000)
        quiver = machine.start()
        quiver.register(READER)
        for seq in range(EVENTS):
            assert quiver.append_raw(event(seq)).seq == seq
            if seq in (11, SEALED - 1):
                quiver.flush()
        machine.kill()
        return contents(machine.disk)


def pages() -> Iterator[tuple[PurePath, int]]:
    """Yield every page of every file."""
    for path, content in stored().items():
        for start in range(0, len(content), PAGE_BYTES):
            yield path, start


def held_in(path: PurePath, start: int) -> set[int]:
    """Return the seqs that a page may cost: those of its frames, or of its record batch."""
    end = start + PAGE_BYTES
    if path.parent == WAL:
        file = take_apart(stored()[path])
        places = zip(file.starts, file.items, strict=True)
        frames = [f for at, f in places if at < end and start < f.end and isinstance(f, Frame)]
        return {frame.seq for frame in frames if frame.seq >= SEALED}
    if path.parent.parent != SEGMENTS or path.name[0] != "0":
        return set()
    summary = manifest.decode(stored()[path.parent / "manifest"])
    found, seq = set(), summary.first_seq
    for batch in summary.files[0].batches:
        if batch.offset < end and start < batch.offset + batch.length:
            found |= set(range(seq, seq + batch.rows))
        seq += batch.rows
    return found


def is_at_the_end(path: PurePath, start: int) -> bool:
    """Whether a page is in the last group of the log: nothing tells how many bundles that has."""
    newest = max(path for path in stored() if path.parent == WAL)
    return path == newest and EVENTS - 1 in held_in(path, start)


def spoiled(path: PurePath, start: int) -> SimulatedDisk:
    disk = disk_with(stored())
    disk.spoil(path, start, start + PAGE_BYTES)
    return disk


def drained(quiver: Quiver) -> dict[int, list[bytes]]:
    found = {}
    with quiver.lease(READER) as lease:
        while (delivery := lease.poll()) is not None:
            found[delivery.seq] = delivery.bundle.payloads
            delivery.ack()
    return found


def test_the_store_has_what_the_tests_are_about() -> None:
    costs = {path: held_in(path, start) for path, start in pages()}
    assert len(list(pages())) > 40
    assert any(path.parent == WAL and cost for path, cost in costs.items())
    assert all(len(cost) <= 6 for cost in costs.values())


def test_a_bad_sector_anywhere_costs_what_lies_in_it_and_no_start() -> None:
    for path, start in pages():
        cost = held_in(path, start)
        with Machine(spoiled(path, start)) as machine:
            quiver = machine.start()
            if READER not in quiver.subscribers():
                assert path.parent.name == "ledger"
                quiver.register(READER)
            found = drained(quiver)
            account = quiver.balance(READER)
        note = f"{path} at {start}: costs {sorted(cost)}"
        assert set(range(EVENTS)) - found.keys() <= cost, note
        assert all(found[seq] == [event(seq)] for seq in found), note
        assert account.holds, note
        if not is_at_the_end(path, start):
            lost = EVENTS - len(found)
            assert account.outcomes.get(Outcome.DAMAGED, (0, 0))[0] == lost, note


def test_what_it_costs_in_the_log_is_named_and_set_aside() -> None:
    path, start = next((p, s) for p, s in pages() if p.parent == WAL and len(held_in(p, s)) > 1)
    with Machine(spoiled(path, start)) as machine:
        quiver = machine.start()
        damages = quiver.recovery.damages
        named = {seq for d in damages for seq in range(d.first_seq or 0, (d.last_seq or 0) + 1)}
        assert named == set(range(EVENTS)) - drained(quiver).keys()
        assert all(damage.reason == "the disk cannot read it" for damage in damages)
        assert machine.disk.list(ROOT / "quarantine")


def test_a_bad_sector_at_the_very_end_of_the_log_is_damage_too() -> None:
    """A power cut leaves a torn end, but none that cannot be read: it may have been accepted."""
    path = max(path for path in stored() if path.parent == WAL)
    header = take_apart(stored()[path]).starts[-1]
    start = header - header % PAGE_BYTES
    with Machine(spoiled(path, start)) as machine:
        damages = machine.start().recovery.damages
    assert damages
    assert {damage.reason for damage in damages} == {"the disk cannot read it"}
    assert (damages[-1].last_seq, damages[-1].bundles) == (None, None)


def test_every_tool_survives_a_bad_sector_anywhere() -> None:
    for path, start in pages():
        disk = spoiled(path, start)
        assert inspect(disk, ROOT).accepted.bundles >= EVENTS - len(held_in(path, start))
        fsck(Seam(disk=disk), ROOT)
        scrub(disk, ROOT, lambda _: None)


def test_salvage_saves_all_but_what_lies_in_the_sector_and_counts_it() -> None:
    """It gave up a whole file of the log for one page, and said that nothing was lost."""
    for path, start in pages():
        seam = Seam(disk=spoiled(path, start), randomness=seeded_randomness(7))
        result = salvage(seam, ROOT, NEW, lambda _: None)
        cost = held_in(path, start)
        note = f"{path} at {start}: {result}"
        assert EVENTS - len(cost) <= result.saved.bundles <= EVENTS, note
        if not any("nothing tells how many" in finding.what for finding in result.findings):
            assert result.saved.bundles + result.lost.bundles == EVENTS, note
        else:
            assert is_at_the_end(path, start), note


def test_a_page_that_fails_later_costs_what_lies_in_it() -> None:
    """It was read soundly, forced out of memory, and cannot be read again."""
    with Machine(disk_with(stored())) as machine:
        quiver = machine.start()
        segment = quiver.segments()[0]
        (path,) = data_paths(segment)
        assert quiver.scan(["_seq"]).read_all().num_rows == EVENTS
        with quiver.lease(READER) as lease:
            assert lease.poll() is not None
            last = segment.summary.files[0].batches[-1]
            machine.disk.spoil(path, last.offset, last.offset + 1)
        with pytest.raises(Damaged, match="cannot be read"):
            quiver.scan(["_seq"]).read_all()
        table = quiver.scan(["_seq"], on_damage="skip").read_all()
        assert table.num_rows == EVENTS - last.rows
        lost = set(range(EVENTS)) - drained(quiver).keys()
        assert lost == set(range(12 - last.rows, 12))


def test_a_buffer_whose_first_bundle_is_lost_is_seen_once_while_it_is_sealed() -> None:
    """The segment begins with another seq than the buffer did, and both were taken."""
    with Machine(disk_with(stored())) as machine, pytest.MonkeyPatch.context() as patch:
        quiver = machine.start()
        path = max(path for path in stored() if path.parent == WAL)
        machine.disk.spoil(path, 2 * PAGE_BYTES, 3 * PAGE_BYTES)
        lost = held_in(path, 2 * PAGE_BYTES)
        assert SEALED in lost
        catalog, readable = quiver._engine.catalog, quiver._engine.readable
        look = catalog.snapshot

        def seal_first() -> tuple[Segment, ...]:
            patch.setattr(catalog, "snapshot", look)
            quiver.flush()
            return look()

        patch.setattr(catalog, "snapshot", seal_first)
        segments, tail = readable.snapshot()
        spans = [(s.summary.first_seq, s.summary.last_seq) for s in segments]
        twice = [
            held.seq
            for buffer in tail
            for held in buffer
            if any(first <= held.seq <= last for first, last in spans)
        ]
        assert twice == []
        assert spans[-1] == (max(lost) + 1, EVENTS - 1)


def test_a_sector_of_the_log_that_dies_before_the_seal_is_accounted_for_at_once() -> None:
    """What it cost was waited for until the next start."""
    with Machine(disk_with(stored())) as machine:
        quiver = machine.start()
        path = max(path for path in stored() if path.parent == WAL)
        machine.disk.spoil(path, 4 * PAGE_BYTES, 5 * PAGE_BYTES)
        lost = held_in(path, 4 * PAGE_BYTES)
        assert lost
        quiver.flush()
        account = quiver.balance(READER)
        assert account.holds
        assert account.outcomes[Outcome.DAMAGED] == (len(lost), len(lost))
        assert {damage.first_seq for damage in quiver.recovery.damages} == lost
        assert set(drained(quiver)) == set(range(EVENTS)) - lost
        assert quiver.balance(READER).pending == (0, 0)
        machine.kill()
        quiver = machine.start()
        assert quiver.recovery.damages == []
        assert quiver.balance(READER).holds


def test_a_buffer_of_which_nothing_can_be_read_holds_up_no_other() -> None:
    with Machine() as machine:
        quiver = machine.start(faults=[NO_SEAL])
        quiver.register(READER)
        quiver.append_raw(bytes(MB - 100))  # fills a buffer
        (path,) = machine.wal_paths()[:1]
        for seq in (1, 2):
            quiver.append_raw(event(seq))
        machine.kill()
        disk = FaultyDisk(machine.disk, [NO_SEAL], machine.disk.die)
        quiver = machine.start(through=lambda _: disk)
        assert quiver.balance(READER).pending == (3, 3)
        machine.disk.spoil(path, 10 * PAGE_BYTES, 11 * PAGE_BYTES)
        until(lambda: quiver.balance(READER).outcomes[Outcome.DAMAGED] == (1, 1))
        disk.heal()
        quiver.flush()
        assert list(drained(quiver)) == [1, 2]
        assert quiver.balance(READER).holds
        assert [segment.summary.first_seq for segment in quiver.segments()] == [1]


@pytest.mark.parametrize("reader", ["lease", "cursor", "scan"])
def test_a_file_that_is_cut_under_an_open_reader_costs_what_is_gone(reader: str) -> None:
    with Machine(disk_with(stored())) as machine:
        quiver = machine.start()
        segment = quiver.segments()[0]
        (path,), first = data_paths(segment), segment.summary.files[0].batches[0]

        def cut() -> None:
            if machine.disk.exists(path):
                machine.disk.cut(path, first.offset + first.length + 10)

        found = set(read_and_cut(quiver, reader, cut))
    assert found == set(range(first.rows)) | set(range(12, EVENTS))


def read_and_cut(quiver: Quiver, reader: str, cut: object) -> Iterator[int]:
    """Yield the seqs that a reader gets; a file is cut after the first."""
    assert callable(cut)
    if reader == "scan":
        batches = quiver.scan(["_seq"], on_damage="skip")
        for batch in batches:
            yield from batch.column("_seq").to_pylist()
            cut()
        return
    if reader == "lease":
        with quiver.lease(READER) as lease:
            while (delivery := lease.poll()) is not None:
                yield delivery.seq
                delivery.ack()
                cut()
        return
    with quiver.cursor(READER, on_data_loss="count") as cursor:
        while (planned := cursor.plan()) is not None:
            for bundle in cursor.read(planned):
                yield bundle.seq
                cut()
            cursor.commit(planned)


def test_only_who_asks_for_maps_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything else would die of a bad sector."""
    asked: list[PurePath] = []
    whole = SimulatedDisk.map

    def noted(disk: SimulatedDisk, path: PurePath) -> memoryview:
        asked.append(path)
        return whole(disk, path)

    monkeypatch.setattr(SimulatedDisk, "map", noted)
    with Machine(disk_with(stored())) as machine:
        quiver = machine.start()
        assert quiver.scan(["_seq"]).read_all().num_rows == EVENTS
        assert asked == []
        assert quiver.scan(["_seq"], zero_copy=True).read_all().num_rows == EVENTS
        assert asked == [path for segment in quiver.segments() for path in data_paths(segment)]
        asked.clear()
        drained(quiver)
        assert asked == []


def test_a_map_of_a_bad_sector_is_the_end_of_who_asked_for_it() -> None:
    path = next(path for path in stored() if path.name.startswith("000-"))
    with Machine(spoiled(path, 0)) as machine:
        quiver = machine.start()
        with pytest.raises(SimulatedBusError):
            quiver.scan(["_seq"], zero_copy=True).read_all()
