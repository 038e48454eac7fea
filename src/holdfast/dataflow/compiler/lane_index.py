"""What a retry lane knows of its rows, without looking at any of them twice.

For every batch a lane is asked for the earliest event time that is held. A row leaves that question
in one of three ways: it is done, its longest hold is over, or the promise in force has passed it;
and whatever left it stays out. So rows are read once, when they come, and kept in the order of
their event times: those at the front that are out are dropped, and the next one is the answer.

That is 24 bytes for each row that waits, and `buffers.max_rows` bounds those.
"""

from __future__ import annotations

import heapq
from array import array
from collections import defaultdict

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.dataflow.compiler.places import EVENT_TIME, SLOT
from holdfast.quiver import Position, Quiver

# A batch that is run again is the newest, or the one before if the newest has not put anything yet.
BATCHES_KEPT = 2
_COLUMNS = ["_seq", "id", "batch", "failed_us", EVENT_TIME]


class _Run:
    """Some rows by event time, of which those at the front go."""

    def __init__(self, rows: pa.Table) -> None:
        by_time = rows.sort_by(EVENT_TIME)
        times = by_time[EVENT_TIME].cast(pa.int64())
        columns = (times, by_time["failed_us"], by_time["_seq"])
        self.event_us, self.failed_us, self.seqs = (array("q", one.to_pylist()) for one in columns)
        self.first = 0


class LaneIndex:
    """The rows of one quiver of a lane."""

    def __init__(self, quiver: Quiver, max_hold_us: int) -> None:
        self._quiver = quiver
        self._max_hold_us = max_hold_us
        self._next_seq = 0
        # By the first event time of each run; the number only decides between equal times.
        self._runs: list[tuple[int, int, _Run]] = []
        self._runs_made = 0
        self._ids: dict[int, set[str]] = defaultdict(set)

    def held_us(self, start: Position, now_us: int, promised_us: int) -> int | None:
        """Return the earliest event time from a position on that holds the watermark.

        None of the three may be less than it was: rows that do not hold it are forgotten. A row
        holds it for `max_hold_us` after it first failed, and then counts as late when it comes;
        what is older than the promise in force was late already.
        """
        self._take_in()
        oldest_us = now_us - self._max_hold_us
        while self._runs:
            event_us, number, run = self._runs[0]
            place = run.first
            is_recent = run.failed_us[place] > oldest_us
            if is_recent and event_us >= promised_us and run.seqs[place] >= start.seq:
                return event_us
            run.first += 1
            if run.first < len(run.event_us):
                heapq.heapreplace(self._runs, (run.event_us[run.first], number, run))
            else:
                heapq.heappop(self._runs)
        return None

    def ids_of(self, batch: int) -> set[str]:
        """Return which rows one of the last batches has put here."""
        self._take_in()
        return set(self._ids.get(batch, ()))

    def _take_in(self) -> None:
        """Read what is new."""
        start = Position(self._next_seq)
        if not self._quiver.statement(start).pending_events:
            return
        rows = self._quiver.scan(_COLUMNS, slot=SLOT, start=start).read_all()
        if not rows.num_rows:
            return
        self._next_seq = pc.max(rows["_seq"]).as_py() + 1
        run = _Run(rows)
        heapq.heappush(self._runs, (run.event_us[0], self._runs_made, run))
        self._runs_made += 1
        newest = max(pc.max(rows["batch"]).as_py(), *self._ids, -1)
        for batch in range(newest - BATCHES_KEPT + 1, newest + 1):
            found = rows.filter(pc.equal(rows["batch"], batch))["id"].to_pylist()
            if found:
                self._ids[batch].update(found)
        for old in [batch for batch in self._ids if batch <= newest - BATCHES_KEPT]:
            del self._ids[old]
