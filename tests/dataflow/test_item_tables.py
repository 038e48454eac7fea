"""Tables of telemetry for Spark: batches and streams, from a folder and from a server."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from tests.dataflow.driver import Driver
from tests.dataflow.test_stream_reader import wait_for
from tests.signals.otlp.telemetry import NOW_NS, request

from holdfast.dataflow.source.options import parse_options
from holdfast.dataflow.source.quiver_location import connect
from holdfast.dataflow.source.schema import stored_schema
from holdfast.dataflow.source.stored import BatchReader
from holdfast.errors import BadConfig, BadInput, Damaged
from holdfast.quiver import Quiver, QuiverConfig, SegmentConfig
from holdfast.remote import FlightSettings, QuiverServer
from holdfast.signals.otap.from_otlp import otap_of
from holdfast.signals.otlp.flat.schema import TABLES
from holdfast.signals.otlp.flat.table import flat_table
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.registry import extractors, tables

CONFIG = QuiverConfig(
    extractors=extractors(), tables=tables(), segment=SegmentConfig(max_open_duration_s=3600.0)
)
NOW = datetime.fromtimestamp(NOW_NS / 1e9, UTC)


class Telemetry:
    """A quiver with requests in three segments, each of all kinds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.requests: dict[OtlpKind, list[bytes]] = {kind: [] for kind in OtlpKind}
        self.quiver = Quiver.open(path, CONFIG)
        chance = random.Random(3)
        for _ in range(3):
            for kind in OtlpKind:
                self.requests[kind].append(request(kind, chance, items=20))
                self.quiver.append_raw(self.requests[kind][-1], slot=kind.slot)
            self.quiver.flush()
        self.server = QuiverServer({"main": self.quiver}, FlightSettings(listen="127.0.0.1:0"))
        self.server.start()
        connect.cache_clear()

    def options(self, where: str, **options: Any) -> dict[str, str]:
        place = {"path": str(self.path)}
        if where == "server":
            place = {"quiver": f"{self.server.location}/main", "local_reads": "false"}
        return {**place, **{name: str(value) for name, value in options.items()}}

    def flat(self, kind: OtlpKind) -> pa.RecordBatch:
        return flat_table(kind, self.requests[kind])

    def stop(self) -> None:
        self.server.stop()
        self.quiver.close()


@pytest.fixture(scope="module")
def telemetry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Telemetry]:
    made = Telemetry(tmp_path_factory.mktemp("telemetry") / "quiver")
    yield made
    made.stop()


def read(options: dict[str, str]) -> pa.Table:
    parsed = parse_options(options)
    schema = stored_schema(parsed)
    reader = BatchReader(parsed, from_arrow_schema(schema))
    batches = [rows for part in reader.partitions() for rows in reader.read(part)]
    assert all(batch.schema.names == schema.names for batch in batches)
    return pa.Table.from_batches(batches, batches[0].schema if batches else schema)


@pytest.mark.parametrize("where", ["folder", "server"])
@pytest.mark.parametrize("kind", OtlpKind)
def test_a_batch_has_a_row_for_each_item(telemetry: Telemetry, where: str, kind: OtlpKind) -> None:
    found = read(telemetry.options(where, table=TABLES[kind]))
    flat = telemetry.flat(kind)
    assert found.num_rows == flat.num_rows
    for name in ("time", "service_name", "attributes", "scope_name"):
        assert found[name].to_pylist() == flat.column(name).to_pylist()
    assert found["_event_time"].null_count == 0


@pytest.mark.parametrize("where", ["folder", "server"])
def test_columns_and_times_of_items(telemetry: Telemetry, where: str) -> None:
    since = NOW - timedelta(minutes=5)
    options = telemetry.options(
        where, table="spans", columns="service_name,time", since=since, until=NOW
    )
    found = read(options)
    assert found.schema.names == ["service_name", "time"]
    times = telemetry.flat(OtlpKind.TRACES).column("time").to_pylist()
    wanted = sorted(time for time in times if time is not None and since <= time < NOW)
    assert wanted
    assert sorted(found["time"].to_pylist()) == wanted


