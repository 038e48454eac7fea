"""Runs of Python functions as one `mapInArrow`: called row by row or batch by batch, never fatal.

Spark hands rows to Python and takes them back once for a whole run, however many functions it has.
A row that a function does not take (it raises, returns something else than it said, or does not
end in time) is tried again as often as the pipeline says, and then set aside: it goes on as a row
whose column `_failed` says what happened, for its branch to pick up. All others go on.

A function for whole batches that fails is called again for ever smaller parts, down to single
rows, so that one bad row costs one row.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.dataflow.source.schema import fitter
from holdfast.dataflow.spec.functions import load_function
from holdfast.dataflow.spec.vertices import SETTABLE, SYSTEM_COLUMNS, RetrySettings
from holdfast.quiver.segments.envelope import TIME_TYPE

Kind = Literal["map", "filter", "flat_map", "arrow", "sink"]

ERROR_LETTERS_MAX = 500
ROW_LETTERS_MAX = 64 * 1024
# Later than every watermark: a row whose event time was set back is late, whatever its windows.
ALWAYS_LATE_US = 253402297200_000_000
FAILED_TYPE = pa.struct(
    [
        pa.field("vertex", pa.string()),
        pa.field("error", pa.string()),
        pa.field("attempts", pa.int32()),
        pa.field("row", pa.string()),
    ]
)
FAILED_DDL = "struct<vertex: string, error: string, attempts: int, row: string>"


_SETTABLE_FIELDS = (
    pa.field("_event_time", TIME_TYPE),
    pa.field("_tags", pa.list_(pa.string())),
)
# What is raised for values that do not fit their columns.
_UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)


class FunctionFailed(Exception):
    """A function failed, and the pipeline says that this is the end."""


class _TooLong(Exception):
    """A call took longer than it may."""


@dataclass(frozen=True)
class Call:
    """One function of a run."""

    vertex: str
    kind: Kind
    function: str | Callable[..., Any]
    # The columns it returns, without those of the system.
    returns: pa.Schema
    timeout_s: float
    retry: RetrySettings
    is_fatal: bool = False
    # Columns of the row it is called with that its results have, too.
    keep: tuple[str, ...] = ()


class _Part(NamedTuple):
    """Rows, in two parts of equal length: the user's columns, and the system's."""

    rows: pa.RecordBatch
    system: pa.RecordBatch

    def take(self, places: Sequence[int]) -> _Part:
        index = pa.array(places, pa.int64())
        return _Part(self.rows.take(index), self.system.take(index))

    def argument(self, place: int) -> dict[str, Any]:
        """Return a row as a function sees it."""
        row: dict[str, Any] = self.rows.slice(place, 1).to_pylist()[0]
        return row


class Run:
    """What one task does with its batches; made in the driver, called in workers."""

    def __init__(self, calls: Sequence[Call], schema: pa.Schema) -> None:
        self._calls = tuple(calls)
        self._schema = schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all batches after all functions."""
        functions = [load_function(call.function) for call in self._calls]
        fit = fitter(self._schema)
        for batch in batches:
            passing, part = _split(batch)
            if passing.num_rows:
                yield fit(passing)
            for call, function in zip(self._calls, functions, strict=True):
                part, failed = _Caller(call, function).apply(part)
                if failed.num_rows:
                    yield fit(failed)
            yield fit(_joined(part))


def _split(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, _Part]:
    """Return the rows that are not for functions (control rows, failed ones), and the others."""
    system = [name for name in batch.schema.names if name in SYSTEM_COLUMNS]
    names = [name for name in batch.schema.names if name not in SYSTEM_COLUMNS]
    aside = pa.array([False] * batch.num_rows)
    if "_control" in system:
        aside = pc.fill_null(batch.column("_control"), False)
    if "_failed" in system:
        aside = pc.or_(aside, pc.is_valid(batch.column("_failed")))
    passing, mine = batch.filter(aside), batch.filter(pc.invert(aside))
    return passing, _Part(mine.select(names), mine.select(system))


def _joined(part: _Part) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [*part.rows.columns, *part.system.columns],
        names=[*part.rows.schema.names, *part.system.schema.names],
    )


class _Failure(NamedTuple):
    place: int
    error: str
    attempts: int


