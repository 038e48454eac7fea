"""Rows for a reducer in Python, packed: one row for each group of a batch, with all its rows.

Spark hands rows to a stateful operator one by one, value by value, and that costs more than most
functions do. So before rows are sent to where their group is, each Arrow batch is sorted by groups,
and a group's rows become one value: what the operator's state is going to hold of them anyway.

A packed row says in `_close` when the last of its rows has nothing to wait for any more. Late rows
are gone by then, so Spark has none to drop by it.

A piece is a pickle of columns by name; for functions that take Arrow it is an Arrow stream. A list
of rows is what earlier versions kept: such state goes on.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.dataflow.compiler.calls import moments
from holdfast.dataflow.source.schema import fitter

PACKED = "_rows"
# Columns of the rows that a reducer is given, which only the operator needs.
OURS = ("_close", "_everything", "_window_start", "_window_end")
_PLACE = "_place"


class RowPacker:
    """What one task does with its batches; made in the driver, called in workers."""

    def __init__(self, groups: Sequence[str], schema: pa.Schema, *, as_arrow: bool = False) -> None:
        self._groups = list(groups)
        self._schema = schema
        self._as_arrow = as_arrow

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the groups of each batch, packed."""
        fit = fitter(self._schema)
        for batch in batches:
            if batch.num_rows:
                yield fit(self._packed(batch))

    def _packed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        places, closes = _grouped(batch, self._groups)
        own = batch.select([name for name in batch.schema.names if name not in OURS])
        ordered = own.take(pc.list_flatten(places))
        ends = pc.cumulative_sum(pc.list_value_length(places)).to_pylist()
        bounds = list(zip([0, *ends], ends, strict=False))
        pieces = (_streams if self._as_arrow else _pickles)(ordered, bounds)
        firsts = batch.select(self._groups).take(pc.list_element(places, 0))
        return pa.RecordBatch.from_arrays(
            [*firsts.columns, closes, pa.array(pieces, pa.binary())],
            names=[*self._groups, "_close", PACKED],
        )


def _grouped(batch: pa.RecordBatch, groups: list[str]) -> tuple[pa.Array, pa.Array]:
    """Return the places of each group's rows, and when the last of them closes.

    Where Arrow cannot group by a type, every row is a group: Spark groups them as it does anyway.
    """
    numbers = pa.array(range(batch.num_rows), pa.int64())
    table = pa.table(
        [*batch.select(groups).columns, numbers, batch.column("_close")],
        names=[*groups, _PLACE, "_close"],
    )
    try:
        found = table.group_by(groups, use_threads=False).aggregate(
            [(_PLACE, "list"), ("_close", "max")]
        )
    except pa.ArrowNotImplementedError:
        offsets = pa.array(range(batch.num_rows + 1), pa.int32())
        return pa.ListArray.from_arrays(offsets, numbers), batch.column("_close")
    return (
        found[f"{_PLACE}_list"].combine_chunks(),
        found["_close_max"].combine_chunks(),
    )


def _pickles(rows: pa.RecordBatch, bounds: list[tuple[int, int]]) -> list[bytes]:
    columns = {name: _values(rows.column(name)) for name in rows.schema.names}
    return [
        pickle.dumps({name: values[start:end] for name, values in columns.items()})
        for start, end in bounds
    ]


def _values(column: pa.Array) -> list[Any]:
    """Return values as functions see them: times in UTC, maps as dicts."""
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        return moments(column)
    values: list[Any] = column.to_pylist(maps_as_pydicts="lossy")
    return values


def _streams(rows: pa.RecordBatch, bounds: list[tuple[int, int]]) -> list[bytes]:
    pieces = []
    for start, end in bounds:
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, rows.schema) as stream:
            stream.write_batch(rows.slice(start, end - start))
        pieces.append(out.getvalue().to_pybytes())
    return pieces


def joined(pieces: Iterable[bytes]) -> pa.RecordBatch:
    """Return the rows of pieces of Arrow, by event time; new columns are null before."""
    tables = [pa.ipc.open_stream(piece).read_all() for piece in pieces]
    table = pa.concat_tables(tables, promote_options="permissive").sort_by("_event_time")
    return table.combine_chunks().to_batches()[0]


def unpacked(piece: bytes) -> list[dict[str, Any]]:
    """Return the rows of a piece."""
    kept: Any = pickle.loads(piece)
    if isinstance(kept, list):
        return kept
    names = tuple(kept)
    return [dict(zip(names, values, strict=True)) for values in zip(*kept.values(), strict=True)]


def repacked(rows: Sequence[dict[str, Any]]) -> bytes:
    """Return some rows of pieces, which have the same columns, as one piece."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pickle.dumps({name: [row.get(name) for row in rows] for name in names})
