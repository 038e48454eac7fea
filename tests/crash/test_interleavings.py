"""Single interleavings that once lost, doubled or hid something, each by its name."""

from __future__ import annotations

import pytest
from tests.crash.journal import Journal
from tests.crash.stage import Stage, check_survivor, opened

from holdfast.errors import CannotOpen, StorageFailed
from holdfast.quiver import AckLevel
from holdfast.quiver.points import Point
from holdfast.seam.faulty import Fault, FaultKind
from holdfast.seam.simulated import SimulatedDisk


def test_a_directory_whose_creation_was_interrupted_is_made_durable_by_the_next_open() -> None:
    disk = SimulatedDisk()
    for _ in range(2):  # the parent, then the directory itself
        with pytest.raises(CannotOpen):
            Stage(disk, [Fault(Point.ROOT_SYNC_DIR, FaultKind.EIO)]).open()
    journal = Journal()
    with opened(disk) as quiver:
        journal.append(quiver)
    check_survivor(disk.power_loss(), journal, AckLevel.FSYNCED)


def test_whoever_waits_for_a_seal_is_told_at_once_when_the_sealer_dies() -> None:
    stage = Stage(SimulatedDisk(), [Fault(Point.SEAL_DATA_SYNC, FaultKind.KILL_BEFORE)])
    quiver = stage.open()
    quiver.append_raw(b"event")
    with pytest.raises(StorageFailed, match="the sealer ended"):
        quiver.flush()
    with pytest.raises(StorageFailed, match="the sealer ended"):
        quiver.flush()  # nothing new to seal: it would wait for the seal that is never done
    stage.crash()
