"""The promise with Spark: random gateways, delays, failing rows and restarts; every row is told of.

What test_promise.py shows of claims in a world without Spark, for whole pipelines: a row is in
exactly one window's result, or late, or set aside because a function did not take it. And it is
late only if no gateway held the watermark for it.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.dataflow.crashing import drain
from tests.dataflow.quivers import CONFIG_NAME, START, fill, open_when_free

from holdfast.dataflow.compiler.places import SINK_CONFIG, Places
from holdfast.dataflow.spec import Pipeline
from holdfast.quiver import Quiver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WINDOW_S, ROUND_S = 10, 20.0
# What rows are not taken: some never, some only when they are tried again.
NEVER, SECOND_TIME = 7, 5

_tried: set[int] = set()


class Row(NamedTuple):
    """One event of a gateway; seconds are those of event time."""

    number: int
    gateway: int
    round: int
    seconds: float

    @property
    def window(self) -> int:
        return int(self.seconds // WINDOW_S * WINDOW_S)

    @property
    def is_refused(self) -> bool:
        return self.number % NEVER == NEVER - 1


class Plan(NamedTuple):
    """What happens: for each round and gateway, how old the rows are that come."""

    rounds: list[list[list[float]]]
    max_delay_s: int
    batch_rows: int

    def rows(self) -> list[Row]:
        rows: list[Row] = []
        for number, gateways in enumerate(self.rounds):
            for gateway, ages in enumerate(gateways):
                for age in ages:
                    seconds = max(0.0, ROUND_S * (number + 1) - age)
                    rows.append(Row(len(rows), gateway, number, seconds))
        return rows


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    gateways = draw(st.integers(1, 3))
    ages = st.lists(st.integers(0, 400).map(lambda tenths: tenths / 10), min_size=1, max_size=12)
    rounds = st.lists(st.lists(ages, min_size=gateways, max_size=gateways), min_size=2, max_size=3)
    return Plan(draw(rounds), draw(st.integers(0, 15)), draw(st.integers(8, 40)))


def moody(row: dict[str, Any]) -> dict[str, Any]:
    """Take a row, or not, or only when it is asked again."""
    number = row["number"]
    if number % NEVER == NEVER - 1:
        raise ValueError("not this one")
    if number % SECOND_TIME == 0 and number not in _tried:
        _tried.add(number)
        raise ValueError("not now")
    return {"key": row["key"], "number": number}


def pipeline(plan: Plan) -> Pipeline:
    gateways = len(plan.rounds[0])
    return (
        Pipeline(max_delay=plan.max_delay_s, idle_after="1h", shuffle_partitions=1)
        .source(
            "events",
            quiver=[f"gateway-{gateway}" for gateway in range(gateways)],
            quiver_config=CONFIG_NAME,
            read_limit={"rows": plan.batch_rows},
        )
        .map(
            f"{__name__}:moody",
            returns="key string, number bigint",
            retry={"attempts": 2, "interval": 0},
        )
        .window(fixed=f"{WINDOW_S}s")
        .aggregate("tens", key="key", late="side_output", n="count(*)")
        .sink(name="out", files="out")
        .after("tens", "late")
        .sink(name="late", files="late")
    )


def play(plan: Plan, root: Path, spark: SparkSession) -> None:
    """Let the rows of each round come, and a driver read them; the last one closes all windows."""
    made, rows = pipeline(plan).settings, plan.rows()
    for number in range(len(plan.rounds)):
        for gateway in range(len(plan.rounds[0])):
            mine = [row for row in rows if (row.round, row.gateway) == (number, gateway)]
            # In two bundles, so that a batch may end between them.
            bundles = [mine[: len(mine) // 2], mine[len(mine) // 2 :]]
            given = [[(r.seconds, "k", r.number) for r in bundle] for bundle in bundles if bundle]
            fill(root / f"gateway-{gateway}", *given)
        close = number == len(plan.rounds) - 1
        run = drain("tens", made, Places(root / "state", root), spark, close=close)
        assert sum(query.left_out_total for query in run.statistics()) == 0


def read(folder: Path) -> list[dict[str, Any]]:
    tables = [pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]
    return [row for table in tables for row in table.to_pylist()]


def rejected_rows(root: Path) -> list[int]:
    """Return the numbers of the rows among the dead letters."""
    found: list[int] = []
    for folder in (root / "state").glob("*/dead_letters"):
        with Quiver.open(folder, SINK_CONFIG) as quiver:
            letters = quiver.scan(["row"], slot="events").read_all().to_pylist()
        found += [int(json.loads(letter["row"])["number"]) for letter in letters]
    return found


def claimable_s(plan: Plan, row: Row) -> float:
    """Return how far anybody may have claimed when a row was read: all gateways had come there."""
    rows = plan.rows()
    newest = [
        max(other.seconds for other in rows if other.gateway == g and other.round <= row.round)
        for g in range(len(plan.rounds[0]))
    ]
    return min(newest) - plan.max_delay_s


def check(plan: Plan, root: Path, spark: SparkSession) -> None:
    play(plan, root, spark)
    rows = {row.number: row for row in plan.rows()}
    results = read(root / "out")
    starts = [(row["window_start"], row["key"]) for row in results]
    assert len(set(starts)) == len(starts)  # each window once
    late = [row["number"] for row in read(root / "late")]
    refused = rejected_rows(root)
    assert Counter(refused) == Counter(n for n, row in rows.items() if row.is_refused)
    assert len(set(late)) == len(late)
    in_time = [row for n, row in rows.items() if n not in {*late, *refused}]
    counted = {(row["window_start"] - START).total_seconds(): row["n"] for row in results}
    assert counted == Counter(row.window for row in in_time)
    assert sum(counted.values()) + len(late) + len(refused) == len(rows)
    for number in late:
        assert rows[number].window + WINDOW_S <= claimable_s(plan, rows[number])
    for gateway in range(len(plan.rounds[0])):
        with open_when_free(root / f"gateway-{gateway}") as quiver:
            assert quiver.balance("tens.events").pending.events == 0


SMALL = Plan([[[0.0, 15.0], [3.0]], [[0.0, 35.0, 12.0], [2.0, 9.0]]], max_delay_s=0, batch_rows=20)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_row_is_counted_or_late_or_refused(spark: SparkSession, tmp_path: Path) -> None:
    check(SMALL, tmp_path, spark)
    late = [row["number"] for row in read(tmp_path / "late")]
    assert late == [4]  # of 5 s, when both gateways had come to 17 s at least
    assert rejected_rows(tmp_path) == [6]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=6, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(plan=plans())
def test_any_row_is_counted_or_late_or_refused(
    plan: Plan, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    check(plan, tmp_path_factory.mktemp("promise"), spark)
