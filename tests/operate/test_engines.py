"""`--engine spark`: the same answers as without, from real commands in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import SPARK_PATIENCE_S

# Each starts Spark by itself. What it compacts and checks is tried in tests/dataflow/filesets.
pytestmark = pytest.mark.slow

WRONG = 65


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a commit of three layers."""
    folder = tmp_path / "folder"
    for number in range(3):
        (folder / f"part-{number}").mkdir(parents=True)
        for file in range(20):
            (folder / f"part-{number}" / f"{file:02}.txt").write_bytes(b"%d" % file * 500)
    run(tmp_path / "store", "store", "create")
    run(tmp_path / "store", "files", "put", "1", str(folder / "part-0"))
    for number in (1, 2):
        source = str(folder / f"part-{number}")
        words = ("--into", f"more/{number}", "--parent", str(number))
        run(tmp_path / "store", "files", "put", str(number + 1), source, *words)
    return tmp_path / "store"


def run(store: Path, *words: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *words],
        env={**os.environ, "HOLDFAST_STORE": str(store)},
        capture_output=True,
        text=True,
        timeout=SPARK_PATIENCE_S,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def test_compaction_makes_the_same_commit(store: Path) -> None:
    for engine in ("local", "spark"):
        run(store, "files", "compact", "3", "--as", engine, "--whole", "--engine", engine)
    listed = [run(store, "files", "ls", "-r", "--json", name) for name in ("3", "local", "spark")]
    assert listed[0] == listed[1] == listed[2]
    assert json.loads(run(store, "files", "diff", "local", "spark", "--json"))["differences"] == []


def test_a_check_finds_the_same(store: Path) -> None:
    damaged = max(store.glob("chunks/*/*"), key=lambda path: path.stat().st_size)
    damaged.unlink()
    found = [
        json.loads(run(store, "store", "fsck", "--json", "--engine", engine, code=WRONG))
        for engine in ("local", "spark")
    ]
    assert found[0]["found"] == found[1]["found"]
    assert "missing chunk" in found[0]["found"]
