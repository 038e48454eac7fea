"""Sets of sequence numbers as sorted, disjoint, half-open intervals.

What a subscriber has resolved is nearly always one long run from its start, plus a few islands
that overtook it. Two parallel sorted lists make membership a bisection and a merge a slice; memory
grows with the number of holes and not with the number of bundles, which is what makes a ledger of
billions of seqs affordable. Intervals that touch are merged, so equal sets have equal lists.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator


class IntervalSet:
    """A set of whole numbers that is mostly made of long runs."""

    def __init__(self, intervals: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in intervals:
            self.add(start, end)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._starts, self._ends, strict=True)))

    def __len__(self) -> int:
        """Return the number of intervals, not of members."""
        return len(self._starts)

    def __contains__(self, member: int) -> bool:
        place = bisect.bisect_right(self._starts, member) - 1
        return place >= 0 and member < self._ends[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IntervalSet) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def add(self, start: int, end: int) -> None:
        """Add all numbers from `start` up to, not including, `end`."""
        if start >= end:
            return
        # `low` is the first interval that ends at or behind `start`, `high` the first that begins
        # behind `end`: everything between them overlaps or touches the new one and is replaced by
        # the union.
        low = bisect.bisect_left(self._ends, start)
        high = bisect.bisect_right(self._starts, end)
        if low < high:
            start, end = min(start, self._starts[low]), max(end, self._ends[high - 1])
        self._starts[low:high] = [start]
        self._ends[low:high] = [end]

    def remove(self, start: int, end: int) -> None:
        """Take all numbers from `start` up to, not including, `end` out."""
        if start >= end:
            return
        # The other sides of the bisection than in `add`: an interval that merely touches is not
        # cut.
        low = bisect.bisect_right(self._ends, start)
        high = bisect.bisect_left(self._starts, end)
        kept = []
        if low < high and self._starts[low] < start:
            kept.append((self._starts[low], start))
        if low < high and self._ends[high - 1] > end:
            kept.append((end, self._ends[high - 1]))
        self._starts[low:high] = [first for first, _ in kept]
        self._ends[low:high] = [last for _, last in kept]

    def holes(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield what is missing between `start` and `end`, in order."""
        # From the interval that may contain `start`; one step too early is harmless, the maximum
        # below does not let `start` move back.
        place = max(0, bisect.bisect_right(self._starts, start) - 1)
        while start < end:
            if place >= len(self._starts) or self._starts[place] >= end:
                yield start, end
                return
            if self._starts[place] > start:
                yield start, self._starts[place]
            start = max(start, self._ends[place])
            place += 1

    def covers(self, start: int, end: int) -> bool:
        """Whether every number from `start` up to, not including, `end` is in the set."""
        # One interval has to hold all of them: where two touch, they are one.
        place = bisect.bisect_right(self._starts, start) - 1
        return start >= end or (place >= 0 and end <= self._ends[place])

    def first_missing(self, start: int) -> int:
        """Return the lowest number from `start` on that is not in the set."""
        place = bisect.bisect_right(self._starts, start) - 1
        if place >= 0 and start < self._ends[place]:
            return self._ends[place]
        return start

    def overlaps(self, start: int, end: int) -> bool:
        """Whether any number from `start` up to, not including, `end` is in the set."""
        place = bisect.bisect_right(self._ends, start)
        return start < end and place < len(self._starts) and self._starts[place] < end

    def without(self, other: IntervalSet) -> IntervalSet:
        """Return what is in this set and not in the other."""
        return IntervalSet(hole for start, end in self for hole in other.holes(start, end))

    def union(self, other: IntervalSet) -> IntervalSet:
        """Return what is in either of the two."""
        both = IntervalSet(self)
        for start, end in other:
            both.add(start, end)
        return both
