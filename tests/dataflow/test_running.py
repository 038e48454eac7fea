"""Pipelines that run on: in this process with two queries, and as a command beside another one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pyspark
import pytest
from tests.dataflow.compiler.rows import rows, seconds
from tests.patience import SPARK_PATIENCE_S, until_spark

from holdfast.dataflow.compiler.places import SINK_CONFIG, Places
from holdfast.dataflow.driver.java import spark_environment
from holdfast.dataflow.driver.run import PipelineRun
from holdfast.dataflow.sink.options import SLOT
from holdfast.dataflow.source.notes import read_explanations
from holdfast.dataflow.spec import Pipeline
from holdfast.prove.sessions import end_session
from holdfast.quiver import Quiver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FILE = """
pipelines:
  counts:
    watermark: {max_delay: 1h, idle_after: 1h}
    shuffle_partitions: 1
    vertices:
      events:
        source: {quiver: ./q, quiver_config: "holdfast.dataflow.compiler.places:SINK_CONFIG"}
      tens: {reduce: {window: {fixed: 10s}, key: key, aggregate: {n: count(*)}}}
      out: {sink: {files: ./out}}
    edges: [events -> tens, tens -> out]
"""


def fill(path: Path) -> None:
    import pyarrow as pa

    given = rows(*((float(s), "ab"[s % 2], 1) for s in range(60)))
    with Quiver.open(path, SINK_CONFIG) as quiver:
        quiver.append({SLOT: pa.RecordBatch.from_pylist(given)})


def results(folder: Path, *columns: str) -> list[tuple[object, ...]]:
    found = [row for p in folder.glob("*.parquet") for row in pq.read_table(p).to_pylist()]
    return sorted((seconds(row["window_start"]), *(row[c] for c in columns)) for row in found)


def test_two_queries_run_on_and_hand_their_watermark_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    """What closes the second query's windows is the promise of the first, which is idle."""
    pipeline = (
        Pipeline(max_delay="1s", idle_after="200ms", shuffle_partitions=1)
        .source("events", quiver="q", quiver_config="holdfast.dataflow.compiler.places:SINK_CONFIG")
        .window(fixed="10s")
        .aggregate("tens", key="key", n="count(*)")
        .sink(name="tens_out", files="tens")
        .window(fixed="30s")
        .aggregate("halves", n="sum(n)")
        .sink(name="out", files="out")
    )
    fill(tmp_path / "q")
    places = Places(tmp_path / "state", tmp_path)
    with PipelineRun("two", pipeline.settings, places, spark) as run:
        assert len(run.plan.queries) == 2
        run.start()
        until_spark(lambda: len(results(tmp_path / "out", "n")) == 2)
        told = {one.name: one for one in run.statistics()}
        assert all(one.is_running for one in told.values())
        assert told["events"].counts["written.tens_out"] == 12
    assert results(tmp_path / "out", "n") == [(0, 30), (30, 30)]
    notes = read_explanations(str(places.checkpoint(run.plan.queries[1])))
    assert "a pipeline that writes there has come this far" in str(notes)


def noting_sink(row: dict[str, Any]) -> None:
    """Note each call, and wait to be let go."""
    folder = Path(row["folder"])
    with (folder / "calls").open("a") as file:
        file.write(f"{row['n']}\n")
    until_spark((folder / "go").exists)


def test_a_stop_inside_a_batch_calls_no_function_twice(spark: SparkSession, tmp_path: Path) -> None:
    """It lets the batch end: a function that has taken a row cannot give it back."""
    pipeline = (
        Pipeline(shuffle_partitions=1)
        .source("events", quiver="q", quiver_config="holdfast.dataflow.compiler.places:SINK_CONFIG")
        .map(select={"n": "unix_micros(_event_time)", "folder": f"'{tmp_path}'"})
        .sink(name="out", python=noting_sink)
        .settings
    )
    fill(tmp_path / "q")
    places = Places(tmp_path / "state", tmp_path)
    with PipelineRun("one", pipeline, places, spark) as run:
        run.start()
        until_spark((tmp_path / "calls").exists)
        stopping = threading.Thread(target=run.finish)
        stopping.start()
        (query,) = run.plan.queries
        until_spark(places.wait_file(query).exists)
        (tmp_path / "go").touch()
        stopping.join(SPARK_PATIENCE_S)
    with PipelineRun("one", pipeline, places, spark) as run:
        run.drain()
    called = Counter((tmp_path / "calls").read_text().split())
    assert set(called.values()) == {1}
    assert sum(called.values()) == 60


