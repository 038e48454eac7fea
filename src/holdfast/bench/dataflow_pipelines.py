"""Pipelines: micro-batches of ten thousand rows, functions in Python, and what idleness costs.

One Spark session serves all measurements of the dataflow, over quivers that are filled first.

What would be unfair, and is avoided: measuring a query from `start` would measure Spark's planning
of its first batch; counting what the engine reports would let it count rows that are not durable
yet; and running one contender after all rounds of another would give it a warmed-up JVM. So time
is taken from the checkpoint's files, and contenders take turns within one session.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.bench.dataflow_reading import measure_reading
from holdfast.bench.dataflow_rows import (
    BATCHES,
    BUNDLE_ROWS,
    SLOT,
    SMALL,
    Stores,
    TimedRun,
    batch_times_ms,
    batches_done,
    filled,
    measured,
)
from holdfast.bench.figures import Figures, interleave, percentile
from holdfast.bench.scale import DataflowScale
from holdfast.bench.stopwatch import TreeStopwatch
from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.driver.run import PipelineRun
from holdfast.dataflow.driver.session import start_session
from holdfast.dataflow.spec import Pipeline
from holdfast.errors import CheckFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# A query whose windows are all closed has so long to do its last batch.
SETTLE_S_MAX = 120.0
# It has settled when it did nothing for so long; its heartbeats are one second apart.
QUIET_S = 5.0
POLL_S = 0.1
MASTER = "local[2]"
MEMORY = "2g"


class Lab:
    """Runs pipelines over the stores, each in a state directory of its own."""

    def __init__(self, session: SparkSession, stores: Stores) -> None:
        self._session = session
        self._stores = stores
        self._numbers = itertools.count()

    def begin(self, quiver: str, rows_of_a_batch: int) -> Pipeline:
        """Return a pipeline that reads a quiver, and counts as idle very soon.

        `idle_after` and `max_delay` are short so that a drained query ends soon: waiting for the
        watermark is not what is measured. The row limit makes batches alike in size.
        """
        return Pipeline(shuffle_partitions=2, max_delay="1s", idle_after="200ms").source(
            "events",
            quiver=self._stores.address(quiver),
            slot=SLOT,
            columns=["key", "value"],
            read_limit={"rows": rows_of_a_batch},
        )

    def made(self, pipeline: Pipeline) -> tuple[PipelineRun, Path]:
        """Return a new run of a pipeline, and the checkpoint of its only query."""
        number = next(self._numbers)
        state_dir = self._stores.folder / "runs" / str(number)
        places = Places(state_dir, self._stores.folder)
        run = PipelineRun(f"bench-{number}", pipeline.settings, places, self._session)
        (query,) = run.plan.queries
        return run, places.checkpoint(query)

    def drained(self, pipeline: Pipeline) -> tuple[Path, TreeStopwatch]:
        """Run a pipeline to its end; return its checkpoint, and what it took."""
        run, checkpoint = self.made(pipeline)
        with TreeStopwatch() as watch, run:
            run.drain(close=True)
        return checkpoint, watch


def measure_pipelines(
    session: SparkSession,
    stores: Stores,
    scale: DataflowScale,
    figures: Figures,
    progress: Callable[[str], None],
) -> None:
    """Measure what whole pipelines take."""
    lab = Lab(session, stores)
    _measure_python(lab, scale, figures, progress)
    _measure_batches(lab, scale, figures, progress)
    _measure_idle(lab, scale, figures, progress)


# ------------------------------------------------------------------------ functions


def doubled(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its value doubled: as little as a function can do."""
    return {"key": row["key"], "value": 2 * row["value"]}


