"""Reading what changed: rows that fit go on, the others are left in a file, or named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from tests.dataflow.driver import Driver
from tests.dataflow.quivers import CONFIG, at
from tests.dataflow.source.drifting import append, bundle, driver, ids, staged

from holdfast.dataflow.source.options import parse_options
from holdfast.dataflow.source.partitions import SourcePartition
from holdfast.dataflow.source.quiver_location import connect
from holdfast.dataflow.source.rejected_stage import RejectedFileName
from holdfast.dataflow.source.schema import stored_schema
from holdfast.dataflow.source.stored import BatchReader
from holdfast.dataflow.source.stream import StreamReader
from holdfast.errors import BadConfig, BadInput
from holdfast.quiver import Quiver
from holdfast.remote import FlightSettings, QuiverServer

NUMBERS = pa.array([1, 2], pa.int64())
WORDS = pa.array(["3", "many", "5"])


def begun(folder: Path, **options: Any) -> Driver:
    """Return a driver whose query began with numbers, which it has read."""
    append(folder / "q", bundle(0, NUMBERS))
    made = driver(folder, **options)
    assert ids(made.next()) == [0, 1]
    made.stop()
    return made


def file_rows(path: Path) -> list[dict[str, Any]]:
    with pa.ipc.open_file(path) as reader:
        rows: list[dict[str, Any]] = reader.read_all().to_pylist()
        return rows


@pytest.mark.parametrize("seal_each", [True, False], ids=["own segments", "one segment"])
def test_rows_that_fit_go_on_and_the_others_are_staged(tmp_path: Path, seal_each: bool) -> None:
    begun(tmp_path)
    quiver_id = append(
        tmp_path / "q",
        bundle(2, NUMBERS),
        bundle(4, WORDS),
        bundle(7, pa.array([{"x": 1}, None])),
        bundle(9, NUMBERS),
        seal_each=seal_each,
    )
    again = driver(tmp_path)
    planned = again.plan()
    assert planned is not None
    rows = again.run(planned)
    assert ids(rows) == [2, 3, 4, 6, 8, 9, 10]
    assert rows.sort_by("id").column("n").to_pylist() == [1, 2, 3, 5, None, 1, 2]
    again.reader.stop()
    found = [row for path in staged(tmp_path) for row in file_rows(path)]
    assert {RejectedFileName.parse(path.name).quiver_id for path in staged(tmp_path)} == {quiver_id}
    first, second = found
    assert (first["_seq"], first["_row"], first["event_time"]) == (2, 1, at(5))
    assert (first["vertex"], first["attempts"]) == ("events", 0)
    assert first["error"].startswith("events: row 1 of bundle 2: column 'n' is string there ")
    assert "column 'n' is string there and int64 in the query" in first["error"]
    assert json.loads(first["row"])["n"] == "many"
    assert "column 'n' is struct<x: int64> there" in second["error"]
    with pa.ipc.open_stream(second["payload"]) as stream:
        assert stream.read_all().to_pylist() == [{"at": at(7), "id": 7, "n": {"x": 1}}]


def test_a_segment_without_common_types_is_read_as_far_as_it_fits(tmp_path: Path) -> None:
    """The rows before the bundle that cannot be read with the others have gone on already."""
    doubles, huge = pa.array([1.5, 2.5]), pa.array([2**60 + 1, 4], pa.int64())
    append(tmp_path / "q", bundle(0, doubles))
    driver(tmp_path)
    append(tmp_path / "q", bundle(2, doubles), bundle(4, huge), bundle(6, doubles))
    made = driver(tmp_path)
    assert ids(made.next()) == [0, 1, 2, 3, 5, 6, 7]
    made.stop()


def test_a_struct_that_changed_and_columns_that_come_and_go(tmp_path: Path) -> None:
    append(tmp_path / "q", bundle(0, pa.array([{"x": 1, "y": 1}])))
    driver(tmp_path)
    gone = bundle(1, NUMBERS).drop_columns(["n"])
    more = bundle(3, pa.array([{"y": 2, "z": 3}])).append_column("new", pa.array(["!"]))
    append(tmp_path / "q", gone, more, bundle(4, pa.array([{"x": "much"}, {"x": "7"}])))
    made = driver(tmp_path)
    rows = made.next()
    assert rows is not None
    assert rows.sort_by("id").column("n").to_pylist() == [
        {"x": 1, "y": 1}, None, None, {"x": None, "y": 2}, {"x": 7, "y": None},
    ]  # fmt: skip
    made.stop()


def test_times_are_asked_for_here_too(tmp_path: Path) -> None:
    begun(tmp_path)
    append(tmp_path / "q", bundle(2, NUMBERS), bundle(4, WORDS))
    bounds = {"since": at(3).isoformat(), "until": at(6).isoformat()}
    made = driver(tmp_path, **bounds)
    assert ids(made.next()) == [3, 4]
    assert [row["_row"] for path in staged(tmp_path) for row in file_rows(path)] == [1]
    made.stop()


# --------------------------------------------------------------------------------- files


def parts(made: Driver) -> Iterator[SourcePartition]:
    planned = made.plan()
    assert planned is not None
    start = made._offset(planned - 1)
    for part in made.reader.partitions(start, made.offset()):
        assert isinstance(part, SourcePartition)
        yield part


def test_who_reads_the_same_rows_again_leaves_the_same_file(tmp_path: Path) -> None:
    begun(tmp_path)
    append(tmp_path / "q", bundle(2, WORDS))
    made = driver(tmp_path)
    (part,) = parts(made)
    contents = []
    for _ in range(2):
        list(made.reader.read(part))
        (path,) = staged(tmp_path)
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]
    made.reader.stop()


def test_a_file_is_there_as_a_whole_or_not(tmp_path: Path) -> None:
    begun(tmp_path)
    append(tmp_path / "q", bundle(2, WORDS), bundle(5, NUMBERS))
    made = driver(tmp_path)
    (part,) = parts(made)
    reading = made.reader.read(part)
    next(reading)
    assert isinstance(reading, Iterator)
    reading.close()  # type: ignore[attr-defined]
    assert staged(tmp_path) == []
    # What a task leaves that is killed goes when the next driver begins.
    half = tmp_path / "checkpoint" / "holdfast" / "unfit" / "stats" / "x.arrow.1.new"
    half.touch()
    made.reader.stop()
    again = driver(tmp_path)
    list(parts(again))
    assert staged(tmp_path) == []
    again.reader.stop()


def test_a_file_goes_when_its_rows_fit_after_all(tmp_path: Path) -> None:
    begun(tmp_path)
    append(tmp_path / "q", bundle(2, WORDS))
    made = driver(tmp_path)
    (part,) = parts(made)
    list(made.reader.read(part))
    assert len(staged(tmp_path)) == 1
    texts = made.schema.set(made.schema.get_field_index("n"), pa.field("n", pa.string()))
    wider = StreamReader(made.options, from_arrow_schema(texts))
    rows = pa.Table.from_batches(list(wider.read(part)))
    assert rows.column("n").to_pylist() == ["3", "many", "5"]
    assert staged(tmp_path) == []
    made.reader.stop()


def test_a_task_that_does_not_see_the_folder_says_so(tmp_path: Path) -> None:
    begun(tmp_path)
    append(tmp_path / "q", bundle(2, WORDS))
    made = driver(tmp_path)
    (part,) = parts(made)
    (tmp_path / "checkpoint" / "holdfast" / "unfit" / "stats").rmdir()
    with pytest.raises(BadInput, match=r"have to share the storage of the checkpoint"):
        list(made.reader.read(part))
    made.reader.stop()


def test_rows_that_are_large_or_strange_are_letters_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.dataflow.source.rejected_stage.PAYLOAD_BYTES_MAX", 2000)
    begun(tmp_path)
    far = pa.array([2**62] * 3, pa.timestamp("us"))
    word = pa.array(["a", "b", "c" * 2000])
    view = pa.array(["a", "b", "c"], pa.string_view())
    rows = bundle(2, word.dictionary_encode()).append_column("far", far).append_column("view", view)
    append(tmp_path / "q", rows)
    made = driver(tmp_path)
    assert made.next() is not None
    found = [row for path in staged(tmp_path) for row in file_rows(path)]
    shown = json.loads(found[1]["row"])
    assert (shown["id"], shown["n"], shown["far"]) == (3, "b", "(timestamp[us])")
    with pa.ipc.open_stream(found[1]["payload"]) as stream:
        kept = stream.read_all()
    # Alone: without the dictionary of its neighbours.
    assert (kept["n"].to_pylist(), kept["view"].to_pylist(), kept["far"][0].value) == (
        ["b"], ["b"], 2**62,
    )  # fmt: skip
    assert found[2]["payload"] is None
    made.stop()


# -------------------------------------------------------------------------------- errors


def test_without_a_place_for_them_they_are_an_error_that_names_the_row(tmp_path: Path) -> None:
    begun(tmp_path)
    quiver_id = append(tmp_path / "q", bundle(2, NUMBERS), bundle(4, WORDS))
    options = parse_options({"path": str(tmp_path / "q"), "columns": "id,n"})
    wanted = from_arrow_schema(pa.schema([("id", pa.int64()), ("n", pa.int64())]))
    reader = BatchReader(options, wanted)
    (part,) = reader.partitions()
    with pytest.raises(BadInput) as raised:
        list(reader.read(part))
    told = str(raised.value)
    segments = sorted(p.name for p in (tmp_path / "q" / "segments").iterdir())
    assert "row 1 of bundle 2: column 'n' is string there" in told
    assert f"[quiver {quiver_id}, segment {segments[-1]}, {tmp_path / 'q'}]" in told
    assert "column 'n' is string there and int64 in the query" in told
    assert "'many'" in told
    assert "option unfit" in told


def test_a_place_for_them_is_of_a_stream_with_a_checkpoint(tmp_path: Path) -> None:
    append(tmp_path / "q", bundle(0, NUMBERS))
    given = {"path": str(tmp_path / "q"), "unfit": str(tmp_path / "letters"), "subscriber": "s"}
    schema = from_arrow_schema(stored_schema(parse_options(given)))
    for checkpoint in ("", "s3a://bucket/checkpoint"):
        with pytest.raises(BadConfig, match="with option checkpoint, a local or mounted folder"):
            StreamReader(parse_options({**given, "checkpoint": checkpoint}), schema)
    with pytest.raises(BadConfig, match="leave out option unfit"):
        BatchReader(parse_options(given), schema)


# ---------------------------------------------------------------------------- elsewhere


def test_it_is_the_same_over_flight(tmp_path: Path) -> None:
    """A server cannot send rows without common types as one stream either."""
    connect.cache_clear()
    with Quiver.open(tmp_path / "q", CONFIG) as quiver:
        quiver.append(bundle(0, NUMBERS))
        quiver.flush()
        with QuiverServer({"main": quiver}, FlightSettings(listen="127.0.0.1:0")) as server:
            where = {"path": "", "quiver": f"{server.location}/main", "local_reads": "false"}
            made = driver(tmp_path, **where)
            assert ids(made.next()) == [0, 1]
            for rows in (bundle(2, NUMBERS), bundle(4, WORDS), bundle(7, pa.array([2.5, 2.0]))):
                quiver.append(rows)
            quiver.flush()
            assert ids(made.next()) == [2, 3, 4, 6, 8]
            made.stop()
            assert driver(tmp_path, **where).schema.field("n").type == pa.int64()
