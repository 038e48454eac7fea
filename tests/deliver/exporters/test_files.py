"""The files exporter on a real disk: complete files, rotated, readable by others."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError
from tests.deliver.exporters.sending import context, event, send, with_exporter
from tests.patience import PATIENCE_S, until

from holdfast.deliver.exporter import Answer, Exporter, Failure, FailureClass
from holdfast.deliver.exporters import files
from holdfast.deliver.exporters.files import STAGING
from holdfast.seam import Seam
from holdfast.seam.disk import Handle, RealDisk
from holdfast.signals.event import Event

if TYPE_CHECKING:
    pass

NOON_NS = 1_750_000_000 * 10**9
HOUR_NS = 3600 * 10**9


def numbered(first: int, last: int, **changes: Any) -> list[Event]:
    """Return events a millisecond apart."""
    return [
        event(n, b'{"n":%d}' % n, ingestion_ns=NOON_NS + n * 1_000_000, **changes)
        for n in range(first, last + 1)
    ]


def exporter(base_dir: Path, seam: Seam | None = None, **config: Any) -> Exporter:
    given = {"directory": "out"} | config
    return files.make(files.Config.model_validate(given), context(base_dir, seam))


def published(directory: Path) -> list[Path]:
    root = directory / "out"
    found = [path for path in root.rglob("*.*") if path.is_file() and STAGING not in path.parts]
    return sorted(found, key=lambda path: path.name)


def staged(directory: Path) -> list[str]:
    root = directory / "out" / STAGING
    return sorted(path.name for path in root.rglob("journal-*"))


def is_published(directory: Path, count: int) -> bool:
    return len(published(directory)) == count


def query(sql: str) -> list[Any]:
    import duckdb

    with duckdb.connect() as connection:
        return connection.execute(sql).fetchall()


def numbers(paths: Iterable[Path]) -> list[int]:
    return [json.loads(line)["n"] for path in paths for line in path.read_text().splitlines()]


def test_lines_are_the_events_as_they_came(tmp_path: Path) -> None:
    batch = [event(1, b'{"a": 1.50}'), event(2, b'{\n "b": "x\\ny"\r\n}'), event(3, b"null")]
    assert send(exporter(tmp_path), batch) == [Answer()]
    (path,) = published(tmp_path)
    assert path.read_bytes() == b'{"a": 1.50}\n{  "b": "x\\ny"  }\nnull\n'
    assert path.name == "20250615T150640.000000Z-7b0a2c1e-1.0-3.0.ndjson"
    assert staged(tmp_path) == []


def test_delivered_means_on_disk_before_any_file_is_complete(tmp_path: Path) -> None:
    async def use(started: Exporter) -> None:
        await started.send(numbered(1, 3))
        assert published(tmp_path) == []
        (journal,) = (tmp_path / "out" / STAGING).rglob("journal-*")
        assert b'{"n":3}' in journal.read_bytes()

    with_exporter(exporter(tmp_path), use)
    assert numbers(published(tmp_path)) == [1, 2, 3]


def test_a_record_says_where_its_event_was(tmp_path: Path) -> None:
    batch = [event(1, b'{"a": 1.50}', row=2, headers={"x": "y"}), event(2, b"\xff not json")]
    assert send(exporter(tmp_path, content="record"), batch) == [Answer()]
    first, second = published(tmp_path)[0].read_text().splitlines()
    assert first.endswith(',"event":{"a": 1.50}}')
    assert json.loads(first) == {
        "quiver_id": batch[0].quiver_id,
        "seq": 1,
        "row": 2,
        "received": "2025-06-15T15:06:40+00:00",
        "slot": "openlineage",
        "headers": {"x": "y"},
        "event": {"a": 1.5},
    }
    assert base64.b64decode(json.loads(second)["payload_base64"]) == b"\xff not json"


def test_what_is_not_json_is_no_line(tmp_path: Path) -> None:
    batch = [event(1, b"{"), *numbered(2, 3), event(4, b"\xff")]
    (result,) = send(exporter(tmp_path), batch)
    assert {i: failure.kind for i, failure in result.failed.items()} == {
        0: FailureClass.PERMANENT,
        3: FailureClass.PERMANENT,
    }
    assert numbers(published(tmp_path)) == [2, 3]
    assert set(send(exporter(tmp_path), batch[:1])[0].failed) == {0}


@pytest.mark.parametrize("compression", ["zstd", "snappy", "none"])
def test_parquet(tmp_path: Path, compression: str) -> None:
    batch = [*numbered(1, 2, headers={"a": "b"}), event(3, b"\xff", row=7)]
    assert send(exporter(tmp_path, format="parquet", compression=compression), batch) == [Answer()]
    (path,) = published(tmp_path)
    table = pq.read_table(path)
    assert table["payload"].to_pylist() == [b'{"n":1}', b'{"n":2}', b"\xff"]
    assert table["seq"].to_pylist() == [1, 2, 3]
    assert table["row"].to_pylist() == [0, 0, 7]
    assert table["headers"].to_pylist() == [[("a", "b")], [("a", "b")], []]
    assert table["received"].to_pylist()[0] == datetime(2025, 6, 15, 15, 6, 40, 1000, tzinfo=UTC)
    first = f"select decode(payload)->>'n' from '{path}' order by seq limit 2"
    assert query(first) == [("1",), ("2",)]


def test_many_row_groups(tmp_path: Path) -> None:
    large = [event(n, b'"%s"' % (b"x" * 3_000_000)) for n in range(1, 8)]
    assert send(exporter(tmp_path, format="parquet"), large) == [Answer()]
    (path,) = published(tmp_path)
    read = pq.ParquetFile(path)
    assert read.metadata.num_row_groups == 4
    assert read.read()["payload"].to_pylist() == [e.payload for e in large]


@pytest.mark.parametrize(
    ("limits", "counts"),
    [
        ({"max_file_events": 4}, [4, 4, 2]),
        ({"max_file_bytes": 1}, [2, 2, 2, 2, 2]),
        ({}, [10]),
    ],
)
def test_rotation(tmp_path: Path, limits: dict[str, Any], counts: list[int]) -> None:
    batches = [numbered(n, n + 1) for n in range(1, 11, 2)]
    assert send(exporter(tmp_path, **limits), *batches) == [Answer()] * 5
    paths = published(tmp_path)
    assert [len(path.read_text().splitlines()) for path in paths] == counts
    assert numbers(paths) == list(range(1, 11))


def test_rotation_by_age_needs_no_further_event(tmp_path: Path) -> None:
    async def use(started: Exporter) -> None:
        for n in (1, 2):
            await started.send(numbered(n, n))
            await asyncio.to_thread(until, partial(is_published, tmp_path, n))

    with_exporter(exporter(tmp_path, max_file_age="30ms"), use)
    assert numbers(published(tmp_path)) == [1, 2]


def test_partitions(tmp_path: Path) -> None:
    batch = [
        event(n, b'{"n":%d}' % n, ingestion_ns=NOON_NS + n * HOUR_NS) for n in (1, 9, 2, 10, 33)
    ]
    send(exporter(tmp_path, partition_by="day"), batch)
    send(exporter(tmp_path, partition_by="hour", directory="by_hour"), batch)
    by_day = {str(path.parent.name): numbers([path]) for path in published(tmp_path)}
    assert by_day == {
        "date=2025-06-15": [1, 2],
        "date=2025-06-16": [9, 10],
        "date=2025-06-17": [33],
    }
    assert (tmp_path / "by_hour" / "date=2025-06-16" / "hour=00").is_dir()
    rows = query(f"select n, hour from '{tmp_path}/by_hour/*/*/*.ndjson' order by n")
    assert [(int(n), int(hour)) for n, hour in rows] == [(1, 16), (2, 17), (9, 0), (10, 1), (33, 0)]


def test_the_oldest_go_above_the_total(tmp_path: Path) -> None:
    mine = tmp_path / "out" / "notes.ndjson"
    mine.parent.mkdir()
    mine.write_text("x" * 1000)
    batches = [numbered(n, n) for n in range(1, 8)]
    send(exporter(tmp_path, max_file_events=1, max_total_bytes=25), *batches)
    kept = [path for path in published(tmp_path) if path != mine]
    assert numbers(kept) == [5, 6, 7]
    assert mine.exists()


def test_the_newest_file_stays_however_large(tmp_path: Path) -> None:
    days = [event(n, b'{"n":%d}' % n, ingestion_ns=NOON_NS + n * 24 * HOUR_NS) for n in (1, 2, 3)]
    made = exporter(tmp_path, max_file_events=1, max_total_bytes=1, partition_by="day")
    send(made, *([one] for one in days))
    assert numbers(published(tmp_path)) == [3]
    folders = [path.name for path in (tmp_path / "out").iterdir() if path.name != STAGING]
    assert folders == ["date=2025-06-18"]


def test_sending_again_replaces_the_file(tmp_path: Path) -> None:
    for _ in range(2):
        send(exporter(tmp_path), numbered(1, 5))
    assert numbers(published(tmp_path)) == [1, 2, 3, 4, 5]


def test_after_a_clean_end_events_may_be_sent_on_purpose(tmp_path: Path) -> None:
    send(exporter(tmp_path), numbered(1, 5))
    for path in published(tmp_path):
        path.unlink()
    send(exporter(tmp_path), numbered(3, 5))
    assert numbers(published(tmp_path)) == [3, 4, 5]


def test_two_quivers_share_a_directory(tmp_path: Path) -> None:
    async def use(one: Exporter) -> None:
        other = exporter(tmp_path)
        await other.start()
        await one.send(numbered(1, 2))
        await other.send(numbered(1, 2, quiver_id="00000000-other"))
        await other.close()

    with_exporter(exporter(tmp_path), use)
    assert len(published(tmp_path)) == 2
    assert numbers(published(tmp_path)) == [1, 2, 1, 2]


def test_one_quiver_has_one_writer(tmp_path: Path) -> None:
    async def use(one: Exporter) -> None:
        other = exporter(tmp_path)
        await other.start()
        await one.send(numbered(1, 2))
        failure = (await other.send(numbered(3, 4))).failed[0]
        assert (failure.kind, failure.code) == (FailureClass.TRANSIENT, "locked")
        assert str(os.getpid()) in failure.reason
        await other.close()

    with_exporter(exporter(tmp_path), use)


def test_a_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    (result,) = send(exporter(tmp_path), numbered(1, 2))
    assert {f.kind for f in result.failed.values()} == {FailureClass.TRANSIENT}
    assert {f.code for f in result.failed.values()} == {"ENOTDIR"}
    (tmp_path / "out").unlink()
    assert send(exporter(tmp_path), numbered(1, 2)) == [Answer()]


class SlowDisk(RealDisk):
    """A disk whose journal can be held up at its sync."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.reached = threading.Event()

    def write(self, handle: Handle, buffers: Any, at: str) -> int:
        written = super().write(handle, buffers, at)
        if at == "files.journal.write" and any(b'"n"' in bytes(buffer) for buffer in buffers):
            self.reached.set()
            assert self.go_on.wait(PATIENCE_S)
        return written


