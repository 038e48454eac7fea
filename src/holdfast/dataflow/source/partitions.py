"""The executor's side: reads the segments of a partition, and adds the watermark columns.

Rejected rows, which do not fit the columns of the query, do not come this far: see
rejected_judge.py and rejected_stage.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from holdfast.dataflow.source.options import SourceOptions
from holdfast.dataflow.source.partials import PartialAggregates, PartialSpec
from holdfast.dataflow.source.quiver_location import QuiverLocation, read_sealed
from holdfast.dataflow.source.rejected_judge import read_drifted
from holdfast.dataflow.source.rejected_stage import (
    RejectedFile,
    RejectedFileName,
    letters,
    sentence,
    staging_folder,
)
from holdfast.dataflow.source.schema import EVENT_TIME, WATERMARK_COLUMNS, fitter
from holdfast.errors import BadInput
from holdfast.quiver.base.envelope import TIME_TYPE
from holdfast.quiver.ledger.subscriber import Position
from holdfast.quiver.read.scan import OnDamage, TimeRange
from holdfast.quiver.read.sealed import SealedRead
from holdfast.quiver.read.tables import table_batches, table_schema
from holdfast.replica.copies import SegmentCopy, read_any
from holdfast.signals.registry import tables

# Less than this is read by one task, though another core may be idle: a second task costs more.
SHARED_BYTES_MIN = 1024 * 1024


class SegmentPiece(NamedTuple):
    """Some bundles of one sealed segment, to be read by one task."""

    place: QuiverLocation
    quiver_id: str
    segment: str
    start: Position
    end: Position
    # About: what a batch takes of a segment is not known before it is read.
    size_bytes: int
    # Of parts that several places have: all of them, in the order in which they are tried.
    copies: tuple[SegmentCopy[QuiverLocation], ...] = ()


@dataclass(frozen=True)
class Claimed:
    """The watermark columns of a batch."""

    claim_us: int
    before_us: int


class SourcePartition(InputPartition):
    """What one task reads."""

    def __init__(
        self,
        pieces: tuple[SegmentPiece, ...],
        claimed: Claimed | None = None,
        control: bool = False,
    ) -> None:
        super().__init__(None)
        self.pieces = pieces
        self.claimed = claimed
        # Whether it also yields the batch's control row.
        self.control = control


def split(pieces: list[SegmentPiece], partition_bytes: int) -> list[tuple[SegmentPiece, ...]]:
    """Return the pieces in groups of at most so many bytes, in order, a piece at least in each.

    A task costs Spark some 50 ms of CPU whatever it reads, so they are large. Where less is to be
    read than that, every core of this machine has some of it, unless it is too little to share.
    """
    cores = os.cpu_count() or 1
    fair_bytes = -(-sum(piece.size_bytes for piece in pieces) // cores)
    most_bytes = min(partition_bytes, max(fair_bytes, SHARED_BYTES_MIN))
    groups: list[tuple[SegmentPiece, ...]] = []
    group: list[SegmentPiece] = []
    size_bytes = 0
    for piece in pieces:
        if group and size_bytes + piece.size_bytes > most_bytes:
            groups.append(tuple(group))
            group, size_bytes = [], 0
        group.append(piece)
        size_bytes += piece.size_bytes
    return [*groups, tuple(group)] if group else groups


def read(
    partition: SourcePartition,
    schema: StructType,
    options: SourceOptions,
    times: TimeRange | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition as Spark's schema has them; of some times, or as it is said.

    Rows that do not fit the schema are rejected, or an error that names the first of them.
    """
    wanted = to_arrow_schema(schema, timezone="UTC")
    fit = fitter(wanted)
    chosen = times or TimeRange.of(*options.times)
    spec = PartialSpec.from_option(options.partials) if options.partials else None
    rows = _rows(partition, wanted if spec is None else spec.stored, options, chosen)
    for batch in rows if spec is None else PartialAggregates(spec).of(rows):
        yield fit(_with_watermark(batch, partition.claimed))
    if partition.control:
        assert partition.claimed is not None, "BUG: a control row without a claim"
        yield fit(_control_row(partition.claimed))


