"""The executor's side: maps the segments of a partition and yields their rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from holdfast.dataflow.source.folder import open_segment
from holdfast.dataflow.source.gateway import Piece
from holdfast.dataflow.source.options import SourceOptions
from holdfast.dataflow.source.schema import WATERMARK_COLUMNS, fitter
from holdfast.quiver.envelope import TIME_TYPE
from holdfast.quiver.scan import TimeRange, scan
from holdfast.quiver.segment import Segment
from holdfast.quiver.segment_rows import OPAQUE

_POSITION = ("_seq", "_row")


@dataclass(frozen=True)
class Claimed:
    """The watermark columns of a batch."""

    claim_us: int
    before_us: int


class SourcePartition(InputPartition):
    """What one task reads."""

    def __init__(
        self, pieces: tuple[Piece, ...], claimed: Claimed | None = None, control: bool = False
    ) -> None:
        super().__init__(None)
        self.pieces = pieces
        self.claimed = claimed
        # Whether it also yields the batch's control row.
        self.control = control


def split(pieces: list[Piece], partition_bytes: int) -> list[tuple[Piece, ...]]:
    """Return the pieces in groups of about so many bytes, in order."""
    groups: list[tuple[Piece, ...]] = []
    group: list[Piece] = []
    size_bytes = 0
    for piece in pieces:
        if group and size_bytes + piece.size_bytes > partition_bytes:
            groups.append(tuple(group))
            group, size_bytes = [], 0
        group.append(piece)
        size_bytes += piece.size_bytes
    return [*groups, tuple(group)] if group else groups


def read(
    partition: SourcePartition, schema: StructType, options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition as Spark's schema has them."""
    wanted = to_arrow_schema(schema, timezone="UTC")
    fit = fitter(wanted)
    for piece in partition.pieces:
        for batch in _rows(piece, wanted, options):
            yield fit(_with_watermark(batch, partition.claimed))
    if partition.control:
        assert partition.claimed is not None, "BUG: a control row without a claim"
        yield fit(_control_row(partition.claimed))


def _rows(piece: Piece, wanted: pa.Schema, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    segment = open_segment(piece.segment)
    slot = options.slot or _only_slot(segment)
    if slot is None:
        return
    columns = _present(segment, slot, wanted)
    times = TimeRange.of(*options.times)
    for batch in scan([segment], (), slot, columns, times, "fail"):
        part = _between(batch, piece)
        if part.num_rows:
            yield part


def _only_slot(segment: Segment) -> str | None:
    """Return the segment's slot, if it has rows; `scan` refuses several."""
    return next((file.summary.slot for file in segment.files), None)


def _present(segment: Segment, slot: str, wanted: pa.Schema) -> list[str] | None:
    """Return the wanted columns that the segment has, with those that say where a row is."""
    if any(file.summary.kind == OPAQUE for file in segment.files):
        return None
    known = {
        name for file in segment.files if file.summary.slot == slot for name in file.schema.names
    }
    return [*_POSITION, *(name for name in wanted.names if name in known - set(_POSITION))]


def _between(batch: pa.RecordBatch, piece: Piece) -> pa.RecordBatch:
    seqs = batch.column("_seq")
    found = pc.min_max(seqs)
    first, last = found["min"].as_py(), found["max"].as_py()
    if first is None:
        return batch
    inside = piece.first_seq <= first and last < piece.end_seq
    if inside and not (piece.first_row and first == piece.first_seq):
        return batch
    mask = pc.and_(pc.greater_equal(seqs, piece.first_seq), pc.less(seqs, piece.end_seq))
    if piece.first_row:
        rows = pc.greater_equal(batch.column("_row"), piece.first_row)
        mask = pc.and_(mask, pc.or_(pc.greater(seqs, piece.first_seq), rows))
    return batch.filter(mask)


def _with_watermark(batch: pa.RecordBatch, claimed: Claimed | None) -> pa.RecordBatch:
    if claimed is None:
        return batch
    values = (
        pa.scalar(claimed.claim_us, TIME_TYPE),
        pa.scalar(claimed.before_us, TIME_TYPE),
        pa.scalar(False),
    )
    for name, value in zip(WATERMARK_COLUMNS, values, strict=True):
        batch = batch.append_column(name, pa.repeat(value, batch.num_rows))
    return batch


def _control_row(claimed: Claimed) -> pa.RecordBatch:
    """Return a row that is no event.

    Its event time is not null: `window()` filters nulls, below the node that looks at `_wm`.
    """
    claim = pa.array([claimed.claim_us], TIME_TYPE)
    row = pa.record_batch({"_event_time": claim})
    return _with_watermark(row, claimed).set_column(3, "_control", pa.array([True]))
