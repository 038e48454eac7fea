"""The retry lane of a query: two quivers, one in which failed rows wait, one from which they come.

    batch N ──▶ waiting ──(when they are due)──▶ due ──▶ batch M of the same query

A row that a function did not take, however often its task tried, goes to `waiting` with the batch
that it failed in, in one transaction of that batch: once. The driver moves bundles to `due` in
their order, each as one idempotent append, when their time has come; there the query reads them
like any source. So a row is always in the log of one of the two quivers, whichever process is
killed.

Bundles keep their order: a row may wait for those before it, but no longer than the longest pause
of a retry. While a row is here it holds what its query promises to the queries behind it, so that
its windows are open when it comes, for at most `max_hold` after it first failed; from then on it is
late when it comes. What was late already when it failed holds nothing.

Rows that failed in the end are dead letters, with everything they need to come once more: see
driver/redrive.py.

The lane reads no row twice (`LaneIndex`). For every batch it is asked for the earliest event time
that is held. A row leaves that question in one of three ways: it is done, its longest hold is over,
or the promise in force has passed it; and whatever left it stays out. So rows are read once, when
they come, and kept in the order of their event times: those at the front that are out are dropped,
and the next one is the answer.

That is 24 bytes for each row that waits, and `buffers.max_rows` bounds those.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.dataflow.compiler.calls import LANE_TYPE
from holdfast.dataflow.sink.options import EVENT_TIME, SLOT
from holdfast.errors import HoldfastError
from holdfast.quiver import Cursor, Position, Quiver, Range
from holdfast.quiver.base.envelope import TIME_TYPE

# Who moves rows, in the one quiver and in the other.
MOVER = "lane"
COLUMNS = ("id", "vertex", "tries", "attempts", "failed_us", "due_us", "row", "batch", EVENT_TIME)
SCHEMA = pa.schema([*LANE_TYPE, pa.field("batch", pa.int32()), pa.field(EVENT_TIME, TIME_TYPE)])
# How long the mover waits before it looks again.
LOOK_EVERY_S = 0.25

log = logging.getLogger("holdfast.dataflow")


class _LaneBundle(NamedTuple):
    planned: Range
    seq: int
    rows: pa.RecordBatch
    due_us: int


def _now_us() -> int:
    return time.time_ns() // 1000


class Lane:
    """Both quivers, in the driver, which has them open."""

    def __init__(
        self,
        waiting: Quiver,
        due: Quiver,
        written: Sequence[Quiver],
        max_hold_us: int,
        now_us: Callable[[], int] = _now_us,
    ) -> None:
        # The addresses under which the quivers are served, as soon as they are.
        self.waiting_address = ""
        self.due_address = ""
        self._waiting = waiting
        self._due = due
        # The quivers between queries that the query writes: what it promises is in them.
        self._written = tuple(written)
        self._in_waiting, self._in_due = (LaneIndex(q, max_hold_us) for q in (waiting, due))
        self._now_us = now_us
        self._cursor: Cursor = waiting.cursor(MOVER)
        self._head: _LaneBundle | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    # --------------------------------------------------------------------- moving

    def start(self) -> None:
        """Move rows as they become due, until it is stopped."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lane", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop moving rows."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        reported = ""
        while not self._stopped.wait(LOOK_EVERY_S):
            try:
                self.move()
                reported = ""
            except HoldfastError as error:
                # They stay where they are: the next look tries again. What lasts is logged once.
                if str(error) != reported:
                    reported = str(error)
                    log.warning("rows of a retry lane were not moved: %s", error)

    def move(self, *, hurry: bool = False) -> int:
        """Move what is due, or with `hurry` everything; return how many rows that was.

        The append comes before the commit. A driver that dies in between moves the bundle again
        under the same epoch, and the quiver answers that it has it.
        """
        moved = 0
        with self._lock:
            while (head := self._first()) is not None:
                if head.due_us > self._now_us() and not hurry:
                    break
                if head.rows.num_rows:
                    epoch = head.seq + 1
                    self._due.append({SLOT: head.rows}, producer=MOVER, epoch=epoch)
                self._cursor.commit(head.planned)
                self._head = None
                moved += head.rows.num_rows
        return moved

    def _first(self) -> _LaneBundle | None:
        """Return the first bundle that waits.

        Only the first: bundles are moved in order, so that one position says which rows are where.
        It is remembered until it is due, and not read again at every look.
        """
        if self._head is None:
            planned = self._cursor.plan(max_events=1, start=self._cursor.position)
            for bundle in () if planned is None else self._cursor.read(planned):
                empty = pa.RecordBatch.from_pylist([], pa.schema([("due_us", pa.int64())]))
                rows = bundle.slots.get(SLOT, empty)
                due_us = pc.max(rows.column("due_us")).as_py() or 0
                mine = rows.select([name for name in COLUMNS if name in rows.schema.names])
                assert planned is not None, "BUG: rows of no plan"
                self._head = _LaneBundle(planned, bundle.seq, mine, due_us)
        return self._head

    # -------------------------------------------------------------------- looking

    @property
    def rows(self) -> int:
        """How many rows wait, due or not."""
        readers = [name for name in self._due.subscribers() if name != MOVER]
        due = max((self._due.balance(name).pending.events for name in readers), default=0)
        return self._waiting.balance(MOVER).pending.events + due

    @property
    def due_id(self) -> str:
        """The id of the quiver from which rows come."""
        return self._due.quiver_id

    def ids_of(self, batch: int) -> set[str]:
        """Return which rows of a batch were put here before, in another run of it.

        They are here still: no batch after one that was not committed has taken them.
        """
        with self._lock:
            return self._in_waiting.ids_of(batch) | self._in_due.ids_of(batch)

    def holds_us(self, end_seq: int) -> int | None:
        """Return the earliest event time that is held; rows of `due` before `end_seq` are done."""
        now_us, promised_us = self._now_us(), self._promised_us()
        with self._lock:
            places = (
                (self._in_waiting, self._cursor.position),
                (self._in_due, Position(end_seq)),
            )
            held = [index.held_us(start, now_us, promised_us) for index, start in places]
        return min((time_us for time_us in held if time_us is not None), default=None)

    def _promised_us(self) -> int:
        promises = [quiver.statement().producer_watermarks.values() for quiver in self._written]
        return min((max(one, default=0) for one in promises), default=0) // 1000


