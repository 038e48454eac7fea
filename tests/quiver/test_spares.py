"""Spare WAL files: the next file is written over one whose bundles are all in segments."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.patience import until
from tests.quiver.machine import NO_SEAL, ROOT, SEGMENTS, WAL, Machine, payloads, quiet

from holdfast.errors import DiskFull, HoldfastError
from holdfast.quiver import Quiver
from holdfast.quiver.base import names
from holdfast.quiver.base.config import KB, MB
from holdfast.quiver.base.held_bundle import Unread
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.log.reserve import ReserveShare
from holdfast.quiver.log.wal import (
    HEADER_BYTES,
    RECYCLED_VERSION,
    VERSION,
    NewerVersion,
    decode_block,
    decode_header,
)
from holdfast.quiver.tools.inspect import inspect
from holdfast.quiver.tools.scrub import scrub
from holdfast.seam import Seam
from holdfast.seam.disk import PAGE_BYTES, Handle, remove_tree
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.simulated import SimulatedCrash

KEEPING = quiet(spare_files=2)
MAGIC = b"HFWAL\r\n\x1a"


def seal(quiver: Quiver) -> None:
    """Seal what is open, and see its WAL files go one way or the other."""
    quiver.flush()
    # The flush is answered a moment before the sealer lets the files go.
    engine = quiver._engine
    sealed_through = max((s.summary.last_seq for s in engine.catalog.snapshot()), default=-1)
    engine.sealer.wal_files.remove_sealed(sealed_through)


def spares(machine: Machine) -> list[PurePath]:
    return [WAL / e.name for e in machine.disk.list(WAL) if names.is_spare_wal_file(e.name)]


def newest(machine: Machine) -> PurePath:
    return [path for path in machine.wal_paths() if path.suffix == ".wal"][-1]


def recycling(machine: Machine, *sizes: int) -> Quiver:
    """Return a quiver whose newest file is written over one with bundles of these sizes."""
    quiver = machine.start(KEEPING)
    for size_bytes in sizes or (40_000,):
        quiver.append_raw(b"old" * (size_bytes // 3))
    for _ in range(2):  # the file that follows a seal was begun before it
        seal(quiver)
        quiver.append_raw(b"x")
    assert decode_header(memoryview(machine.disk.read(newest(machine)))).recycled_bytes > 40_000
    return quiver


# From file to spare to file.


def test_a_sealed_file_becomes_a_spare_and_the_next_file_is_written_over_it(
    machine: Machine,
) -> None:
    quiver = machine.start(KEEPING)
    quiver.append_raw(b"old" * 10_000)
    size_bytes = len(machine.disk.read(newest(machine)))
    seal(quiver)
    assert [len(machine.disk.read(path)) for path in spares(machine)] == [size_bytes]
    quiver.append_raw(b"between")
    seal(quiver)
    assert newest(machine).name == names.wal_file(3)
    header = decode_header(memoryview(machine.disk.read(newest(machine))))
    assert (header.number, header.previous_number) == (3, 2)
    assert header.recycled_bytes == len(machine.disk.read(newest(machine))) == size_bytes
    quiver.append_raw(b"new")
    machine.kill()
    quiver = machine.start(KEEPING, faults=[NO_SEAL])
    assert payloads(quiver)[2] == [b"new"]
    assert (quiver.recovery.damages, quiver.recovery.torn_bytes) == ([], 0)
    assert quiver.recovery.replayed_bundles == 1


def test_a_file_that_outgrows_the_one_before_goes_on_behind_its_end(machine: Machine) -> None:
    quiver = recycling(machine)
    quiver.append_raw(b"long" * 8_000)
    quiver.append_raw(b"short")
    machine.cut_power()
    quiver = machine.start(faults=[NO_SEAL])
    assert [len(events[0]) for events in payloads(quiver).values()][-2:] == [32_000, 5]
    assert (quiver.recovery.damages, quiver.recovery.torn_bytes) == ([], 0)


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_no_more_spares_are_kept_than_configured(machine: Machine, limit: int) -> None:
    quiver = machine.start(quiet(spare_files=limit))
    for n in range(10):
        quiver.append_raw(bytes([n]) * 30_000)
    seal(quiver)
    assert len(spares(machine)) == limit
    files = machine.disk.list(WAL)
    assert quiver.statistics().wal_files == len(files)
    assert quiver.statistics().wal_bytes == sum(file.size_bytes for file in files)


def test_a_clean_end_removes_the_spares_and_is_found_before_what_is_left_of_the_old_file(
    machine: Machine,
) -> None:
    quiver = recycling(machine)
    seal(quiver)
    next_seq = quiver._engine.writer.next_seq
    machine.stop()
    assert spares(machine) == []
    quiver = machine.start(KEEPING)
    assert quiver.recovery.clean_shutdown
    assert quiver._engine.writer.next_seq == next_seq


def test_a_start_removes_the_spares_that_it_finds(machine: Machine) -> None:
    quiver = machine.start(KEEPING)
    quiver.append_raw(b"x")
    seal(quiver)
    machine.kill()
    assert len(spares(machine)) == 1
    quiver = machine.start(KEEPING)
    assert spares(machine) == []
    assert quiver.recovery.damages == []


@pytest.mark.parametrize("seed", range(12))
def test_a_header_that_is_torn_by_a_power_cut_was_that_of_a_spare(
    machine: Machine, seed: int
) -> None:
    fault = Fault(QuiverPoint.WAL_HEADER, FaultKind.KILL_AFTER, nth=3)
    quiver = machine.start(KEEPING, faults=[fault])
    quiver.append_raw(b"old" * 10_000)
    seal(quiver)
    quiver.append_raw(b"new")
    with contextlib.suppress(HoldfastError, SimulatedCrash):
        quiver.flush()
    machine.cut_power(random.Random(seed))
    quiver = machine.start(KEEPING)
    assert quiver.recovery.damages == []
    assert list(payloads(quiver).values()) == [[b"old" * 10_000], [b"new"]]


# Versions.


def test_only_a_file_that_is_written_over_another_has_the_newer_version(machine: Machine) -> None:
    recycling(machine)
    recycled = memoryview(machine.disk.read(newest(machine)))
    with pytest.raises(NewerVersion):
        decode_block(recycled, MAGIC, VERSION)
    decode_block(recycled, MAGIC, RECYCLED_VERSION)
    machine.stop()
    machine.start(quiet(spare_files=0))
    machine.stop()
    decode_block(memoryview(machine.disk.read(newest(machine))), MAGIC, VERSION)


# What is never written over.


@pytest.mark.parametrize("is_spare", [False, True])
def test_a_file_with_a_second_name_is_unlinked_and_its_bytes_stay(
    machine: Machine, is_spare: bool
) -> None:
    quiver = machine.start(KEEPING)
    quiver.append_raw(b"old")
    content, copy = machine.disk.read(newest(machine)), ROOT / "copy"
    if is_spare:
        seal(quiver)
    machine.disk.link(spares(machine)[0] if is_spare else newest(machine), copy, "test")
    seal(quiver)
    for _ in range(3):
        quiver.append_raw(b"new")
        seal(quiver)
    assert machine.disk.read(copy) == content


@pytest.mark.parametrize(
    "fault",
    [
        Fault(QuiverPoint.WAL_SYNC, FaultKind.FAILED_SYNC),
        Fault(QuiverPoint.WAL_WRITE, FaultKind.SHORT_WRITE),
    ],
    ids=lambda fault: fault.at,
)
def test_a_file_with_a_failure_is_never_written_over(machine: Machine, fault: Fault) -> None:
    quiver = machine.start(KEEPING, faults=[fault])
    with contextlib.suppress(DiskFull):
        quiver.append_raw(b"written once more, or refused")
    quiver.append_raw(b"taken")
    seal(quiver)
    assert machine.wal_paths()[0].name != names.spare_wal_file(names.wal_file(1))


def test_a_file_that_was_not_renamed_durably_is_removed(machine: Machine) -> None:
    quiver = machine.start(KEEPING, faults=[Fault(QuiverPoint.TRUNCATE_SYNC_DIR, FaultKind.EIO)])
    quiver.append_raw(b"x")
    quiver.flush()
    until(lambda: quiver.statistics().last_seal_error is not None)
    assert len(quiver._engine.sealer.wal_files.spares) == 0
    quiver.append_raw(b"y")
    seal(quiver)
    assert [path.stem for path in spares(machine)] == ["0000000000000002"]


def test_bundles_that_somebody_holds_stay_what_they_are_over_a_hundred_recyclings(
    machine: Machine,
) -> None:
    """The bytes of those that a start found are still in their file: no other is written there."""
    quiver = machine.start(KEEPING, faults=[NO_SEAL])
    quiver.append_raw(b"replayed" * 1_000)
    quiver.append_raw(b"copied")  # the next group says that the one before was synced
    machine.kill()
    quiver = machine.start(KEEPING)
    quiver.append_raw(b"ordinary" * 1_000)
    held = list(quiver._engine.writer.buffer.bundles)
    assert [type(one.payload) is Unread for one in held] == [True, False, False]
    before = [bytes(one.content()) for one in held]
    recycled = 0
    for n in range(102):
        seal(quiver)
        quiver.append_raw(b"%d" % n * 3_000)
        header = decode_header(memoryview(machine.disk.read(newest(machine))))
        recycled += header.recycled_bytes > 0
    assert recycled >= 100
    assert [bytes(one.content()) for one in held] == before


# The end of the log.


def test_what_is_left_of_the_old_file_is_neither_torn_nor_damaged(machine: Machine) -> None:
    quiver = recycling(machine, 20_000, 20_000)
    quiver.append_raw(b"new")
    machine.kill()
    quiver = machine.start(faults=[NO_SEAL])
    assert quiver.recovery.torn_bytes == 0
    assert quiver.recovery.damages == []
    assert list(payloads(quiver).values())[-1] == [b"new"]


def test_no_bundle_of_a_former_life_comes_back(machine: Machine) -> None:
    """Those that were delivered and deleted are in no segment that would hide them."""
    recycling(machine, *[1_500] * 30).append_raw(b"new")
    machine.kill()
    for entry in machine.disk.list(SEGMENTS):
        remove_tree(machine.disk, SEGMENTS / entry.name, "test")
    quiver = machine.start(faults=[NO_SEAL])
    assert list(payloads(quiver).values()) == [[b"x"], [b"new"]]


def test_a_torn_group_is_counted_where_its_header_is_sound(machine: Machine) -> None:
    recycling(machine).append_raw(b"y" * 1_000)
    start, frame = machine.wal().starts[1], machine.wal().frames[1]
    machine.scribble(newest(machine), start + 500, start + 600)
    machine.kill()
    quiver = machine.start(faults=[NO_SEAL])
    assert quiver.recovery.torn_bytes == frame.end - start
    assert quiver.recovery.damages == []


def test_a_torn_group_behind_the_end_of_the_old_file_is_counted(machine: Machine) -> None:
    recycling(machine).append_raw(b"y" * 50_000)
    path, start = newest(machine), machine.wal().starts[1]
    size_bytes = len(machine.disk.read(path))
    machine.scribble(path, start, start + 100)
    machine.kill()
    assert machine.start(faults=[NO_SEAL]).recovery.torn_bytes == size_bytes - start


def test_a_hole_in_what_was_synced_is_damage_and_not_the_end_of_the_log(machine: Machine) -> None:
    quiver = recycling(machine)
    for n in range(3):
        quiver.append_raw(b"%d" % n * 100)
    starts = machine.wal().starts
    machine.scribble(newest(machine), starts[1], starts[2])
    machine.kill()
    quiver = machine.start(faults=[NO_SEAL])
    (damage,) = quiver.recovery.damages
    assert (damage.bundles, damage.events) == (1, 1)
    assert [events[0][:1] for events in payloads(quiver).values()][-2:] == [b"1", b"2"]


@pytest.mark.parametrize(("pages", "damages"), [(0, 1), (1, 0)])
def test_a_sector_that_cannot_be_read_is_damage_only_where_the_log_may_go_on(
    machine: Machine, pages: int, damages: int
) -> None:
    recycling(machine).append_raw(b"y" * 3_888)  # up to the end of a page
    start = machine.wal().frames[-1].end + pages * PAGE_BYTES
    assert start % PAGE_BYTES == 0
    machine.disk.spoil(newest(machine), start, start + PAGE_BYTES)
    machine.kill()
    assert len(machine.start(faults=[NO_SEAL]).recovery.damages) == damages


def test_a_write_that_failed_is_cut_off_and_the_next_one_stands_in_its_place(
    machine: Machine,
) -> None:
    faults = [Fault(QuiverPoint.WAL_WRITE, FaultKind.SHORT_WRITE, nth=4)]
    quiver = machine.start(KEEPING, faults=faults)
    for content in (b"old" * 10_000, b"between"):
        quiver.append_raw(content)
        seal(quiver)
    quiver.append_raw(b"first")
    assert quiver.append_raw(b"second" * 1_000)  # there is a spare to make room with
    quiver.append_raw(b"third")
    machine.kill()
    quiver = machine.start(faults=[NO_SEAL])
    assert [e[0][:6] for e in payloads(quiver).values()][-3:] == [b"first", b"second", b"third"]
    assert (quiver.recovery.damages, quiver.recovery.torn_bytes) == ([], 0)


# Room.


def test_a_spare_goes_when_the_log_is_at_its_bound(machine: Machine) -> None:
    config = quiet(spare_files=2, max_size_bytes=240 * KB)
    quiver = machine.start(config)
    for _ in range(2):
        quiver.append_raw(b"x" * 50_000)
    seal(quiver)
    assert len(spares(machine)) == 2
    for _ in range(4):
        quiver.append_raw(b"x" * 50_000)
    assert quiver.statistics().writer.blocked_seconds < 30
    assert quiver.statistics().wal_bytes < 480 * KB


def test_a_file_that_is_large_for_the_bounds_is_no_spare(machine: Machine) -> None:
    """Written over it, an empty file would be at the bound, and nothing could make room."""
    quiver = machine.start(quiet(spare_files=2, max_size_bytes=64 * KB))
    quiver.append_raw(b"large" * 14_000)
    quiver.append_raw(b"is sealed later")
    until(lambda: quiver.statistics().segments == 1)
    quiver._engine.sealer.wal_files.remove_sealed()
    assert spares(machine) == []
    seal(quiver)
    assert quiver.append_raw(b"there is room")


def test_a_full_disk_takes_the_spares_before_the_reserve(machine: Machine) -> None:
    quiver = recycling(machine)
    seal(quiver)
    reserve, sizes = quiver._engine.reserve, [len(machine.disk.read(p)) for p in spares(machine)]
    held_bytes, used_bytes = reserve.held_bytes, quiver._engine.retention.used_bytes()
    assert reserve.give_up(ReserveShare.HEADERS)
    assert spares(machine) == []
    assert reserve.held_bytes == held_bytes
    assert quiver._engine.retention.used_bytes() == used_bytes - sum(sizes)
    assert reserve.give_up(ReserveShare.HEADERS)
    assert reserve.held_bytes < held_bytes


def test_a_disk_that_is_nearly_full_keeps_no_spare(machine: Machine) -> None:
    quiver = machine.start(KEEPING)
    quiver.append_raw(b"x" * 30_000)
    machine.disk.fill()
    machine.disk.capacity_bytes += MB  # type: ignore[operator]
    seal(quiver)
    assert spares(machine) == []


# From outside.


class Overtaken(FaultyDisk):
    """Lets a file be written over just after somebody opened it to read."""

    def __init__(self, machine: Machine, path: PurePath, overtake: Callable[[], None]) -> None:
        super().__init__(machine.disk, (), machine.disk.die)
        self._path = path
        self._overtake: Callable[[], None] | None = overtake

    def open_read(self, path: PurePath) -> Handle:
        handle = super().open_read(path)
        if path == self._path and self._overtake is not None:
            overtake, self._overtake = self._overtake, None
            overtake()
        return handle


def test_a_file_that_is_written_over_while_it_is_read_is_not_taken_for_damaged(
    machine: Machine,
) -> None:
    quiver = recycling(machine)
    quiver.append_raw(b"y" * 20_000)
    path, seqs = newest(machine), list[int]()

    def overtake() -> None:
        for _ in range(3):
            seal(quiver)
            seqs.append(quiver.append_raw(b"z" * 100).seq)

    found = inspect(Overtaken(machine, path, overtake), ROOT)
    assert not machine.disk.exists(path)
    assert found.wal_damages == ()
    assert found.torn_bytes == 0
    assert [held.seq for held in found.unsealed] == seqs[-1:]


class HeaderOvertaken(FaultyDisk):
    """Lets the header of a file be written over while somebody reads it for the `nth` time."""

    def __init__(self, machine: Machine, path: PurePath, nth: int, written_bytes: int) -> None:
        super().__init__(machine.disk, (), machine.disk.die)
        self._path = path
        self._left = nth
        self._written_bytes = written_bytes

    def read_range(self, path: PurePath, offset_bytes: int, size_bytes: int) -> bytes:
        found = super().read_range(path, offset_bytes, size_bytes)
        self._left -= path == self._path
        if path != self._path or self._left:
            return found
        self.unlink(path, "test")  # it has another name
        return bytes(self._written_bytes) + found[self._written_bytes :]


@pytest.mark.parametrize(("nth", "written_bytes"), [(1, HEADER_BYTES), (2, PAGE_BYTES)])
def test_a_header_that_is_written_over_while_it_is_read_is_not_taken_for_damaged(
    machine: Machine, nth: int, written_bytes: int
) -> None:
    recycling(machine)
    disk = HeaderOvertaken(machine, newest(machine), nth, written_bytes)
    findings = scrub(disk, ROOT, lambda _: None).findings
    assert not machine.disk.exists(WAL / names.wal_file(3))
    assert [one for one in findings if one.where.startswith(names.WAL_DIR)] == []


class WrittenMeanwhile(FaultyDisk):
    """Lets the owner append when somebody has read the first part of a file."""

    def __init__(self, machine: Machine, path: PurePath, append: Callable[[], None]) -> None:
        super().__init__(machine.disk, (), machine.disk.die)
        self._path = path
        self._append: Callable[[], None] | None = append
        self._handles = set[Handle]()

    def open_read(self, path: PurePath) -> Handle:
        handle = super().open_read(path)
        if path == self._path:
            self._handles.add(handle)
        return handle

    def read_into(self, handle: Handle, offset: int, buffer: memoryview) -> int:
        count = super().read_into(handle, offset, buffer)
        if handle in self._handles and len(buffer) > HEADER_BYTES and self._append is not None:
            append, self._append = self._append, None
            append()
        return count


def test_a_file_that_is_written_while_it_is_read_is_not_taken_for_damaged(
    machine: Machine,
) -> None:
    """What stands behind the part that was read first is newer than that part."""
    config = quiet(spare_files=2, file_size_bytes=8 * MB)
    larger = replace(config.segment, target_size_bytes=8 * MB)
    quiver = machine.start(replace(config, segment=larger))
    quiver.append_raw(b"old" * 800_000)
    for _ in range(2):
        seal(quiver)
        quiver.append_raw(b"x")
    assert decode_header(memoryview(machine.disk.read(newest(machine)))).recycled_bytes > 2 * MB
    seqs = [quiver.append_raw(b"before" * 100).seq]

    def append() -> None:
        seqs.extend(quiver.append_raw(b"%d" % n * 220_000).seq for n in range(6))

    found = inspect(WrittenMeanwhile(machine, newest(machine), append), ROOT)
    assert found.wal_damages == ()
    assert [held.seq for held in found.unsealed][-7:] == seqs


def test_a_real_file_is_written_over(tmp_path: Path) -> None:
    """By its inode: not copied, and not made anew."""
    with Quiver.open(tmp_path, KEEPING, seam=Seam()) as quiver:
        quiver.append_raw(b"old" * 10_000)
        (first,) = (tmp_path / "wal").iterdir()
        inode, size_bytes = first.stat().st_ino, first.stat().st_size
        for _ in range(2):
            seal(quiver)
            quiver.append_raw(b"new")
        third = tmp_path / "wal" / names.wal_file(3)
        assert (third.stat().st_ino, third.stat().st_size) == (inode, size_bytes)


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="the system has no such flag")
def test_what_a_link_in_place_of_a_spare_names_is_not_written_over(tmp_path: Path) -> None:
    """And the next file is a new one."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    with Quiver.open(tmp_path / "data", KEEPING, seam=Seam()) as quiver:
        quiver.append_raw(b"old")
        seal(quiver)
        (spare,) = (tmp_path / "data" / "wal").glob("*.spare")
        spare.unlink()
        spare.symlink_to(precious)
        for content in (b"between", b"new", b"newest"):
            quiver.append_raw(content)
            quiver.flush()
    assert precious.read_bytes() == b"precious"


# Any history.

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from([10, 3_000, 30_000])),
        st.tuples(st.sampled_from(["seal", "kill", "power", "stop"]), st.integers(0, 99)),
    ),
    min_size=5,
    max_size=30,
)


@given(STEPS, st.integers(0, 2))
def test_whatever_was_answered_is_there_after_any_history(
    steps: list[tuple[str, int]], spare_files: int
) -> None:
    with Machine() as machine:
        config, expected = quiet(spare_files=spare_files), dict[int, list[bytes]]()
        quiver = machine.start(config)
        for number, (step, argument) in enumerate(steps):
            if step == "append":
                content = b"%06d" % number * (argument // 6)
                expected[quiver.append_raw(content).seq] = [content]
            elif step == "seal":
                seal(quiver)
            else:
                end_one_life(machine, step, argument)
                quiver = machine.start(config)
                assert quiver.recovery.damages == []
                assert quiver.recovery.torn_bytes == 0
                assert quiver.recovery.clean_shutdown == (step == "stop")
        assert payloads(quiver) == expected


def end_one_life(machine: Machine, how: str, seed: int) -> None:
    if how == "kill":
        machine.kill()
    elif how == "power":
        machine.cut_power(random.Random(seed))
    else:
        machine.stop()