def test_a_query_that_is_stopped_inside_a_batch_has_not_failed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its batch ends with an error, in which Spark has to find that it was interrupted."""
    pipeline = (
        Pipeline(shuffle_partitions=1)
        .source("events", quiver="q", quiver_config="holdfast.dataflow.compiler.places:SINK_CONFIG")
        .map(select={"n": "unix_micros(_event_time)", "folder": f"'{tmp_path}'"})
        .sink(name="out", python=noting_sink)
        .settings
    )
    fill(tmp_path / "q")
    with PipelineRun("one", pipeline, Places(tmp_path / "state", tmp_path), spark) as run:
        run.start()
        (one,) = run._running
        until_spark((tmp_path / "calls").exists)
        run.stop()
        assert not one.spark.isActive
        assert one.spark.exception() is None
        (tmp_path / "go").touch()


def command(folder: Path, *arguments: str) -> list[str]:
    options = ["--state-dir", str(folder / "state"), "--master", "local[1]"]
    file = str(folder / "file.yaml")
    return [
        sys.executable,
        "-m",
        "holdfast",
        "dataflow",
        arguments[0],
        file,
        *arguments[1:],
        *options,
    ]


def test_a_command_runs_until_another_one_asks_it_to_drain(tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text(FILE)
    fill(tmp_path / "q")
    log = open(tmp_path / "log", "ab")  # noqa: SIM115
    running = subprocess.Popen(
        command(tmp_path, "run"), stdout=log, stderr=log, start_new_session=True
    )
    try:
        commits = tmp_path / "state" / "counts" / "events" / "checkpoint" / "commits" / "0"
        until_spark(commits.exists)
        assert results(tmp_path / "out", "n") == []
        drained = subprocess.run(
            command(tmp_path, "drain", "--close"), check=False, timeout=SPARK_PATIENCE_S,
            capture_output=True, text=True,
        )  # fmt: skip
        assert drained.returncode == 0, drained.stderr
        assert running.wait(SPARK_PATIENCE_S) == 0, (tmp_path / "log").read_text()
    finally:
        end_session(running.pid)
        running.wait()
        log.close()
    assert results(tmp_path / "out", "key", "n") == [
        (10.0 * n, key, 5) for n in range(6) for key in "ab"
    ]


def test_a_command_ends_when_it_is_told_and_goes_on_later(tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text(FILE)
    fill(tmp_path / "q")
    log = open(tmp_path / "log", "ab")  # noqa: SIM115
    running = subprocess.Popen(
        command(tmp_path, "run"), stdout=log, stderr=log, start_new_session=True
    )
    try:
        state = tmp_path / "state" / "counts"
        until_spark((state / "events" / "checkpoint" / "commits" / "0").exists)
        os.kill(running.pid, signal.SIGTERM)
        assert running.wait(SPARK_PATIENCE_S) == 0, (tmp_path / "log").read_text()
    finally:
        end_session(running.pid)
        running.wait()
        log.close()
    ended = subprocess.run(
        command(tmp_path, "drain", "--close", "--json"), check=False, timeout=SPARK_PATIENCE_S,
        capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert len(results(tmp_path / "out", "n")) == 12


def test_spark_submit_says_where_it_runs(tmp_path: Path) -> None:
    """The script of the guide; `--master` of the command is not looked at then."""
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "pipelines.md").read_text()
    (script,) = re.findall(
        r"```python\n(from holdfast.operate.cli import main\n.*?)```", guide, re.DOTALL
    )
    (tmp_path / "pipelines.py").write_text(script)
    (tmp_path / "file.yaml").write_text(FILE)
    fill(tmp_path / "q")
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    words = command(tmp_path, "drain", "--close", "--json")[3:]
    words[words.index("local[1]")] = "spark://nobody.invalid:7077"
    ended = subprocess.run(
        [str(submit), "--master", "local[1]", str(tmp_path / "pipelines.py"), *words],
        check=False, timeout=SPARK_PATIENCE_S, capture_output=True, text=True,
        env={**os.environ, **spark_environment(), "SPARK_LOCAL_IP": "127.0.0.1"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["closed"] is True
    assert len(results(tmp_path / "out", "n")) == 12
