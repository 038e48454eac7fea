"""Reduces: windows over the claimed watermark, aggregates, functions, and rows that came too late.

What is late is decided here and before Spark, by the same comparison (`is_late`), so that nothing
is dropped silently. Results of a reduce are never late for the next one: a window that closes in a
batch ends after the watermark of the batch before.

Spark's watermark is driven with the claim of the source. Spark takes the largest value of the
column named in `withWatermark`. `_wm` is the same in all rows of a batch, so with a delay of
nothing Spark's watermark *is* the claim. What makes a window close is a mark on the column it is
made of, a metadata key that `withWatermark` sets on its own column; `claimed` sets it on the event
time instead. The key is internal to Spark: the version is pinned, and a test fails if another
version means something else by it.

Spark pushes a filter below the watermark if it does not mention `_wm`. Two things follow. The
filter that drops control rows mentions it, or else they are dropped before Spark has seen their
claim. And filters that a user puts before the windows have to keep control rows: `keep_control`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F  # noqa: N812  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from holdfast.dataflow.compiler.calls import FAILED_DDL
from holdfast.dataflow.compiler.packing import PACKED, RowPacker
from holdfast.dataflow.compiler.partial_frames import PartialColumns
from holdfast.dataflow.compiler.reducers import (
    ArrowReducer,
    FoldReducer,
    ProcessReducer,
    Reducer,
    Reducing,
    SessionReducer,
    WindowReducer,
)
from holdfast.dataflow.source.partial_steps import ROWS
from holdfast.dataflow.spec.vertices import WINDOW_COLUMNS, ReduceSettings, WindowSettings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DELAY_KEY = "spark.watermarkDelayMs"
# A result is of the last moment of its window: the next window that it counts in is the right one.
RESULT_BEFORE_END = "interval 1 millisecond"


class Reduced(NamedTuple):
    """What a reduce puts out; of a function the results have `_failed`, too."""

    results: DataFrame
    late: DataFrame


def reduce_frame(
    rows: DataFrame,
    settings: ReduceSettings,
    name: str,
    allowed_lateness_ms: int,
    returns: StructType | None = None,
    partials: PartialColumns | None = None,
) -> Reduced:
    """Return the results of a reduce, and its late rows; `rows` are claimed.

    With `partials` each row is a partial aggregate of one or more.
    """
    last_end = _last_end(settings.window)
    late = F.coalesce(is_late(last_end, allowed_lateness_ms), F.lit(False))
    judged = rows.withColumn("_late", late)
    count = F.count_if("_late") if partials is None else F.sum(F.when(F.col("_late"), F.col(ROWS)))
    counted = judged.observe(metric("late", name), count.alias("rows"))
    in_time = counted.where("NOT _late").drop("_late", "_wm_prev")
    if returns is None:
        results = _aggregated(in_time, settings, allowed_lateness_ms, partials)
    else:
        results = _called(in_time, settings, name, allowed_lateness_ms, returns)
    made = () if partials is None else partials.names
    return Reduced(results, judged.where("_late").drop("_late", "_wm_prev", *made))


def _aggregated(
    in_time: DataFrame,
    settings: ReduceSettings,
    allowed_lateness_ms: int,
    partials: PartialColumns | None,
) -> DataFrame:
    assert settings.window is not None, "BUG: a reduce without a window was not found"
    keys = [F.col(f"`{key}`") for key in settings.key]
    if settings.window.session is not None and not keys:
        # Spark refuses sessions without a key, and folds a constant away.
        keys = [_everything().alias("_everything")]
    grouped = in_time.groupBy(_window(settings.window).alias("_window"), *keys)
    aggregates = {column: F.expr(text) for column, text in settings.aggregate.items()}
    if partials is not None:
        aggregates = partials.results()
    results = grouped.agg(*(made.alias(column) for column, made in aggregates.items()))
    return results.select(
        F.col("_window.start").alias("window_start"),
        F.col("_window.end").alias("window_end"),
        *(F.col(f"`{key}`") for key in settings.key),
        *(F.col(f"`{column}`") for column in aggregates),
        marked(F.col("_window.end") - F.expr(RESULT_BEFORE_END), allowed_lateness_ms),
    )


def _called(
    in_time: DataFrame,
    settings: ReduceSettings,
    name: str,
    allowed_lateness_ms: int,
    returns: StructType,
) -> DataFrame:
    """Return the results of a function, and the calls that failed, in one frame."""
    window = settings.window
    mine = [F.col(f"`{name}`") for name in in_time.columns if name != "_event_time"]
    # Without the mark by which windows close: that is on the column `_close` here.
    time = _unmarked(F.col("_event_time"))
    if window is not None and window.session is None:
        # Spark finds the windows of a row; each is a group, and closes by its own end.
        found = in_time.select(*mine, time, _window(window).alias("_window"))
        ends = _unmarked(F.col("_window.end")).alias("_window_end")
        starts = _unmarked(F.col("_window.start")).alias("_window_start")
        close = F.col("_window.end")
        given = found.select(
            *mine, F.col("_event_time"), starts, ends, _close(close, allowed_lateness_ms)
        )
        groups = ["_window_start", "_window_end", *settings.key]
    else:
        close = _close(_last_end(window), allowed_lateness_ms)
        given = in_time.select(*mine, time, close)
        groups = list(settings.key)
    if not groups:
        given, groups = given.withColumn("_everything", _everything()), ["_everything"]
    keys = [F.col(f"`{key}`") for key in groups]
    packed = _packed(given, groups, allowed_lateness_ms, as_arrow=settings.arrow is not None)
    reducer = _reducer(settings, name, returns)
    windows = () if window is None else WINDOW_COLUMNS
    schema = StructType(
        [
            *(StructField(column, TimestampType()) for column in windows),
            *(StructField(key, in_time.schema[key].dataType) for key in settings.key),
            *returns.fields,
            StructField("_event_time", TimestampType()),
            StructField("_tags", ArrayType(StringType())),
            StructField("_failed", DataType.fromDDL(FAILED_DDL)),
        ]
    )
    return packed.groupBy(*keys).transformWithState(reducer, schema, "Append", "EventTime")


def _packed(
    given: DataFrame, groups: list[str], allowed_lateness_ms: int, *, as_arrow: bool
) -> DataFrame:
    """Return a row for each group of a batch of rows, with the mark by which windows close."""
    fields = [StructField(name, given.schema[name].dataType) for name in (*groups, "_close")]
    schema = StructType([*fields, StructField(PACKED, BinaryType())])
    packer = RowPacker(groups, to_arrow_schema(schema, timezone="UTC"), as_arrow=as_arrow)
    made = given.mapInArrow(packer, schema)
    kept = [F.col(f"`{name}`") for name in (*groups, PACKED)]
    return made.select(*kept, _close(F.col("_close"), allowed_lateness_ms))


def _reducer(settings: ReduceSettings, name: str, returns: StructType) -> Reducer:
    """Return what Spark runs for a function: of windows, of sessions, or of a process."""
    window = settings.window
    gap_s = window.session if window is not None and window.session is not None else 0.0
    function = settings.process or settings.python or settings.arrow or settings.fold
    assert function is not None, "BUG: a reduce without a function"
    reducing = Reducing(
        vertex=name,
        function=function,
        key=tuple(settings.key),
        returns=to_arrow_schema(returns, timezone="UTC"),
        timeout_s=settings.timeout,
        retry=settings.retry,
        is_fatal=settings.on_failure == "fail",
        gap=timedelta(milliseconds=round(gap_s * 1000)),
        timer_span=timedelta(seconds=settings.timer_span),
    )
    if window is None:
        return ProcessReducer(reducing)
    if settings.keeps is not None:
        return ArrowReducer(reducing) if settings.keeps == "arrow" else FoldReducer(reducing)
    return SessionReducer(reducing) if gap_s else WindowReducer(reducing)


def _everything() -> Column:
    """Return a key that all rows have, and that Spark does not take for a constant."""
    return F.pmod(F.hash("_event_time"), F.lit(1))


def _unmarked(time: Column) -> Column:
    """Return an event time without the mark by which Spark closes windows.

    Arithmetic on the column makes another one, which has no metadata. Where a function is called,
    the mark is on the end of a row's last window instead (`_close`).
    """
    return F.timestamp_micros(F.unix_micros(time)).alias("_event_time")


def _close(end: Column, allowed_lateness_ms: int) -> Column:
    """Return the column by which Spark drops rows of windows that are closed."""
    return end.alias("_close", metadata={DELAY_KEY: allowed_lateness_ms})


def metric(what: str, vertex: str) -> str:
    """Return the name of a count among a batch's observed metrics."""
    return f"{what}.{vertex}"


