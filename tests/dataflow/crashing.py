"""A driver process with a query of every shape, which dies when each has come to its moment.

Run as `python -m tests.dataflow.crashing KIND ROOT`: runs the four shapes over the quivers in ROOT
to their end, each in its own folder. KIND says how they are written: with Spark's own words
("plain"), or as pipelines that are compiled ("compiled").

With `HOLDFAST_DATAFLOW_TRAP=tests.dataflow.crashing:trap` and `HOLDFAST_CELLS` (moments by shape)
in the environment, a query that comes to its moment in batch 1 waits there until all of them are at
theirs; then every process of the session is killed, the JVM and the Python workers too. What is
durable of each query is what is durable at its moment, as if it had been alone.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from tests.patience import SPARK_PATIENCE_S

from holdfast.dataflow.base.points import BatchPoint
from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.driver.run import PipelineRun
from holdfast.dataflow.driver.session import query_session, start_session
from holdfast.dataflow.source.checkpoint import Checkpoint
from holdfast.dataflow.spec.pipeline import PipelineSettings
from holdfast.prove.sessions import end_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CELLS = "HOLDFAST_CELLS"
SHAPES = ("map", "window", "session", "fan_out")
KINDS = ("plain", "compiled")
QUIVERS = ("one", "two")
# The first batch is not the one: a query that begins is another matter than one that goes on.
BATCH = 1
# At most one of the moments keeps a task: the others go on beside it.
MASTER = "local[2]"
# For a query to plan its first batch, and for all of them to end.
BEGIN_S = 100.0

# ------------------------------------------------------------------------- moments

_seen: dict[str, int] = {}


def trap(point: BatchPoint, checkpoint: str) -> None:
    """Wait for the other shapes and kill the session, if this is the moment of this one."""
    cells: dict[str, str] = json.loads(os.environ[CELLS])
    root = Path(cells["root"])
    shape = Path(checkpoint).relative_to(root).parts[0]
    if cells.get(shape) != point or not _is_time(point, Checkpoint(checkpoint)):
        return
    _seen[shape] = _seen.get(shape, 0) + 1
    if point == BatchPoint.ACKNOWLEDGE and _seen[shape] < len(QUIVERS):
        return  # one quiver has been told; before the last one is the worst moment
    (root / f"reached-{shape}").touch()
    give_up_s = time.monotonic() + SPARK_PATIENCE_S
    while len(list(root.glob("reached-*"))) < len(cells) - 1 and time.monotonic() < give_up_s:
        time.sleep(0.02)
    end_session(os.getsid(0))


def _is_time(point: BatchPoint, checkpoint: Checkpoint) -> bool:
    if point in (BatchPoint.COMMIT_LOG, BatchPoint.ACKNOWLEDGE):
        return checkpoint.last_committed() == BATCH
    return checkpoint.last_planned() == BATCH


# ---------------------------------------------------------------- with Spark's own words


def _plain(shape: str, folder: Path, spark: SparkSession) -> None:
    reader = query_session(spark, 1).readStream.format("holdfast")
    checkpoint = str(folder / "checkpoint")
    options = {
        "path": ",".join(str(folder / name) for name in QUIVERS), "subscriber": "stats",
        "checkpoint": checkpoint, "watermark": "true", "max_rows": "20", "max_delay": "5s",
        "idle_after": "1h", "close": "true", "quiver_config": "tests.dataflow.quivers:CONFIG",
    }  # fmt: skip
    rows = _shaped(shape, reader.options(**options).load())
    writer = rows.writeStream.trigger(availableNow=True)
    writer = writer.option("checkpointLocation", checkpoint)
    if shape == "fan_out":
        query = writer.foreachBatch(_fan_out(folder, checkpoint)).start()
    else:
        query = writer.format("holdfast").option("files", str(folder / "out")).start()
    assert query.awaitTermination(int(SPARK_PATIENCE_S))


def _shaped(shape: str, rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    from holdfast.dataflow.compiler.reduces import claimed

    events = claimed(rows)
    if shape in ("map", "fan_out"):
        return events.select("number", (F.col("number") * 2).alias("twice"))
    made = F.session_window if shape == "session" else F.window
    length = "3 seconds" if shape == "session" else "10 seconds"
    grouped = events.groupBy(made("_event_time", length).alias("window"), "key")
    return grouped.agg(F.count("*").alias("rows"), F.sum("number").alias("total")).select(
        F.col("window.start").alias("window_start"), "key", "rows", "total"
    )


def _fan_out(folder: Path, checkpoint: str) -> Callable[[DataFrame, int], None]:
    def write(rows: DataFrame, batch: int) -> None:
        rows.persist()
        for target in ({"files": "out"}, {"path": "second"}):
            options = {name: str(folder / place) for name, place in target.items()}
            writer = rows.write.format("holdfast").option("checkpoint", checkpoint)
            writer.options(**options).option("batch", batch).mode("append").save()
        rows.unpersist()

    return write


# --------------------------------------------------------------------- as pipelines

_SOURCE = """
        source:
          quiver: [one, two]
          quiver_config: tests.dataflow.quivers:CONFIG
          read_limit: {rows: 20}
