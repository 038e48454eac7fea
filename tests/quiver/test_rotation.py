"""WAL files begin, end and go: by size, with segments, at starts, and over crashes in between."""

from __future__ import annotations

from pathlib import PurePath

import pytest
from tests.patience import until
from tests.quiver.machine import NO_SEAL, WAL, Machine, contents, disk_with, payloads
from tests.support.disk import WatchedDisk

from holdfast.errors import CannotOpen
from holdfast.quiver import Quiver
from holdfast.quiver.base.names import wal_file
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.log.wal import HEADER_BYTES
from holdfast.seam.disk import Handle
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.simulated import SimulatedCrash

CREATING = [
    QuiverPoint.WAL_CREATE,
    QuiverPoint.WAL_HEADER,
    QuiverPoint.WAL_HEADER_SYNC,
    QuiverPoint.WAL_SYNC_DIR,
]
KILLS = [FaultKind.KILL_BEFORE, FaultKind.KILL_MIDWAY, FaultKind.KILL_AFTER]


def numbers(machine: Machine) -> list[int]:
    return [int(path.stem) for path in machine.wal_paths()]


def append_sized(quiver: Quiver, count: int, size_bytes: int = 20_000) -> list[int]:
    return [quiver.append_raw(bytes([n]) * size_bytes).seq for n in range(count)]


# When a file ends.


def test_a_file_is_left_before_it_outgrows_its_size(machine: Machine) -> None:
    append_sized(machine.start(), 10)
    assert numbers(machine) == [1, 2, 3, 4, 5]
    for path in machine.wal_paths():
        assert len(machine.disk.read(path)) <= 64 * 1024
    held = [[frame.seq for frame in machine.wal(place).frames] for place in range(5)]
    assert held == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]], "no frame spans two files"


def test_a_bundle_larger_than_a_file_has_one_of_its_own(machine: Machine) -> None:
    quiver = machine.start()
    quiver.append_raw(b"small")
    quiver.append_raw(bytes(300_000))
    quiver.append_raw(b"small")
    assert [len(machine.wal(place).frames) for place in range(3)] == [1, 1, 1]
    machine.kill()
    assert [len(events[0]) for events in payloads(machine.start()).values()] == [5, 300_000, 5]


def test_a_file_that_is_left_was_synced_before(machine: Machine) -> None:
    """Also what was only written: damage in it must not look like a torn tail."""
    watched = WatchedDisk(machine.disk)
    quiver = machine.start(through=lambda _: watched)
    append_sized(quiver, 3)
    assert machine.wal(1).header.previous_number == 1
    assert machine.wal(1).header.previous_synced == len(machine.disk.read(machine.wal_paths()[0]))
    assert machine.wal(1).header.previous_holds == (2, 2)
    assert machine.wal(1).header.accepted_before == (2, 2)


def test_every_start_begins_a_file_and_never_appends_to_an_old_one(machine: Machine) -> None:
    before: dict[str, bytes] = {}
    for start in range(1, 4):
        quiver = machine.start(faults=[NO_SEAL])
        quiver.append_raw(b"x")
        machine.kill()
        assert numbers(machine)[-2:] == [start - 1, start][-start:]
        for path in machine.wal_paths()[:-1]:
            assert machine.disk.read(path) == before[path.name]
        before = {path.name: machine.disk.read(path) for path in machine.wal_paths()}


def test_the_next_file_has_the_highest_number_plus_one_also_with_gaps(machine: Machine) -> None:
    quiver = machine.start(faults=[NO_SEAL])
    append_sized(quiver, 14)
    machine.kill()
    files = contents(machine.disk)
    assert numbers(machine) == list(range(1, 8))
    for number in (1, 3, 4, 5, 6):
        del files[WAL / wal_file(number)]
    machine.disk = disk_with(files)
    quiver = machine.start(faults=[NO_SEAL])
    assert numbers(machine) == [2, 7, 8]
    assert sorted(payloads(quiver)) == [2, 3, 12, 13]


# When a file goes.


def test_a_handed_over_segment_ends_the_file_and_the_file_goes_when_it_is_sealed(
    machine: Machine,
) -> None:
    quiver = machine.start()
    append_sized(quiver, 5)
    assert numbers(machine) == [1, 2, 3]
    quiver.flush()
    until(lambda: numbers(machine) == [4])
    assert quiver.statistics().wal_bytes == HEADER_BYTES
    assert quiver.statistics().wal_files == 1


class FasterSealerDisk(FaultyDisk):
    """Begins no file as long as there is anything to seal, as if the writer were far slower."""

    quiver: Quiver | None = None

    def create(self, path: PurePath, at: str) -> Handle:
        if self.quiver is not None and at == QuiverPoint.WAL_CREATE:
            sealer = self.quiver._engine.sealer
            until(lambda: not sealer.sealing())
        return super().create(path, at)


def test_a_file_goes_with_its_segment_also_when_that_is_sealed_before_the_next_file_is_begun(
    machine: Machine,
) -> None:
    slow = FasterSealerDisk(machine.disk, (), machine.disk.die)
    quiver = slow.quiver = machine.start(through=lambda _: slow)
    quiver.append_raw(b"event")
    quiver.flush()
    until(lambda: numbers(machine) == [2])


def test_a_file_stays_as_long_as_one_of_its_bundles_is_not_sealed(machine: Machine) -> None:
    quiver = machine.start(faults=[NO_SEAL])
    append_sized(quiver, 5)
    machine.stop()
    assert numbers(machine) == [1, 2, 3]
    machine.start()
    machine.stop()
    assert numbers(machine) == [4]


