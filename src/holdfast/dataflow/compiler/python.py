"""Runs of Python functions as one `mapInArrow`: called row by row or batch by batch, never fatal.

Spark hands rows to Python and takes them back once for a whole run, however many functions it has.
A row that a function does not take (it raises, returns something else than it said, or does not
end in time) is tried again as often as the pipeline says, and then rejected: it goes on as a row
whose column `_failed` says what happened, for its branch to pick up. All others go on.

Where the vertex has a retry lane, `_failed` also has everything that the row needs to come again:
its columns as the function got them, as Arrow. When it does, it comes in `_lane`, and enters the
run before the very function that it failed in, whatever stands before that.

A function for whole batches (`arrow`) that fails is called again for ever smaller parts, down to
single rows, so that one bad row costs one row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from holdfast.dataflow.compiler.calls import (
    FAILED_TYPE,
    LANE_TYPE,
    ROW_ERRORS,
    FunctionFailed,
    GaveUp,
    as_batch,
    as_json,
    checked,
    error_text,
    moments,
    stop_clock,
    tried,
)
from holdfast.dataflow.source.schema import fitter
from holdfast.dataflow.spec.functions import load_function
from holdfast.dataflow.spec.vertices import SETTABLE, SYSTEM_COLUMNS, LaneSettings, RetrySettings
from holdfast.quiver.base.envelope import TIME_TYPE

CallKind = Literal["map", "filter", "flat_map", "sink"]

# Of which row of its argument a row of a flat map by Arrow was made.
ORIGIN = "_origin"
# Later than every watermark: a row whose event time was set back is late, whatever its windows.
ALWAYS_LATE_US = 253402297200_000_000
_SETTABLE_FIELDS = (
    pa.field("_event_time", TIME_TYPE),
    pa.field("_tags", pa.list_(pa.string())),
)


@dataclass(frozen=True)
class Call:
    """One function of a run."""

    vertex: str
    kind: CallKind
    function: str | Callable[..., Any]
    # The columns it returns, without those of the system.
    returns: pa.Schema
    timeout_s: float
    retry: RetrySettings
    # Whether it is called with a RecordBatch, or with each row.
    takes_arrow: bool = False
    is_fatal: bool = False
    # Columns of the row it is called with that its results have, too.
    keep: tuple[str, ...] = ()
    # How rows that failed come again, if they do.
    lane: LaneSettings | None = None


class _SplitRows(NamedTuple):
    """Rows, in two parts of equal length: the user's columns, and the system's."""

    rows: pa.RecordBatch
    system: pa.RecordBatch

    def take(self, places: Sequence[int] | pa.Array) -> _SplitRows:
        index = pa.array(places, pa.int64())
        return _SplitRows(self.rows.take(index), self.system.take(index))

    def filter(self, mask: pa.Array) -> _SplitRows:
        return _SplitRows(self.rows.filter(mask), self.system.filter(mask))

    def argument(self, place: int) -> dict[str, Any]:
        """Return a row as a function sees it."""
        row: dict[str, Any] = self.rows.slice(place, 1).to_pylist()[0]
        return row


class FunctionRun:
    """What one task does with its batches; made in the driver, called in workers."""

    def __init__(self, calls: Sequence[Call], schema: pa.Schema, batch: int = 0) -> None:
        self._calls = tuple(calls)
        self._schema = schema
        # The number of Spark's batch: it makes the names of rows that come again.
        self._batch = batch

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all batches after all functions."""
        context = TaskContext.get()
        task = f"{self._batch}.{context.partitionId() if context else 0}"
        callers = [_CallRunner(call, load_function(call.function), task) for call in self._calls]
        fit = fitter(self._schema)
        try:
            for batch in batches:
                passing, part, lane = _split(_with_tags(batch))
                if passing.num_rows:
                    yield fit(passing)
                for caller in callers:
                    part, failed = caller.apply(part, lane)
                    yield from (fit(one) for one in failed if one.num_rows)
                yield fit(_joined(part))
        finally:
            stop_clock()


