"""Metrics of pipelines: what the driver process beside a gateway, or a driver alone, tells.

The same idea as `metrics.py`: one table, made of `DriverFigures` and of nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from operator import attrgetter
from typing import Literal, NamedTuple, get_args

from holdfast.dataflow.driver.progress import QueryStatistics
from holdfast.dataflow.driver.wire import DriverFigures, PipelineFigures, PipelineState
from holdfast.operate.metrics import Labels, Sample

Rows = Iterable[tuple[Labels, float]]
_Read = Callable[[DriverFigures], Rows]


class PipelineMetric(NamedTuple):
    """One name, and how its values are read from a driver's figures."""

    name: str
    type: Literal["counter", "gauge"]
    unit: str
    # One sentence: what the figure is.
    help: str
    # What to look for in it.
    watch: str
    read: _Read
    labels: tuple[str, ...] = ()


def _queries(driver: DriverFigures) -> Iterator[tuple[dict[str, str], QueryStatistics]]:
    for pipeline, figures in driver.pipelines.items():
        for query in figures.queries:
            yield {"pipeline": pipeline, "query": query.name}, query


def _query(field: str) -> _Read:
    get: Callable[[object], float | None] = attrgetter(field)

    def read(driver: DriverFigures) -> Iterator[tuple[Labels, float]]:
        for labels, query in _queries(driver):
            value = get(query)
            if value is not None:
                yield labels, value

    return read


def _pipeline(get: Callable[[PipelineFigures], float]) -> _Read:
    return lambda driver: [({"pipeline": name}, get(one)) for name, one in driver.pipelines.items()]


def _states(driver: DriverFigures) -> Iterator[tuple[Labels, float]]:
    for name, one in driver.pipelines.items():
        for state in get_args(PipelineState):
            yield {"pipeline": name, "state": state}, one.state == state


def _watermarks(driver: DriverFigures) -> Iterator[tuple[Labels, float]]:
    for labels, query in _queries(driver):
        if query.watermark is not None and query.lag_s is not None:
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

PIPELINE_METRICS: tuple[PipelineMetric, ...] = (
    PipelineMetric(
        "pipeline.driver.running", "gauge", "0 or 1",
        "Whether the driver process of the pipelines runs.",
        "0 for long: the log says why it ends.",
        lambda driver: [({}, driver.is_running)],
    ),
    PipelineMetric(
        "pipeline.driver.starts_total", "counter", "starts",
        "How often the driver process was started.",
        "Any increase after the first: Java or the machine ran out of something.",
        lambda driver: [({}, driver.starts_total)],
    ),
    PipelineMetric(
        "pipeline.run.state", "gauge", "0 or 1",
        "1 for the state that the pipeline is in, 0 for the others.",
        "`waiting`: it failed and is restarted. `disk_full`: the same, until space is free. "
        "`refused`: the file has to change.",
        _states, (*_PIPELINE, "state"),
    ),
    PipelineMetric(
        "pipeline.run.restarts_total", "counter", "restarts",
        "How often the pipeline was begun again, since its driver began.",
        "Its rate: a batch fails again and again; nothing is lost, but nothing is processed.",
        _pipeline(attrgetter("restarts_total")), _PIPELINE,
    ),
    PipelineMetric(
        "pipeline.query.batches_total", "counter", "batches",
        "Batches that were processed.", "Stands still while events come in: see the state.",
        _query("batches_total"), _QUERY,
    ),
    PipelineMetric(
        "pipeline.query.batch_seconds", "gauge", "seconds",
        "How long the last batch took.", "Grows: more cores, or smaller batches.",
        _query("batch_s"), _QUERY,
    ),
    PipelineMetric(
        "pipeline.query.rows_total", "counter", "rows",
        "Rows that the sources gave, each once, however many branches read it.",
        "Its rate is the throughput.", _query("rows_total"), _QUERY,
    ),
    PipelineMetric(
        "pipeline.query.rows_per_second", "gauge", "rows/s",
        "Rows per second of the last batch.", "As above, without a server to compute it.",
        _query("rows_per_s"), _QUERY,
    ),
    PipelineMetric(
        "pipeline.query.watermark_timestamp_seconds", "gauge", "seconds",
        "The watermark, as seconds since 1970.",
        "Stands still: `holdfast dataflow watermark` says what holds it.", _watermarks, _QUERY,
    ),
    PipelineMetric(
        "pipeline.query.lag_seconds", "gauge", "seconds",
        "How far the watermark is behind the clock; 0 while no window is open.",
        "The one to alert on: results are this late.", _query("lag_s"), _QUERY,
    ),
    PipelineMetric(
        "pipeline.query.state_rows", "gauge", "rows",
        "Rows of state: keys of open windows.", "Grows without end: a key is too fine.",
        _query("state_rows"), _QUERY,
    ),
    PipelineMetric(
        "pipeline.query.state_bytes", "gauge", "bytes",
        "Memory that the state uses.", "As above.", _query("state_bytes"), _QUERY,
    ),
    PipelineMetric(
        "pipeline.query.left_out_rows_total", "counter", "rows",
        "Rows that were left out of one of several windows, because it was closed.",
        "Grows with sliding windows and late rows.", _query("left_out_total"), _QUERY,
    ),
    PipelineMetric(
        "pipeline.query.outcome_rows_total", "counter", "rows",
        "What became of rows, and at which vertex: late, failed, written, fallback.",
        "`late`: raise max_delay or allowed_lateness. `failed`: look at the dead letters.",
        _counts, (*_QUERY, "outcome", "vertex"),
    ),
)  # fmt: skip


def driver_records(driver: DriverFigures) -> list[Sample]:
    """Return every figure of a driver and its pipelines."""
    return [
        Sample(metric.name, dict(labels), float(value))
        for metric in PIPELINE_METRICS
        for labels, value in metric.read(driver)
    ]
