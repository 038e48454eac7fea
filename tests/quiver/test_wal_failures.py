"""Writes and syncs that fail: what the producer is told is what the disk holds."""

from __future__ import annotations

import pytest
from tests.patience import APPEND_S, PATIENCE_S, until
from tests.quiver.machine import ROOT, Machine, payloads, quiet
from tests.quiver.waiting import in_thread
from tests.support.disk import GatedDisk, WatchedDisk

from holdfast.errors import CannotOpen, DiskFull, NotAccepted, Overloaded, StorageFailed
from holdfast.quiver import AckLevel, Quiver
from holdfast.quiver.base.config import KB, MB
from holdfast.quiver.base.names import wal_file
from holdfast.quiver.base.points import QuiverPoint
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.simulated import SimulatedDisk

EIO, ENOSPC = FaultKind.EIO, FaultKind.ENOSPC
RESERVE = ROOT / "reserve"
FAILED_SYNC, SHORT_WRITE = FaultKind.FAILED_SYNC, FaultKind.SHORT_WRITE
FOREVER = 1_000_000


def refusal(quiver: Quiver, event: bytes = b"refused") -> NotAccepted:
    with pytest.raises(NotAccepted) as refused:
        quiver.append_raw(event)
    return refused.value


def fill(quiver: Quiver, size_bytes: int) -> tuple[list[int], NotAccepted]:
    """Append until it is refused; return the seqs, and the refusal."""
    seqs = []
    while True:
        try:
            seqs.append(quiver.append_raw(bytes(size_bytes)).seq)
        except NotAccepted as refused:
            return seqs, refused


def reopened(machine: Machine) -> list[list[bytes]]:
    """Return what is stored after a power cut, in order."""
    machine.cut_power()
    return [events for _, events in sorted(payloads(machine.start()).items())]


# A failed write.


@pytest.mark.parametrize(
    ("kind", "error"), [(EIO, StorageFailed), (ENOSPC, DiskFull), (SHORT_WRITE, DiskFull)]
)
def test_a_failed_write_is_undone_and_certainly_not_stored(
    machine: Machine, kind: FaultKind, error: type[NotAccepted]
) -> None:
    quiver = machine.start(faults=[Fault(QuiverPoint.WAL_WRITE, kind, nth=2)])
    quiver.append_raw(b"before")
    refused = refusal(quiver)
    assert isinstance(refused, error)
    assert refused.stored == "no"
    assert refused.retry_after_s
    after = quiver.append_raw(b"after").seq
    assert after > 1, "a number is given once, also if the group fails"
    assert [frame.seq for frame in machine.wal().frames] == [0, after]
    assert quiver.statistics().writer.write_failures == 1
    assert len(machine.wal_paths()) == 1
    assert reopened(machine) == [[b"before"], [b"after"]]


def test_a_failed_write_takes_nothing_back_that_was_acknowledged_as_written(
    machine: Machine,
) -> None:
    """Undoing it cuts the file, and syncs what stays."""
    quiver = machine.start(
        quiet(AckLevel.WRITTEN), faults=[Fault(QuiverPoint.WAL_WRITE, ENOSPC, nth=2)]
    )
    quiver.append_raw(b"written")
    assert refusal(quiver).stored == "no"
    assert quiver.statistics().synced_seq == 0
    assert reopened(machine) == [[b"written"]]


def test_a_transaction_whose_write_fails_half_way_leaves_nothing(machine: Machine) -> None:
    quiver = machine.start(faults=[Fault(QuiverPoint.WAL_WRITE, SHORT_WRITE)])
    transaction = quiver.transaction()
    for _ in range(5):
        transaction.append_raw(bytes(1000))
    with pytest.raises(DiskFull) as refused:
        transaction.commit()
    assert refused.value.stored == "no"
    quiver.append_raw(b"after")
    assert reopened(machine) == [[b"after"]]


