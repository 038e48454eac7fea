"""The lease: single bundles, each acknowledged, given back, refused, or taken back."""

from __future__ import annotations

import asyncio
import threading

import pyarrow as pa
import pytest
from tests.patience import PATIENCE_S
from tests.quiver.machine import Machine
from tests.readers.setting import (
    StillMachine,
    append,
    calm,
    check_books,
    drain,
    keep,
    must_poll,
    sealed,
)
from tests.support.clock import SteppingClock

from holdfast.errors import BadInput, Fenced, UnknownPosition
from holdfast.quiver import Lease, LeaseOptions, Outcome, Quiver
from holdfast.quiver.base.frame import Totals


def seqs(lease: Lease, count: int = 100) -> list[int]:
    """Take deliveries without deciding about them."""
    found: list[int] = []
    while len(found) < count and (delivery := lease.poll()) is not None:
        found.append(delivery.seq)
    return found


# ------------------------------------------------------------------------ deciding


def test_the_delivery_is_the_bundle_that_was_appended(still: StillMachine) -> None:
    quiver = still.start()
    lease = quiver.lease("archive")
    receipt = quiver.append_raw([b"one", b"two"], producer="p", epoch=4)
    delivery = must_poll(lease)
    assert (delivery.seq, delivery.attempt) == (receipt.seq, 1)
    assert delivery.bundle.payloads == [b"one", b"two"]
    assert (delivery.bundle.producer, delivery.bundle.epoch) == ("p", 4)


def test_bundles_of_every_kind_are_handed_out_together(still: StillMachine) -> None:
    quiver = still.start()
    lease = quiver.lease("archive")
    batch = pa.record_batch({"n": [1, 2]})
    for sealing in (True, False):
        quiver.append(batch)
        quiver.append({"spans": batch, "links": batch.slice(1)})
        quiver.append_raw([b"one", b"two"], slot="logs")
        quiver.heartbeat("p", 7)
        with quiver.transaction() as transaction:
            transaction.append(batch)
            transaction.append_raw(b"three", slot="logs")
        if sealing:
            quiver.flush()
    found = []
    while (delivery := lease.poll()) is not None:
        slots = delivery.bundle.slots
        found.append({slot: rows.num_rows for slot, rows in slots.items()})
        delivery.ack()
    kinds = [{"events": 2}, {"spans": 2, "links": 1}, {"logs": 2}, {}, {"events": 2}, {"logs": 1}]
    assert found == 2 * kinds
    assert check_books(quiver)["archive"].outcomes[Outcome.ACKED] == Totals(12, 20)


def test_the_figures_reconcile(still: StillMachine) -> None:
    """Appended is delivered, waiting, lost or refused: nothing else, and nothing twice."""
    quiver = still.start()
    lease = quiver.lease("archive", leasing=LeaseOptions(max_in_flight=100))
    append(quiver, 20, events=3)
    for place, delivery in enumerate([must_poll(lease) for _ in range(15)]):
        if place % 3 == 0:
            delivery.ack()
        elif place % 3 == 1:
            delivery.reject("no")
    statistics = quiver.statistics()
    (archive,) = statistics.subscribers
    outcomes = list(archive.outcomes.values())
    assert sum(counts.events for counts in outcomes) + archive.pending.events == 60
    assert sum(counts.bundles for counts in outcomes) + archive.pending.bundles == 20
    assert (archive.outcomes["acked"], archive.outcomes["dead_lettered"]) == ((5, 15), (5, 15))
    assert statistics.accepted_events == statistics.writer.events == 60


def test_next_skips_what_is_in_somebodys_hands(still: StillMachine) -> None:
    quiver = still.start()
    lease = quiver.lease("archive")
    append(quiver, 3)
    assert seqs(lease) == [0, 1, 2]
    assert lease.in_flight == 3


def test_a_nack_brings_it_again_after_its_time_and_with_the_next_attempt(
    still: StillMachine,
) -> None:
    quiver = still.start()
    lease = quiver.lease("archive")
    append(quiver, 2)
    must_poll(lease).nack(retry_after_s=10, reason="busy")
    must_poll(lease).ack()
    assert lease.poll() is None
    still.clock.pass_time(11)
    again = must_poll(lease)
    assert (again.seq, again.attempt) == (0, 2)
    again.nack()
    assert must_poll(lease).attempt == 3


def test_nacked_five_times_and_then_acked_all_is_delivered(still: StillMachine) -> None:
    quiver = still.start()
    lease = quiver.lease("archive")
    append(quiver, 4)
    acked = []
    while (delivery := lease.poll()) is not None:
        if delivery.attempt <= 5:
            delivery.nack()
        else:
            acked.append(delivery.seq)
            assert delivery.ack()
    assert sorted(acked) == [0, 1, 2, 3]
    assert check_books(quiver)["archive"].outcomes[Outcome.ACKED] == Totals(4, 4)


