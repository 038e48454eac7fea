"""What a quiver can state about event time at a position: the ground of a watermark.

A watermark is a promise: no accepted event with an earlier time is still to come. Whoever reads
quivers makes it (a *claim*), for all of them together, and never takes it back. What each quiver
adds is what only it can know, about everything beyond the position p up to which the reader has
taken its rows:

    min_event_us      the earliest event time it holds beyond p: sealed, open, synced or not
    pending_events    how many events are there; none is not yet silence, see below
    max_event_us      the latest event time it ever saw: its sources are at most some delay behind
    quiet_since_ns    when it last took something in, or turned somebody away, or was opened
    clock_ns          its own clock
    producer_watermarks   what its producers promised in turn, in the frames of their bundles

The reader may claim min(min_event_us, max_event_us - delay), and, where nothing is pending and the
quiver was quiet for long enough, later by as long as it was. A quiver that does not answer states
nothing: silence on the wire is not idleness, which is why this is asked for and never guessed.

**Late rows do not hold it.** An event that arrives with a time before the claim in force is late
already; if it counted, the claim would stand still until it is read, and nothing would be gained.
How is it known? The claim C in force is passed in. It rested on an earlier statement of this very
quiver, so nothing the quiver held then, beyond the position of then, had a time before C. Hence
whatever is beyond p now with a time before C came after that statement: it was late when it
arrived. Times before C are left out, and that is all; a time equal to C still counts. This holds
as long as claims never pass what was stated; where somebody lets them (a gateway that is given up),
the rows that come back are late, and are counted as such by whoever reads them.

**A row of many items counts by its items** (envelope.py). One whose earliest item is late and whose
latest is not neither holds the claim, nor is it passed: of its items, those that are late are left
out, as rows are. A list of times is as true of all items as one time is of one row, so nothing of
the above changes; the row is just looked at as so many rows at one position.

**Times are clamped**, as in summaries (envelope.py): at most ingestion + `max_skew_s`, at least
1970. For `max_event_us` events dated in the future do not count at all: one dated 2099, among data
of last year that is sent in late, would take the claim to the present and make all the rest late.

**When it is true.** The clock is read first, the data after that, so everything acknowledged before
`clock_ns` is covered, with one exception: an append at level `memory` counts from the moment it is
written, some microseconds after its answer.

**What it costs.** Segments are judged by their summaries. Rows are looked at only in the segment
that p cuts, in segments with late rows or rows of the future, and in the open buffer, each bundle
of it once. Rows are compared as three columns (`Times`). What was found for a segment under a
claim stands for every later claim up to the time that was found, so a segment with late rows is
looked at again only when the claim has moved past its next row.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from holdfast.errors import Damaged
from holdfast.quiver.base import compute as pc
from holdfast.quiver.base.envelope import ITEM_TIMES, ItemTimes, TimeFlag, read_item_times
from holdfast.quiver.base.frame import NO_WATERMARK
from holdfast.quiver.base.held_bundle import HeldBundle
from holdfast.quiver.engine.engine import Engine
from holdfast.quiver.ledger.subscriber import Position
from holdfast.quiver.segments.data_file import DataFile
from holdfast.quiver.segments.manifest import OPAQUE, RAW
from holdfast.quiver.segments.rows import TableMaker
from holdfast.quiver.segments.segment import Segment


@dataclass(frozen=True)
class EventTimeStatement:
    """What a quiver knows of the event times beyond a position."""

    quiver_id: str
    position: Position
    # Nothing with an earlier time counted for `min_event_us`; None: everything did.
    claim_us: int | None
    # The newest bundle that was looked at.
    through_seq: int
    # None: nothing is there, or all of it came late.
    min_event_us: int | None
    # Late ones too.
    pending_events: int
    # Without events dated in the future; as far as this process, and the segments it still has, can
    # tell. None: it saw none.
    max_event_us: int | None
    quiet_since_ns: int
    clock_ns: int
    # In nanoseconds; of producers that gave one.
    producer_watermarks: Mapping[str, int]

    @property
    def quiet_s(self) -> float:
        """How long nothing was appended, by the quiver's own clock."""
        return max(0, self.clock_ns - self.quiet_since_ns) / 1e9


# Pieces of one open buffer: with more, they are put together.
PIECES_MAX = 16

_START = Position(0)


class Times(NamedTuple):
    """Positions and clamped event times of some rows."""

    seqs: pa.Array
    rows: pa.Array
    times_us: pa.Array

    def least_us(self, beyond: Position, claim_us: int | None) -> int | None:
        """Return the earliest time from a position on that is not before the claim."""
        times = self.times_us
        if beyond > _START:
            behind = pc.greater(self.seqs, beyond.seq)
            same = pc.and_(pc.equal(self.seqs, beyond.seq), pc.greater_equal(self.rows, beyond.row))
            times = times.filter(pc.or_(behind, same))
        if claim_us is not None:
            times = times.filter(pc.greater_equal(times, claim_us))
        least: int | None = pc.min(times).as_py()
        return least


