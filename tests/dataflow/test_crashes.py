"""Drivers that die, with real kill -9: their results are those of one that did not.

A cell of the matrix is a shape of query and a moment at which its driver dies. One dead driver is
four cells: each of its four queries is at a moment of its own (crashing.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from tests.dataflow.crashing import CELLS, KINDS, QUIVERS, SHAPES, compiled, drain, run
from tests.dataflow.quivers import CONFIG_NAME, at, fill, open_when_free
from tests.patience import SPARK_PATIENCE_S

from holdfast.dataflow.base.points import TRAP, BatchPoint
from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.spec import Pipeline
from holdfast.errors import PipelineFailed
from holdfast.prove.sessions import end_session
from holdfast.quiver import Outcome

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
BUNDLES = [[(5.0 * i + j, "ab"[j % 2], 10 * i + j) for j in range(10)] for i in range(6)]
# Each shape meets each moment once.
MATRIX = [
    {
        shape: list(BatchPoint)[(place + turn) % len(BatchPoint)]
        for place, shape in enumerate(SHAPES)
    }
    for turn in range(len(BatchPoint))
]

Rows = Counter[tuple[object, ...]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with the quivers of all shapes."""
    for shape in SHAPES:
        for place, name in enumerate(QUIVERS):
            fill(tmp_path / shape / name, *BUNDLES[place :: len(QUIVERS)])
    return tmp_path


def die(kind: str, root: Path, cells: dict[str, BatchPoint]) -> None:
    """Run a driver in a session of its own until all its queries are where they have to die."""
    told = json.dumps({"root": str(root), **cells})
    environ = {
        **os.environ, "PYTHONPATH": str(ROOT), CELLS: told, TRAP: "tests.dataflow.crashing:trap",
    }  # fmt: skip
    (root / "spark").mkdir()
    with open(root / "driver.log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.dataflow.crashing", kind, str(root)],
            cwd=ROOT, env=environ, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            ended = process.wait(SPARK_PATIENCE_S)
        finally:
            end_session(process.pid)
            process.wait()
    assert ended == -9, (root / "driver.log").read_text()[-4000:]
    assert {path.name for path in root.glob("reached-*")} == {f"reached-{s}" for s in SHAPES}


def results(root: Path, shape: str) -> Rows:
    tables = [pq.read_table(path) for path in sorted((root / shape / "out").glob("*.parquet"))]
    names = ("number", "twice", "window_start", "key", "rows", "total")
    rows = [row for table in tables for row in table.to_pylist()]
    return Counter(tuple(row[name] for name in names if name in row) for row in rows)


def second_results(root: Path) -> Rows:
    with open_when_free(root / "fan_out" / "second") as quiver:
        stored = quiver.scan(["number", "twice"], slot="events").read_all().to_pylist()
    return Counter(tuple(row.values()) for row in stored)


def expected(shape: str) -> Rows:
    """Return what the query gives, counted without Spark."""
    rows = [row for bundle in BUNDLES for row in bundle]
    if shape in ("map", "fan_out"):
        return Counter((number, 2 * number) for _, _, number in rows)
    found: dict[tuple[float, str], list[int]] = {}
    if shape == "window":
        for seconds, key, number in rows:
            found.setdefault((seconds // 10 * 10, key), []).append(number)
    else:
        # Every key has an event at least every two seconds: one session each.
        for _, key, number in rows:
            first = min(seconds for seconds, other, _ in rows if other == key)
            found.setdefault((first, key), []).append(number)
    return Counter(
        (at(start), key, len(numbers), sum(numbers)) for (start, key), numbers in found.items()
    )


def check(root: Path) -> None:
    """Every row is in every result once, and every quiver was told."""
    for shape in SHAPES:
        assert results(root, shape) == expected(shape), shape
    assert second_results(root) == expected("fan_out")
    for shape in SHAPES:
        for name in QUIVERS:
            with open_when_free(root / shape / name) as quiver:
                (subscriber,) = quiver.subscribers()
                acked = quiver.balance(subscriber).outcomes[Outcome.ACKED]
            assert acked.events == 30, (shape, name)


def survive(kind: str, root: Path, cells: dict[str, BatchPoint], spark: SparkSession) -> None:
    """Let a driver die, and another one go on."""
    die(kind, root, cells)
    run(kind, root, spark)
    check(root)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_driver_that_dies_changes_no_result(root: Path, spark: SparkSession) -> None:
    """One cell of each shape; all of them are in the long suite."""
    survive("compiled", root, MATRIX[0], spark)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("cells", MATRIX, ids=["-".join(c.values()) for c in MATRIX])
@pytest.mark.parametrize("kind", KINDS)
def test_a_driver_that_dies_at_any_moment_changes_no_result(
    kind: str, cells: dict[str, BatchPoint], root: Path, spark: SparkSession
) -> None:
    survive(kind, root, cells, spark)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_a_driver_that_lives_gives_what_is_expected(
    kind: str, root: Path, spark: SparkSession
) -> None:
    """What the dead ones are measured by is counted without Spark: an undisturbed run gives it."""
    run(kind, root, spark)
    check(root)


# ------------------------------------------------------- a checkpoint that lost its tail


def set_back(folder: Path) -> None:
    """Take the last batch out of Spark's logs, as a power cut may: it does not sync them."""
    (checkpoint,) = folder.glob("state/*/checkpoint")
    last = max(int(path.name) for path in (checkpoint / "offsets").glob("[0-9]*"))
    for log in ("offsets", "commits"):
        (checkpoint / log / str(last)).unlink()
        (checkpoint / log / f".{last}.crc").unlink(missing_ok=True)


def add_more(folder: Path) -> None:
    for name in QUIVERS:
        fill(folder / name, [(60.0, "a", 1000 + len(name))])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_query_without_state_goes_on_behind_what_its_sink_has(
    root: Path, spark: SparkSession
) -> None:
    folder = root / "map"
    pipeline = (
        Pipeline()
        .source(quiver=list(QUIVERS), quiver_config=CONFIG_NAME, read_limit={"rows": 20})
        .map(select={"number": "number", "twice": "number * 2"})
        .sink(files="out")
    )
    places = Places(folder / "state", folder)
    drain("map", pipeline.settings, places, spark, close=False)
    assert results(root, "map") == expected("map")
    set_back(folder)
    add_more(folder)
    drain("map", pipeline.settings, places, spark, close=False)
    assert results(root, "map") == expected("map") + Counter({(1003, 2006): 2})


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_query_with_state_or_two_places_to_write_to_is_refused_and_writes_nothing(
    shape: str, root: Path, spark: SparkSession
) -> None:
    """Dead letters are a second place: that of the shape whose map is a function."""
    compiled(shape, root / shape, spark, close=False)
    before = results(root, shape)
    set_back(root / shape)
    add_more(root / shape)
    with pytest.raises(PipelineFailed, match=r"goes back|another range"):
        compiled(shape, root / shape, spark, close=False)
    assert results(root, shape) == before
