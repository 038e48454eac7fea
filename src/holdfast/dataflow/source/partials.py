"""Partial aggregates in place of rows: what a task puts out for a reduce (compiler/pushdown.py).

A task reads its rows as ever, applies the filters and expressions that stand before the reduce, and
groups what is left by the keys and by *pane*: time cut so finely that all rows of a pane are in the
same windows. Of each pane and key one row goes to Spark, with the number of its rows, their sums,
least and greatest values, and with the beginning of the pane as event time. Which windows that is
in, and whether it comes too late for all of them, is therefore decided as for each of its rows.

Where Arrow would come to another result than Spark, a batch of rows goes on as it is, each row as
a partial aggregate of itself: sums that might overflow, and least or greatest of numbers
with NaN (the greatest, in Spark) or with a negative zero (Spark keeps the first of the two).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from holdfast.dataflow.source.arrow_sql import SqlExpression, Unsupported, Value, parse
from holdfast.dataflow.source.partial_steps import EVENT_TIME, ROWS, Partial, PartialFunction, Step
from holdfast.quiver.base.envelope import TIME_TYPE

# Rows that are grouped together, unless one batch has more.
GROUPED_ROWS = 250_000
# Partial aggregates of a task that are kept to be added up; with more they go on as they are.
KEPT_MAX = 100_000
_PANE = "_pane"
# A row counts as one or as nothing, so that counts are added up, too.
_ARROW: dict[PartialFunction, str] = {
    "sum": "sum",
    "sum_as_double": "sum",
    "count": "sum",
    "min": "min",
    "max": "max",
}
_BIGINT_MAX = 2**63 - 1


class PartialSpec(NamedTuple):
    """What a task is to put out; the value of option `partials`."""

    # What is stored, as the query would read it.
    types: StructType
    steps: tuple[Step, ...]
    key: tuple[str, ...]
    pane_us: int
    partials: tuple[Partial, ...]

    def to_option(self) -> str:
        """Return it as text."""
        return json.dumps({**self._asdict(), "types": self.types.jsonValue()})

    @classmethod
    def from_option(cls, text: str) -> PartialSpec:
        """Return what was written as text."""
        fields = json.loads(text)
        return cls(
            StructType.fromJson(fields["types"]),
            tuple(Step(*step) for step in fields["steps"]),
            tuple(fields["key"]),
            fields["pane_us"],
            tuple(Partial(*partial) for partial in fields["partials"]),
        )

    @property
    def stored(self) -> pa.Schema:
        """What is stored, in Arrow's types."""
        return to_arrow_schema(self.types, timezone="UTC")


class _StepColumns:
    """The columns of a batch behind some steps, each worked out when it is first asked for."""

    def __init__(self, batch: pa.RecordBatch, steps: Sequence[Step]) -> None:
        self._batch = batch
        self._made: list[Mapping[str, str]] = []
        self._known: dict[tuple[int, str], pa.Array] = {}
        self.chosen: pa.Array | None = None
        for step in steps:
            if step.where:
                self._choose(self._value(parse(step.where)))
            else:
                self._made.append(step.made)

    def __call__(self, expression: SqlExpression) -> pa.Array:
        """Return an expression's values, of all rows."""
        return self._value(expression)

    def _choose(self, condition: pa.Array) -> None:
        if not kinds.is_boolean(condition.type):
            raise Unsupported("a filter that is neither true nor false")
        before = self.chosen
        self.chosen = condition if before is None else pc.and_kleene(before, condition)

    def _value(self, expression: SqlExpression, level: int | None = None) -> pa.Array:
        place = len(self._made) if level is None else level
        return expression.column(lambda name: self._column(name, place), self._batch.num_rows)

    def _column(self, name: str, level: int) -> pa.Array:
        """Return a column as it is behind the first steps that make some."""
        if (level, name) not in self._known:
            if level == 0:
                place = self._batch.schema.get_field_index(name)
                if place < 0:
                    raise Unsupported(f"there is no column {name!r}")
                found = self._batch.column(place)
            elif name in self._made[level - 1]:
                found = self._value(parse(self._made[level - 1][name]), level - 1)
            else:
                found = self._column(name, level - 1)
            self._known[level, name] = found
        return self._known[level, name]