def test_a_rejected_bundle_is_a_dead_letter_and_not_tried_again(still: StillMachine) -> None:
    quiver = still.start()
    lease = quiver.lease("archive")
    append(quiver, 2)
    assert must_poll(lease).reject("not for us")
    assert must_poll(lease).ack()
    assert lease.poll() is None
    outcomes = check_books(quiver)["archive"].outcomes
    assert outcomes[Outcome.DEAD_LETTERED] == outcomes[Outcome.ACKED] == Totals(1, 1)
    assert [d.seq for d in [quiver.lease("archive").poll()] if d] == []


def test_transient_and_permanent_failures_mix_without_loss(still: StillMachine) -> None:
    quiver = still.start()
    lease = quiver.lease("archive")
    append(quiver, 30)
    while (delivery := lease.poll()) is not None:
        if delivery.seq % 3 == 0:
            delivery.reject("permanent")
        elif delivery.attempt < 3:
            delivery.nack(reason="transient")
        else:
            delivery.ack()
    outcomes = check_books(quiver)["archive"].outcomes
    assert outcomes[Outcome.DEAD_LETTERED] == Totals(10, 10)
    assert outcomes[Outcome.ACKED] == Totals(20, 20)


def test_the_first_terminal_outcome_wins(still: StillMachine) -> None:
    quiver = still.start()
    lease = quiver.lease("archive")
    append(quiver, 1)
    delivery = must_poll(lease)
    assert delivery.reject("no")
    assert delivery.ack() is False
    assert delivery.resolve(Outcome.FILTERED) is False
    delivery.nack()
    assert lease.poll() is None
    assert check_books(quiver)["archive"].outcomes[Outcome.DEAD_LETTERED] == Totals(1, 1)


def test_an_ack_of_an_unknown_position_is_refused(still: StillMachine) -> None:
    quiver = still.start()
    lease = quiver.lease("archive")
    append(quiver, 2)
    must_poll(lease).ack()
    for seq in (1, 7, 10**15):  # never handed out; never appended
        with pytest.raises(UnknownPosition, match="is not out"):
            lease.resolve(seq, Outcome.ACKED)
    assert lease.resolve(0, Outcome.ACKED) is False
    assert check_books(quiver)["archive"].pending == Totals(1, 1)


# ------------------------------------------------------------------ permits and time


def test_at_most_max_in_flight_are_out_and_an_ack_releases_a_permit(still: StillMachine) -> None:
    quiver = still.start()
    lease = quiver.lease("archive", leasing=LeaseOptions(max_in_flight=2))
    append(quiver, 5)
    first, second = must_poll(lease), must_poll(lease)
    assert lease.poll() is None
    first.ack()
    assert must_poll(lease).seq == 2
    second.nack(retry_after_s=5)
    assert must_poll(lease).seq == 3
    assert lease.poll() is None


def test_a_lease_that_lapses_is_handed_out_again(still: StillMachine) -> None:
    quiver = still.start()
    lease = quiver.lease("archive", leasing=LeaseOptions(lease_s=30, max_in_flight=1))
    append(quiver, 2)
    first = must_poll(lease)
    still.clock.pass_time(31)
    again = must_poll(lease)
    assert (again.seq, again.attempt) == (0, 2)
    assert first.extend() is False
    assert again.ack()
    assert first.ack() is False, "late: the outcome was decided"


def test_a_late_ack_counts_if_nobody_else_has_decided(still: StillMachine) -> None:
    quiver = still.start()
    lease = quiver.lease("archive", leasing=LeaseOptions(lease_s=30))
    append(quiver, 1)
    late = must_poll(lease)
    still.clock.pass_time(31)
    again = must_poll(lease)
    assert late.ack()
    assert again.ack() is False
    assert lease.poll() is None
    assert check_books(quiver)["archive"].outcomes[Outcome.ACKED] == Totals(1, 1)


def test_a_late_ack_of_what_waits_to_be_retried_counts(still: StillMachine) -> None:
    quiver = still.start()
    lease = quiver.lease("archive")
    append(quiver, 1)
    delivery = must_poll(lease)
    delivery.nack(retry_after_s=60)
    assert delivery.ack()
    still.clock.pass_time(61)
    assert lease.poll() is None


def test_a_late_nack_does_not_take_the_bundle_from_its_new_holder(still: StillMachine) -> None:
    quiver = still.start()
    lease = quiver.lease("archive", leasing=LeaseOptions(lease_s=30))
    append(quiver, 1)
    late = must_poll(lease)
    still.clock.pass_time(31)
    holder = must_poll(lease)
    late.nack()
    assert lease.poll() is None
    assert holder.ack()


