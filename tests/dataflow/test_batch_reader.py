"""The reader of a batch, asked as Spark asks it: from a folder and from a server, pruned."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, LessThan
from pyspark.sql.pandas.types import from_arrow_schema
from tests.dataflow.driver import Driver
from tests.dataflow.quivers import CONFIG, CONFIG_NAME, at, batch
from tests.dataflow.test_stream_reader import numbers as stream_numbers
from tests.dataflow.test_stream_reader import wait_for

from holdfast.dataflow.source import quiver_location, schema
from holdfast.dataflow.source.options import parse_options
from holdfast.dataflow.source.partitions import SourcePartition
from holdfast.dataflow.source.quiver_location import connect
from holdfast.dataflow.source.schema import stored_schema
from holdfast.dataflow.source.stored import BatchReader, PushingBatchReader
from holdfast.dataflow.source.stream import StreamReader
from holdfast.dataflow.watermark.claims import END_OF_TIME_US
from holdfast.errors import BadConfig, BadInput, DirectoryLocked, UnknownPosition
from holdfast.quiver import Outcome, Quiver, SegmentConfig
from holdfast.remote import FlightSettings, QuiverServer

# Nothing is sealed but on request.
PATIENT = replace(CONFIG, segment=SegmentConfig(max_open_duration_s=3600.0))


class Stored:
    """A quiver with four sealed segments of ten seconds, and one bundle that is not sealed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.quiver = Quiver.open(path, PATIENT)
        for i in range(4):
            self.quiver.append(batch((10.0 * i + j, f"k{i}", 10 * i + j) for j in range(10)))
            self.quiver.flush()
        self.quiver.append(batch([(40.0, "k4", 40)]))
        self.server = QuiverServer({"main": self.quiver}, FlightSettings(listen="127.0.0.1:0"))
        self.server.start()
        connect.cache_clear()

    def options(self, kind: str, **options: Any) -> dict[str, str]:
        where = {"path": str(self.path), "quiver_config": CONFIG_NAME}
        if kind == "server":
            where = {"quiver": f"{self.server.location}/main", "local_reads": "false"}
        return {**where, **{name: str(value) for name, value in options.items()}}

    def stop(self) -> None:
        self.server.stop()
        self.quiver.close()


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    made = Stored(tmp_path_factory.mktemp("stored") / "quiver")
    yield made
    made.stop()


def reader(options: dict[str, str], *filters: Filter) -> BatchReader:
    parsed = parse_options(options)
    schema = from_arrow_schema(stored_schema(parsed))
    if not filters:
        return BatchReader(parsed, schema)
    pushing = PushingBatchReader(parsed, schema)
    assert list(pushing.pushFilters(list(filters))) == list(filters)  # Spark judges again
    return pushing


def rows(made: BatchReader) -> pa.Table:
    return pa.Table.from_batches(
        [rows for part in made.partitions() for rows in made.read(part)],
    )


def numbers(made: BatchReader) -> list[int]:
    found: list[int] = rows(made).column("number").to_pylist()
    return found


def segments(made: BatchReader) -> int:
    parts = [part for part in made.partitions() if isinstance(part, SourcePartition)]
    return sum(len(part.pieces) for part in parts)


both = pytest.mark.parametrize("kind", ["folder", "server"])


@both
def test_everything_that_is_sealed_is_read_with_its_columns(stored: Stored, kind: str) -> None:
    made = reader(stored.options(kind))
    assert numbers(made) == list(range(40))
    assert {"at", "key", "number", "_seq", "_event_time"} <= set(rows(made).schema.names)
    chosen = reader(stored.options(kind, columns="number,key"))
    assert rows(chosen).schema.names == ["number", "key"]
    with pytest.raises(BadInput, match="no column numbers"):
        reader(stored.options(kind, columns="numbers"))


@both
def test_times_and_numbers_of_bundles_leave_segments_out(stored: Stored, kind: str) -> None:
    timed = reader(stored.options(kind, since=at(15).isoformat(), until=at(20).isoformat()))
    assert (segments(timed), numbers(timed)) == (1, list(range(15, 20)))
    numbered = reader(stored.options(kind, since_seq=1, until_seq=3))
    assert (segments(numbered), numbers(numbered)) == (2, list(range(10, 30)))
    assert segments(reader(stored.options(kind, since_seq=3, until_seq=3))) == 0


@both
def test_conditions_of_the_query_leave_segments_out(stored: Stored, kind: str) -> None:
    """Wider than they say by what lies on the bound; Spark judges the rows again."""
    options = stored.options(kind, pushdown="true")
    later = reader(options, GreaterThan(("_event_time",), at(25)))
    assert (segments(later), numbers(later)) == (2, list(range(25, 40)))
    exact = reader(options, EqualTo(("_event_time",), at(19)), LessThan(("number",), 3))
    assert (segments(exact), numbers(exact)) == (1, [19])
    seqs = reader(options, LessThan(("_seq",), 1))
    assert (segments(seqs), numbers(seqs)) == (2, list(range(20)))
    narrowed = reader({**options, "since": at(5).isoformat()}, LessThan(("_event_time",), at(7)))
    assert numbers(narrowed) == [5, 6, 7]


