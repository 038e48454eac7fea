"""Reading: rows per second of the plain source beside Spark's own Parquet, and over Flight.

Parquet is the yardstick because it is what people would use instead: the same rows, written by the
same library, in files about as large as segments, read by the same session, grouped by the same
expression. What differs is the source alone. A count is grouped and summed, since counting rows
alone would let Parquet answer from its footers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F  # noqa: N812

from holdfast.bench.dataflow_rows import BUNDLE_ROWS, LARGE, SLOT, Stores, TimedRun, measured
from holdfast.bench.figures import Figures, interleave
from holdfast.bench.scale import DataflowScale
from holdfast.bench.stopwatch import TreeStopwatch
from holdfast.errors import CheckFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Batches of a stream that reads the large quiver.
STREAM_BATCHES = 4


class TimedRead(NamedTuple):
    """One reading of all rows."""

    rows: int
    wall_s: float
    cpu_s: float

    @property
    def per_s(self) -> float:
        """Rows per second."""
        return self.rows / self.wall_s


def measure_reading(
    session: SparkSession,
    stores: Stores,
    scale: DataflowScale,
    figures: Figures,
    progress: Callable[[str], None],
) -> None:
    """Measure a windowed count of all rows as a batch, and streams that only read."""
    rows = scale.rows // BUNDLE_ROWS * BUNDLE_ROWS
    progress(f"read: {rows:,} rows from a quiver and from Parquet, {scale.rounds} rounds")
    ours = session.read.format("holdfast").option("path", str(stores.directory(LARGE)))
    plain = ours.option("columns", "at,key,value").load()
    parquet = session.read.parquet(str(stores.parquet))
    batches = interleave(
        {"plain": partial(_count, plain, rows), "parquet": partial(_count, parquet, rows)},
        scale.rounds,
    )
    for name, found in batches.items():
        figures.add(f"{name}_rows_per_s", [one.per_s for one in found])
        figures.add(f"{name}_cpu_us_per_row", [one.cpu_s / one.rows * 1e6 for one in found])
    pairs = list(zip(batches["plain"], batches["parquet"], strict=True))
    figures.add("plain_vs_parquet", [one.per_s / other.per_s for one, other in pairs])
    figures.add("plain_vs_parquet_cpu", [one.cpu_s / other.cpu_s for one, other in pairs])
    _measure_flight(session, stores, rows, scale, figures, progress)


def _count(frame: DataFrame, rows: int) -> TimedRead:
    """Count and add up per key and ten seconds."""
    with TreeStopwatch() as watch:
        grouped = frame.groupBy(F.window("at", "10 seconds"), "key")
        found = grouped.agg(F.sum("value"), F.count("*").alias("rows")).collect()
    if sum(one["rows"] for one in found) != rows:
        # A source that gives fewer rows is faster.
        raise CheckFailed("a source did not give all its rows", hint="the figures mean nothing")
    return TimedRead(rows, watch.wall_s, watch.cpu_s)


def _measure_flight(
    session: SparkSession,
    stores: Stores,
    rows: int,
    scale: DataflowScale,
    figures: Figures,
    progress: Callable[[str], None],
) -> None:
    """Measure streams that map a quiver's files, and streams that fetch the same by Flight."""
    progress(f"read: streams of {rows:,} rows, mapped and over Flight, {scale.rounds} rounds")
    numbers = itertools.count()

    def stream(local_reads: bool) -> TimedRun:
        number = next(numbers)
        checkpoint = stores.folder / "streams" / str(number)
        options = {
            "quiver": stores.address(LARGE),
            "slot": SLOT,
            "subscriber": f"stream-{number}",
            "checkpoint": str(checkpoint),
            "columns": "at,key,value",
            "max_rows": str(rows // STREAM_BATCHES),
            "local_reads": str(local_reads).lower(),
        }
        reader = session.readStream.format("holdfast").options(**options)
        writer = reader.load().writeStream.format("noop").trigger(availableNow=True)
        with TreeStopwatch() as watch:
            writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()
        return measured(checkpoint, rows, watch)

    found = interleave(
        {"mmap": lambda: stream(True), "flight": lambda: stream(False)}, scale.rounds
    )
    for name, runs in found.items():
        figures.add(f"{name}_rows_per_s", [one.per_s for one in runs])
        figures.add(f"{name}_cpu_us_per_row", [one.cpu_s / one.rows * 1e6 for one in runs])
    pairs = zip(found["flight"], found["mmap"], strict=True)
    figures.add("flight_vs_mmap", [one.per_s / other.per_s for one, other in pairs])
