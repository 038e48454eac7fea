"""Metrics of pipelines: what the driver process beside a gateway, or a driver alone, tells.

The same idea as `metrics.py`: one table, made of `DriverFigures` and of nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import get_args

from holdfast.dataflow.driver.wire import (
    DriverFigures,
    PipelineFigures,
    PipelineState,
    QueryStatistics,
)
from holdfast.operate.metrics import Labels, Metric, Sample, each, samples, whole


def _queries(driver: DriverFigures) -> Iterator[tuple[Labels, QueryStatistics]]:
    for labels, figures in _pipelines(driver):
        for query in figures.queries:
            yield {**labels, "query": query.name}, query


def _lagging(driver: DriverFigures) -> Iterable[tuple[Labels, QueryStatistics]]:
    return [one for one in _queries(driver) if one[1].lag_s is not None]


def _pipelines(driver: DriverFigures) -> Iterable[tuple[Labels, PipelineFigures]]:
    return [({"pipeline": name}, one) for name, one in driver.pipelines.items()]


def _states(driver: DriverFigures) -> Iterator[tuple[Labels, float]]:
    for labels, one in _pipelines(driver):
        for state in get_args(PipelineState):
            yield {**labels, "state": state}, one.state == state


def _watermarks(driver: DriverFigures) -> Iterator[tuple[Labels, float]]:
    for labels, query in _lagging(driver):
        if query.watermark is not None:
            try:
                yield labels, datetime.fromisoformat(query.watermark).timestamp()
            except ValueError:
                continue  # the end of time


def _counts(driver: DriverFigures) -> Iterator[tuple[Labels, float]]:
    for labels, query in _queries(driver):
        for name, count in query.counts.items():
            outcome, _, vertex = name.partition(".")
            yield {**labels, "outcome": outcome, "vertex": vertex}, count


_QUERY = ("pipeline", "query")
_PIPELINE = ("pipeline",)

PIPELINE_METRICS: tuple[Metric[DriverFigures], ...] = (
    Metric(
        "pipeline.driver.running", "gauge", "0 or 1",
        "Whether the driver process of the pipelines is running.",
        "0 for long: the log says why it exits.",
        each(whole, "is_running"),
    ),
    Metric(
        "pipeline.driver.starts_total", "counter", "starts",
        "How many times the driver process was started.",
        "Any increase after the first: Java or the machine ran out of something.",
        each(whole, "starts_total"),
    ),
    Metric(
        "pipeline.run.state", "gauge", "0 or 1",
        "1 for the state that the pipeline is in, 0 for the others.",
        "`waiting`: it failed and is restarted. `disk_full`: the same, until space is free. "
        "`refused`: the file has to change.",
        _states, (*_PIPELINE, "state"),
    ),
    Metric(
        "pipeline.run.restarts_total", "counter", "restarts",
        "How many times the pipeline was restarted since its driver started.",
        "Its rate: a batch fails again and again; nothing is lost, but nothing is processed.",
        each(_pipelines, "restarts_total"), _PIPELINE,
    ),
    Metric(
        "pipeline.query.batches_total", "counter", "batches",
        "Batches that were processed.", "Stands still while events come in: see the state.",
        each(_queries, "batches_total"), _QUERY,
    ),
    Metric(
        "pipeline.query.batch_seconds", "gauge", "seconds",
        "How long the last batch took.", "Grows: more cores, or smaller batches.",
        each(_queries, "batch_s"), _QUERY,
    ),
    Metric(
        "pipeline.query.rows_total", "counter", "rows",
        "Rows read from the sources, each counted once, however many branches read it.",
        "Its rate is the throughput.", each(_queries, "rows_total"), _QUERY,
    ),
    Metric(
        "pipeline.query.rows_per_second", "gauge", "rows/s",
        "Rows per second of the last batch.", "As above, without a server to compute it.",
        each(_queries, "rows_per_s"), _QUERY,
    ),
    Metric(
        "pipeline.query.watermark_timestamp_seconds", "gauge", "seconds",
        "The watermark, as seconds since 1970.",
        "Stands still: `holdfast dataflow watermark` says what holds it.", _watermarks, _QUERY,
    ),
    Metric(
        "pipeline.query.lag_seconds", "gauge", "seconds",
        "How far the watermark is behind the clock; 0 while no window is open.",
        "The one to alert on: results are this late.", each(_lagging, "lag_s"), _QUERY,
    ),
    Metric(
        "pipeline.query.state_rows", "gauge", "rows",
        "Rows of state: keys of open windows.", "Keeps growing: a key is too fine.",
        each(_queries, "state_rows"), _QUERY,
    ),
    Metric(
        "pipeline.query.state_bytes", "gauge", "bytes",
        "Memory that the state uses.", "As above.", each(_queries, "state_bytes"), _QUERY,
    ),
    Metric(
        "pipeline.query.left_out_rows_total", "counter", "rows",
        "Rows that were left out of one of several windows, because it was closed.",
        "Grows with sliding windows and late rows.", each(_queries, "left_out_total"), _QUERY,
    ),
    Metric(
        "pipeline.query.outcome_rows_total", "counter", "rows",
        "What became of rows, and at which vertex: late, failed, written, fallback.",
        "`late`: raise max_delay or allowed_lateness. `failed`: look at the dead letters.",
        _counts, (*_QUERY, "outcome", "vertex"),
    ),
)  # fmt: skip


def driver_records(driver: DriverFigures) -> list[Sample]:
    """Return every figure of a driver and its pipelines."""
    return list(samples(PIPELINE_METRICS, [({}, driver)]))
