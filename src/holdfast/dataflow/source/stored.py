"""A quiver as it is stored, read once and without a subscriber: `spark.read`, and replays.

`spark.read` reads what is sealed now, here, at a server or in an archive. Nothing keeps segments
for such a batch. One that is removed between the plan and the reading of it, and is in no other
place that was named, is an error that says so; a batch that must not meet that reads what a
subscriber has not acknowledged.

A replay is a stream. The planner does not see the difference: it plans, claims and reads as over a
cursor. But nothing is registered, pinned or acknowledged, the owner works on meanwhile, and a
bundle that another subscriber has processed is read again as long as it is there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from holdfast.dataflow.source.options import SourceOptions
from holdfast.dataflow.source.partitions import SegmentPiece, SourcePartition, read, split
from holdfast.dataflow.source.quiver_client import QuiverClient, config_of
from holdfast.dataflow.source.quiver_location import (
    QuiverLocation,
    connect,
    quiver_id_of,
    quiver_locations,
    sealed_segments,
    segments_in_archive,
    with_directory,
)
from holdfast.dataflow.source.schema import EVENT_TIME, WATERMARK_COLUMNS
from holdfast.errors import BadConfig, DirectoryLocked, NotAllowed, UnknownPosition
from holdfast.quiver import EventTimeStatement, Position, Quiver
from holdfast.quiver.read.scan import TimeRange
from holdfast.quiver.read.tables import ItemTimeRange
from holdfast.quiver.segments.segment import Segment
from holdfast.remote import PlannedRange, StoredSegment
from holdfast.remote.stored import stored_segments
from holdfast.remote.wire import SEQ_MAX
from holdfast.replica.copies import CopiedRange, SegmentCopy, each_once
from holdfast.seam import Seam
from holdfast.signals.registry import tables

log = logging.getLogger("holdfast.dataflow")


def _seal(place: QuiverLocation, options: SourceOptions) -> None:
    """Have everything sealed that the quiver holds now; only sealed segments can be listed."""
    if place.location:
        connect(place.location, place.quiver, options.client).flush()
    else:
        with Quiver.open(place.directory, config_of(options)) as quiver:
            quiver.flush()


def _stored(
    place: QuiverLocation, options: SourceOptions, times: TimeRange
) -> tuple[QuiverLocation, str, Iterable[StoredSegment]]:
    """Return a quiver's place, its id, and its segments that may hold wanted rows."""
    start, end = _range(options)
    if place.location:
        quiver = connect(place.location, place.quiver, options.client)
        # A server goes by the times of stored rows; an item of one may be later.
        asked = TimeRange() if options.table else times
        listed = [quiver.segments(s, times=asked, start=start, end=end) for s in _slots(options)]
        return with_directory(place, quiver), quiver.quiver_id, _each_once(listed)
    segments = sealed_segments(place.directory)
    quiver_id = quiver_id_of(place.directory, segments)
    return place, quiver_id, _wanted(segments, options, times)


def _wanted(
    segments: Sequence[Segment], options: SourceOptions, times: TimeRange
) -> list[StoredSegment]:
    """Return those of a quiver's segments that may hold wanted rows, by their summaries."""
    start, end = _range(options)
    asked = ItemTimeRange(times.since_us, times.until_us) if options.table else times
    return _each_once([stored_segments(segments, s, asked, start, end) for s in _slots(options)])


def _archived(
    place: QuiverLocation, options: SourceOptions, times: TimeRange
) -> Iterator[tuple[QuiverLocation, str, Iterable[StoredSegment]]]:
    """Yield the quivers in an archive, as `_stored` returns one."""
    quivers: dict[QuiverLocation, list[Segment]] = {}
    for one in segments_in_archive(place.archive, options):
        there = replace(place, quiver=one.path.parent.parent.as_posix())
        quivers.setdefault(there, []).append(one)
    if options.is_range and len(quivers) > 1:
        raise BadConfig(
            f"each quiver has numbers of its own, and {place.name} has {len(quivers)}",
            hint="add the folder of one to the address, or read by event time: since, until",
        )
    for there, segments in quivers.items():
        yield there, segments[0].summary.quiver_id, _wanted(segments, options, times)


def _slots(options: SourceOptions) -> Sequence[str]:
    """Return the slots whose rows decide which segments are read."""
    if not options.table:
        return [options.slot]
    table = tables()[options.table]
    return [table.raw_slot, *table.arrow_slots[:1]]


