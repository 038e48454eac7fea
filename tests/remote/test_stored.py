"""What a client is told of sealed data without a plan: columns, and segments by their summaries."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from tests.patience import until
from tests.remote.serving import Served, numbers, serving

from holdfast.errors import BadInput, UnknownPosition
from holdfast.quiver import Position
from holdfast.quiver.read.scan import TimeRange
from holdfast.quiver.read.sealed import SealedRead
from holdfast.remote import RemoteQuiver

START = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path / "quiver") as found:
        yield found


@pytest.fixture
def remote(served: Served) -> RemoteQuiver:
    return served.connect()


def dated(*minutes: int) -> pa.RecordBatch:
    at = [START + timedelta(minutes=minute) for minute in minutes]
    return pa.record_batch({"at": pa.array(at, pa.timestamp("us", tz="UTC")), "n": list(minutes)})


def us(minute: int) -> int:
    return int((START + timedelta(minutes=minute)).timestamp()) * 1_000_000


def test_the_columns_are_those_of_all_rows(remote: RemoteQuiver) -> None:
    assert remote.schema() is None
    for rows in (numbers(1), pa.record_batch({"n": [0.5], "word": ["a"]})):
        remote.append({"events": rows, "other": numbers(1)})
        remote.flush()
    schema = remote.schema()
    assert schema is not None
    assert (schema.field("n").type, schema.field("word").type) == (pa.float64(), pa.string())
    chosen = remote.schema("events", ["word", "_seq"])
    assert chosen is not None
    assert chosen.names == ["word", "_seq"]
    assert remote.schema("none") is None
    with pytest.raises(BadInput, match="no column words"):
        remote.schema("events", ["words"])


def test_segments_without_wanted_rows_are_left_out(remote: RemoteQuiver) -> None:
    for minutes in ((0, 9), (10, 19), (20, 29)):
        remote.append(dated(*minutes))
        remote.flush()
    remote.append({"other": numbers(1)})
    remote.flush()
    found = remote.segments()
    assert [(one.first_seq, one.last_seq, one.rows) for one in found] == [
        (0, 0, 2), (1, 1, 2), (2, 2, 2),
    ]  # fmt: skip

    def seqs(**asked: object) -> list[int]:
        return [one.first_seq for one in remote.segments(**asked)]  # type: ignore[arg-type]

    # The end is exclusive, the beginning is not.
    assert seqs(times=TimeRange(us(9), us(10))) == [0]
    assert seqs(times=TimeRange(us(10), us(20))) == [1]
    assert seqs(times=TimeRange(us(30), None)) == []
    assert seqs(start=Position(1), end=Position(2)) == [1]
    assert seqs(slot="other") == [3]
    wanted = SealedRead(remote.quiver_id, (found[1].name,), "events", ("n",))
    assert remote.read(wanted).read_all().column("n").to_pylist() == [10, 19]


def test_a_range_that_is_gone_is_refused(served: Served, remote: RemoteQuiver) -> None:
    with pytest.raises(UnknownPosition, match="nothing is left"):
        remote.segments(start=Position(0))
    cursor = served.quiver.cursor("reader")
    for value in (1, 2):
        remote.append(numbers(value))
        remote.flush()
    planned = cursor.plan(max_events=1)
    assert planned is not None
    cursor.commit(planned)
    until(lambda: len(served.quiver.segments()) == 1)
    with pytest.raises(UnknownPosition, match="begins at bundle 0, and what is left begins at 1"):
        remote.segments(start=Position(0))
    assert [one.first_seq for one in remote.segments(start=Position(1))] == [1]
    assert [one.first_seq for one in remote.segments()] == [1]
