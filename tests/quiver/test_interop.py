"""Other readers open the segment files as they are, and the stream of a scan, on a real disk."""

from __future__ import annotations

import gc
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.quiver.batches import ENVELOPE, data_paths, quiet_segments, seal
from tests.quiver.machine import quiet

from holdfast.errors import Damaged
from holdfast.quiver import ColumnExtractor, Quiver, QuiverConfig
from holdfast.quiver.segments.segment import Segment

TIMES = pa.array([1_000_000, None, -1], pa.timestamp("us", "UTC"))

SAMPLE = pa.record_batch(
    {
        "time": TIMES,
        "whole": pa.array([1, None, -(2**63)], pa.int64()),
        "part": pa.array([0.5, float("inf"), None], pa.float64()),
        "text": pa.array(["a", "ü漢🦀", None]),
        "word": pa.array(["x", None, "x"]).dictionary_encode(),
        "blob": pa.array([b"", b"\0\xff", None]),
        "flag": pa.array([True, None, False]),
        "list": pa.array([[1, 2], [], None], pa.list_(pa.int32())),
        "pair": pa.array([{"x": 1, "y": "a"}, {"x": None, "y": None}, {"x": 3, "y": "c"}]),
        "money": pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal128(10, 2)),
    }
)


def config(**segment: Any) -> QuiverConfig:
    base = quiet_segments(**segment)
    return QuiverConfig(
        append=base.append,
        wal=base.wal,
        segment=base.segment,
        extractors={"events": ColumnExtractor("time")},
    )


def fill(quiver: Quiver) -> Segment:
    """Store the sample twice, in two bundles of one segment, beside a raw slot."""
    quiver.append(SAMPLE)
    quiver.append(SAMPLE)
    quiver.append_raw([b"one", b"two"], headers=[{"k": "v"}, None], slot="raw")
    return seal(quiver)


def sample_file(segment: Segment) -> str:
    (path,) = [path for path in data_paths(segment) if path.name.endswith("-events.arrow")]
    return str(path)


def wanted_rows() -> list[dict[str, Any]]:
    return [*SAMPLE.to_pylist(), *SAMPLE.to_pylist()]


