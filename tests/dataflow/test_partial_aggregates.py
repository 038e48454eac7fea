"""Partial aggregates come to what Spark's own do over rows, whatever the rows are, or are refused.

Each example is aggregated twice in Spark: by rows, and by partial aggregates that tasks made of
them. Doubles are small multiples of 1/8, so that their sums are exact in any order.
"""

from __future__ import annotations

import math
import os
import struct
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from holdfast.dataflow.compiler.partial_frames import (
    PartialColumns,
    asked_of_source,
    partial_columns,
)
from holdfast.dataflow.compiler.pushdown import PushDown
from holdfast.dataflow.compiler.reduces import _window
from holdfast.dataflow.source import partials
from holdfast.dataflow.source.arrow_sql import Unsupported
from holdfast.dataflow.source.partial_steps import ROWS, Step
from holdfast.dataflow.source.partials import PartialAggregates
from holdfast.dataflow.spec.vertices import ReduceSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EXAMPLES = int(os.environ.get("HOLDFAST_PARTIAL_EXAMPLES", "25"))
START = datetime(1969, 12, 31, 23, 59, 30, tzinfo=UTC)
TYPES = {
    "_event_time": pa.timestamp("us", tz="UTC"),
    "k": pa.string(),
    "flag": pa.bool_(),
    "small": pa.int16(),
    "whole": pa.int32(),
    "large": pa.int64(),
    "single": pa.float32(),
    "double": pa.float64(),
    "exact": pa.decimal128(20, 2),
    "day": pa.date32(),
    "moment": pa.timestamp("us", tz="UTC"),
}
WHERES = (
    "", "double > 1", "not (flag and whole >= 2)", "k in ('a', 'b') or k is null", "large <> -1",
    "double between -2 and 1.5", "single = double", "double * 2 - whole < 3", "flag",
    "cast(flag as int) = 1 or moment is not null", "whole", "exact > 1", "k like 'a%'",
)  # fmt: skip
MAPS: tuple[tuple[dict[str, str], bool], ...] = (
    ({}, True),
    ({"double": "double * 0.5 + 1", "one": "1"}, True),
    ({"k": "k", "whole": "whole", "large": "cast(whole as bigint)", "double": "double"}, False),
    ({"large": "cast(double > 0 as int)", "single": "upper(k)"}, True),
)
ARGUMENTS = ("small", "whole", "large", "single", "double", "exact", "day", "moment", "k", "flag")
WINDOWS: tuple[dict[str, Any], ...] = (
    {"fixed": "10s"},
    {"sliding": {"size": "30s", "every": "10s"}},
    {"sliding": {"size": "25s", "every": "10s"}},
    {"sliding": {"size": "7s", "every": "7s"}},
)

_eighths = st.integers(-64, 64).map(lambda n: n / 8)
_odd = st.sampled_from([math.nan, -0.0, 0.0, math.inf, -math.inf])
_doubles = _eighths | _odd
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "_event_time": st.integers(0, 60_000_000).map(lambda us: START + timedelta(microseconds=us)),
    "k": st.none() | st.sampled_from(["a", "b", "", "é"]),
    "flag": st.none() | st.booleans(),
    "small": st.none() | st.integers(-(2**15), 2**15 - 1),
    "whole": st.none() | st.integers(-3, 3) | st.integers(-(2**31), 2**31 - 1),
    "large": st.none() | st.integers(-3, 3) | st.sampled_from([2**62, -(2**62), 2**63 - 1]),
    "single": st.none() | _doubles,
    "double": st.none() | _doubles,
    "exact": st.none() | st.decimals(-99, 99, places=2),
    "day": st.none() | st.dates(date(1960, 1, 1), date(2030, 1, 1)),
    "moment": st.none() | st.datetimes(timezones=st.just(UTC)).filter(lambda one: one.year > 1),
}


class Example(NamedTuple):
    """Rows in the batches of some tasks, and what is done with them."""

    tasks: list[list[pa.RecordBatch]]
    steps: tuple[Step, ...]
    reduce: ReduceSettings

    @property
    def rows(self) -> pa.Table:
        """All rows, in one piece: of a table with empty ones PySpark may lose some."""
        return pa.Table.from_batches([one for task in self.tasks for one in task]).combine_chunks()