class FoundEventTimes(NamedTuple):
    """The earliest time in a segment, from a position on, that is not before a claim."""

    beyond: Position
    claim_us: int | None
    least_us: int | None

    def answers(self, beyond: Position, claim_us: int | None) -> bool:
        """Whether it is right for another question too."""
        # Another position cuts other rows: only the very same question has this answer.
        if beyond != self.beyond or claim_us is None:
            return (beyond, claim_us) == (self.beyond, self.claim_us)
        if self.claim_us is not None and claim_us < self.claim_us:
            return False
        # Raising the claim up to what was found leaves out only what was left out or passed
        # before; beyond it, the next row has to be looked for.
        return self.least_us is None or claim_us <= self.least_us


@dataclass
class BufferTimes:
    """What was learnt of one buffer that is not sealed yet."""

    through_seq: int = -1
    events: int = 0
    pieces: list[Times] = field(default_factory=list)

    def add(self, fresh: Sequence[HeldBundle], pieces: Iterable[Times]) -> None:
        """Take over its newest bundles."""
        self.through_seq = fresh[-1].seq
        self.events += sum(held.events for held in fresh)
        self.pieces += pieces
        if len(self.pieces) > PIECES_MAX:
            columns = zip(*self.pieces, strict=True)
            self.pieces = [Times(*(pa.concat_arrays(column) for column in columns))]