@pytest.mark.parametrize("at", [QuiverPoint.WAL_UNDO, QuiverPoint.WAL_UNDO_SYNC])
def test_a_failed_write_that_cannot_be_undone_is_left_behind_with_its_file(
    machine: Machine, at: QuiverPoint
) -> None:
    watched = WatchedDisk(
        machine.disk, [Fault(QuiverPoint.WAL_WRITE, SHORT_WRITE, nth=3), Fault(at, EIO)]
    )
    quiver = machine.start(quiet(AckLevel.WRITTEN), through=lambda _: watched)
    quiver.append_raw(b"first")
    quiver.append_raw(b"second")
    assert refusal(quiver).stored == "no", "the next file says how far this one counts"
    quiver.append_raw(b"after", level=AckLevel.FSYNCED)
    assert watched.syncs[wal_file(1)] == [QuiverPoint.WAL_HEADER_SYNC] + (
        [QuiverPoint.WAL_UNDO_SYNC] if at is QuiverPoint.WAL_UNDO_SYNC else []
    ), "never synced again"
    assert reopened(machine) == [[b"first"], [b"second"], [b"after"]]


@pytest.mark.parametrize(
    "at",
    [
        QuiverPoint.WAL_CREATE,
        QuiverPoint.WAL_HEADER,
        QuiverPoint.WAL_HEADER_SYNC,
        QuiverPoint.WAL_SYNC_DIR,
    ],
)
@pytest.mark.parametrize("kind", [EIO, ENOSPC])
def test_a_new_file_that_cannot_be_begun_refuses_the_append_and_the_next_tries_again(
    machine: Machine, at: QuiverPoint, kind: FaultKind
) -> None:
    # On a full disk the reserve is tried, too.
    quiver = machine.start(faults=[Fault(at, kind, nth=2, times=1 + (kind is ENOSPC))])
    quiver.append_raw(bytes(40_000))
    assert refusal(quiver, bytes(40_000)).stored == "no"
    quiver.append_raw(b"x" * 40_000)
    assert reopened(machine) == [[bytes(40_000)], [b"x" * 40_000]]


# A failed sync.


def test_a_failed_sync_poisons_the_file_and_its_frames_are_written_once_to_the_next(
    machine: Machine,
) -> None:
    watched = WatchedDisk(machine.disk, [Fault(QuiverPoint.WAL_SYNC, FAILED_SYNC, nth=2)])
    quiver = machine.start(through=lambda _: watched)
    quiver.append_raw(b"durable")
    seq = quiver.append_raw(b"rescued").seq
    assert payloads(quiver) == {0: [b"durable"], seq: [b"rescued"]}
    poisoned, rescue = machine.wal(0), machine.wal(1)
    assert [frame.seq for frame in poisoned.frames] == [0, 1]
    assert [frame.seq for frame in rescue.frames] == [1]
    assert rescue.header.previous_synced == poisoned.starts[1]
    assert quiver.statistics().writer.sync_failures == 1
    quiver.append_raw(b"later")
    assert len(machine.wal(0).frames) == 2, "never appended to again"
    assert watched.syncs[wal_file(1)] == [
        QuiverPoint.WAL_HEADER_SYNC, QuiverPoint.WAL_SYNC, QuiverPoint.WAL_SYNC,
    ], "the second failed, and there was no third"  # fmt: skip
    assert reopened(machine) == [[b"durable"], [b"rescued"], [b"later"]]


def test_a_failed_sync_rescues_everything_that_was_not_synced_before(machine: Machine) -> None:
    """Also what had been acknowledged as written, a transaction, and an unclaimed heartbeat."""
    quiver = machine.start(
        quiet(AckLevel.WRITTEN), faults=[Fault(QuiverPoint.WAL_SYNC, FAILED_SYNC)]
    )
    quiver.append_raw(b"a")
    with quiver.transaction() as transaction:
        transaction.append_raw(b"b")
        transaction.append_raw(b"c")
    quiver.heartbeat("p", 5)
    quiver.append_raw(b"d", level=AckLevel.FSYNCED)
    assert len(machine.wal(1).frames) == len(machine.wal(0).frames) == 6
    assert reopened(machine) == [[b"a"], [b"b"], [b"c"], [b"d"]]