def _rows(
    partition: SourcePartition, wanted: pa.Schema, options: SourceOptions, times: TimeRange
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all pieces of a partition."""
    for piece in partition.pieces:
        made = _PieceReader(piece, wanted, options, times)
        yield from made.items(times) if options.table else made.rows()


class _PieceReader:
    """Reads the stored columns of one piece."""

    def __init__(
        self, piece: SegmentPiece, wanted: pa.Schema, options: SourceOptions, times: TimeRange
    ) -> None:
        self._piece = piece
        self._options = options
        self._columns = pa.schema([f for f in wanted if f.name not in WATERMARK_COLUMNS])
        self._wanted = SealedRead(
            piece.quiver_id,
            (piece.segment,),
            options.slot,
            tuple(self._columns.names),
            piece.start,
            piece.end,
            times,
            _on_damage(options),
        )

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that fit.

        The fast path casts whole batches, and nobody counts rejected rows on it: the first batch
        that does not fit raises `BadInput`, and the slow path takes over behind the rows that went
        on before. The file of rejected rows is published in either case: a task that runs again,
        and finds that all rows fit now, removes the file that its first run left.
        """
        staged = self._staged() if self._options.unfit else None
        fit, rows_before = fitter(self._columns), 0
        try:
            try:
                for batch in self._read(self._wanted):
                    yield fit(batch)
                    rows_before += batch.num_rows
            except BadInput as error:
                yield from self._drifted(rows_before, staged, error)
            if staged is not None:
                staged.publish()
        finally:
            if staged is not None:
                staged.discard()

    def items(self, times: TimeRange) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a table that the piece holds. They always fit: its columns are ours."""
        table = tables()[self._options.table]

        def scan_slot(slot: str, columns: Sequence[str] | None) -> pa.RecordBatchReader:
            chosen = None if columns is None else tuple(columns)
            # Which items are of the wanted times is known when they are rows. And a bundle that
            # lacks rows of one slot is left out whole, which those of the others have to say.
            wanted = replace(self._wanted, slot=slot, columns=chosen, times=TimeRange())
            if columns is None and wanted.on_damage == "skip":
                wanted = replace(wanted, on_damage="flag")
            return self._read(wanted)

        how = self._wanted.on_damage
        whole = table_schema(table, on_damage=how).names
        known = [name for name in self._columns.names if name in whole]
        return table_batches(table, scan_slot, table_schema(table, known, how), times)

    def _staged(self) -> RejectedFile:
        """Return the file for rejected rows, named after what is read: a second run replaces it."""
        piece = self._piece
        name = RejectedFileName(piece.quiver_id, piece.segment, piece.start, piece.end)
        return RejectedFile(staging_folder(self._options), name)

    def _read(self, wanted: SealedRead) -> pa.RecordBatchReader:
        piece = self._piece
        if not piece.copies:
            return read_sealed(piece.place, wanted, self._options)

        def read_copy(copy: SegmentCopy[QuiverLocation]) -> pa.RecordBatchReader:
            there = replace(wanted, quiver_id=copy.quiver_id, segments=(copy.segment.name,))
            return read_sealed(copy.place, there, self._options)

        return read_any(piece.copies, read_copy)

    def _drifted(
        self, rows_before: int, staged: RejectedFile | None, error: BadInput
    ) -> Iterator[pa.RecordBatch]:
        """Yield those of the rows that are left that fit, and stage the others as rejected.

        Without a place for rejected rows the first of them ends the query: leaving it out silently
        would be losing it.
        """
        name, piece = self._options.called, self._piece
        where = f"quiver {piece.quiver_id}, segment {piece.segment}, {piece.place.name}"
        for one in read_drifted(self._read, self._wanted, self._columns, rows_before):
            if one.rejected and staged is None:
                raise BadInput(
                    sentence(name, where, one.stored, one.rejected[0]),
                    hint="start the query with a wider .schema(…), leave the column out, or name "
                    "with option unfit a directory for rejected rows",
                ) from error
            if staged is not None:
                staged.add(letters(one.stored, one.rejected, name, where))
            yield one.rows


def _on_damage(options: SourceOptions) -> OnDamage:
    if options.partial:
        return "flag"
    # Who commits records what is passed over; a batch query commits nothing.
    return "skip" if options.subscriber and options.on_data_loss == "count" else "fail"


def _with_watermark(batch: pa.RecordBatch, claimed: Claimed | None) -> pa.RecordBatch:
    """Return rows with the claim of their batch and that of the batch before, the same in all."""
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
    """Return the row that carries the claim through a batch, even if filters leave no event."""
    claim = pa.array([claimed.claim_us], TIME_TYPE)
    row = pa.record_batch({EVENT_TIME: claim})
    return _with_watermark(row, claimed).set_column(3, "_control", pa.array([True]))
