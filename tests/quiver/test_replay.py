"""Replay: what is not in a segment comes back, once, in order, however often it is tried."""

from __future__ import annotations

import itertools
import random
import shutil
from pathlib import Path, PurePath

import pyarrow as pa
import pytest
from tests.patience import until
from tests.quiver.machine import (
    NO_SEAL,
    SEGMENTS,
    WAL,
    Machine,
    contents,
    disk_with,
    payloads,
    quiet,
)

from holdfast.errors import NotAccepted, StaleEpoch, StorageFailed
from holdfast.quiver import AckLevel, Quiver
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.log import replay as replay_module
from holdfast.seam.disk import Handle
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.simulated import SimulatedCrash


def append_numbers(machine: Machine, count: int, *faults: Fault) -> dict[int, list[bytes]]:
    """Append in a new process and kill it; return what is stored."""
    quiver = machine.start(faults=faults)
    stored = {quiver.append_raw(b"%d" % n).seq: [b"%d" % n] for n in range(count)}
    machine.kill()
    return stored


# What comes back.


def test_bundles_that_were_not_sealed_are_recovered(machine: Machine) -> None:
    stored = append_numbers(machine, 10)
    quiver = machine.start()
    assert payloads(quiver) == stored
    assert quiver.recovery.replayed_bundles == 10
    assert not quiver.recovery.clean_shutdown


def test_sealed_bundles_are_not_repeated(machine: Machine) -> None:
    """The crash came after the segment was durable, before its WAL file was removed."""
    quiver = machine.start(faults=[Fault(QuiverPoint.TRUNCATE_UNLINK, FaultKind.EIO, times=9)])
    for n in range(5):
        quiver.append_raw(b"%d" % n)
    quiver.flush()
    quiver.append_raw(b"5")
    machine.kill()
    quiver = machine.start()
    assert payloads(quiver) == {n: [b"%d" % n] for n in range(6)}
    assert (quiver.recovery.skipped_bundles, quiver.recovery.replayed_bundles) == (5, 1)
    quiver.flush()
    assert payloads(quiver) == {n: [b"%d" % n] for n in range(6)}


def test_a_segment_that_was_written_but_never_acknowledged_to_the_log_is_not_repeated(
    machine: Machine,
) -> None:
    """Upstream registered it only after a restart, and replayed it as well."""
    quiver = machine.start(faults=[Fault(QuiverPoint.SEAL_SYNC_PARENT, FaultKind.KILL_AFTER)])
    quiver.append_raw(b"x")
    with pytest.raises((SimulatedCrash, StorageFailed)):
        quiver.flush()
    machine.kill()
    quiver = machine.start()
    assert payloads(quiver) == {0: [b"x"]}
    assert quiver.recovery.segments == 1
    assert quiver.recovery.replayed_bundles == 0