def _each_once(listed: Sequence[Sequence[StoredSegment]]) -> list[StoredSegment]:
    """Return segments that were listed for several slots, with what they have of all."""
    found: dict[int, StoredSegment] = {}
    for one in (one for segments in listed for one in segments):
        known = found.get(one.first_seq, replace(one, rows=0, size_bytes=0))
        rows, size_bytes = known.rows + one.rows, known.size_bytes + one.size_bytes
        found[one.first_seq] = replace(known, rows=rows, size_bytes=size_bytes)
    return [found[first_seq] for first_seq in sorted(found)]


def _range(options: SourceOptions) -> tuple[Position | None, Position | None]:
    since, until = options.since_seq, options.until_seq
    return None if since is None else Position(since), None if until is None else Position(until)


class StoredQuiverClient(QuiverClient):
    """The sealed segments of a quiver, here or at a server, as they are when it is first asked."""

    def __init__(self, place: QuiverLocation, options: SourceOptions, seam: Seam) -> None:
        super().__init__(place, options)
        self._seam = seam
        self._segments: Sequence[StoredSegment] = ()

    def _attach(self) -> str:
        """Seal what may be sealed, and list the segments once: a replay reads a fixed set."""
        try:
            _seal(self.place, self._options)
        except (DirectoryLocked, NotAllowed) as error:
            log.warning("%s: what is not sealed yet is left out: %s", self.name, error.message)
        times = TimeRange.of(*self._options.times)
        self.place, quiver_id, found = _stored(self.place, self._options, times)
        self._segments = list(found)
        return quiver_id

    def _bounds(self, one: StoredSegment) -> tuple[int, int]:
        """Return the first of its bundles that is wanted, and the end."""
        since, until = self._options.since_seq, self._options.until_seq
        first, end = one.first_seq, one.last_seq + 1
        return (
            first if since is None else max(first, since),
            end if until is None else min(end, until),
        )

    def position(self) -> Position:
        """See `QuiverClient`."""
        return Position(self._bounds(self._segments[0])[0] if self._segments else 0)

    def seal(self) -> int:
        """See `QuiverClient`; nothing comes to what is stored."""
        return self._bounds(self._segments[-1])[1] if self._segments else 0

    def _beyond(self, position: Position) -> Iterator[StoredSegment]:
        return (one for one in self._segments if self._bounds(one)[1] > position.seq)

    def plan(self, start: Position, max_rows: int, max_bytes: int) -> PlannedRange | None:
        """See `QuiverClient`."""
        rows = size_bytes = 0
        chosen: list[StoredSegment] = []
        for one in self._beyond(start):
            rows, size_bytes = rows + one.rows, size_bytes + one.size_bytes
            if chosen and (rows > max_rows or size_bytes > max_bytes):
                break
            chosen.append(one)
        return self._range(start, Position(self._bounds(chosen[-1])[1]), chosen) if chosen else None

    def replan(self, start: Position, end: Position) -> PlannedRange:
        """See `QuiverClient`."""
        chosen = [one for one in self._beyond(start) if self._bounds(one)[0] < end.seq]
        if not chosen or chosen[-1].last_seq + 1 < end.seq:
            raise UnknownPosition(
                f"{self.name} has no bundles up to {end.seq} any more",
                hint="start the replay again, in another folder",
            )
        return self._range(start, end, chosen)

    def _range(
        self, start: Position, end: Position, chosen: Sequence[StoredSegment]
    ) -> PlannedRange:
        """Return segments as the range that a cursor would have planned."""
        return PlannedRange(
            self.reach(),
            start,
            end,
            sum(one.rows for one in chosen),
            sum(one.size_bytes for one in chosen),
            tuple(one.name for one in chosen),
        )

    def commit(self, start: Position, end: Position) -> None:
        """See `QuiverClient`; without a subscriber there is nothing to acknowledge."""

    def statement(self, position: Position, claim_us: int) -> EventTimeStatement:
        """See `QuiverClient`; of a segment not read the earliest event counts, late or not."""
        left = list(self._beyond(position))
        earliest = [one.min_event_us for one in left if one.min_event_us is not None]
        newest = [one.max_event_us for one in self._segments if one.max_event_us is not None]
        clock_ns = self._seam.clock.wall_ns()
        return EventTimeStatement(
            quiver_id=self.reach(),
            position=position,
            claim_us=claim_us,
            through_seq=self.seal() - 1,
            min_event_us=max(claim_us, min(earliest)) if earliest else None,
            pending_events=sum(one.rows for one in left),
            max_event_us=max(newest, default=None),
            # Never idle: a clock says nothing about what is stored.
            quiet_since_ns=clock_ns,
            clock_ns=clock_ns,
            producer_watermarks=dict.fromkeys(self._options.producers, 0),
        )

    def close(self) -> None:
        """See `QuiverClient`; nothing was registered."""
        self._quiver_id = None


