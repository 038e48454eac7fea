"""The files exporter with `tables`: a row for each item, in folders that others can read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.deliver.exporters.sending import QUIVER_ID, context, event, send
from tests.deliver.exporters.test_files import query

from holdfast.deliver.exporter import Answer
from holdfast.deliver.exporters import file_tables, files
from holdfast.deliver.exporters.file_tables import NOTHING, SERVICE_BYTES_MAX, TablePartition
from holdfast.signals.event import Event
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import REQUESTS

# 2026-11-16T22:00:00Z
TEN_NS = 1_794_866_400 * 10**9
HOUR_NS = 3600 * 10**9


def spans(seq: int, *of: tuple[str | None, int], quiver_id: str = QUIVER_ID) -> Event:
    """Return a request with a span for each service and time."""
    made: Any = REQUESTS[OtlpKind.TRACES]()
    for number, (service, end_ns) in enumerate(of):
        resource = made.resource_spans.add()
        if service is not None:
            attribute = resource.resource.attributes.add(key="service.name")
            attribute.value.string_value = service
        resource.scope_spans.add().spans.add(
            name=f"{seq}/{number}", end_time_unix_nano=end_ns, span_id=seq.to_bytes(8, "big")
        )
    return request(seq, made.SerializeToString(), quiver_id=quiver_id)


def request(seq: int, payload: bytes, **changes: Any) -> Event:
    kind = OtlpKind.TRACES
    return event(
        seq, payload, slot=kind.slot, signal=kind.value, ingestion_ns=TEN_NS + seq, **changes
    )


def write(base_dir: Path, *batches: list[Event], **config: Any) -> Path:
    given = {"directory": "out", "format": "parquet", "tables": ["spans"]} | config
    made = files.make(files.Config.model_validate(given), context(base_dir))
    assert send(made, *batches) == [Answer()] * len(batches)
    return base_dir / "out"


def folders(root: Path) -> list[str]:
    found = {path.parent.relative_to(root) for path in root.rglob("*.parquet")}
    return sorted(str(folder) for folder in found)


def test_items_are_rows_in_folders_by_hour_and_service(tmp_path: Path) -> None:
    batch = [
        spans(1, ("checkout", TEN_NS), ("cart", TEN_NS), ("checkout", TEN_NS + HOUR_NS)),
        spans(2, ("checkout", TEN_NS + 5), ("checkout", 0)),
    ]
    root = write(tmp_path, batch)
    assert folders(root) == [
        "spans/hour=2026-11-16T22/service=cart",
        "spans/hour=2026-11-16T22/service=checkout",
        "spans/hour=2026-11-16T23/service=checkout",
    ]
    found = query(
        "select hour, service, name, _quiver_id, _seq, _row, _item, service_name from "
        f"read_parquet('{root}/spans/**/*.parquet', hive_partitioning = true) order by _seq, _item"
    )
    ten, eleven = "2026-11-16T22", "2026-11-16T23"
    assert found == [
        (ten, "checkout", "1/0", QUIVER_ID, 1, 0, 0, "checkout"),
        (ten, "cart", "1/1", QUIVER_ID, 1, 0, 1, "cart"),
        (eleven, "checkout", "1/2", QUIVER_ID, 1, 0, 2, "checkout"),
        (ten, "checkout", "2/0", QUIVER_ID, 2, 0, 0, "checkout"),
        # A span without a time has that of its arrival.
        (ten, "checkout", "2/1", QUIVER_ID, 2, 0, 1, "checkout"),
    ]
    by_polars = pl.scan_parquet(root / "spans", hive_partitioning=True)
    late = by_polars.filter(pl.col("hour") == eleven).select("service", "name").collect()
    assert late.rows() == [("checkout", "1/2")]


ODD_NAMES = ["a/b", "..", ".", "", "50%", "a=b", "x" * 5000, "ü" * 60, "A", "a", "a\nb", "a\\b"]


def test_no_name_of_a_service_leaves_its_folder_or_hides_another(tmp_path: Path) -> None:
    root = write(tmp_path, [spans(1, *((name, TEN_NS) for name in ODD_NAMES), (None, TEN_NS))])
    hour = root / "spans" / "hour=2026-11-16T22"
    assert {path.parent.parent for path in root.rglob("*.parquet")} == {hour}
    # Empty and none share a folder, and are told apart in the file.
    assert len(folders(root)) == len(ODD_NAMES)
    assert {len(path.name.encode()) <= 255 for path in hour.iterdir()} == {True}
    files_of = f"read_parquet('{root}/spans/**/*.parquet', hive_partitioning = true)"
    found = query(f"select service_name, service from {files_of} order by _item")
    assert [name for name, _ in found] == [*ODD_NAMES, None]
    for name, service in found:
        if name is not None and 0 < len(name.encode()) <= SERVICE_BYTES_MAX // 3:
            assert service == name
    by_polars = pl.read_parquet(root / "spans", hive_partitioning=True).sort("_item")
    read = dict(zip(by_polars["service_name"], by_polars["service"], strict=True))
    assert read["a/b"] == "a/b"
    # Where upper and lower case are one, both are in one folder.
    names = [path.name for path in root.rglob("*.parquet")]
    assert len(set(names)) == len(names)


@given(st.binary(min_size=1, max_size=400), st.binary(min_size=1, max_size=400))
def test_folders_of_services_are_names_that_differ(one: bytes, other: bytes) -> None:
    """Whatever the bytes are; those of text that is none, too."""
    made = [TablePartition("spans", 0, name).folder for name in (one, other)]
    assert (made[0] == made[1]) == (one == other)
    for folder in made:
        assert folder.parts[:2] == ("spans", "hour=1970-01-01T00")
        assert len(folder.parts) == 3
        assert folder.name.isascii()
        assert folder.name.isprintable()
        assert len(folder.name) < 200


def test_folders_are_no_more_than_allowed(tmp_path: Path) -> None:
    batch = [spans(n, *((f"s{n}-{k}", TEN_NS + k * HOUR_NS) for k in range(10))) for n in (1, 2)]
    root = write(tmp_path, batch, max_partitions=5)
    assert len(folders(root)) == 6
    rest = f"spans/hour={NOTHING}/service={NOTHING}"
    assert rest in folders(root)
    rows = "select name, hour, service_name from read_parquet("
    found = query(rows + f"'{root}/spans/**/*.parquet', hive_partitioning = true)")
    assert sorted(name for name, _, _ in found) == sorted(
        f"{n}/{k}" for n in (1, 2) for k in range(10)
    )
    assert sum(hour is None for _, hour, _ in found) == 15
    assert len({service for _, _, service in found}) == 20


def test_rows_are_held_only_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then they are a group of their file, which goes on."""
    monkeypatch.setattr(file_tables, "ROWS_BYTES_MAX", 1)
    monkeypatch.setattr(file_tables, "PAYLOADS_BYTES_MAX", 1)
    root = write(tmp_path, [spans(n, ("a", TEN_NS), ("b", TEN_NS)) for n in range(1, 6)])
    paths = sorted(root.rglob("*.parquet"))
    assert [pq.ParquetFile(path).num_row_groups for path in paths] == [5, 5]
    assert [pq.read_table(path, partitioning=None)["_seq"].to_pylist() for path in paths] == [
        [1, 2, 3, 4, 5]
    ] * 2