class _Caller:
    """One function, and one part after the other."""

    def __init__(self, call: Call, function: Callable[..., Any]) -> None:
        self._call = call
        self._function = function

    def apply(self, part: _Part) -> tuple[_Part, pa.RecordBatch]:
        """Return what becomes of a part, and the rows that failed."""
        failures: list[_Failure] = []
        if self._call.kind == "arrow":
            done = self._apply_to_batch(part, range(part.rows.num_rows), failures)
        else:
            done = self._apply_to_rows(part, failures)
        if failures and self._call.is_fatal:
            raise FunctionFailed(_sentence(self._call, part, failures[0]))
        return done, self._set_aside(part, failures)

    # ------------------------------------------------------------------ row by row

    def _apply_to_rows(self, part: _Part, failures: list[_Failure]) -> _Part:
        made: list[tuple[int, list[dict[str, Any]]]] = []
        for place, row in enumerate(_arguments(part)):
            try:
                made.append((place, list(self._rows_of(self._tried(dict(row)), row))))
            except _Gave as gave:
                failures.append(_Failure(place, gave.error, gave.attempts))
            except (TypeError, ValueError) as error:
                failures.append(_Failure(place, _told(error), 1))
        if self._call.kind in ("filter", "sink"):
            return part.take([place for place, rows in made if rows])
        try:
            return self._as_part(part, made)
        except _UNFIT:  # some row is; the others go on without it
            return self._as_part(part, list(self._fit_alone(made, failures)))

    def _fit_alone(
        self, made: list[tuple[int, list[dict[str, Any]]]], failures: list[_Failure]
    ) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        for place, rows in made:
            try:
                self._as_batch(rows)
            except _UNFIT as error:
                failures.append(_Failure(place, _told(error), 1))
            else:
                yield place, rows

    def _as_part(self, part: _Part, made: list[tuple[int, list[dict[str, Any]]]]) -> _Part:
        batch = self._as_batch([row for _, rows in made for row in rows])
        origins = pa.array([place for place, rows in made for _ in rows], pa.int64())
        names = {name for _, rows in made for row in rows for name in row if name in SETTABLE}
        given = batch.select([name for name in SETTABLE if name in names])
        system = _with_columns(part.system.take(origins), given)
        return _Part(batch.select(self._call.returns.names), system)

    def _rows_of(self, returned: Any, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the rows that a function made of one; raises if it returned something else."""
        kind = self._call.kind
        if kind == "sink":
            yield row
        elif kind == "filter":
            if not isinstance(returned, bool):
                raise TypeError(f"returned {type(returned).__name__}, not true or false")
            if returned:
                yield row
        else:
            kept = {name: row[name] for name in self._call.keep}
            made = returned if kind == "flat_map" else [] if returned is None else [returned]
            yield from ({**kept, **_checked(one)} for one in made)

    def _as_batch(self, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        """Return rows as Arrow, with what they set of the system's columns."""
        schema = pa.schema([*self._call.returns, *_SETTABLE_FIELDS])
        for row in rows:
            if not row.keys() <= set(schema.names):
                unknown = ", ".join(sorted(map(str, row.keys() - set(schema.names))))
                raise ValueError(f"returned {unknown}, which is not in `returns`")
        return pa.RecordBatch.from_pylist(rows, schema)

    # ------------------------------------------------------------------ in batches

    def _apply_to_batch(self, part: _Part, places: range, failures: list[_Failure]) -> _Part:
        """Call the function for some rows; if it fails, for each half of them."""
        mine = part.take(list(places))
        try:
            returned = self._tried(mine.rows)
            return self._fitting(returned, mine)
        except _Gave as gave:
            error, attempts = gave.error, gave.attempts
        except (pa.ArrowException, TypeError, ValueError) as wrong:
            error, attempts = _told(wrong), 1
        if len(places) > 1:
            middle = len(places) // 2
            halves = [
                self._apply_to_batch(part, h, failures) for h in (places[:middle], places[middle:])
            ]
            return _Part(*(_concat([half[side] for half in halves]) for side in (0, 1)))
        failures += [_Failure(place, error, attempts) for place in places]
        empty = pa.RecordBatch.from_pylist([], self._call.returns)
        return _Part(empty, mine.system.slice(0, 0))

    def _fitting(self, returned: Any, given: _Part) -> _Part:
        if isinstance(returned, pa.Table):
            returned = _concat(
                returned.to_batches() or [pa.RecordBatch.from_pylist([], returned.schema)]
            )
        if not isinstance(returned, pa.RecordBatch):
            raise TypeError(f"returned {type(returned).__name__}, not a RecordBatch or a Table")
        rows = fitter(self._call.returns)(returned)
        if returned.num_rows == given.system.num_rows:
            return _Part(rows, _with_columns(given.system, returned))
        if not given.system.num_rows:
            raise ValueError("returned rows for none")
        # Nobody knows which row came from which: they have the earliest time of them all.
        return _Part(rows, _earliest(given.system, returned.num_rows))

    # -------------------------------------------------------------------- one call

    def _tried(self, argument: Any) -> Any:
        retry = self._call.retry
        for attempt in range(1, retry.attempts + 1):
            try:
                with _no_longer_than(self._call.timeout_s):
                    return self._materialised(self._function(argument))
            except Exception as error:
                if attempt == retry.attempts:
                    raise _Gave(_told(error), attempt) from None
                time.sleep(retry.pause_s(attempt))
        raise AssertionError("BUG: no attempt was made")

    def _materialised(self, returned: Any) -> Any:
        """Return a result; rows of a generator are made while the clock runs."""
        if self._call.kind != "flat_map":
            return returned
        if isinstance(returned, str | bytes | dict):
            raise TypeError(f"returned {type(returned).__name__}, not rows")
        return list(returned)

    def _set_aside(self, part: _Part, failures: Sequence[_Failure]) -> pa.RecordBatch:
        """Return the rows that failed; those of a sink keep their columns."""
        lost = part.take([failure.place for failure in failures])
        told = [
            {
                "vertex": self._call.vertex,
                "error": failure.error,
                "attempts": failure.attempts,
                "row": _as_json(part.argument(failure.place)),
            }
            for failure in failures
        ]
        place = lost.system.schema.get_field_index("_failed")
        system = lost.system.set_column(place, "_failed", pa.array(told, FAILED_TYPE))
        return _joined(_Part(lost.rows, system)) if self._call.kind == "sink" else system


class _Gave(Exception):
    """All attempts failed."""

    def __init__(self, error: str, attempts: int) -> None:
        super().__init__(error)
        self.error = error
        self.attempts = attempts


@contextmanager
def _no_longer_than(timeout_s: float) -> Iterator[None]:
    """Raise `_TooLong` in the body when it takes longer; only a main thread can be told."""
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


# --------------------------------------------------------------------------- columns


def _arguments(part: _Part) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = part.rows.to_pylist()
    for name in SETTABLE:
        if name in part.system.schema.names:
            for row, value in zip(rows, part.system.column(name).to_pylist(), strict=True):
                row[name] = value
    return rows


def _checked(row: Any) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise TypeError(f"returned {type(row).__name__}, not a row (dict)")
    return row


def _with_columns(system: pa.RecordBatch, returned: pa.RecordBatch) -> pa.RecordBatch:
    """Return the system's columns with what a function set of them."""
    names = [name for name in SETTABLE if name in returned.schema.names]
    return _with_values(system, {name: returned.column(name).to_pylist() for name in names})


def _with_values(system: pa.RecordBatch, given: dict[str, list[Any]]) -> pa.RecordBatch:
    if "_tags" in given:
        tags = pa.array(given["_tags"], pa.list_(pa.string()))
        system = _replaced(system, "_tags", tags)
    if "_event_time" in given:
        old = system.column("_event_time").cast(TIME_TYPE)
        new = pc.coalesce(pa.array(given["_event_time"], TIME_TYPE), old)
        system = _replaced(system, "_event_time", new)
        if "_wm_prev" in system.schema.names:
            always = pa.scalar(ALWAYS_LATE_US, TIME_TYPE)
            prev = pc.if_else(pc.less(new, old), always, system.column("_wm_prev").cast(TIME_TYPE))
            system = _replaced(system, "_wm_prev", prev)
    return system


def _replaced(batch: pa.RecordBatch, name: str, values: pa.Array) -> pa.RecordBatch:
    place = batch.schema.get_field_index(name)
    return batch.append_column(name, values) if place < 0 else batch.set_column(place, name, values)


def _earliest(system: pa.RecordBatch, rows: int) -> pa.RecordBatch:
    order = pc.sort_indices(system.column("_event_time"))
    return system.take(pa.array([order[0].as_py()] * rows, pa.int64()))


def _concat(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return (
        pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        if any(batch.num_rows for batch in batches)
        else batches[0]
    )


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".removeprefix("_TooLong: ")[:ERROR_LETTERS_MAX]


def _as_json(row: dict[str, Any]) -> str:
    def text(value: Any) -> str:
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

    return json.dumps(row, default=text, ensure_ascii=False)[:ROW_LETTERS_MAX]


def _sentence(call: Call, part: _Part, failure: _Failure) -> str:
    row = part.argument(failure.place)
    where = f" of bundle {row['_seq']}" if "_seq" in row else ""
    place = row.get("_row", failure.place)
    told = f"after {failure.attempts} tries: {failure.error}"
    return f"{call.vertex} failed at row {place}{where}, {told}"
