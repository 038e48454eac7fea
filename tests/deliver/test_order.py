"""How a destination takes a no: what is tried again, what is set aside, and that order stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from tests.deliver.backend import (
    BAD,
    BROKEN,
    DOWN,
    NOT_FOUND,
    TOO_LARGE,
    UNAUTHORIZED,
    Backend,
    Behaviour,
    fails,
    fails_for,
    fails_whole,
)
from tests.deliver.stage import Stage
from tests.deliver.tuned import tuned_settings

from holdfast.deliver.destination import DeliverySettings, Destination, State
from holdfast.deliver.exporter import Answer, Failure, all_failed
from holdfast.deliver.sending import BreakerState
from holdfast.quiver import Outcome, Position
from holdfast.signals.event import Event

LETTERS = tuple(bytes([code]) for code in b"abcdefghijklmnopqrstuvwxyz")


def settings(**values: object) -> DeliverySettings:
    return tuned_settings(**{"retention_size": None, **values})


def take(backend: Backend, events: Sequence[Event]) -> Answer:
    return backend.take(events)


# ------------------------------------------------------------------------- transient


def test_what_fails_for_a_while_is_sent_until_it_is_taken_and_nothing_overtakes_it(
    stage: Stage,
) -> None:
    stage.append_each(b"a", b"b", b"c")
    stage.backend.script = [take, *[fails(DOWN)] * 30]
    stage.deliver_all()
    assert stage.backend.taken == [b"a", b"b", b"c"]
    assert stage.backend.sends == [[b"a"], *[[b"b"]] * 31, [b"c"]]
    assert stage.letters.stored == []


def test_a_retry_after_is_kept_to(stage: Stage) -> None:
    stage.append_each(b"a")
    stage.backend.script = [fails(replace(DOWN, retry_after_s=200.0))]
    begin_s = stage.timer.now_s()
    stage.deliver_all()
    assert stage.timer.now_s() - begin_s >= 200.0


@pytest.mark.parametrize("asked_s", [1e9, float("inf"), float("nan"), -5.0])
def test_a_retry_after_beyond_belief_is_bounded(stage: Stage, asked_s: float) -> None:
    stage.append_each(b"a")
    stage.backend.script = [fails(replace(DOWN, retry_after_s=asked_s))]
    begin_s = stage.timer.now_s()
    stage.deliver_all(settings(max_retry_after_s=100.0))
    assert stage.timer.now_s() - begin_s <= 101.0


def test_the_breaker_opens_and_a_single_event_tries_the_destination(stage: Stage) -> None:
    stage.backend.max_batch_events = 10
    stage.append_each(*LETTERS[:20])
    stage.backend.otherwise = fails(DOWN)

    async def play(destination: Destination) -> None:
        await stage.timer.until(lambda: stage.statistics().breaker is BreakerState.OPEN)
        assert stage.statistics().state is State.BACKING_OFF
        assert [len(sent) for sent in stage.backend.sends] == [10, 10, 10]
        stage.backend.otherwise = take
        await stage.timer.until(lambda: stage.pending() == 0)
        assert stage.statistics().breaker is BreakerState.CLOSED
        assert stage.statistics().breaker_opened_total == 1

    stage.run(play, settings(breaker_failures=3, breaker_open_s=50.0))
    assert stage.backend.sends[3:] == [[b"a"], list(LETTERS[1:11]), list(LETTERS[11:20])]


# ------------------------------------------------------------------------------- auth


def test_refused_credentials_stop_everything_until_it_is_time_to_try_again(stage: Stage) -> None:
    stage.append_each(b"a", b"b")
    stage.backend.script = [fails(UNAUTHORIZED), fails(UNAUTHORIZED)]

    async def play(destination: Destination) -> None:
        await stage.timer.pass_s(299.0)
        assert stage.statistics().state is State.AUTH_FAILED
        assert stage.backend.sends == [[b"a"]]
        await stage.timer.pass_s(2.0)
        assert stage.backend.sends == [[b"a"], [b"a"]]
        await stage.timer.pass_s(300.0)
        assert stage.statistics().state is State.RUNNING

    stage.run(play, settings(auth_retry_s=300.0))
    assert stage.backend.taken == [b"a", b"b"]
    assert stage.letters.stored == []


def test_a_resume_tries_refused_credentials_at_once(stage: Stage) -> None:
    stage.append_each(b"a", b"b")
    stage.backend.script = [fails(UNAUTHORIZED)]

    async def play(destination: Destination) -> None:
        await stage.timer.quiet()
        assert stage.statistics().state is State.AUTH_FAILED
        before_s = stage.timer.now_s()
        destination.resume()
        await stage.timer.until(lambda: stage.pending() == 0)
        assert stage.timer.now_s() == before_s

    stage.run(play)


# -------------------------------------------------------------------------- too large


def test_a_batch_that_is_too_large_is_halved_until_it_fits(stage: Stage) -> None:
    stage.backend.max_batch_events = 8
    stage.append_each(*LETTERS[:8])

    def at_most_two(backend: Backend, events: Sequence[Event]) -> Answer:
        return all_failed(len(events), TOO_LARGE) if len(events) > 2 else backend.take(events)

    stage.backend.otherwise = at_most_two
    stage.deliver_all()
    assert stage.backend.taken == list(LETTERS[:8])
    assert [len(sent) for sent in stage.backend.sends[:3]] == [8, 4, 2]
    assert stage.letters.stored == []


@pytest.mark.parametrize("behave", [fails_whole, fails_for])
def test_one_event_that_is_too_large_is_set_aside_alone(stage: Stage, behave: type[object]) -> None:
    stage.backend.max_batch_events = 8
    stage.append_each(*LETTERS[:8])
    stage.backend.otherwise = behave({b"c": TOO_LARGE})  # type: ignore[call-arg,assignment]
    stage.deliver_all()
    assert sorted(stage.backend.taken) == [letter for letter in LETTERS[:8] if letter != b"c"]
    assert [(one.payload, one.reason) for one in stage.letters.stored] == [(b"c", "too_large")]


@pytest.mark.parametrize("failure", [TOO_LARGE, BAD])
def test_what_was_refused_because_of_its_company_is_sent_alone(
    stage: Stage, failure: Failure
) -> None:
    stage.backend.max_batch_events = 4
    stage.append_each(*LETTERS[:6])

    def not_in_company(backend: Backend, events: Sequence[Event]) -> Answer:
        return (fails_for({b"b": failure}) if len(events) > 1 else take)(backend, events)

    stage.backend.otherwise = not_in_company
    stage.deliver_all()
    assert sorted(stage.backend.taken) == list(LETTERS[:6])
    assert stage.letters.stored == []


# -------------------------------------------------------------------------- permanent


def test_an_event_that_is_refused_alone_is_set_aside_at_once(stage: Stage) -> None:
    stage.append_each(b"a", b"bad", b"b")
    stage.backend.otherwise = fails_for({b"bad": BAD})
    stage.deliver_all()
    assert stage.backend.taken == [b"a", b"b"]
    assert stage.backend.sends.count([b"bad"]) == 1
    assert stage.letters.reasons == ["permanent"]
    assert stage.letters.stored[0].problems == ({"rule": "400", "message": "bad request"},)
    assert stage.outcomes() == {Outcome.ACKED: (2, 2), Outcome.DEAD_LETTERED: (1, 1)}
    assert stage.statistics().dead_lettered_by_reason == {"permanent": 1}


def test_an_event_in_the_middle_of_a_request_is_set_aside(stage: Stage) -> None:
    stage.append(b"a", b"bad", b"b", b"bad", b"c")
    stage.backend.otherwise = fails_for({b"bad": BAD})
    stage.deliver_all()
    assert {outcome: counts.events for outcome, counts in stage.outcomes().items()} == {
        Outcome.ACKED: 3,
        Outcome.DEAD_LETTERED: 2,
    }


def test_in_a_batch_that_is_refused_as_a_whole_the_one_at_fault_is_found(stage: Stage) -> None:
    stage.backend.max_batch_events = 16
    stage.append_each(*LETTERS[:16])
    stage.backend.otherwise = fails_whole({b"k": BAD})
    stage.deliver_all()
    assert stage.backend.taken == [letter for letter in LETTERS[:16] if letter != b"k"]
    assert stage.letters.payloads == [b"k"]


@pytest.mark.parametrize("behave", [fails_whole, fails_for])
def test_what_was_refused_in_company_counts_only_when_it_is_refused_alone(
    stage: Stage, behave: Callable[[dict[bytes, Failure]], Behaviour]
) -> None:
    stage.backend.max_batch_events = 8
    stage.append_each(*LETTERS[:8])
    stage.backend.otherwise = behave({b"c": BAD})
    stage.deliver_all()
    assert [b"c"] in stage.backend.sends
    assert stage.letters.payloads == [b"c"]
    assert stage.letters.stored[0].attempts > 1


def test_a_destination_that_does_not_know_its_path_skips_nothing_however_long_it_takes(
    stage: Stage,
) -> None:
    """An ingress in a rolling update answers 404 to everything; events come one at a time."""
    stage.backend.otherwise = fails(NOT_FOUND)

    async def play(destination: Destination) -> None:
        for letter in LETTERS[:6]:
            await asyncio.to_thread(stage.append, letter)
            await stage.timer.until(lambda: True)
            await stage.timer.pass_s(3600.0)
        assert stage.letters.stored == []
        assert set(map(tuple, stage.backend.sends)) == {(b"a",)}
        held = stage.statistics().held
        assert held is not None
        assert (held.seq, held.row, held.code, held.reason) == (0, 0, "404", "not found")
        assert held.attempts == len(stage.backend.sends)
        assert 5 * 3600 < held.age_s <= 6 * 3600
        stage.backend.otherwise = take
        await stage.timer.until(lambda: stage.pending() == 0)
        assert stage.statistics().held is None

    stage.run(play)
    assert stage.backend.taken == list(LETTERS[:6])


def test_an_event_that_breaks_the_destination_is_tried_for_ever(stage: Stage) -> None:
    stage.append_each(b"a", b"b")
    stage.backend.otherwise = fails_whole({b"a": BROKEN})

    async def play(destination: Destination) -> None:
        await stage.timer.pass_s(10_000.0)
        assert set(map(tuple, stage.backend.sends)) == {(b"a",)}
        stage.backend.otherwise = take
        await stage.timer.until(lambda: stage.pending() == 0)

    stage.run(play)
    assert stage.backend.taken == [b"a", b"b"]
    assert stage.letters.stored == []


def test_a_skip_is_answered_although_the_event_is_taken_and_its_lane_gone_by_then(
    stage: Stage,
) -> None:
    """Asked for while the event was being sent: the send won, and nothing was left to look."""
    seq = stage.append(b"a")
    skips: list[asyncio.Task[bool]] = []

    def play_with(destination: Destination) -> Callable[[Backend, Sequence[Event]], Answer]:
        def taken_after_a_skip(backend: Backend, events: Sequence[Event]) -> Answer:
            skip = destination.skip(Position(seq, 0), "by hand")
            skips.append(asyncio.ensure_future(skip))
            return backend.take(events)

        return taken_after_a_skip

    stage.backend.otherwise = fails(DOWN)

    async def play(destination: Destination) -> None:
        await stage.timer.until(lambda: destination.holds(Position(seq, 0)))
        stage.backend.script = [fails(DOWN), play_with(destination)]
        await stage.timer.until(lambda: bool(skips) and skips[0].done())
        assert not skips[0].result()

    stage.run(play)
    assert stage.backend.taken == [b"a"]
    assert stage.letters.stored == []


def test_what_is_before_an_event_that_breaks_the_destination_need_not_wait_with_it(
    stage: Stage,
) -> None:
    stage.backend.max_batch_events = 8
    stage.append_each(*LETTERS[:8])
    stage.backend.otherwise = fails_whole({b"e": BROKEN})

    async def play(destination: Destination) -> None:
        await stage.timer.pass_s(1000.0)
        assert stage.backend.taken == list(LETTERS[:4])
        held = stage.statistics().held
        assert held is not None
        assert held.seq == 4

    stage.run(play)


# ---------------------------------------------------------------------- partial answers


def test_what_was_taken_behind_a_failed_event_is_not_sent_again(stage: Stage) -> None:
    stage.backend.max_batch_events = 4
    stage.append_each(*LETTERS[:6])
    stage.backend.script = [fails_for({b"b": DOWN}), fails_for({b"b": DOWN})]
    stage.deliver_all()
    assert stage.backend.sends == [list(LETTERS[:4]), [b"b", b"e", b"f"], [b"b"]]
    assert stage.backend.taken == [b"a", b"c", b"d", b"e", b"f", b"b"]


def test_what_was_taken_behind_a_failed_event_is_in_the_ledger_before_that_is(
    stage: Stage,
) -> None:
    stage.backend.max_batch_events = 4
    stage.append_each(*LETTERS[:3])
    stage.append(b"d", b"e", b"f")
    stage.backend.otherwise = fails_for({b"b": DOWN, b"e": DOWN})

    async def play(destination: Destination) -> None:
        await stage.timer.pass_s(60.0)
        # f is behind e in the same request, and waits for it.
        assert stage.events(Outcome.ACKED) == 3
        assert stage.backend.taken == [b"a", b"c", b"d", b"f"]

    stage.run(play)
    stage.kill()
    stage.backend.taken.clear()
    stage.backend.otherwise = take
    stage.deliver_all()
    assert stage.backend.taken == [b"b", b"e", b"f"]


def test_each_event_of_a_batch_may_fail_in_its_own_way(stage: Stage) -> None:
    stage.backend.max_batch_events = 6
    stage.append_each(*LETTERS[:6])
    answers = {b"a": BAD, b"b": DOWN, b"d": TOO_LARGE, b"e": UNAUTHORIZED}
    stage.backend.script = [fails_for(answers)]
    stage.backend.otherwise = fails_for({b"a": BAD, b"d": TOO_LARGE})
    stage.deliver_all()
    assert stage.letters.payloads == [b"a", b"d"]
    assert sorted(stage.backend.taken) == [b"b", b"c", b"e", b"f"]
    assert stage.statistics().failed == {
        "permanent": 2,
        "transient": 1,
        "too_large": stage.statistics().failed["too_large"],
        "auth": 1,
    }
