"""Reducers in Python without Spark: what is kept, when they wake, what a failing call leaves."""

from __future__ import annotations

import itertools
import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues
from pyspark.sql.streaming.tws_tester import _InMemoryStatefulProcessorHandle
from tests.dataflow.compiler.rows import seconds
from tests.dataflow.quivers import at
from tests.support.examples import examples

from holdfast.dataflow.compiler.calls import FunctionFailed
from holdfast.dataflow.compiler.packing import (
    GATHERED_BYTES,
    GATHERED_ROWS,
    PACKED,
    RowPacker,
    unpacked,
)
from holdfast.dataflow.compiler.reducers import (
    KEPT,
    ArrowReducer,
    FoldReducer,
    ProcessReducer,
    Reducer,
    Reducing,
    SessionReducer,
    WindowReducer,
)
from holdfast.dataflow.spec.vertices import RetrySettings
from holdfast.quiver.base.envelope import TIME_TYPE

RETURNS = pa.schema([("numbers", pa.list_(pa.int64()))])
PACKED_ROWS = pa.schema([("key", pa.string()), ("_close", TIME_TYPE), (PACKED, pa.binary())])


def reducing(function: Any, **options: Any) -> Reducing:
    given_options: dict[str, Any] = {
        "timeout_s": 60.0,
        "retry": RetrySettings(),
        "is_fatal": False,
        "gap": timedelta(seconds=10),
        "timer_span": timedelta(seconds=10),
    }
    return Reducing("v", function, ("key",), RETURNS, **{**given_options, **options})


class Stand:
    """Feeds one group of a reducer, and moves its watermark, as Spark does."""

    def __init__(
        self, reducer: Reducer, key: tuple[Any, ...] = ("k",), *, as_arrow: bool = False
    ) -> None:
        self._as_arrow = as_arrow
        self._handle = _InMemoryStatefulProcessorHandle("eventtime")
        self._reducer = reducer
        self._key = key
        self._watermark_ms = 0
        self._handle.setGroupingKey(key)
        reducer.init(self._handle)

    def feed(self, *given_rows: tuple[float, int]) -> list[Row]:
        given = [
            {"key": "k", "number": number, "_event_time": at(s), "_close": at(s)}
            for s, number in given_rows
        ]
        batch = pa.RecordBatch.from_pylist(given)
        packed = RowPacker(["key"], PACKED_ROWS, as_arrow=self._as_arrow)(iter([batch]))
        rows = [Row(**row) for one in packed for row in one.to_pylist()]
        return list(self._reducer.handleInputRows(self._key, iter(rows), self._times()))

    def keep(self, piece: bytes) -> None:
        """Add what another version kept."""
        self._handle.getListState("rows", KEPT).appendValue((piece,))

    def advance(self, s: float) -> list[Row]:
        self._watermark_ms = int(at(s).timestamp() * 1000)
        out: list[Row] = []
        due = [ms for ms in self.timers() if ms <= self._watermark_ms]
        for ms in due:
            self._handle.deleteTimer(ms)
            info = ExpiredTimerInfo(ms)
            out += self._reducer.handleExpiredTimer(self._key, self._times(), info)
        return out

    def timers(self) -> list[int]:
        return sorted(self._handle.listTimers())

    def _times(self) -> TimerValues:
        return TimerValues(0, self._watermark_ms)


def _local(moment: datetime) -> datetime:
    return moment.astimezone().replace(tzinfo=None)


def numbers(window: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"numbers": [row["number"] for row in rows]}


def test_a_window_is_called_once_when_it_ends_with_its_rows_in_order() -> None:
    stand = Stand(WindowReducer(reducing(numbers)), (_local(at(0)), _local(at(10)), "k"))
    assert stand.feed((3, 1), (1, 2)) == []
    assert stand.feed((2, 3)) == []
    assert stand.advance(9.999) == []
    (row,) = stand.advance(10)
    assert (row.numbers, row.key, row._failed) == ([2, 3, 1], "k", None)
    assert (row.window_start, row.window_end, row._event_time) == (at(0), at(10), at(9.999))
    assert stand.advance(100) == []


