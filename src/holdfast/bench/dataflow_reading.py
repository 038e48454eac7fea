"""Reading: rows per second of the plain source beside Spark's own Parquet, and over Flight.

Parquet is the yardstick because it is what people would use instead: the same rows, written by the
same library, in files about as large as segments, read by the same session, grouped by the same
expression. What differs is the source alone. A count is grouped and summed, since counting rows
alone would let Parquet answer from its footers.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F  # noqa: N812

from holdfast.bench.dataflow_rows import (
    BUNDLE_ROWS,
    LARGE,
    SLOT,
    Stores,
    TimedRun,
    filled,
    measured,
)
from holdfast.bench.figures import Figures, Result, rotated
from holdfast.bench.scale import DataflowScale
from holdfast.bench.stopwatch import TreeStopwatch
from holdfast.dataflow.session import start_session
from holdfast.errors import CheckFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

MASTER = "local[2]"
MEMORY = "2g"
# Batches of a stream that reads the large quiver.
STREAM_BATCHES = 4
# For all that one session has to do: many times what it takes, also beside other work.
SECTION_S_MAX = 3600.0


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
    folder: Path, scale: DataflowScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Measure a windowed count of all rows as a batch, and streams that only read."""
    rows = scale.rows // BUNDLE_ROWS * BUNDLE_ROWS
    with spark_and_rows(folder, scale, [LARGE], progress) as (session, stores):
        progress(f"read: {rows:,} rows from a quiver and from Parquet, {scale.rounds} rounds")
        ours = session.read.format("holdfast").option("path", str(stores.directory(LARGE)))
        plain = ours.option("columns", "at,key,value").load()
        parquet = session.read.parquet(str(stores.parquet))
        contenders = {
            "plain": partial(counted, plain, rows),
            "parquet": partial(counted, parquet, rows),
            "parquet_again": partial(counted, parquet, rows),
        }
        batches = in_turns(contenders, scale, progress)
        add_speeds(figures, {name: batches[name] for name in ("plain", "parquet")})
        add_ratios(figures, "plain_vs_parquet", batches["plain"], batches["parquet"])
        again, once = batches["parquet_again"], batches["parquet"]
        add_ratios(figures, "plain_vs_parquet_control", again, once)
        _measure_flight(session, stores, rows, scale, figures, progress)


def in_turns(
    contenders: Mapping[str, Callable[[], Result]],
    scale: DataflowScale,
    progress: Callable[[str], None],
) -> dict[str, list[Result]]:
    """Run contenders in turns, each round in another order, after one round that is discarded."""
    return rotated(
        contenders, scale.rounds, warm_up=True, enough_s=scale.enough_s, progress=progress
    )


def add_speeds(figures: Figures, found: Mapping[str, Sequence[TimedRead | TimedRun]]) -> None:
    """Add the rows per second, and the CPU time of a row, of each contender."""
    for name, runs in found.items():
        figures.add(f"{name}_rows_per_s", [one.per_s for one in runs])
        figures.add(f"{name}_cpu_us_per_row", [one.cpu_s / one.rows * 1e6 for one in runs])


def add_ratios(
    figures: Figures,
    name: str,
    ours: Sequence[TimedRead | TimedRun],
    others: Sequence[TimedRead | TimedRun],
) -> None:
    """Add our rows per second divided by the other's, by round, and the same of CPU time."""
    pairs = list(zip(ours, others, strict=True))
    figures.add(name, [one.per_s / other.per_s for one, other in pairs])
    costs = [one.cpu_s / one.rows / (other.cpu_s / other.rows or 1) for one, other in pairs]
    figures.add(f"{name}_cpu", costs)


@contextmanager
def spark_and_rows(
    folder: Path, scale: DataflowScale, names: Sequence[str], progress: Callable[[str], None]
) -> Iterator[tuple[SparkSession, Stores]]:
    """Yield a session of its own, and the quivers of these names."""
    progress(f"fill: {', '.join(names)}")
    folder.mkdir(exist_ok=True)
    with filled(folder, scale, names) as stores:
        settings = {
            "spark.driver.memory": MEMORY,
            "spark.local.dir": str(folder / "spark"),
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        }
        session = start_session(MASTER, settings, name="bench")
        with _killed_after(SECTION_S_MAX, session):
            try:
                yield session, stores
            finally:
                session.stop()


@contextmanager
def _killed_after(patience_s: float, session: SparkSession) -> Iterator[None]:
    """Kill Spark if a block takes too long: what waits for an answer would do so for ever."""
    gateway = session.sparkContext._gateway
    assert gateway is not None, "BUG: a session without Java"
    is_killed = threading.Event()

    def kill() -> None:
        is_killed.set()
        gateway.proc.kill()

    timer = threading.Timer(patience_s, kill)
    timer.start()
    try:
        yield
    except Exception as error:
        if not is_killed.is_set():
            raise
        raise CheckFailed(
            f"Spark had not done its work after {patience_s / 60:.0f} min, and was killed",
            hint="measure on a machine that has nothing else to do, one section at a time (--only)",
        ) from error
    finally:
        timer.cancel()


def counted(frame: DataFrame, rows: int) -> TimedRead:
    """Count and add up per key and ten seconds."""
    with TreeStopwatch() as watch:
        grouped = frame.groupBy(F.window("at", "10 seconds"), "key")
        found = grouped.agg(F.sum("value"), F.count("*").alias("rows")).collect()
    return checked(found, rows, watch)


def checked(found: Sequence[Row], rows: int, watch: TreeStopwatch) -> TimedRead:
    """Return what a count took that counted all rows."""
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

    contenders = {"mmap": partial(stream, True), "flight": partial(stream, False)}
    found = in_turns(contenders, scale, progress)
    add_speeds(figures, found)
    add_ratios(figures, "flight_vs_mmap", found["flight"], found["mmap"])