def summed(window: Any, rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the sum of a window's values."""
    return {"total": sum(row["value"] for row in rows)}


def _measure_python(
    lab: Lab, scale: DataflowScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Measure rows through Python functions, and one of them in Spark's own terms beside it."""
    rows = scale.python_rows // BUNDLE_ROWS * BUNDLE_ROWS
    progress(f"python: {rows:,} rows through a function, {scale.rounds} rounds")
    here = f"{__name__}:"
    begun = lab.begin(SMALL, max(BUNDLE_ROWS, rows // 4))
    mapped = begun.map(f"{here}doubled", returns="key string, value double").sink(files="mapped")
    reduced = begun.window(fixed="1s").reduce(f"{here}summed", returns="total double", key="key")
    native = begun.window(fixed="1s").aggregate(key="key", total="sum(value)")

    def contend(pipeline: Pipeline) -> TimedRun:
        checkpoint, watch = lab.drained(pipeline)
        return measured(checkpoint, rows, watch)

    found = interleave(
        {
            "python_map": lambda: contend(mapped),
            "python_reducer": lambda: contend(reduced.sink(files="reduced")),
            "native_window": lambda: contend(native.sink(files="native")),
        },
        scale.rounds,
        # One session serves all of it, and reading has warmed it up; a further round of whole
        # pipelines would take long.
        warm_up=False,
    )
    for name, runs in found.items():
        figures.add(f"{name}_rows_per_s", [one.per_s for one in runs])
        figures.add(f"{name}_cpu_us_per_row", [one.cpu_s / one.rows * 1e6 for one in runs])


# --------------------------------------------------------------------- small batches


def _measure_batches(
    lab: Lab, scale: DataflowScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Measure how long a small micro-batch takes: what a pipeline adds to an event's delay."""
    progress(f"batches: {scale.batches} of {BUNDLE_ROWS:,} rows, {scale.rounds} rounds")
    begun = lab.begin(BATCHES, BUNDLE_ROWS)
    window = begun.window(fixed="10s").aggregate(key="key", n="count(*)")

    def contend(pipeline: Pipeline) -> list[float]:
        checkpoint, _ = lab.drained(pipeline)
        # Behind the rows come batches that only close windows.
        return sorted(batch_times_ms(checkpoint)[: scale.batches - 1])

    found = interleave(
        {
            "batch": lambda: contend(window.sink(files="windows")),
            "map_batch": lambda: contend(begun.filter("value >= 0").sink(files="rows")),
        },
        scale.rounds,
        warm_up=False,
    )
    for name, rounds in found.items():
        figures.add(f"{name}_p50_ms", [percentile(times_ms, 50) for times_ms in rounds])
        # Of all rounds together: one alone is too short to have a 99th percentile.
        together = sorted(time_ms for times_ms in rounds for time_ms in times_ms)
        figures.add(f"{name}_p99_ms", [percentile(together, 99)])


# --------------------------------------------------------------------------- idleness


def _measure_idle(
    lab: Lab, scale: DataflowScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Measure what a query costs that has nothing to do: it must not plan batches.

    A query that plans empty batches writes to its checkpoint for ever and never lets the machine
    rest; the bar on this figure is zero batches, whatever the machine.
    """
    progress(f"idle: a query with nothing to do, for {scale.idle_s:.0f} s")
    window = lab.begin(SMALL, 1_000_000).window(fixed="10s").aggregate(key="key", n="count(*)")
    run, checkpoint = lab.made(window.sink(files="idle"))
    with run:
        run.start()
        _settle(run, checkpoint)
        before = batches_done(checkpoint)
        with TreeStopwatch() as watch:
            run.wait(scale.idle_s)
        done = batches_done(checkpoint) - before
    figures.add("idle_batches_per_minute", [done / watch.wall_s * 60])
    figures.add("idle_cpu_percent", [watch.cpu_s / watch.wall_s * 100])


def _settle(run: PipelineRun, checkpoint: Path) -> None:
    """Wait until a query has done something, and then nothing for a while."""
    give_up_s = time.monotonic() + SETTLE_S_MAX
    done, since_s = 0, time.monotonic()
    while not done or time.monotonic() < since_s + QUIET_S:
        if time.monotonic() > give_up_s:
            raise CheckFailed("a query does not come to rest", hint="it has nothing to do")
        if batches_done(checkpoint) != done:
            done, since_s = batches_done(checkpoint), time.monotonic()
        run.wait(POLL_S)


def measure_dataflow(
    folder: Path, scale: DataflowScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Measure the source beside Spark's own, functions, batches and idleness."""
    progress(f"fill: {scale.rows:,} rows")
    with filled(folder, scale) as stores:
        settings = {
            "spark.driver.memory": MEMORY,
            "spark.local.dir": str(folder / "spark"),
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        }
        session = start_session(MASTER, settings, name="bench")
        try:
            measure_reading(session, stores, scale, figures, progress)
            measure_pipelines(session, stores, scale, figures, progress)
        finally:
            session.stop()