def test_a_start_reads_no_wal_file_as_a_whole(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It did with the newest, only to see whether it had been begun: the half of a start's time."""
    monkeypatch.setattr(replay_module, "WINDOW_BYTES", 4096)
    quiver = machine.start()
    stored = {quiver.append_raw(b"%d" % n * 1000).seq: [b"%d" % n * 1000] for n in range(50)}
    machine.kill()
    reads_bytes: list[int] = []

    class ReadingDisk(FaultyDisk):
        def read(self, path: PurePath) -> bytes:
            found = super().read(path)
            reads_bytes.append(len(found) if path.suffix == ".wal" else 0)
            return found

        def read_into(self, handle: Handle, offset_bytes: int, buffer: memoryview) -> int:
            reads_bytes.append(len(buffer))
            return super().read_into(handle, offset_bytes, buffer)

    quiver = machine.start(through=lambda disk: ReadingDisk(disk, (), disk.die))
    assert 0 < max(reads_bytes) <= 4096
    assert payloads(quiver) == stored


def test_an_empty_or_missing_wal_is_fine(machine: Machine) -> None:
    machine.start()
    machine.kill()
    assert payloads(machine.start()) == {}
    machine.kill()
    machine.disk = disk_with({})
    assert payloads(machine.start()) == {}


def test_replay_goes_through_all_files_in_order(machine: Machine) -> None:
    quiver = machine.start(faults=[NO_SEAL])
    for n in range(20):
        quiver.append_raw(bytes([n]) * 20_000)
    machine.kill()
    assert len(machine.wal_paths()) == 10
    quiver = machine.start()
    assert list(payloads(quiver).items()) == [(n, [bytes([n]) * 20_000]) for n in range(20)]


def test_more_than_a_segment_holds_is_sealed_into_several_at_once(machine: Machine) -> None:
    quiver = machine.start(quiet(AckLevel.FSYNCED), faults=[NO_SEAL])
    for n in range(80):
        quiver.append_raw(bytes([n]) * 20_000)
    machine.kill()
    quiver = machine.start()
    until(lambda: len(quiver.segments()) >= 1)
    quiver.flush()
    assert payloads(quiver) == {n: [bytes([n]) * 20_000] for n in range(80)}
    ranges = [(s.summary.first_seq, s.summary.last_seq) for s in quiver.segments()]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == 79
    assert all(left[1] + 1 == right[0] for left, right in itertools.pairwise(ranges))
    assert all(s.summary.payload_bytes < 1_200_000 for s in quiver.segments())


def test_replayed_bundles_keep_everything_they_were_appended_with(machine: Machine) -> None:
    quiver = machine.start()
    batch = pa.record_batch({"n": [1, 2]})
    seq = quiver.append(batch, producer="p", epoch=4, watermark_ns=7).seq
    before = quiver.bundle(seq)
    machine.kill()
    machine.clock.jump(99)
    quiver = machine.start()
    assert quiver.bundle(seq) == before
    quiver.flush()
    assert quiver.bundle(seq) == before


def test_bundles_between_segments_are_sealed_between_them(machine: Machine) -> None:
    """A segment was lost, its WAL was not: what it held comes back in the middle."""
    quiver = machine.start(faults=[Fault(QuiverPoint.TRUNCATE_UNLINK, FaultKind.EIO, times=9)])
    for n in range(3):
        quiver.append_raw(b"%d" % n)
        quiver.flush()
    quiver.append_raw(b"3")
    machine.kill()
    files = contents(machine.disk)
    middle = machine.disk.list(SEGMENTS)[1].name
    machine.disk = disk_with({p: c for p, c in files.items() if p.parent.name != middle})
    quiver = machine.start()
    assert payloads(quiver) == {n: [b"%d" % n] for n in range(4)}
    quiver.flush()
    assert payloads(quiver) == {n: [b"%d" % n] for n in range(4)}
    ranges = [(s.summary.first_seq, s.summary.last_seq) for s in quiver.segments()]
    assert ranges == [(0, 0), (1, 1), (2, 2), (3, 3)]


# Producers and transactions.


def test_epochs_are_remembered_over_a_crash(machine: Machine) -> None:
    quiver = machine.start()
    first = quiver.append_raw(b"x", producer="p", epoch=5)
    with quiver.transaction(producer="t", epoch=1) as transaction:
        transaction.append_raw([b"a", b"b"])
        transaction.append_raw(b"c")
    machine.kill()
    quiver = machine.start()
    again = quiver.append_raw(b"x", producer="p", epoch=5)
    assert again == first._replace(duplicate=True)
    with quiver.transaction(producer="t", epoch=1) as repeated:
        repeated.append_raw(b"anything")
    assert transaction.receipt is not None
    assert repeated.receipt == transaction.receipt._replace(duplicate=True)
    with pytest.raises(StaleEpoch):
        quiver.append_raw(b"x", producer="p", epoch=4)
    assert len(payloads(quiver)) == 3


def test_a_transaction_that_lost_its_end_in_the_crash_is_dropped_whole(machine: Machine) -> None:
    quiver = machine.start(faults=[Fault(QuiverPoint.WAL_WRITE, FaultKind.KILL_MIDWAY, nth=2)])
    quiver.append_raw(b"before")
    transaction = quiver.transaction(producer="t", epoch=1)
    for n in range(6):
        transaction.append_raw(b"%d" % n)
    with pytest.raises(SimulatedCrash):
        transaction.commit()
    machine.kill()
    assert len(machine.wal().frames) > 2
    quiver = machine.start()
    assert payloads(quiver) == {0: [b"before"]}
    assert quiver.recovery.dropped_transactions == 1
    with quiver.transaction(producer="t", epoch=1) as again:
        again.append_raw(b"tried again")
    assert again.receipt is not None
    assert not again.receipt.duplicate


# Again and again.


RECOVERING = [
    QuiverPoint.RECOVER_SYNC,
    QuiverPoint.RECOVER_SWEEP,
    QuiverPoint.WAL_CREATE,
    QuiverPoint.WAL_HEADER,
    QuiverPoint.WAL_HEADER_SYNC,
    QuiverPoint.WAL_SYNC_DIR,
    QuiverPoint.TRUNCATE_UNLINK,
    QuiverPoint.TRUNCATE_SYNC_DIR,
    QuiverPoint.SEAL_RENAME,
    QuiverPoint.SEAL_SYNC_PARENT,
]


def prepared(machine: Machine) -> dict[int, list[bytes]]:
    """Leave everything recovery has to do: an unfinished seal, sealed files, unsealed ones."""
    quiver = machine.start(faults=[Fault(QuiverPoint.TRUNCATE_UNLINK, FaultKind.EIO, times=9)])
    for n in range(3):
        quiver.append_raw(b"%d" % n)
    quiver.flush()
    for n in range(3, 80):
        quiver.append_raw(b"%d" % n + bytes(20_000))
    machine.kill()
    machine.disk.make_dir(SEGMENTS / "tmp-0000000000000009-1", "test")
    machine.disk.put(SEGMENTS / "tmp-0000000000000009-1" / "half", b"x")
    return {n: [b"%d" % n + bytes(20_000 if n >= 3 else 0)] for n in range(80)}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", [FaultKind.KILL_BEFORE, FaultKind.KILL_AFTER])
@pytest.mark.parametrize("at", RECOVERING)
def test_a_crash_during_recovery_changes_nothing(
    machine: Machine, at: QuiverPoint, kind: FaultKind
) -> None:
    stored = prepared(machine)
    with pytest.raises((SimulatedCrash, StorageFailed)):
        machine.start(faults=[Fault(at, kind)]).flush()
    machine.cut_power()
    quiver = machine.start()
    assert payloads(quiver) == stored
    assert quiver.recovery.damages == []


@pytest.mark.thinned(4)
@pytest.mark.parametrize("seed", range(20))
def test_crash_after_crash_at_random_steps_with_random_power_cuts_loses_nothing(
    machine: Machine, seed: int
) -> None:
    randomness = random.Random(seed)
    stored = prepared(machine)
    for round_number in range(6):
        at = randomness.choice([*RECOVERING, QuiverPoint.WAL_WRITE, QuiverPoint.WAL_SYNC])
        kind = randomness.choice([FaultKind.KILL_BEFORE, FaultKind.KILL_MIDWAY])
        try:
            quiver = machine.start(faults=[Fault(at, kind, nth=randomness.randint(1, 3))])
            for n in range(3):
                event = b"%d/%d" % (round_number, n)
                stored[quiver.append_raw(event).seq] = [event]
            quiver.flush()
            machine.stop()
        except (SimulatedCrash, NotAccepted):
            machine.cut_power(randomness if randomness.random() < 0.7 else None)
    quiver = machine.start()
    found = payloads(quiver)
    assert {seq: events for seq, events in found.items() if seq in stored} == stored
    unanswered = [events for seq, events in found.items() if seq not in stored]
    assert all(b"/" in events[0] for events in unanswered)
    assert quiver.recovery.damages == []


def test_a_start_reads_the_log_and_removes_nothing_it_still_needs(machine: Machine) -> None:
    stored = append_numbers(machine, 5, NO_SEAL)
    for _ in range(4):
        machine.start(faults=[NO_SEAL])
        machine.kill()
    assert WAL in {path.parent for path in contents(machine.disk)}
    assert payloads(machine.start()) == stored


# On the machine's own disk.


def test_a_copy_of_a_running_quivers_directory_opens_with_all_that_was_acknowledged(
    tmp_path: Path,
) -> None:
    with Quiver.open(tmp_path / "data", quiet()) as quiver:
        for n in range(5):
            quiver.append_raw(b"%d" % n)
        quiver.flush()
        for n in range(5, 10):
            quiver.append_raw(b"%d" % n + bytes(20_000))
        shutil.copytree(
            tmp_path / "data", tmp_path / "copy", ignore=shutil.ignore_patterns("*.sock")
        )
    for folder in ("copy", "data"):
        with Quiver.open(tmp_path / folder, quiet()) as quiver:
            found = payloads(quiver)
            assert {seq: events[0].rstrip(b"\0") for seq, events in found.items()} == {
                n: b"%d" % n for n in range(10)
            }
            assert quiver.recovery.damages == []
