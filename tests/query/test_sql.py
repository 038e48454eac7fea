"""`quiver sql` and datasets: every slot is a table, sealed or not, beside its owner."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from holdfast.errors import BadInput, Damaged, Overloaded
from holdfast.operate.cli import cli
from holdfast.query import open_tables
from holdfast.query.sql import SqlLimits, answer
from holdfast.quiver import ColumnExtractor, Quiver, QuiverConfig

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
CONFIG = QuiverConfig(extractors={"events": ColumnExtractor("at")})


def rows(first: int, count: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.record_batch(
        {
            "number": pa.array(numbers, pa.int64()),
            "even": [number % 2 == 0 for number in numbers],
            "at": pa.array(
                [NOON + timedelta(minutes=n) for n in numbers], pa.timestamp("us", "UTC")
            ),
            "id": pa.array([bytes([number % 256] * 4) for number in numbers], pa.binary()),
        }
    )


@pytest.fixture
def quiver(tmp_path: Path) -> Any:
    """A quiver with two segments and a tail, which stays open."""
    with Quiver.open(tmp_path / "q", CONFIG) as quiver:
        for first in (0, 100):
            quiver.append(rows(first, 100))
            quiver.append_raw([b"raw-%d" % first], slot="lines")
            quiver.flush()
        quiver.append(rows(200, 50))
        yield quiver


def sql(*words: object) -> Result:
    return CliRunner().invoke(cli, ["quiver", "sql", *map(str, words)], standalone_mode=False)


def told(*words: object) -> list[dict[str, Any]]:
    done = sql(*words, "--json")
    assert done.exception is None, done.exception
    return [json.loads(line) for line in done.output.splitlines()]


def test_a_query_sees_sealed_and_unsealed_rows_beside_the_owner(quiver: Quiver) -> None:
    q = quiver.directory
    assert told(q, "select count(*) n, sum(number) s from events") == [{"n": 250, "s": 31125}]
    assert told(q, 'select number, id, "at" from events where number in (3, 203) order by 1') == [
        {"number": 3, "id": "03030303", "at": "2026-01-02T12:03:00+00:00"},
        {"number": 203, "id": "cbcbcbcb", "at": "2026-01-02T15:23:00+00:00"},
    ]
    # More than once in one query, and joined with another slot.
    joined = (
        "select count(*) n from events a join events b using (number) join lines l on l._seq < 2"
    )
    assert told(q, joined) == [{"n": 250}]
    assert told(q, "select decode(payload) p from lines order by 1") == [
        {"p": "raw-0"},
        {"p": "raw-100"},
    ]


def test_times_bound_what_is_read(quiver: Quiver) -> None:
    since, until = (NOON + timedelta(minutes=m) for m in (150, 190))
    bounds = ("--since", since.isoformat(), "--until", until.isoformat())
    found = told(quiver.directory, "select min(number) a, max(number) b from events", *bounds)
    assert found == [{"a": 150, "b": 189}]


def test_the_answer_as_a_table_and_as_parquet(quiver: Quiver, tmp_path: Path) -> None:
    shown = sql(quiver.directory, "select even, count(*) as n from events group by 1 order by 1")
    assert shown.output.splitlines() == ["2 rows", "even    n", "  no  125", " yes  125"]
    many = sql(quiver.directory, "select a.number from events a, events b")
    assert "there are more than 1000" in many.output
    path = tmp_path / "out.parquet"
    sql(quiver.directory, "select number from events", "--parquet", path)
    assert pq.read_table(path).num_rows == 250
    nothing = sql(quiver.directory, "create table mine (a int)")
    assert nothing.exception is None


def test_bad_queries_are_explained(quiver: Quiver, tmp_path: Path) -> None:
    for query, what in (
        ("select * from nothing", "nothing.*tables are events, lines, logs, points, spans"),
        ("select count(*", "cannot be answered"),
        ("select number / 'x' from events", "cannot be answered"),
    ):
        with pytest.raises(BadInput, match=r"(?s)" + what):
            raise sql(quiver.directory, query).exception or AssertionError(query)
    # Variables of the program are no tables.
    with pytest.raises(BadInput, match="datasets"):
        raise sql(quiver.directory, "select * from datasets").exception or AssertionError
    two = sql(quiver.directory, "select 1 as a, 2 as a")
    assert isinstance(two.exception, BadInput)


def test_a_query_keeps_to_its_memory(quiver: Quiver) -> None:
    tables = open_tables(quiver.directory)
    large = "select list(a.number order by b.number) from events a, events b, events c"
    with (
        pytest.raises(Overloaded, match="needs more room"),
        answer(tables, large, SqlLimits(memory_bytes=16 << 20, spill_bytes=1 << 20)) as reader,
    ):
        reader.read_all()
    with answer(tables, "select count(*) from events") as reader:
        assert reader.read_all().to_pydict() == {"count_star()": [250]}


def test_damage_is_told_or_left_out(quiver: Quiver) -> None:
    (folder, *_) = sorted(Path(quiver.directory, "segments").iterdir())
    path = folder / "000-events.arrow"
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 0xFF
    path.write_bytes(whole)
    query = "select count(*) n from events where number >= 0"
    assert isinstance(sql(quiver.directory, query).exception, Damaged)
    assert told(quiver.directory, query, "--skip-damaged") == [{"n": 150}]
    path.unlink()
    assert isinstance(sql(quiver.directory, query).exception, Damaged)


def test_a_segment_that_goes_while_it_is_read_is_told_from_damage(quiver: Quiver) -> None:
    tables = open_tables(quiver.directory)
    quiver.register("reader")
    cursor = quiver.cursor("reader")
    while (planned := cursor.plan()) is not None:
        cursor.commit(planned)
    quiver._engine.retention.tick()
    assert not quiver.segments()
    with (
        pytest.raises(Overloaded, match="was removed while it was read"),
        answer(tables, "select count(*) from events where number > 0") as reader,
    ):
        reader.read_all()


def test_polars_and_duckdb_read_datasets_themselves(quiver: Quiver) -> None:
    events = open_tables(quiver.directory)["events"]
    lazy = pl.scan_pyarrow_dataset(events).filter(pl.col("number") >= 240)
    assert lazy.select(pl.col("number").sum(), pl.len()).collect().rows() == [(2445, 10)]
    assert pl.scan_pyarrow_dataset(events).select("even").head(3).collect().height == 3
    counted = duckdb.sql("select count(*) from events")
    assert counted is not None
    assert counted.fetchall() == [(250,)]
    chosen = events.scanner(columns=["id"], filter=pc.field("number") == 7).to_table()
    assert chosen.to_pydict() == {"id": [b"\x07\x07\x07\x07"]}


def test_several_quivers_are_one(tmp_path: Path, quiver: Quiver) -> None:
    with Quiver.open(tmp_path / "other", CONFIG) as other:
        other.append(rows(1000, 5))
    both = open_tables(quiver.directory, tmp_path / "other")
    with answer(both, "select count(*), max(number) from events") as reader:
        assert list(reader.read_all().to_pylist()[0].values()) == [255, 1004]
