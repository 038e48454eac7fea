"""The reserve: real blocks that are there, are given away on a full disk, and come back."""

from __future__ import annotations

import sqlite3
from pathlib import Path, PurePath

import pytest

from holdfast.errors import DiskFull
from holdfast.seam import Seam
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.simulated import SimulatedCrash, SimulatedDisk
from holdfast.seam.simulated_files import BLOCK_BYTES
from holdfast.store.gc.connections import DatabaseConnection
from holdfast.store.gc.database import Database
from holdfast.store.gc.reserve import MARGIN_BYTES, SUFFIX, DatabaseReserve, ReservePoint
from holdfast.store.gc.settings import GcSettings

DATABASE = PurePath("/store/gc.sqlite")
SIZE_BYTES = 2_500_000
KINDS = [FaultKind.KILL_BEFORE, FaultKind.KILL_MIDWAY, FaultKind.KILL_AFTER, FaultKind.ENOSPC,
         FaultKind.EIO, FaultKind.STAYS_FULL, FaultKind.BAD_BLOCK]  # fmt: skip


def small_disk(capacity_bytes: int | None = None) -> SimulatedDisk:
    disk = SimulatedDisk(capacity_bytes)
    disk.make_dir(DATABASE.parent, "test")
    return disk


def reserve_on(disk: SimulatedDisk | FaultyDisk) -> DatabaseReserve:
    return DatabaseReserve(DATABASE, Seam(disk=disk), SIZE_BYTES)


def test_it_is_made_of_blocks_and_given_away_once() -> None:
    disk = small_disk(10_000_000)
    reserve = reserve_on(disk)
    assert not reserve.spend(), "there is none yet"
    before_bytes = disk.free_bytes(DATABASE)
    reserve.need()
    reserve.need()
    assert before_bytes - disk.free_bytes(DATABASE) >= SIZE_BYTES
    assert reserve.spend()
    assert before_bytes - disk.free_bytes(DATABASE) <= BLOCK_BYTES, "names keep a block"
    assert not reserve.spend()
    reserve.restore()
    assert disk.used_bytes(reserve.path) >= SIZE_BYTES


def test_who_would_fill_the_disk_is_refused_without_it() -> None:
    disk = small_disk(2_000_000)
    with pytest.raises(DiskFull, match=r"2,500,000 bytes.*holdfast gc run"):
        reserve_on(disk).need()
    assert {entry.name for entry in disk.list(DATABASE.parent)} <= {reserve_on(disk).path.name}


def test_what_cannot_come_back_whole_comes_back_as_large_as_there_is_room() -> None:
    disk = small_disk(4_000_000)
    reserve = reserve_on(disk)
    reserve.need()
    reserve.spend()
    disk.put(DATABASE, bytes(2_000_000))
    reserve.restore()
    held_bytes = disk.used_bytes(reserve.path)
    assert 4_000_000 - 2_000_000 - 2 * MARGIN_BYTES < held_bytes < SIZE_BYTES
    with pytest.raises(DiskFull):
        reserve.need()
    disk.unlink(DATABASE, "test")
    reserve.need()
    assert disk.used_bytes(reserve.path) >= SIZE_BYTES


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", list(ReservePoint))
def test_whatever_happens_at_a_step_the_next_one_makes_it(
    at: ReservePoint, kind: FaultKind
) -> None:
    disk = small_disk(8_000_000)
    reserve = reserve_on(FaultyDisk(disk, [Fault(at, kind)], disk.die))
    try:
        reserve.need()
        reserve.spend()
        reserve.restore()
    except (SimulatedCrash, DiskFull):
        pass
    after = disk.snapshot()
    after.capacity_bytes = 20_000_000
    again = reserve_on(after)
    again.need()
    assert after.used_bytes(again.path) >= SIZE_BYTES
    assert [entry.name for entry in after.list(DATABASE.parent)] == [again.path.name]


def full(_: DatabaseConnection) -> None:
    raise sqlite3.OperationalError("database or disk is full")


def test_a_transaction_that_frees_is_tried_again_in_its_blocks(tmp_path: Path) -> None:
    settings = GcSettings(reserve_bytes=100_000, synchronous="off")
    database = Database(f"sqlite:///{tmp_path}/gc.sqlite", settings=settings)
    assert database.reserve is not None
    database.reserve.need()
    path = tmp_path / f"gc.sqlite{SUFFIX}"

    def work(connection: DatabaseConnection) -> str:
        if path.exists():
            full(connection)
        return "done"

    with pytest.raises(DiskFull, match="holdfast files rm"):
        database.transact(full, spends=False)
    assert path.exists(), "whoever fills the disk does not get them"
    assert database.transact(work) == "done"
    assert not path.exists()
    with pytest.raises(DiskFull):
        database.transact(full)
    database.close()
    assert path.exists(), "it is made again when there is room"
