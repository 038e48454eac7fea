"""Replays: a pipeline over a stored range gives what the stream gave, and changes nothing."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from tests.dataflow.quivers import CONFIG, CONFIG_NAME, at, batch, open_when_free
from tests.support.sessions import run_apart

from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.driver.replay import StoredRange, replay
from holdfast.dataflow.driver.run import PipelineRun
from holdfast.dataflow.spec import Pipeline, PipelineSettings
from holdfast.errors import BadConfig, BadInput, PipelineFailed
from holdfast.operate.cli.dataflow.replay import replay_command
from holdfast.quiver import Quiver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUNDLES = [[(5.0 * i + j, "ab"[j % 2], 10 * i + j) for j in range(10)] for i in range(6)]


def doubled(row: dict[str, Any]) -> dict[str, Any]:
    if row["number"] == 13:
        raise ValueError("thirteen")
    return {"key": row["key"], "twice": 2 * row["number"]}


def spread(window: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    numbers = [row["twice"] for row in rows]
    return {"least": min(numbers), "most": max(numbers)}


def pipeline(quiver: str = "q") -> PipelineSettings:
    """Return windows, a chained window, sessions by a function, and rows that fail."""
    made = (
        Pipeline(max_delay="20s", idle_after="1h", shuffle_partitions=1)
        .source("events", quiver=quiver, quiver_config=CONFIG_NAME, read_limit={"rows": 20})
        .map(doubled, name="doubled", returns="key string, twice bigint")
        .window(fixed="10s")
        .aggregate("tens", key="key", n="count(*)", total="sum(twice)")
        .sink(name="tens_out", files="tens")
        .after("doubled")
        .window(session="3s")
        .reduce(spread, name="sessions", key="key", returns="least bigint, most bigint")
        .sink(name="sessions_out", files="sessions")
        .after("doubled", "failed")
        .sink(name="failed", files="failed")
    )
    return made.settings


def rows(folder: Path) -> Counter[str]:
    tables = [pq.read_table(path) for path in folder.glob("part-*.parquet")]
    return Counter(
        json.dumps(row, default=str, sort_keys=True)
        for table in tables
        for row in table.to_pylist()
    )


class Kept:
    """A quiver in which what is processed stays, because one reader has processed nothing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.subscribers: tuple[str, ...] = ()
        with Quiver.open(root / "q", CONFIG) as quiver:
            quiver.cursor("keeper").close()
            for bundle in BUNDLES:
                quiver.append(batch(bundle))
                quiver.flush()

    def places(self, state: str = "state") -> Places:
        return Places(self.root / state, self.root)

    def balances(self) -> dict[str, Any]:
        with open_when_free(self.root / "q") as quiver:
            return {name: quiver.balance(name) for name in quiver.subscribers()}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return Kept(tmp_path_factory.mktemp("kept"))