def test_rescued_bundles_are_not_doubled_by_kill(machine: Machine) -> None:
    """The page cache still has the first copy."""
    quiver = machine.start(faults=[Fault(QuiverPoint.WAL_SYNC, FAILED_SYNC)])
    quiver.append_raw(b"x")
    machine.kill()
    quiver = machine.start()
    assert payloads(quiver) == {0: [b"x"]}
    assert quiver.recovery.replayed_bundles == 1
    assert quiver.statistics().accepted_bundles == 1


def test_a_failed_sync_when_a_full_file_is_left_is_rescued(machine: Machine) -> None:
    quiver = machine.start(
        quiet(AckLevel.WRITTEN), faults=[Fault(QuiverPoint.WAL_ROTATE_SYNC, FAILED_SYNC)]
    )
    quiver.append_raw(bytes(40_000))
    quiver.append_raw(b"x" * 40_000, level=AckLevel.FSYNCED)
    assert reopened(machine) == [[bytes(40_000)], [b"x" * 40_000]]


def test_a_failed_sync_before_a_seal_is_rescued(machine: Machine) -> None:
    quiver = machine.start(
        quiet(AckLevel.WRITTEN), faults=[Fault(QuiverPoint.WAL_SYNC, FAILED_SYNC)]
    )
    quiver.append_raw(b"x")
    quiver.flush()
    assert len(quiver.segments()) == 1
    assert reopened(machine) == [[b"x"]]


@pytest.mark.parametrize(
    "second",
    [
        Fault(QuiverPoint.WAL_HEADER_SYNC, FAILED_SYNC, nth=2),
        Fault(QuiverPoint.WAL_CREATE, ENOSPC, nth=2, times=2),
        Fault(QuiverPoint.WAL_HEADER, EIO, nth=2),
        Fault(QuiverPoint.WAL_HEADER, SHORT_WRITE, nth=2, times=2),
    ],
    ids=lambda fault: f"{fault.at}-{fault.kind}",
)
def test_a_second_failure_stops_accepting_and_says_maybe(machine: Machine, second: Fault) -> None:
    first = Fault(QuiverPoint.WAL_SYNC, FAILED_SYNC, nth=2)
    quiver = machine.start(faults=[first, second])
    quiver.append_raw(b"before")
    assert refusal(quiver).stored == "maybe"
    assert not quiver.statistics().accepting
    later = refusal(quiver, b"later")
    assert isinstance(later, StorageFailed)
    assert later.stored == "no", "nothing of it was written"
    with pytest.raises(StorageFailed):
        quiver.flush()
    assert payloads(quiver) == {0: [b"before"]}, "reading goes on"
    machine.stop()
    stored = reopened(machine)
    assert stored[0] == [b"before"]
    assert [b"later"] not in stored
    assert machine.quiver is not None
    machine.quiver.append_raw(b"works again")


def test_after_a_second_failure_no_file_of_the_log_is_synced_again_also_not_at_close(
    machine: Machine,
) -> None:
    failing = [
        Fault(QuiverPoint.WAL_SYNC, FAILED_SYNC),
        Fault(QuiverPoint.WAL_HEADER_SYNC, FAILED_SYNC, nth=2),
    ]
    watched = WatchedDisk(machine.disk, failing)
    quiver = machine.start(through=lambda _: watched)
    refusal(quiver)
    before = {name: list(steps) for name, steps in watched.syncs.items()}
    refusal(quiver)
    machine.stop()
    # No sync of the ledger failed: it says as ever that it was closed in order.
    before["0000000000000001.log"].append(QuiverPoint.LEDGER_SYNC)
    assert watched.syncs == before


