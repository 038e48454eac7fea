"""A driver process that dies at a named moment of one of its batches, with everything it started.

Run as `python -m tests.dataflow.crashing SHAPE ROOT`: runs the query SHAPE over the quiver in ROOT
to its end. With `HOLDFAST_DIE_AT=point:batch` in its environment every process of its session is
killed there, the JVM and the Python workers too. The moments are those of stream.py's list.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import (
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType
from tests.dataflow.conftest import build_session
from tests.dataflow.quivers import CONFIG_NAME

from holdfast.dataflow.java import spark_environment
from holdfast.dataflow.sink.files_writer import FilesWriter
from holdfast.dataflow.sink.options import parse_sink_options
from holdfast.dataflow.source.checkpoint import Checkpoint
from holdfast.dataflow.source.data_source import HoldfastDataSource
from holdfast.dataflow.source.options import parse_options
from holdfast.dataflow.source.stream import StreamReader
from holdfast.dataflow.watermark.drive import claimed

DIE_AT = "HOLDFAST_DIE_AT"
POINTS = ("offsets", "write", "sink_commit", "commit_log", "acknowledge")
SHAPES = ("map", "window", "session", "fan_out")


def reached(point: str, batch: int) -> None:
    """Kill the whole session if this is the moment, and it is the first time."""
    wanted, _, number = os.environ.get(DIE_AT, ":-1").partition(":")
    if point == wanted and batch == int(number):
        end_session(os.getsid(0))


def end_session(session: int) -> None:
    """Kill every process of a session, the own one last."""
    mine = os.getpid()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != mine and session_of(int(name)) == session:
            try:
                os.kill(int(name), signal.SIGKILL)
            except ProcessLookupError:
                continue
    if session_of(mine) == session:
        os.kill(mine, signal.SIGKILL)


def session_of(pid: int) -> int | None:
    """Return the session of a process, None if it is gone."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


class DyingReader(StreamReader):
    """Dies when a batch has its offsets, or before it acknowledges one."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        planned = Checkpoint(self._options.checkpoint).last_planned()
        reached("offsets", -1 if planned is None else planned)
        return super().partitions(start, end)

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        committed = Checkpoint(self._options.checkpoint).last_committed()
        reached("commit_log", -1 if committed is None else committed)
        return super().latestOffset(start, limit)

    def commit(self, end: dict[str, Any]) -> None:
        committed = Checkpoint(self._options.checkpoint).last_committed()
        reached("acknowledge", -1 if committed is None else committed)
        super().commit(end)


class DyingWriter(FilesWriter):
    """Dies while tasks write, or when the sink has committed."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        planned = Checkpoint(self._options.checkpoint).last_planned()
        message = super().write(iterator)
        reached("write", -1 if planned is None else planned)
        return message

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        super().commit(messages, batchId)
        reached("sink_commit", batchId)


class DyingDataSource(HoldfastDataSource):
    """The data source with all its moments."""

    @classmethod
    def name(cls) -> str:
        """Return what stands in `format(…)`."""
        return "dying"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return DyingReader(parse_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return DyingWriter(parse_sink_options(self.options))


def shaped(shape: str, rows: DataFrame) -> DataFrame:
    """Return the query of a shape."""
    events = claimed(rows)
    if shape in ("map", "fan_out"):
        return events.select("number", (F.col("number") * 2).alias("twice"))
    made = F.session_window if shape == "session" else F.window
    length = "3 seconds" if shape == "session" else "10 seconds"
    grouped = events.groupBy(made("_event_time", length).alias("window"), "key")
    return grouped.agg(F.count("*").alias("rows"), F.sum("number").alias("total")).select(
        F.unix_micros("window.start").alias("start"), "key", "rows", "total"
    )


def fan_out(root: Path, checkpoint: str) -> Callable[[DataFrame, int], None]:
    """Return what writes a batch into two sinks, and may die between them."""

    def write(rows: DataFrame, batch: int) -> None:
        rows.persist()
        reached("write", batch)
        for target in ({"files": "out"}, {"path": "second"}):
            options = {name: str(root / place) for name, place in target.items()}
            writer = rows.write.format("holdfast").option("checkpoint", checkpoint)
            writer.options(**options).option("batch", batch).mode("append").save()
            reached("sink_commit", batch)
        rows.unpersist()

    return write


def run(shape: str, root: Path) -> None:
    """Run a query to its end, in batches of two bundles, and close all windows."""
    os.environ.update(spark_environment())
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark: SparkSession = build_session(root / "spark")
    spark.dataSource.register(DyingDataSource)
    reader = spark.readStream.format("dying")
    checkpoint = str(root / "checkpoint")
    options = {
        "path": str(root / "quiver"), "subscriber": "stats", "checkpoint": checkpoint,
        "watermark": "true", "max_rows": "20", "max_delay": "5s", "idle_after": "1h",
        "close": "true", "quiver_config": CONFIG_NAME,
    }  # fmt: skip
    for name, value in options.items():
        reader = reader.option(name, value)
    writer = shaped(shape, reader.load()).writeStream.trigger(availableNow=True)
    writer = writer.option("checkpointLocation", checkpoint)
    if shape == "fan_out":
        query = writer.foreachBatch(fan_out(root, checkpoint)).start()
    else:
        query = writer.format("dying").option("files", str(root / "out")).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]))
