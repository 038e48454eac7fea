"""Commits as Spark reads them: parts by the driver, rows by tasks without a database."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from tests.dataflow.filesets.stores import DAY, arrow, commit, make_store, parquet

from holdfast.dataflow.data_source import HoldfastDataSource
from holdfast.dataflow.filesets import reader as reading
from holdfast.dataflow.filesets.reader import FileSetReader, file_set_schema, parse_file_set_options
from holdfast.dataflow.filesets.shipping import ShippedPart
from holdfast.errors import BadConfig, BadInput, ObjectMissing, UnknownCommit
from holdfast.store.chunks.settings import StoreSettings
from holdfast.store.filesets import Commits, layer_builder
from holdfast.store.filesets.fileset import StoredFile
from holdfast.store.gc.collector import Collector
from holdfast.store.gc.settings import GcSettings
from holdfast.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES = {f"d{n % 3}/{n:03}.txt": bytes([n]) * (37 * n) for n in range(120)}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with make_store(tmp_path) as made:
        yield made


def made(store: Store, name: str, **options: Any) -> FileSetReader:
    given = {"store": store.url, "path": name, **options}
    parsed = parse_file_set_options({key: str(value) for key, value in given.items()})
    return FileSetReader(parsed, from_arrow_schema(file_set_schema(parsed)))


def shipped(reader: FileSetReader) -> tuple[FileSetReader, list[InputPartition]]:
    """Return what tasks get."""
    parts = list(reader.partitions())
    return pickle.loads(pickle.dumps(reader)), pickle.loads(pickle.dumps(parts))


def rows(reader: FileSetReader) -> list[dict[str, Any]]:
    task, parts = shipped(reader)
    return [row for part in parts for batch in task.read(part) for row in batch.to_pylist()]


def test_files_are_listed_and_read_in_parts_that_hold_all(store: Store) -> None:
    commit(store, "all", FILES, {"d1/new": b"new", "d2/": None, "d0/000.txt": b"over"})
    expected = {p: c for p, c in FILES.items() if not p.startswith("d2/")}
    expected |= {"d1/new": b"new", "d0/000.txt": b"over"}
    reader = made(store, "all", shard_files=10)
    found = rows(reader)
    assert len(shipped(reader)[1]) > 4
    assert [row["path"] for row in found] == sorted(expected)
    assert {row["path"]: row["content"] for row in found} == expected
    assert all(row["size"] == len(expected[row["path"]]) for row in found)
    assert {row["modified"] for row in found if row["path"] == "d1/001.txt"} == {
        DAY + timedelta(seconds=1)
    }


def test_tasks_do_not_need_the_database(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(store, "all", FILES, {"d1/new": b"new", "d2/": None})
    task, parts = shipped(made(store, "all"))
    monkeypatch.setattr(Store, "open", None)
    store.close()
    (Path(store.url) / "gc.sqlite").unlink()
    assert sum(batch.num_rows for part in parts for batch in task.read(part)) == 81
    assert b"secret" not in pickle.dumps(made_with_database(store))


def made_with_database(store: Store) -> FileSetReader:
    database = f"sqlite:///{store.url}/secret.sqlite"
    options = {"store": store.url, "path": "all", "database": database}
    return FileSetReader(parse_file_set_options(options), from_arrow_schema(reading.FILES))


def test_content_that_is_not_asked_for_is_not_read(store: Store) -> None:
    commit(store, "all", FILES)
    task, parts = shipped(made(store, "all", columns="path,size"))
    whole = shipped(made(store, "all"))[1]
    keys = [sum(len(p.keys) for p in some if isinstance(p, ShippedPart)) for some in (parts, whole)]
    assert keys[0] < keys[1]
    (first, *_) = task.read(parts[0])
    assert first.schema.names == ["path", "size"]


def test_files_are_chosen_by_pattern_and_time(store: Store) -> None:
    commit(store, "all", FILES)
    assert len(rows(made(store, "all", glob="d0/*.txt"))) == 40
    since, until = (DAY + timedelta(seconds=s) for s in (10, 12))
    times = {"since": since.isoformat(), "until": until.isoformat()}
    assert [row["path"] for row in rows(made(store, "all", **times))] == [
        "d1/010.txt", "d2/011.txt",
    ]  # fmt: skip
    assert rows(made(store, "all", glob="nothing")) == []


def test_a_file_of_very_many_chunks_is_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its references are chunks themselves, lists in lists."""
    monkeypatch.setattr(layer_builder, "INLINE_REFS_MAX", 4)
    monkeypatch.setattr(layer_builder, "LISTED_REFS_MAX", 3)
    content = b"".join(n.to_bytes(4, "big") for n in range(40_000))
    commit(store, "all", {"large": content})
    assert rows(made(store, "all"))[0]["content"] == content


