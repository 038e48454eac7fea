"""Reduces by Python functions: state and timers of Spark's `transformWithState`, group by group.

Rows come packed (packing.py). A window's rows wait in Spark's state (RocksDB), in the pieces that
they came in, so that a row costs the same however many are there already; a timer at the window's
end calls the function. Timers are
those of event time: what drives them is the claimed watermark, like native windows, and what is
late is the same, because the column that is marked for Spark is the end of a row's last window.

    fixed, sliding    one group is one window of one key: Spark itself assigns rows to windows
      by Arrow        the same, and a window's rows are one RecordBatch
      folded          the same, and what is kept of a window is a state, not its rows
    session           one group is one key: its sessions are found when a timer goes off
    process           one group is one key: what is kept and when to wake is the function's affair

A function that fails does not end the query: what it was called with is rejected, as in a map. The
state is then what it was before that call.
"""

# Spark gives methods and arguments their names.
# ruff: noqa: N802, N803

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
)

from holdfast.dataflow.compiler.calls import (
    ROW_ERRORS,
    FunctionFailed,
    GaveUp,
    as_batch,
    as_json,
    checked,
    error_text,
    stop_clock,
    tried,
)
from holdfast.dataflow.compiler.packing import PACKED, joined, repacked, unpacked
from holdfast.dataflow.spec.functions import load_function
from holdfast.dataflow.spec.vertices import WINDOW_COLUMNS, RetrySettings

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

KEPT = "kept binary"
_TAGS = pa.field("_tags", pa.list_(pa.string()))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
# A result is of the last moment of its window: the next window that it counts in is the right one.
RESULT_BEFORE_END = _MS


@dataclass(frozen=True)
class Reducing:
    """What a reducer needs to know; made in the driver, used in workers."""

    vertex: str
    function: str | Callable[..., Any]
    key: tuple[str, ...]
    # The columns it returns.
    returns: pa.Schema
    timeout_s: float
    retry: RetrySettings
    is_fatal: bool
    gap: timedelta = timedelta(0)
    timer_span: timedelta = timedelta(0)


class Reducer(StatefulProcessor):
    """What all reducers share: calling the function, and the rows that come out."""

    def __init__(self, reducing: Reducing) -> None:
        self._reducing = reducing
        self._has_window = True

    @cached_property
    def _function(self) -> Callable[..., Any]:
        """What the user wrote. It is loaded for the first call: Spark also asks for the state that
        there is, in a process of its own, and would wait there for all that its module imports.
        """
        return load_function(self._reducing.function)

    def close(self) -> None:
        """See Spark: the last call of the task was made."""
        stop_clock()

    def _called(
        self,
        call: Callable[[], Any],
        given: Callable[[], dict[str, Any]],
        fixed: dict[str, Any],
        when: datetime,
    ) -> tuple[list[Row], bool]:
        """Return the rows that a call makes, or the one that says how it failed; and whether so.

        `given` is what the call was made with, for people: it is made only for one that failed.
        """
        reducing = self._reducing
        try:
            returned = tried(lambda: _rows(call()), reducing.timeout_s, reducing.retry)
            rows = as_batch(returned, reducing.returns, [_TAGS]).to_pylist()
        except GaveUp as gave:
            return [self._failed(gave.error, gave.attempts, given(), fixed, when)], True
        except ROW_ERRORS as error:
            return [self._failed(error_text(error), 1, given(), fixed, when)], True
        return [self._row(fixed, row, when, None) for row in rows], False

    def _failed(
        self,
        error: str,
        attempts: int,
        given: dict[str, Any],
        fixed: dict[str, Any],
        when: datetime,
    ) -> Row:
        """Return a failed call as a row among the results, or end the query if it says so.

        Spark's operator has one output. `_failed` says what happened, and frames.py tells such rows
        from results by it.
        """
        reducing = self._reducing
        if reducing.is_fatal:
            where = ", ".join(f"{name} {value}" for name, value in fixed.items())
            raise FunctionFailed(
                f"{reducing.vertex} failed at {where}, after {attempts} tries: {error}"
            )
        said = {"vertex": reducing.vertex, "error": error, "attempts": attempts}
        letter = Row(**said, row=as_json(given), payload=None, lane=None)
        return self._row(fixed, {}, when, letter)

    def _row(
        self, fixed: dict[str, Any], row: dict[str, Any], when: datetime, failed: Row | None
    ) -> Row:
        """Return a result, its columns in the order of the schema."""
        reducing = self._reducing
        windows = WINDOW_COLUMNS if self._has_window else ()
        values = {name: fixed.get(name) for name in (*windows, *reducing.key)}
        values |= {name: row.get(name) for name in reducing.returns.names}
        return Row(**values, _event_time=when, _tags=row.get("_tags"), _failed=failed)


