"""A subscriber's own caps: what it may hold back, and what happens then."""

from __future__ import annotations

from typing import Any

import pytest
from tests.patience import APPEND_S
from tests.readers.setting import (
    StillMachine,
    append,
    calm,
    check_books,
    drain,
    keep,
    must_plan,
    must_poll,
    sealed,
)

from holdfast.errors import DataLoss, Overloaded
from holdfast.quiver import LeaseOptions, Outcome, Quiver, SubscriberOptions
from holdfast.quiver.base.config import KB, MB
from holdfast.quiver.base.frame import Totals
from holdfast.quiver.read.readable_bundles import ReadableBundles

# Four of these are within a cap of one megabyte, five are not.
QUARTER_BYTES = 240 * KB


def capped(still: StillMachine, options: SubscriberOptions) -> Quiver:
    quiver = still.start(calm(timeout_s=APPEND_S))
    quiver.register("one", options=options)
    return quiver


DROPPING = SubscriberOptions(max_bytes=MB, on_full="drop_oldest")
BLOCKING = SubscriberOptions(max_bytes=MB)


def test_at_its_cap_the_oldest_bundles_are_dropped_for_that_subscriber(
    still: StillMachine,
) -> None:
    quiver = capped(still, DROPPING)
    append(quiver, 7, size_bytes=QUARTER_BYTES)
    keep(quiver)
    balance = check_books(quiver)["one"]
    assert balance.outcomes[Outcome.DROPPED] == Totals(3, 3)
    assert balance.pending_bytes <= MB
    assert list(drain(quiver.lease("one"))) == [3, 4, 5, 6]


def test_what_is_dropped_in_a_row_is_one_line_and_one_loss(still: StillMachine) -> None:
    quiver = capped(still, DROPPING)
    append(quiver, 9, size_bytes=QUARTER_BYTES)
    keep(quiver)
    with pytest.raises(DataLoss) as loss:
        quiver.cursor("one").plan()
    assert loss.value.ranges == [(0, 5, "dropped")]


def test_a_cap_is_kept_bundle_by_bundle_and_no_segment_is_needed(still: StillMachine) -> None:
    quiver = capped(still, DROPPING)
    seqs = sealed(quiver, 1, bundles=3, size_bytes=QUARTER_BYTES)
    seqs += append(quiver, 3, size_bytes=QUARTER_BYTES)
    keep(quiver)
    assert [s.summary.first_seq for s in quiver.segments()] == [0], "partly resolved, still there"
    assert list(drain(quiver.lease("one"))) == seqs[2:]


def test_dropping_leaves_alone_what_is_planned_or_in_somebodys_hands(still: StillMachine) -> None:
    quiver = capped(still, DROPPING)
    cursor = quiver.cursor("one", on_data_loss="count")
    append(quiver, 2, size_bytes=QUARTER_BYTES)
    planned = must_plan(cursor)
    append(quiver, 4, size_bytes=QUARTER_BYTES)
    keep(quiver)
    assert check_books(quiver)["one"].outcomes[Outcome.DROPPED] == Totals(2, 2)
    assert [bundle.seq for bundle in cursor.read(planned)] == [0, 1]
    cursor.commit(planned)
    lease = quiver.lease("one", leasing=LeaseOptions(max_in_flight=1))
    delivery = must_poll(lease)
    assert delivery.seq == 4
    append(quiver, 4, size_bytes=QUARTER_BYTES)
    keep(quiver)
    assert delivery.ack()
    assert check_books(quiver)["one"].outcomes[Outcome.DROPPED] == Totals(4, 4)


def test_a_subscriber_that_keeps_up_loses_nothing(still: StillMachine) -> None:
    quiver = capped(still, DROPPING)
    lease = quiver.lease("one")
    for _ in range(20):
        append(quiver, 1, size_bytes=QUARTER_BYTES)
        list(drain(lease))
        keep(quiver)
    assert check_books(quiver)["one"].outcomes[Outcome.ACKED] == Totals(20, 20)