def test_a_file_whose_successor_could_not_be_begun_takes_no_more_and_the_next_is_tried_again(
    machine: Machine,
) -> None:
    quiver = machine.start(faults=[Fault(QuiverPoint.WAL_CREATE, FaultKind.EIO, nth=2)])
    quiver.append_raw(b"a")
    quiver.flush()
    quiver.append_raw(b"b")
    assert numbers(machine) == [1, 3]
    assert [frame.seq for frame in machine.wal(0).frames] == [0]
    assert [frame.seq for frame in machine.wal(1).frames] == [1]
    machine.kill()
    quiver = machine.start()
    assert payloads(quiver) == {0: [b"a"], 1: [b"b"]}
    assert quiver.recovery.skipped_bundles == 1
    quiver.flush()
    until(lambda: len(numbers(machine)) == 1)
    assert payloads(quiver) == {0: [b"a"], 1: [b"b"]}


@pytest.mark.parametrize("at", [QuiverPoint.TRUNCATE_UNLINK, QuiverPoint.TRUNCATE_SYNC_DIR])
def test_a_file_that_cannot_be_removed_is_tried_again_with_the_next_segment(
    machine: Machine, at: QuiverPoint
) -> None:
    quiver = machine.start(faults=[Fault(at, FaultKind.EIO)])
    for n in range(2):
        quiver.append_raw(b"%d" % n)
        quiver.flush()
    until(lambda: len(numbers(machine)) == 1)
    assert payloads(quiver) == {0: [b"0"], 1: [b"1"]}


def test_a_file_whose_removal_a_power_cut_undid_is_not_replayed_again(machine: Machine) -> None:
    quiver = machine.start(faults=[Fault(QuiverPoint.TRUNCATE_SYNC_DIR, FaultKind.EIO)])
    append_sized(quiver, 3)
    quiver.flush()
    until(lambda: quiver.statistics().last_seal_error is not None)
    assert numbers(machine) == [3]
    machine.cut_power()
    quiver = machine.start()
    assert sorted(payloads(quiver)) == [0, 1, 2]
    assert quiver.recovery.replayed_bundles == 0
    assert quiver.recovery.skipped_bundles == 3
    assert quiver.recovery.damages == []


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_bundles_keep_their_numbers_when_some_but_not_all_files_are_gone(
    machine: Machine, gone: int
) -> None:
    """Upstream counted positions from the first file that was left."""
    quiver = machine.start(faults=[NO_SEAL])
    append_sized(quiver, 6)
    machine.kill()
    machine.disk.unlink(machine.wal_paths()[gone], "test")
    quiver = machine.start()
    expected = {n: [bytes([n]) * 20_000] for n in range(6) if n // 2 != gone}
    assert payloads(quiver) == expected
    machine.stop()
    assert payloads(machine.start()) == expected


# Crashes while a file is begun.


@pytest.mark.parametrize("size_bytes", [0, 1, 13, 512, 4095, 4096, 4097, HEADER_BYTES - 1])
def test_a_newest_file_shorter_than_its_header_harms_nothing(
    machine: Machine, size_bytes: int
) -> None:
    """The crash came between creating the file and syncing its header."""
    machine.start(faults=[NO_SEAL]).append_raw(b"x")
    machine.kill()
    header = machine.disk.read(machine.wal_paths()[0])[:HEADER_BYTES]
    for content in (header[:size_bytes], bytes(size_bytes)):
        machine.disk.put(WAL / wal_file(2), content)
        quiver = machine.start(faults=[NO_SEAL])
        assert payloads(quiver) == {0: [b"x"]}
        assert quiver.recovery.torn_bytes == size_bytes
        assert quiver.recovery.damages == []
        assert quiver.append_raw(b"y").seq > 0
        assert not machine.disk.exists(WAL / wal_file(2))
        machine.kill()
        machine.disk.unlink(machine.wal_paths()[-1], "test")


def test_an_only_file_shorter_than_its_header_does_not_block_the_start(machine: Machine) -> None:
    machine.start()
    machine.kill()
    for size_bytes in (0, 13, HEADER_BYTES - 1):
        machine.cut(machine.wal_paths()[-1], size_bytes)
        machine.start()
        machine.kill()


def append_until_crash(machine: Machine, fault: Fault) -> set[int]:
    """Start and append; return the seqs that were answered before the fault struck."""
    stored = set()
    try:
        quiver = machine.start(faults=[NO_SEAL, fault])
        for _ in range(3):
            stored.add(quiver.append_raw(bytes(20_000)).seq)
    except SimulatedCrash:
        return stored
    raise AssertionError("the fault did not strike")


@pytest.mark.thinned(5)
@pytest.mark.parametrize("kind", KILLS)
@pytest.mark.parametrize("at", CREATING)
@pytest.mark.parametrize("nth", [1, 2], ids=["at open", "at rotation"])
def test_a_crash_at_any_step_of_beginning_a_file_loses_and_blocks_nothing(
    machine: Machine, at: QuiverPoint, kind: FaultKind, nth: int
) -> None:
    quiver = machine.start(faults=[NO_SEAL])
    append_sized(quiver, 2)
    machine.kill()
    stored = {0, 1} | append_until_crash(machine, Fault(at, kind, nth=nth))
    assert len(stored) == (2 if nth == 1 else 3)
    machine.cut_power()
    quiver = machine.start()
    assert set(payloads(quiver)) == stored
    assert quiver.recovery.damages == []
    assert quiver.append_raw(b"x").seq > max(stored)


@pytest.mark.parametrize("at", CREATING)
def test_a_start_that_cannot_begin_a_file_is_refused_and_the_next_one_works(
    machine: Machine, at: QuiverPoint
) -> None:
    machine.start().append_raw(b"x")
    machine.kill()
    with pytest.raises(CannotOpen):
        machine.start(faults=[Fault(at, FaultKind.EIO)])
    assert payloads(machine.start()) == {0: [b"x"]}