def test_what_is_no_request_is_kept_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    batch = [spans(1, ("a", TEN_NS)), request(2, b"\xff\xff"), spans(3, ("a", TEN_NS)), event(4)]
    root = write(tmp_path, batch)
    assert folders(root) == ["spans/hour=2026-11-16T22/service=a", "unreadable"]
    (path,) = (root / "unreadable").iterdir()
    kept = pq.read_table(path).select(["seq", "payload"]).to_pylist()
    assert kept == [
        {"seq": 2, "payload": b"\xff\xff"},
        {"seq": 4, "payload": batch[3].payload},
    ]
    assert "2 requests cannot be read" in caplog.text


def test_the_oldest_files_go_also_in_folders(tmp_path: Path) -> None:
    write(tmp_path, [spans(1, ("a", TEN_NS))])
    (tmp_path / "out" / "spans" / "mine.parquet").write_bytes(b"x")
    root = write(tmp_path, [spans(2, ("b", TEN_NS))], max_total_size=1)
    assert folders(root) == ["spans", "spans/hour=2026-11-16T22/service=b"]


def test_all_tables_have_every_column_in_all_files(tmp_path: Path) -> None:
    root = write(tmp_path, [spans(1, ("a", TEN_NS))])
    (path,) = root.rglob("*.parquet")
    schema = pq.read_schema(path)
    assert schema.names[:6] == [
        *("_quiver_id", "_seq", "_row", "_item", "_ingestion_time", "_event_time")
    ]
    from holdfast.signals.otlp.flat.schema import SCHEMAS

    wanted: pa.Schema = SCHEMAS["spans"]
    assert schema.names[6:] == wanted.names[1:]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"tables": ["spans"], "format": "ndjson"}, "add `format: parquet`"),
        ({"tables": ["spams"]}, "there are logs, points, spans"),
        ({"partition_by": "hour"}, "always divided by hour and service"),
        ({"tables": [], "max_partitions": 3}, "`max_partitions` is for `tables`"),
        ({"max_partitions": 0}, "greater than or equal to 1"),
    ],
)
def test_keys_that_do_not_fit_are_refused(config: dict[str, Any], said: str) -> None:
    given = {"directory": "x", "format": "parquet", "tables": ["spans"]} | config
    with pytest.raises(ValidationError, match=said):
        files.Config.model_validate(given)


def test_it_takes_the_signals_of_its_tables() -> None:
    given = {"directory": "x", "format": "parquet", "tables": ["logs", "points"]}
    assert str(files.takes(files.Config.model_validate(given))) == "logs, metrics (protobuf)"