def test_what_waits_for_a_dead_subscriber_at_its_cap_is_counted_once(
    still: StillMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiver = capped(still, DROPPING)
    append(quiver, 5, size_bytes=QUARTER_BYTES)
    keep(quiver)
    counts = 0
    count = ReadableBundles.waiting

    def counted(*arguments: Any) -> tuple[Totals, int]:
        nonlocal counts
        counts += 1
        return count(*arguments)

    monkeypatch.setattr(ReadableBundles, "waiting", counted)
    for _ in range(20):
        append(quiver, 2, size_bytes=QUARTER_BYTES)
        keep(quiver)
    assert counts == 0
    balance = check_books(quiver)["one"]
    assert balance.outcomes[Outcome.DROPPED] == Totals(41, 41)
    assert list(drain(quiver.lease("one"))) == [41, 42, 43, 44]


def test_what_a_subscriber_resolved_meanwhile_is_not_dropped_in_its_place(
    still: StillMachine,
) -> None:
    quiver = capped(still, DROPPING)
    append(quiver, 5, size_bytes=QUARTER_BYTES)
    keep(quiver)
    with quiver.lease("one") as lease:
        for _ in range(3):
            must_poll(lease).ack()
    append(quiver, 3, size_bytes=QUARTER_BYTES)
    keep(quiver)
    balance = check_books(quiver)["one"]
    assert balance.outcomes[Outcome.DROPPED] == Totals(1, 1)
    assert list(drain(quiver.lease("one"))) == [4, 5, 6, 7]


def test_what_is_too_old_for_one_subscriber_expires_for_that_one_alone(
    still: StillMachine,
) -> None:
    quiver = capped(still, SubscriberOptions(max_age_s=60.0, on_full="drop_oldest"))
    quiver.register("patient")
    append(quiver, 2, events=3)
    still.clock.pass_time(61)
    append(quiver, 1)
    keep(quiver)
    balances = check_books(quiver)
    assert balances["one"].outcomes[Outcome.EXPIRED] == Totals(2, 6)
    assert balances["one"].pending == Totals(1, 1)
    assert balances["patient"].pending == Totals(3, 7)


@pytest.mark.parametrize("jump_s", [86400.0, -86400.0])
def test_a_clock_that_jumps_expires_nothing(still: StillMachine, jump_s: float) -> None:
    quiver = capped(still, SubscriberOptions(max_age_s=60.0, on_full="drop_oldest"))
    append(quiver, 1)
    still.clock.jump(jump_s)
    append(quiver, 1)
    keep(quiver)
    assert check_books(quiver)["one"].pending == Totals(2, 2)


def test_a_blocking_subscriber_at_its_cap_refuses_the_producer_and_is_named(
    still: StillMachine,
) -> None:
    quiver = capped(still, BLOCKING)
    append(quiver, 5, size_bytes=QUARTER_BYTES)
    for _ in range(2):
        with pytest.raises(Overloaded, match=r"'one' is more than .* bytes behind") as e:
            append(quiver, 1)
        assert e.value.stored == "no"
    assert check_books(quiver)["one"].pending == Totals(5, 5)
    lease = quiver.lease("one")
    delivery = must_poll(lease)
    delivery.ack()
    append(quiver, 1)
    assert quiver.statistics().retention.throttled == 2


def test_a_blocking_subscriber_that_is_too_late_refuses_the_producer(still: StillMachine) -> None:
    quiver = capped(still, SubscriberOptions(max_age_s=60.0))
    lease = quiver.lease("one")
    append(quiver, 2)
    still.clock.pass_time(61)
    with pytest.raises(Overloaded, match=r"subscriber 'one' is more than 60.0 s behind"):
        append(quiver, 1)
    assert list(drain(lease)) == [0, 1]
    append(quiver, 1)
    still.clock.pass_time(30)
    append(quiver, 1)
    check_books(quiver)


def test_who_waits_for_a_blocking_subscriber_is_let_in_when_it_is_unregistered(
    still: StillMachine,
) -> None:
    quiver = capped(still, BLOCKING)
    append(quiver, 5, size_bytes=QUARTER_BYTES)
    quiver.unregister("one")
    append(quiver, 1)


def test_options_changed_while_it_is_full_count_at_once(still: StillMachine) -> None:
    quiver = capped(still, BLOCKING)
    append(quiver, 5, size_bytes=QUARTER_BYTES)
    with pytest.raises(Overloaded):
        append(quiver, 1)
    quiver.set_options("one", SubscriberOptions(max_bytes=2 * MB))
    append(quiver, 1)
    quiver.set_options("one", DROPPING)
    keep(quiver)
    assert check_books(quiver)["one"].outcomes[Outcome.DROPPED].bundles > 0


def test_the_next_one_of_that_name_is_not_measured_by_what_the_last_one_held(
    still: StillMachine,
) -> None:
    quiver = capped(still, BLOCKING)
    quiver.register("keeper")
    append(quiver, 4, size_bytes=QUARTER_BYTES)
    list(drain(quiver.lease("one")))
    append(quiver, 1)  # its lag is known to be small
    quiver.unregister("one")
    quiver.register("one", options=BLOCKING)
    append(quiver, 1, size_bytes=QUARTER_BYTES)
    with pytest.raises(Overloaded, match="'one'"):
        append(quiver, 1)


def test_a_replay_makes_a_blocking_subscriber_full_again(still: StillMachine) -> None:
    quiver = capped(still, BLOCKING)
    quiver.register("keeper")
    lease = quiver.lease("one")
    append(quiver, 4, size_bytes=QUARTER_BYTES)
    list(drain(lease))
    append(quiver, 2, size_bytes=QUARTER_BYTES)
    quiver.replay("one", 0, 4)
    with pytest.raises(Overloaded, match="'one'"):
        append(quiver, 1)
    check_books(quiver)


def test_heartbeats_pass_a_full_quiver(still: StillMachine) -> None:
    quiver = capped(still, BLOCKING)
    append(quiver, 5, size_bytes=QUARTER_BYTES)
    quiver.heartbeat("p", 1)
    assert check_books(quiver)["one"].pending == Totals(6, 5)


def test_caps_hold_over_a_restart(still: StillMachine) -> None:
    quiver = capped(still, BLOCKING)
    append(quiver, 5, size_bytes=QUARTER_BYTES)
    quiver = still.restart(calm(timeout_s=APPEND_S))
    with pytest.raises(Overloaded, match="'one'"):
        append(quiver, 1)
