"""Reading rows that do not all have the columns of the query: the slow way.

The way for all others (reading.py) casts whole batches. It fails in two places: where a batch has a
value that does not fit the query, and where the rows of one segment have no columns in common, so
that they cannot even be read as one stream. It may have handed on some rows before. So here the
piece is read once more, with all its columns and positions, without the rows that went on before;
bundles that cannot be read together are read in halves, down to one, which has one type for each
column. Nobody pays for this but those whose columns changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.dataflow.source.fitting import Misfit, fit_rows
from holdfast.errors import BadInput
from holdfast.quiver import Position
from holdfast.quiver.read.sealed import SealedRead

Read = Callable[[SealedRead], pa.RecordBatchReader]


class Fitted(NamedTuple):
    """Some rows as they are stored, those of them that fit, and why the others do not."""

    rows: pa.RecordBatch
    misfits: Sequence[Misfit]
    stored: pa.RecordBatch


def read_drifted(
    read: Read, piece: SealedRead, wanted: pa.Schema, rows_before: int
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


def _stored(read: Read, piece: SealedRead, seqs: Sequence[int]) -> Iterator[pa.RecordBatch]:
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
