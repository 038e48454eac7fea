"""The breaker: closed, open, half open with one probe."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.deliver.sending import Breaker, BreakerState, Cause


def opened() -> Breaker:
    breaker = Breaker(failures_max=3, open_s=10.0)
    for _ in range(3):
        assert not breaker.begin()
        breaker.failed(100.0)
    return breaker


def test_it_opens_after_some_failures_in_a_row() -> None:
    breaker = Breaker(failures_max=3, open_s=10.0)
    for _ in range(5):
        breaker.failed(0.0)
        breaker.failed(0.0)
        breaker.succeeded()
    assert breaker.state is BreakerState.CLOSED
    breaker = opened()
    assert (breaker.state, breaker.cause) == (BreakerState.OPEN, Cause.FAILURES)
    assert breaker.seconds_closed_off(104.0) == 6.0


def test_then_one_probe_is_let_through() -> None:
    breaker = opened()
    assert breaker.seconds_closed_off(110.0) == 0.0
    assert breaker.state is BreakerState.HALF_OPEN
    assert breaker.begin()
    assert breaker.seconds_closed_off(1000.0) is None, "not a second one"
    breaker.end(was_probe=True)
    breaker.succeeded()
    assert (breaker.state, breaker.cause) == (BreakerState.CLOSED, None)
    assert breaker.seconds_closed_off(110.0) == 0.0


def test_a_probe_that_fails_opens_it_again_at_once() -> None:
    breaker = opened()
    breaker.seconds_closed_off(110.0)
    breaker.begin()
    breaker.end(was_probe=True)
    breaker.failed(111.0)
    assert breaker.seconds_closed_off(111.0) == 10.0
    assert breaker.opened_total == 2


def test_an_alarm_opens_it_for_a_time_of_its_own() -> None:
    breaker = Breaker(failures_max=3, open_s=10.0)
    breaker.trip(Cause.AUTH, 0.0, 300.0)
    breaker.failed(1.0)  # an answer that was still under way
    assert (breaker.cause, breaker.seconds_closed_off(100.0)) == (Cause.AUTH, 200.0)
    breaker.try_now()
    assert breaker.seconds_closed_off(100.0) == 0.0


def test_an_answer_that_comes_late_may_close_it_while_a_probe_is_under_way() -> None:
    breaker = opened()
    breaker.seconds_closed_off(110.0)
    assert breaker.begin()
    breaker.succeeded()
    assert not breaker.begin(), "all may send again"
    for _ in range(3):
        breaker.failed(120.0)
    assert breaker.seconds_closed_off(130.0) is None, "the first probe is still there"
    breaker.end(was_probe=True)
    assert breaker.seconds_closed_off(130.0) == 0.0


def test_sending_through_an_open_one_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="BUG"):
        opened().begin()


@given(st.lists(st.sampled_from(["succeeded", "failed", "trip", "time", "send", "answer"])))
def test_there_is_never_more_than_one_probe(moves: list[str]) -> None:
    breaker, now_s, probes, sends = Breaker(2, 10.0), 0.0, 0, 0
    for move in moves:
        if move == "succeeded":
            breaker.succeeded()
        elif move == "failed":
            breaker.failed(now_s)
        elif move == "trip":
            breaker.trip(Cause.AUTH, now_s, 20.0)
        elif move == "time":
            now_s += 7.0
        elif move == "send" and breaker.seconds_closed_off(now_s) == 0.0:
            is_probe = breaker.begin()
            probes, sends = probes + is_probe, sends + 1
            assert probes <= 1
        elif move == "answer" and probes:
            breaker.end(was_probe=True)
            probes -= 1