def test_a_send_that_was_given_up_is_not_written_twice(tmp_path: Path) -> None:
    disk = SlowDisk()

    async def use(started: Exporter) -> None:
        given_up = asyncio.create_task(started.send(numbered(1, 2)))
        await asyncio.to_thread(disk.reached.wait)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        busy = await started.send(numbered(1, 2))
        assert busy.failed[0].code == "busy"
        disk.go_on.set()
        answers = [busy]
        while answers[-1].failed:
            await asyncio.sleep(0.01)
            answers.append(await started.send(numbered(1, 2)))
        assert await started.send(numbered(3, 3)) == Answer()

    with_exporter(exporter(tmp_path, Seam(disk=disk)), use)
    assert numbers(published(tmp_path)) == [1, 2, 3]


def test_a_send_that_was_given_up_is_remembered_over_a_restart(tmp_path: Path) -> None:
    disk = SlowDisk()

    async def use(started: Exporter) -> None:
        given_up = asyncio.create_task(started.send(numbered(1, 2)))
        await asyncio.to_thread(disk.reached.wait)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        disk.go_on.set()

    with_exporter(exporter(tmp_path, Seam(disk=disk)), use)
    send(exporter(tmp_path), numbered(1, 2), numbered(3, 3))
    assert numbers(published(tmp_path)) == [1, 2, 3]