def _with_tags(batch: pa.RecordBatch) -> pa.RecordBatch:
    if "_tags" in batch.schema.names:
        return batch
    return batch.append_column("_tags", pa.nulls(batch.num_rows, pa.list_(pa.string())))


def _split(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, _SplitRows, pa.RecordBatch]:
    """Return the rows that are not for functions, those that are, and those that come again.

    Not for functions are control rows, and those that failed before.
    """
    system = [name for name in batch.schema.names if name in SYSTEM_COLUMNS]
    names = [name for name in batch.schema.names if name not in SYSTEM_COLUMNS]
    aside = pa.array([False] * batch.num_rows)
    if "_control" in system:
        aside = pc.fill_null(batch.column("_control"), False)
    if "_failed" in system:
        aside = pc.or_(aside, pc.is_valid(batch.column("_failed")))
    passing, mine = batch.filter(aside), batch.filter(pc.invert(aside))
    lane = mine.select(system).slice(0, 0)
    if "_lane" in system:
        again = pc.is_valid(mine.column("_lane"))
        lane, mine = mine.filter(again).select(system), mine.filter(pc.invert(again))
    return passing, _SplitRows(mine.select(names), mine.select(system)), lane


def _joined(part: _SplitRows) -> pa.RecordBatch:
    """Return the user's and the system's columns as one batch again."""
    return pa.RecordBatch.from_arrays(
        [*part.rows.columns, *part.system.columns],
        names=[*part.rows.schema.names, *part.system.schema.names],
    )


class _FailedCall(NamedTuple):
    place: int
    error: str
    attempts: int


