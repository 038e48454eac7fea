"""Pipelines whose sources change their columns: results stay exact, and no row is lost silently."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.dataflow.compiler.rows import seconds
from tests.dataflow.quivers import at
from tests.patience import until_spark

from holdfast.dataflow.compiler.places import SINK_CONFIG, Places
from holdfast.dataflow.driver.run import PipelineRun
from holdfast.dataflow.sink.options import SLOT
from holdfast.dataflow.spec import Pipeline
from holdfast.errors import DirectoryLocked
from holdfast.quiver import Quiver
from holdfast.quiver.base.envelope import TIME_TYPE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CONFIG_NAME = "holdfast.dataflow.compiler.places:SINK_CONFIG"


def opened(path: Path) -> Quiver:
    """Open a quiver when the process that planned for a query has let go of it."""
    found: list[Quiver] = []

    def is_open() -> bool:
        try:
            found.append(Quiver.open(path, SINK_CONFIG))
        except DirectoryLocked:
            return False
        return True

    until_spark(is_open)
    return found[0]


def append(folder: Path, *bundles: tuple[list[float], pa.Array]) -> None:
    """Append bundles of times, in seconds, and as many numbers, or whatever they became."""
    with opened(folder / "q") as quiver:
        for times, numbers in bundles:
            moments = pa.array([at(s) for s in times], TIME_TYPE)
            rows = pa.record_batch({"event_time": moments, "number": numbers})
            quiver.append({SLOT: rows})
        quiver.flush()


def pipeline(double: Callable[[dict[str, Any]], dict[str, Any]] | None) -> Pipeline:
    """Return source -> map -> window -> sink; the map is in SQL or a function."""
    source = Pipeline(max_delay="0s", idle_after="1h", shuffle_partitions=1).source(
        "events", quiver="q", quiver_config=CONFIG_NAME
    )
    if double is not None:
        mapped = source.map(double, name="double", returns="number bigint, twice bigint")
    else:
        mapped = source.map(name="double", add={"twice": "number * 2"})
    return (
        mapped.window(fixed="10s")
        .aggregate("tens", n="count(*)", total="sum(twice)")
        .sink(name="out", files="out")
    )


def run(
    spark: SparkSession, folder: Path, what: Pipeline, *, close: bool = False
) -> dict[str, int]:
    """Let the pipeline read what is there; return what it counted."""
    with PipelineRun("drift", what.settings, Places(folder / "state", folder), spark) as running:
        running.drain(close=close)
    counts: dict[str, int] = {}
    for query in running.statistics():
        for name, n in query.counts.items():
            counts[name] = counts.get(name, 0) + n
    return counts


def results(folder: Path) -> list[tuple[float, int, int]]:
    found = [row for p in folder.glob("out/*.parquet") for row in pq.read_table(p).to_pylist()]
    return sorted((seconds(row["window_start"]), row["n"], row["total"]) for row in found)


def dead_letters(folder: Path) -> list[dict[str, Any]]:
    """Return all dead letters, in order of their event times."""
    rows: list[dict[str, Any]] = []
    for path in folder.glob("state/*/dead_letters"):
        with opened(path) as quiver:
            rows += quiver.scan(slot=SLOT).read_all().to_pylist()
    return sorted(rows, key=lambda row: row["event_time"])


def doubled(row: dict[str, Any]) -> dict[str, Any]:
    number = row["number"]
    return {"number": number, "twice": None if number is None else number * 2}


@pytest.mark.parametrize("double", [None, doubled], ids=["sql", "function"])
def test_columns_that_change_cost_their_rows_and_nothing_else(
    spark: SparkSession, tmp_path: Path, double: Callable[..., Any] | None
) -> None:
    what = pipeline(double)
    append(tmp_path, ([0, 1], pa.array([1, 2], pa.int64())))
    assert run(spark, tmp_path, what) == {}
    # One segment: words, numbers too large, structs, and nothing, beside rows as they were.
    append(
        tmp_path,
        ([2, 3, 4], pa.array(["3", "four", None])),
        ([5, 12], pa.array([5, 12], pa.int64())),
        ([13, 14], pa.array([13, 2**64 - 1], pa.uint64())),
        ([15], pa.array([{"value": 15}])),
    )
    assert run(spark, tmp_path, what) == {"failed.events": 3}
    assert results(tmp_path) == [(0, 5, 2 * (1 + 2 + 3 + 5))]
    first, second, third = dead_letters(tmp_path)
    assert [json.loads(letter["row"])["number"] for letter in (first, second, third)] == [
        "four", 2**64 - 1, {"value": 15},
    ]  # fmt: skip
    assert {letter["vertex"] for letter in (first, second, third)} == {"events"}
    assert "column 'number' is string there and int64 in the query" in first["error"]
    assert (first["attempts"], first["event_time"]) == (0, at(3))
    # The driver starts again over columns that have no type in common, and ends all windows.
    append(tmp_path, ([16, 21], pa.array(["sixteen", "21"])))
    assert run(spark, tmp_path, what, close=True) == {"failed.events": 1}
    assert results(tmp_path) == [(0, 5, 22), (10, 2, 50), (20, 1, 42)]
    assert [seconds(letter["event_time"]) for letter in dead_letters(tmp_path)] == [3, 14, 15, 16]


def test_a_pipeline_that_runs_on_counts_them_and_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Also with a sink that Spark's own writer writes, and dead letters of a function beside."""
    append(tmp_path, ([0], pa.array([1], pa.int64())))

    def fails_at_two(row: dict[str, Any]) -> dict[str, Any]:
        assert row["number"] != 2, "two"
        return row

    what = (
        Pipeline(max_delay="0s", trigger="100ms", shuffle_partitions=1)
        .source("events", quiver="q", quiver_config=CONFIG_NAME, columns_are="number bigint")
        .map(fails_at_two, name="odd", returns="number bigint")
        .sink(name="out", files="out")
    )
    append(tmp_path, ([1, 2], pa.array([2, 3], pa.int64())), ([3], pa.array(["four"])))
    places = Places(tmp_path / "state", tmp_path)
    with PipelineRun("drift", what.settings, places, spark) as running:
        running.start()
        until_spark(lambda: running.statistics()[0].counts.get("failed.events") == 1)
        counts = running.statistics()[0].counts
        assert counts["failed.odd"] == 1
        assert counts["written.out"] == 2
    found = [(letter["vertex"], seconds(letter["event_time"])) for letter in dead_letters(tmp_path)]
    assert found == [("odd", 1), ("events", 3)]
