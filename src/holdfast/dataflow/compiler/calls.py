"""Calling a user's function: its attempts, its time limit, and what is said of a row it rejects.

A function is somebody else's code, in our worker. It may raise, hang, return what does not fit, or
catch every exception; none of that may cost more than the row it was called with. So a call has a
limit that it cannot catch (`_TooLong`), attempts with pauses, and in the end a row in the column of
failures: with the error, and with the row itself if it may come again.

The limit is an alarm signal, which only a main thread gets. Spark calls functions in the main
thread of a worker; elsewhere, as in tests, a call runs as long as it runs.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


def tried(call: Callable[[], Returned], timeout_s: float, retry: RetrySettings) -> Returned:
    """Return what a call returns; raises `GaveUp` when it failed as often as it may."""
    for attempt in range(1, retry.attempts + 1):
        try:
            with _no_longer_than(timeout_s):
                return call()
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


def as_batch(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as Arrow; raises one of `ROW_ERRORS` if they do not fit."""
    for row in rows:
        if not row.keys() <= set(schema.names):
            unknown = ", ".join(sorted(map(str, row.keys() - set(schema.names))))
            raise ValueError(f"returned {unknown}, which is not in `returns`")
    return pa.RecordBatch.from_pylist(rows, schema)


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


@contextmanager
def _no_longer_than(timeout_s: float) -> Iterator[None]:
    """Raise `_TooLong` in the body when it takes longer; only a main thread can be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise _TooLong(f"took longer than {timeout_s:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
