"""Single interleavings that once lost, doubled or hid something, each by its name."""

from __future__ import annotations

import threading

import pytest
from tests.crash.journal import Journal
from tests.crash.stage import Stage, append_in_one_group, check_survivor, opened

from holdfast.errors import CannotOpen, StorageFailed
from holdfast.quiver import AckLevel
from holdfast.quiver.base.points import QuiverPoint
from holdfast.seam.faulty import Fault, FaultKind
from holdfast.seam.simulated import SimulatedCrash, SimulatedDisk


def test_a_directory_whose_creation_was_interrupted_is_made_durable_by_the_next_open() -> None:
    disk = SimulatedDisk()
    for _ in range(2):  # the parent, then the directory itself
        with pytest.raises(CannotOpen):
            Stage(disk, [Fault(QuiverPoint.ROOT_SYNC_DIR, FaultKind.EIO)]).open()
    journal = Journal()
    with opened(disk) as quiver:
        journal.append(quiver)
    check_survivor(disk.power_loss(), journal, AckLevel.FSYNCED)


def test_whoever_waits_for_a_seal_is_told_at_once_when_the_sealer_dies() -> None:
    stage = Stage(SimulatedDisk(), [Fault(QuiverPoint.SEAL_DATA_SYNC, FaultKind.KILL_BEFORE)])
    quiver = stage.open()
    quiver.append_raw(b"event")
    with pytest.raises(StorageFailed, match="the sealer ended"):
        quiver.flush()
    with pytest.raises(StorageFailed, match="the sealer ended"):
        quiver.flush()  # nothing new to seal: it would wait for the seal that is never done
    stage.crash()


def test_a_copy_that_a_failed_sync_made_necessary_outlives_a_kill_and_then_a_power_cut() -> None:
    """The poisoned file still shows the bundle in the page cache, and must not be believed."""
    stage = Stage(SimulatedDisk(), [Fault(QuiverPoint.WAL_SYNC, FaultKind.FAILED_SYNC)])
    journal = Journal()
    assert journal.append(stage.open()).fate == "acked"
    stage.crash()
    check_survivor(stage.disk.kill(), journal, AckLevel.WRITTEN)


def test_a_repeated_epoch_is_not_acknowledged_on_the_word_of_a_page_cache_that_failed_to_sync() -> (
    None
):
    faults = [
        Fault(QuiverPoint.WAL_SYNC, FaultKind.FAILED_SYNC),
        Fault(QuiverPoint.WAL_CREATE, FaultKind.EIO, nth=2),
    ]
    stage = Stage(SimulatedDisk(), faults)
    journal = Journal()
    assert journal.append(stage.open(), producer="p", epoch=1).fate == "maybe"
    stage.crash()
    check_survivor(stage.disk.kill(), journal, AckLevel.WRITTEN)


def test_what_was_only_written_survives_a_kill_and_a_failed_sync_of_the_next_process() -> None:
    stage = Stage(SimulatedDisk())
    journal = Journal()
    journal.append(stage.open(), level=AckLevel.WRITTEN)
    stage.crash()
    disk = stage.disk.kill()
    again = Stage(disk, [Fault(QuiverPoint.WAL_HEADER_SYNC, FaultKind.FAILED_SYNC)])
    with pytest.raises(CannotOpen):
        again.open()
    check_survivor(disk, journal, AckLevel.WRITTEN)


def test_an_epoch_refused_and_sent_again_is_stored_once_also_if_the_failed_write_stays_behind() -> (
    None
):
    """Half of a group was written: the whole first bundle. It could not be cut off again."""
    faults = [
        Fault(QuiverPoint.WAL_WRITE, FaultKind.SHORT_WRITE, nth=2),
        Fault(QuiverPoint.WAL_UNDO, FaultKind.EIO),
    ]
    stage = Stage(SimulatedDisk(), faults)
    stage.open()
    journal = Journal()
    first = journal.entry(producer="p", epoch=1)
    large = journal.entry(size_bytes=5_000)
    append_in_one_group(stage, journal, [first, large])
    assert [first.fate, large.fate] == ["no", "no"]
    journal.repeat(stage.quiver, first)
    assert first.fate == "acked"
    stage.crash()
    check_survivor(stage.disk.kill(), journal, AckLevel.WRITTEN)


def test_an_open_that_is_interrupted_at_its_last_step_leaves_no_thread_running() -> None:
    """It gives the directory back, so a thread of it would write into another owner's files."""
    disk = SimulatedDisk()
    with opened(disk) as quiver:
        quiver.append_raw(b"event")
        quiver.close()
    threads = threading.active_count()
    with pytest.raises(SimulatedCrash):
        Stage(disk.kill(), [Fault(QuiverPoint.TRUNCATE_UNLINK, FaultKind.KILL_BEFORE)]).open()
    assert threading.active_count() == threads


def test_a_file_whose_successor_was_tried_in_vain_does_not_take_what_that_would_cut_off() -> None:
    """The leftover of the try is on disk, and says how far the file before it counts."""
    faults = [
        Fault(QuiverPoint.WAL_SYNC_DIR, FaultKind.EIO, nth=2),
        Fault(QuiverPoint.TRUNCATE_UNLINK, FaultKind.EIO),
    ]
    stage = Stage(SimulatedDisk(), faults)
    journal = Journal()
    journal.append(stage.open())
    stage.quiver.flush()
    assert journal.append(stage.quiver).fate == "acked"
    stage.crash()
    check_survivor(stage.disk.kill(), journal, AckLevel.WRITTEN)
