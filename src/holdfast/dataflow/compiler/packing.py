"""Rows for a reducer in Python, packed: one row for each group of a batch, with all its rows.

Spark hands rows to a stateful operator one by one, value by value, and that costs more than most
functions do. So before rows are sent to where their group is, each Arrow batch is sorted by groups,
and a group's rows become one value: what the operator's state is going to hold of them anyway.

A packed row says in `_close` when the last of its rows has nothing to wait for any more. Late rows
are gone by then, so Spark has none to drop by it.

A piece is a pickle: columns by name, and the names of those that are times. Numbers and times
without nulls are arrays, times in microseconds since 1970, since a pickle of as many objects costs
more than all else that is done with a row. For functions that take Arrow a piece is an Arrow
stream. Earlier versions kept a list of rows, and then columns of objects alone: such state goes on.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.dataflow.compiler.calls import moments
from holdfast.dataflow.source.schema import fitter

PACKED = "_rows"
# Columns of the rows that a reducer is given, which only the operator needs.
OURS = ("_close", "_everything", "_window_start", "_window_end")
_PLACE = "_place"
# What a task packs at a time, at least if it has as much: the more, the fewer and larger pieces.
GATHERED_ROWS, GATHERED_BYTES = 65_536, 16 * 1024 * 1024

_TIME_US = pa.timestamp("us", "UTC")
# How an array has the numbers of a column.
_CODES = {pa.int32(): "i", pa.int64(): "q", pa.float64(): "d"}


class RowPacker:
    """What one task does with its batches; made in the driver, called in workers."""

    def __init__(self, groups: Sequence[str], schema: pa.Schema, *, as_arrow: bool = False) -> None:
        self._groups = list(groups)
        self._schema = schema
        self._as_arrow = as_arrow

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the groups of some batches at a time, packed."""
        fit = fitter(self._schema)
        for batch in _gathered(batches):
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


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows in larger batches: Spark hands out ten thousand at a time."""
    waiting, rows, size_bytes = list[pa.RecordBatch](), 0, 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
        if rows >= GATHERED_ROWS or size_bytes >= GATHERED_BYTES:
            yield from _as_one(waiting)
            waiting, rows, size_bytes = [], 0, 0
    if rows:
        yield from _as_one(waiting)


def _as_one(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return some batches as one, or as none if they have no rows."""
    whole: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole


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
    numbers = {name: _numbers(rows.column(name)) for name in rows.schema.names}
    times = tuple(name for name in numbers if numbers[name] and _is_in_utc(rows.column(name)))
    columns = {name: numbers[name] or _values(rows.column(name)) for name in numbers}
    return [
        pickle.dumps(({name: values[start:end] for name, values in columns.items()}, times))
        for start, end in bounds
    ]


def _numbers(column: pa.Array) -> array[Any] | None:
    """Return a column as an array; None if its values are no numbers and no times, or some null."""
    if column.null_count:
        return None
    if _is_in_utc(column):
        column = column.cast(_TIME_US).cast(pa.int64())
    code = _CODES.get(column.type)
    return None if code is None else array(code, column.to_numpy().tobytes())


def _values(column: pa.Array) -> list[Any]:
    """Return values as functions see them: times in UTC, maps as dicts."""
    if _is_in_utc(column):
        return moments(column)
    # Arrow is slower where it is told how to take maps, even if there are none.
    maps: Literal["lossy"] | None = "lossy" if pa.types.is_nested(column.type) else None
    values: list[Any] = column.to_pylist(maps_as_pydicts=maps)
    return values


def _is_in_utc(column: pa.Array) -> bool:
    return pa.types.is_timestamp(column.type) and column.type.tz is not None


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
    columns, times = (kept, ()) if isinstance(kept, dict) else kept
    for name in times:
        columns[name] = moments(pa.array(columns[name]).view(_TIME_US))
    return list(map(dict, map(zip, repeat(tuple(columns)), zip(*columns.values(), strict=True))))


def repacked(rows: Sequence[dict[str, Any]]) -> bytes:
    """Return some rows of pieces, which have the same columns, as one piece."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pickle.dumps(({name: [row.get(name) for row in rows] for name in names}, ()))
