"""A driver that is killed between a layer and its commit: the next one commits the batch once."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from tests.dataflow.filesets.dying import MOMENTS, REACHED, run
from tests.dataflow.quivers import fill
from tests.patience import SPARK_PATIENCE_S

from holdfast.prove.sessions import end_session
from holdfast.store.filesets import Commits
from holdfast.store.fsck.check import LocalEngine, check
from holdfast.store.gc.collector import Collector
from holdfast.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[3]


def die(root: Path, moment: str) -> None:
    """Run a driver in a session of its own until it kills itself."""
    (root / "spark").mkdir()
    with open(root / "driver.log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.dataflow.filesets.dying", str(root), moment],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            ended = process.wait(SPARK_PATIENCE_S)
        finally:
            end_session(process.pid)
            process.wait()
    # The driver is killed last: it may have noticed before that its Spark is gone, and ended.
    assert ended in (-9, 1), (root / "driver.log").read_text()[-4000:]
    assert (root / REACHED).exists(), (root / "driver.log").read_text()[-4000:]


def numbers(store: Store, name: str) -> list[int]:
    with Commits(store).open(name) as files:
        found = [pq.read_table(io.BytesIO(files.read(file.path))) for file in files.files()]
    return sorted(number for table in found for number in table.column("number").to_pylist())


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("moment", sorted(MOMENTS))
def test_a_killed_driver_s_batch_is_committed_once(
    moment: str, tmp_path: Path, spark: SparkSession
) -> None:
    fill(tmp_path / "quiver", *([(float(n), "k", 10 * b + n) for n in range(10)] for b in range(3)))
    with Store.create(str(tmp_path / "store")) as store:
        die(tmp_path, moment)
        assert store.references.statistics().jobs == 1
        run(tmp_path, spark)
        names = [one.name for one in Commits(store).list()]
        assert names == [f"out/{batch:012d}" for batch in range(3)]
        for batch, name in enumerate(names):
            assert numbers(store, name) == list(range(10 * (batch + 1)))
        files = [pq.read_table(path) for path in (tmp_path / "files").glob("part-*.parquet")]
        assert sum(table.num_rows for table in files) == 30
        Collector(store.references, store.objects).collect()
        assert check(store, LocalEngine(store, tmp_path / "spark")).findings == []