def test_a_ledger_whose_sync_fails_at_close_is_left_for_a_new_one(machine: Machine) -> None:
    watched = WatchedDisk(machine.disk, [Fault(QuiverPoint.LEDGER_SYNC, FAILED_SYNC, nth=2)])
    quiver = machine.start(through=lambda _: watched)
    quiver.register("reader")
    first = list(watched.syncs["0000000000000001.log"])
    quiver.append_raw(b"one")
    machine.stop()
    assert watched.syncs["0000000000000001.log"] == [*first, QuiverPoint.LEDGER_SYNC], (
        "synced again"
    )
    assert watched.syncs["0000000000000002.log"]
    machine.cut_power()
    quiver = machine.start()
    assert quiver.subscribers() == ("reader",)
    assert quiver.recovery.damages == []


def test_a_second_failure_answers_those_who_wait_for_a_segment(machine: Machine) -> None:
    failing = [
        Fault(QuiverPoint.WAL_SYNC, FAILED_SYNC, nth=2),
        Fault(QuiverPoint.WAL_HEADER_SYNC, FAILED_SYNC, nth=2),
    ]
    quiver = machine.start(faults=failing)
    waiting = in_thread(lambda: quiver.append_raw(b"x", level=AckLevel.SEGMENT))
    until(lambda: quiver.statistics().open_bundles == 1)
    refusal(quiver)
    with pytest.raises(StorageFailed) as refused:
        waiting.result(PATIENCE_S)
    assert refused.value.stored == "maybe"
    assert reopened(machine) == [[b"x"]]


# Acknowledged in memory.


def test_an_append_acknowledged_in_memory_whose_write_failed_is_carried_into_the_next_group(
    machine: Machine,
) -> None:
    quiver = machine.start(faults=[Fault(QuiverPoint.WAL_WRITE, ENOSPC)])
    carried = quiver.append_raw(b"carried", level=AckLevel.MEMORY).seq
    until(lambda: quiver.statistics().writer.write_failures == 1)
    later = quiver.append_raw(b"later").seq
    assert carried < later
    assert reopened(machine) == [[b"carried"], [b"later"]]


def test_a_carried_append_is_tried_again_without_another_append(machine: Machine) -> None:
    quiver = machine.start(
        quiet(AckLevel.MEMORY, flush_interval_s=0.0), faults=[Fault(QuiverPoint.WAL_WRITE, ENOSPC)]
    )
    quiver.append_raw(b"carried")
    until(lambda: quiver.statistics().synced_seq == 0)
    assert reopened(machine) == [[b"carried"]]


def test_a_carried_append_is_written_by_a_clean_close(machine: Machine) -> None:
    quiver = machine.start(faults=[Fault(QuiverPoint.WAL_WRITE, ENOSPC)])
    quiver.append_raw(b"carried", level=AckLevel.MEMORY)
    until(lambda: quiver.statistics().writer.write_failures == 1)
    machine.stop()
    assert payloads(machine.start()) == {0: [b"carried"]}


def test_a_full_disk_does_not_fill_the_memory_with_appends_acknowledged_in_memory(
    machine: Machine,
) -> None:
    """Once one write has failed, the next appends wait for theirs, and are refused."""
    full = FaultyDisk(
        machine.disk, [Fault(QuiverPoint.WAL_WRITE, ENOSPC, times=FOREVER)], machine.disk.die
    )
    quiver = machine.start(quiet(AckLevel.MEMORY), through=lambda _: full)
    carried = quiver.append_raw(b"carried").seq
    until(lambda: quiver.statistics().writer.write_failures > 0)
    for _ in range(5):
        refused = refusal(quiver)
        assert isinstance(refused, DiskFull)
        assert refused.stored == "no"
    full.heal()
    accepted = quiver.append_raw(b"accepted").seq
    machine.stop()
    assert payloads(machine.start()) == {carried: [b"carried"], accepted: [b"accepted"]}


