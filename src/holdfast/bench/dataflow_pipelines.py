"""Pipelines: functions in Python, windows, micro-batches of ten thousand rows, and idleness.

Each section has a Spark session of its own, over quivers that are filled first.

What would be unfair, and is avoided: measuring a query from `start` would measure Spark's planning
of its first batch; counting what the engine reports would let it count rows that are not durable
yet; and running one contender after all rounds of another would give it a warmed-up JVM. So time
is taken from the checkpoint's files, and contenders take turns within one session.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.bench.dataflow_reading import add_ratios, add_speeds, in_turns, spark_and_rows
from holdfast.bench.dataflow_rows import (
    BATCHES,
    BUNDLE_ROWS,
    LARGE,
    SLOT,
    SMALL,
    Stores,
    TimedRun,
    batch_times_ms,
    batches_done,
    measured,
)
from holdfast.bench.figures import Figures, percentile
from holdfast.bench.scale import DataflowScale
from holdfast.bench.stopwatch import TreeStopwatch
from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.run import PipelineRun
from holdfast.dataflow.spec import Pipeline
from holdfast.errors import CheckFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# A query whose windows are all closed has so long to do its last batch.
SETTLE_S_MAX = 120.0
# It has settled when it did nothing for so long; its heartbeats are one second apart.
QUIET_S = 5.0
POLL_S = 0.1


class Lab:
    """Runs pipelines over the stores, each in a state directory of its own."""

    def __init__(self, session: SparkSession, stores: Stores) -> None:
        self._session = session
        self._stores = stores
        self._numbers = itertools.count()

    def begin(self, quiver: str, rows_of_a_batch: int | None = None, **more: Any) -> Pipeline:
        """Return a pipeline that reads a quiver, and counts as idle very soon.

        `idle_after` and `max_delay` are short so that a drained query ends soon: waiting for the
        watermark is not what is measured. A row limit makes batches alike in size; without one the
        default holds.
        """
        limit = {} if rows_of_a_batch is None else {"read_limit": {"rows": rows_of_a_batch}}
        return Pipeline(shuffle_partitions=2, max_delay="1s", idle_after="200ms", **more).source(
            "events",
            quiver=self._stores.address(quiver),
            slot=SLOT,
            columns=["key", "value"],
            **limit,
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

    def timed(self, pipeline: Pipeline, rows: int) -> TimedRun:
        """Run a pipeline over some rows to its end; return what it took."""
        checkpoint, watch = self.drained(pipeline)
        return measured(checkpoint, rows, watch)


# ------------------------------------------------------------------------ functions


def doubled(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its value doubled: as little as a function can do."""
    return {"key": row["key"], "value": 2 * row["value"]}


def summed(window: Any, rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the sum of a window's values."""
    return {"total": sum(row["value"] for row in rows)}


def measure_python(
    folder: Path, scale: DataflowScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Measure rows through Python functions, in batches as large as they are by default."""
    rows = scale.python_rows // BUNDLE_ROWS * BUNDLE_ROWS
    here = f"{__name__}:"
    with spark_and_rows(folder, scale, [SMALL], progress) as (session, stores):
        progress(f"python: {rows:,} rows through a function, {scale.rounds} rounds")
        lab = Lab(session, stores)
        begun = lab.begin(SMALL)
        mapped = begun.map(f"{here}doubled", returns="key string, value double")
        reduced = begun.window(fixed="1s").reduce(
            f"{here}summed", returns="total double", key="key"
        )
        contenders = {
            "python_map": partial(lab.timed, mapped.sink(files="mapped"), rows),
            "python_reducer": partial(lab.timed, reduced.sink(files="reduced"), rows),
        }
        found = in_turns(contenders, scale, progress)
    add_speeds(figures, found)


# -------------------------------------------------------------------- native windows


def measure_native(
    folder: Path, scale: DataflowScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Measure the sum of `python_reducer` as Spark has it, over more rows: default settings."""
    scale = replace(scale, rows=scale.fewer_rows)
    rows = scale.rows // BUNDLE_ROWS * BUNDLE_ROWS
    with spark_and_rows(folder, scale, [LARGE], progress) as (session, stores):
        progress(f"native: {rows:,} rows added up by windows, {scale.rounds} rounds")
        lab = Lab(session, stores)
        window = lab.begin(LARGE).window(fixed="1s").aggregate(key="key", total="sum(value)")
        drain = partial(lab.timed, window.sink(files="native"), rows)
        found = in_turns({"native_window": drain, "again": drain}, scale, progress)
    add_speeds(figures, {"native_window": found["native_window"]})
    add_ratios(figures, "native_window_control", found["again"], found["native_window"])


# --------------------------------------------------------------------- small batches


def measure_batches(
    folder: Path, scale: DataflowScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Measure how long a small micro-batch takes: what a pipeline adds to an event's delay."""
    with spark_and_rows(folder, scale, [BATCHES], progress) as (session, stores):
        progress(f"batches: {scale.batches} of {BUNDLE_ROWS:,} rows, {scale.rounds} rounds")
        lab = Lab(session, stores)
        begun = lab.begin(BATCHES, BUNDLE_ROWS)
        window = begun.window(fixed="10s").aggregate(key="key", n="count(*)")

        def contend(pipeline: Pipeline) -> list[float]:
            checkpoint, _ = lab.drained(pipeline)
            # Behind the rows come batches that only close windows.
            return sorted(batch_times_ms(checkpoint)[: scale.batches - 1])

        contenders = {
            "batch": partial(contend, window.sink(files="windows")),
            "map_batch": partial(contend, begun.filter("value >= 0").sink(files="rows")),
        }
        found = in_turns(contenders, scale, progress)
    for name, rounds in found.items():
        figures.add(f"{name}_p50_ms", [percentile(times_ms, 50) for times_ms in rounds])
        # Of all rounds together: one alone is too short to have a 99th percentile.
        together = sorted(time_ms for times_ms in rounds for time_ms in times_ms)
        figures.add(f"{name}_p99_ms", [percentile(together, 99)])


# --------------------------------------------------------------------------- idleness


def measure_idle(
    folder: Path, scale: DataflowScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Measure what a query costs that has nothing to do: it must not plan batches.

    A query that plans empty batches writes to its checkpoint for ever and never lets the machine
    rest; the bar on this figure is zero batches, whatever the machine.
    """
    with spark_and_rows(folder, scale, [SMALL], progress) as (session, stores):
        progress(f"idle: a query with nothing to do, for {scale.idle_s:.0f} s")
        lab = Lab(session, stores)
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