def test_a_commit_that_is_deleted_after_the_plan_is_read(store: Store) -> None:
    commit(store, "all", FILES)
    task, parts = shipped(made(store, "all"))
    assert store.references.statistics().pins == 1
    Commits(store).delete("all")
    Collector(store.references, store.objects).collect()
    assert sum(batch.num_rows for part in parts for batch in task.read(part)) == 120


def test_a_pin_lapses_by_itself(store: Store) -> None:
    commit(store, "all", FILES)
    task, parts = shipped(made(store, "all", pin="10ms"))
    Commits(store).delete("all")
    # A pin is over once a collector has seen it unchanged for the collector's own `lease_s`.
    hasty = StoreSettings(gc=GcSettings(lease_s=0.01))
    with Store.open(store.url, settings=hasty) as opened:
        collector = Collector(opened.references, opened.objects)
        while opened.references.statistics().pins:
            collector.collect()
        collector.collect()
    with pytest.raises(ObjectMissing):
        list(task.read(parts[0]))


def test_a_plan_that_fails_leaves_no_pin(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(store, "all", FILES)
    reader = made(store, "all")
    monkeypatch.setattr(reading, "wanted", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        reader.partitions()
    assert store.references.statistics().pins == 0


def test_what_cannot_be_read_is_told(store: Store) -> None:
    commit(store, "all", FILES)
    with pytest.raises(BadConfig, match="no commit is named"):
        parse_file_set_options({"store": store.url})
    with pytest.raises(BadConfig, match="subscriber"):
        parse_file_set_options({"store": store.url, "path": "all", "subscriber": "x"})
    with pytest.raises(UnknownCommit):
        made(store, "none").partitions()
    with pytest.raises(BadInput, match="no column owner"):
        made(store, "all", columns="path,owner")
    with pytest.raises(BadInput, match="no file to read as parquet"):
        made(store, "all", format="parquet")
    commit(store, "bad", {"x.parquet": b"no"})
    with pytest.raises(BadInput, match=r"'x.parquet' cannot be read as parquet"):
        made(store, "bad", format="parquet")
    with pytest.raises(BadConfig, match="nothing to stream"):
        HoldfastDataSource({"store": store.url}).streamReader(from_arrow_schema(reading.FILES))


# ---------------------------------------------------------------------------- rows


def table(first: int, count: int) -> pa.Table:
    times = [DAY + timedelta(seconds=n) for n in range(first, first + count)]
    return pa.table(
        {
            "event_time": pa.array(times, pa.timestamp("us", "UTC")),
            "number": pa.array(range(first, first + count), pa.int64()),
            "word": [f"w{n}" for n in range(first, first + count)],
        }
    )


def lines(rows: pa.Table) -> bytes:
    return b"".join(
        b'{"event_time":"%s","number":%d,"word":"%s"}\n'
        % (row["event_time"].strftime("%Y-%m-%dT%H:%M:%SZ").encode(), row["number"], b"w")
        for row in rows.to_pylist()
    )


FORMATS = {"parquet": parquet, "arrow": arrow, "json": lines}
kinds = pytest.mark.parametrize("kind", sorted(FORMATS))


@kinds
def test_rows_are_read_by_columns_and_time(store: Store, kind: str) -> None:
    encode = FORMATS[kind]
    files = {f"part-{n}.{kind}": encode(table(100 * n, 100)) for n in range(5)}
    commit(store, "rows", {**files, "README": b"none of them"})
    found = rows(made(store, "rows", format=kind))
    assert [row["number"] for row in found] == list(range(500))
    assert set(found[0]) == {"event_time", "number", "word"}
    since, until = (DAY + timedelta(seconds=s) for s in (150, 210))
    times = {"since": since.isoformat(), "until": until.isoformat(), "columns": "number"}
    assert rows(made(store, "rows", format=kind, **times)) == [
        {"number": n} for n in range(150, 210)
    ]


@kinds
def test_files_with_other_columns_are_fitted_to_the_first(store: Store, kind: str) -> None:
    encode = FORMATS[kind]
    first = table(0, 2)
    narrow = pa.table({"event_time": first["event_time"], "number": pa.array([7, 8], pa.int64())})
    other = {"parquet": parquet(narrow), "arrow": arrow(narrow), "json": b'{"number": 7}\n'}[kind]
    commit(store, "rows", {f"a.{kind}": encode(first), f"b.{kind}": other})
    found = rows(made(store, "rows", format=kind, columns="word,number"))
    assert [row["number"] for row in found][:3] == [0, 1, 7]
    assert found[2]["word"] is None


def test_row_groups_of_other_times_are_not_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = table(0, 4000).append_column(
        "blob", pa.array([bytes([n % 251]) * 64 for n in range(4000)])
    )
    commit(store, "rows", {"a.parquet": parquet(wide, row_group_rows=200)})
    since = (DAY + timedelta(seconds=3900)).isoformat()
    read = {"whole": 0, "pruned": 0}
    for name, options in (("whole", {}), ("pruned", {"since": since, "columns": "number"})):
        counting = StoredFile.readinto

        def readinto(self: Any, buffer: Any, /, name: str = name, count: Any = counting) -> int:
            size_bytes: int = count(self, buffer)
            read[name] += size_bytes
            return size_bytes

        reader = made(store, "rows", format="parquet", **options)
        with monkeypatch.context() as patched:
            patched.setattr(StoredFile, "readinto", readinto)
            patched.setattr(reading, "BUFFER_BYTES", 1024)
            assert len(rows(reader)) == (4000 if name == "whole" else 100)
    assert read["pruned"] < read["whole"] / 2


def test_a_column_that_is_no_time_is_told(store: Store) -> None:
    commit(store, "rows", {"a.parquet": parquet(table(0, 2))})
    options = {"format": "parquet", "since": DAY.isoformat()}
    with pytest.raises(BadInput, match="holds int64, not times"):
        rows(made(store, "rows", **options, time_column="number"))
    with pytest.raises(BadInput, match="no column 'at'"):
        made(store, "rows", **options, time_column="at")


def test_spark_reads_rows(spark: SparkSession, store: Store) -> None:
    commit(store, "days/1", {f"part-{n}.parquet": parquet(table(100 * n, 100)) for n in range(4)})
    reader = spark.read.format("holdfast").options(store=store.url, format="parquet", shard_files=2)
    numbers = reader.load("days/1").where("number >= 350").collect()
    assert sorted(row.number for row in numbers) == list(range(350, 400))


@pytest.mark.slow
def test_spark_reads_files(spark: SparkSession, store: Store) -> None:
    commit(store, "days/1", FILES)
    reader = spark.read.format("holdfast").options(store=store.url, shard_files=50)
    listed = reader.load("days/1").collect()
    assert {row.path: bytes(row.content) for row in listed} == FILES
