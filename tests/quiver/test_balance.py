"""Balancing the books at every start: what is neither resolved nor there is written off."""

from __future__ import annotations

import threading

import pytest
from tests.quiver.machine import ROOT, SEGMENTS
from tests.readers.ledgers import subscriber
from tests.readers.setting import (
    StillMachine,
    append,
    check_books,
    drain,
    keep,
    must_poll,
    sealed,
)

from holdfast.errors import DataLoss, StorageFailed
from holdfast.quiver import AckLevel, Balance, Outcome, Position, Quiver
from holdfast.quiver.base.frame import NOTHING, Totals
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.log.wal import BLOCK_BYTES
from holdfast.seam.faulty import Fault, FaultKind
from holdfast.seam.simulated import SimulatedCrash

LEDGER = ROOT / "ledger"


def lose_segment(still: StillMachine, place: int) -> None:
    """Make a segment unreadable, while nobody runs."""
    folder = still.disk.list(SEGMENTS)[place].name
    still.disk.put(SEGMENTS / folder / "manifest", b"garbage")


def lose_ledger(still: StillMachine) -> None:
    """Make all ledger files unreadable but the checkpoint of the first."""
    for entry in still.disk.list(LEDGER)[1:]:
        still.disk.put(LEDGER / entry.name, bytes(BLOCK_BYTES + 100))


def losses(quiver: Quiver, name: str) -> list[tuple[int, int, str]]:
    with pytest.raises(DataLoss) as loss:
        quiver.cursor(name).plan()
    return loss.value.ranges


def test_the_equation_is_about_bundles_and_about_events() -> None:
    outcomes = dict.fromkeys(Outcome, NOTHING)
    fine = Balance("x", Totals(3, 9), {**outcomes, Outcome.ACKED: Totals(1, 4)}, Totals(2, 5), 0)
    assert fine.holds
    assert not fine._replace(pending=Totals(2, 4)).holds
    assert not fine._replace(pending=Totals(1, 5)).holds
    assert not fine._replace(accepted=Totals(3, 10)).holds


def test_a_lost_segment_is_written_off_once_for_everyone_who_waited_for_it(
    still: StillMachine,
) -> None:
    quiver = still.start()
    quiver.register("slow")
    lease = quiver.lease("fast")
    sealed(quiver, 3, bundles=2)
    for seq in drain(lease):
        if seq == 2:  # in the middle of the second segment
            break
    still.stop()
    lose_segment(still, 1)
    for _ in range(2):
        quiver = still.start()
        balances = check_books(quiver)
        assert balances["slow"].outcomes[Outcome.DAMAGED] == Totals(2, 2)
        assert balances["fast"].outcomes[Outcome.DAMAGED] == Totals(1, 1)
        assert balances["fast"].outcomes[Outcome.ACKED] == Totals(3, 3)
        still.stop()
    quiver = still.start()
    assert losses(quiver, "slow") == [(2, 4, "damaged")]
    assert losses(quiver, "fast") == [(3, 4, "damaged")]
    assert list(drain(quiver.lease("slow"))) == [0, 1, 4, 5]
    assert list(drain(quiver.lease("fast"))) == [4, 5]


def test_numbers_that_nobody_used_are_not_told_as_lost(still: StillMachine) -> None:
    quiver = still.start()
    quiver.register("one")
    sealed(quiver, 1)
    quiver = still.restart()
    (far,) = sealed(quiver, 1)
    assert far > 1000
    still.stop()
    lose_segment(still, 0)
    quiver = still.start()
    assert losses(quiver, "one") == [(0, 1, "damaged")]
    check_books(quiver)


def test_a_frame_damaged_in_the_log_is_written_off(still: StillMachine) -> None:
    quiver = still.start()
    quiver.register("one")
    append(quiver, 3, events=2)
    still.kill()
    path = still.wal_paths()[-1]
    still.flip(path, (still.wal().starts[1] + 90) * 8)
    quiver = still.start()
    assert check_books(quiver)["one"].outcomes[Outcome.DAMAGED] == Totals(1, 2)
    assert losses(quiver, "one") == [(1, 2, "damaged")]
    assert list(drain(quiver.lease("one"))) == [0, 2]


