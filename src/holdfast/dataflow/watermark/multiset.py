"""A multiset of times that knows its true minimum: a heap whose removed members are skipped."""

from __future__ import annotations

import heapq
from collections import Counter


class TimeMultiset:
    """Times in any order; adding and removing cost O(log n)."""

    def __init__(self) -> None:
        self._heap: list[int] = []
        self._counts: Counter[int] = Counter()

    def __len__(self) -> int:
        return self._counts.total()

    def add(self, time_us: int) -> None:
        """Put one in."""
        if not self._counts[time_us]:
            heapq.heappush(self._heap, time_us)
        self._counts[time_us] += 1

    def remove(self, time_us: int) -> None:
        """Take one out, which must be there."""
        assert self._counts[time_us] > 0, "BUG: a time is removed that is not there"
        self._counts[time_us] -= 1
        if not self._counts[time_us]:
            del self._counts[time_us]
            if len(self._heap) > 2 * len(self._counts) + 16:
                self._heap = list(self._counts)
                heapq.heapify(self._heap)

    def minimum(self) -> int | None:
        """Return the earliest; None if there is none."""
        while self._heap and self._heap[0] not in self._counts:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None
