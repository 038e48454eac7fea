"""Damage of the ledger, and files that are gone: all of it is told when the quiver is opened."""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable
from pathlib import PurePath
from typing import cast

import pytest
from tests.quiver.machine import NO_SEAL, ROOT, SEGMENTS, WAL
from tests.readers.ledgers import LEDGER
from tests.readers.setting import StillMachine, append, check_books, drain, keep, sealed

from holdfast.errors import StorageFailed
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.ledger.recovery import recover_ledger
from holdfast.quiver.log.wal import BLOCK_BYTES
from holdfast.quiver.tools.fsck import fsck
from holdfast.quiver.tools.inspect import Severity, inspect
from holdfast.seam import Seam
from holdfast.seam.disk import PAGE_BYTES, Disk
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


def newest_of(still: StillMachine) -> PurePath:
    return LEDGER / still.disk.list(LEDGER)[-1].name


def vanish(still: StillMachine) -> None:
    still.disk.unlink(newest_of(still), "test")


def empty(still: StillMachine) -> None:
    still.disk.put(newest_of(still), b"")


@pytest.mark.parametrize("harm", [vanish, empty])
@pytest.mark.parametrize("rotated", [False, True])
def test_a_newest_ledger_file_that_is_gone_is_reported(
    still: StillMachine,
    harm: Callable[[StillMachine], None],
    caplog: pytest.LogCaptureFixture,
    *,
    rotated: bool,
) -> None:
    """The start believed the file before it, and said nothing."""
    quiver = still.start()
    quiver.register("reader")
    if rotated:
        quiver._engine.ledger.checkpoint()
        append(quiver, 10)
        list(drain(quiver.lease("reader")))
        still.stop()
    else:
        still.stop()
        acked(still)
    newest = newest_of(still)
    harm(still)
    assert f"ledger/{newest.name}" in errors(still)
    with caplog.at_level(logging.WARNING, "holdfast.quiver"):
        quiver = still.start()
    (damage,) = [one for one in quiver.recovery.damages if one.source.startswith("ledger")]
    assert damage.source == f"ledger/{newest.name}"
    assert "missing" in damage.reason
    assert newest.name in caplog.text
    assert newest_of(still).name > newest.name, "its number is not used again"
    check_books(quiver)
    assert len(list(drain(quiver.lease("reader")))) == 10, "what it said comes again"
    quiver = still.restart()
    assert quiver.recovery.damages == [], "it is reported once"


def test_a_file_whose_tail_is_torn_is_followed_all_the_same(still: StillMachine) -> None:
    quiver = still.start()
    lease = quiver.lease("reader")
    append(quiver, 10)
    list(drain(lease))
    path = newest_of(still)
    still.kill()
    still.disk.put(path, still.disk.read(path)[:-13])
    assert still.start().recovery.ledger_torn_bytes > 0
    still.stop()
    gone = newest_of(still)
    vanish(still)
    sources = [damage.source for damage in still.start().recovery.damages]
    assert f"ledger/{gone.name}" in sources


@pytest.mark.parametrize("point", [QuiverPoint.LEDGER_CONTINUE, QuiverPoint.LEDGER_CONTINUE_SYNC])
@pytest.mark.parametrize("kind", [FaultKind.KILL_BEFORE, FaultKind.EIO, FaultKind.ENOSPC])
def test_no_file_is_missed_that_was_not_named_in_the_one_before(
    still: StillMachine, point: QuiverPoint, kind: FaultKind
) -> None:
    acked(still)
    with contextlib.suppress(SimulatedCrash):
        still.start(faults=[Fault(point, kind, times=1_000_000)])
    still.kill()
    for seed in range(6):
        still.disk = still.disk.snapshot().power_loss(random.Random(seed))
        quiver = still.start()
        assert quiver.recovery.damages == [], f"seed {seed}"
        still.kill()


def test_a_look_beside_the_owner_does_not_miss_a_file_begun_meanwhile(still: StillMachine) -> None:
    quiver = still.start()
    quiver.register("reader")
    own = {quiver.quiver_id}
    listed = still.disk.list(LEDGER)
    quiver._engine.ledger.checkpoint()

    class Late:
        """Lists what was there before the owner began another file, once."""

        def __init__(self) -> None:
            self.before = [listed]

        def __getattr__(self, name: str) -> object:
            return getattr(still.disk, name)

        def list(self, path: PurePath) -> object:
            return self.before.pop() if self.before else still.disk.list(path)

    assert recover_ledger(cast("Disk", Late()), LEDGER, own).damages == []


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
        Fault(
            QuiverPoint.LEDGER_SYNC, FaultKind.FAILED_SYNC, nth=2, times=often
        ),  # attaching needs one
        Fault(QuiverPoint.LEDGER_CREATE, FaultKind.EIO, nth=2, times=often),
    ]
    quiver = still.start(faults=faults)
    lease = quiver.lease("reader")
    list(drain(lease))
    with pytest.raises(StorageFailed):
        keep(quiver)
    assert quiver._engine.ledger.state.deleted_segments
    still.kill()
    with pytest.raises(SimulatedCrash):
        still.start(faults=[Fault(QuiverPoint.LEDGER_CREATE, FaultKind.KILL_BEFORE)])
    crashed = still.disk.kill()
    for seed in range(12):
        still.kill()
        still.disk = crashed.snapshot().power_loss(random.Random(seed))
        quiver = still.start()
        assert quiver.recovery.damages == [], f"seed {seed}"
        assert len(list(drain(quiver.lease("reader")))) == 3


@pytest.mark.parametrize("read", [0, 3, 6])
def test_a_tail_of_unknown_length_is_named_from_the_first_seq_that_nothing_vouches_for(
    still: StillMachine, read: int
) -> None:
    """It was named from seq 0 on, if the log held nothing before it."""
    quiver = still.start()
    for name in ("one", "two"):
        lease = quiver.lease(name)
        sealed(quiver, 3, bundles=1)
        for _ in range(read):
            if (delivery := lease.poll()) is not None:
                delivery.ack()
    quiver.lease("two").close()
    keep(quiver)  # what both have read is removed
    (seq,) = append(quiver, 1)
    still.kill()
    path = WAL / still.disk.list(WAL)[-1].name
    still.disk.spoil(path, BLOCK_BYTES, still.disk.file_bytes(path))
    (seen,) = inspect(still.disk, ROOT).wal_damages
    (found,) = [
        one for one in fsck(Seam(still.disk, still.clock), ROOT).findings if path.name in one.where
    ]
    assert found.seqs == ((seq, seq),)
    assert "None" not in found.what
    quiver = still.start()
    (damage,) = quiver.recovery.damages
    assert (damage.first_seq, damage.last_seq) == (seq, None)
    assert seen.first_seq == seq
