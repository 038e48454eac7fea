"""Stored telemetry as tables: the rows are those of flat tables, for every reader."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from tests.signals.otlp.telemetry import NOW_NS, request

from holdfast.errors import Damaged, StorageFailed
from holdfast.operate.cli import cli
from holdfast.query import open_tables
from holdfast.query.kept import KeptTables
from holdfast.query.sql import answer
from holdfast.quiver import Quiver, QuiverConfig, SegmentConfig
from holdfast.signals.otap.from_otlp import otap_of
from holdfast.signals.otlp.flat.schema import REQUEST, TABLES
from holdfast.signals.otlp.flat.table import flat_table
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.registry import extractors, tables

CONFIG = QuiverConfig(extractors=extractors(), tables=tables())
NOW = datetime.fromtimestamp(NOW_NS / 1e9, UTC)


@dataclass
class Stored:
    """A quiver with requests of all kinds, some of them sealed."""

    quiver: Quiver
    requests: dict[OtlpKind, list[bytes]]

    def expected(self, kind: OtlpKind) -> pa.RecordBatch:
        made = flat_table(kind, self.requests[kind])
        return made.select([name for name in made.schema.names if name != REQUEST])


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Stored]:
    chance = random.Random(7)
    made = {kind: [request(kind, chance, items=5) for _ in range(6)] for kind in OtlpKind}
    with Quiver.open(tmp_path / "q", CONFIG) as quiver:
        for number in range(6):
            for kind in OtlpKind:
                quiver.append_raw(made[kind][number], slot=kind.slot)
            quiver.append_raw(b"\xff no request", slot=OtlpKind.TRACES.slot)
            if number in (1, 3):
                quiver.flush()
        yield Stored(quiver, made)


@pytest.mark.parametrize("kind", OtlpKind)
def test_a_table_has_the_rows_of_the_stored_requests(stored: Stored, kind: OtlpKind) -> None:
    expected = stored.expected(kind)
    own = expected.schema.names
    for found in (
        stored.quiver.scan(table=TABLES[kind]).read_all(),
        open_tables(stored.quiver.directory)[TABLES[kind]].to_table(),
    ):
        assert found.select(own).combine_chunks().to_batches() == [expected]
        identity = found.select(["_seq", "_row", "_item"]).to_pylist()
        assert len({tuple(one.values()) for one in identity}) == expected.num_rows
        assert found["_event_time"].null_count == 0
        # Where an item has a time, that is the time of the row.
        both = zip(found["time"].to_pylist(), found["_event_time"].to_pylist(), strict=True)
        assert all(time in (None, event_time) for time, event_time in both)


def test_times_choose_items(stored: Stored) -> None:
    times = stored.expected(OtlpKind.TRACES).column("time").to_pylist()
    since = NOW - timedelta(minutes=5)
    wanted = sorted(t for t in times if t is not None and since <= t < NOW)
    assert wanted
    found = stored.quiver.scan(["_event_time"], table="spans", since=since, until=NOW).read_all()
    assert sorted(found["_event_time"].to_pylist()) == wanted


def test_duckdb_and_polars_count_the_same(stored: Stored) -> None:
    datasets = open_tables(stored.quiver.directory)
    query = """
        select service_name, count(*) as n, max(attributes['http.route'].string_value) as route
        from spans group by 1 order by 1
    """
    with answer(datasets, query) as reader:
        counted = reader.read_all().to_pylist()
    names = stored.expected(OtlpKind.TRACES).column("service_name").to_pylist()
    assert [(one["service_name"], one["n"]) for one in counted] == [
        (name, names.count(name)) for name in sorted(set(names))
    ]
    assert {one["route"] for one in counted} == {"/"}
    lazy = pl.scan_pyarrow_dataset(datasets["spans"]).group_by("service_name").len()
    assert dict(lazy.collect().rows()) == {one["service_name"]: one["n"] for one in counted}
    # And straight from the owner's own scan.
    spans = stored.quiver.scan(table="spans")
    assert spans is not None
    found = duckdb.sql("select count(*) from spans where status_code = 2")
    assert found is not None
    assert found.fetchall() == [(len(names),)]
    assert pl.from_arrow(stored.quiver.scan(table="points")).height == (  # type: ignore[union-attr]
        stored.expected(OtlpKind.METRICS).num_rows
    )


@pytest.mark.parametrize("kind", OtlpKind)
@pytest.mark.parametrize("is_sealed", [False, True])
def test_batches_of_otap_are_in_the_same_table(
    tmp_path: Path, kind: OtlpKind, is_sealed: bool
) -> None:
    chance = random.Random(8)
    requests = [request(kind, chance, items=4) for _ in range(4)]
    with Quiver.open(tmp_path / "q", CONFIG) as quiver:
        quiver.append_raw(requests[0], slot=kind.slot)
        for one in requests[1:]:
            for batch in otap_of(kind, [one]):
                quiver.append(batch)
        # Another kind has slots of the same names, and is not in the table.
        for batch in otap_of(OtlpKind.LOGS, [request(OtlpKind.LOGS, chance)]):
            if kind is not OtlpKind.LOGS:
                quiver.append(batch)
        if is_sealed:
            quiver.flush()
        found = quiver.scan(table=TABLES[kind]).read_all()
        opened = open_tables(quiver.directory)[TABLES[kind]].to_table()
    expected = flat_table(kind, requests)
    names = ["time", "service_name", "attributes", "resource_attributes", "scope_name"]
    for rows in (found, opened):
        assert rows.num_rows == expected.num_rows
        told = sorted(map(str, rows.select(names).to_pylist()))
        assert told == sorted(map(str, expected.select(names).to_pylist()))
        identity = rows.select(["_seq", "_row", "_item"]).to_pylist()
        assert len({tuple(one.values()) for one in identity}) == expected.num_rows


def test_what_several_workers_have_not_sealed_is_not_mixed_up(tmp_path: Path) -> None:
    bodies = [request(OtlpKind.TRACES, random.Random(number), items=5) for number in range(2)]
    expected = flat_table(OtlpKind.TRACES, bodies)
    with ExitStack() as stack:
        opened = [Quiver.open(tmp_path / name, CONFIG) for name in ("core-00", "core-01")]
        for quiver, body in zip(opened, bodies, strict=True):
            (batch,) = otap_of(OtlpKind.TRACES, [body])
            stack.enter_context(quiver).append(batch)
        found = open_tables(*(one.directory for one in opened))["spans"].to_table()
    names = ["time", "service_name", "attributes", "resource_attributes", "events", "links"]
    told = sorted(map(str, found.select(names).to_pylist()))
    assert told == sorted(map(str, expected.select(names).to_pylist()))


def test_a_kept_table_has_the_rows_of_opaque_files(tmp_path: Path) -> None:
    bodies = [request(OtlpKind.TRACES, random.Random(number), items=5) for number in range(2)]
    config = replace(CONFIG, segment=SegmentConfig(max_files=2))
    with Quiver.open(tmp_path / "q", config) as quiver:
        for body in bodies:
            (batch,) = otap_of(OtlpKind.TRACES, [body])
            quiver.append(batch)
            quiver.flush()
            quiver.append_raw(body, slot=OtlpKind.TRACES.slot)
    keep = KeptTables(tmp_path / "kept")
    with answer(open_tables(tmp_path / "q", keep=keep), "select count(*) n from spans") as reader:
        (found,) = reader.read_all().to_pylist()
    assert found["n"] == 2 * flat_table(OtlpKind.TRACES, bodies).num_rows


def test_tables_of_sealed_segments_are_kept(stored: Stored, tmp_path: Path) -> None:
    folder = tmp_path / "kept's"
    query = (
        "select _seq, _row, _item, time, attributes, service_name, events from spans order by all"
    )

    def asked(keep: KeptTables | None) -> list[dict[str, object]]:
        with answer(open_tables(stored.quiver.directory, keep=keep), query) as reader:
            found: list[dict[str, object]] = reader.read_all().to_pylist()
        return found

    expected = asked(None)
    assert len(expected) == stored.expected(OtlpKind.TRACES).num_rows
    assert asked(KeptTables(folder)) == expected
    kept = {path: path.stat().st_ino for path in folder.glob("*-spans-*.parquet")}
    # Two segments; what is not sealed is read as ever.
    assert len(kept) == 2
    assert asked(KeptTables(folder)) == expected
    assert {path: path.stat().st_ino for path in kept} == kept
    # What is beyond the bound is made each time, and files that nobody uses go.
    former = folder / f"{min(kept).name[:36]}-of-a-former-one-spans-0123abcd.parquet"
    killed, stranger = former.with_suffix(".123.new"), folder / "own.parquet"
    for path in (former, killed, stranger):
        path.write_bytes(bytes(10_000))
        os.utime(path, (1, 1))
    assert asked(KeptTables(folder, max_bytes=1)) == expected
    assert not former.exists()
    assert not killed.exists()
    assert len(list(folder.iterdir())) < 7
    assert stranger.exists(), "it is somebody else's"
    stored.quiver.flush()
    assert asked(KeptTables(folder)) == expected
    assert len(list(folder.glob("*-spans-*.parquet"))) == 3
    with pytest.raises(StorageFailed, match="cannot be kept"):
        asked(KeptTables(next(folder.iterdir()) / "below a file"))


def _damage(quiver: Quiver, slot: str) -> None:
    """Damage the first block of a slot in the first segment."""
    (segment, *_) = quiver.segments()
    (file,) = (file for file in segment.summary.files if file.slot == slot)
    stored = Path(segment.path / file.name)
    content = bytearray(stored.read_bytes())
    content[file.batches[0].offset + file.batches[0].length // 2] ^= 1
    stored.write_bytes(content)


@pytest.mark.parametrize("slot", ["otap_span_attrs", "otap_resource_attrs"])
def test_what_is_left_of_a_batch_is_rows_with_a_flag(tmp_path: Path, slot: str) -> None:
    body = request(OtlpKind.TRACES, random.Random(11), items=4)
    (tables_of_batch,) = otap_of(OtlpKind.TRACES, [body])
    with Quiver.open(tmp_path / "q", CONFIG) as quiver:
        quiver.append(tables_of_batch)
        quiver.flush()
        quiver.append(tables_of_batch)
        quiver.flush()
        whole = quiver.scan(table="spans").read_all()
        rows = whole.num_rows // 2
        _damage(quiver, slot)
        with pytest.raises(Damaged):
            quiver.scan(table="spans").read_all()
        assert quiver.scan(table="spans", on_damage="skip").read_all().num_rows == rows
        found = quiver.scan(table="spans", partial=True).read_all()
        asked = open_tables(quiver.directory, on_damage="flag")["spans"]
        assert asked.to_table().equals(found)
        with answer({"spans": asked}, "select count(_damaged_slots) from spans") as reader:
            assert [tuple(row.values()) for row in reader.read_all().to_pylist()] == [(rows,)]
        some = quiver.scan(["name"], table="spans", partial=True).read_all()
    assert some.schema.names == ["name", "_damaged_slots"]
    assert found["_damaged_slots"].to_pylist() == [[slot]] * rows + [None] * rows
    lost = "attributes" if slot == "otap_span_attrs" else "resource_attributes"
    # A resource of which nothing is left is none.
    gone = {"attributes"} if lost == "attributes" else {"service_name"}
    kept = [name for name in whole.schema.names if name not in gone and "resource" not in name]
    assert found.select(kept).equals(whole.select(kept))
    assert not any(found[lost].to_pylist()[:rows])
    assert found[lost].slice(rows).equals(whole[lost].slice(rows))


def test_of_a_batch_without_its_spans_there_are_no_rows(tmp_path: Path) -> None:
    (batch,) = otap_of(OtlpKind.TRACES, [request(OtlpKind.TRACES, random.Random(11), items=4)])
    with Quiver.open(tmp_path / "q", CONFIG) as quiver:
        quiver.append(batch)
        quiver.flush()
        _damage(quiver, "otap_spans")
        assert quiver.scan(table="spans", partial=True).read_all().num_rows == 0


def _cat(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["quiver", "cat", *arguments])


def test_cat_shows_batches_of_otap_as_it_does_requests(tmp_path: Path) -> None:
    body = request(OtlpKind.TRACES, random.Random(11), items=4)
    (batch,) = otap_of(OtlpKind.TRACES, [body])
    with Quiver.open(tmp_path / "q", CONFIG) as quiver:
        quiver.append_raw(body, slot="otlp_traces")
        quiver.append(batch)
        quiver.flush()
        _damage(quiver, "otap_span_attrs")
    where = str(tmp_path / "q")
    assert isinstance(_cat(where, "--table", "spans").exception, Damaged)
    shown = _cat(where, "--table", "spans", "--partial")
    assert shown.exit_code == 0, shown.output
    found = [json.loads(line) for line in shown.stdout.splitlines()]
    rows = len(found) // 2
    of_request, of_batch = found[:rows], found[rows:]
    for one, other in zip(of_request, of_batch, strict=True):
        assert (one["name"], one["span_id"]) == (other["name"], other["span_id"])
        assert one["attributes"] == {"http.route": {"string_value": "/"}}
        assert other["attributes"] == {}
        assert (one["_damaged_slots"], other["_damaged_slots"]) == (None, ["otap_span_attrs"])
    few = _cat(where, "--table", "spans", "--skip-damaged", "--columns", "name", "--limit", "2")
    assert few.stdout == 2 * '{"name": "GET /"}\n'
    assert "no table 'nothing'" in str(_cat(where, "--table", "nothing").exception)
    both = _cat(where, "--table", "spans", "--slot", "otap_spans")
    assert "both a slot and a table" in str(both.exception)
