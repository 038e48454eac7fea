"""The statistics behind every figure, and the order in which contenders run."""

from __future__ import annotations

import math
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.bench.figures import Spread, interleave, percentile, rotated, rounded


def test_contenders_run_in_turn_and_not_one_after_the_other() -> None:
    order: list[str] = []

    def contender(name: str) -> int:
        order.append(name)
        return len(order)

    results = interleave(
        {"a": lambda: contender("a"), "b": lambda: contender("b")}, 3, warm_up=False
    )
    assert order == ["a", "b", "a", "b", "a", "b"]
    assert results == {"a": [1, 3, 5], "b": [2, 4, 6]}


def test_nobody_always_follows_the_same_one_where_the_order_is_rotated() -> None:
    order: list[str] = []

    def contender(name: str) -> int:
        order.append(name)
        return len(order)

    results = rotated({name: partial(contender, name) for name in "abc"}, 3)
    assert order == [*"abc", *"bca", *"cab"]
    assert results == {"a": [1, 6, 8], "b": [2, 4, 9], "c": [3, 5, 7]}


def test_a_slow_machine_has_fewer_rounds_but_one_of_all() -> None:
    told: list[str] = []
    contenders = {"a": lambda: 1, "b": lambda: 2}
    found = rotated(contenders, 7, warm_up=True, enough_s=-1.0, progress=told.append)
    assert found == {"a": [1], "b": [2]}
    assert told == ["warming up", "round 1 of 7", "slow: 1 of 7 rounds have to do"]


def test_the_warm_up_round_is_run_and_thrown_away() -> None:
    calls = iter(range(100))
    results = interleave({"a": lambda: next(calls), "b": lambda: next(calls)}, 2)
    assert results == {"a": [2, 4], "b": [3, 5]}


def test_a_spread_has_median_quartiles_and_ends() -> None:
    spread = Spread.of([7.0, 1.0, 3.0, 5.0, 9.0])
    assert spread == Spread(5.0, 1.0, 3.0, 7.0, 9.0, 5)


def test_one_round_has_a_spread_of_nothing() -> None:
    assert Spread.of([4.0]) == Spread(4.0, 4.0, 4.0, 4.0, 4.0, 1)


@given(st.lists(st.floats(0, 1e9), min_size=1))
def test_a_spread_is_ordered(values: list[float]) -> None:
    spread = Spread.of(values)
    ends = [spread.min, spread.lower_quartile, spread.median, spread.upper_quartile, spread.max]
    assert ends == sorted(ends)
    assert (spread.min, spread.max) == (min(values), max(values))


@given(st.lists(st.floats(0, 1e9), min_size=1), st.integers(1, 100))
def test_a_percentile_is_a_value_that_so_many_do_not_exceed(
    values: list[float], percent: int
) -> None:
    ordered = sorted(values)
    found = percentile(ordered, percent)
    wanted = math.ceil(len(ordered) * percent / 100)
    assert found in ordered
    assert sum(value <= found for value in ordered) >= wanted
    assert sum(value < found for value in ordered) < wanted


@pytest.mark.parametrize(("value", "short"), [(0.123456, 0.1235), (123456.0, 123500.0), (7, 7)])
def test_digits_that_mean_nothing_are_dropped(value: float, short: float) -> None:
    assert rounded(value) == short
