"""Source, claimed watermark and sinks in real Spark queries."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from tests.dataflow.quivers import CONFIG, CONFIG_NAME, at, fill, open_when_free
from tests.patience import PATIENCE_S

from holdfast.quiver import Outcome, Quiver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class Bench:
    """A quiver with a stream over it, and the checkpoint of one query."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark, self.root = spark, root
        self.quiver, self.checkpoint, self.out = root / "quiver", root / "checkpoint", root / "out"

    def stream(self, **options: Any) -> DataFrame:
        """Return the stream, with the watermark columns."""
        given = {"path": self.quiver, "subscriber": "stats", "checkpoint": self.checkpoint}
        given |= {"watermark": True, "max_delay": "5s", "quiver_config": CONFIG_NAME}
        given |= {"idle_after": "1h", **options}
        reader = self.spark.readStream.format("holdfast")
        for name, value in given.items():
            reader = reader.option(name, str(value))
        return reader.load()

    def run(self, frame: DataFrame, **options: Any) -> StreamingQuery:
        """Run a query over everything that is there now."""
        writer = frame.writeStream.format("holdfast").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        for name, value in (options or {"files": self.out}).items():
            writer = writer.option(name, str(value))
        query = writer.start()
        assert query.awaitTermination(int(PATIENCE_S))
        return query

    def results(self) -> list[dict[str, Any]]:
        """Return the rows of the files sink."""
        tables = [pq.read_table(path) for path in sorted(self.out.glob("part-*.parquet"))]
        return [row for table in tables for row in table.to_pylist()]


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Bench:
    return Bench(spark, tmp_path)


def counted(events: DataFrame) -> DataFrame:
    """Return rows per window of 10 s; late ones are counted beside, by `observe`."""
    from pyspark.sql import functions as F  # noqa: N812

    from holdfast.dataflow.compiler.reduces import claimed, is_late

    marked = claimed(events)
    last_end = F.window("_event_time", "10 seconds").getField("end")
    judged = marked.withColumn("_late", is_late(last_end))
    told = judged.observe("late", F.sum(F.col("_late").cast("int")).alias("rows"))
    windows = told.where("NOT _late").groupBy(F.window("_event_time", "10 seconds"))
    return windows.agg(F.count("*").alias("rows")).select("window.start", "rows")


def late_rows(query: StreamingQuery) -> int:
    told = [progress["observedMetrics"].get("late") for progress in query.recentProgress]
    return sum(row["rows"] or 0 for row in told if row is not None)


def dropped_rows(query: StreamingQuery) -> int:
    return sum(
        operator["numRowsDroppedByWatermark"]
        for progress in query.recentProgress
        for operator in progress["stateOperators"]
    )


