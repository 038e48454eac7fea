"""The store sink: a batch is one commit, also when it is run again, and never with other rows."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from tests.dataflow.driver import QUERY_ID, Driver
from tests.dataflow.filesets.stores import commit, make_store
from tests.dataflow.quivers import fill
from tests.dataflow.test_sinks import rows

from holdfast.dataflow.base import durable_file
from holdfast.dataflow.sink import commit_writer as sinking
from holdfast.dataflow.sink.commit_writer import CommitWriter, commit_name
from holdfast.dataflow.sink.options import parse_sink_options
from holdfast.dataflow.sink.records import KEPT_MAX
from holdfast.errors import BadConfig, UnknownPosition
from holdfast.store.filesets import Commits
from holdfast.store.gc.collector import Collector
from holdfast.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Died(Exception):
    """The driver is gone."""


class Sink:
    """A writer on a checkpoint folder whose offset log the test writes."""

    def __init__(self, store: Store, root: Path, **options: Any) -> None:
        self.store, self.commits = store, Commits(store)
        self.checkpoint = root / "checkpoint"
        (self.checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
        self.is_query(QUERY_ID)
        given = {"store": store.url, "commit": "out", "checkpointLocation": self.checkpoint}
        given |= options
        self.options = parse_sink_options({name: str(value) for name, value in given.items()})

    def is_query(self, query_id: str) -> None:
        (self.checkpoint / "metadata").write_text(json.dumps({"id": query_id}))

    def plan(self, number: int, end: int) -> None:
        """Write the offsets of a batch, as Spark does before it runs it."""
        text = f"v1\n{json.dumps({'batchTimestampMs': number})}\n{json.dumps({'end': end})}"
        (self.checkpoint / "offsets" / str(number)).write_text(text)

    def write(self, number: int, *tasks: list[int]) -> None:
        """Run the tasks of a batch, and commit it, each in a process of its own."""
        staged = [CommitWriter(self.options).write(rows(numbers)) for numbers in tasks]
        CommitWriter(self.options).commit(staged, number)

    def run(self, number: int, *tasks: list[int]) -> None:
        self.plan(number, 10 * number + 10)
        self.write(number, *tasks)

    def names(self) -> list[str]:
        return [one.name for one in self.commits.list()]

    def contents(self, name: str | None = None) -> list[int]:
        """Return what is in a commit; by default in the last."""
        found = []
        with self.commits.open(name or self.names()[-1]) as files:
            for file in files.files():
                content = files.read(file.path)
                if file.path.endswith(".ndjson"):
                    found += [json.loads(line)["number"] for line in content.splitlines()]
                else:
                    found += pq.read_table(io.BytesIO(content)).column("number").to_pylist()
        return sorted(found)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with make_store(tmp_path) as made:
        yield made


@pytest.fixture
def sink(store: Store, tmp_path: Path) -> Sink:
    return Sink(store, tmp_path)


def test_each_batch_is_a_commit_of_all_so_far(sink: Sink) -> None:
    sink.run(0, [1, 2], [], [3])
    sink.run(1, [])  # an empty batch is nothing
    sink.run(2, [4])
    assert sink.names() == ["out/000000000000", "out/000000000002"]
    assert sink.contents("out/000000000000") == [1, 2, 3]
    assert sink.contents() == [1, 2, 3, 4]
    parent = sink.commits.get("out/000000000002").parent
    assert parent is not None
    assert parent.name == "out/000000000000"
    with sink.commits.open("out/000000000002") as files:
        assert [file.path for file in files.files()] == [
            "part-000000000000-000-00000.parquet",
            "part-000000000000-000-00001.parquet",
            "part-000000000002-000-00000.parquet",
        ]
        assert all(file.mtime_ns for file in files.files())


def test_rows_may_be_lines(store: Store, tmp_path: Path) -> None:
    sink = Sink(store, tmp_path, format="ndjson")
    sink.run(0, [1, 2])
    assert sink.contents() == [1, 2]


def test_a_batch_that_is_run_again_changes_nothing(sink: Sink) -> None:
    for number in range(2):
        sink.run(number, [number, 10 + number])
        before = sink.commits.list()
        sink.write(number, [number], [10 + number])  # other tasks, the same rows
        assert sink.commits.list() == before
    assert sink.contents() == [0, 1, 10, 11]


def test_the_same_number_with_another_range_is_refused(sink: Sink) -> None:
    sink.run(0, [1, 2])
    sink.plan(0, 15)  # the offset log lost its tail, and more had come
    with pytest.raises(UnknownPosition, match="another range"):
        sink.write(0, [1, 2, 3])
    sink.run(1, [3])
    sink.plan(0, 15)
    with pytest.raises(UnknownPosition, match="another range"):
        sink.write(0, [1, 2, 3])
    assert sink.contents() == [1, 2, 3]


@pytest.mark.parametrize("moment", ["layer", "row", "object", "confirmed"])
def test_a_driver_that_dies_anywhere_commits_once(
    sink: Sink, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.run(0, [1])
    sink.plan(1, 20)

    def die(*_: object, **__: object) -> None:
        raise Died

    with monkeypatch.context() as patched:
        if moment == "layer":
            patched.setattr(Commits, "create", die)
        elif moment == "row":
            patched.setattr(type(sink.store.objects), "put", die)
        elif moment == "object":
            patched.setattr(type(sink.store.references), "confirm_commit", die)
        else:
            patched.setattr(sinking.CommitRecords, "record", die)
        with pytest.raises(Died):
            sink.write(1, [2, 3])
    sink.write(1, [2, 3])
    assert sink.names() == ["out/000000000000", "out/000000000001"]
    assert sink.contents() == [1, 2, 3]
    sink.run(2, [4])
    assert sink.contents() == [1, 2, 3, 4]


def test_layers_are_compacted_and_old_commits_deleted(store: Store, tmp_path: Path) -> None:
    sink = Sink(store, tmp_path, keep_commits=3)
    for number in range(12):
        sink.run(number, [number])
    assert sink.names() == [commit_name("out", number) for number in (9, 10, 11)]
    assert sink.contents() == list(range(12))
    assert len(sink.commits.get("out/000000000011").layers) <= 3
    used = store.references.statistics().states
    Collector(store.references, store.objects).collect()
    after = store.references.statistics().states
    assert sum(one.chunks for one in after.values()) < sum(one.chunks for one in used.values())
    assert sink.contents() == list(range(12))


def test_records_are_bounded(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinking, "KEPT_MAX", 2)
    for number in range(4):
        sink.run(number, [number])
    (record,) = sink.commits.get("out/000000000003").batch_records.values()
    assert list(json.loads(record)) == ["2", "3"]
    assert KEPT_MAX == 100
    with pytest.raises(UnknownPosition):
        sink.write(1, [1])


def test_commits_of_others_are_not_built_upon(sink: Sink) -> None:
    sink.run(0, [1])
    sink.is_query("another")
    with pytest.raises(BadConfig, match="another query's"):
        sink.write(0, [2])
    sink.is_query(QUERY_ID)
    commit(sink.store, "out/0mine", {"a": b"a"})
    commit(sink.store, "out/2026", {"a": b"a"})  # in nobody's way
    with pytest.raises(BadConfig, match="not one of them"):
        sink.run(1, [2])
    sink.commits.delete("out/0mine")
    sink.run(1, [2])
    assert sink.contents("out/000000000001") == [1, 2]


def test_what_is_large_is_staged_and_removed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Sink(store, tmp_path, inline_bytes="1")
    folder = sink.checkpoint / "holdfast" / "staging"
    left = CommitWriter(sink.options).write(rows([3]))
    assert len(list(folder.iterdir())) == 1
    sink.run(0, [1, 2], [4])
    assert len(list(folder.iterdir())) == 1
    assert sink.contents() == [1, 2, 4]
    CommitWriter(sink.options).abort([left, None], 0)
    assert list(folder.iterdir()) == []
    old = folder / "x.staged"
    old.touch()
    os.utime(old, (1, 1))
    monkeypatch.setattr(durable_file, "STALE_AFTER_S", 60.0)
    sink.run(1, [5])
    assert list(folder.iterdir()) == []


def test_a_task_that_fails_leaves_nothing(store: Store, tmp_path: Path) -> None:
    sink = Sink(store, tmp_path, inline_bytes="1", format="ndjson")

    def failing() -> Iterator[Any]:
        yield from rows([1])
        raise Died

    with pytest.raises(Died):
        CommitWriter(sink.options).write(failing())
    assert list((sink.checkpoint / "holdfast" / "staging").iterdir()) == []


def test_wrong_options_are_told() -> None:
    for options in ({"store": "s"}, {"commit": "c", "files": "f"}, {"store": "s", "commit": "/"}):
        with pytest.raises(BadConfig):
            parse_sink_options({**options, "checkpoint": "c"})


@pytest.mark.parametrize("acknowledged", [False, True])
def test_a_query_without_state_goes_on_behind_what_its_sink_has(
    store: Store, tmp_path: Path, acknowledged: bool
) -> None:
    """The offsets of the last batch are lost, with or without its acknowledgement."""
    quiver, sink = tmp_path / "quiver", Sink(store, tmp_path)
    fill(quiver, [(1.0, "k", 1)], [(2.0, "k", 2)])
    options = {"on_rewind": "trim", "records": sink.checkpoint / "holdfast"}

    def run(driver: Driver, max_rows: int) -> None:
        planned = driver.plan(max_rows)
        assert planned is not None
        sink.write(planned, driver.run(planned).column("number").to_pylist())
        driver.finish(planned)

    driver = Driver(str(quiver), sink.checkpoint, **options)
    run(driver, 1)
    run(driver, 1)
    if not acknowledged:
        (sink.checkpoint / "commits" / "1").unlink()
    driver.stop()
    for log in ("offsets", "commits"):
        (sink.checkpoint / log / "1").unlink(missing_ok=True)
    fill(quiver, [(3.0, "k", 3)], [(4.0, "k", 4)])
    again = Driver(str(quiver), sink.checkpoint, **options)
    run(again, 1)
    run(again, 10)
    again.stop()
    assert sink.contents() == [1, 2, 3, 4]
    assert sink.names()[:3] == ["out/000000000000", "out/000000000001", "out/000000000001-001"]


def test_spark_writes_commits(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    quiver, checkpoint = tmp_path / "quiver", tmp_path / "spark-checkpoint"
    fill(quiver, [(float(n), "k", n) for n in range(5)], [(float(n), "k", n) for n in range(5, 9)])
    source = {"path": str(quiver), "subscriber": "s", "checkpoint": str(checkpoint)}
    source |= {"max_rows": "5", "quiver_config": "tests.dataflow.quivers:CONFIG"}
    target = {"store": store.url, "commit": "spark", "checkpointLocation": str(checkpoint)}
    stream = spark.readStream.format("holdfast").options(**source).load().select("number", "key")
    writer = stream.writeStream.format("holdfast").options(**target)
    assert writer.trigger(availableNow=True).start().awaitTermination(100)
    sink = Sink(store, tmp_path)
    assert sink.names() == ["spark/000000000000", "spark/000000000001"]
    assert [sink.contents(name) for name in sink.names()] == [list(range(5)), list(range(9))]
