"""Reduces: windows over the claimed watermark, native aggregates, and rows that came too late.

What is late is decided here and before Spark, by the same comparison (`watermark/late.py`), so
that nothing is dropped silently. Results of a reduce are never late for the next one: a window
that closes in a batch ends after the watermark of the batch before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F  # noqa: N812

from holdfast.dataflow.spec.expansion import ROWS
from holdfast.dataflow.spec.vertices import ReduceSettings, WindowSettings
from holdfast.dataflow.watermark.drive import DELAY_KEY, is_late

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# A result is of the last moment of its window: the next window that it counts in is the right one.
RESULT_BEFORE_END = "interval 1 millisecond"


class Reduced(NamedTuple):
    """What a reduce puts out."""

    results: DataFrame
    late: DataFrame


def reduce_frame(
    rows: DataFrame, settings: ReduceSettings, name: str, allowed_lateness_ms: int
) -> Reduced:
    """Return the results of a reduce, and its late rows; `rows` are claimed."""
    assert settings.window is not None, "BUG: a reduce without a window was not found"
    late = F.coalesce(is_late(_last_end(settings.window), allowed_lateness_ms), F.lit(False))
    judged = rows.withColumn("_late", late)
    counted = judged.observe(metric("late", name), F.count_if("_late").alias("rows"))
    in_time = counted.where("NOT _late").drop("_late", "_wm_prev")
    keys = [F.col(f"`{key}`") for key in settings.key]
    if settings.window.session is not None and not keys:
        # Spark refuses sessions without a key, and folds a constant away.
        keys = [F.pmod(F.hash("_event_time"), F.lit(1)).alias("_everything")]
    grouped = in_time.groupBy(_window(settings.window).alias("_window"), *keys)
    aggregates = {column: F.expr(text) for column, text in settings.aggregate.items()}
    if settings.python is not None:
        mine = [name for name in in_time.columns if name != "_event_time"]
        time = F.timestamp_micros(F.unix_micros("_event_time")).alias("_event_time")
        whole = F.struct(*(F.col(f"`{name}`") for name in mine), time)
        aggregates = {ROWS: F.collect_list(whole)}
    results = grouped.agg(*(made.alias(column) for column, made in aggregates.items()))
    return Reduced(
        results.select(
            F.col("_window.start").alias("window_start"),
            F.col("_window.end").alias("window_end"),
            *(F.col(f"`{key}`") for key in settings.key),
            *(F.col(f"`{column}`") for column in aggregates),
            marked(F.col("_window.end") - F.expr(RESULT_BEFORE_END), allowed_lateness_ms),
        ),
        judged.where("_late").drop("_late", "_wm_prev"),
    )


def metric(what: str, vertex: str) -> str:
    """Return the name of a count among a batch's observed metrics."""
    return f"{what}.{vertex}"


def marked(event_time: Column, allowed_lateness_ms: int) -> Column:
    """Return an event time by which windows close."""
    return event_time.alias("_event_time", metadata={DELAY_KEY: allowed_lateness_ms})


def _window(window: WindowSettings) -> Column:
    if window.session is not None:
        return F.session_window("_event_time", _interval(window.session))
    if window.sliding is not None:
        size, every = _interval(window.sliding.size), _interval(window.sliding.every)
        return F.window("_event_time", size, every)
    assert window.fixed is not None, "BUG: a window of no kind"
    return F.window("_event_time", _interval(window.fixed))


def _last_end(window: WindowSettings) -> Column:
    """Return the end of the last window that a row is in."""
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
