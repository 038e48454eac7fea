"""A disk that is full under Spark: the query ends with an error of its own, and goes on later."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from tests.dataflow.quivers import fill

from holdfast.dataflow.base.durable_file import is_disk_full
from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.driver.failures import failed
from holdfast.dataflow.driver.process import PipelineKeeper
from holdfast.dataflow.driver.run import PipelineRun
from holdfast.dataflow.driver.settings import SparkSettings
from holdfast.dataflow.spec import Pipeline, PipelineSettings
from holdfast.errors import DiskFull, PipelineDiskFull, PipelineFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEFT_BYTES = 40 * 1024
JAVA = "java.io.IOException: No space left on device\n\tat java.base/java.io.FileOutputStream"


@pytest.mark.parametrize(
    "error",
    [
        Exception(f"Job aborted: {JAVA}"),
        Exception("rocksdb: While appending to file: 000012.sst: No space left on device"),
        Exception("OSError: [Errno 28] Error writing bytes to file"),
        OSError(errno.EDQUOT, "over"),
        DiskFull("no room", hint="make some"),
    ],
)
def test_want_of_room_is_known_whoever_says_it(error: Exception) -> None:
    assert is_disk_full(error)
    ended = failed("events", error)
    assert isinstance(ended, PipelineDiskFull)
    assert "free space" in ended.hint


def test_another_error_is_not_for_want_of_room() -> None:
    assert not is_disk_full(OSError(errno.EIO, "damaged"))
    assert type(failed("events", Exception("something else"))) is PipelineFailed


def test_a_pipeline_without_room_says_so_and_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, states = threading.Event(), []
    settings = SparkSettings(restart_min=0.001, restart_max=0.001)
    keeper = PipelineKeeper(
        "stats", PipelineSettings.model_construct(), Places(tmp_path, tmp_path), settings, stop
    )

    def run(session: object) -> None:
        states.append(keeper.figures.state)
        if len(states) == 3:
            return
        raise failed("events", Exception(JAVA))

    monkeypatch.setattr(keeper, "_run", run)
    keeper._keep(None)  # type: ignore[arg-type]
    assert states == ["starting", "disk_full", "disk_full"]
    assert "because a disk is full" in keeper.figures.error
    assert keeper.figures.restarts_total == 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system on which something else lies: there is room to begin, and for nothing more."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount")
    (folder / "else").write_bytes(bytes(8 * 1024 * 1024 - LEFT_BYTES))
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_state_on_a_full_disk_ends_the_query_and_goes_on_with_room(
    spark: SparkSession, tmp_path: Path, small_disk: Path
) -> None:
    fill(tmp_path / "q", [(float(n), "abc"[n % 3], n) for n in range(300)], seal_each=False)
    pipeline: Any = (
        Pipeline(shuffle_partitions=2, max_delay="1s")
        .source("events", quiver="q", quiver_config="tests.dataflow.quivers:CONFIG")
        .window(fixed="10s")
        .aggregate("tens", key="key", n="count(*)")
        .sink(name="out", files="out")
        .settings
    )
    places = Places(small_disk / "state", tmp_path)
    with pytest.raises(PipelineDiskFull), PipelineRun("full", pipeline, places, spark) as run:
        run.drain(close=True)
    (small_disk / "else").unlink()
    with PipelineRun("full", pipeline, places, spark) as run:
        run.drain(close=True)
    tables = [pq.read_table(path) for path in (tmp_path / "out").glob("part-*.parquet")]
    assert sum(row["n"] for table in tables for row in table.to_pylist()) == 300