class _CallRunner:
    """Runs one function over the rows of a task, one batch after the other."""

    def __init__(self, call: Call, function: Callable[..., Any], task: str = "") -> None:
        self._call = call
        self._function = function
        self._task = task
        # Rows that this task called it with in earlier batches.
        self._rows_before = 0

    def apply(
        self, part: _SplitRows, lane: pa.RecordBatch
    ) -> tuple[_SplitRows, list[pa.RecordBatch]]:
        """Return what becomes of a part and of rows that come again, and the rows that failed.

        Rows of the lane enter here, before the function that they failed in, and not at the start
        of the run: functions before it have had their effect on them.
        """
        part, rejected = self._with_lane(part, lane)
        failures: list[_FailedCall] = []
        if self._call.takes_arrow:
            done = self._apply_to_batch(part, range(part.rows.num_rows), failures)
        else:
            done = self._apply_to_rows(part, failures)
        if failures and self._call.is_fatal:
            raise FunctionFailed(_sentence(self._call, part, failures[0]))
        lost = self._rejected(part, failures)
        self._rows_before += part.rows.num_rows
        return _arrived(done), [lost, *rejected]

    def _with_lane(
        self, part: _SplitRows, lane: pa.RecordBatch
    ) -> tuple[_SplitRows, list[pa.RecordBatch]]:
        """Return a part with the rows that come again here, and those that cannot any more."""
        if not lane.num_rows:
            return part, []
        mine = lane.filter(pc.equal(lane.column("_lane").field("vertex"), self._call.vertex))
        parts, rejected = [part], []
        fit, fit_system = fitter(part.rows.schema), fitter(part.system.schema)
        for place, kept in enumerate(mine.column("_lane").field("row").to_pylist()):
            system = mine.slice(place, 1)
            try:
                whole = pa.ipc.open_stream(kept).read_all().to_batches()[0]
                rows = fit(whole)
            except (*ROW_ERRORS, OSError, IndexError) as error:
                rejected.append(
                    self._no_longer(system, f"its columns changed: {error_text(error)}")
                )
                continue
            parts.append(_SplitRows(rows, fit_system(_with_columns(system, whole))))
        return _SplitRows(*(_concat([one[side] for one in parts]) for side in (0, 1))), rejected

    def _no_longer(self, system: pa.RecordBatch, error: str) -> pa.RecordBatch:
        """Return a row of the retry lane as failed: it cannot be handed to its function."""
        attempts = system.column("_lane").field("attempts")[0].as_py()
        letter = {"vertex": self._call.vertex, "error": error, "attempts": attempts, "row": "{}"}
        return _replaced(system, "_failed", pa.array([letter], FAILED_TYPE))

    # ------------------------------------------------------------------ row by row

    def _apply_to_rows(self, part: _SplitRows, failures: list[_FailedCall]) -> _SplitRows:
        made: list[tuple[int, list[dict[str, Any]]]] = []
        for place, row in enumerate(_arguments(part)):
            try:
                # A function may change the row that it is called with.
                given = dict(row) if self._call.keep else row
                made.append((place, self._rows_of(self._tried(given), row)))
            except GaveUp as gave:
                failures.append(_FailedCall(place, gave.error, gave.attempts))
            except (TypeError, ValueError) as error:
                failures.append(_FailedCall(place, error_text(error), 1))
        if self._call.kind in ("filter", "sink"):
            return part.take([place for place, rows in made if rows])
        try:
            return self._as_part(part, made)
        except ROW_ERRORS:  # some row is; the others go on without it
            return self._as_part(part, list(self._fit_alone(made, failures)))

    def _fit_alone(
        self, made: list[tuple[int, list[dict[str, Any]]]], failures: list[_FailedCall]
    ) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Yield the results that fit the declared columns, each tried alone; note the others.

        Arrow converts a whole column or nothing, and its error does not say which row it was.
        """
        for place, rows in made:
            try:
                self._as_batch(rows)
            except ROW_ERRORS as error:
                failures.append(_FailedCall(place, error_text(error), 1))
            else:
                yield place, rows

    def _as_part(
        self, part: _SplitRows, made: list[tuple[int, list[dict[str, Any]]]]
    ) -> _SplitRows:
        """Return results as Arrow, each beside the system columns of the row that it came from.

        A flat map makes several rows of one, or none: the origins say which row's event time, claim
        and position each result inherits, unless the function set them itself.
        """
        batch = self._as_batch([row for _, rows in made for row in rows])
        origins = pa.array([place for place, rows in made for _ in rows], pa.int64())
        system = _with_columns(part.system.take(origins), batch)
        return _SplitRows(batch.select(self._call.returns.names), system)

    def _rows_of(self, returned: Any, row: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the rows that a function made of one; raises if it returned something else."""
        kind = self._call.kind
        if kind == "sink":
            return [row]
        if kind == "filter":
            if not isinstance(returned, bool):
                raise TypeError(f"returned {type(returned).__name__}, not true or false")
            return [row] if returned else []
        made = returned if kind == "flat_map" else [] if returned is None else [returned]
        kept = {name: row[name] for name in self._call.keep}
        return [{**kept, **checked(one)} if kept else checked(one) for one in made]

    def _as_batch(self, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        """Return rows as Arrow, with what they set of the system's columns."""
        return as_batch(rows, self._call.returns, _SETTABLE_FIELDS)

    # ------------------------------------------------------------------ in batches

    def _apply_to_batch(
        self, part: _SplitRows, places: range, failures: list[_FailedCall]
    ) -> _SplitRows:
        """Call the function for some rows; if it fails, for each half of them.

        A bad row costs about twice the logarithm of the batch in calls, and only itself in results.
        """
        mine = part.take(list(places))
        try:
            returned = self._tried(mine.rows)
            return self._fitting(returned, mine)
        except GaveUp as gave:
            error, attempts = gave.error, gave.attempts
        except ROW_ERRORS as wrong:
            error, attempts = error_text(wrong), 1
        if len(places) > 1:
            middle = len(places) // 2
            halves = [
                self._apply_to_batch(part, h, failures) for h in (places[:middle], places[middle:])
            ]
            return _SplitRows(*(_concat([half[side] for half in halves]) for side in (0, 1)))
        failures += [_FailedCall(place, error, attempts) for place in places]
        empty = pa.RecordBatch.from_pylist([], self._call.returns)
        return _SplitRows(empty, mine.system.slice(0, 0))

    def _fitting(self, returned: Any, given: _SplitRows) -> _SplitRows:
        """Return what a function made of some rows, if it is what it has to be."""
        if self._call.kind == "filter":
            return given.filter(_mask(returned, given.rows.num_rows))
        if isinstance(returned, pa.Table):
            returned = _concat(
                returned.to_batches() or [pa.RecordBatch.from_pylist([], returned.schema)]
            )
        if not isinstance(returned, pa.RecordBatch):
            raise TypeError(f"returned {type(returned).__name__}, not a RecordBatch or a Table")
        if self._call.kind == "flat_map":
            given = given.take(_origins(returned, given.rows.num_rows))
        fit = fitter(self._call.returns)
        if returned.num_rows == given.system.num_rows:
            for name in self._call.keep:
                returned = _replaced(returned, name, given.rows.column(name))
            return _SplitRows(fit(returned), _with_columns(given.system, returned))
        if not given.system.num_rows:
            raise ValueError("returned rows for none")
        rows = fit(returned)
        # Nobody knows which row came from which: they have the earliest time of them all.
        return _SplitRows(rows, _earliest(given.system, returned.num_rows))

    # -------------------------------------------------------------------- one call

    def _tried(self, argument: Any) -> Any:
        """Call the function, as often and as long as it may."""

        def call() -> Any:
            return self._materialised(self._function(argument))

        return tried(call, self._call.timeout_s, self._call.retry)

    def _materialised(self, returned: Any) -> Any:
        """Return a result; rows of a generator are made while the clock runs."""
        if self._call.kind != "flat_map" or self._call.takes_arrow:
            return returned
        if isinstance(returned, str | bytes | dict):
            raise TypeError(f"returned {type(returned).__name__}, not rows")
        return list(returned)

    def _rejected(self, part: _SplitRows, failures: Sequence[_FailedCall]) -> pa.RecordBatch:
        """Return the rows that failed; those of a sink keep their columns.

        A row with attempts left carries what the retry lane stores. One that failed for good
        carries its payload instead, so that an operator can send it again. Rows of a sink go to its
        fallback, which has to write them, so their columns stay.
        """
        lost = part.take([failure.place for failure in failures])
        letters = []
        for place, failure in enumerate(failures):
            before = _lane_of(lost, place)
            attempts = failure.attempts + (before["attempts"] if before else 0)
            # By the place of its row among all that this task called the function with.
            name = f"{self._task}.{self._rows_before + failure.place}"
            again = self._again(lost, place, before, attempts, name)
            is_kept = again is None and self._call.lane is not None
            letters.append(
                {
                    "vertex": self._call.vertex,
                    "error": failure.error,
                    "attempts": attempts,
                    "row": as_json(lost.argument(place)),
                    "payload": _as_stream(lost, place) if is_kept else None,
                    "lane": again,
                }
            )
        system = _replaced(lost.system, "_failed", pa.array(letters, FAILED_TYPE))
        return _joined(_SplitRows(lost.rows, system)) if self._call.kind == "sink" else system

    def _again(
        self, part: _SplitRows, place: int, before: dict[str, Any] | None, attempts: int, name: str
    ) -> dict[str, Any] | None:
        """Return what a row needs to come again; None if it was tried as often as it may."""
        lane = self._call.lane
        tries = before["tries"] + 1 if before else 1
        if lane is None or tries > lane.attempts:
            return None
        now_us = time.time_ns() // 1000
        return {
            "id": before["id"] if before else f"{self._call.vertex}.{name}",
            "vertex": self._call.vertex,
            "tries": tries,
            "attempts": attempts,
            "failed_us": before["failed_us"] if before else now_us,
            "due_us": now_us + round(lane.pause_s(tries) * 1e6),
            "row": _as_stream(part, place),
        }


# --------------------------------------------------------------------------- columns


def _arguments(part: _SplitRows) -> list[dict[str, Any]]:
    """Return rows as a function gets them: the user's columns, and the system's that it may set."""
    rows: list[dict[str, Any]] = part.rows.to_pylist()
    for name in SETTABLE:
        if name in part.system.schema.names:
            column = part.system.column(name)
            values = moments(column) if name == "_event_time" else column.to_pylist()
            for row, value in zip(rows, values, strict=True):
                row[name] = value
    return rows


def _lane_of(part: _SplitRows, place: int) -> dict[str, Any] | None:
    """Return what a row carried when it came out of the retry lane; None for one that is new."""
    if "_lane" not in part.system.schema.names:
        return None
    found: dict[str, Any] | None = part.system.column("_lane")[place].as_py()
    return found


def _arrived(part: _SplitRows) -> _SplitRows:
    """Return rows that came again and were taken as rows like all others."""
    if "_lane" not in part.system.schema.names:
        return part
    return part._replace(
        system=_replaced(part.system, "_lane", pa.nulls(part.system.num_rows, LANE_TYPE))
    )


def _as_stream(part: _SplitRows, place: int) -> bytes:
    """Return a row with its tags as an Arrow stream."""
    row = part.rows.slice(place, 1)
    if "_tags" in part.system.schema.names:
        row = row.append_column("_tags", part.system.column("_tags").slice(place, 1))
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, row.schema) as stream:
        stream.write_batch(row)
    return bytes(out.getvalue())