@settings(max_examples=examples(60))
@given(st.lists(st.lists(st.integers(0, 120), min_size=1, max_size=4), min_size=1, max_size=6))
def test_sessions_are_those_of_all_rows_however_they_come(batches: list[list[int]]) -> None:
    """Without late rows, batches and their order change nothing."""
    stand = Stand(SessionReducer(reducing(numbers)))
    for batch in batches:
        stand.feed(*((float(s), s) for s in batch))
    out = stand.advance(1000)
    times = sorted(s for batch in batches for s in batch)
    expected = [[times[0]]]
    for before, s in itertools.pairwise(times):
        expected.append([s]) if s > before + 10 else expected[-1].append(s)
    assert [row.numbers for row in out] == expected
    assert [seconds(row.window_start) for row in out] == [one[0] for one in expected]
    assert [seconds(row.window_end) for row in out] == [one[-1] + 10 for one in expected]


def test_a_session_that_goes_on_is_not_closed_by_an_older_timer() -> None:
    stand = Stand(SessionReducer(reducing(numbers)))
    stand.feed((0, 1))
    stand.feed((5, 2), (40, 9))
    assert stand.advance(10) == []
    assert [row.numbers for row in stand.advance(15)] == [[1, 2]]
    assert [row.numbers for row in stand.advance(50)] == [[9]]


def test_a_call_that_fails_or_returns_something_else_is_told_with_its_rows() -> None:
    key = (_local(at(0)), _local(at(10)), "k")
    wrong: list[tuple[Any, str]] = [
        (lambda window, rows: 1 / 0, "ZeroDivisionError"),
        (lambda window, rows: {"numbers": "many"}, "Could not convert"),
        (lambda window, rows: {"other": 1}, "which is not in `returns`"),
        (lambda window, rows: "row", "returned str, not rows"),
        (lambda window, rows: [1], "returned int, not a row"),
    ]
    for function, error in wrong:
        stand = Stand(WindowReducer(reducing(function)), key)
        stand.feed((3, 42))
        (row,) = stand.advance(10)
        assert error in row._failed.error
        assert row._failed.vertex == "v"
        assert '"number": 42' in row._failed.row
    stand = Stand(WindowReducer(reducing(wrong[0][0], is_fatal=True)), key)
    stand.feed((3, 42))
    with pytest.raises(FunctionFailed, match="v failed at window_start"):
        stand.advance(10)


def test_nothing_or_many_rows_may_come_of_a_window() -> None:
    for function, count in ((lambda w, r: None, 0), (lambda w, r: ({"numbers": []} for _ in r), 2)):
        key = (_local(at(0)), _local(at(10)), "k")
        stand = Stand(WindowReducer(reducing(function)), key)
        stand.feed((3, 1), (4, 2))
        assert len(stand.advance(10)) == count


class Adding:
    """Adds up, tells with a timer, and does not like 13."""

    attempts = 0

    def on_row(self, row: dict[str, Any], context: Any) -> None:
        context.state = context.state or []
        context.state.append(row["number"])  # in place, before it fails
        if row["number"] == 13:
            type(self).attempts += 1
            raise ValueError("unlucky")
        context.set_timer(row["_event_time"] + timedelta(seconds=5))

    def on_timer(self, time: datetime, context: Any) -> dict[str, Any]:
        found, context.state = context.state, None
        return {"numbers": found, "_tags": ["told"]}


def test_a_process_keeps_its_state_and_a_failed_call_leaves_none() -> None:
    Adding.attempts = 0
    retry = RetrySettings(attempts=2, interval=0.0)
    stand = Stand(ProcessReducer(reducing(Adding, retry=retry)))
    assert stand.feed((1, 1)) == []
    (failed,) = stand.feed((2, 2), (2.5, 13), (2.7, 3))
    assert (failed._failed.error, failed._failed.attempts) == ("ValueError: unlucky", 2)
    assert '"number": 13' in failed._failed.row
    assert Adding.attempts == 2
    (row,) = stand.advance(6)
    assert (row.numbers, row._tags, row._event_time) == ([1, 2, 3], ["told"], at(6))
    assert row._event_time.tzinfo == UTC


