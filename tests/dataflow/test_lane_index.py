"""What a retry lane knows of its rows: as much as if it looked at all of them each time."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.dataflow.held import earliest_held_us

from holdfast.dataflow.compiler.lane import LaneIndex, without
from holdfast.dataflow.sink.options import EVENT_TIME
from holdfast.quiver import Position, Quiver
from holdfast.quiver.base.envelope import TIME_TYPE

MAX_HOLD_US = 60
SCHEMA = pa.schema(
    [
        ("_seq", pa.int64()),
        ("id", pa.string()),
        ("batch", pa.int32()),
        ("failed_us", pa.int64()),
        (EVENT_TIME, TIME_TYPE),
    ]
)


class _Statement(NamedTuple):
    pending_events: int


class Rows:
    """A quiver with one row in each bundle, that counts how many were read."""

    def __init__(self, *rows: tuple[int, int]) -> None:
        self.rows: list[dict[str, Any]] = []
        self.read = 0
        for event_us, failed_us in rows:
            self.add(event_us, failed_us)

    def add(self, event_us: int, failed_us: int, batch: int = 0) -> None:
        """Append a row."""
        seq = len(self.rows)
        values = (seq, f"row-{seq}", batch, failed_us, event_us)
        self.rows.append(dict(zip(SCHEMA.names, values, strict=True)))

    def statement(self, start: Position) -> _Statement:
        """As a quiver does."""
        return _Statement(len(self.rows) - start.seq)

    def scan(self, columns: list[str], *, slot: str, start: Position) -> pa.RecordBatchReader:
        """As a quiver does."""
        found = pa.Table.from_pylist(self.rows[start.seq :], SCHEMA)
        self.read += found.num_rows
        return found.select(columns).to_reader()


def index_of(rows: Rows) -> LaneIndex:
    return LaneIndex(cast(Quiver, rows), MAX_HOLD_US)


def held(*rows: tuple[int, int], start: int = 0, promised_us: int = 0, now_us: int = 159) -> Any:
    """Return what rows of (event time, first failure) hold."""
    return index_of(Rows(*rows)).held_us(Position(start), now_us, promised_us)


def test_the_minimum_is_not_that_of_the_oldest_row() -> None:
    """Hole H1 of Numaflow. 1000, 1200, 1100: once the first is done, 1100 holds, not 1200."""
    rows = ((1000, 100), (1200, 100), (1100, 100))
    assert held(*rows) == 1000
    assert held(*rows, start=1) == 1100
    assert held() is None


def test_a_row_holds_for_max_hold_after_it_first_failed() -> None:
    assert held((5, 100), now_us=159) == 5
    assert held((5, 100), now_us=160) is None
    assert held((5, 100), (7, 150), now_us=160) == 7


def test_a_row_that_was_late_when_it_failed_holds_nothing() -> None:
    assert held((5, 100), promised_us=6) is None
    assert held((5, 100), (6, 100), promised_us=6) == 6


TIMES = st.integers(0, 100)
STEPS = st.lists(
    st.tuples(st.just("row"), TIMES)
    | st.tuples(st.sampled_from(["clock", "done", "promise"]), TIMES),
    max_size=60,
)


@given(STEPS)
def test_it_answers_as_if_it_looked_at_every_row_and_reads_each_once(
    steps: list[tuple[str, int]],
) -> None:
    rows, now_us, start, promised_us = Rows(), 100, 0, 0
    index = index_of(rows)
    for step, value in steps:
        if step == "row":
            rows.add(value, now_us)
        elif step == "clock":
            now_us += value
        elif step == "done":
            start = min(len(rows.rows), start + value % 4)
        else:
            promised_us = max(promised_us, value)
        left = [(row[EVENT_TIME], row["failed_us"]) for row in rows.rows[start:]]
        expected = earliest_held_us(
            left, now_us=now_us, max_hold_us=MAX_HOLD_US, promised_us=promised_us
        )
        assert index.held_us(Position(start), now_us, promised_us) == expected
    assert rows.read == len(rows.rows)


def test_a_hundred_thousand_rows_that_wait_are_not_looked_at_for_every_batch() -> None:
    rows = Rows(*((number, 100) for number in range(100_000)))
    index = index_of(rows)
    for batch in range(100):
        rows.add(500_000, 100, batch)
        assert index.held_us(Position(0), 101, 0) == 0
        assert index.ids_of(batch) >= {f"row-{100_000 + batch}"}
    assert rows.read == 100_100


def test_ids_are_kept_of_the_batches_that_may_be_run_again() -> None:
    rows = Rows()
    for batch in (5, 5, 6, 9):
        rows.add(1, 100, batch)
    index = index_of(rows)
    assert index.ids_of(9) == {"row-3"}
    assert (index.ids_of(5), index.ids_of(8), index.ids_of(10)) == (set(), set(), set())
    rows.add(1, 100, 10)
    assert (index.ids_of(9), index.ids_of(10)) == ({"row-3"}, {"row-4"})


def test_rows_that_are_there_already_are_left_out() -> None:
    batch = pa.record_batch({"id": ["a", "b", "c"], "n": [1, 2, 3]})
    (left,) = without({"c", "a"})(iter([batch]))
    assert left.to_pylist() == [{"id": "b", "n": 2}]
    (all_of_them,) = without(set())(iter([batch]))
    assert all_of_them.num_rows == 3
