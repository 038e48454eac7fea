"""Every step of an upload into an archive fails, or is the last of its process.

Afterwards each event that was accepted is here or there, whatever a power cut took with it; what a
reader of the archive sees is whole; and in the end each is in the archive once.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePath
from typing import NoReturn

import pytest
from tests.crash.stage import survivors
from tests.patience import until
from tests.quiver.machine import ROOT
from tests.readers.setting import append, calm, check_books, drain, keep, sealed

from holdfast.errors import CannotOpen, HoldfastError, StoreUnavailable
from holdfast.quiver import Quiver
from holdfast.quiver.base.config import ArchiveConfig
from holdfast.quiver.base.points import ArchivePoint, QuiverPoint
from holdfast.quiver.read.archive import Archive
from holdfast.quiver.tools.inspect import inspect
from holdfast.seam import Seam
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.folder_bucket import FolderBucket, FolderBucketPoint
from holdfast.seam.simulated import SimulatedCrash, SimulatedDisk

FOLDER = PurePath("/archive")
ARCHIVE = ArchiveConfig(str(FOLDER), uploads=1, retry_min_s=0.001, retry_max_s=0.01)
CONFIG = replace(calm(), segment=replace(calm().segment, archive=ARCHIVE))
SEGMENTS = 2
TRASH = (QuiverPoint.TRASH_MOVE, QuiverPoint.TRASH_SYNC_DIR, QuiverPoint.TRASH_UNLINK)
# Of an object that is put again after a crash; nothing else reaches it.
AGAIN = FolderBucketPoint.UNLINK
KILLS = (FaultKind.KILL_BEFORE, FaultKind.KILL_MIDWAY, FaultKind.KILL_AFTER)


class Life:
    """One process over a disk with a fault, which ends it or not."""

    def __init__(self, disk: SimulatedDisk, faults: list[Fault], kill_at: str = "") -> None:
        self.disk = disk
        self.dead = threading.Event()
        self.faulty = FaultyDisk(disk, faults, self._die)
        self.seqs: list[int] = []
        self._kill_at = kill_at

    def _die(self) -> NoReturn:
        self.dead.set()
        self.disk.die()

    def _reached(self, point: str) -> None:
        if point == self._kill_at:
            self._die()

    def play(self) -> None:
        """Accept, deliver and archive, until everything is gone from here, or the process is."""
        quiver: Quiver | None = None
        try:
            quiver = Quiver.open(ROOT, CONFIG, seam=Seam(self.faulty, reached=self._reached))
            lease = quiver.lease("reader")
            for _ in range(SEGMENTS):
                self.seqs += append(quiver, 2)
                quiver.flush()
                list(drain(lease))
            until(lambda: self.dead.is_set() or not quiver.segments(), "archived and removed")
            quiver.close()
        except (SimulatedCrash, HoldfastError):
            assert self.dead.is_set()  # another thread met its end
        if self.dead.is_set() and quiver is not None:
            with contextlib.suppress(SimulatedCrash, HoldfastError):
                quiver.close()


def archived(disk: SimulatedDisk) -> list[int]:
    try:
        archive = Archive.open(ARCHIVE, seam=Seam(disk))
    except CannotOpen:
        return []
    return [seq for batch in archive.scan() for seq in batch.column("_seq").to_pylist()]


def check(disk: SimulatedDisk, accepted: list[int]) -> None:
    """What is whole is whole, what was accepted is somewhere, and it ends as it should."""
    before = archived(disk)
    assert len(before) == len(set(before))
    held = inspect(disk, ROOT)
    here = [seq for one in held.segments for seq in one.index().seqs]
    here += [one.seq for one in held.unsealed]
    assert set(accepted) <= {*here, *before}
    with Quiver.open(ROOT, CONFIG, seam=Seam(disk)) as quiver:
        lease = quiver.lease("reader")
        list(drain(lease))
        later = sealed(quiver, 1)
        list(drain(lease))
        until(lambda: not _waiting(quiver), "archived")
        keep(quiver)
        assert not quiver.segments()
        check_books(quiver)
    # What is no longer here must not be lost with the power either.
    assert sorted(archived(disk.power_loss())) == sorted({*accepted, *before, *later, *here})


def _waiting(quiver: Quiver) -> int:
    told = quiver.statistics().archive
    assert told is not None
    return told.waiting_segments


def cells() -> Iterator[tuple[str, FaultKind]]:
    for point in (*(one for one in FolderBucketPoint if one is not AGAIN), *TRASH):
        for kind in (*KILLS, FaultKind.EIO):
            if kind is FaultKind.KILL_MIDWAY and point is not FolderBucketPoint.WRITE:
                continue
            yield str(point), kind


@pytest.mark.parametrize("nth", [1, 3, 6])
@pytest.mark.parametrize(("point", "kind"), [*cells()])
def test_a_step_that_fails_or_is_the_last(point: str, kind: FaultKind, nth: int) -> None:
    life = Life(SimulatedDisk(), [Fault(point, kind, nth)])
    life.play()
    for ending, disk, _ in survivors(life.disk, seed=nth):
        try:
            check(disk, life.seqs)
        except BaseException as error:
            error.add_note(f"{point}, {kind}, the {nth}., then {ending}")
            raise


@pytest.mark.parametrize("point", [*ArchivePoint])
def test_a_process_that_ends_between_two_steps(point: str) -> None:
    life = Life(SimulatedDisk(), [], kill_at=point)
    life.play()
    assert life.dead.is_set()
    for _, disk, _ in survivors(life.disk, seed=1):
        check(disk, life.seqs)


def test_an_object_that_was_left_half_is_put_again() -> None:
    life = Life(SimulatedDisk(), [Fault(FolderBucketPoint.SYNC, FaultKind.KILL_AFTER, 2)])
    life.play()
    again = Life(life.disk.kill(), [])
    again.play()
    assert again.faulty.calls()[AGAIN] == 1
    found = archived(again.disk)
    assert len(found) == len(set(found))
    # Perhaps more: a bundle whose process ended before it could answer.
    assert set(found) >= {*life.seqs, *again.seqs}


@pytest.mark.parametrize("point", [FolderBucketPoint.WRITE, FolderBucketPoint.SYNC])
def test_a_put_that_fails_leaves_nothing_on_a_full_disk(point: str) -> None:
    disk = SimulatedDisk()
    bucket = FolderBucket(FaultyDisk(disk, [Fault(point, FaultKind.ENOSPC)], disk.die), FOLDER)
    with pytest.raises(StoreUnavailable):
        bucket.put("segment/object", 10, iter([b"12345", b"67890"]))
    assert disk.list(FOLDER / "segment") == []


def test_all_steps_are_reached() -> None:
    life = Life(SimulatedDisk(), [])
    life.play()
    reached = {one for one in FolderBucketPoint if life.faulty.calls().get(one)}
    assert reached == set(FolderBucketPoint) - {AGAIN}
