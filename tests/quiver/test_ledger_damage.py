"""Damage of the ledger, and files that are gone: all of it is told when the quiver is opened."""

from __future__ import annotations

import logging
import random

import pytest
from tests.quiver.machine import NO_SEAL, ROOT, SEGMENTS, WAL
from tests.readers.ledgers import LEDGER
from tests.readers.setting import StillMachine, append, check_books, drain, keep, sealed

from holdfast.errors import StorageFailed
from holdfast.quiver.points import Point
from holdfast.quiver.tools.findings import Severity
from holdfast.quiver.tools.fsck import fsck
from holdfast.seam import Seam
from holdfast.seam.disk import PAGE_BYTES
from holdfast.seam.faulty import Fault, FaultKind
from holdfast.seam.simulated import SimulatedCrash


def acked(still: StillMachine, *, kill: bool = False) -> None:
    """Leave a quiver with ten bundles, all acknowledged one by one."""
    quiver = still.start()
    lease = quiver.lease("reader")
    append(quiver, 10)
    for _ in drain(lease):
        quiver._engine.ledger.sync()
    if kill:
        still.kill()
    else:
        still.stop()


def errors(still: StillMachine) -> list[str]:
    report = fsck(Seam(still.disk, still.clock), ROOT)
    return [one.where for one in report.findings if one.severity is Severity.ERROR]


@pytest.mark.parametrize("from_end", [1000, 500, 300])
def test_a_damaged_sector_of_the_ledger_is_told(
    still: StillMachine, from_end: int, caplog: pytest.LogCaptureFixture
) -> None:
    acked(still)
    path = LEDGER / still.disk.list(LEDGER)[-1].name
    size_bytes = len(still.disk.read(path))
    still.disk.overwrite(path, size_bytes - from_end, bytes(40))
    assert set(errors(still)) == {f"ledger/{path.name}"}
    with caplog.at_level(logging.WARNING, "holdfast.quiver"):
        quiver = still.start()
    damages = quiver.recovery.damages
    assert {damage.source for damage in damages} == {f"ledger/{path.name}"}
    assert min(damage.offset for damage in damages) <= size_bytes - from_end
    assert max(damage.offset + damage.size_bytes for damage in damages) >= size_bytes - from_end
    assert "comes again" in caplog.text
    check_books(quiver)
    assert 0 < len(list(drain(quiver.lease("reader")))) < 10
    quiver = still.restart()
    assert quiver.recovery.damages == [], "it was told once"


@pytest.mark.parametrize("kill", [False, True])
def test_a_page_of_the_ledger_that_cannot_be_read_is_told_also_at_its_end(
    still: StillMachine, *, kill: bool
) -> None:
    """It was taken for what a power cut leaves."""
    acked(still, kill=kill)
    path = LEDGER / still.disk.list(LEDGER)[-1].name
    last = still.disk.file_bytes(path) - 1
    still.disk.spoil(path, last - last % PAGE_BYTES, last + 1)
    assert f"ledger/{path.name}" in errors(still)
    quiver = still.start()
    (damage,) = [one for one in quiver.recovery.damages if one.source == f"ledger/{path.name}"]
    assert damage.reason.startswith("the disk cannot read it")
    assert quiver.recovery.ledger_torn_bytes == 0
    check_books(quiver)


def test_a_ledger_of_zeros_is_told(still: StillMachine) -> None:
    acked(still)
    for entry in still.disk.list(LEDGER):
        still.disk.overwrite(LEDGER / entry.name, 0, bytes(entry.size_bytes))
    assert f"{LEDGER.name}" in errors(still)
    quiver = still.start()
    told = [damage.source for damage in quiver.recovery.damages]
    assert "ledger" in told
    assert any(source.startswith("ledger/") for source in told)
    assert quiver.subscribers() == ()


def test_a_ledger_that_is_gone_is_told(still: StillMachine) -> None:
    acked(still)
    for entry in still.disk.list(LEDGER):
        still.disk.unlink(LEDGER / entry.name, "test")
    assert errors(still) == ["ledger"]
    quiver = still.start()
    (damage,) = quiver.recovery.damages
    assert damage.source == "ledger"
    assert "subscribers and outcomes are forgotten" in damage.reason