SINKS = {"tens_out": "tens", "sessions_out": "sessions", "failed": "failed"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_replay_gives_what_the_stream_gave_and_changes_nothing(
    kept: Kept, spark: SparkSession, tmp_path: Path
) -> None:
    with PipelineRun("stats", pipeline(), kept.places(), spark) as run:
        run.drain(close=True)
    before = kept.balances()
    assert len(rows(kept.root / "tens")) == 8
    assert len(rows(kept.root / "failed")) == 1
    for name, as_batch in (("batch", True), ("stream", False)):
        told = replay("stats", pipeline(), kept.places(), spark, tmp_path / name, as_batch=as_batch)
        assert sum(one.rows_total for one in told) > 0
        for sink, folder in SINKS.items():
            assert rows(tmp_path / name / sink) == rows(kept.root / folder), (name, sink)
    assert kept.balances() == before


@pytest.mark.timeout(300)
def test_a_range_of_times_or_bundles_is_replayed(
    kept: Kept, spark: SparkSession, tmp_path: Path
) -> None:
    flat = (
        Pipeline(shuffle_partitions=1)
        .source("events", quiver="q", quiver_config=CONFIG_NAME)
        .sink(name="out", files="unused")
        .settings
    )
    ranges = {
        "seqs": StoredRange(since_seq=1, until_seq=3),
        "times": StoredRange(since=at(12), until=at(14)),
    }
    for name, wanted in ranges.items():
        replay("flat", flat, kept.places(), spark, tmp_path / name, wanted)

    def numbers(name: str) -> list[int]:
        found = [json.loads(row)["number"] for row in rows(tmp_path / name / "out")]
        return sorted(found)

    assert numbers("seqs") == list(range(10, 30))
    expected = [n for bundle in BUNDLES for seconds, _, n in bundle if 12 <= seconds < 14]
    assert numbers("times") == sorted(expected)
    assert not (kept.root / "unused").exists()


def test_a_replay_that_makes_no_sense_is_refused(
    kept: Kept, spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").write_text("")
    with pytest.raises(BadInput, match="not empty"):
        replay("stats", pipeline(), kept.places(), spark, tmp_path / "full")
    two = Pipeline().source("a", quiver=["q", "r"]).sink(files="x").settings
    with pytest.raises(BadConfig, match="the pipeline reads 2"):
        replay("two", two, kept.places(), spark, tmp_path / "n", StoredRange(since_seq=1))


@pytest.mark.timeout(300)
def test_a_range_that_is_gone_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    flat = Pipeline().source("e", quiver="q", quiver_config=CONFIG_NAME).sink(files="x").settings
    made = Kept(tmp_path)
    with open_when_free(tmp_path / "q") as quiver:
        cursor = quiver.cursor("keeper")
        planned = cursor.plan(max_events=20)
        assert planned is not None
        cursor.commit(planned)
        while len(quiver.segments()) > 4:
            cursor.plan(wait_s=0.05, max_events=1)
    with pytest.raises(PipelineFailed, match="begins at bundle 0, and what is left begins at 2"):
        replay("flat", flat, made.places(), spark, tmp_path / "into", StoredRange(since_seq=0))


@pytest.mark.parametrize("text", ["10", "a..b", "1..2..3", "2026-05-01..7"])
def test_a_range_that_is_none_is_named(text: str) -> None:
    with pytest.raises(BadInput, match="is not a range"):
        replay_command.make_context("replay", ["file", "--into", "x", "--range", text])


def test_a_range_is_of_moments_or_of_bundles() -> None:
    def wanted(text: str) -> StoredRange:
        arguments = ["file", "--into", "x", "--range", text]
        found = replay_command.make_context("replay", arguments).params["wanted"]
        assert isinstance(found, StoredRange)
        return found

    assert wanted("7..") == StoredRange(since_seq=7)
    assert wanted("..7") == StoredRange(until_seq=7)
    assert wanted("..") == StoredRange()
    moments = f"2026-05-01T10:00:03..{at(5).isoformat()}"
    assert wanted(moments) == StoredRange(since=at(3), until=at(5))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_command_replays_as_one_batch(kept: Kept, tmp_path: Path) -> None:
    (kept.root / "file.yaml").write_text(
        "pipelines:\n  sums:\n    vertices:\n"
        f"      events: {{source: {{quiver: ./q, quiver_config: '{CONFIG_NAME}'}}}}\n"
        "      all: {reduce: {window: {fixed: 1h}, aggregate: {n: count(*), total: sum(number)}}}\n"
        "      out: {sink: {console: true}}\n"
        "    edges: [events -> all, all -> out]\n"
    )
    command = [sys.executable, "-m", "holdfast", "dataflow", "replay", str(kept.root / "file.yaml")]
    command += ["--batch", "--into", str(tmp_path / "into"), "--range", "2..4", "--json"]
    done = run_apart([*command, "--master", "local[1]"])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["into"] == str(tmp_path / "into")
    (row,) = rows(tmp_path / "into" / "out")
    assert (json.loads(row)["n"], json.loads(row)["total"]) == (20, sum(range(20, 40)))