def test_a_repeat_of_a_carried_append_is_not_stored_twice(machine: Machine) -> None:
    quiver = machine.start(faults=[Fault(QuiverPoint.WAL_WRITE, ENOSPC)])
    first = quiver.append_raw(b"x", producer="p", epoch=1, level=AckLevel.MEMORY)
    until(lambda: quiver.statistics().writer.write_failures == 1)
    repeat = quiver.append_raw(b"x", producer="p", epoch=1)
    assert (repeat.seq, repeat.duplicate) == (first.seq, True)
    assert reopened(machine) == [[b"x"]]


def test_a_repeat_of_a_carried_append_is_refused_when_the_write_fails_again(
    machine: Machine,
) -> None:
    quiver = machine.start(faults=[Fault(QuiverPoint.WAL_WRITE, ENOSPC, times=2)])
    gated = quiver.append_raw(b"x", producer="p", epoch=1, level=AckLevel.MEMORY)
    until(lambda: quiver.statistics().writer.write_failures > 0)
    outcomes: list[object] = []
    for _ in range(2):
        try:
            outcomes.append(quiver.append_raw(b"x", producer="p", epoch=1).seq)
        except DiskFull as refused:
            outcomes.append(refused.stored)
    assert outcomes in (["no", gated.seq], [gated.seq, gated.seq])
    assert reopened(machine) == [[b"x"]]


# Full and read-only disks.


def test_a_full_disk_refuses_with_a_typed_error_and_goes_on_when_there_is_room() -> None:
    with Machine(SimulatedDisk(capacity_bytes=3 * MB)) as machine:
        quiver = machine.start(quiet(timeout_s=APPEND_S))
        stored, refused = fill(quiver, 10_000)
        assert isinstance(refused, DiskFull)
        assert refused.stored == "no"
        assert "free space" in refused.hint
        machine.disk.capacity_bytes = 10 * MB
        stored.append(quiver.append_raw(b"there is room").seq)
        machine.cut_power()
        assert sorted(payloads(machine.start())) == stored


def test_a_full_disk_can_still_be_opened_and_read() -> None:
    """What is stored is served, and appends are refused, although there is no reserve."""
    with Machine() as machine:
        machine.start().append_raw(b"x")
        machine.kill()
        for entry in machine.disk.list(RESERVE):
            machine.disk.unlink(RESERVE / entry.name, "test")
        machine.disk.fill()
        for _ in range(3):
            quiver = machine.start(quiet(timeout_s=APPEND_S))
            assert payloads(quiver) == {0: [b"x"]}
            with pytest.raises(DiskFull):
                quiver.append_raw(b"y")
            machine.kill()
        machine.disk.capacity_bytes = None
        quiver = machine.start()
        seq = quiver.append_raw(b"y").seq
        assert payloads(quiver) == {0: [b"x"], seq: [b"y"]}


def test_a_read_only_disk_cannot_be_opened_and_nothing_is_lost(machine: Machine) -> None:
    machine.start().append_raw(b"x")
    machine.kill()
    machine.disk.read_only = True
    with pytest.raises(CannotOpen, match="read-only") as refused:
        machine.start()
    assert "writable" in refused.value.hint
    machine.disk.read_only = False
    assert payloads(machine.start()) == {0: [b"x"]}


def test_a_disk_that_becomes_read_only_refuses_appends_and_loses_nothing(machine: Machine) -> None:
    quiver = machine.start()
    quiver.append_raw(b"x")
    machine.disk.read_only = True
    assert isinstance(refusal(quiver), StorageFailed)
    assert payloads(quiver) == {0: [b"x"]}
    machine.disk.read_only = False
    assert reopened(machine) == [[b"x"]]


# The cap of all WAL files.


