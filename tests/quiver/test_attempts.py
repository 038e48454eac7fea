"""Attempts that failed are on record: with their reasons, over restarts, and up to a limit."""

from __future__ import annotations

import pytest
from tests.quiver.machine import ROOT
from tests.readers.setting import StillMachine, append, calm, check_books, must_poll

from holdfast.errors import BadInput, StorageFailed
from holdfast.quiver import LeaseOptions, Outcome, SubscriberOptions
from holdfast.quiver.base.frame import Totals
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.ledger import subscriber as subscriber_module
from holdfast.quiver.read.lease import NACK_REASON_CHARS_MAX
from holdfast.quiver.tools.explain import Fate, explain
from holdfast.quiver.tools.history import LineFilter, lines
from holdfast.quiver.tools.inspect import inspect
from holdfast.seam.faulty import Fault, FaultKind

LIMITED = SubscriberOptions(max_attempts=3)


def fate(still: StillMachine, seq: int) -> Fate:
    (found,) = explain(still.disk, inspect(still.disk, ROOT), seq).subscribers
    return found


def test_attempts_go_on_after_a_restart(still: StillMachine) -> None:
    """They began at 1 again, so "give up after 5" never happened."""
    quiver = still.start()
    append(quiver, 2)
    for attempt in (1, 2, 3):
        delivery = must_poll(quiver.lease("reader"))
        assert (delivery.seq, delivery.attempt) == (0, attempt)
        delivery.nack(reason=f"503, the {attempt}. time")
        quiver = still.restart()
    lease = quiver.lease("reader")
    assert must_poll(lease).attempt == 4
    assert must_poll(lease).attempt == 1
    check_books(quiver)


def test_a_power_cut_after_the_sync_forgets_no_attempt(still: StillMachine) -> None:
    quiver = still.start()
    append(quiver, 1)
    must_poll(quiver.lease("reader")).nack(reason="503")
    quiver._engine.ledger.sync()
    quiver = still.restart(power=True)
    assert must_poll(quiver.lease("reader")).attempt == 2


def test_reasons_are_told(still: StillMachine) -> None:
    quiver = still.start()
    append(quiver, 2)
    lease = quiver.lease("reader")
    must_poll(lease).nack(reason="503 from the archive")
    must_poll(lease).nack(reason="x" * 5000)
    told = [
        (line.fields()["what"], line.fields()["first_seq"], line.fields()["reason"])
        for line in lines(still.disk, inspect(still.disk, ROOT), LineFilter(seq=0))
        if line.change is not None and line.change["verb"] == "nack"
    ]
    assert told == [
        ("nack", 0, "attempt 1: 503 from the archive"),
        ("nack", 0, "attempt 2: " + "x" * NACK_REASON_CHARS_MAX),
    ]
    explained = fate(still, 0)
    assert (explained.state, explained.attempts) == ("pending", 2)
    assert explained.remarks[0][1] == "given back, attempt 1: 503 from the archive"
    assert fate(still, 1).attempts == 0


def test_a_lease_that_lapses_is_a_failed_attempt(still: StillMachine) -> None:
    quiver = still.start()
    append(quiver, 1)
    lease = quiver.lease("reader", leasing=LeaseOptions(lease_s=10))
    must_poll(lease)
    still.clock.pass_time(11)
    assert must_poll(lease).attempt == 2
    assert fate(still, 0).remarks[0][1] == "given back, attempt 1: the lease lapsed"


@pytest.mark.parametrize("lapses", [False, True])
def test_at_its_limit_a_bundle_becomes_a_dead_letter(still: StillMachine, lapses: bool) -> None:
    quiver = still.start()
    append(quiver, 2)
    lease = quiver.lease("reader", options=LIMITED, leasing=LeaseOptions(lease_s=10))
    for attempt in (1, 2, 3):
        delivery = must_poll(lease)
        assert (delivery.seq, delivery.attempt) == (0, attempt)
        if lapses:
            still.clock.pass_time(11)
        else:
            delivery.nack(reason=f"no {attempt}")
    assert must_poll(lease).seq == 1
    outcomes = check_books(quiver)["reader"].outcomes
    assert outcomes[Outcome.DEAD_LETTERED] == Totals(1, 1)
    last = "the lease lapsed" if lapses else "no 3"
    assert fate(still, 0).state == "dead_lettered"
    assert fate(still, 0).reason == f"3 attempts failed (max_attempts); the last: {last}"
    assert quiver._engine.ledger.subscriber("reader").attempts == {1: 1}


def test_a_bundle_that_ends_its_reader_does_not_do_so_for_ever(still: StillMachine) -> None:
    """Nobody gives it back: the process is gone. So each attempt is written down before."""
    quiver = still.start()
    append(quiver, 2)
    for attempt in (1, 2, 3):
        delivery = must_poll(quiver.lease("reader", options=LIMITED))
        assert (delivery.seq, delivery.attempt) == (0, attempt)
        quiver = still.restart()
    assert must_poll(quiver.lease("reader")).seq == 1
    assert check_books(quiver)["reader"].outcomes[Outcome.DEAD_LETTERED] == Totals(1, 1)
    assert "the reader ended with it" in fate(still, 0).reason


def test_an_ack_in_time_ends_the_count(still: StillMachine) -> None:
    quiver = still.start()
    append(quiver, 1)
    lease = quiver.lease("reader", options=LIMITED)
    must_poll(lease).nack()
    must_poll(lease).nack()
    assert must_poll(lease).ack()
    assert quiver._engine.ledger.subscriber("reader").attempts == {}
    quiver.replay("reader", 0, 1)
    assert must_poll(lease).attempt == 1


def test_by_default_there_is_no_limit(still: StillMachine) -> None:
    quiver = still.start()
    append(quiver, 1)
    lease = quiver.lease("reader")
    for attempt in range(1, 50):
        delivery = must_poll(lease)
        assert delivery.attempt == attempt
        delivery.nack()
    with pytest.raises(BadInput, match="max_attempts"):
        SubscriberOptions(max_attempts=0)


def test_a_nack_that_cannot_be_written_is_told_and_gives_back(still: StillMachine) -> None:
    quiver = still.start(faults=[Fault(QuiverPoint.LEDGER_WRITE, FaultKind.EIO, nth=3)])
    append(quiver, 1)
    lease = quiver.lease("reader")
    delivery = must_poll(lease)
    with pytest.raises(StorageFailed):
        delivery.nack(reason="503")
    assert must_poll(lease).attempt == 2
    check_books(quiver)


def test_attempts_are_remembered_up_to_a_bound(
    still: StillMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriber_module, "ATTEMPTS_MAX", 2)
    quiver = still.start(calm())
    append(quiver, 3)
    lease = quiver.lease("reader")
    for _ in range(3):
        must_poll(lease).nack(retry_after_s=60)
    assert quiver._engine.ledger.subscriber("reader").attempts == {1: 1, 2: 1}
    lease = still.restart().lease("reader")
    assert [must_poll(lease).attempt for _ in range(3)] == [1, 2, 2]


def test_a_reader_that_was_replaced_puts_nothing_on_record(still: StillMachine) -> None:
    quiver = still.start()
    append(quiver, 1)
    delivery = must_poll(quiver.lease("reader", options=LIMITED))
    other = quiver.lease("reader")
    delivery.nack(reason="too late")
    assert must_poll(other).attempt == 2  # the first was on record when it was handed out
    assert fate(still, 0).remarks == []