def test_damage_at_the_end_of_the_log_does_not_undo_an_ack(still: StillMachine) -> None:
    """It looks like a torn tail that was never accepted, but somebody has an outcome for it."""
    quiver = still.start()
    quiver.register("slow")
    lease = quiver.lease("fast")
    append(quiver, 2, events=3)
    list(drain(lease))
    still.kill()
    path = still.wal_paths()[-1]
    still.flip(path, (still.wal().starts[1] + 90) * 8)
    quiver = still.start()
    balances = check_books(quiver)
    assert balances["fast"].outcomes[Outcome.ACKED] == balances["fast"].accepted == Totals(2, 6)
    assert balances["slow"].outcomes[Outcome.DAMAGED] == Totals(1, 3)
    assert balances["slow"].pending == Totals(1, 3)
    append(quiver, 1)
    quiver = still.restart()
    balances = check_books(quiver)
    assert balances["fast"].accepted == balances["slow"].accepted == Totals(3, 7)


def test_a_ledger_damaged_in_the_middle_redelivers_and_the_equation_holds(
    still: StillMachine,
) -> None:
    quiver = still.start()
    lease = quiver.lease("one")
    append(quiver, 5)
    list(drain(lease))
    still.kill()
    path = LEDGER / still.disk.list(LEDGER)[-1].name
    content = still.disk.read(path)
    still.scribble(path, len(content) - 300, len(content) - 290)
    quiver = still.start()
    again = list(drain(quiver.lease("one")))
    assert 0 < len(again) < 5
    assert check_books(quiver)["one"].outcomes[Outcome.ACKED] == Totals(5, 5)


def test_acks_lost_with_a_damaged_ledger_whose_data_is_gone_are_written_off(
    still: StillMachine,
) -> None:
    quiver = still.start()
    quiver.register("one")
    quiver = still.restart()  # the registration is in the first ledger file
    lease = quiver.lease("one")
    sealed(quiver, 2, bundles=2)
    assert len(list(drain(lease))) == 4
    keep(quiver)
    last = append(quiver, 1)
    still.stop()
    lose_ledger(still)
    quiver = still.start()
    balance = check_books(quiver)["one"]
    assert balance.outcomes[Outcome.DAMAGED] == Totals(4, 4)
    assert balance.pending == Totals(1, 1)
    assert len(quiver.recovery.damages) >= 1
    assert list(drain(quiver.lease("one"))) == last


def test_a_subscriber_whose_registration_is_lost_with_the_ledger_begins_anew(
    still: StillMachine,
) -> None:
    quiver = still.start()
    lease = quiver.lease("one")
    append(quiver, 3)
    list(drain(lease))
    still.stop()
    for entry in still.disk.list(LEDGER):
        still.disk.put(LEDGER / entry.name, b"garbage")
    quiver = still.start()
    assert quiver.subscribers() == ()
    assert list(drain(quiver.lease("one"))) == [0, 1, 2]
    check_books(quiver)


def test_an_interrupted_write_off_is_done_again_and_counted_once(still: StillMachine) -> None:
    quiver = still.start()
    quiver.register("one")
    sealed(quiver, 2)
    still.stop()
    lose_segment(still, 0)
    before = still.disk.snapshot()
    for kind in (FaultKind.KILL_BEFORE, FaultKind.KILL_MIDWAY, FaultKind.KILL_AFTER):
        still.disk = before.snapshot()
        with pytest.raises(SimulatedCrash):
            still.start(faults=[Fault(QuiverPoint.LEDGER_WRITE, kind)])
        still.cut_power()
        quiver = still.start()
        assert check_books(quiver)["one"].outcomes[Outcome.DAMAGED] == Totals(1, 1)
        still.stop()


@pytest.mark.parametrize("kind", [FaultKind.EIO, FaultKind.KILL_BEFORE])
def test_an_open_that_cannot_balance_the_books_leaves_no_thread_and_no_lock_behind(
    still: StillMachine, kind: FaultKind
) -> None:
    quiver = still.start()
    quiver.register("one")
    sealed(quiver, 1)
    still.stop()
    lose_segment(still, 0)
    before = set(threading.enumerate())
    with pytest.raises((StorageFailed, SimulatedCrash)):
        still.start(faults=[Fault(QuiverPoint.LEDGER_WRITE, kind)])
    assert set(threading.enumerate()) == before
    if kind is FaultKind.KILL_BEFORE:
        still.kill()
    assert check_books(still.start())["one"].outcomes[Outcome.DAMAGED] == Totals(1, 1)


