"""A commit as a source: each row is taken once, whoever dies, and then the commit may go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.dataflow.filesets.stores import commit, make_store, parquet

from holdfast.dataflow.source.intake import FileSetIntake
from holdfast.dataflow.spec.vertices import SourceSettings, TargetSettings
from holdfast.errors import UnknownCommit
from holdfast.quiver import Quiver
from holdfast.store.filesets import Commits
from holdfast.store.store import Store

SCHEMA = pa.schema([("number", pa.int64())])
FILES = {f"d/{n}.ndjson": b'{"number": %d}\nno row\n' % n for n in range(4)}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with make_store(tmp_path) as made:
        yield made


class World:
    """A commit, and the state of an intake of it."""

    def __init__(self, store: Store, root: Path) -> None:
        self.store, self.root = store, root

    def take(self, kind: str = "ndjson", stop_after: int = 100) -> tuple[list[int], int]:
        """Take files in a process of its own, and return all rows, and how many were none."""
        asked: list[int] = []

        def should_stop() -> bool:
            asked.append(1)
            return len(asked) > stop_after

        with Quiver.open(self.root / "rows") as rows, Quiver.open(self.root / "bad") as bad:
            place = (self.store.url, None, "in")
            intake = FileSetIntake(self.root, (rows, bad), place, kind, "at", SCHEMA)
            intake.take(should_stop)
            stored = rows.scan(["number"], slot="events").read_all()
            return stored.column("number").to_pylist(), bad.statistics().accepted_events


@pytest.fixture
def world(store: Store, tmp_path: Path) -> World:
    return World(store, tmp_path)


def test_each_row_of_a_commit_is_taken_once(world: World) -> None:
    commit(world.store, "in", {**FILES, "README": b"nothing"})
    assert world.take(stop_after=3)[0] in ([0], [0, 1])
    assert world.take() == ([0, 1, 2, 3], 4)
    assert world.store.references.statistics().pins == 0
    Commits(world.store).delete("in")
    assert world.take() == ([0, 1, 2, 3], 4)


def test_parquet_is_taken(world: World) -> None:
    commit(world.store, "in", {"a.parquet": parquet(pa.table({"number": [1, 2]}))})
    assert world.take("parquet") == ([1, 2], 0)


def test_a_commit_that_is_not_there_is_told(world: World) -> None:
    with pytest.raises(UnknownCommit):
        world.take()


def test_the_words_of_pipelines() -> None:
    place: dict[str, Any] = {"store": "s", "commit": "c"}
    source, target = SourceSettings.model_validate, TargetSettings.model_validate
    assert source({"fileset": place, "columns_are": "number bigint"}).fileset is not None
    with pytest.raises(ValueError, match="columns_are"):
        source({"fileset": place})
    assert target({"fileset": {**place, "keep_commits": 3}}).fileset is not None
    with pytest.raises(ValueError, match="give one of"):
        target({"fileset": place, "files": "f"})
    with pytest.raises(ValueError, match="pattern"):
        target({"fileset": {"store": "s", "commit": "c/"}})
