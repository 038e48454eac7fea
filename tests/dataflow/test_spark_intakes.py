"""Pipelines over files and made-up rows, in Spark, into JSON that a gateway could deliver."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from tests.dataflow.quivers import at

from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.driver.run import PipelineRun
from holdfast.dataflow.spec import Pipeline
from holdfast.quiver import Quiver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_files_become_json_events_once_over_two_runs(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = (
        Pipeline(shuffle_partitions=1)
        .source("lines", files="in", columns_are="key string, n bigint", event_time="at")
        .map(select={"key": "upper(key)", "twice": "2 * n"})
        .sink(name="out", quiver="out", encode="json")
        .settings
    )
    (tmp_path / "in").mkdir()
    places = Places(tmp_path / "state", tmp_path)
    for run_number in range(2):
        lines = [{"at": at(n).isoformat(), "key": f"k{n}", "n": n} for n in range(3)]
        text = "\n".join(json.dumps(line) for line in lines)
        (tmp_path / "in" / f"{run_number}.ndjson").write_text(f"{text}\nno row\n")
        with PipelineRun("files", pipeline, places, spark) as run:
            run.drain()
    with Quiver.open(tmp_path / "out") as quiver:
        payloads = quiver.scan(["payload"], slot="events").read_all().column(0).to_pylist()
    found = [json.loads(payload) for payload in payloads]
    expected = [(f"K{n}", 2 * n, f"2026-05-01T10:00:0{n}Z") for n in range(3)]
    assert sorted((row["key"], row["twice"], row["event_time"]) for row in found) == sorted(
        expected * 2
    )
    with Quiver.open(tmp_path / "state" / "intakes" / "lines" / "rejected") as quiver:
        assert quiver.scan(["payload"], slot="events").read_all().num_rows == 2


def test_made_up_rows_are_counted_in_windows(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = (
        Pipeline(shuffle_partitions=1)
        .source("made", generator={"rows_per_s": 100, "keys": 4, "rows": 25_000})
        .window(fixed="10s")
        .aggregate("tens", key="key", n="count(*)", least="min(number)")
        .sink(name="out", files="out")
        .settings
    )
    with PipelineRun("made", pipeline, Places(tmp_path / "state", tmp_path), spark) as run:
        run.drain(close=True)
    tables = [pq.read_table(path) for path in (tmp_path / "out").glob("part-*.parquet")]
    rows = [row for table in tables for row in table.to_pylist()]
    assert sum(row["n"] for row in rows) == 25_000
    assert {row["key"] for row in rows} == {f"key-{n}" for n in range(4)}
    assert max(row["n"] for row in rows) == 250
