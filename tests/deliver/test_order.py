"""How a destination takes a no: what is tried again, what is set aside, and that order stays."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
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
    raises,
)
from tests.deliver.stage import Stage

from holdfast.deliver.breaker import BreakerState
from holdfast.deliver.destination import DeliverySettings, Destination, State
from holdfast.deliver.exporter import Answer, Failure, FailureClass, all_failed
from holdfast.quiver import Outcome
from holdfast.signals.event import Event

LETTERS = tuple(bytes([code]) for code in b"abcdefghijklmnopqrstuvwxyz")


def settings(**values: object) -> DeliverySettings:
    return DeliverySettings.model_validate({"retention_bytes": None, **values})


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


@pytest.mark.parametrize("failure", [TOO_LARGE, replace(BAD, shared=True)])
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


def test_an_event_that_is_refused_is_set_aside_when_the_next_one_is_taken(stage: Stage) -> None:
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


def test_the_last_event_is_set_aside_after_a_while_though_nothing_follows(stage: Stage) -> None:
    stage.append_each(b"a", b"bad")
    stage.backend.otherwise = fails_for({b"bad": BAD})

    async def play(destination: Destination) -> None:
        await stage.timer.pass_s(9.0)
        assert stage.letters.stored == []
        await stage.timer.pass_s(2.0)
        assert stage.letters.payloads == [b"bad"]
        assert stage.pending() == 0

    stage.run(play, settings(refusal_hold_s=10.0))


def test_a_destination_that_refuses_everything_stalls_and_nothing_is_set_aside(
    stage: Stage,
) -> None:
    stage.append_each(*LETTERS[:10])
    stage.backend.otherwise = fails(NOT_FOUND)

    async def play(destination: Destination) -> None:
        await stage.timer.pass_s(3600.0)
        found = stage.statistics()
        assert found.state is State.STALLED
        assert "refuses everything" in str(found.stalled_by)
        assert stage.letters.stored == []
        assert stage.pending() == 10
        # Once each, and then the first one alone, again and again.
        assert stage.backend.sends[:5] == [[b"a"], [b"b"], [b"c"], [b"a"], [b"a"]]
        assert 3 + 50 <= len(stage.backend.sends) <= 3 + 60
        stage.backend.otherwise = take
        destination.resume()
        await stage.timer.until(lambda: stage.pending() == 0)
        assert stage.statistics().state is State.RUNNING

    stage.run(play, settings(refusals_max=3, refusal_retry_s=60.0))
    assert stage.backend.taken == list(LETTERS[:10])


def test_events_that_come_far_apart_count_as_a_run_too(stage: Stage) -> None:
    stage.backend.otherwise = fails(NOT_FOUND)

    async def play(destination: Destination) -> None:
        for letter in LETTERS[:6]:
            await asyncio.to_thread(stage.append, letter)
            await stage.timer.until(lambda: True)
            await stage.timer.pass_s(30.0)
        assert stage.letters.payloads == [b"a", b"b"], "never more than refusals_max - 1"
        assert stage.statistics().state is State.STALLED
        stage.backend.otherwise = take
        await stage.timer.until(lambda: stage.pending() == 0)

    stage.run(play, settings(refusals_max=3, refusal_hold_s=10.0))
    assert stage.backend.taken == list(LETTERS[2:6])


def test_another_code_breaks_a_run(stage: Stage) -> None:
    stage.append_each(*LETTERS[:6])
    stage.backend.otherwise = fails_for(
        {b"a": BAD, b"b": BAD, b"c": NOT_FOUND, b"d": BAD, b"e": NOT_FOUND}
    )
    stage.deliver_all(settings(refusals_max=3))
    assert stage.letters.payloads == [b"a", b"b", b"c", b"d", b"e"]
    assert stage.backend.taken == [b"f"]


def test_one_event_that_is_sent_again_and_again_is_no_run(stage: Stage) -> None:
    stage.append_each(b"a", b"b")
    stage.backend.script = [fails(BAD), fails(DOWN), fails(DOWN), fails(DOWN)]
    stage.deliver_all(settings(refusals_max=2))
    assert stage.letters.payloads == [b"a"]
    assert stage.backend.taken == [b"b"]


def test_without_a_run_each_refusal_stands_at_once(stage: Stage) -> None:
    stage.append_each(*LETTERS[:12])
    stage.backend.otherwise = fails(NOT_FOUND)
    stage.deliver_all(settings(refusals_max=0))
    assert stage.letters.payloads == list(LETTERS[:12])


def test_events_that_are_too_large_for_everything_are_a_run_as_well(stage: Stage) -> None:
    stage.append_each(*LETTERS[:6])
    stage.backend.otherwise = fails(TOO_LARGE)

    async def play(destination: Destination) -> None:
        await stage.timer.until(lambda: stage.statistics().state is State.STALLED)

    stage.run(play, settings(refusals_max=4))
    assert stage.letters.stored == []


# ----------------------------------------------------------------------------- poison


@pytest.mark.parametrize("behaviour", [fails_whole({b"b": BROKEN}), None])
def test_an_event_that_breaks_the_destination_is_set_aside_while_the_next_is_taken(
    stage: Stage, behaviour: Behaviour | None
) -> None:
    def raises_for_b(backend: Backend, events: Sequence[Event]) -> Answer:
        return (raises() if events[0].payload == b"b" else take)(backend, events)

    stage.append_each(b"a", b"b", b"c", b"d")
    stage.backend.otherwise = behaviour or raises_for_b
    stage.deliver_all(settings(poison_attempts=3))
    assert stage.backend.taken == [b"a", b"c", b"d"]
    assert stage.backend.sends == [[b"a"], [b"b"], [b"b"], [b"b"], [b"c"], [b"d"]]
    (letter,) = stage.letters.stored
    assert (letter.payload, letter.reason, letter.attempts) == (b"b", "poison", 3)


def test_a_probe_follows_the_last_failure_at_once(stage: Stage) -> None:
    """Otherwise an outage that ends in between would make a dead letter of a good event."""
    stage.append_each(b"a", b"b")
    times_s: list[float] = []

    def note(backend: Backend, events: Sequence[Event]) -> Answer:
        times_s.append(stage.timer.now_s())
        return fails_whole({b"a": BROKEN})(backend, events)

    stage.backend.otherwise = note
    stage.deliver_all(settings(poison_attempts=4))
    assert stage.backend.sends == [*[[b"a"]] * 4, [b"b"]]
    assert times_s[4] == times_s[3]


def test_an_outage_is_not_poison(stage: Stage) -> None:
    stage.append_each(b"a", b"b", b"c")
    stage.backend.script = [fails(BROKEN)] * 40
    stage.deliver_all(settings(poison_attempts=3))
    assert stage.letters.stored == []
    assert stage.backend.taken == [b"a", b"b", b"c"]
    assert [b"b"] in stage.backend.sends[:5], "it was probed"


def test_only_server_errors_are_suspect(stage: Stage) -> None:
    timeout = Failure(FailureClass.TRANSIENT, "no answer", code="timeout", maybe_delivered=True)
    stage.append_each(b"a", b"b")
    stage.backend.script = [fails(timeout)] * 20
    stage.deliver_all(settings(poison_attempts=3))
    assert stage.backend.sends == [*[[b"a"]] * 21, [b"b"]]


def test_strict_order_waits_for_an_event_that_breaks_the_destination(stage: Stage) -> None:
    stage.append_each(b"a", b"b")
    stage.backend.otherwise = fails_whole({b"a": BROKEN})

    async def play(destination: Destination) -> None:
        await stage.timer.pass_s(3600.0)
        assert set(map(tuple, stage.backend.sends)) == {(b"a",)}
        stage.backend.otherwise = take
        await stage.timer.until(lambda: stage.pending() == 0)

    stage.run(play, settings(strict_order=True, poison_attempts=2))
    assert stage.backend.taken == [b"a", b"b"]
    assert stage.letters.stored == []


def test_in_a_batch_that_breaks_the_destination_the_one_at_fault_is_found(stage: Stage) -> None:
    stage.backend.max_batch_events = 8
    stage.append_each(*LETTERS[:8])
    stage.backend.otherwise = fails_whole({b"e": BROKEN})
    stage.deliver_all(settings(poison_attempts=2))
    assert stage.backend.taken == [letter for letter in LETTERS[:8] if letter != b"e"]
    assert [(one.payload, one.reason) for one in stage.letters.stored] == [(b"e", "poison")]


def test_a_probe_that_is_refused_decides_nothing(stage: Stage) -> None:
    stage.append_each(b"a", b"b", b"c")
    stage.backend.script = [fails(BROKEN), fails(BAD), fails(BROKEN), fails(UNAUTHORIZED)]
    stage.deliver_all(settings(poison_attempts=1))
    assert stage.backend.taken == [b"a", b"b", b"c"]
    assert stage.letters.stored == []


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
    stage.backend.otherwise = fails_for({b"d": TOO_LARGE})
    stage.deliver_all()
    assert stage.letters.payloads == [b"a", b"d"]
    assert sorted(stage.backend.taken) == [b"b", b"c", b"e", b"f"]
    assert stage.statistics().failed == {
        "permanent": 1,
        "transient": 1,
        "too_large": stage.statistics().failed["too_large"],
        "auth": 1,
    }


def test_a_partial_answer_may_show_that_one_is_poison(stage: Stage) -> None:
    stage.backend.max_batch_events = 2
    stage.append_each(*LETTERS[:8])
    stage.backend.otherwise = fails_for({b"a": BROKEN})
    stage.deliver_all(settings(poison_attempts=3))
    assert stage.letters.reasons == ["poison"]
    assert stage.backend.taken == list(LETTERS[1:8])
