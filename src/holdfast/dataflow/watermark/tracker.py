"""The tracker: rows that are handed out one by one, and the earliest time among them.

It keeps the true minimum of all event times that are not resolved, not the time of the oldest row:
where times are out of order the two differ, and a watermark taken from the oldest row passes
others. A row that failed and will be tried again stays in it (its time is still to be processed)
until `max_hold` after its first failure; from then on it counts as late and holds nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from dataclasses import dataclass

from holdfast.dataflow.watermark.multiset import TimeMultiset


@dataclass
class _Row:
    event_us: int
    failed_us: int | None = None
    holds: bool = True


class Tracker:
    """Rows that are being worked on or wait to be tried again. One thread."""

    def __init__(self, max_hold_us: int) -> None:
        self.given_up_holds = 0
        self._max_hold_us = max_hold_us
        self._rows: dict[Hashable, _Row] = {}
        self._times = TimeMultiset()
        # When rows that failed cease to hold. Their keys may be gone, or failed anew meanwhile.
        self._expiries: list[tuple[int, int, Hashable]] = []
        self._order = 0

    def __len__(self) -> int:
        return len(self._rows)

    def insert(self, key: Hashable, event_us: int, *, failed_us: int | None = None) -> None:
        """Take in a row, before anybody works on it; with `failed_us` it failed before."""
        assert key not in self._rows, "BUG: a row is tracked twice"
        self._rows[key] = _Row(event_us)
        self._times.add(event_us)
        if failed_us is not None:
            self.retry(key, failed_us)

    def retry(self, key: Hashable, now_us: int) -> None:
        """A row failed and will be tried again: the first failure starts its time to hold."""
        row = self._rows[key]
        if row.failed_us is None:
            row.failed_us = now_us
            self._order += 1
            heapq.heappush(self._expiries, (now_us + self._max_hold_us, self._order, key))

    def resolve(self, key: Hashable) -> None:
        """A row has its outcome."""
        row = self._rows.pop(key)
        if row.holds:
            self._times.remove(row.event_us)

    def pending_us(self, now_us: int) -> int | None:
        """Return the earliest event time that still holds the watermark."""
        while self._expiries and self._expiries[0][0] <= now_us:
            expires_us, _, key = heapq.heappop(self._expiries)
            row = self._rows.get(key)
            if row is None or not row.holds or row.failed_us is None:
                continue
            if row.failed_us + self._max_hold_us == expires_us:
                row.holds = False
                self._times.remove(row.event_us)
                self.given_up_holds += 1
        return self._times.minimum()