def test_heartbeats_extend_a_lease_up_to_its_maximum(still: StillMachine) -> None:
    quiver = still.start()
    lease = quiver.lease("archive", leasing=LeaseOptions(lease_s=30, max_lease_s=70))
    append(quiver, 1)
    delivery = must_poll(lease)
    for _ in range(3):
        still.clock.pass_time(20)
        assert delivery.extend()
        assert lease.poll() is None
    still.clock.pass_time(20)  # 80 s in all
    assert delivery.extend() is False
    assert must_poll(lease).attempt == 2


def test_jumps_of_the_wall_clock_neither_end_nor_prolong_a_lease(still: StillMachine) -> None:
    quiver = still.start()
    lease = quiver.lease("archive", leasing=LeaseOptions(lease_s=30))
    append(quiver, 2)
    must_poll(lease).nack(retry_after_s=10)
    held = must_poll(lease)
    for jump_s in (1e6, -3e6):
        still.clock.jump(jump_s)
        assert lease.poll() is None
    still.clock.pass_time(11)
    assert must_poll(lease).attempt == 2
    assert held.extend()


@pytest.mark.parametrize(
    "options",
    [
        {"order": "random"},
        {"max_in_flight": 0},
        {"lease_s": 0.0},
        {"lease_s": 5.0, "max_lease_s": 4.0},
    ],
)
def test_a_lease_with_impossible_options_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        LeaseOptions(**options)  # type: ignore[arg-type]


# --------------------------------------------------------------------------- order


def newest_first(quiver: Quiver) -> Lease:
    return quiver.lease("archive", leasing=LeaseOptions(order="newest_first"))


def test_newest_first_goes_back_through_the_backlog_and_prefers_what_is_new(
    still: StillMachine,
) -> None:
    quiver = still.start()
    quiver.register("archive")
    sealed(quiver, 2, bundles=2)
    append(quiver, 1)
    lease = newest_first(quiver)
    assert must_poll(lease).seq == 4
    append(quiver, 3)
    assert must_poll(lease).seq == 7
    append(quiver, 1)
    assert must_poll(lease).seq == 8, "newer than what was looked up before"
    assert seqs(lease) == [6, 5, 3, 2, 1, 0]
    assert lease.poll() is None


def test_newest_first_stops_at_the_start_of_the_subscriber(still: StillMachine) -> None:
    quiver = still.start()
    append(quiver, 2)
    quiver.register("archive", start="latest")
    append(quiver, 2)
    lease = newest_first(quiver)
    assert list(drain(lease)) == [3, 2]
    check_books(quiver)


def test_a_nacked_bundle_comes_again_in_newest_first_order_too(still: StillMachine) -> None:
    quiver = still.start()
    append(quiver, 2)
    lease = newest_first(quiver)
    must_poll(lease).nack()
    assert must_poll(lease).attempt == 2
    assert must_poll(lease).seq == 0


@pytest.mark.parametrize("order", ["fifo", "newest_first"])
def test_numbers_that_nobody_used_do_not_keep_a_segment(still: StillMachine, order: str) -> None:
    """After a crash numbering skips ahead; a segment may hold bundles from both sides."""
    quiver = still.start()
    quiver.register("archive")
    append(quiver, 2)
    quiver = still.restart()
    append(quiver, 2)
    quiver.flush()
    assert [s.summary.bundles for s in quiver.segments()] == [4]
    leasing = LeaseOptions(order=order)  # type: ignore[arg-type]
    lease = quiver.lease("archive", leasing=leasing)
    assert len(list(drain(lease))) == 4
    keep(quiver)
    assert quiver.segments() == ()
    check_books(quiver)


def test_acks_out_of_order_make_a_gap_set_beyond_the_high_water_mark(still: StillMachine) -> None:
    quiver = still.start()
    lease = quiver.lease("archive")
    append(quiver, 5)
    deliveries = [must_poll(lease) for _ in range(5)]
    for place in (4, 2, 1):
        deliveries[place].ack()
    subscriber = quiver._engine.ledger.subscriber("archive")
    assert subscriber.high_water_seq == 0
    assert list(subscriber.resolved) == [(1, 3), (4, 5)]
    deliveries[0].ack()
    assert subscriber.high_water_seq == 3