class EventTimes:
    """Answers questions about event times. Safe to use from many threads.

    One lock for everything, held while rows are read: two statements at once would read the same
    segments twice, and the second one gains by waiting for what the first has found.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._skew_us = int(engine.config.max_skew_s * 1e6)
        self._tables = TableMaker(engine.config)
        # By segment_seq; and by the first seq of a buffer.
        self._found: dict[int, FoundEventTimes] = {}
        self._tails: dict[int, BufferTimes] = {}
        self._max_us: int | None = None
        self._quiet_since_ns = engine.clock.wall_ns()
        # The oldest is forgotten first, beyond `producers.max_count`.
        self._watermarks: dict[str, int] = {}
        self._known_segments: set[int] = set()

    def statement(self, position: Position, claim_us: int | None) -> EventTimeStatement:
        """Return what is known of the time beyond a position."""
        with self._lock:
            clock_ns = self._engine.ledger.steady.earliest_now_ns()
            # Asked before the data is read. The other way round, an append could leave the queue
            # between the two looks, and be neither in the data nor among those who wait.
            turned_away = self._turned_away()
            segments, tail = self._engine.readable.snapshot(synced_only=False)
            self._learn(segments, tail)
            if turned_away:
                self._quiet_since_ns = max(self._quiet_since_ns, clock_ns)
            newest = [held[-1].seq for held in tail] + [s.summary.last_seq for s in segments[-1:]]
            least = [*self._sealed(segments, position, claim_us), *self._open(position, claim_us)]
            return EventTimeStatement(
                quiver_id=self._engine.quiver_id,
                position=position,
                claim_us=claim_us,
                through_seq=max(newest, default=-1),
                min_event_us=min(least, default=None),
                pending_events=self._pending(segments, tail, position),
                max_event_us=self._max_us,
                quiet_since_ns=self._quiet_since_ns,
                clock_ns=clock_ns,
                producer_watermarks=dict(self._watermarks),
            )

    def _turned_away(self) -> bool:
        """Whether somebody may be waiting outside: then silence says nothing."""
        writer = self._engine.writer
        waiting = writer.inbox.pending_bytes > 0 or writer.failure is not None
        return waiting or self._engine.retention.standing_refusal(1) is not None

    # ----------------------------------------------------------------- learning

    def _learn(self, segments: Sequence[Segment], tail: Sequence[list[HeldBundle]]) -> None:
        """Take note of what is new since the last time, and forget what is gone."""
        known = {segment.summary.segment_seq for segment in segments}
        # The newest first: then the older ones rarely have to be looked into.
        for segment in reversed(segments):
            if segment.summary.segment_seq not in self._known_segments:
                self._learn_segment(segment)
        self._known_segments = known
        self._found = {seq: found for seq, found in self._found.items() if seq in known}
        tails, self._tails = self._tails, {}
        for bundles in tail:
            known_tail = self._tails[bundles[0].seq] = tails.get(bundles[0].seq) or BufferTimes()
            first = bisect.bisect_right(bundles, known_tail.through_seq, key=_seq_of)
            if fresh := bundles[first:]:
                known_tail.add(fresh, self._learn_bundles(fresh))

    def _learn_segment(self, segment: Segment) -> None:
        """Take from a summary what only ever grows: newest time, silence, promises."""
        summary = segment.summary
        self._saw(self._newest_us(segment))
        self._quiet_since_ns = max(self._quiet_since_ns, summary.max_ingestion_ns)
        for name, producer in reversed(summary.producers.items()):
            if producer.watermark_ns is not None:
                self._promised(name, producer.watermark_ns)

    def _learn_bundles(self, fresh: Sequence[HeldBundle]) -> Iterator[Times]:
        """Take the same from bundles of the open buffer, and yield their times.

        Each is read once.
        """
        for held in fresh:
            self._quiet_since_ns = max(self._quiet_since_ns, held.ingestion_ns)
            if held.producer is not None and held.watermark_ns != NO_WATERMARK:
                self._promised(held.producer, held.watermark_ns)
        for made in self._tables.tables(fresh):
            if not self._engine.config.is_timed(made.group.slot):
                continue
            table, seqs = made.table, _flat(made.table, "_seq")
            rows = _no_rows(table.num_rows) if made.group.kind == OPAQUE else _flat(table, "_row")
            if made.items is not None:
                self._saw(_newest_item_us(made.items))
                yield _of_items(seqs, rows, made.items)
            else:
                self._saw(_newest_us(made.clamped_us, _flat(table, "_event_time_flag")))
                yield Times(seqs, rows, made.clamped_us)

    def _saw(self, event_us: int | None) -> None:
        if event_us is not None:
            self._max_us = event_us if self._max_us is None else max(self._max_us, event_us)

    def _newest_us(self, segment: Segment) -> int | None:
        """Return the latest time in a segment, without events dated in the future."""
        summary = segment.summary
        newest_us = summary.clamped_max_event_us
        known_us = -1 if self._max_us is None else self._max_us
        in_future_us = summary.min_ingestion_ns // 1000 + self._skew_us
        if newest_us is None or newest_us < in_future_us or newest_us <= known_us:
            return newest_us
        try:
            batches = [
                (f.batch(place), f.summary.kind)
                for f in self._timed_files(segment)
                for place in range(len(f.summary.batches))
            ]
        except Damaged:
            return None
        found = [self._newest_in(batch, kind) for batch, kind in batches]
        return max((time for time in found if time is not None), default=None)

    def _newest_in(self, batch: pa.RecordBatch, kind: str) -> int | None:
        items = self._items(batch, kind)
        if items is not None:
            return _newest_item_us(items)
        times_us = batch.column("_event_time").cast(pa.int64())
        return _newest_us(times_us, batch.column("_event_time_flag"))

    def _promised(self, producer: str, watermark_ns: int) -> None:
        known_ns = self._watermarks.pop(producer, watermark_ns)
        self._watermarks[producer] = max(known_ns, watermark_ns)
        while len(self._watermarks) > self._engine.config.producers.max_count:
            del self._watermarks[next(iter(self._watermarks))]

    # ----------------------------------------------------------------- counting

    def _pending(
        self, segments: Sequence[Segment], tail: Sequence[list[HeldBundle]], position: Position
    ) -> int:
        """Return how many events there are beyond a position."""
        events = 0
        for segment in segments:
            if Position(segment.summary.first_seq) >= position:
                events += segment.summary.events
            elif segment.summary.last_seq >= position.seq:
                events += _pending_in(segment, position)
        for bundles in tail:
            whole = Position(bundles[0].seq) >= position
            known = self._tails[bundles[0].seq].events
            events += known if whole else _pending_of(bundles, position)
        return events

    # ------------------------------------------------------------------ minimum

    def _open(self, position: Position, claim_us: int | None) -> Iterator[int]:
        for tail in self._tails.values():
            for piece in tail.pieces:
                least_us = piece.least_us(position, claim_us)
                if least_us is not None:
                    yield least_us

    def _sealed(
        self, segments: Sequence[Segment], position: Position, claim_us: int | None
    ) -> Iterator[int]:
        """Yield the earliest time of each segment beyond the position.

        Few need more than a summary.
        """
        for segment in segments:
            summary = segment.summary
            first_us = summary.clamped_min_event_us
            if first_us is None or summary.last_seq < position.seq:
                continue
            whole = Position(summary.first_seq) >= position
            if whole and (claim_us is None or first_us >= claim_us):
                yield first_us
            else:
                least_us = self._look(segment, _START if whole else position, claim_us)
                if least_us is not None:
                    yield least_us

    def _look(self, segment: Segment, beyond: Position, claim_us: int | None) -> int | None:
        """Return the earliest time in a segment by its rows."""
        key = segment.summary.segment_seq
        found = self._found.get(key)
        if found is None or not found.answers(beyond, claim_us):
            try:
                found = FoundEventTimes(beyond, claim_us, self._least_us(segment, beyond, claim_us))
            except Damaged:
                if all(known is not segment for known in self._engine.catalog.snapshot()):
                    return None  # it was removed: nothing of it is held any more
                found = _at_least(segment, beyond, claim_us)
            self._found[key] = found
        return found.least_us

    def _least_us(self, segment: Segment, beyond: Position, claim_us: int | None) -> int | None:
        """Read the times of a whole segment: only for one that the position or the claim cuts."""
        least: list[int] = []
        for file in self._timed_files(segment):
            for place in range(len(file.summary.batches)):
                times = self._times(file.batch(place), file.summary.kind)
                least_us = times.least_us(beyond, claim_us)
                if least_us is not None:
                    least.append(least_us)
        return min(least, default=None)

    def _timed_files(self, segment: Segment) -> list[DataFile]:
        """Return the files whose rows have times of their own."""
        is_timed = self._engine.config.is_timed
        return [file for file in segment.files if is_timed(file.summary.slot)]

    def _times(self, batch: pa.RecordBatch, kind: str) -> Times:
        """Return positions and times of stored rows, clamped as when they were sealed."""
        rows = _no_rows(batch.num_rows) if kind == OPAQUE else batch.column("_row")
        items = self._items(batch, kind)
        if items is not None:
            return _of_items(batch.column("_seq"), rows, items)
        return Times(batch.column("_seq"), rows, self._clamped_us(batch))

    def _clamped_us(self, batch: pa.RecordBatch) -> pa.Array:
        given = batch.column("_event_time").cast(pa.int64())
        latest = pc.add(batch.column("_ingestion_time").cast(pa.int64()), self._skew_us)
        in_future = pc.equal(batch.column("_event_time_flag"), int(TimeFlag.IN_FUTURE))
        clamped = pc.if_else(in_future, pc.min_element_wise(given, latest), given)
        return pc.max_element_wise(clamped, 0)

    def _items(self, batch: pa.RecordBatch, kind: str) -> ItemTimes | None:
        """Return the times of the items of stored rows; None if each row is one."""
        if kind != RAW or ITEM_TIMES not in batch.schema.names:
            return None
        arrived_us = batch.column("_ingestion_time").cast(pa.int64())
        lists = batch.column(ITEM_TIMES)
        return read_item_times(lists, self._clamped_us(batch), arrived_us, self._skew_us)


def _newest_us(times_us: pa.Array, flags: pa.Array) -> int | None:
    in_time = times_us.filter(pc.not_equal(flags, int(TimeFlag.IN_FUTURE)))
    newest_us: int | None = pc.max(in_time).as_py()
    return None if newest_us is None else max(0, newest_us)


def _newest_item_us(items: ItemTimes) -> int | None:
    in_time = items.times_us.filter(pc.invert(items.is_in_future))
    newest_us: int | None = pc.max(in_time).as_py()
    return newest_us


def _of_items(seqs: pa.Array, rows: pa.Array, items: ItemTimes) -> Times:
    """Return the times of items, at the positions of their rows."""
    return Times(seqs.take(items.places), rows.take(items.places), items.times_us)


def _at_least(segment: Segment, beyond: Position, claim_us: int | None) -> FoundEventTimes:
    """Return what the summary alone proves of a segment whose rows cannot be read."""
    first_us = segment.summary.clamped_min_event_us
    assert first_us is not None, "BUG: a segment without events was looked into"
    return FoundEventTimes(
        beyond, claim_us, first_us if claim_us is None else max(first_us, claim_us)
    )


def _pending_in(segment: Segment, position: Position) -> int:
    """Return how many events of a segment are beyond a position that cuts it.

    With the bundle table damaged, all events count: too many pending only delays a claim.
    """
    try:
        table = segment.bundle_table
    except Damaged:
        return segment.summary.events
    seqs, events = table.column("seq"), table.column("events")
    behind = pc.sum(events.filter(pc.greater(seqs, position.seq))).as_py() or 0
    cut = pc.sum(events.filter(pc.equal(seqs, position.seq))).as_py() or 0
    return int(behind + max(0, cut - position.row))


def _pending_of(bundles: Sequence[HeldBundle], position: Position) -> int:
    first = bisect.bisect_left(bundles, position.seq, key=_seq_of)
    events = sum(held.events for held in bundles[first:])
    if first < len(bundles) and bundles[first].seq == position.seq:
        events -= min(position.row, bundles[first].events)
    return events


def _seq_of(held: HeldBundle) -> int:
    return held.seq


def _flat(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name).combine_chunks()
    return column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks)


def _no_rows(count: int) -> pa.Array:
    """Return positions for rows that stand for many events each: they are beyond any row.

    A position within such a row cannot be told, so it counts as pending until the whole bundle is
    passed: a claim then waits for longer than it would have to, and is never too early.
    """
    return pa.repeat(pa.scalar(2**31 - 1, pa.int32()), count)
