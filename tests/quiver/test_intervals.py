"""IntervalSet against a plain set of numbers."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from holdfast.quiver.ledger.intervals import IntervalSet

NUMBERS = st.integers(0, 40)
STEPS = st.lists(st.tuples(st.sampled_from(["add", "remove"]), NUMBERS, NUMBERS), max_size=25)


def both(steps: list[tuple[str, int, int]]) -> tuple[IntervalSet, set[int]]:
    """Return the same set twice: in intervals, and number by number."""
    intervals, numbers = IntervalSet(), set[int]()
    for verb, start, end in steps:
        if verb == "add":
            intervals.add(start, end)
            numbers.update(range(start, end))
        else:
            intervals.remove(start, end)
            numbers.difference_update(range(start, end))
    return intervals, numbers


def members(intervals: IntervalSet) -> set[int]:
    return {number for start, end in intervals for number in range(start, end)}


@given(STEPS)
def test_it_holds_what_a_plain_set_holds(steps: list[tuple[str, int, int]]) -> None:
    intervals, numbers = both(steps)
    assert members(intervals) == numbers
    assert {number for number in range(42) if number in intervals} == numbers


@given(STEPS)
def test_its_intervals_are_sorted_disjoint_and_as_few_as_can_be(
    steps: list[tuple[str, int, int]],
) -> None:
    intervals, numbers = both(steps)
    parts = list(intervals)
    assert all(start < end for start, end in parts)
    assert all(one[1] < two[0] for one, two in itertools.pairwise(parts))
    assert len(intervals) == len(parts)
    assert intervals == IntervalSet((number, number + 1) for number in sorted(numbers))


@given(STEPS, NUMBERS, NUMBERS)
def test_its_holes_are_what_is_missing(
    steps: list[tuple[str, int, int]], start: int, end: int
) -> None:
    intervals, numbers = both(steps)
    holes = list(intervals.holes(start, end))
    assert members(IntervalSet(holes)) == set(range(start, end)) - numbers
    assert holes == list(IntervalSet(holes)), "holes come in order, and touching ones as one"
    assert intervals.covers(start, end) == (not holes)


@given(STEPS, NUMBERS)
def test_the_first_missing_number_is_the_lowest_one_that_is_not_there(
    steps: list[tuple[str, int, int]], start: int
) -> None:
    intervals, numbers = both(steps)
    assert intervals.first_missing(start) == next(n for n in range(start, 99) if n not in numbers)


def test_removing_nothing_does_not_cut_an_interval_in_two() -> None:
    intervals = IntervalSet([(0, 10)])
    intervals.remove(5, 5)
    intervals.remove(7, 3)
    assert list(intervals) == [(0, 10)]


def test_it_may_change_while_it_is_walked() -> None:
    intervals = IntervalSet([(0, 2), (4, 6)])
    for start, end in intervals:
        intervals.remove(start, end)
    assert list(intervals) == []


def test_it_equals_only_another_set_with_the_same_numbers() -> None:
    assert IntervalSet([(0, 2), (2, 4)]) == IntervalSet([(0, 4)])
    assert IntervalSet([(0, 4)]) != IntervalSet([(0, 5)])
    assert IntervalSet([(0, 4)]) != [(0, 4)]


@given(STEPS, STEPS, NUMBERS, NUMBERS)
def test_two_sets_are_compared_as_plain_sets_are(
    steps: list[tuple[str, int, int]], others: list[tuple[str, int, int]], start: int, end: int
) -> None:
    intervals, numbers = both(steps)
    other, other_numbers = both(others)
    assert members(intervals.without(other)) == numbers - other_numbers
    assert members(intervals.union(other)) == numbers | other_numbers
    assert members(intervals) == numbers, "neither of the two is changed"
    assert intervals.overlaps(start, end) == bool(numbers & set(range(start, end)))