@st.composite
def examples(draw: st.DrawFn) -> Example:
    tame = draw(st.booleans())
    values = dict(VALUES)
    if tame:
        values |= {"single": st.none() | _eighths, "double": st.none() | _eighths}
        values |= {"large": st.none() | st.integers(-(2**40), 2**40)}
    row = st.fixed_dictionaries(values)
    batch = st.lists(row, max_size=8).map(
        lambda rows: pa.RecordBatch.from_pylist(rows, pa.schema(list(TYPES.items())))
    )
    tasks = draw(st.lists(st.lists(batch, min_size=1, max_size=3), min_size=1, max_size=3))
    made, adds = draw(st.sampled_from(MAPS))
    wheres = [Step(where=text) for text in draw(st.lists(st.sampled_from(WHERES), max_size=2))]
    steps = [one for one in wheres if one.where]
    if made:
        steps.insert(draw(st.integers(0, len(steps))), Step(made=made, adds=adds))
    functions = st.sampled_from(["sum", "count", "min", "max", "avg", "mean"])
    calls = draw(st.lists(st.tuples(functions, st.sampled_from(ARGUMENTS)), min_size=1, max_size=4))
    written = {f"c{n}": f"{function}({name})" for n, (function, name) in enumerate(calls)}
    reduce = {
        "window": draw(st.sampled_from(WINDOWS)),
        "key": draw(st.lists(st.sampled_from(["k", "flag", "double", "whole"]), unique=True)),
        "aggregate": {"n": "count(*)", **written},
    }
    return Example(tasks, tuple(steps), ReduceSettings.model_validate(reduce))


def behind(frame: DataFrame, steps: Sequence[Step]) -> DataFrame:
    """Return what Spark makes of rows before the reduce."""
    for step in steps:
        if step.where:
            frame = frame.where(step.where)
        else:
            kept = (
                [c for c in frame.columns if c not in step.made] if step.adds else ["_event_time"]
            )
            frame = frame.select(*kept, *(F.expr(text).alias(c) for c, text in step.made.items()))
    return frame


def strict(value: Any) -> Any:
    """Return a value that is equal to itself alone: NaN is one, and the zeros are two."""
    is_number = isinstance(value, float) and not math.isnan(value)
    return struct.pack(">d", value) if is_number else str(value)


def results(frame: DataFrame) -> tuple[Any, Counter[tuple[Any, ...]]]:
    """Return the rows of a frame with their types; or that it cannot be worked out."""
    try:
        found = frame.collect()
    except PySparkException as error:
        return "failed", Counter([("ARITHMETIC_OVERFLOW" in str(error),)])
    kinds = [(field.name, field.dataType) for field in frame.schema]
    return kinds, Counter(tuple(strict(value) for value in row) for row in found)


def by_rows(rows: DataFrame, reduce: ReduceSettings) -> DataFrame:
    assert reduce.window is not None
    grouped = rows.groupBy(_window(reduce.window).alias("w"), *reduce.key)
    return grouped.agg(*(F.expr(text).alias(name) for name, text in reduce.aggregate.items()))


