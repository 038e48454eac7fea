"""`spark.read`: everything that is sealed now, without a subscriber and without a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from holdfast.dataflow.source.folder import sealed_segments
from holdfast.dataflow.source.options import SourceOptions
from holdfast.dataflow.source.place import Place, places
from holdfast.dataflow.source.reading import Piece, SourcePartition, read, split
from holdfast.dataflow.source.schema import WATERMARK_COLUMNS
from holdfast.errors import BadConfig
from holdfast.quiver.ledger.outcome import Position
from holdfast.quiver.read.scan import TimeRange


class BatchReader(DataSourceReader):
    """Reads the sealed segments of some data directories, pruned by event time."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if options.watermark:
            raise BadConfig(
                f"a batch has no watermark, so no {', '.join(WATERMARK_COLUMNS)}",
                hint="leave out option watermark, or use readStream",
            )
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return groups of segments that may hold rows of the asked times."""
        pieces = [
            piece
            for place in places(self._options)
            for piece in self._pieces(place, TimeRange.of(*self._options.times))
        ]
        return [SourcePartition(group) for group in split(pieces, self._options.partition_bytes)]

    def _pieces(self, place: Place, times: TimeRange) -> Iterator[Piece]:
        if place.location:
            raise BadConfig(
                f"{place.name} is at a server, and a batch reads directories",
                hint="name its data directory with option path; its owner may go on meanwhile",
            )
        for segment in sealed_segments(place.directory):
            summary = segment.summary
            batches = [batch for file in summary.files for batch in file.batches]
            if any(times.may_overlap(b.min_event_us, b.max_event_us) for b in batches):
                start, end = Position(summary.first_seq), Position(summary.last_seq + 1)
                name, quiver_id = segment.path.name, summary.quiver_id
                yield Piece(place, quiver_id, name, start, end, summary.size_bytes)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some segments."""
        assert isinstance(partition, SourcePartition), "BUG: not a partition of this source"
        return read(partition, self._schema, self._options)