@pytest.mark.parametrize("count", [3_000, pytest.param(66_000, marks=pytest.mark.slow)])
def test_a_segment_of_more_than_65536_bundles_is_accounted_one_by_one(
    still: StillMachine, count: int
) -> None:
    """A bitmap with a fixed bound would lose count."""
    quiver = still.start()
    lease = quiver.lease("archive", leasing=LeaseOptions(max_in_flight=1000))
    with quiver.transaction() as transaction:
        for _ in range(count):
            transaction.append_raw(b"x")
    quiver.flush()
    for place, delivery in enumerate([must_poll(lease) for _ in range(1000)]):
        if place % 2 == 0:
            delivery.ack()
    quiver = still.restart()
    balance = check_books(quiver)["archive"]
    assert balance.outcomes[Outcome.ACKED] == Totals(500, 500)
    assert balance.pending == Totals(count - 500, count - 500)
    assert seqs(quiver.lease("archive"), 3) == [1, 3, 5]


# ------------------------------------------------------------------------ life cycle


def test_what_was_out_or_waited_to_be_retried_is_handed_out_again_after_a_restart(
    still: StillMachine,
) -> None:
    quiver = still.start()
    lease = quiver.lease("archive")
    append(quiver, 3)
    must_poll(lease)
    must_poll(lease).nack(retry_after_s=3600)
    quiver = still.restart()
    assert list(drain(quiver.lease("archive"))) == [0, 1, 2]


def test_an_outage_and_then_a_healthy_run_deliver_the_exact_count(still: StillMachine) -> None:
    quiver = still.start()
    for life in range(3):
        lease = quiver.lease("archive")
        append(quiver, 10)
        for _ in range(10 * (life + 1)):
            must_poll(lease).nack(retry_after_s=60)
        quiver = still.restart()
    assert len(list(drain(quiver.lease("archive")))) == 30
    assert check_books(quiver)["archive"].outcomes[Outcome.ACKED] == Totals(30, 30)


def test_a_closed_lease_hands_out_nothing_and_a_new_one_everything(still: StillMachine) -> None:
    quiver = still.start()
    append(quiver, 2)
    with quiver.lease("archive") as lease:
        delivery = must_poll(lease)
    assert lease.poll() is None
    assert list(lease) == []
    with pytest.raises(Fenced, match="closed"):
        delivery.ack()
    assert list(drain(quiver.lease("archive"))) == [0, 1]


# ------------------------------------------------------------------------- waiting


def in_thread(target: object) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)  # type: ignore[arg-type]
    thread.start()
    return thread


def join(thread: threading.Thread) -> None:
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it still waits"


@pytest.mark.parametrize("what", ["lease", "quiver"])
def test_closing_wakes_whoever_waits_at_once(still: StillMachine, what: str) -> None:
    quiver = still.start()
    lease = quiver.lease("archive")
    ended: list[list[int]] = []
    thread = in_thread(lambda: ended.append([delivery.seq for delivery in lease]))
    append(quiver, 1)
    while lease.in_flight == 0:
        pass
    lease.close() if what == "lease" else still.stop()
    join(thread)
    assert ended == [[0]]


def test_many_retries_share_one_wake_up_and_none_is_forgotten(machine: Machine) -> None:
    quiver = machine.start()
    lease = quiver.lease("archive")
    append(quiver, 50)
    for _ in range(50):
        must_poll(lease).nack(retry_after_s=0.02)
    again = [lease.poll(timeout_s=PATIENCE_S) for _ in range(50)]
    assert sorted(d.seq for d in again if d is not None) == list(range(50))


def test_a_wake_up_for_what_was_decided_meanwhile_is_ignored(still: StillMachine) -> None:
    quiver = still.start()
    lease = quiver.lease("archive")
    append(quiver, 1)
    delivery = must_poll(lease)
    delivery.nack(retry_after_s=0.01)
    delivery.ack()
    assert lease.poll(timeout_s=0.05) is None


def test_coroutines_wait_and_iterate_as_threads_do(still: StillMachine) -> None:
    quiver = still.start()
    lease = quiver.lease("archive")

    async def consume() -> list[int]:
        found = []
        async for delivery in lease:
            found.append(delivery.seq)
            delivery.ack()
            if len(found) == 3:
                lease.close()
        return found

    async def main() -> list[int]:
        consumer = asyncio.create_task(consume())
        for _ in range(3):
            await quiver.append_raw_async(b"x")
        return await asyncio.wait_for(consumer, PATIENCE_S)

    assert asyncio.run(main()) == [0, 1, 2]
    check_books(quiver)


# -------------------------------------------------------------------------- damage


def test_the_machines_clock_only_moves_when_a_test_moves_it() -> None:
    clock = SteppingClock(5)
    before = clock.monotonic_s()
    clock.jump(100)
    assert clock.monotonic_s() - before < 50
    clock.pass_time(1000)
    assert clock.monotonic_s() - before > 999
    assert clock.wall_ns() == 5 + 1_100_000_000_000
    assert calm().retention.tick_s > 3600


def test_a_leased_bundle_can_still_be_imported_by_its_old_name() -> None:
    from holdfast import quiver

    assert quiver.Delivery is quiver.LeasedBundle