def test_a_close_that_is_given_up_lets_go_in_the_end(tmp_path: Path) -> None:
    disk = SlowDisk()

    async def run() -> None:
        stuck, next_one = exporter(tmp_path, Seam(disk=disk)), exporter(tmp_path)
        await stuck.start()
        for call in (stuck.send(numbered(1, 2)), stuck.close()):
            task = asyncio.create_task(call)
            await asyncio.to_thread(disk.reached.wait)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await next_one.start()
        assert (await next_one.send(numbered(3, 3))).failed[0].code == "locked"
        disk.go_on.set()
        answers = [Answer({0: Failure(FailureClass.TRANSIENT, "not sent yet")})]
        while answers[-1].failed:
            await asyncio.sleep(0.01)
            answers.append(await next_one.send(numbered(3, 3)))
        await next_one.close()

    asyncio.run(run())
    assert numbers(published(tmp_path)) == [1, 2, 3]


def test_parallel_sends(tmp_path: Path) -> None:
    async def use(started: Exporter) -> None:
        sent = [started.send(numbered(n, n)) for n in range(1, 21)]
        assert await asyncio.gather(*sent) == [Answer()] * 20

    with_exporter(exporter(tmp_path, max_file_events=6), use)
    assert sorted(numbers(published(tmp_path))) == list(range(1, 21))


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"directory": "x", "format": "csv"},
        {"directory": "x", "format": "parquet", "content": "record"},
        {"directory": "x", "compression": "zstd"},
        {"directory": "x", "max_file_events": 0},
        {"directory": "x", "partition_by": "week"},
    ],
)
def test_what_cannot_be_meant(config: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        files.Config.model_validate(config)


def test_an_absolute_directory(tmp_path: Path) -> None:
    made = files.make(
        files.Config(directory=str(tmp_path / "far" / "away")), context(Path("/nowhere"))
    )
    assert send(made, numbered(1, 1)) == [Answer()]
    assert PurePath(next((tmp_path / "far" / "away").glob("*.ndjson"))).name.endswith(
        "1.0-1.0.ndjson"
    )