def without(
    ids: Collection[str],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what leaves rows of some ids out, in tasks: a condition would be a huge plan."""
    known = pa.array(sorted(ids), pa.string())

    def leave_out(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.filter(pc.invert(pc.is_in(batch.column("id"), known)))

    return leave_out


# A batch that is run again is the newest, or the one before if the newest has not put anything yet.
BATCHES_KEPT = 2
_COLUMNS = ["_seq", "id", "batch", "failed_us", EVENT_TIME]


class _HeldRun:
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
        self._runs: list[tuple[int, int, _HeldRun]] = []
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
        """Read what is new, columns for the question only; rows themselves stay on disk."""
        start = Position(self._next_seq)
        if not self._quiver.statement(start).pending_events:
            return
        rows = self._quiver.scan(_COLUMNS, slot=SLOT, start=start).read_all()
        if not rows.num_rows:
            return
        self._next_seq = pc.max(rows["_seq"]).as_py() + 1
        run = _HeldRun(rows)
        heapq.heappush(self._runs, (run.event_us[0], self._runs_made, run))
        self._runs_made += 1
        newest = max(pc.max(rows["batch"]).as_py(), *self._ids, -1)
        for batch in range(newest - BATCHES_KEPT + 1, newest + 1):
            found = rows.filter(pc.equal(rows["batch"], batch))["id"].to_pylist()
            if found:
                self._ids[batch].update(found)
        for old in [batch for batch in self._ids if batch <= newest - BATCHES_KEPT]:
            del self._ids[old]