class PartialAggregates:
    """Makes partial aggregates of the rows of one task."""

    def __init__(self, spec: PartialSpec) -> None:
        self._spec = spec
        # Of our own, so that none is like the name that Arrow gives an aggregate.
        self._keys = [f"_key{number}" for number in range(len(spec.key))]
        self._groups = [_PANE, *self._keys]
        self._kept: list[pa.Table] = []
        # How far from zero a sum of what is kept may be, and how many rows there are.
        self._reach = self._kept_rows = 0

    def of(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the partial aggregates of some rows."""
        for rows in gathered(map(self.values, batches), GROUPED_ROWS):
            reach = self._reach_of(rows)
            if reach is None:
                yield from self._flushed()
                yield from self._timed(rows)
                continue
            if self._reach + reach > _BIGINT_MAX or self._kept_rows > KEPT_MAX:
                yield from self._flushed()
            self._keep(self.grouped(rows), reach)
        yield from self._flushed()

    def values(self, batch: pa.RecordBatch) -> pa.Table:
        """Return the rows of a batch, each as a partial aggregate of itself."""
        spec, columns = self._spec, _StepColumns(batch, self._spec.steps)
        made = [_panes(columns(parse(EVENT_TIME)), spec.pane_us)]
        made += [columns(parse(f"`{name}`")) for name in spec.key]
        made.append(pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows))
        made += [_taken(columns(parse(one.argument)), one) for one in spec.partials]
        table = pa.table(made, [*self._groups, ROWS, *(one.name for one in spec.partials)])
        return table if columns.chosen is None else table.filter(columns.chosen)

    def grouped(self, rows: pa.Table) -> pa.Table:
        """Return partial aggregates of which each group has one."""
        wanted = [(ROWS, "sum"), *((p.name, _ARROW[p.function]) for p in self._spec.partials)]
        made = rows.group_by(self._groups, use_threads=False).aggregate(wanted)
        columns = [made[name] for name in self._groups]
        columns += [made[f"{name}_{function}"] for name, function in wanted]
        return pa.table(columns, [*self._groups, *(name for name, _ in wanted)])

    def _reach_of(self, rows: pa.Table) -> int | None:
        """Return how far from zero sums may be; None if rows must not be aggregated here."""
        reach = 0
        for one in self._spec.partials:
            column = rows[one.name]
            if one.function in ("min", "max") and _has_odd_numbers(column):
                return None
            if one.function == "sum" and kinds.is_integer(column.type):
                ends = pc.min_max(column).as_py()
                most = max(abs(ends["min"] or 0), abs(ends["max"] or 0))
                reach = max(reach, most * len(column))
        return reach if reach <= _BIGINT_MAX else None

    def _keep(self, table: pa.Table, reach: int) -> None:
        self._kept.append(table)
        self._reach += reach
        self._kept_rows += table.num_rows

    def _flushed(self) -> Iterator[pa.RecordBatch]:
        """Yield what is kept, added up."""
        kept, self._kept, self._reach, self._kept_rows = self._kept, [], 0, 0
        if kept:
            yield from self._timed(
                kept[0] if len(kept) == 1 else self.grouped(pa.concat_tables(kept))
            )

    def _timed(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield aggregates with the beginning of their pane as event time."""
        columns = [table[_PANE].cast(TIME_TYPE), *table.columns[1:]]
        names = [EVENT_TIME, *self._spec.key, *table.column_names[len(self._groups) :]]
        yield from pa.table(columns, names).combine_chunks().to_batches()


def gathered(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Yield tables of about so many rows; none that are empty."""
    waiting, count = list[pa.Table](), 0
    for table in tables:
        if table.num_rows:
            waiting.append(table)
            count += table.num_rows
        if count >= rows:
            yield pa.concat_tables(waiting)
            waiting, count = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def _panes(times: pa.Array, pane_us: int) -> pa.Array:
    """Return in which pane rows are: its first microsecond."""
    moments = pc.cast(times, TIME_TYPE).view(pa.int64())
    values = pc.fill_null(moments, 0).to_numpy(zero_copy_only=False)
    panes = pa.array(values - np.mod(values, pane_us), pa.int64())
    none = pa.scalar(None, pa.int64())
    return pc.if_else(pc.is_valid(moments), panes, none) if moments.null_count else panes


def _taken(values: pa.Array, partial: Partial) -> pa.Array:
    """Return values in the type in which they are aggregated; raise `Unsupported` for others."""
    kind = values.type
    if partial.function == "count":
        return pc.cast(pc.is_valid(values), pa.int64())
    is_number = kinds.is_signed_integer(kind) or kinds.is_float32(kind) or kinds.is_float64(kind)
    if partial.function in ("sum", "sum_as_double"):
        if not is_number:
            raise Unsupported(f"a sum of {kind}")
        is_double = partial.function == "sum_as_double" or kinds.is_floating(kind)
        return pc.cast(values, pa.float64() if is_double else pa.int64(), safe=False)
    if not (is_number or kinds.is_date32(kind) or kinds.is_timestamp(kind)):
        raise Unsupported(f"the {partial.function} of {kind}")
    return values


def _has_odd_numbers(column: pa.ChunkedArray) -> bool:
    """Whether there is a NaN or a negative zero among some numbers."""
    if not kinds.is_floating(column.type):
        return False
    bits, zero = (pa.int32(), -(2**31)) if kinds.is_float32(column.type) else (pa.int64(), -(2**63))
    is_odd: list[Value] = [
        pc.any(pc.or_(pc.is_nan(chunk), pc.equal(chunk.view(bits), pa.scalar(zero, bits))))
        for chunk in column.chunks
    ]
    return any(one.as_py() for one in is_odd)


def checked_types(spec: PartialSpec, expected: Mapping[str, pa.DataType]) -> None:
    """Raise `Unsupported` unless expressions are understood, and of the types that Spark has."""
    rows = pa.RecordBatch.from_pylist([], spec.stored)
    try:
        made = PartialAggregates(spec).values(rows)
        PartialAggregates(spec).grouped(made)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, KeyError) as error:
        raise Unsupported(str(error)) from error
    names = [*spec.key, *made.column_names[1 + len(spec.key) :]]
    types = dict(zip(names, made.schema.types[1:], strict=True))
    for name, kind in expected.items():
        if types[name] != kind:
            raise Unsupported(f"{name} is {types[name]} here, and {kind} in Spark")