def query(sql: str, stored: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a query over what SQL calls `stored`."""
    import duckdb

    with duckdb.connect() as connection:
        connection.register("stored", stored)
        return connection.execute(sql).fetchall()


@pytest.fixture(params=["none", "lz4", "zstd"])
def quiver(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    with Quiver.open(tmp_path, config(compression=request.param)) as quiver:
        yield quiver


def test_polars_opens_a_segment_file_with_the_same_rows_and_the_envelope(quiver: Quiver) -> None:
    import polars as pl

    frame = pl.read_ipc(sample_file(fill(quiver)))
    assert frame.columns == [*ENVELOPE, *SAMPLE.schema.names]
    assert frame.select(SAMPLE.schema.names).to_dicts() == wanted_rows()
    assert frame["_seq"].to_list() == [0, 0, 0, 1, 1, 1]
    assert frame["_row"].to_list() == [0, 1, 2, 0, 1, 2]
    assert frame["_event_time_flag"].to_list() == [0, 3, 2, 0, 3, 2]
    assert frame["_event_time"].to_list()[0] == SAMPLE.column("time")[0].as_py()
    assert str(frame.schema["_event_time"]) == "Datetime(time_unit='us', time_zone='UTC')"


def test_polars_opens_lazily_and_filters_a_segment_file(quiver: Quiver) -> None:
    import polars as pl

    lazy = pl.scan_ipc(sample_file(fill(quiver)))
    found = lazy.filter(pl.col("_event_time_flag") == 0).select("whole", "text").collect()
    assert found.rows() == [(1, "a"), (1, "a")]


def test_duckdb_opens_a_segment_file_with_the_same_rows_and_the_envelope(quiver: Quiver) -> None:
    import pyarrow.dataset as ds

    stored = ds.dataset(sample_file(fill(quiver)), format="ipc")
    names = [name for name, *_ in query("DESCRIBE stored", stored)]
    assert names == [*ENVELOPE, *SAMPLE.schema.names]
    own = [name for name in SAMPLE.schema.names if name != "time"]
    columns = ", ".join(f'"{name}"' for name in own)
    wanted = [tuple(row[name] for name in own) for row in wanted_rows()]
    assert query(f"SELECT {columns} FROM stored", stored) == wanted
    positions = query("SELECT _seq, _row, _event_time_flag FROM stored", stored)
    assert positions == [(seq, row, flag) for seq in (0, 1) for row, flag in enumerate((0, 3, 2))]


def test_duckdb_counts_by_event_time_in_segment_files(quiver: Quiver) -> None:
    import pyarrow.dataset as ds

    stored = ds.dataset(sample_file(fill(quiver)), format="ipc")
    sql = "SELECT epoch_us(_event_time) t, count(*) FROM stored WHERE t < 10_000_000 GROUP BY t"
    assert sorted(query(sql, stored)) == [(-1, 2), (1_000_000, 2)]


def test_raw_events_are_readable_by_both(quiver: Quiver) -> None:
    import polars as pl
    import pyarrow.dataset as ds

    segment = fill(quiver)
    (path,) = [str(path) for path in data_paths(segment) if path.name.endswith("-raw.arrow")]
    frame = pl.read_ipc(path)
    assert frame["payload"].to_list() == [b"one", b"two"]
    assert frame["headers"].to_list() == ['{"k": "v"}', None]
    stored = ds.dataset(path, format="ipc")
    assert query("SELECT payload FROM stored", stored) == [(b"one",), (b"two",)]


def test_the_files_of_many_segments_are_one_dataset(tmp_path: Path) -> None:
    import polars as pl
    import pyarrow.dataset as ds

    with Quiver.open(tmp_path, config()) as quiver:
        files = [sample_file(fill(quiver)) for _ in range(3)]
    assert pl.scan_ipc(files).collect()["_seq"].n_unique() == 6
    assert ds.dataset(files, format="ipc").count_rows() == 18


def test_polars_takes_the_stream_of_a_scan_sealed_or_not(quiver: Quiver) -> None:
    import polars as pl

    fill(quiver)
    quiver.append(SAMPLE)
    frame = pl.from_arrow(quiver.scan(slot="events"))
    assert isinstance(frame, pl.DataFrame)
    assert frame.select(SAMPLE.schema.names).to_dicts() == [*wanted_rows(), *SAMPLE.to_pylist()]
    assert frame.columns[:5] == list(ENVELOPE)


def test_duckdb_takes_the_stream_of_a_scan_sealed_or_not(quiver: Quiver) -> None:
    fill(quiver)
    quiver.append(SAMPLE)
    stream = quiver.scan(["_seq", "whole", "word"], slot="events")
    sql = "SELECT _seq, sum(whole), max(word) FROM stored GROUP BY _seq ORDER BY 1"
    assert query(sql, stream) == [(seq, 1 - 2**63, "x") for seq in (0, 1, 3)]


def test_both_take_a_stream_whose_schema_drifted(quiver: Quiver) -> None:
    import polars as pl

    quiver.append(pa.record_batch({"a": [1], "both": [1]}))
    quiver.append(pa.record_batch({"b": ["x"], "both": [0.5]}))
    frame = pl.from_arrow(quiver.scan(["a", "b", "both"]))
    assert isinstance(frame, pl.DataFrame)
    assert sorted(frame.rows(), key=str) == [(1, None, 1.0), (None, "x", 0.5)]
    rows = query("SELECT * FROM stored", quiver.scan(["a", "b", "both"]))
    assert sorted(rows, key=str) == [(1, None, 1.0), (None, "x", 0.5)]


def test_damage_in_a_stream_reaches_the_reader_as_an_error_that_names_the_file(
    tmp_path: Path,
) -> None:
    import duckdb
    import polars as pl

    with Quiver.open(tmp_path, config()) as quiver:
        path = Path(sample_file(fill(quiver)))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with Quiver.open(tmp_path, config()) as quiver:
        with pytest.raises((Damaged, pl.exceptions.ComputeError), match=path.name):
            pl.from_arrow(quiver.scan(slot="events"))
        with pytest.raises((Damaged, duckdb.Error), match=path.name):
            query("SELECT * FROM stored", quiver.scan(slot="events"))
        assert query("SELECT count(*) FROM stored", quiver.scan(slot="raw")) == [(2,)]


@pytest.mark.parametrize("zero_copy", [False, True])
def test_what_was_read_outlives_the_quiver_and_the_removal_of_its_files(
    tmp_path: Path, zero_copy: bool
) -> None:
    quiver = Quiver.open(tmp_path / "data", quiet())
    rows = pa.record_batch({"n": range(1000), "text": [f"row {n}" for n in range(1000)]})
    seq = quiver.append(rows).seq
    quiver.flush()
    bundle = quiver.bundle(seq)
    assert bundle is not None
    assert bundle.slots
    table = quiver.scan(["n", "text"], zero_copy=zero_copy).read_all()
    quiver.close()
    shutil.rmtree(tmp_path / "data")
    del quiver
    gc.collect()
    assert bundle.slots["events"].equals(rows)
    assert table.to_pylist() == rows.to_pylist()


def test_a_reader_that_was_begun_goes_on_after_close(tmp_path: Path) -> None:
    quiver = Quiver.open(tmp_path / "data", quiet())
    for value in range(3):
        quiver.append(pa.record_batch({"n": [value]}))
        quiver.flush()
    reader = quiver.scan(["n"])
    first = reader.read_next_batch()
    quiver.close()
    assert [*first.to_pylist(), *reader.read_all().to_pylist()] == [{"n": n} for n in range(3)]


def test_reads_of_uncompressed_segments_point_into_the_file(tmp_path: Path) -> None:
    with Quiver.open(tmp_path, quiet()) as quiver:
        quiver.append(pa.record_batch({"n": range(50_000)}))
        quiver.flush()
    with Quiver.open(tmp_path, quiet()) as quiver:
        gc.collect()
        allocated = pa.total_allocated_bytes()
        table = quiver.scan(["n"]).read_all()
        assert table.num_rows == 50_000
        assert pa.total_allocated_bytes() - allocated < 50_000
