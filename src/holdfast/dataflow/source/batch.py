"""`spark.read`: what is sealed now, here or at a server, without a subscriber and without a trace.

Nothing keeps segments for a batch. One that is removed between the plan and the reading of it is an
error that says so; a batch that must not meet that reads what a subscriber has not acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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

from holdfast.dataflow.source.folder import quiver_id_of, sealed_segments
from holdfast.dataflow.source.options import SourceOptions
from holdfast.dataflow.source.partitions import SegmentPiece, SourcePartition, read, split
from holdfast.dataflow.source.quiver_client import load_config
from holdfast.dataflow.source.quiver_location import (
    QuiverLocation,
    connect,
    quiver_locations,
    with_directory,
)
from holdfast.dataflow.source.schema import EVENT_TIME, WATERMARK_COLUMNS
from holdfast.errors import BadConfig
from holdfast.quiver import Position, Quiver
from holdfast.quiver.read.scan import TimeRange
from holdfast.remote import StoredSegment
from holdfast.remote.stored import stored_segments
from holdfast.remote.wire import SEQ_MAX


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
        pieces = [
            piece for place in quiver_locations(self._options) for piece in self._pieces(place)
        ]
        return [SourcePartition(group) for group in split(pieces, self._options.partition_bytes)]

    def _pieces(self, place: QuiverLocation) -> Iterator[SegmentPiece]:
        options = self._options
        start = None if options.since_seq is None else Position(options.since_seq)
        end = None if options.until_seq is None else Position(options.until_seq)
        found: Iterable[StoredSegment]
        if place.location:
            quiver = connect(place.location, place.quiver, options.client)
            if options.seal:
                quiver.flush()
            place, quiver_id = with_directory(place, quiver), quiver.quiver_id
            found = quiver.segments(options.slot, times=self._times, start=start, end=end)
        else:
            if options.seal:
                with Quiver.open(place.directory, load_config(options.quiver_config)) as opened:
                    opened.flush()
            segments = sealed_segments(place.directory)
            quiver_id = quiver_id_of(place.directory, segments)
            found = stored_segments(segments, options.slot, self._times, start, end)
        first, last = self._seqs
        for one in found:
            if first <= one.last_seq and one.first_seq <= last:
                begin = max(Position(one.first_seq), start or Position(0))
                until = min(Position(one.last_seq + 1), end or Position(SEQ_MAX))
                yield SegmentPiece(place, quiver_id, one.name, begin, until, one.size_bytes)

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
