"""Native windows, added up where rows are read: beside Parquet, from a backlog, and by rows.

As a batch the same rows are grouped three times: by partial aggregates, which the tasks of our
source make, by Spark out of Parquet, and by Spark out of Parquet once more, as a control. A
pipeline that drains a backlog with default settings does what the batch does and, beside it, plans,
keeps state, writes a checkpoint and commits files; how much of the batch's speed is left is the
price of a stream. The same pipeline with `push_down` off says what partial aggregates bring: over
fewer rows, because it takes several times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DoubleType, LongType, StringType, StructType, TimestampType

from holdfast.bench.dataflow_pipelines import Lab
from holdfast.bench.dataflow_reading import (
    TimedRead,
    add_ratios,
    add_speeds,
    checked,
    counted,
    in_turns,
    spark_and_rows,
)
from holdfast.bench.dataflow_rows import (
    BUNDLE_ROWS,
    LARGE,
    SLOT,
    SMALL,
    Stores,
    TimedRun,
)
from holdfast.bench.figures import Figures
from holdfast.bench.scale import DataflowScale
from holdfast.bench.stopwatch import TreeStopwatch
from holdfast.dataflow.source.partial_steps import EVENT_TIME, ROWS, Partial
from holdfast.dataflow.source.partials import PartialSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.dataflow.spec import Pipeline

_WINDOW_US = 10_000_000


def measure_windows(
    folder: Path, scale: DataflowScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Measure windowed sums and counts as a batch and as a stream."""
    rows = scale.rows // BUNDLE_ROWS * BUNDLE_ROWS
    with spark_and_rows(folder, scale, [LARGE], progress) as (session, stores):
        progress(f"windows: {rows:,} rows as a batch and as a backlog, {scale.rounds} rounds")
        lab = Lab(session, stores)
        parquet = session.read.parquet(str(stores.parquet))
        aggregated = _partials(session, stores)

        drain = partial(_drain, lab, rows)
        contenders: dict[str, Callable[[], TimedRead | TimedRun]] = {
            "window_batch": partial(_count_partials, aggregated, rows),
            "window_parquet": partial(counted, parquet, rows),
            "window_parquet_again": partial(counted, parquet, rows),
            "stream_window": drain,
            "stream_window_again": drain,
        }
        found = in_turns(contenders, scale, progress)
    add_speeds(figures, {name: found[name] for name in contenders if "again" not in name})
    for name, ours, others in (
        ("window_vs_parquet", "window_batch", "window_parquet"),
        ("window_vs_parquet_control", "window_parquet_again", "window_parquet"),
        ("stream_window_vs_batch", "stream_window", "window_batch"),
        ("stream_window_control", "stream_window_again", "stream_window"),
    ):
        add_ratios(figures, name, found[ours], found[others])


def measure_by_rows(
    folder: Path, scale: DataflowScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Measure a backlog by partial aggregates, and row by row."""
    scale = replace(scale, rows=scale.fewer_rows)
    rows = scale.rows // BUNDLE_ROWS * BUNDLE_ROWS
    with spark_and_rows(folder, scale, [LARGE], progress) as (session, stores):
        progress(f"by_rows: {rows:,} rows as a backlog, {scale.rounds} rounds")
        drain = partial(_drain, Lab(session, stores), rows)
        contenders = {"partials": drain, "rows": partial(drain, push_down=False)}
        found = in_turns(contenders, scale, progress)
    add_speeds(figures, {"stream_window_by_rows": found["rows"]})
    add_ratios(figures, "stream_window_vs_rows", found["partials"], found["rows"])


def _drain(lab: Lab, rows: int, **settings: Any) -> TimedRun:
    """Count and add up per key and ten seconds, in a pipeline with default settings but these."""
    begun = lab.begin(LARGE, **settings).window(fixed="10s")
    summed = begun.aggregate(key="key", total="sum(value)", n="count(*)")
    return lab.timed(summed.sink(files="windows"), rows)


def _partials(session: SparkSession, stores: Stores) -> DataFrame:
    """Return the rows of the large quiver as partial aggregates that tasks make."""
    stored = StructType().add(EVENT_TIME, TimestampType()).add("key", StringType())
    total = Partial("total", "sum", "value")
    spec = PartialSpec(stored.add("value", DoubleType()), (), ("key",), _WINDOW_US, (total,))
    made = StructType().add("key", StringType()).add(ROWS, LongType()).add("total", DoubleType())
    reader = session.read.format("holdfast").option("path", str(stores.directory(LARGE)))
    reader = reader.option("slot", SLOT).option("partials", spec.to_option())
    return reader.schema(made.add(EVENT_TIME, TimestampType())).load()


def _count_partials(frame: DataFrame, rows: int) -> TimedRead:
    """Count and add up per key and ten seconds."""
    with TreeStopwatch() as watch:
        grouped = frame.groupBy(F.window(EVENT_TIME, "10 seconds"), "key")
        found = grouped.agg(F.sum("total"), F.sum(ROWS).alias("rows")).collect()
    return checked(found, rows, watch)


# -------------------------------------------------------------------- functions of Arrow


def summed_arrow(window: Any, rows: pa.RecordBatch) -> dict[str, Any]:
    """Return the sum of a window's values."""
    return {"total": pc.sum(rows["value"]).as_py()}


def measure_arrow(
    folder: Path, scale: DataflowScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Measure a reduce by a function of a RecordBatch, as `python_reducer` measures one of rows."""
    rows = scale.python_rows // BUNDLE_ROWS * BUNDLE_ROWS
    with spark_and_rows(folder, scale, [SMALL], progress) as (session, stores):
        progress(f"arrow: {rows:,} rows through a reduce by Arrow, {scale.rounds} rounds")
        lab = Lab(session, stores)
        begun = lab.begin(SMALL).window(fixed="1s")
        made: Pipeline = begun.reduce(
            arrow=f"{__name__}:summed_arrow", returns="total double", key="key"
        )

        drain = partial(lab.timed, made.sink(files="arrow"), rows)
        found = in_turns({"arrow_reduce": drain, "again": drain}, scale, progress)
    add_speeds(figures, {"arrow_reduce": found["arrow_reduce"]})
    add_ratios(figures, "arrow_reduce_control", found["again"], found["arrow_reduce"])
