"""Which rows of a batch fit the columns that a query reads, and which are rejected.

A column is cast as a whole, and as long as that works nothing else happens. If it does not, it is
cast in ever smaller parts, down to single values: one value that does not fit costs one row.

Rows that do not all have the columns of the query are read on a slow path (`read_drifted`). The
fast path (partitions.py) casts whole batches. It fails in two places: where a batch has a value
that does not fit the query, and where the rows of one segment have no columns in common, so that
they cannot even be read as one stream. It may have handed on some rows before. So here the piece is
read once more, with all its columns and positions, without the rows that went on before; bundles
that cannot be read together are read in halves, down to one, which has one type for each column.
Nobody pays for this but those whose columns changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from holdfast.errors import BadInput
from holdfast.quiver import Position
from holdfast.quiver.read.sealed import SealedRead

# What Arrow says to values that do not fit a type; running out of memory is none of these.
CAST_ERRORS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)
WHY_LETTERS_MAX = 200


class RejectedRow(NamedTuple):
    """A row that does not fit the query, by the first of its columns that does not."""

    # Among the rows of its batch.
    row_index: int
    column: str
    stored: pa.DataType
    wanted: pa.DataType
    # In Arrow's words.
    why: str

    def __str__(self) -> str:
        return (
            f"column {self.column!r} is {self.stored} there and {self.wanted} in the query, "
            f"and the value does not fit: {self.why}"
        )


def cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column in another type; raises one of `CAST_ERRORS` if a value does not fit it."""
    if column.type == kind:
        return column
    if column.null_count == len(column):
        return pa.nulls(len(column), kind)  # nothing fits everywhere
    if kinds.is_run_end_encoded(column.type):
        column = pc.run_end_decode(column)
    # Nanoseconds are cut to microseconds, as everywhere in Holdfast, also inside of structs.
    return pc.cast(column, options=pc.CastOptions(target_type=kind, allow_time_truncate=True))


def fit_rows(batch: pa.RecordBatch, wanted: pa.Schema) -> tuple[pa.RecordBatch, list[RejectedRow]]:
    """Return the rows that fit, in their order, and the others, each with what does not fit.

    Columns that the batch lacks are null, those that the query does not want are left out.
    """
    arrays: list[pa.Array] = []
    rejected: dict[int, RejectedRow] = {}
    for field in wanted:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            arrays.append(pa.nulls(batch.num_rows, field.type))
            continue
        array, failed = _fit_values(batch.column(index), field)
        arrays.append(array)
        for rejected_row in failed:
            rejected.setdefault(rejected_row.row_index, rejected_row)
    fitted = pa.RecordBatch.from_arrays(arrays, schema=wanted)
    if rejected:
        fitted = fitted.filter(pa.array([p not in rejected for p in range(batch.num_rows)]))
    return fitted, [rejected[index] for index in sorted(rejected)]


def _fit_values(column: pa.Array, field: pa.Field) -> tuple[pa.Array, Sequence[RejectedRow]]:
    """Return a column in its wanted type, with nulls where a value does not fit."""
    parts: list[pa.Array] = []
    rejected: list[RejectedRow] = []
    left = [(0, len(column))]
    while left:
        first, end = left.pop()
        part = _part(column, first, end)
        try:
            parts.append(cast(part, field.type))
        except CAST_ERRORS as error:
            if end - first > 1 and not _is_hopeless(error, part):
                middle = (first + end) // 2
                left += [(middle, end), (first, middle)]
                continue
            parts.append(pa.nulls(len(part), field.type))
            rejected += [
                RejectedRow(first + index, field.name, column.type, field.type, _in_words(error))
                for index, is_valid in enumerate(part.is_valid().to_pylist())
                if is_valid
            ]
    return pa.concat_arrays(parts), rejected


def _in_words(error: Exception) -> str:
    """Return what Arrow says, without all of a long value."""
    return str(error)[:WHY_LETTERS_MAX]


def _part(column: pa.Array, first: int, end: int) -> pa.Array:
    """Return some values, without the elements of their neighbours, which Arrow would cast, too."""
    part = column.slice(first, end - first)
    return pa.concat_arrays([part]) if kinds.is_nested(part.type) and len(part) else part


def _is_hopeless(error: Exception, part: pa.Array) -> bool:
    """Whether no value of a part can be cast: its type alone rules that out."""
    return isinstance(error, pa.ArrowNotImplementedError) and not kinds.is_nested(part.type)


ReadSealed = Callable[[SealedRead], pa.RecordBatchReader]


class Fitted(NamedTuple):
    """Some rows as they are stored, those of them that fit, and why the others do not."""

    rows: pa.RecordBatch
    rejected: Sequence[RejectedRow]
    stored: pa.RecordBatch


def read_drifted(
    read: ReadSealed, piece: SealedRead, wanted: pa.Schema, rows_before: int
) -> Iterator[Fitted]:
    """Yield the rows of a piece but the first ones, as far as they have the wanted columns."""
    positions = read(replace(piece, columns=("_seq", "_row"))).read_all()
    last_rows = (
        positions.slice(0, rows_before).group_by("_seq").aggregate([("_row", "max")])
        if rows_before
        else None
    )
    seqs = sorted(pc.unique(positions["_seq"]).to_pylist())
    for stored in _stored(read, piece, seqs):
        for rows in [stored] if last_rows is None else _beyond(stored, last_rows):
            yield Fitted(*fit_rows(rows, wanted), rows)


def _stored(read: ReadSealed, piece: SealedRead, seqs: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield some bundles with all columns; in halves, if these have no type in common."""
    if not seqs:
        return
    first, end = Position(seqs[0]), Position(seqs[-1] + 1)
    start = first if piece.start is None else max(first, piece.start)
    until = end if piece.end is None else min(end, piece.end)
    try:
        batches = list(read(replace(piece, columns=None, start=start, end=until)))
    except BadInput:
        if len(seqs) == 1:
            raise
        middle = len(seqs) // 2
        yield from _stored(read, piece, seqs[:middle])
        yield from _stored(read, piece, seqs[middle:])
    else:
        yield from batches


def _beyond(rows: pa.RecordBatch, last_rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield the rows behind the last one of each bundle that went on before, in slices.

    A bundle's rows are of one file, and come in order.
    """
    places = pc.index_in(rows.column("_seq"), value_set=last_rows["_seq"].combine_chunks())
    last = pc.fill_null(last_rows["_row_max"].combine_chunks().take(places), -1)
    is_left = pc.greater(rows.column("_row"), last).to_pylist()
    for is_wanted, run in groupby(range(rows.num_rows), key=is_left.__getitem__):
        if is_wanted:
            first, *others = run
            yield rows.slice(first, 1 + len(others))
