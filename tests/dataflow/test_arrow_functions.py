"""Functions of Arrow and folds in a pipeline: the same results as rows and SQL, across restarts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.dataflow.quivers import at

from holdfast.dataflow.kit import PipelineHarness
from holdfast.dataflow.spec import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = __name__


def odd(rows: pa.RecordBatch) -> pa.Array:
    """Let odd numbers through, and no null."""
    return pc.equal(pc.bit_wise_and(rows.column("number"), 1), 1)


def twice(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Make two rows of each."""
    places = pa.array([place for place in range(rows.num_rows) for _ in range(2)], pa.int64())
    return rows.take(places).append_column("_origin", places)


def by_rows(window: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"n": len(rows), "total": sum(row["number"] for row in rows)}


def by_arrow(window: dict[str, Any], rows: pa.RecordBatch) -> pa.RecordBatch:
    total = pc.sum(rows.column("number")).as_py()
    return pa.RecordBatch.from_pylist([{"n": rows.num_rows, "total": total}])


class Folded:
    """The same without keeping rows."""

    def start(self, window: dict[str, Any]) -> dict[str, int]:
        return {"n": 0, "total": 0}

    def add(self, state: dict[str, int], row: dict[str, Any]) -> dict[str, int]:
        return {"n": state["n"] + 1, "total": state["total"] + row["number"]}

    def end(self, window: dict[str, Any], state: dict[str, int]) -> dict[str, int]:
        return state


def pipeline() -> Pipeline:
    made = (
        Pipeline(max_delay="2s", idle_after="1h", shuffle_partitions=2)
        .source("events", quiver="x")
        .filter(name="odd", arrow=f"{HERE}:odd", on_failure="fail")
        .flat_map(name="twice", arrow=f"{HERE}:twice", on_failure="fail")
    )
    kinds: dict[str, Any] = {
        "rows": {"python": f"{HERE}:by_rows"},
        "arrow": {"arrow": f"{HERE}:by_arrow"},
        "folded": {"fold": f"{HERE}:Folded"},
    }
    for name, function in kinds.items():
        window = made.after("twice").window(size="10s", every="5s")
        reduced = window.reduce(name=name, key="key", returns="n bigint, total bigint", **function)
        made = reduced.sink(name=f"{name}-out", files=name)
    window = made.after("twice").window(size="10s", every="5s")
    native = window.aggregate("native", key="key", n="count(*)", total="sum(number)")
    return native.sink(name="native-out", files="native")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_ways_to_reduce_are_the_same(spark: SparkSession, tmp_path: Path) -> None:
    harness = PipelineHarness(pipeline(), tmp_path, session=spark)
    numbers = range(60)
    for half in (numbers[:30], numbers[30:]):
        rows = [
            {"event_time": at(0.7 * n - (n % 3)), "key": "ab"[n % 4 // 2], "number": n}
            for n in half
        ]
        harness.feed(
            "events", [*rows, {"event_time": at(0.7 * half[-1]), "key": "a", "number": None}]
        )
        harness.run()
    harness.close()
    native = harness.rows("native-out")
    assert sum(row["n"] for row in native) == 2 * 2 * 30  # two windows each, and every row twice
    for name in ("rows", "arrow", "folded"):
        assert harness.rows(f"{name}-out") == native, name
    assert harness.dead_letters() == []