def _with_columns(system: pa.RecordBatch, returned: pa.RecordBatch) -> pa.RecordBatch:
    """Return the system's columns with what a function set of them."""
    names = [name for name in SETTABLE if name in returned.schema.names]
    return _with_values(system, {name: returned.column(name).to_pylist() for name in names})


def _with_values(system: pa.RecordBatch, given: dict[str, list[Any]]) -> pa.RecordBatch:
    """Return the system's columns with given tags and event times.

    A function may move an event time forward freely. One that is moved back may lie before the
    claim that the batch carries: windows of that time may be closed. So such a row counts as late,
    whatever its windows are.
    """
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


def _mask(returned: Any, rows: int) -> pa.Array:
    """Return which rows a filter lets through; what is null is not."""
    if isinstance(returned, pa.ChunkedArray):
        returned = returned.combine_chunks()
    if not isinstance(returned, pa.Array) or not pa.types.is_boolean(returned.type):
        raise TypeError(f"returned {_kind(returned)}, not an array of true and false")
    if len(returned) != rows:
        raise ValueError(f"returned {len(returned)} values for {rows} rows")
    return pc.fill_null(returned, False)


def _origins(returned: pa.RecordBatch, rows: int) -> pa.Array:
    """Return of which row each was made, as a flat map says; raises if there is no such row."""
    if ORIGIN not in returned.schema.names:
        raise ValueError(f"returned no column {ORIGIN}: of which row each was made")
    origins = returned.column(ORIGIN).cast(pa.int64())
    bounds = pc.min_max(origins)
    if origins.null_count or (
        len(origins) and not 0 <= bounds["min"].as_py() <= bounds["max"].as_py() < rows
    ):
        raise ValueError(f"{ORIGIN} names a row that is not there: there are {rows}")
    return origins


def _kind(value: Any) -> str:
    return f"{value.type} values" if isinstance(value, pa.Array) else type(value).__name__


def _replaced(batch: pa.RecordBatch, name: str, values: pa.Array) -> pa.RecordBatch:
    place = batch.schema.get_field_index(name)
    return batch.append_column(name, values) if place < 0 else batch.set_column(place, name, values)


def _earliest(system: pa.RecordBatch, rows: int) -> pa.RecordBatch:
    order = pc.sort_indices(system.column("_event_time"))
    return system.take(pa.array([order[0].as_py()] * rows, pa.int64()))


def _concat(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return batches as one; an empty one keeps the schema."""
    return (
        pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        if any(batch.num_rows for batch in batches)
        else batches[0]
    )


def _sentence(call: Call, part: _SplitRows, failure: _FailedCall) -> str:
    """Return in words where a function failed, with bundle and row if these are known."""
    row = part.argument(failure.place)
    where = f" of bundle {row['_seq']}" if "_seq" in row else ""
    place = row.get("_row", failure.place)
    outcome = f"after {failure.attempts} tries: {failure.error}"
    return f"{call.vertex} failed at row {place}{where}, {outcome}"
