"""Checkpoints that are not what they were, under real pipelines: trimmed or refused, never skipped.

Spark does not sync its checkpoints, so a power cut may take the last batch back; people copy and
restore folders. Either the sink ends with each row once, or the pipeline says why it stopped.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from tests.dataflow.quivers import CONFIG_NAME, Row, fill

from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.driver.run import PipelineRun
from holdfast.dataflow.spec import Pipeline, PipelineSettings
from holdfast.errors import BadConfig, PipelineFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def flat() -> PipelineSettings:
    source = Pipeline().source("events", quiver="q", quiver_config=CONFIG_NAME)
    return source.map(select={"number": "number"}).sink(name="out", files="out").settings


def windowed() -> PipelineSettings:
    source = Pipeline(max_delay="1s", idle_after="1h", shuffle_partitions=1)
    source = source.source("events", quiver="q", quiver_config=CONFIG_NAME)
    made = source.window(fixed="10s").aggregate("tens", n="count(*)", total="sum(number)")
    return made.sink(name="out", files="out").settings


class World:
    """A quiver, a pipeline over it, and what its sink has."""

    def __init__(self, root: Path, spark: SparkSession) -> None:
        self.root, self._spark = root, spark
        self.state = root / "state"
        self._next = 0

    def feed(self) -> None:
        first, self._next = self._next, self._next + 10
        rows: list[Row] = [(float(n), "k", n) for n in range(first, self._next)]
        fill(self.root / "q", rows)

    def run(self, pipeline: PipelineSettings, *, name: str = "stats", close: bool = False) -> None:
        places = Places(self.state, self.root)
        with PipelineRun(name, pipeline, places, self._spark) as run:
            run.drain(close=close)

    def set_back(self) -> None:
        """Take the last batch out of Spark's logs; the state of its windows stays as it is."""
        checkpoint = self.state / "events" / "checkpoint"
        last = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
        for log in ("offsets", "commits"):
            for path in (checkpoint / log).glob(f"*{last}*"):
                path.unlink()

    def column(self, name: str) -> Counter[int]:
        tables = [pq.read_table(path) for path in (self.root / "out").glob("part-*.parquet")]
        return Counter(value for table in tables for value in table.column(name).to_pylist())


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> World:
    return World(tmp_path, spark)


def test_a_pipeline_without_state_goes_on_behind_what_its_sink_has(world: World) -> None:
    for _ in range(2):
        world.feed()
        world.run(flat())
    world.set_back()
    world.feed()
    world.run(flat())
    assert world.column("number") == Counter(range(30))
    world.feed()
    world.run(flat())
    assert world.column("number") == Counter(range(40))


def test_a_pipeline_with_windows_is_refused_and_nothing_is_written(world: World) -> None:
    for _ in range(2):
        world.feed()
        world.run(windowed())
    before = world.column("total")
    world.set_back()
    world.feed()
    with pytest.raises(PipelineFailed, match=r"goes back to bundle|another range"):
        world.run(windowed(), close=True)
    assert world.column("total") == before


def test_an_older_copy_of_the_whole_state_is_not_run_as_if_it_were_the_newest(world: World) -> None:
    world.feed()
    world.run(windowed())
    shutil.copytree(world.state, world.root / "older")
    world.feed()
    world.run(windowed())
    before = world.column("total")
    shutil.rmtree(world.state)
    (world.root / "older").rename(world.state)
    world.feed()
    with pytest.raises(PipelineFailed, match=r"goes back to bundle|another range"):
        world.run(windowed(), close=True)
    assert world.column("total") == before


def test_the_state_of_another_pipeline_is_refused(world: World) -> None:
    world.feed()
    world.run(flat())
    world.feed()
    with pytest.raises(BadConfig, match=r"checkpoint is of subscriber 'stats.events'"):
        world.run(flat(), name="others")
    assert world.column("number") == Counter(range(10))
