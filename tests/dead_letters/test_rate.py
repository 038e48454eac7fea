"""The rate of dead letters: so many events and bytes per second, with some burst."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.clock import ManualClock

from holdfast.dead_letters.queue import RateLimit


def test_a_burst_then_the_rate() -> None:
    clock = ManualClock(0.0)
    rate = RateLimit(clock, events_per_s=2, bytes_per_s=1000, burst_s=5)
    assert [rate.take(1) for _ in range(11)] == [True] * 10 + [False]
    clock.now_s += 1.0
    assert [rate.take(1) for _ in range(3)] == [True, True, False]
    clock.now_s += 1000.0
    assert sum(rate.take(1) for _ in range(100)) == 10


def test_bytes_count_as_well_and_a_large_letter_is_paid_for_later() -> None:
    clock = ManualClock(0.0)
    rate = RateLimit(clock, events_per_s=1000, bytes_per_s=100, burst_s=1)
    assert rate.take(1000)
    assert not rate.take(1)
    clock.now_s += 8.9
    assert not rate.take(1)
    clock.now_s += 0.2
    assert rate.take(1)


def test_a_rate_below_one_still_takes_one() -> None:
    clock = ManualClock(0.0)
    rate = RateLimit(clock, events_per_s=0.001, bytes_per_s=1, burst_s=1)
    assert rate.take(1)
    assert not rate.take(1)
    clock.now_s += 1000
    assert rate.take(1)


@given(
    steps=st.lists(st.tuples(st.floats(0, 5), st.integers(0, 5000)), max_size=60),
    events_per_s=st.floats(0.5, 50),
    bytes_per_s=st.floats(100, 10_000),
    burst_s=st.floats(0.1, 20),
)
def test_over_any_time_it_is_never_much_more_than_the_rate(
    steps: list[tuple[float, int]], events_per_s: float, bytes_per_s: float, burst_s: float
) -> None:
    clock = ManualClock(0.0)
    rate = RateLimit(clock, events_per_s, bytes_per_s, burst_s)
    taken: list[int] = []
    for wait_s, size_bytes in steps:
        clock.now_s += wait_s
        if rate.take(size_bytes):
            taken.append(size_bytes)
    allowed_s = clock.now_s + burst_s
    assert len(taken) <= events_per_s * allowed_s + 1 + 1e-6
    # The last one taken may be larger than what was left.
    assert sum(taken[:-1]) <= bytes_per_s * allowed_s + 1 + 1e-6


@pytest.mark.parametrize("events", [0, 1, 7])
def test_nothing_is_taken_twice(events: int) -> None:
    rate = RateLimit(ManualClock(0.0), events_per_s=max(events, 1), bytes_per_s=10**9, burst_s=1)
    assert sum(rate.take(10) for _ in range(100)) == max(events, 1)