def test_a_new_quiver_without_a_ledger_is_sound(still: StillMachine) -> None:
    still.start()
    still.kill()
    for entry in still.disk.list(LEDGER):
        still.disk.unlink(LEDGER / entry.name, "test")
    assert still.start().recovery.damages == []


def test_lines_that_went_with_the_power_are_told_and_are_no_damage(
    still: StillMachine, caplog: pytest.LogCaptureFixture
) -> None:
    quiver = still.start()
    lease = quiver.lease("reader")
    append(quiver, 10)
    assert len(list(drain(lease))) == 10
    path = LEDGER / still.disk.list(LEDGER)[-1].name
    still.kill()
    still.disk.overwrite(path, len(still.disk.read(path)) - 300, bytes(40))
    with caplog.at_level(logging.WARNING, "holdfast.quiver"):
        quiver = still.start()
    assert quiver.recovery.damages == []
    assert quiver.recovery.ledger_torn_bytes > 0
    assert "were not synced when the power went" in caplog.text


def test_a_log_file_that_is_gone_from_the_middle_is_told_with_its_seqs(
    still: StillMachine,
) -> None:
    quiver = still.start(faults=[NO_SEAL])
    quiver.register("one")
    quiver.register("two")
    for _ in range(4):
        append(quiver, 4, size_bytes=20_000)
    still.kill()
    files = [WAL / entry.name for entry in still.disk.list(WAL)]
    assert len(files) > 3
    still.disk.unlink(files[1], "test")
    quiver = still.start()
    (damage,) = quiver.recovery.damages
    assert damage.bundles
    assert damage.first_seq is not None
    assert damage.last_seq is not None
    lost = [seq for seq in range(16) if quiver.bundle(seq) is None]
    assert len(lost) == damage.bundles
    assert damage.first_seq <= lost[0]
    assert lost[-1] <= damage.last_seq
    check_books(quiver)


def test_a_segment_that_is_gone_is_told_with_its_seqs(still: StillMachine) -> None:
    quiver = still.start()
    quiver.register("one")
    sealed(quiver, 3, bundles=2)
    keep(quiver)
    still.stop()
    gone = SEGMENTS / still.disk.list(SEGMENTS)[1].name
    for entry in still.disk.list(gone):
        still.disk.unlink(gone / entry.name, "test")
    still.disk.remove_dir(gone, "test")
    quiver = still.start()
    (damage,) = quiver.recovery.damages
    assert (damage.first_seq, damage.last_seq, damage.bundles) == (2, 3, 2)


def test_a_deletion_whose_sync_failed_is_finished_only_when_the_ledger_says_so_durably(
    still: StillMachine,
) -> None:
    """The next start believed what it could read, removed the segment, and lost power."""
    quiver = still.start()
    lease = quiver.lease("reader")
    append(quiver, 3)
    quiver.flush()
    still.kill()
    often = 1_000_000
    faults = [
        Fault(Point.LEDGER_SYNC, FaultKind.FAILED_SYNC, nth=2, times=often),  # attaching needs one
        Fault(Point.LEDGER_CREATE, FaultKind.EIO, nth=2, times=often),
    ]
    quiver = still.start(faults=faults)
    lease = quiver.lease("reader")
    list(drain(lease))
    with pytest.raises(StorageFailed):
        keep(quiver)
    assert quiver._engine.ledger.state.deleted_segments
    still.kill()
    with pytest.raises(SimulatedCrash):
        still.start(faults=[Fault(Point.LEDGER_CREATE, FaultKind.KILL_BEFORE)])
    crashed = still.disk.kill()
    for seed in range(12):
        still.kill()
        still.disk = crashed.snapshot().power_loss(random.Random(seed))
        quiver = still.start()
        assert quiver.recovery.damages == [], f"seed {seed}"
        assert len(list(drain(quiver.lease("reader")))) == 3