"""
_REDUCE = "key: key, aggregate: {rows: count(*), total: sum(number)}"
PIPELINES = f"""
map:
  vertices:
    events: {_SOURCE}
    twice: {{map: {{python: "tests.dataflow.crashing:twice",
                    returns: "number bigint, twice bigint"}}}}
    out: {{sink: {{files: out}}}}
  edges: [events -> twice, twice -> out]
window:
  watermark: {{max_delay: 5s, idle_after: 1h}}
  shuffle_partitions: 1
  vertices:
    events: {_SOURCE}
    reduced: {{reduce: {{window: {{fixed: 10s}}, {_REDUCE}}}}}
    out: {{sink: {{files: out}}}}
  edges: [events -> reduced, reduced -> out]
session:
  watermark: {{max_delay: 5s, idle_after: 1h}}
  shuffle_partitions: 1
  vertices:
    events: {_SOURCE}
    reduced: {{reduce: {{window: {{session: 3s}}, {_REDUCE}}}}}
    out: {{sink: {{files: out}}}}
  edges: [events -> reduced, reduced -> out]
fan_out:
  vertices:
    events: {_SOURCE}
    twice: {{map: {{select: {{number: number, twice: number * 2}}}}}}
    out: {{sink: {{files: out}}}}
    second: {{sink: {{quiver: second}}}}
  edges: [events -> twice, twice -> out, twice -> second]
"""


def twice(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its number doubled."""
    return {"number": row["number"], "twice": 2 * row["number"]}


def compiled(shape: str, folder: Path, spark: SparkSession, *, close: bool = True) -> None:
    """Run the pipeline of a shape to its end."""
    settings = PipelineSettings.model_validate(yaml.safe_load(PIPELINES)[shape])
    drain(shape, settings, Places(folder / "state", folder), spark, close=close)


def drain(
    name: str, settings: PipelineSettings, places: Places, spark: SparkSession, *, close: bool
) -> PipelineRun:
    """Drain a pipeline."""
    with PipelineRun(name, settings, places, spark) as run:
        run.drain(close=close)
    return run


# -------------------------------------------------------------------------- running


class Running:
    """A shape that is run to its end in a thread."""

    def __init__(self, kind: str, shape: str, root: Path, spark: SparkSession) -> None:
        self._shape, self._folder = shape, root / shape
        self._run = _plain if kind == "plain" else compiled
        self._error: BaseException | None = None
        # A daemon: one that hangs must not keep the process that says so.
        self._thread = threading.Thread(target=self._go, args=(spark,), name=shape, daemon=True)
        self._thread.start()

    def _go(self, spark: SparkSession) -> None:
        try:
            self._run(self._shape, self._folder, spark)
        except BaseException as error:
            self._error = error

    def wait_begun(self, patience_s: float) -> None:
        """Wait until its first batch is planned."""
        give_up_s = time.monotonic() + patience_s
        while self._thread.is_alive() and not list(self._folder.glob("**/offsets/0")):
            assert time.monotonic() < give_up_s, f"{self._shape} plans no batch"
            time.sleep(0.05)

    def wait_ended(self, give_up_s: float) -> None:
        """Wait until it has ended, and well."""
        self._thread.join(max(0.0, give_up_s - time.monotonic()))
        if self._thread.is_alive():
            faulthandler.dump_traceback()
            logs = {log: sorted(p.name for p in self._folder.glob(f"**/{log}/[0-9]*"))
                    for log in ("offsets", "commits")}  # fmt: skip
            raise AssertionError(f"{self._shape} does not end; batches so far: {logs}")
        if self._error is not None:
            raise self._error


def run(kind: str, root: Path, spark: SparkSession) -> None:
    """Run all shapes to their end at once, in batches of 20 rows, and close all windows."""
    running = []
    for shape in SHAPES:
        running.append(Running(kind, shape, root, spark))
        # Spark gives a process that plans ten seconds to start: not four at once.
        running[-1].wait_begun(BEGIN_S)
    give_up_s = time.monotonic() + SPARK_PATIENCE_S
    for one in running:
        one.wait_ended(give_up_s)


if __name__ == "__main__":
    settings = {"spark.sql.shuffle.partitions": "1", "spark.local.dir": f"{sys.argv[2]}/spark"}
    run(sys.argv[1], Path(sys.argv[2]), start_session(MASTER, settings))
