"""Calling a user's function: its attempts, its time limit, and what is said of a row it rejects.

A function is somebody else's code, in our worker. It may raise, hang, return what does not fit, or
catch every exception; none of that may cost more than the row it was called with. So a call has a
limit that it cannot catch (`_TooLong`), attempts with pauses, and in the end a row in the column of
failures: with the error, and with the row itself if it may come again.

The limit is kept by an alarm signal, which only a main thread gets. Spark calls functions in the
main thread of a worker; elsewhere, as in tests, a call runs as long as it runs. An alarm of its own
would cost more than most calls do, so one clock ticks for all of them (`_CallClock`).
"""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructType

from holdfast.dataflow.spec.vertices import RetrySettings
from holdfast.errors import BadConfig, BadInput

# What a row needs to come again. `tries` says the how-maniest time that is, `attempts` how often a
# function was called with it; times are wall clock.
LANE_TYPE = pa.struct(
    [
        pa.field("id", pa.string()),
        pa.field("vertex", pa.string()),
        pa.field("tries", pa.int32()),
        pa.field("attempts", pa.int32()),
        pa.field("failed_us", pa.int64()),
        pa.field("due_us", pa.int64()),
        pa.field("row", pa.binary()),
    ]
)
LANE_DDL = from_arrow_type(LANE_TYPE).simpleString()
FAILED_TYPE = pa.struct(
    [
        pa.field("vertex", pa.string()),
        pa.field("error", pa.string()),
        pa.field("attempts", pa.int32()),
        pa.field("row", pa.string()),
        # The row as the function got it, if it failed in the end but may be sent again by people.
        pa.field("payload", pa.binary()),
        pa.field("lane", LANE_TYPE),
    ]
)
FAILED_DDL = from_arrow_type(FAILED_TYPE).simpleString()

ERROR_LETTERS_MAX = 500
ROW_LETTERS_MAX = 64 * 1024
# What is raised for values that do not fit their columns.
ROW_ERRORS = (pa.ArrowException, TypeError, ValueError, OverflowError, BadInput)

# Between two looks at the call under way: this part of what it may take, within these bounds.
TICK_SHARE, TICK_S_MIN, TICK_S_MAX = 0.1, 0.005, 1.0

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Returned = TypeVar("Returned")


class FunctionFailed(Exception):
    """A function failed, and the pipeline says that this is the end."""


class GaveUp(Exception):
    """All attempts failed."""

    def __init__(self, error: str, attempts: int) -> None:
        super().__init__(error)
        self.error = error
        self.attempts = attempts


class _TooLong(BaseException):
    """A call took longer than it may; not an `Exception`, which functions catch."""


class _CallClock:
    """Ends a call that takes too long: a tick looks at the call under way.

    What a tick raises is caught by whoever made the call, and by nobody else: it is raised once a
    call at most, and only before `limited` has returned.
    """

    def __init__(self) -> None:
        # When the call under way has to be over, and how long it may take in all.
        self._until_s = math.inf
        self._limit_s = math.inf
        # Between two ticks; infinite while there are none.
        self._tick_s = math.inf
        self._before: Any = signal.SIG_DFL

    def limited(self, call: Callable[[], Returned], timeout_s: float) -> Returned:
        """Return what a call returns; raises `_TooLong` in it if it takes longer."""
        if threading.current_thread() is not threading.main_thread():
            return call()
        tick_s = min(max(timeout_s * TICK_SHARE, TICK_S_MIN), TICK_S_MAX)
        if tick_s < self._tick_s:
            self._start(tick_s)
        try:
            self._limit_s = timeout_s
            self._until_s = time.monotonic() + timeout_s
            return call()
        finally:
            self._until_s = math.inf

    def _start(self, tick_s: float) -> None:
        before = signal.signal(signal.SIGALRM, self._look)
        if self._tick_s == math.inf:
            self._before = before
        self._tick_s = tick_s
        signal.setitimer(signal.ITIMER_REAL, tick_s, tick_s)

    def stop(self) -> None:
        """Tick no more, until the next call."""
        if self._tick_s == math.inf or threading.current_thread() is not threading.main_thread():
            return
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)
        self._tick_s = math.inf

    def _look(self, number: int, frame: FrameType | None) -> None:
        if time.monotonic() >= self._until_s:
            self._until_s = math.inf
            raise _TooLong(f"took longer than {self._limit_s:g} s")


_CLOCK = _CallClock()


def stop_clock() -> None:
    """Leave a process without alarms; whoever makes calls does this at the end."""
    _CLOCK.stop()


def tried(call: Callable[[], Returned], timeout_s: float, retry: RetrySettings) -> Returned:
    """Return what a call returns; raises `GaveUp` when it failed as often as it may."""
    for attempt in range(1, retry.attempts + 1):
        try:
            return _CLOCK.limited(call, timeout_s)
        except (Exception, _TooLong) as error:
            if attempt == retry.attempts:
                raise GaveUp(error_text(error), attempt) from None
            time.sleep(retry.pause_s(attempt))
    raise AssertionError("BUG: no attempt was made")


def error_text(error: BaseException) -> str:
    """Return an error in words, not too many."""
    return f"{type(error).__name__}: {error}".removeprefix("_TooLong: ")[:ERROR_LETTERS_MAX]


def as_json(row: dict[str, Any]) -> str:
    """Return a row for people, not too much of it."""

    def text(value: Any) -> str:
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

    return json.dumps(row, default=text, ensure_ascii=False)[:ROW_LETTERS_MAX]


def checked(row: Any) -> dict[str, Any]:
    """Return a row that a function returned; raises if it is none."""
    if not isinstance(row, dict):
        raise TypeError(f"returned {type(row).__name__}, not a row (dict)")
    return row


def as_batch(
    rows: list[dict[str, Any]], schema: pa.Schema, settable: Sequence[pa.Field] = ()
) -> pa.RecordBatch:
    """Return rows as Arrow, with those of the settable columns that some row has.

    Raises one of `ROW_ERRORS` if they do not fit.
    """
    given = set[str]().union(*rows)
    columns = pa.schema([*schema, *(field for field in settable if field.name in given)])
    if not given <= set(columns.names):
        unknown = ", ".join(sorted(map(str, given - set(columns.names))))
        raise ValueError(f"returned {unknown}, which is not in `returns`")
    return pa.RecordBatch.from_pylist(rows, columns)


def moments(times: pa.Array) -> list[datetime | None]:
    """Return times as Python has them; faster than Arrow, which asks for each zone."""
    since = times.cast(pa.timestamp("us")).view(pa.duration("us"))
    spans: list[timedelta | None] = since.to_numpy(zero_copy_only=False).tolist()
    return [None if span is None else _EPOCH + span for span in spans]


def parse_columns(ddl: str, setting: str) -> StructType:
    """Return the columns that a setting declares; raises `BadConfig` if Spark cannot parse them."""
    try:
        parsed = StructType.fromDDL(ddl)
    except (ParseException, AnalysisException) as error:
        raise BadConfig(
            f"{setting} is not understood: {str(error).strip().splitlines()[0]}",
            hint="write names and types of Spark: key string, number bigint",
        ) from error
    assert isinstance(parsed, StructType), "BUG: columns are a struct"
    return parsed
