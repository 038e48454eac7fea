"""Sinks: a batch counts once, also when it is run again, and never with other rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.datasource import DataSourceStreamArrowWriter
from tests.dataflow.driver import QUERY_ID, Driver
from tests.dataflow.quivers import CONFIG, batch, fill

from holdfast.dataflow.base import durable_file
from holdfast.dataflow.base.json_rows import as_json
from holdfast.dataflow.sink import files_writer
from holdfast.dataflow.sink.files_writer import FilesWriter
from holdfast.dataflow.sink.options import parse_sink_options
from holdfast.dataflow.sink.quiver_writer import QuiverWriter, producer_name
from holdfast.dataflow.sink.records import KEPT_MAX, BatchRecord, BatchRecords
from holdfast.dataflow.sink.writers import BatchWriter
from holdfast.dataflow.source.checkpoint import Checkpoint
from holdfast.errors import BadConfig, UnknownPosition
from holdfast.quiver import ProducerConfig, Quiver

FORGETFUL = replace(CONFIG, producers=ProducerConfig(max_count=1))
WRITERS = ["quiver", "files"]


class Sink:
    """A writer on a checkpoint folder whose offset log the test writes."""

    def __init__(self, kind: str, root: Path, **options: Any) -> None:
        self.kind, self.root = kind, root
        self.checkpoint = root / "checkpoint"
        (self.checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": QUERY_ID}))
        place = {"path": root / "out"} if kind == "quiver" else {"files": root / "out"}
        config = {"quiver_config": "tests.dataflow.quivers:CONFIG"}
        given = {**place, **config, "checkpointLocation": self.checkpoint, **options}
        self.options = parse_sink_options({name: str(value) for name, value in given.items()})

    def writer(self) -> DataSourceStreamArrowWriter:
        """Return a writer as a new process would have it."""
        return QuiverWriter(self.options) if self.kind == "quiver" else FilesWriter(self.options)

    def plan(self, number: int, end: int) -> None:
        """Write the offsets of a batch, as Spark does before it runs it."""
        head = {"batchTimestampMs": number, "batchWatermarkMs": 1000 * number}
        text = f"v1\n{json.dumps(head)}\n{json.dumps({'end': end})}"
        (self.checkpoint / "offsets" / str(number)).write_text(text)

    def write(self, number: int, *tasks: list[int]) -> None:
        """Run the tasks of a batch, and commit it."""
        self.writer().commit([self.writer().write(rows(numbers)) for numbers in tasks], number)

    def quiver_records(self) -> BatchRecords:
        """Return the batch records of a quiver sink."""
        folder = self.checkpoint / "holdfast"
        return BatchRecords(folder, f"quiver-{QUERY_ID}", Checkpoint(str(self.checkpoint)))

    def contents(self) -> list[int]:
        """Return what is in the sink."""
        out = self.root / "out"
        if self.kind == "files":
            tables = [pq.read_table(path) for path in sorted(out.glob("part-*.parquet"))]
            return sorted(n for table in tables for n in table.column("number").to_pylist())
        with Quiver.open(out, CONFIG) as quiver:
            stored = quiver.scan(["number"], slot="events").read_all()
            return sorted(stored.column("number").to_pylist())


def rows(numbers: list[int]) -> Iterator[pa.RecordBatch]:
    return iter([batch([(float(number), "k", number) for number in numbers])])


@pytest.fixture(params=WRITERS)
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Sink:
    return Sink(request.param, tmp_path)


def test_a_batch_that_is_run_again_changes_nothing(sink: Sink) -> None:
    sink.plan(0, 10)
    sink.write(0, [1, 2], [], [3])
    sink.write(0, [1], [2, 3])  # other tasks, the same rows
    assert sink.contents() == [1, 2, 3]
    sink.plan(1, 20)
    sink.write(1, [4])
    sink.write(1, [4])
    assert sink.contents() == [1, 2, 3, 4]


def test_the_same_number_with_another_range_is_refused(sink: Sink) -> None:
    sink.plan(0, 10)
    sink.write(0, [1, 2])
    sink.plan(0, 15)  # the offset log lost its tail, and more had come
    with pytest.raises(UnknownPosition, match="another range"):
        sink.write(0, [1, 2, 3])
    assert sink.contents() == [1, 2]


def test_a_batch_from_before_what_is_there_is_refused(sink: Sink) -> None:
    for number in range(3):
        sink.plan(number, 10 * number)
        sink.write(number, [number])
    sink.plan(1, 11)
    with pytest.raises(UnknownPosition, match="another range"):
        sink.write(1, [1])
    assert sink.contents() == [0, 1, 2]


def test_an_empty_batch_is_nothing(sink: Sink) -> None:
    sink.plan(0, 10)
    sink.write(0, [], [])
    sink.plan(1, 20)
    sink.write(1, [7])
    assert sink.contents() == [7]


def test_a_driver_that_died_before_publishing_loses_nothing(sink: Sink) -> None:
    sink.plan(0, 10)
    sink.writer().write(rows([1, 2]))  # staged, and never committed
    sink.write(0, [1, 2])
    assert sink.contents() == [1, 2]


def test_files_of_a_batch_that_was_half_published_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_writer, "ONE_FILE_BYTES", 0)
    sink = Sink("files", tmp_path)
    sink.plan(0, 10)
    sink.write(0, [1], [2])
    for record in (tmp_path / "out" / "_holdfast").glob("*.json"):
        record.unlink()  # it died before the record, and after some renames
    (next((tmp_path / "out").glob("*-000-00001.parquet"))).unlink()
    sink.write(0, [1, 2])
    assert sink.contents() == [1, 2]


def test_a_crash_between_record_and_append_is_made_good(tmp_path: Path) -> None:
    sink = Sink("quiver", tmp_path)
    sink.plan(0, 10)
    records = sink.quiver_records()
    records.record(0, BatchRecord([[], [{"end": 10}]], is_sure=False))
    sink.write(0, [1, 2])
    assert sink.contents() == [1, 2]


def test_a_range_that_was_recorded_and_not_appended_may_become_another(tmp_path: Path) -> None:
    sink = Sink("quiver", tmp_path)
    records = sink.quiver_records()
    records.record(0, BatchRecord([[], [{"end": 10}]], is_sure=False))
    sink.plan(0, 15)
    sink.write(0, [1, 2, 3])
    sink.write(0, [1, 2, 3])
    assert sink.contents() == [1, 2, 3]


def test_a_batch_that_the_quiver_has_forgotten_is_not_appended_again(tmp_path: Path) -> None:
    sink = Sink("quiver", tmp_path, quiver_config="tests.dataflow.test_sinks:FORGETFUL")
    sink.plan(0, 10)
    sink.write(0, [1])
    with Quiver.open(tmp_path / "out", FORGETFUL) as quiver:
        quiver.append(batch([(2.0, "k", 2)]), producer="another", epoch=1)
        again = quiver.append(batch([(3.0, "k", 3)]), producer=producer_name(QUERY_ID), epoch=1)
        assert not again.duplicate
    sink.write(0, [1])
    assert sink.contents() == [1, 2, 3]


def test_records_that_are_gone_cannot_lose_rows(tmp_path: Path) -> None:
    sink = Sink("quiver", tmp_path)
    sink.plan(0, 10)
    sink.write(0, [1])
    for record in (sink.checkpoint / "holdfast").glob("*.json"):
        record.unlink()
    for _ in range(2):
        with pytest.raises(UnknownPosition, match="another range"):
            sink.write(0, [1, 2])
    assert sink.contents() == [1]


def test_what_is_large_is_staged_and_removed(tmp_path: Path) -> None:
    sink = Sink("quiver", tmp_path, inline_bytes="1")
    sink.plan(0, 10)
    staged = sink.writer().write(rows([1, 2]))
    left = sink.writer().write(rows([3]))
    staging = sink.checkpoint / "holdfast" / "staging"
    assert len(list(staging.iterdir())) == 2
    sink.writer().commit([staged], 0)
    sink.writer().abort([left, None], 0)
    assert list(staging.iterdir()) == []
    assert sink.contents() == [1, 2]


@pytest.mark.parametrize(
    ("kind", "own"), [("files", "out/_holdfast"), ("quiver", "checkpoint/holdfast")]
)
def test_old_staged_files_are_swept(
    kind: str, own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Sink(kind, tmp_path, inline_bytes="1")
    sink.plan(0, 10)
    sink.writer().write(rows([1]))
    monkeypatch.setattr(durable_file, "STALE_AFTER_S", -60.0)
    sink.write(0, [2])
    assert list((tmp_path / own / "staging").iterdir()) == []
    assert sink.contents() == [2]


def test_the_quiver_knows_who_wrote(tmp_path: Path) -> None:
    sink = Sink("quiver", tmp_path)
    sink.plan(0, 10)
    sink.write(0, [1])
    with Quiver.open(tmp_path / "out", CONFIG) as quiver:
        bundle = quiver.bundle(0)
        assert bundle is not None
        assert (bundle.producer, bundle.epoch) == (producer_name(QUERY_ID), 1)


def test_the_watermark_of_a_query_is_told_with_and_without_rows(tmp_path: Path) -> None:
    sink = Sink("quiver", tmp_path, watermark="true")
    for number, tasks in enumerate([[[1]], [[2]], []]):
        sink.plan(number, number)
        sink.write(number, *tasks)
        sink.write(number, *tasks)
    with Quiver.open(tmp_path / "out", CONFIG) as quiver:
        told = quiver.statement().producer_watermarks
        assert told == {producer_name(QUERY_ID): 2_000_000_000}
        assert quiver.statistics().accepted_bundles == 4
    assert sink.contents() == [1, 2]


def test_records_are_bounded(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    records = BatchRecords(tmp_path, "query", checkpoint)
    for number in range(KEPT_MAX + 5):
        records.record(number, BatchRecord([[], [{"end": number}]]))
    again = BatchRecords(tmp_path, "query", checkpoint)
    assert (again.of(4), again.last()) == (None, KEPT_MAX + 4)
    assert again.judge(KEPT_MAX, [[], [{"end": KEPT_MAX}]]) == "again"
    with pytest.raises(UnknownPosition):
        again.judge(4, [[], [{"end": 4}]])


@pytest.mark.parametrize(
    "options",
    [{"path": "a"}, {"checkpoint": "c"}, {"path": "a", "files": "b", "checkpoint": "c"},
     {"path": "a", "checkpoint": "c", "slots": "x"}],
)  # fmt: skip
def test_wrong_options_are_told(options: dict[str, str]) -> None:
    with pytest.raises(BadConfig):
        parse_sink_options(options)


def test_a_sink_that_cannot_see_its_checkpoint_says_so(tmp_path: Path) -> None:
    sink = Sink("files", tmp_path)
    (sink.checkpoint / "metadata").unlink()
    with pytest.raises(UnknownPosition, match="local or mounted"):
        sink.write(0, [1])


def test_inside_foreach_batch_a_batch_counts_once_per_sink(tmp_path: Path) -> None:
    sink = Sink("quiver", tmp_path)
    sink.plan(0, 10)
    for name in ("one", "two", "one", "two"):
        options = sink.options.model_copy(update={"name": name, "batch": 0})
        writer = BatchWriter(QuiverWriter(options), options)
        left = writer.write(rows([5]))
        writer.commit([writer.write(rows([1, 2])), None])
        writer.abort([left])
    assert sink.contents() == [1, 1, 2, 2]
    with pytest.raises(BadConfig, match="without its number"):
        BatchWriter(QuiverWriter(sink.options), sink.options)


# ------------------------------------------------------------------------- trimmed


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("acknowledged", [False, True])
def test_a_query_without_state_goes_on_behind_what_its_sink_has(
    kind: str, acknowledged: bool, tmp_path: Path
) -> None:
    """The offsets of the last batch are lost, with or without its acknowledgement."""
    store, sink = tmp_path / "quiver", Sink(kind, tmp_path)
    fill(store, [(1.0, "k", 1)], [(2.0, "k", 2)])
    records = sink.checkpoint / "holdfast" if kind == "quiver" else tmp_path / "out" / "_holdfast"
    options = {"on_rewind": "trim", "records": records}

    def run(driver: Driver, max_rows: int) -> None:
        planned = driver.plan(max_rows)
        assert planned is not None
        sink.write(planned, driver.run(planned).column("number").to_pylist())
        driver.finish(planned)

    driver = Driver(str(store), sink.checkpoint, **options)
    run(driver, 1)
    run(driver, 1)
    if not acknowledged:
        (sink.checkpoint / "commits" / "1").unlink()
    driver.stop()
    for log in ("offsets", "commits"):
        (sink.checkpoint / log / "1").unlink(missing_ok=True)
    fill(store, [(3.0, "k", 3)], [(4.0, "k", 4)])
    again = Driver(str(store), sink.checkpoint, **options)
    run(again, 1)
    again.stop()
    more = Driver(str(store), sink.checkpoint, **options)
    run(more, 10)
    more.stop()
    assert sink.contents() == [1, 2, 3, 4]
    sink.write(1, [3])  # the part that was added to it, once more
    assert sink.contents() == [1, 2, 3, 4]


def test_without_the_source_s_note_nothing_is_taken_for_more(tmp_path: Path) -> None:
    store, sink = tmp_path / "quiver", Sink("files", tmp_path)
    fill(store, [(1.0, "k", 1)], [(2.0, "k", 2)])
    driver = Driver(str(store), sink.checkpoint)
    assert driver.plan(1) == 0
    sink.write(0, [1])
    (sink.checkpoint / "offsets" / "0").unlink()
    assert driver.plan(10) == 0
    with pytest.raises(UnknownPosition, match="another range"):
        sink.write(0, driver.run(0).column("number").to_pylist())
    driver.stop()
    assert sink.contents() == [1]


# --------------------------------------------------------------------------------- JSON


def test_rows_are_kept_as_json_like_events_of_a_gateway(tmp_path: Path) -> None:
    sink = Sink("quiver", tmp_path, encode="json")
    for _ in range(2):
        sink.plan(0, 10)
        sink.write(0, [1, 2], [3])
    with Quiver.open(tmp_path / "out", CONFIG) as quiver:
        stored = quiver.scan(["payload"], slot="events").read_all().column("payload").to_pylist()
    assert [json.loads(payload) for payload in stored] == [
        {"at": f"2026-05-01T10:00:0{n}Z", "key": "k", "number": n} for n in (1, 2, 3)
    ]


def test_what_json_has_no_word_for_becomes_text() -> None:
    odd = {
        "blob": [b"\xff"],
        "word": [b"ok"],
        "money": [Decimal("1.50")],
        "day": [date(2026, 5, 1)],
    }
    rows = pa.record_batch(
        {**odd, "pairs": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8()))}
    )
    (payload,) = as_json(rows).column("payload").to_pylist()
    assert json.loads(payload) == {
        "blob": "/w==", "word": "ok", "money": "1.50", "day": "2026-05-01", "pairs": {"a": 1},
    }  # fmt: skip
