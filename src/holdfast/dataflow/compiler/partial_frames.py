"""Partial aggregates as columns of a frame: made by sources or by Spark, and put together again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ByteType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StructField,
    StructType,
    TimestampType,
)

from holdfast.dataflow.compiler.pushdown import Aggregate, PushDown, aggregates_of, pane_us
from holdfast.dataflow.source.partial_steps import EVENT_TIME, ROWS, Partial
from holdfast.dataflow.source.partials import PartialSpec, checked_types
from holdfast.dataflow.source.schema import WATERMARK_COLUMNS
from holdfast.dataflow.spec.vertices import ReduceSettings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_BROKEN = (FloatType, DoubleType)


class PartialColumns(NamedTuple):
    """The aggregates of a reduce, and the types of what they are made of."""

    aggregates: tuple[Aggregate, ...]
    kinds: Mapping[str, DataType]

    @property
    def partials(self) -> tuple[Partial, ...]:
        """The columns of a partial aggregate, beside the number of its rows."""
        return tuple(partial for one in self.aggregates for partial in one.partials)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of these columns."""
        return (ROWS, *(partial.name for partial in self.partials))

    def of_rows(self, rows: DataFrame) -> DataFrame:
        """Return rows, each of them with the partial aggregate of itself."""
        made = {one.name: self._of_row(one) for one in self.partials}
        return rows.withColumns({ROWS: F.lit(1).cast("bigint"), **made})

    def _of_row(self, partial: Partial) -> Column:
        value = F.expr(partial.argument)
        value = value.isNotNull() if partial.function == "count" else value
        return value.cast(self.kinds[partial.name])

    def results(self) -> dict[str, Column]:
        """Return the columns of results over groups of partial aggregates."""
        return {one.column: _result(one) for one in self.aggregates}


def _result(aggregate: Aggregate) -> Column:
    columns = [F.col(partial.name) for partial in aggregate.partials]
    if aggregate.function == "count":
        return F.coalesce(F.sum(columns[0] if columns else F.col(ROWS)), F.lit(0))
    if aggregate.function in ("avg", "mean"):
        total, count = columns
        return F.sum(total) / F.nullif(F.sum(count), F.lit(0))
    return {"sum": F.sum, "min": F.min, "max": F.max}[aggregate.function](columns[0])


def partial_columns(reduce: ReduceSettings, rows: DataFrame) -> PartialColumns | None:
    """Return the partial aggregates of a reduce; None if some would be of types of their own.

    Types are part of a state, so the answer is the same as long as there is one.
    """
    aggregates = aggregates_of(reduce)
    if aggregates is None:
        return None
    kinds = dict[str, DataType]()
    for partial in (partial for one in aggregates for partial in one.partials):
        kind = _kind(partial, rows.select(F.expr(partial.argument)).schema[0].dataType)
        if kind is None:
            return None
        kinds[partial.name] = kind
    return PartialColumns(aggregates, kinds)


def _kind(partial: Partial, given: DataType) -> DataType | None:
    """Return the type of a column of partial aggregates; None if Spark adds up in others."""
    is_number = isinstance(given, (*_WHOLE, *_BROKEN))
    if partial.function == "count":
        return LongType()
    if partial.function in ("min", "max"):
        return given if is_number or isinstance(given, DateType | TimestampType) else None
    if not is_number:
        return None
    is_whole = isinstance(given, _WHOLE) and partial.function == "sum"
    return LongType() if is_whole else DoubleType()


def asked_of_source(
    columns: PartialColumns,
    push_down: PushDown,
    reduce: ReduceSettings,
    stored: StructType,
    rows: StructType,
) -> tuple[PartialSpec, StructType]:
    """Return what a source is asked for, and the columns of it; raise `Unsupported` if it cannot.

    `stored` is what the source would give row by row, `rows` is what would come to the reduce.
    """
    assert reduce.window is not None, "BUG: a reduce without a window was pushed down"
    fields = [field for field in stored if field.name not in WATERMARK_COLUMNS]
    spec = PartialSpec(
        StructType(fields),
        push_down.steps,
        tuple(reduce.key),
        pane_us(reduce.window),
        columns.partials,
    )
    keys = [StructField(name, rows[name].dataType) for name in reduce.key]
    made = [StructField(name, columns.kinds.get(name, LongType())) for name in columns.names]
    expected = to_arrow_schema(StructType([*keys, *made]), timezone="UTC")
    checked_types(spec, {field.name: field.type for field in expected})
    claims = [field for field in stored if field.name in WATERMARK_COLUMNS]
    time = StructField(EVENT_TIME, TimestampType())
    return spec, StructType(
        [*(StructField(k.name, k.dataType) for k in keys), *made, time, *claims]
    )
