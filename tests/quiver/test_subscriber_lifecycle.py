"""The life of a subscriber: registered, attached, absent, orphaned, gone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from tests.quiver.machine import SEGMENTS, START_NS, Machine
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

from holdfast.errors import BadInput, StorageFailed, UnknownPosition, UnknownSubscriber
from holdfast.quiver import Outcome, Quiver, RetentionConfig, SubscriberOptions
from holdfast.quiver.base.config import MB
from holdfast.quiver.base.frame import Totals
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.keep.orphans import ORPHAN_GRACE_S
from holdfast.seam.faulty import Fault, FaultKind

START = datetime.fromtimestamp(START_NS / 1e9, UTC)


def delivered(quiver: Quiver, name: str) -> list[int]:
    return list(drain(quiver.lease(name)))


# ------------------------------------------------------------------------ registering


def test_registering_twice_is_refused_and_attaching_twice_is_not(still: StillMachine) -> None:
    quiver = still.start()
    quiver.register("one")
    with pytest.raises(BadInput, match="'one' is registered"):
        quiver.register("one")
    quiver.lease("one")
    quiver.cursor("one")
    assert quiver.subscribers() == ("one",)


@pytest.mark.parametrize("name", ["a/b", "", "..", "a b", "x" * 65])
def test_a_name_with_a_slash_is_refused_by_every_way_in(still: StillMachine, name: str) -> None:
    quiver = still.start()
    for register in (quiver.register, quiver.cursor, quiver.lease):
        with pytest.raises(BadInput, match="is not a subscriber's name"):
            register(name)
    assert quiver.subscribers() == ()


def test_whoever_is_not_registered_is_unknown(still: StillMachine) -> None:
    quiver = still.start()
    for ask in (
        lambda: quiver.balance("nobody"),
        lambda: quiver.unregister("nobody"),
        lambda: quiver.set_options("nobody", SubscriberOptions()),
        lambda: quiver.replay("nobody", 0, 1),
    ):
        with pytest.raises(UnknownSubscriber, match="'nobody'"):
            ask()


def test_subscribers_start_at_the_oldest_the_latest_or_a_moment(still: StillMachine) -> None:
    quiver = still.start()
    sealed(quiver, 1, bundles=2)
    still.clock.jump(60)
    append(quiver, 2)
    still.clock.jump(60)
    quiver.register("oldest", start="oldest")
    quiver.register("latest", start="latest")
    quiver.register("since", start=START + timedelta(seconds=30))
    quiver.register("future", start=START + timedelta(days=30))
    append(quiver, 1)
    assert delivered(quiver, "oldest") == [0, 1, 2, 3, 4]
    assert delivered(quiver, "latest") == [4]
    assert delivered(quiver, "since") == [2, 3, 4]
    assert delivered(quiver, "future") == [4]
    accepted = {name: balance.accepted for name, balance in check_books(quiver).items()}
    assert accepted == {
        "oldest": Totals(5, 5),
        "latest": Totals(1, 1),
        "since": Totals(3, 3),
        "future": Totals(1, 1),
    }


def test_a_start_before_a_clock_that_went_back_includes_everything_since(
    still: StillMachine,
) -> None:
    quiver = still.start()
    append(quiver, 1)
    still.clock.jump(3600)
    append(quiver, 1)
    still.clock.jump(-7200)
    append(quiver, 1)
    quiver.register("one", start=START + timedelta(seconds=60))
    assert delivered(quiver, "one") == [1, 2], "what came later is not left out"
    check_books(quiver)


@pytest.mark.parametrize("start", ["newest", 5, None, datetime(2026, 1, 1)])  # noqa: DTZ001
def test_an_unknown_start_is_refused(still: StillMachine, start: object) -> None:
    quiver = still.start()
    with pytest.raises(BadInput, match="start is"):
        quiver.register("one", start=start)  # type: ignore[arg-type]
    assert quiver.subscribers() == ()


def test_a_subscriber_registered_after_deletions_starts_with_what_is_left(
    still: StillMachine,
) -> None:
    quiver = still.start()
    lease = quiver.lease("one")
    sealed(quiver, 2)
    first = must_poll(lease)
    first.ack()
    keep(quiver)
    quiver.register("two")
    assert check_books(quiver)["two"].accepted == Totals(1, 1)
    assert delivered(quiver, "two") == [1]


def test_a_registration_that_cannot_be_made_durable_is_told(still: StillMachine) -> None:
    quiver = still.start(faults=[Fault(QuiverPoint.LEDGER_WRITE, FaultKind.EIO)])
    with pytest.raises(StorageFailed):
        quiver.register("one")
    assert quiver.subscribers() == ()
    quiver.register("one")


def test_subscribers_have_independent_progress(still: StillMachine) -> None:
    quiver = still.start()
    one, two = quiver.lease("one"), quiver.cursor("two")
    append(quiver, 4)
    delivery = must_poll(one)
    delivery.ack()
    planned = must_plan(two, 3)
    two.commit(planned)
    quiver = still.restart()
    assert delivered(quiver, "one") == [1, 2, 3]
    assert delivered(quiver, "two") == [3]
    check_books(quiver)


# ---------------------------------------------------------------------------- options


def test_options_are_kept_and_changed_by_attaching_with_others(still: StillMachine) -> None:
    quiver = still.start()
    first = SubscriberOptions(max_bytes=5 * MB)
    second = SubscriberOptions(max_age_s=60.0, on_full="drop_oldest")
    quiver.lease("one", options=first)
    quiver = still.restart()
    state = quiver._engine.ledger.subscriber("one")
    assert state.options == first
    quiver.lease("one")
    assert state.options == first
    quiver.cursor("one", options=second)
    assert state.options == second
    quiver.set_options("one", first)
    assert still.restart()._engine.ledger.subscriber("one").options == first


def test_a_cap_smaller_than_one_segment_is_refused(still: StillMachine) -> None:
    quiver = still.start()
    small = SubscriberOptions(max_bytes=MB - 1)
    with pytest.raises(BadInput, match="less than one segment"):
        quiver.register("one", options=small)
    quiver.register("one")
    for change in (
        lambda: quiver.set_options("one", small),
        lambda: quiver.lease("one", options=small),
    ):
        with pytest.raises(BadInput, match="less than one segment"):
            change()
    assert quiver._engine.ledger.subscriber("one").options == SubscriberOptions()


# ------------------------------------------------------------------- absent and orphaned


def test_a_registered_subscriber_pins_its_data_while_it_is_absent(still: StillMachine) -> None:
    """Upstream pinned nothing that was sealed while a subscriber was inactive."""
    quiver = still.start()
    quiver.register("away")
    lease = quiver.lease("here")
    for _ in range(3):
        sealed(quiver, 1)
        list(drain(lease))
        keep(quiver)
        quiver = still.restart()
        lease = quiver.lease("here")
    assert len(quiver.segments()) == 3
    assert len(delivered(quiver, "away")) == 3
    check_books(quiver)


DAY_S = 86_400.0


def orphaning(ttl_s: float | None = 3600.0) -> RetentionConfig:
    return RetentionConfig(orphan_ttl_s=ttl_s)


def test_a_subscriber_nobody_attached_to_for_long_is_given_up(still: StillMachine) -> None:
    quiver = still.start(calm(orphaning()))
    quiver.register("never")
    with quiver.lease("once"):
        pass
    attached = quiver.lease("attached")
    sealed(quiver, 1)
    still.clock.pass_time(3000)
    keep(quiver)
    assert len(quiver.subscribers()) == 3
    still.clock.pass_time(601)
    keep(quiver)
    assert quiver.subscribers() == ("attached",)
    assert list(drain(attached)) == [0]
    keep(quiver)
    assert quiver.segments() == ()


def test_whoever_was_attached_when_the_process_died_is_absent_since_then(
    still: StillMachine,
) -> None:
    quiver = still.start(calm(orphaning()))
    quiver.lease("one")
    still.clock.pass_time(10_000)
    quiver = still.restart(calm(orphaning()))
    keep(quiver)
    assert quiver.subscribers() == ("one",)
    still.clock.pass_time(3601)
    keep(quiver)
    assert quiver.subscribers() == ()


def test_time_to_live_goes_on_over_restarts(still: StillMachine) -> None:
    quiver = still.start(calm(orphaning()))
    quiver.register("one")
    for _ in range(3):
        still.clock.pass_time(1150)
        keep(quiver)
        assert quiver.subscribers() == ("one",)
        quiver = still.restart(calm(orphaning()))
    still.clock.pass_time(601)
    keep(quiver)
    assert quiver.subscribers() == ()


def test_eight_days_in_a_drawer_orphan_nobody(still: StillMachine) -> None:
    """With a time to live of a week, the subscribers went within half a second of the start."""
    retention = RetentionConfig(orphan_ttl_s=7 * DAY_S)
    quiver = still.start(calm(retention))
    quiver.register("weekly")
    fast = quiver.lease("fast")
    sealed(quiver, 1, bundles=10)
    for clean in (True, False):
        still.clock.pass_time(4 * DAY_S)
        keep(quiver)
        if clean:
            quiver.close()
        else:
            still.kill()
        still.clock.pass_time(8 * DAY_S)  # nobody could attach
        quiver = still.start(calm(retention))
        keep(quiver)
        assert quiver.subscribers() == ("weekly", "fast")
        fast = quiver.lease("fast")
        list(drain(fast))
        keep(quiver)
        assert quiver.scan().read_all().num_rows == 10
        if clean:
            with quiver.lease("weekly"):  # it was here: its absence counts from now on
                pass
    still.clock.pass_time(4 * DAY_S)  # with those before the crash it is more than a week
    keep(quiver)
    assert quiver.subscribers() == ("fast",)


def test_by_default_nobody_is_given_up(still: StillMachine) -> None:
    quiver = still.start(calm())
    quiver.register("weekly")
    still.clock.pass_time(8 * DAY_S)
    keep(quiver)
    quiver = still.restart(calm())
    still.clock.pass_time(800 * DAY_S)
    keep(quiver)
    assert quiver.subscribers() == ("weekly",)


def test_an_orphan_has_time_to_attach_after_a_start(still: StillMachine) -> None:
    quiver = still.start(calm(orphaning()))
    quiver.register("one")
    still.clock.pass_time(3590)
    quiver.close()
    quiver = still.start(calm(orphaning()))
    still.clock.pass_time(ORPHAN_GRACE_S - 60)
    keep(quiver)
    assert quiver.subscribers() == ("one",)
    still.clock.pass_time(120)
    keep(quiver)
    assert quiver.subscribers() == ()


def test_without_a_time_to_live_nobody_is_given_up(still: StillMachine) -> None:
    quiver = still.start(calm(orphaning(None)))
    quiver.register("one")
    still.clock.pass_time(100 * 365 * 86400.0)
    keep(quiver)
    assert quiver.subscribers() == ("one",)


@pytest.mark.parametrize("jump_s", [365 * 86400.0, -365 * 86400.0])
def test_nobody_is_orphaned_because_the_clock_jumps(still: StillMachine, jump_s: float) -> None:
    quiver = still.start(calm(orphaning()))
    quiver.register("before")
    still.clock.jump(jump_s)
    with quiver.lease("after"):
        pass
    keep(quiver)
    still.clock.jump(-jump_s)
    keep(quiver)
    assert quiver.subscribers() == ("before", "after")


# ----------------------------------------------------------------------- unregistering


def test_unregistering_records_what_still_waited_as_given_up(still: StillMachine) -> None:
    quiver = still.start()
    lease = quiver.lease("one")
    append(quiver, 5, events=2)
    delivery = must_poll(lease)
    delivery.ack()
    state = quiver._engine.ledger.subscriber("one")
    quiver.unregister("one", reason="no longer needed")
    assert state.counts == {Outcome.ACKED: Totals(1, 2), Outcome.GIVEN_UP: Totals(4, 8)}
    assert quiver.subscribers() == ()
    assert still.restart(power=True).subscribers() == ()


def test_unregistering_frees_what_only_that_subscriber_held(still: StillMachine) -> None:
    quiver = still.start()
    quiver.register("dead")
    lease = quiver.lease("alive")
    sealed(quiver, 2)
    list(drain(lease))
    keep(quiver)
    assert len(quiver.segments()) == 2
    quiver.unregister("dead")
    keep(quiver)
    assert quiver.segments() == ()
    assert still.disk.list(SEGMENTS) == []


def test_one_who_comes_back_after_unregistering_begins_anew(still: StillMachine) -> None:
    quiver = still.start()
    append(quiver, 3)
    assert delivered(quiver, "one") == [0, 1, 2]
    quiver.unregister("one")
    assert delivered(quiver, "one") == [0, 1, 2]
    check_books(quiver)


def test_unregistering_a_paused_subscriber_inside_a_bundle(still: StillMachine) -> None:
    quiver = still.start()
    cursor = quiver.cursor("one")
    append(quiver, 1, events=4)
    planned = must_plan(cursor)
    cursor.commit(planned, through=planned.start._replace(row=1))
    cursor.pause()
    state = quiver._engine.ledger.subscriber("one")
    quiver.unregister("one")
    assert state.counts == {Outcome.ACKED: Totals(0, 1), Outcome.GIVEN_UP: Totals(1, 3)}


# ---------------------------------------------------------------------------- replaying


@pytest.mark.parametrize(("first", "end"), [(0, 5), (3, 3), (5, 4), (-1, 5)])
def test_a_replay_of_an_impossible_range_is_refused(
    still: StillMachine, first: int, end: int
) -> None:
    quiver = still.start()
    append(quiver, 2)
    quiver.register("one", start="latest")
    append(quiver, 3)
    with pytest.raises(UnknownPosition, match="no range from"):
        quiver.replay("one", first, end)


def test_a_replay_hands_out_again_what_is_still_there(still: StillMachine) -> None:
    quiver = still.start()
    quiver.register("keeper")
    quiver.lease("keeper")
    lease = quiver.lease("one")
    sealed(quiver, 3, bundles=2)
    assert len(list(drain(lease))) == 6
    must_poll(quiver.lease("keeper"))
    assert quiver.replay("one", 1, 100) == Totals(5, 5)
    assert list(drain(lease)) == [1, 2, 3, 4, 5]
    check_books(quiver)


def test_a_replay_of_what_is_gone_hands_out_nothing_and_holds_nothing_back(
    still: StillMachine,
) -> None:
    quiver = still.start()
    lease = quiver.lease("one")
    sealed(quiver, 2)
    list(drain(lease))
    keep(quiver)
    assert quiver.replay("one", 0, 2) == Totals(0, 0)
    assert lease.poll() is None
    sealed(quiver, 1)
    assert list(drain(lease)) == [2]
    keep(quiver)
    assert quiver.segments() == ()
    quiver = still.restart()
    assert check_books(quiver)["one"].outcomes[Outcome.DAMAGED] == Totals(0, 0)


def test_statistics_tell_who_is_there_and_how_far(machine: Machine) -> None:
    quiver = machine.start()
    lease = quiver.lease("one")
    append(quiver, 4, events=2)
    deliveries = [lease.poll() for _ in range(3)]
    for delivery in deliveries[1:]:
        assert delivery is not None
        delivery.ack()
    (one,) = quiver.statistics().subscribers
    assert (one.name, one.attached, one.paused) == ("one", True, False)
    assert (one.high_water_seq, one.gap_ranges) == (0, 1)
    assert (one.accepted, one.pending) == (Totals(4, 8), Totals(2, 4))
    assert one.outcomes["acked"] == Totals(2, 4)
    lease.close()
    (one,) = quiver.statistics().subscribers
    assert not one.attached