@pytest.mark.slow
def test_windows_close_at_the_claim_and_late_rows_are_counted(bench: Bench) -> None:
    bundles = [[(10.0 * i + j, "k", 10 * i + j) for j in range(10)] for i in range(4)]
    fill(bench.quiver, *bundles)
    first = bench.run(counted(bench.stream(max_rows=20)))
    # Read up to 39 s, so claimed up to 34 s.
    assert {row["start"]: row["rows"] for row in bench.results()} == {
        at(0): 10,
        at(10): 10,
        at(20): 10,
    }
    assert (late_rows(first), dropped_rows(first)) == (0, 0)
    # The window of 12 s is closed; 34 s, the watermark itself, is in one that is not.
    fill(bench.quiver, [(12.0, "k", 100), (34.0, "k", 101), (29.999, "k", 102), (61.0, "k", 103)])
    second = bench.run(counted(bench.stream(close=True)))
    assert (late_rows(second), dropped_rows(second)) == (2, 0)
    rows = [(row["start"], row["rows"]) for row in bench.results()]
    assert sorted(rows) == [(at(0), 10), (at(10), 10), (at(20), 10), (at(30), 11), (at(60), 1)]
    with open_when_free(bench.quiver) as quiver:
        balance = quiver.balance("stats")
    assert balance.outcomes[Outcome.ACKED].events == 44 == sum(n for _, n in rows) + 2


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_windows_and_late_rows_add_up_to_the_inputs(bench: Bench, seed: int) -> None:
    """Random delays over two quivers, random limits, restarts in between."""
    random = Random(seed)
    paths = [bench.root / "one", bench.root / "two"]
    inputs, late = Counter[datetime](), 0
    for step in range(3):
        for path in paths:
            rows = [
                (max(0.0, 20.0 * step + random.uniform(-25, 20)), "k", number)
                for number in range(random.randint(5, 30))
            ]
            inputs.update(at(seconds // 10 * 10) for seconds, _, _ in rows)
            cut = random.randint(1, len(rows) - 1)
            fill(path, rows[:cut], rows[cut:])
        options = {"path": ",".join(map(str, paths)), "max_rows": random.randint(5, 40)}
        query = bench.run(counted(bench.stream(**options, close=step == 2)))
        assert dropped_rows(query) == 0
        late += late_rows(query)
    results = bench.results()
    assert len({row["start"] for row in results}) == len(results)  # each window once
    assert all(row["rows"] <= inputs[row["start"]] for row in results)
    assert sum(row["rows"] for row in results) + late == inputs.total()


def test_a_query_into_a_quiver_goes_on_where_it_was(bench: Bench) -> None:
    fill(bench.quiver, [(1.0, "a", 1), (2.0, "b", 2)])
    target = {"path": bench.out, "quiver_config": CONFIG_NAME}

    frame = bench.stream(watermark=False, columns="number,key").where("number % 2 = 1")
    bench.run(frame, **target)
    fill(bench.quiver, [(3.0, "c", 3)])
    bench.run(frame, **target)
    with open_when_free(bench.out) as quiver:
        stored = quiver.scan(slot="events").read_all()
    assert stored.select(["number", "key"]).to_pylist() == [
        {"number": 1, "key": "a"},
        {"number": 3, "key": "c"},
    ]


def test_a_batch_is_read_with_columns_and_times(bench: Bench) -> None:
    bundles = [[(10.0 * i + j, f"k{i}", 10 * i + j) for j in range(10)] for i in range(4)]
    fill(bench.quiver, *bundles, seal_each=True)
    reader = bench.spark.read.format("holdfast").option("path", str(bench.quiver))
    reader = reader.option("columns", "key,number").option("until", at(25).isoformat())
    found = reader.option("partition_bytes", "1").load()
    assert found.columns == ["key", "number"]
    rows: list[tuple[str, int]] = [tuple(row) for row in found.collect()]
    assert Counter(key for key, _ in rows) == {"k0": 10, "k1": 10, "k2": 5}


def test_the_event_time_carries_the_mark_that_closes_windows(bench: Bench) -> None:
    """A canary: the key is internal to Spark, and everything rests on it."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F  # noqa: N812

    from holdfast.dataflow.compiler.reduces import DELAY_KEY, claimed

    fill(bench.quiver, [(1.0, "a", 1)])
    stream = bench.stream()
    assert DELAY_KEY in stream.withWatermark("_wm", "0 seconds").schema["_wm"].metadata
    marked = claimed(stream)
    assert marked.schema["_event_time"].metadata == {DELAY_KEY: 0}
    assert {"_wm", "_control"} & set(marked.columns) == set()
    bare = stream.groupBy(F.window("_event_time", "10 seconds")).count()
    with pytest.raises(AnalysisException, match="watermark"):
        bench.run(bare)


def test_an_error_of_the_source_reaches_the_user(bench: Bench) -> None:
    from pyspark.errors import AnalysisException, StreamingQueryException

    with pytest.raises(AnalysisException, match="no quiver here"):
        bench.stream()
    fill(bench.quiver, [(1.0, "a", 1)])
    with (
        Quiver.open(bench.quiver, CONFIG),
        pytest.raises(StreamingQueryException, match="DirectoryLocked"),
    ):
        bench.run(bench.stream(watermark=False))
