"""Pipelines whose sources add up: results and counts are those of the same pipeline by rows."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.dataflow.quivers import at

from holdfast.dataflow.kit import PipelineHarness
from holdfast.dataflow.spec import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = int(os.environ.get("HOLDFAST_PUSH_DOWN_EXAMPLES", "3"))

pytestmark = pytest.mark.timeout(900)

Row = dict[str, Any]


def windowed(push_down: bool, *, allowed_lateness: str = "0s", **window: Any) -> Pipeline:
    """Return a pipeline whose windows its source can add up."""
    return (
        Pipeline(shuffle_partitions=1, max_delay="2s", push_down=push_down)
        .source("events", quiver="q")
        .filter("number is null or number <> 13", name="lucky")
        .map(add={"weight": "weight * 2"}, name="twice")
        .window(**window)
        .aggregate(
            "sums", key="key", n="count(*)", numbers="count(number)", total="sum(number)",
            mean="avg(weight)", least="min(number)", most="max(weight)",
            allowed_lateness=allowed_lateness,
        )
        .sink(name="out", files="out")
    )  # fmt: skip


def fed(chance: random.Random, second: int) -> list[Row]:
    """Return rows around a moment: some of them are long late."""
    times = [
        second + chance.choice([0, 1, 2, -1, -3, -12, -25]) + chance.random() for _ in "x" * 25
    ]
    return [
        {
            "event_time": at(seconds),
            "key": chance.choice(["a", "b", None]),
            "number": chance.choice([None, 13, *range(5)]),
            "weight": chance.choice([None, float("nan"), -0.0, *(n / 4 for n in range(9))]),
        }
        for seconds in times
    ]


def outcome(one: PipelineHarness) -> tuple[Counter[str], dict[str, int]]:
    """Return the results, and what was counted."""
    return Counter(map(repr, one.rows("out"))), {k: n for k, n in one.counts.items() if n}


def is_pushed(one: PipelineHarness, folder: Path) -> bool:
    """Whether the state is of partial aggregates."""
    recorded = json.loads((folder / "state" / "plan.json").read_text())
    return bool(recorded["reduces"]["sums"].get("partials"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_results_and_late_rows_are_those_of_rows(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    window = [
        {"size": "10s", "every": "4s"}, {"fixed": "5s"}, {"size": "9s", "every": "3s"},
    ][seed % 3]  # fmt: skip
    lateness = chance.choice(["0s", "3s"])
    feeds = [fed(chance, second) for second in (30, 36, 44, 61)]
    found = []
    for push_down in (False, True):
        folder = tmp_path / str(push_down)
        pipeline = windowed(push_down, allowed_lateness=lateness, **window)
        one = PipelineHarness(pipeline, folder, session=spark)
        for rows in feeds:
            one.feed("events", rows)
            one.run()
        one.close()
        found.append(outcome(one))
        assert is_pushed(one, folder) == push_down
    assert found[1] == found[0]
    assert found[0][1]["late.sums"] > 0


def test_a_state_goes_on_through_every_switch(spark: SparkSession, tmp_path: Path) -> None:
    """Made by the source, then by Spark, then by the source again: one state, one result."""
    rows = [
        {"event_time": at(n), "key": "ab"[n % 2], "number": n, "weight": n / 2} for n in range(30)
    ]
    one = PipelineHarness(windowed(True, fixed="60s"), tmp_path, session=spark)
    for turn, push_down in enumerate((True, False, True)):
        one = PipelineHarness(windowed(push_down, fixed="60s"), tmp_path, session=spark)
        one.feed("events", rows[turn * 10 : turn * 10 + 10])
        (one.close if turn == 2 else one.run)()
    found = {row["key"]: (row["n"], row["total"], row["mean"]) for row in one.rows("out")}
    even, odd = range(0, 30, 2), [n for n in range(1, 30, 2) if n != 13]
    # The weight, half of the number, was doubled.
    expected = {"a": even, "b": odd}
    assert found == {k: (len(ns), sum(ns), sum(ns) / len(ns)) for k, ns in expected.items()}
    assert one.statistics[0].rows_total == 10