def marked(event_time: Column, allowed_lateness_ms: int) -> Column:
    """Return an event time by which windows close."""
    return event_time.alias("_event_time", metadata={DELAY_KEY: allowed_lateness_ms})


def _window(window: WindowSettings) -> Column:
    """Return Spark's window of a row."""
    if window.session is not None:
        return F.session_window("_event_time", _interval(window.session))
    if window.sliding is not None:
        size, every = _interval(window.sliding.size), _interval(window.sliding.every)
        return F.window("_event_time", size, every)
    assert window.fixed is not None, "BUG: a window of no kind"
    return F.window("_event_time", _interval(window.fixed))


def _last_end(window: WindowSettings | None) -> Column:
    """Return the end of the last window that a row is in; without windows it is alone in one."""
    if window is None:
        return F.col("_event_time") + F.expr(RESULT_BEFORE_END)
    if window.session is not None:
        return F.col("_event_time") + F.expr(f"interval {_interval(window.session)}")
    size_s = window.fixed or (window.sliding.size if window.sliding else 0.0)
    every_us = _us(window.sliding.every if window.sliding else size_s)
    time_us = F.unix_micros("_event_time")
    return F.timestamp_micros(time_us - F.pmod(time_us, F.lit(every_us)) + F.lit(_us(size_s)))