class WindowReducer(Reducer):
    """A group is one window of one key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """See Spark."""
        self._handle = handle
        self._kept = handle.getListState("rows", KEPT)

    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        """See Spark: keep the rows, and wake at the end of the window."""
        for row in rows:
            self._kept.appendValue((row[PACKED],))
        _, end, *_ = key
        self._handle.registerTimer(_ms(_in_utc(end)))
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        """See Spark: the window has ended."""
        rows = [row for (kept,) in self._kept.get() for row in unpacked(kept)]
        self._kept.clear()
        return iter(self._close(_window_of(key, self._reducing), rows))

    def _close(self, window: dict[str, Any], rows: list[dict[str, Any]]) -> list[Row]:
        """Return what the function makes of a window that has ended; its rows are in order."""
        rows.sort(key=_time)
        made, _ = self._called(
            lambda: self._function(dict(window), list(rows)),
            lambda: {**window, "rows": rows},
            window,
            window["window_end"] - RESULT_BEFORE_END,
        )
        return made


class ArrowReducer(WindowReducer):
    """A group is one window of one key, and its rows are Arrow."""

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        """See Spark: the window has ended."""
        window = _window_of(key, self._reducing)
        rows = joined(kept for (kept,) in self._kept.get())
        self._kept.clear()
        made, _ = self._called(
            lambda: self._function(dict(window), rows),
            lambda: {**window, "rows": rows.to_pylist()},
            window,
            window["window_end"] - RESULT_BEFORE_END,
        )
        return iter(made)


class FoldReducer(Reducer):
    """A group is one window of one key, and what is kept of it is a state."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """See Spark."""
        self._handle = handle
        self._kept = handle.getValueState("folded", KEPT)

    @cached_property
    def _fold(self) -> Any:
        return self._function()

    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        """See Spark: add the rows, and wake at the end of the window."""
        window = _window_of(key, self._reducing)
        before = self._kept.get()
        folded = _Folded(self._fold, window, None if before is None else before[0])
        given = sorted((one for row in rows for one in unpacked(row[PACKED])), key=_time)
        failed = [made for row in given if (made := self._add(folded, window, row)) is not None]
        try:
            state = folded.packed()
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise FunctionFailed(
                f"the state of {self._reducing.vertex} cannot be kept: {error_text(error)}"
            ) from error
        if state is not None:
            self._kept.update((state,))
        self._handle.registerTimer(_ms(window["window_end"]))
        return iter(failed)

    def _add(self, folded: _Folded, window: dict[str, Any], row: dict[str, Any]) -> Row | None:
        """Add a row; return what says how that failed, if it did."""
        try:
            tried(folded.adding(row), self._reducing.timeout_s, self._reducing.retry)
        except GaveUp as gave:
            given = {**window, "row": row}
            return self._failed(gave.error, gave.attempts, given, window, _time(row))
        folded.settle(row)
        return None

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        """See Spark: the window has ended."""
        window = _window_of(key, self._reducing)
        before = self._kept.get()
        if before is None:
            return iter(())  # no row of it could be added
        (kept,) = before
        self._kept.clear()
        made, _ = self._called(
            lambda: self._fold.end(dict(window), pickle.loads(kept)),
            lambda: {**window, "state": pickle.loads(kept)},
            window,
            window["window_end"] - RESULT_BEFORE_END,
        )
        return iter(made)


class _Folded:
    """The state of one window in one batch: what a call that fails did to it is undone.

    A call may change the state in place and raise then. So the state of before is kept as a pickle,
    and made again with the rows that were added since. Whenever that was done it is kept anew:
    many rows that fail cost no more than a pickle each.
    """

    def __init__(self, fold: Any, window: dict[str, Any], kept: bytes | None) -> None:
        self._fold = fold
        self._window = window
        self._kept = kept
        self._added: list[dict[str, Any]] = []
        # None while a call may have spoilt it.
        self._state: Any = None

    def adding(self, row: dict[str, Any]) -> Callable[[], None]:
        """Return the call that adds a row; it may be made several times."""

        def call() -> None:
            state = self._again() if self._state is None else self._state
            self._state = None
            self._state = _not_none(self._fold.add(state, dict(row)))

        return call

    def settle(self, row: dict[str, Any]) -> None:
        """Know that a row was added."""
        self._added.append(row)

    def packed(self) -> bytes | None:
        """Return the state as it is kept; None if no row was added ever."""
        if self._kept is None and not self._added:
            return None
        return pickle.dumps(self._again() if self._state is None else self._state)

    def _again(self) -> Any:
        """Return the state after all calls that went well."""
        if self._kept is None:
            state = _not_none(self._fold.start(dict(self._window)))
        else:
            state = pickle.loads(self._kept)
        for row in self._added:
            state = self._fold.add(state, dict(row))
        if self._added:
            self._kept, self._added = pickle.dumps(state), []
        return state


def _not_none(state: Any) -> Any:
    if state is None:
        raise TypeError("returned None, not the state")
    return state


class SessionReducer(WindowReducer):
    """A group is one key; its sessions are found when one may have ended."""

    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        """See Spark: keep the rows, and wake when each session that they make alone would end."""
        pieces = [row[PACKED] for row in rows]
        for piece in pieces:
            self._kept.appendValue((piece,))
        own = sorted((row for piece in pieces for row in unpacked(piece)), key=_time)
        for session in self._sessions(own):
            self._handle.registerTimer(_ms(self._end(session)))
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        """See Spark: close the sessions that have ended; others have timers of their own."""
        rows = [row for (kept,) in self._kept.get() for row in unpacked(kept)]
        rows.sort(key=_time)
        watermark_ms = timerValues.getCurrentWatermarkInMs()
        ended, left = list[list[dict[str, Any]]](), list[dict[str, Any]]()
        for session in self._sessions(rows):
            if _ms(self._end(session)) <= watermark_ms:
                ended.append(session)
            else:
                left += session
        if not ended:
            return
        if left:
            self._kept.put([(repacked(left),)])
        else:
            self._kept.clear()
        keys = dict(zip(self._reducing.key, map(_plain_value, key), strict=False))
        for session in ended:
            start, end = session[0]["_event_time"], self._end(session)
            yield from self._close({"window_start": start, "window_end": end, **keys}, session)

    def _sessions(self, rows: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
        """Return rows, which are in order, session by session."""
        found: list[list[dict[str, Any]]] = []
        for row in rows:
            # A row at the very end of a session belongs to it, as it does for Spark.
            if found and row["_event_time"] <= self._end(found[-1]):
                found[-1].append(row)
            else:
                found.append([row])
        return found

    def _end(self, session: Sequence[dict[str, Any]]) -> datetime:
        end: datetime = session[-1]["_event_time"] + self._reducing.gap
        return end


# ----------------------------------------------------------------- state and timers


@dataclass
class Context:
    """What a process knows while it is called, of one key."""

    key: dict[str, Any]
    # Whatever the process puts here is there at the next call; None at first.
    state: Any
    # No row that is older will come.
    watermark: datetime
    # When this happens: the time of the row, or of the timer.
    now: datetime
    timer_span: timedelta
    timers: list[datetime] = field(default_factory=list)

    def set_timer(self, when: datetime) -> None:
        """Have `on_timer` called when the watermark has come to a moment."""
        if when > self.now + self.timer_span:
            raise ValueError(
                f"a timer {when - self.now} after the event is beyond `timer_span` "
                f"({self.timer_span})"
            )
        self.timers.append(when)


class ProcessReducer(Reducer):
    """A group is one key."""

    def __init__(self, reducing: Reducing) -> None:
        super().__init__(reducing)
        self._has_window = False

    def init(self, handle: StatefulProcessorHandle) -> None:
        """See Spark."""
        self._handle = handle
        self._kept = handle.getValueState("state", KEPT)

    @cached_property
    def _process(self) -> Any:
        return self._function()

    def handleInputRows(
        self, key: Any, rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        """See Spark: call `on_row` for each, in order of their times."""
        given = sorted((one for row in rows for one in unpacked(row[PACKED])), key=_time)
        return iter(self._all(key, given, timerValues))

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        """See Spark: call `on_timer`."""
        moment = _EPOCH + expiredTimerInfo.getExpiryTimeInMs() * _MS
        return iter(self._all(key, [moment], timerValues))

    def _all(self, key: Any, events: Sequence[Any], times: TimerValues) -> list[Row]:
        """Return the results of some calls one after the other, and keep the state."""
        before = self._kept.get()
        keys = dict(zip(self._reducing.key, map(_plain_value, key), strict=False))
        watermark_ms = max(0, times.getCurrentWatermarkInMs())
        turn = _Turn(
            self._process, self._reducing, keys, watermark_ms, None if before is None else before[0]
        )
        made: list[Row] = []
        for event in events:
            given = {"timer": event} if isinstance(event, datetime) else event
            call = turn.call(event)
            said = {**keys, **given}
            rows, has_failed = self._called(call, partial(dict, said), keys, _time(event))
            made += rows
            turn.settle(event, has_failed)
        if turn.state is None:
            self._kept.clear()
        else:
            self._kept.update((pickle.dumps(turn.state),))
        for when in turn.timers:
            # One that is past already goes off with the next batch, and its results are in time.
            self._handle.registerTimer(max(_ms(when), watermark_ms + 1))
        return made


class _Turn:
    """The calls of one key in one batch: what one that fails did to the state is undone."""

    def __init__(
        self,
        process: Any,
        reducing: Reducing,
        key: dict[str, Any],
        watermark_ms: int,
        kept: bytes | None,
    ) -> None:
        self.timers: set[datetime] = set()
        self._process = process
        self._span = reducing.timer_span
        self._key = key
        self._watermark = _EPOCH + watermark_ms * _MS
        self._kept = kept
        self._done: list[Any] = []
        self.state = self._first()
        self._context: Context | None = None

    def call(self, event: Any) -> Callable[[], Any]:
        """Return the call for a row or a timer; it may be made several times."""
        self._context = None

        def call() -> Any:
            if self._context is not None:
                self.state = self._again()
            self._context = self._in(event, self.state)
            return self._made(event, self._context)

        return call

    def settle(self, event: Any, has_failed: bool) -> None:
        """Take what a call did, or forget it."""
        assert self._context is not None, "BUG: nothing was called"
        if has_failed:
            self.state = self._again()
        else:
            self.state = self._context.state
            self.timers.update(self._context.timers)
            self._done.append(event)

    def _first(self) -> Any:
        return None if self._kept is None else pickle.loads(self._kept)

    def _again(self) -> Any:
        """Return the state after the calls that went well, by making them again."""
        state = self._first()
        for event in self._done:
            context = self._in(event, state)
            _rows(self._made(event, context))
            state = context.state
        return state

    def _in(self, event: Any, state: Any) -> Context:
        return Context(dict(self._key), state, self._watermark, _time(event), self._span)

    def _made(self, event: Any, context: Context) -> Any:
        if isinstance(event, datetime):
            return self._process.on_timer(event, context)
        return self._process.on_row(dict(event), context)


def _window_of(key: Any, reducing: Reducing) -> dict[str, Any]:
    """Return what a function is told of a window: its bounds, and its key."""
    return dict(zip((*WINDOW_COLUMNS, *reducing.key), map(_plain_value, key), strict=True))


def _time(event: Any) -> datetime:
    """Return when a row or a timer happens, in event time."""
    moment: datetime = event if isinstance(event, datetime) else event["_event_time"]
    return moment


def _rows(returned: Any) -> list[dict[str, Any]]:
    """Return what a function returned as a list of rows; raises `TypeError` if it is none."""
    if returned is None:
        return []
    if isinstance(returned, str | bytes):
        raise TypeError(f"returned {type(returned).__name__}, not rows")
    if isinstance(returned, pa.Table | pa.RecordBatch):
        returned = returned.to_pylist()
    return [checked(row) for row in ([returned] if isinstance(returned, dict) else returned)]


def _plain(row: Row) -> dict[str, Any]:
    return {name: _plain_value(row[name]) for name in row.__fields__}


def _in_utc(moment: datetime) -> datetime:
    """Return a time of a key in UTC; Spark gives local ones."""
    return moment.astimezone(UTC)


def _plain_value(value: Any) -> Any:
    """Return a value of a key as functions see it: times in UTC, rows as dicts."""
    if isinstance(value, datetime):
        return _in_utc(value)
    if isinstance(value, Row):
        return _plain(value)
    if isinstance(value, list):
        return [_plain_value(one) for one in value]
    if isinstance(value, dict):
        return {name: _plain_value(one) for name, one in value.items()}
    return value


def _ms(moment: datetime) -> int:
    """Return the first whole millisecond that is not before a moment."""
    return -((_EPOCH - moment) // _MS)