def test_a_server_s_rows_are_read_without_a_look_into_its_folder(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the folder was looked into")

    monkeypatch.setattr(schema, "sealed_segments", refuse)
    monkeypatch.setattr(quiver_location, "scan_sealed", refuse)
    assert numbers(reader(stored.options("server"))) == list(range(40))


def test_what_is_not_sealed_is_sealed_on_request(tmp_path: Path) -> None:
    made = Stored(tmp_path / "quiver")
    try:
        with pytest.raises(DirectoryLocked):
            reader(made.options("folder", seal=True)).partitions()
        assert numbers(reader(made.options("server", seal=True))) == list(range(41))
        made.quiver.append(batch([(41.0, "k", 41)]))
        # As a crash leaves it.
        shutil.copytree(made.path, tmp_path / "crashed", ignore=shutil.ignore_patterns("*.sock"))
    finally:
        made.stop()
    made.path = tmp_path / "crashed"
    assert numbers(reader(made.options("folder"))) == list(range(41))
    assert numbers(reader(made.options("folder", seal=True))) == list(range(42))


@both
def test_a_range_that_was_dropped_is_refused(tmp_path: Path, kind: str) -> None:
    made = Stored(tmp_path / "quiver")
    try:
        cursor = made.quiver.cursor("stats")
        planned = cursor.plan(max_events=20)
        assert planned is not None
        cursor.commit(planned, outcome=Outcome.DROPPED, reason="no room")
        wait_for(lambda: len(made.quiver.segments()) == 2 or None)
        with pytest.raises(UnknownPosition, match="begins at bundle 1, and what is left begins at"):
            reader(made.options(kind, since_seq=1)).partitions()
        assert numbers(reader(made.options(kind, since_seq=2))) == list(range(20, 40))
    finally:
        made.stop()


def test_two_quivers_are_read_as_one(stored: Stored, tmp_path: Path) -> None:
    with Quiver.open(tmp_path / "other", CONFIG) as quiver:
        quiver.append(pa.record_batch({"number": [0.5], "more": ["x"]}))
        quiver.flush()
    options = {**stored.options("server", path=tmp_path / "other"), "columns": "number,more,key"}
    table = rows(reader(options))
    assert table.schema.names == ["number", "more", "key"]
    assert sorted(table.column("number").to_pylist()) == sorted([*map(float, range(40)), 0.5])
    assert [row for row in table.to_pylist() if row["more"]] == [
        {"number": 0.5, "more": "x", "key": None}
    ]
    with pytest.raises(BadInput, match="no column nothing"):
        reader({**options, "columns": "nothing"})


def test_what_makes_no_sense_is_said(stored: Stored, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="numbers of its own"):
        reader(stored.options("server", path=tmp_path, since_seq=0))
    parsed = parse_options(stored.options("folder", subscriber="s", since_seq=0))
    with pytest.raises(BadConfig, match="are of a batch"):
        StreamReader(parsed, from_arrow_schema(stored_schema(parsed)))


# -------------------------------------------------------------------- stored, as a stream


def replayed(stored: Stored, kind: str, checkpoint: Path, **options: Any) -> Driver:
    given = stored.options(kind, stored=True, watermark=True, max_delay="5s", **options)
    driver = Driver(given.pop("path", ""), checkpoint, **given)
    driver.reader.prepareForTriggerAvailableNow()
    return driver


@both
def test_what_is_stored_is_a_stream_without_a_subscriber(
    stored: Stored, kind: str, tmp_path: Path
) -> None:
    before = stored.quiver.subscribers()
    driver = replayed(stored, kind, tmp_path / "c", close=True)
    first = driver.next(max_rows=15)
    assert stream_numbers(first) == list(range(10))
    assert first is not None
    assert first.column("_wm")[0].as_py() == at(10)  # the earliest of what is left
    planned = driver.plan(max_rows=20)
    assert planned == 1
    rows = driver.run(1)
    assert stream_numbers(rows) == list(range(10, 30))
    driver.stop()
    again = replayed(stored, kind, tmp_path / "c", close=True)
    assert again.run(1).equals(rows)
    again.finish(1)
    assert stream_numbers(again.next())[:10] == list(range(30, 40))
    assert again.next() is not None  # the end of time
    assert again.offset()["claim_us"] == END_OF_TIME_US
    assert again.next() is None
    again.stop()
    assert stored.quiver.subscribers() == before


@both
def test_a_range_of_what_is_stored_is_a_stream(stored: Stored, kind: str, tmp_path: Path) -> None:
    driver = replayed(stored, kind, tmp_path / "c", since_seq=1, until_seq=3)
    assert [stream_numbers(rows) for rows in iter(driver.next, None)] == [list(range(10, 30))]
    driver.stop()
    timed = {"since": at(15).isoformat(), "until": at(21).isoformat()}
    driver = replayed(stored, kind, tmp_path / "d", **timed)
    assert [stream_numbers(rows) for rows in iter(driver.next, None)] == [list(range(15, 21))]
    driver.stop()