def _us(length_s: float) -> int:
    return round(length_s * 1000) * 1000


def _interval(length_s: float) -> str:
    return f"{round(length_s * 1000)} milliseconds"


def claimed(
    frame: DataFrame, event_time: str = "_event_time", allowed_lateness_ms: int = 0
) -> DataFrame:
    """Return the rows of a source, events only, with their event time marked by the claim.

    `_wm_prev` stays: what is late is decided by it.
    """
    marked = frame.withWatermark("_wm", f"{allowed_lateness_ms} milliseconds")
    events = marked.where(~F.col("_control") | F.col("_wm").isNull())
    metadata = {DELAY_KEY: allowed_lateness_ms}
    columns = [
        F.col(name).alias(name, metadata=metadata) if name == event_time else F.col(name)
        for name in frame.columns
        if name not in ("_wm", "_control")
    ]
    return events.select(*columns)


def keep_control(condition: Column) -> Column:
    """Return a condition for a filter before `claimed`: control rows pass."""
    return condition | F.col("_control")


def is_late(last_end: Column, allowed_lateness_ms: int = 0) -> Column:
    """Whether all windows of a row are closed, the last of which ends at `last_end`.

    Spark closes a window when its end is not after the watermark (`end <= watermark`), and drops
    what comes for it later. This is the same comparison, against the claim with which the batch
    before ended, so that a row is given to its windows or to the late ones before Spark can drop
    it: that claim is never behind the watermark that Spark filters by. In a sliding window a row
    still counts in those that are open, and Spark leaves it out of the others.
    """
    allowed = F.expr(f"interval {allowed_lateness_ms} milliseconds")
    return last_end + allowed <= F.col("_wm_prev")