def test_what_a_kill_left_written_and_a_power_cut_took_is_not_missed(still: StillMachine) -> None:
    quiver = still.start()
    lease = quiver.lease("one")
    append(quiver, 1)
    quiver.append_raw(b"written", level=AckLevel.WRITTEN)
    quiver = still.restart(power=True)
    balance = check_books(quiver)["one"]
    assert balance.accepted == Totals(1, 1)
    assert balance.outcomes[Outcome.DAMAGED] == Totals(0, 0)
    assert list(drain(quiver.lease("one"))) == [0]
    lease.close()


def test_unsynced_data_that_was_read_after_a_kill_and_then_lost_stays_acked(
    still: StillMachine,
) -> None:
    """Recovery could not sync the old log, served it, and then the power went."""
    quiver = still.start()
    quiver.register("one")
    quiver.append_raw(b"written", level=AckLevel.WRITTEN)
    still.kill()
    quiver = still.start(faults=[Fault(QuiverPoint.RECOVER_SYNC, FaultKind.EIO, times=10)])
    assert list(drain(quiver.lease("one"))) == [0]
    quiver._engine.ledger.sync()
    quiver = still.restart(power=True)
    balance = check_books(quiver)["one"]
    assert balance.outcomes[Outcome.ACKED] == balance.accepted
    (seq,) = append(quiver, 1)
    assert seq > 0
    assert list(drain(quiver.lease("one"))) == [seq]
    check_books(quiver)


def test_seqs_that_only_the_ledger_knows_are_not_given_out_again() -> None:
    with StillMachine() as still:
        quiver = still.start()
        quiver.register("slow")
        lease = quiver.lease("fast")
        sealed(quiver, 1)
        quiver = still.restart()
        seqs = sealed(quiver, 2, bundles=2)
        lease = quiver.lease("fast")
        list(drain(lease))
        slow = quiver.lease("slow")
        held = must_poll(slow)
        assert held.seq == 0
        assert list(drain(slow)) == seqs
        keep(quiver)
        assert len(quiver.segments()) == 1
        still.stop()
        for path in still.wal_paths():
            still.disk.unlink(path, "test")
        quiver = still.start()
        assert append(quiver, 1)[0] > max(seqs)
        assert list(drain(quiver.lease("fast"))) == [quiver.statistics().next_seq - 1]
        check_books(quiver)


def test_the_balance_holds_at_any_moment_while_appends_go_on(still: StillMachine) -> None:
    quiver = still.start()
    lease = quiver.lease("one")
    stop = threading.Event()

    def produce() -> None:
        level = AckLevel.WRITTEN
        while not stop.is_set():
            level = AckLevel.FSYNCED if level is AckLevel.WRITTEN else AckLevel.WRITTEN
            quiver.append_raw([b"x", b"y"], level=level)

    def seal() -> None:
        while not stop.is_set():
            quiver.flush()

    threads = [threading.Thread(target=work) for work in (produce, produce, seal)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            check_books(quiver)
            delivery = lease.poll()
            if delivery is not None:
                delivery.ack()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    check_books(quiver)


def test_a_replay_counts_as_accepted_once_more_and_the_equation_holds(still: StillMachine) -> None:
    quiver = still.start()
    quiver.register("keeper")
    lease = quiver.lease("one")
    append(quiver, 4, events=2)
    list(drain(lease))
    assert quiver.replay("one", 1, 3) == Totals(2, 4)
    assert check_books(quiver)["one"].pending == Totals(2, 4)
    assert list(drain(lease)) == [1, 2]
    quiver = still.restart(power=True)
    balance = check_books(quiver)["one"]
    assert balance.accepted == Totals(6, 12)
    assert balance.outcomes[Outcome.ACKED] == Totals(4, 8)  # the acks of the replay were not synced
    assert list(drain(quiver.lease("one"))) == [1, 2]


def test_a_replay_of_what_is_out_or_given_back_hands_nothing_out_twice_at_once(
    still: StillMachine,
) -> None:
    quiver = still.start()
    lease = quiver.lease("one")
    append(quiver, 3)
    first, second = lease.poll(), lease.poll()
    assert first is not None
    assert second is not None
    second.nack(retry_after_s=60)
    assert quiver.replay("one", 0, 3) == NOTHING
    third = must_poll(lease)
    assert third.seq == 2
    assert lease.poll() is None
    assert first.ack()
    still.clock.pass_time(61)
    again = must_poll(lease)
    assert (again.seq, again.attempt) == (1, 2)
    check_books(quiver)


def test_the_position_of_a_subscriber_without_data_is_where_it_starts() -> None:
    assert subscriber("x", 7).position == Position(7)