def test_a_timer_that_is_past_goes_off_with_the_next_batch() -> None:
    stand = Stand(ProcessReducer(reducing(Adding)))
    stand.advance(100)
    stand.feed((1, 1))
    assert stand.timers() == [int(at(100).timestamp() * 1000) + 1]


KEYS = st.one_of(st.none(), st.sampled_from(["", "a", "b"]))
VALUES = {
    "whole": (pa.int64(), st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))),
    "small": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "real": (pa.float64(), st.one_of(st.none(), st.floats(allow_nan=False))),
    "sure": (pa.float64(), st.floats(allow_nan=False)),
    "raw": (pa.binary(), st.one_of(st.none(), st.binary(max_size=5))),
    "time": (TIME_TYPE, st.one_of(st.none(), st.integers(0, 10**6).map(at))),
    "any_time": (TIME_TYPE, st.datetimes(timezones=st.just(UTC))),
    "list": (pa.list_(pa.int32()), st.one_of(st.none(), st.lists(st.integers(0, 9), max_size=2))),
    "map": (
        pa.map_(pa.string(), pa.int64()),
        st.one_of(st.none(), st.dictionaries(st.text(max_size=2), st.integers(0, 9), max_size=2)),
    ),
}


@settings(max_examples=examples(60))
@given(st.data(), st.sampled_from(["key", "nested"]))
def test_packed_rows_are_the_rows_group_by_group(data: st.DataObject, group: str) -> None:
    kinds: dict[str, tuple[pa.DataType, Any]] = {"key": (pa.string(), KEYS), **VALUES}
    row = st.fixed_dictionaries({name: strategy for name, (_, strategy) in kinds.items()})
    given_rows: list[dict[str, Any]] = data.draw(st.lists(row, min_size=1, max_size=12))
    for number, one in enumerate(given_rows):
        # Arrow cannot group by a struct: then each row is packed alone.
        one |= {"nested": {"x": one["key"]}, "_event_time": at(number), "_close": at(number + 1)}
    schema = pa.schema(
        [
            *((name, kind) for name, (kind, _) in kinds.items()),
            ("nested", pa.struct([("x", pa.string())])),
            ("_event_time", TIME_TYPE),
            ("_close", TIME_TYPE),
        ]
    )
    packed = pa.schema([schema.field(group), ("_close", TIME_TYPE), (PACKED, pa.binary())])
    batch = pa.RecordBatch.from_pylist(given_rows, schema)
    (made,) = RowPacker([group], packed)(iter([batch]))
    groups = made.to_pylist()
    assert len(groups) == (
        len({one["key"] for one in given_rows}) if group == "key" else len(batch)
    )
    found: dict[datetime, dict[str, Any]] = {}
    for one in groups:
        rows = unpacked(one[PACKED])
        assert all(row[group] == one[group] for row in rows)
        assert one["_close"] == max(row["_event_time"] for row in rows) + timedelta(seconds=1)
        assert [row["_event_time"] for row in rows] == sorted(row["_event_time"] for row in rows)
        found |= {row["_event_time"]: row for row in rows}
    for one in given_rows:
        del one["_close"]
        assert found[one["_event_time"]] == one


@pytest.mark.parametrize(
    "kept",
    [
        [{"key": "k", "number": 1, "_event_time": at(1)}],
        {"key": ["k"], "number": [1], "_event_time": [at(1)]},
    ],
    ids=["rows", "columns"],
)
def test_state_of_an_earlier_version_goes_on(kept: Any) -> None:
    """It has lists of rows, or of values, and is mixed with what comes now."""
    stand = Stand(SessionReducer(reducing(numbers)))
    stand.feed((5, 2))
    stand.keep(pickle.dumps(kept))
    stand.feed((40, 9))
    assert [row.numbers for row in stand.advance(15)] == [[1, 2]]
    assert [row.numbers for row in stand.advance(50)] == [[9]]


