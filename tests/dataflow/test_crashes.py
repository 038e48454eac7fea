"""Drivers that die, with real kill -9: their results are those of one that did not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.dataflow.crashing import DIE_AT, POINTS, SHAPES, end_session
from tests.dataflow.quivers import START, fill, open_when_free

from holdfast.quiver import Outcome

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 400
BUNDLES = [[(5.0 * i + j, "ab"[j % 2], 10 * i + j) for j in range(10)] for i in range(6)]


def drive(shape: str, root: Path, die_at: str = "") -> int:
    """Run a driver in a session of its own; return how it ended."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **({DIE_AT: die_at} if die_at else {})}
    (root / "spark").mkdir(exist_ok=True)
    with open(root / "driver.log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.dataflow.crashing", shape, str(root)],
            cwd=ROOT, env=environ, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(TIMEOUT_S)
        finally:
            end_session(process.pid)
            process.wait()


def results(root: Path) -> Counter[tuple[object, ...]]:
    tables = [pq.read_table(path) for path in sorted((root / "out").glob("part-*.parquet"))]
    return Counter(tuple(row.values()) for table in tables for row in table.to_pylist())


def expected(shape: str) -> Counter[tuple[object, ...]]:
    """Return what the query gives, counted without Spark."""
    rows = [row for bundle in BUNDLES for row in bundle]
    if shape in ("map", "fan_out"):
        return Counter((number, 2 * number) for _, _, number in rows)
    found: dict[tuple[int, str], list[int]] = {}
    if shape == "window":
        for seconds, key, number in rows:
            found.setdefault((int(seconds // 10 * 10), key), []).append(number)
    else:
        # Every key has an event at least every two seconds: one session each.
        for _, key, number in rows:
            first = min(seconds for seconds, other, _ in rows if other == key)
            found.setdefault((int(first), key), []).append(number)
    start_us = int(START.timestamp()) * 1_000_000
    return Counter(
        (start_us + start * 1_000_000, key, len(numbers), sum(numbers))
        for (start, key), numbers in found.items()
    )


def check(shape: str, root: Path, points: list[str]) -> None:
    fill(root / "quiver", *BUNDLES)
    for point in points:
        assert drive(shape, root, f"{point}:1") == -9, (root / "driver.log").read_text()[-4000:]
    assert drive(shape, root) == 0, (root / "driver.log").read_text()[-4000:]
    assert results(root) == expected(shape)
    if shape == "fan_out":
        with open_when_free(root / "second") as quiver:
            stored = quiver.scan(["number", "twice"], slot="events").read_all().to_pylist()
        assert Counter(tuple(row.values()) for row in stored) == expected(shape)
    with open_when_free(root / "quiver") as quiver:
        assert quiver.balance("stats").outcomes[Outcome.ACKED].events == 60


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("point", POINTS)
def test_a_driver_killed_at_any_moment_changes_no_result(
    shape: str, point: str, tmp_path: Path
) -> None:
    check(shape, tmp_path, [point])
