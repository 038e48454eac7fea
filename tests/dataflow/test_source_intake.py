"""Files and made-up rows: each taken in once, whatever dies in between; bad lines are kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.dataflow.quivers import at
from tests.dataflow.test_stream_reader import wait_for

from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.compiler.plan import make_plan
from holdfast.dataflow.driver import own_quivers
from holdfast.dataflow.driver.own_quivers import Intakes
from holdfast.dataflow.source import intake
from holdfast.dataflow.source.intake import FilesIntake, GeneratorIntake, IntakeNote
from holdfast.dataflow.spec import Pipeline
from holdfast.dataflow.spec.vertices import SourceSettings
from holdfast.errors import BadInput
from holdfast.quiver import ColumnExtractor, Quiver, QuiverConfig
from holdfast.remote import RemoteQuiver

SCHEMA = pa.schema([("at", pa.timestamp("us", tz="UTC")), ("key", pa.string()), ("n", pa.int64())])
CONFIG = QuiverConfig(extractors={"events": ColumnExtractor("at")})


class Died(Exception):
    """The driver died here."""


class World:
    """A folder that files come to, and drivers that die."""

    def __init__(self, root: Path) -> None:
        self.incoming, self.state = root / "incoming", root / "state"
        self.incoming.mkdir()

    def put(self, name: str, *lines: object) -> None:
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        fresh = self.incoming / f".{name}"
        fresh.write_text("".join(f"{text}\n" for text in texts))
        fresh.rename(self.incoming / name)

    def take(self, kind: str = "ndjson", should_stop: Callable[[], bool] = lambda: False) -> int:
        with (
            Quiver.open(self.state / "rows", CONFIG) as rows,
            Quiver.open(self.state / "rejected") as rejected,
        ):
            made = FilesIntake(self.state, rows, rejected, self.incoming, kind, "at", SCHEMA)
            return made.take(should_stop)

    def numbers(self) -> list[int]:
        with Quiver.open(self.state / "rows", CONFIG) as quiver:
            found: list[int] = quiver.scan(["n"], slot="events").read_all().column("n").to_pylist()
        return found

    def rejected(self) -> list[tuple[bytes, dict[str, str]]]:
        with Quiver.open(self.state / "rejected") as quiver:
            table = quiver.scan(["payload", "headers"], slot="events").read_all()
        return [(row["payload"], json.loads(row["headers"])) for row in table.to_pylist()]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def small_bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "BUNDLE_ROWS", 2)


def row(n: int) -> dict[str, Any]:
    return {"at": at(n).isoformat(), "key": "k", "n": n}


def test_files_are_taken_once_in_order_and_with_their_times(world: World) -> None:
    world.put("b.ndjson", row(3), row(4))
    world.put("a.ndjson", row(1), "", row(2))
    world.put("_hidden.ndjson", row(9))
    world.put("other.txt", row(9))
    assert world.take() == 4
    assert world.take() == 0
    world.put("0.jsonl", row(5))
    assert world.take() == 1
    assert world.numbers() == [1, 2, 3, 4, 5]
    with Quiver.open(world.state / "rows", CONFIG) as quiver:
        times = quiver.scan(["_event_time"], slot="events").read_all().column(0).to_pylist()
    assert times == [at(n) for n in range(1, 6)]
    assert world.rejected() == []


def test_parquet_files_are_taken_too(world: World, small_bundles: None) -> None:
    table = pa.Table.from_pylist([{"at": at(n), "key": "k", "n": n} for n in range(5)], SCHEMA)
    pq.write_table(table, world.incoming / "a.parquet")
    (world.incoming / "b.parquet").write_bytes(b"not one")
    pq.write_table(table.slice(4), world.incoming / "c.parquet")
    assert world.take("parquet") == 6
    assert world.numbers() == [0, 1, 2, 3, 4, 4]
    ((payload, headers),) = world.rejected()
    assert payload.endswith(b"b.parquet")
    assert "no Parquet file" in headers["error"]


def test_lines_that_are_no_rows_are_kept_with_their_place(world: World) -> None:
    lines = [row(1), "{broken", "[1]", {**row(2), "n": "two"}, {**row(3), "at": "soon"}, row(4)]
    world.put("a.ndjson", *lines)
    assert world.take() == 2
    assert world.numbers() == [1, 4]
    told = world.rejected()
    assert [payload.strip().decode()[:7] for payload, _ in told] == [
        "{broken", "[1]", json.dumps(lines[3])[:7], json.dumps(lines[4])[:7],
    ]  # fmt: skip
    text = (world.incoming / "a.ndjson").read_bytes()
    for payload, headers in told:
        offset = int(headers["offset"])
        assert text[offset : offset + len(payload)] == payload
        assert headers["file"].endswith("a.ndjson")
        assert headers["error"]


@pytest.mark.parametrize("dies_at", range(12))
def test_a_driver_that_dies_anywhere_takes_every_row_once(
    world: World, small_bundles: None, monkeypatch: pytest.MonkeyPatch, dies_at: int
) -> None:
    """It dies after an append, or after a note; meanwhile a file comes that sorts first."""
    world.put("b.ndjson", row(1), row(2), "no", row(3))
    world.put("c.ndjson", row(4))
    left = [dies_at]
    append, write, finish = Quiver.append, IntakeNote.write, FilesIntake._finish

    def dying(work: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*given: Any, **named: Any) -> Any:
            done = work(*given, **named)
            left[0] -= 1
            if left[0] == 0:
                raise Died
            return done

        return wrapped

    with monkeypatch.context() as patch:
        patch.setattr(Quiver, "append", dying(append))
        patch.setattr(IntakeNote, "write", dying(write))
        patch.setattr(FilesIntake, "_finish", dying(finish))
        try:
            world.take()
        except Died:
            world.put("a.ndjson", row(5))
    world.take()
    expected = [1, 2, 3, 4, 5] if (world.incoming / "a.ndjson").exists() else [1, 2, 3, 4]
    assert sorted(world.numbers()) == expected
    assert [payload for payload, _ in world.rejected()] == [b"no\n"]


def test_a_file_may_be_taken_away_and_a_folder_may_be_missing(
    world: World, small_bundles: None
) -> None:
    world.put("a.ndjson", row(1), row(2), row(3), row(4))
    stops = iter([False, True])
    assert world.take(should_stop=lambda: next(stops)) == 2
    (world.incoming / "a.ndjson").unlink()
    world.put("b.ndjson", row(5))
    assert world.take() == 1
    assert world.numbers() == [1, 2, 5]
    (world.incoming / "b.ndjson").unlink()
    world.incoming.rmdir()
    with pytest.raises(BadInput, match="no folder"):
        world.take()


def test_a_generator_makes_what_is_due_and_goes_on_where_it_was(tmp_path: Path) -> None:
    def made(rows: int | None, rows_per_s: float = 1000.0) -> int:
        config = QuiverConfig(extractors={"events": ColumnExtractor("event_time")})
        with Quiver.open(tmp_path / "rows", config) as quiver:
            generator = GeneratorIntake(tmp_path, quiver, rows_per_s, 3, rows)
            return generator.take(lambda: False)

    assert made(5) == 5
    assert made(5) == 0
    assert made(7) == 2
    with Quiver.open(tmp_path / "rows") as quiver:
        table = quiver.scan(["number", "key", "_event_time"], slot="events").read_all()
    assert table.column("number").to_pylist() == list(range(7))
    assert table.column("key").to_pylist()[:4] == ["key-0", "key-1", "key-2", "key-0"]
    times = table.column("_event_time").to_pylist()
    assert [(b - a).microseconds for a, b in pairwise(times)] == [1000] * 6


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "give one of quiver, files, fileset, generator"),
        ({"quiver": "q", "files": "f"}, "not quiver and files"),
        ({"files": "f"}, "need `columns_are`"),
        ({"files": "f", "columns_are": "n int", "decode": "openlineage"}, "are of quivers"),
        ({"files": "f", "columns_are": "n int", "format": "csv"}, "'ndjson' or 'parquet'"),
        ({"generator": {"rows_per_s": 0}}, "greater than 0"),
        ({"generator": {"keys": 0}}, "greater than or equal to 1"),
    ],
)
def test_a_source_that_makes_no_sense_is_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        SourceSettings.model_validate(settings)


# ------------------------------------------------------------------- of a whole pipeline


def test_what_comes_is_taken_in_and_served_until_the_driver_ends(tmp_path: Path) -> None:
    pipeline = Pipeline().source("made", generator={"rows_per_s": 1000, "rows": 30}).sink(files="o")
    plan = make_plan("made", pipeline.settings)
    places = Places(tmp_path / "state", tmp_path)

    def is_all(intakes: Intakes, expected: int) -> bool | None:
        location, _, name = intakes.addresses["made"].rpartition("/")
        with RemoteQuiver.open(location, name) as remote:
            is_there = remote.statement().max_event_us is not None
        return (is_there and intakes.intakes["made"].rows_total == expected) or None

    for expected in (30, 0):  # a second driver has nothing left to do
        intakes = Intakes(plan, places)
        try:
            intakes.start()
            wait_for(partial(is_all, intakes, expected))
        finally:
            intakes.close()


def test_a_folder_that_is_not_there_is_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(own_quivers, "AFTER_ERROR_S", 0.01)
    world.incoming.rmdir()
    with (
        Quiver.open(world.state / "rows", CONFIG) as rows,
        Quiver.open(world.state / "rejected") as rejected,
    ):
        files = FilesIntake(world.state, rows, rejected, world.incoming, "ndjson", "at", SCHEMA)
        intakes = Intakes(make_plan("none", QUIVER_ONLY), Places(world.state, world.state))
        intakes.intakes["lines"] = files
        intakes.start()
        try:
            wait_for(lambda: "no folder to read files from" in caplog.text or None)
            world.incoming.mkdir()
            world.put("a.ndjson", row(1))
            wait_for(lambda: files.rows_total == 1 or None)
        finally:
            intakes.close()


QUIVER_ONLY = Pipeline().source(quiver="q").sink(files="o").settings