@pytest.mark.parametrize(
    ("rows", "letters", "pieces"),
    [
        (100, 1, [1000]),
        (GATHERED_ROWS // 4, 1, [GATHERED_ROWS, GATHERED_ROWS, GATHERED_ROWS // 2]),
        (4, GATHERED_BYTES // 8, [8] * 5),
    ],
)
def test_batches_are_packed_together_up_to_so_many_rows_and_bytes(
    rows: int, letters: int, pieces: list[int]
) -> None:
    kinds = pa.schema([("key", pa.string()), ("_close", TIME_TYPE)])
    one = pa.RecordBatch.from_pylist([{"key": "k" * letters, "_close": at(0)}] * rows, kinds)
    empty = one.slice(0, 0)
    made = RowPacker(["key"], PACKED_ROWS)(iter([empty, *[one] * 10]))
    assert [len(unpacked(piece)) for part in made for piece in part[PACKED].to_pylist()] == pieces


def test_a_function_is_loaded_for_its_first_call() -> None:
    """Spark asks for the state in a process of its own, where no call is made."""
    for kind in (WindowReducer, ArrowReducer, FoldReducer, SessionReducer, ProcessReducer):
        Stand(kind(reducing("no_such_module:function")))


WINDOW = (_local(at(0)), _local(at(10)), "k")


def test_a_window_by_arrow_is_one_batch_in_order() -> None:
    def doubled(window: dict[str, Any], rows: pa.RecordBatch) -> pa.Table:
        assert window == {"window_start": at(0), "window_end": at(10), "key": "k"}
        found = rows.column("number").to_pylist()
        if found == [7]:
            raise ValueError("seven")
        return pa.table({"numbers": [found]})

    stand = Stand(ArrowReducer(reducing(doubled)), WINDOW, as_arrow=True)
    stand.feed((3, 1), (1, 2))
    stand.feed((2, 3))
    (row,) = stand.advance(10)
    assert (row.numbers, row.window_end, row._event_time) == ([2, 3, 1], at(10), at(9.999))
    stand = Stand(ArrowReducer(reducing(doubled)), WINDOW, as_arrow=True)
    stand.feed((3, 7))
    (row,) = stand.advance(10)
    assert (row._failed.error, row.numbers) == ("ValueError: seven", None)
    assert '"number": 7' in row._failed.row


class Collected:
    """A fold that keeps the numbers, changes its state in place, and does not like some."""

    def start(self, window: dict[str, Any]) -> dict[str, Any]:
        return {"of": window["key"], "numbers": []}

    def add(self, state: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
        state["numbers"].append(row["number"])
        if row["number"] < 0:
            raise ValueError("negative")
        return state

    def end(self, window: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        assert window["key"] == state["of"]
        found = state.pop("numbers")
        if found == [0]:
            raise ValueError("only a nought")
        return {"numbers": found}


@settings(max_examples=examples(60))
@given(
    st.lists(st.lists(st.integers(-3, 9), min_size=1, max_size=6), min_size=1, max_size=4),
    st.integers(1, 2),
)
def test_a_fold_has_all_rows_but_those_that_failed(batches: list[list[int]], attempts: int) -> None:
    retry = RetrySettings(attempts=attempts, interval=0.0)
    stand = Stand(FoldReducer(reducing(Collected, retry=retry)), WINDOW)
    failed = [row for batch in batches for row in stand.feed(*((1.0, n) for n in batch))]
    assert [row._failed.attempts for row in failed] == [attempts] * len(failed)
    sent = [n for batch in batches for n in batch]
    assert len(failed) == sum(n < 0 for n in sent)
    good = [n for n in sent if n >= 0]
    out = stand.advance(10)
    if not good:
        assert out == []
    elif good == [0]:
        assert "only a nought" in out[0]._failed.error
        assert '"numbers": [0]' in out[0]._failed.row
    else:
        assert [row.numbers for row in out] == [good]
    assert stand.advance(100) == []


def test_a_fold_that_returns_no_state_or_one_that_cannot_be_kept() -> None:
    class Forgetful(Collected):
        def add(self, state: dict[str, Any], row: dict[str, Any]) -> Any:
            return None

    (row,) = Stand(FoldReducer(reducing(Forgetful)), WINDOW).feed((1, 1))
    assert row._failed.error == "TypeError: returned None, not the state"

    class Open(Collected):
        def add(self, state: dict[str, Any], row: dict[str, Any]) -> Any:
            return {"of": lambda: None}

    with pytest.raises(FunctionFailed, match="the state of v cannot be kept"):
        Stand(FoldReducer(reducing(Open)), WINDOW).feed((1, 1))