def test_the_wal_at_its_cap_makes_appends_wait_for_the_sealer(machine: Machine) -> None:
    config = quiet(max_size_bytes=64 * KB, timeout_s=APPEND_S)
    no_seal = FaultyDisk(
        machine.disk, [Fault(QuiverPoint.SEAL_MAKE_DIR, EIO, times=FOREVER)], machine.disk.die
    )
    quiver = machine.start(config, through=lambda _: no_seal)
    stored, refused = fill(quiver, 10_000)
    assert isinstance(refused, Overloaded)
    assert refused.stored == "no"
    assert quiver.statistics().wal_bytes < 64 * KB + 30_000
    no_seal.heal()
    until(lambda: quiver.statistics().segments > 0)
    stored.append(quiver.append_raw(bytes(10_000)).seq)
    machine.kill()
    assert sorted(payloads(machine.start())) == stored


def test_a_wal_file_that_could_not_be_removed_does_not_hold_the_cap_for_ever(
    machine: Machine,
) -> None:
    """Everything is sealed, only the removal failed once: it is tried again, not waited for."""
    config = quiet(max_size_bytes=64 * KB, timeout_s=PATIENCE_S)
    quiver = machine.start(config, faults=[Fault(QuiverPoint.TRUNCATE_UNLINK, EIO)])
    quiver.append_raw(bytes(60_000))
    quiver.flush()
    until(lambda: quiver.statistics().last_seal_error is not None)
    quiver.append_raw(bytes(10_000))
    assert quiver.statistics().wal_bytes < 64 * KB


def test_a_wal_file_that_can_never_be_removed_is_tried_again_in_peace(machine: Machine) -> None:
    """While the writer waits for room it must neither spin nor beat on a broken disk."""
    broken = FaultyDisk(
        machine.disk, [Fault(QuiverPoint.TRUNCATE_UNLINK, EIO, times=FOREVER)], machine.disk.die
    )
    config = quiet(max_size_bytes=64 * KB, timeout_s=0.5)
    began_s = machine.clock.monotonic_s()
    quiver = machine.start(config, through=lambda _: broken)
    quiver.append_raw(bytes(60_000))
    quiver.flush(PATIENCE_S)
    assert isinstance(refusal(quiver), Overloaded)
    tries = broken.calls()[QuiverPoint.TRUNCATE_UNLINK]
    passed_s = machine.clock.monotonic_s() - began_s
    assert tries < 10 + passed_s / config.segment.retry_max_s


def test_a_file_that_stayed_in_use_does_not_hold_the_cap_for_ever(machine: Machine) -> None:
    """No new file could be begun when the segment was handed over; all that is in it is sealed."""
    config = quiet(max_size_bytes=64 * KB, timeout_s=PATIENCE_S)
    quiver = machine.start(config, faults=[Fault(QuiverPoint.WAL_CREATE, EIO, nth=2)])
    quiver.append_raw(bytes(60_000))
    quiver.flush()
    assert len(machine.wal_paths()) == 1
    quiver.append_raw(bytes(10_000))
    assert quiver.statistics().wal_bytes < 64 * KB
    assert len(payloads(quiver)) == 2


def test_replay_under_the_smallest_budget_does_not_block_itself(machine: Machine) -> None:
    config = quiet(max_size_bytes=64 * KB, timeout_s=PATIENCE_S)
    gated = GatedDisk(machine.disk, QuiverPoint.SEAL_MAKE_DIR)
    quiver = machine.start(config, through=lambda _: gated)
    quiver.append_raw(bytes(60_000))
    quiver.append_raw(bytes(60_000))
    machine.disk, dead = machine.disk.kill(), machine.disk
    gated.gate.set()
    machine.quiver = None
    assert dead is not machine.disk
    quiver = machine.start(config)
    assert quiver.statistics().wal_bytes > 64 * KB
    for _ in range(5):
        quiver.append_raw(bytes(60_000))
    assert len(payloads(quiver)) == 7