def test_segments_without_items_of_the_time_are_not_planned(tmp_path: Path) -> None:
    chance = random.Random(4)
    with Quiver.open(tmp_path / "q", CONFIG) as quiver:
        quiver.append_raw(request(OtlpKind.TRACES, chance), slot="otlp_traces")
        quiver.flush()
        options = {"path": str(tmp_path / "q"), "table": "spans"}
        later = {**options, "since": (NOW + timedelta(days=400)).isoformat()}
        for asked, parts in ((options, 1), (later, 0)):
            parsed = parse_options(asked)
            reader = BatchReader(parsed, from_arrow_schema(stored_schema(parsed)))
            assert len(reader.partitions()) == parts


def test_a_stream_reads_each_item_once_across_restarts(tmp_path: Path) -> None:
    chance = random.Random(5)
    path = tmp_path / "q"
    made = [request(OtlpKind.LOGS, chance, items=4) for _ in range(6)]
    with Quiver.open(path, replace(CONFIG, segment=SegmentConfig())) as quiver:
        for body in made:
            quiver.append_raw(body, slot="otlp_logs")
    identities: list[tuple[int, int, int]] = []
    for batches in (1, 2):
        driver = Driver(
            str(path),
            tmp_path / "checkpoint",
            table="logs",
            max_rows=2,
            watermark=True,
            quiver_config="tests.dataflow.test_item_tables:CONFIG",
        )
        for _ in range(batches):
            rows = wait_for(driver.next)
            events = rows.filter(pc.invert(rows["_control"]))
            columns = [events[name].to_pylist() for name in ("_seq", "_row", "_item")]
            identities += zip(*columns, strict=True)
        driver.stop()
    assert len(identities) == len(set(identities)) == flat_table(OtlpKind.LOGS, made).num_rows


def test_bad_options(telemetry: Telemetry) -> None:
    for options, what in (
        ({"table": "nothing"}, "no table 'nothing'.*logs, points, spans"),
        ({"table": "spans", "slot": "otlp_traces"}, "its own slots"),
    ):
        with pytest.raises(BadConfig, match=what):
            parse_options(telemetry.options("folder", **options))
    with pytest.raises(BadInput, match="no column nothing"):
        read(telemetry.options("folder", table="spans", columns="nothing"))


def test_a_damaged_slot_costs_its_own_table_and_no_other(tmp_path: Path) -> None:
    """Of three requests of spans and log records the second's spans are damaged on disk."""
    chance, path = random.Random(6), tmp_path / "q"
    spans = [request(OtlpKind.TRACES, chance, items=4) for _ in range(3)]
    logs = [request(OtlpKind.LOGS, chance, items=4) for _ in range(3)]
    with Quiver.open(path, CONFIG) as quiver:
        for of_spans, of_logs in zip(spans, logs, strict=True):
            quiver.append_raw(of_spans, slot="otlp_traces")
            quiver.append_raw(of_logs, slot="otlp_logs")
            quiver.flush()
    file = sorted((path / "segments").glob("*/*-otlp_traces.arrow"))[1]
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert (
        read({"path": str(path), "table": "logs"}).num_rows
        == flat_table(OtlpKind.LOGS, logs).num_rows
    )
    with pytest.raises(Damaged):
        read({"path": str(path), "table": "spans"})
    driver = Driver(
        str(path),
        tmp_path / "checkpoint",
        table="spans",
        on_data_loss="count",
        quiver_config="tests.dataflow.test_item_tables:CONFIG",
    )
    found = wait_for(driver.next)
    driver.stop()
    sound = flat_table(OtlpKind.TRACES, [spans[0], spans[2]])
    assert sorted(found["span_id"].to_pylist()) == sorted(sound.column("span_id").to_pylist())


def test_what_is_left_of_a_damaged_batch_has_a_flag(tmp_path: Path) -> None:
    (batch,) = otap_of(OtlpKind.TRACES, [request(OtlpKind.TRACES, random.Random(6), items=4)])
    path = tmp_path / "q"
    with Quiver.open(path, CONFIG) as quiver:
        for _ in range(2):
            quiver.append(batch)
            quiver.flush()
    file = min((path / "segments").glob("*/*-otap_span_attrs.arrow"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    options = {"path": str(path), "table": "spans", "partial": "true"}
    found = read(options)
    rows = batch["otap_spans"].num_rows
    assert found["_damaged_slots"].to_pylist() == [["otap_span_attrs"]] * rows + [None] * rows
    some = read({**options, "columns": "name"})
    assert some.schema.names == ["name", "_damaged_slots"]
    assert some.num_rows == 2 * rows