class BatchReader(DataSourceReader):
    """Reads sealed segments, pruned by their summaries."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if options.watermark:
            raise BadConfig(
                f"a batch has no watermark, so no {', '.join(WATERMARK_COLUMNS)}",
                hint="leave out option watermark, or use readStream",
            )
        if options.unfit:
            raise BadConfig(
                "a batch has no checkpoint, so nothing says when its rows are done with",
                hint="leave out option unfit: a row that does not fit is an error that names it",
            )
        self._options = options
        self._schema = schema
        # What conditions of the query leave of it; wider than they are, never narrower.
        self._times = TimeRange.of(*options.times)
        self._seqs = (0, SEQ_MAX)

    def partitions(self) -> Sequence[InputPartition]:
        """Return groups of segments that may hold wanted rows."""
        places = quiver_locations(self._options)
        found = [copy for place in places for copy in self._segments(place)]
        pieces = [self._piece(one) for one in each_once(found)]
        return [SourcePartition(group) for group in split(pieces, self._options.partition_bytes)]

    def _segments(self, place: QuiverLocation) -> Iterator[SegmentCopy[QuiverLocation]]:
        """Yield the segments of a place that may hold wanted rows."""
        if self._options.seal and not place.archive:
            _seal(place, self._options)
        quivers = (
            _archived(place, self._options, self._times)
            if place.archive
            else [_stored(place, self._options, self._times)]
        )
        first, last = self._seqs
        for there, quiver_id, found in quivers:
            for one in found:
                if first <= one.last_seq and one.first_seq <= last:
                    yield SegmentCopy(there, quiver_id, one)

    def _piece(self, wanted: CopiedRange[QuiverLocation]) -> SegmentPiece:
        """Return what is to be read of some bundles.

        Numbers that the options name cut segments exactly. Conditions of the query only leave out
        whole segments: Spark applies them to the rows once more.
        """
        start, end = _range(self._options)
        begin = max(Position(wanted.first_seq), start or Position(0))
        until = min(Position(wanted.end_seq), end or Position(SEQ_MAX))
        # What is here, or at a server, is nearer than what is in a bucket.
        copies = tuple(sorted(wanted.copies, key=lambda copy: bool(copy.place.archive)))
        place, quiver_id, one = copies[0]
        copies = copies if len(copies) > 1 else ()
        return SegmentPiece(place, quiver_id, one.name, begin, until, one.size_bytes, copies)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some segments."""
        assert isinstance(partition, SourcePartition), "BUG: not a partition of this source"
        return read(partition, self._schema, self._options, self._times)


class PushingBatchReader(BatchReader):
    """Also looks at the query's own conditions. Apart, because Spark refuses it where that is off.

    Spark judges the rows once more: what is read is what may be wanted, not what is.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take note of conditions on event time and bundle number; return all of them."""
        for one in filters:
            if isinstance(
                one, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
            ):
                self._narrow(one)
        return filters

    def _narrow(
        self, one: EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
    ) -> None:
        """Narrow what is read by one condition of the query.

        Bounds of numbers and times are kept a little too wide (`>` counts as `>=`): they only
        decide which segments are read, and Spark applies the condition to the rows.
        """
        is_lower = not isinstance(one, LessThan | LessThanOrEqual)
        is_upper = not isinstance(one, GreaterThan | GreaterThanOrEqual)
        value = one.value
        if one.attribute == ("_seq",) and isinstance(value, int):
            first, last = self._seqs
            self._seqs = (
                max(first, value) if is_lower else first,
                min(last, value) if is_upper else last,
            )
        elif one.attribute == (EVENT_TIME,) and isinstance(value, datetime) and value.tzinfo:
            us, times = TimeRange.of(value, None).since_us, self._times
            assert us is not None
            since_us = max(us, times.since_us) if times.since_us is not None else us
            until_us = min(us + 1, times.until_us) if times.until_us is not None else us + 1
            self._times = TimeRange(
                since_us if is_lower else times.since_us, until_us if is_upper else times.until_us
            )