def by_partials(made: DataFrame, reduce: ReduceSettings, columns: PartialColumns) -> DataFrame:
    assert reduce.window is not None
    grouped = made.groupBy(_window(reduce.window).alias("w"), *reduce.key)
    return grouped.agg(*(column.alias(name) for name, column in columns.results().items()))


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a handful of rows be many."""
    monkeypatch.setattr(partials, "GROUPED_ROWS", 5)
    monkeypatch.setattr(partials, "KEPT_MAX", 12)


@pytest.mark.timeout(600)
@settings(
    max_examples=EXAMPLES, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(example=examples())
def test_partial_aggregates_come_to_what_spark_makes_of_rows(
    spark: SparkSession, example: Example
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "1")
    stored = session.createDataFrame(example.rows)
    try:
        rows = behind(stored, example.steps)
        expected = results(by_rows(rows, example.reduce))
        columns = partial_columns(example.reduce, rows)
    except PySparkException:
        event("refused by Spark, too")
        return
    if columns is None:
        event("left to Spark")
        return
    assert results(by_partials(columns.of_rows(rows), example.reduce, columns)) == expected
    push_down = PushDown("source", example.steps)
    try:
        spec, schema = asked_of_source(
            columns, push_down, example.reduce, stored.schema, rows.schema
        )
    except Unsupported:
        event("made by Spark")
        return
    event(f"made by the source: {expected[0] == 'failed' or 'results'}")
    spec = type(spec).from_option(spec.to_option())
    made = [list(PartialAggregates(spec).of(iter(task))) for task in example.tasks]
    kept = [one for task in made for one in task]
    frame = session.createDataFrame([], schema)
    if kept:
        whole = pa.Table.from_batches(kept).combine_chunks()
        given = session.createDataFrame(whole).select(*schema.names)
        frame = given.select(*(F.col(f.name).cast(f.dataType) for f in schema))
    got = results(by_partials(frame, example.reduce, columns))
    assert got == expected
    counted = behind(stored, example.steps).where("_event_time is not null").count()
    assert sum(sum(one[ROWS].to_pylist()) for one in kept) == counted


def spec_of(
    spark: SparkSession, rows: pa.Table, aggregate: dict[str, str], steps: tuple[Step, ...] = ()
) -> partials.PartialSpec:
    stored = spark.createDataFrame(rows)
    reduce = ReduceSettings.model_validate(
        {"window": {"fixed": "10s"}, "key": "k", "aggregate": aggregate}
    )
    made = behind(stored, steps)
    columns = partial_columns(reduce, made)
    if columns is None:
        raise Unsupported("by its types")
    return asked_of_source(columns, PushDown("s", steps), reduce, stored.schema, made.schema)[0]


def table(**columns: list[Any]) -> pa.Table:
    rows = len(next(iter(columns.values())))
    times = [START + timedelta(seconds=30)] * rows
    given = {"_event_time": times, "k": ["a"] * rows, **columns}
    return pa.table({name: pa.array(values, TYPES[name]) for name, values in given.items()})


def test_a_task_puts_out_one_row_of_each_pane_and_key(spark: SparkSession) -> None:
    rows = table(whole=list(range(10)))
    spec = spec_of(spark, rows, {"n": "count(*)", "total": "sum(whole)", "mean": "mean(whole)"})
    (made,) = PartialAggregates(spec).of(iter(rows.to_batches(max_chunksize=3)))
    assert made.num_rows == 1
    assert made.to_pylist()[0] == {
        "_event_time": datetime(1970, 1, 1, tzinfo=UTC), "k": "a", ROWS: 10,
        "_part1_0": 45, "_part2_0": 45.0, "_part2_1": 10,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("column", "values", "text"),
    [
        ("double", [1.0, math.nan], "max(double)"),
        ("single", [0.0, -0.0], "min(single)"),
        ("large", [2**62, 2**62], "sum(large)"),
        ("large", [-(2**63), 0], "sum(large)"),
    ],
)
def test_rows_that_arrow_would_add_up_to_something_else_go_on_one_by_one(
    spark: SparkSession, column: str, values: list[Any], text: str
) -> None:
    rows = table(**{column: values})
    made = list(PartialAggregates(spec_of(spark, rows, {"c": text})).of(iter(rows.to_batches())))
    assert [row[ROWS] for one in made for row in one.to_pylist()] == [1, 1]


@pytest.mark.parametrize("text", ["sum(exact)", "avg(exact)", "min(exact)", "sum(k)", "max(k)"])
def test_types_that_spark_adds_up_in_another_way_are_left_to_it(
    spark: SparkSession, text: str
) -> None:
    rows = table(exact=[Decimal("1.10")])
    with pytest.raises(Unsupported):
        spec_of(spark, rows, {"c": text})


def test_what_a_task_keeps_is_bounded(spark: SparkSession) -> None:
    rows = table(large=list(range(100)))
    keyed = rows.set_column(1, "k", pa.array([str(n) for n in range(100)]))
    made = list(PartialAggregates(spec_of(spark, keyed, {"n": "count(*)"})).of(
        iter(keyed.to_batches(max_chunksize=5))
    ))  # fmt: skip
    # With more than KEPT_MAX of them they go on, so a task holds no more than that and a group.
    assert len(made) > 1
    assert max(one.num_rows for one in made) <= partials.KEPT_MAX + 2 * partials.GROUPED_ROWS
    assert sum(one.num_rows for one in made) == 100
