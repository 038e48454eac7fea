"""Bounds of what is under way, and of how fast one producer sends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.clock import ManualClock

from holdfast.receive.admission import Admission, ClientRate
from holdfast.receive.responses import Reason, Refused


def test_requests_have_a_bound() -> None:
    admission = Admission(max_requests=2, max_bytes=100)
    first, second = admission.enter(0), admission.enter(0)
    with pytest.raises(Refused) as refused:
        admission.enter(0)
    assert refused.value.reason is Reason.BUSY
    assert refused.value.answer.status == 503
    first.leave()
    admission.enter(0).leave()
    second.leave()
    assert admission.in_flight_requests == 0


def test_bytes_have_a_bound_and_come_back() -> None:
    admission = Admission(max_requests=10, max_bytes=100)
    first, second = admission.enter(0), admission.enter(0)
    first.received(60)
    with pytest.raises(Refused):
        second.received(41)
    second.hold(40)
    assert admission.in_flight_bytes == 100
    first.leave()
    second.leave()
    assert admission.in_flight_bytes == 0
    assert admission.received_bytes == 101


def test_what_is_announced_must_fit_but_takes_nothing() -> None:
    admission = Admission(max_requests=10, max_bytes=100)
    waiting = [admission.enter(100) for _ in range(5)]
    assert admission.in_flight_bytes == 0
    waiting[0].received(10)
    with pytest.raises(Refused):
        admission.enter(91)
    admission.enter(90)


@given(
    st.floats(0.1, 1000),
    st.integers(1, 100),
    st.lists(st.tuples(st.floats(0, 10), st.integers(1, 50)), max_size=60),
)
def test_a_bucket_lets_no_more_through_than_its_rate(
    events_per_s: float, burst: int, arrivals: list[tuple[float, int]]
) -> None:
    clock = ManualClock()
    bucket = ClientRate(events_per_s, burst, clock)
    passed = largest = 0
    for pause_s, events in arrivals:
        clock.now_s += pause_s
        if bucket.wait_s() == 0:
            bucket.charge(events)
            passed += events
            largest = max(largest, events)
    elapsed_s = clock.now_s - 100.0
    # Overdrawn at most by the last batch.
    assert passed <= burst + events_per_s * elapsed_s + largest + 1e-6


def test_a_bucket_says_when_to_come_again() -> None:
    clock = ManualClock()
    bucket = ClientRate(per_s=2, burst=3, clock=clock)
    bucket.charge(7)
    assert bucket.wait_s() == pytest.approx(2.5)
    clock.now_s += 2.5
    assert bucket.wait_s() == pytest.approx(0.0)
