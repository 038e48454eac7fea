"""What is done with each batch of a query: its branches, its sinks, its dead letters, each once.

Spark may run a batch again; every sink here keeps a batch record (sink/records.py), so a second
time changes nothing. A sink that does not take a batch is tried again, and then its fallback gets
the batch. That is written down before, so that a batch that is run again takes the same way.

Functions are called first, then the rows that will come again are written to the retry lane, then
everything else. A function may decide otherwise when a killed driver's batch is run again: rows
that fail only then are added to the lane, so no row is lost; one that failed before and is taken
now is written, and comes again. Functions that decide alike see every row once.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema

from holdfast.dataflow.compiler.frames import Frames, call_python, rejected_rows, without_system
from holdfast.dataflow.compiler.lane import without
from holdfast.dataflow.compiler.places import (
    Places,
    buffer_options,
    directory_options,
    lane_options,
    lane_subscriber,
    target_options,
)
from holdfast.dataflow.compiler.plan import EVERY, Output, Plan, Query
from holdfast.dataflow.compiler.python import Call
from holdfast.dataflow.sink.options import EVENT_TIME, SinkOptions
from holdfast.dataflow.sink.records import BatchRecord, BatchRecords
from holdfast.dataflow.sink.writers import stream_writer
from holdfast.dataflow.source.checkpoint import Checkpoint
from holdfast.dataflow.spec.pipeline import FAILED, MAIN
from holdfast.dataflow.spec.vertices import SYSTEM_COLUMNS, SinkSettings, TargetSettings
from holdfast.errors import HoldfastError
from holdfast.quiver.base.bundle import RESERVED_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from holdfast.dataflow.compiler.lane import Lane

CONSOLE_ROWS_MAX = 20
# Of one batch. Each has tasks for all cores, so more of them fill no more gaps.
WRITES_AT_ONCE_MAX = 4

log = logging.getLogger("holdfast.dataflow")


def gathered(frames: Frames, taps: tuple[Output, ...]) -> DataFrame:
    """Return all taps of a trunk as one frame, which `Tail` takes apart again."""
    if len(taps) == 1:
        return frames.tap(taps[0])
    parts = [frames.tap(tap) for tap in taps]
    kinds = [part.schema for part in parts]
    whole: DataFrame | None = None
    for number, part in enumerate(parts):
        row = F.struct(*(F.col(f"`{name}`") for name in part.columns))
        columns = [
            row.alias(f"_{other}") if other == number else F.lit(None).cast(kind).alias(f"_{other}")
            for other, kind in enumerate(kinds)
        ]
        tagged = part.select(F.lit(number).alias("_tap"), *columns)
        whole = tagged if whole is None else whole.unionAll(tagged)
    assert whole is not None, "BUG: a query without taps"
    return whole


def side_by_side(writes: Iterable[Callable[[], object]]) -> None:
    """Do some writes of one batch, each in a thread of its own; raise when all have ended.

    A write is a job of Spark for some tasks, and then this process syncing files while the cores
    have nothing to do: another write fills that gap. A sink that is tried again, or slow, does not
    keep the others waiting. The threads belong to Spark's run of the query, as this one does: so
    their jobs end with the query, and are seen as its work.
    """
    waiting = deque(writes)
    if len(waiting) == 1:
        waiting.pop()()
    errors: list[BaseException] = []

    def write_in_turn() -> None:
        while waiting and not errors:
            try:
                write = waiting.popleft()
            except IndexError:
                return  # another thread took the last one
            try:
                write()
            except BaseException as error:
                errors.append(error)

    threads = [
        InheritableThread(target=write_in_turn, name=f"write-{number}", daemon=True)
        for number in range(min(len(waiting), WRITES_AT_ONCE_MAX))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors[1:]:
        log.warning("another write of the batch failed, too: %s", error)
    if errors:
        raise errors[0]


def written(rows: DataFrame, options: SinkOptions) -> DataFrame:
    """Return rows as a sink keeps them: without our columns, and in a quiver with their time."""
    columns = [name for name in rows.columns if name not in {*SYSTEM_COLUMNS, *RESERVED_COLUMNS}]
    kept = [F.col(f"`{name}`") for name in columns]
    if not options.is_files and EVENT_TIME not in columns and "_event_time" in rows.columns:
        # Without the mark by which windows close: it means nothing to a sink.
        kept.append(F.timestamp_micros(F.unix_micros("_event_time")).alias(EVENT_TIME))
    return rows.select(*kept)


class _Called(NamedTuple):
    """A sink that is a function, after it was called: rows that it took, and others."""

    name: str
    sink: SinkSettings
    rows: DataFrame


class Tail:
    """Runs on every batch of a query, in the driver."""

    def __init__(
        self,
        plan: Plan,
        query: Query,
        places: Places,
        buffers: Mapping[Output, str],
        lane: Lane | None = None,
    ) -> None:
        # Rows since the start, by what became of them and where.
        self.counts: Counter[tuple[str, str]] = Counter()
        # Whether a batch is at work here now.
        self.is_called = False
        self._plan = plan
        self._query = query
        self._places = places
        # Addresses of the quivers between queries.
        self._buffers = buffers
        self._lane = lane
        self._checkpoint = places.checkpoint(query)

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Do everything that is to be done with a batch."""
        self.is_called = True
        try:
            self._run(batch, number)
        finally:
            self.is_called = False

    def _run(self, batch: DataFrame, number: int) -> None:
        """Do everything for a batch, in an order that a crash may cut anywhere.

        Functions are called first: what they reject decides what goes into the retry lane. Then
        come the sinks, side by side. Quivers for other queries are written behind them, with a
        promise that the earliest row in the lane holds back, so the lane must have its rows by
        then. Dead letters come last. Each of these writes takes a batch once, so a batch that is
        run again simply does all of them again.
        """
        with ExitStack() as kept:
            frames = self._frames(batch, number, kept)
            called = [self._called(n, sink, frames, number, kept) for n, sink in self._sinks(True)]
            if self._lane is not None:
                self._put_in_lane(self._lane, frames, called, number)
            for one in called:
                self._after_call(one, number)
            side_by_side(
                partial(self._sink, name, sink, frames.rows_into(name), number, kept)
                for name, sink in self._sinks(False)
            )
            hold_us = self._hold_us(number) if self._query.writes else None
            options = {one: self._buffer_options(one, hold_us) for one in self._query.writes}
            side_by_side(
                partial(self._write, frames.output(output), options[output], number)
                for output in self._query.writes
            )
            self._keep_rejected(frames, number)

    def _buffer_options(self, output: Output, hold_us: int | None) -> SinkOptions:
        """Return how an output is written to the quiver between two queries."""
        address = self._buffers[output]
        return buffer_options(self._plan, self._query, output, address, self._places, hold_us)

    def _sinks(self, are_functions: bool) -> Iterator[tuple[str, SinkSettings]]:
        """Yield the sinks of the tail: those that are functions, or the others."""
        for name in self._query.tail:
            sink = self._plan.pipeline.vertices[name].sink
            if sink is not None and (sink.python is not None) == are_functions:
                yield name, sink

    # ------------------------------------------------------------------- branches

    def _frames(self, batch: DataFrame, number: int, kept: ExitStack) -> Frames:
        """Return the vertices of the tail over one batch; what is used repeatedly is kept.

        Spark computes a frame again for each use. For the batch itself that would be reading the
        sources and calling reducers again; for a function it would be worse: one that decides by
        chance would reject a row in one use and pass it in another.
        """
        taps = self._query.taps
        if len(taps) > 1 or self._uses(taps[0]) > 1:
            _keep(batch, kept)
        if len(taps) == 1:
            given = {taps[0]: batch}
        else:
            given = {
                tap: batch.where(F.col("_tap") == place).select(f"_{place}.*")
                for place, tap in enumerate(taps)
            }
        frames = Frames(self._plan, self._query, given, is_stream=False, batch=number)
        for output in map(Output, self._query.tail):
            if self._uses(output) > 1 and len(taps) == 1:
                _keep(frames.output(output), kept)
        for run in self._query.runs:
            if run[0] in self._query.tail:
                _keep(frames.run(run), kept)
        return frames

    def _uses(self, output: Output) -> int:
        """Return how many frames the tail makes of an output."""
        pipeline = self._plan.pipeline
        ports = (MAIN, FAILED) if output.port == EVERY else (output.port,)
        uses = 0
        for port in ports:
            edges = [
                e for e in pipeline.out_of(output.vertex, port) if e.target in self._query.tail
            ]
            uses += len(edges) + (Output(output.vertex, port) in self._query.writes)
        return uses + (output.port == EVERY and self._looks_for_failures(output.vertex))

    def _looks_for_failures(self, name: str) -> bool:
        """Whether `_keep_rejected` has rows of a vertex to keep, or to count."""
        vertex = self._plan.pipeline.vertices[name]
        calls = vertex.reduce if vertex.reduce is not None else vertex.step
        if calls is None or not calls.is_python or calls.on_failure == "fail":
            return False
        if name not in self._query.tail and vertex.reduce is None:
            return False  # counted in the streaming plan
        return not (vertex.keeps_failures and self._plan.pipeline.out_of(name, FAILED))

    def _keep_rejected(self, frames: Frames, number: int) -> None:
        """Keep rows that failed in the end and that no edge takes; count those that are dropped."""
        for name in self._query.vertices:
            if not self._looks_for_failures(name):
                continue
            failed = frames.failures(name).where("_failed.lane IS NULL")
            if self._plan.pipeline.vertices[name].keeps_failures:
                letters = rejected_rows(failed, "payload")
                self.counts["failed", name] += self._dead_letters(name, letters, number)
            else:
                self.counts["failed", name] += failed.count()

    def _dead_letters(self, name: str, failed: DataFrame, number: int) -> int:
        """Write rows that failed in the end; mostly there are none, and to look is cheaper."""
        if failed.isEmpty():
            return 0
        directory = self._places.dead_letters(self._query)
        options = directory_options(f"{name}-failed", directory, self._checkpoint)
        return self._write(failed, options, number)

    # ----------------------------------------------------------------- retry lane

    def _put_in_lane(self, lane: Lane, frames: Frames, called: list[_Called], number: int) -> None:
        """Write the rows that will come again, each once."""
        vertices = self._plan.pipeline.vertices
        runs = [run for run in self._query.runs if any(vertices[name].retry_lane for name in run)]
        failed = [frames.run(run) for run in runs]
        failed += [one.rows for one in called if one.sink.retry_lane is not None]
        for place, frame in enumerate(failed):
            again = frame.where("_failed.lane IS NOT NULL")
            rows = again.select("_failed.lane.*", "_event_time", F.lit(number).alias("batch"))
            self.counts["retried", self._query.name] += self._put(lane, rows, number, place)

    def _put(self, lane: Lane, rows: DataFrame, number: int, place: int) -> int:
        """Write rows as one transaction; if the batch was run before, only those that are new."""
        name = f"lane-{place}"
        checkpoint = Checkpoint(str(self._checkpoint))
        query_id, turn = checkpoint.require_query_id(), 0
        while BatchRecords(checkpoint.notes, f"quiver-{name}-{query_id}", checkpoint).of(number):
            turn += 1
            name = f"lane-{place}-{turn}"
        if turn:
            rows = rows.mapInArrow(without(lane.ids_of(number)), rows.schema)
        options = lane_options(name, lane.waiting_address, self._places, self._checkpoint)
        return self._write(rows, options, number)

    def _hold_us(self, number: int) -> int | None:
        """Return the time of the earliest row that will come again, if it holds the watermark."""
        if self._lane is None:
            return None
        offsets = Checkpoint(str(self._checkpoint)).offsets(number)
        read = offsets.get(lane_subscriber(self._plan, self._query))
        return self._lane.holds_us(0 if read is None else read.seqs.get(self._lane.due_id, 0))

    # ---------------------------------------------------------------------- sinks

    def _sink(
        self, name: str, sink: SinkSettings, rows: DataFrame, number: int, kept: ExitStack
    ) -> None:
        """Write a batch to a sink or, when all attempts failed, to its fallback.

        Which of the two is recorded before the fallback is written: a batch that is run again after
        a crash must not go to the sink that has recovered meanwhile, or its rows would be in both.
        """
        if sink.on_success is not None or sink.fallback is not None:
            _keep(rows, kept)
        checkpoint = Checkpoint(str(self._checkpoint))
        fallbacks = BatchRecords(checkpoint.notes, f"fallback-{name}", checkpoint)
        if fallbacks.of(number) is None and self._is_taken(name, sink, rows, number):
            if sink.on_success is not None:
                self._place(f"{name}-on_success", sink.on_success, rows, number)
            return
        assert sink.fallback is not None, "BUG: a sink that failed without a fallback"
        fallbacks.record(number, BatchRecord(checkpoint.span(number)))
        self.counts["fallback", name] += self._place(
            f"{name}-fallback", sink.fallback, rows, number
        )

    def _is_taken(self, name: str, sink: SinkSettings, rows: DataFrame, number: int) -> bool:
        """Write a batch, in several attempts; whether it is written."""
        for attempt in range(1, sink.retry.attempts + 1):
            try:
                self.counts["written", name] += self._place(name, sink, rows, number)
                return True
            except (HoldfastError, OSError, PySparkException) as error:
                log.warning("%s did not take batch %d: %s", name, number, error)
                is_last = attempt == sink.retry.attempts
                if is_last and sink.fallback is None:
                    raise
                if not is_last:
                    time.sleep(sink.retry.pause_s(attempt))
        return False

    def _called(
        self, name: str, sink: SinkSettings, frames: Frames, number: int, kept: ExitStack
    ) -> _Called:
        """Call a function for each row."""
        assert sink.python is not None, "BUG: not a function"
        rows = frames.rows_into(name)
        schema = without_system(rows.schema)
        call = Call(
            vertex=name,
            kind="sink",
            function=sink.python,
            returns=to_arrow_schema(schema, timezone="UTC"),
            timeout_s=sink.timeout,
            retry=sink.retry,
            lane=sink.retry_lane,
        )
        asked = frames.with_lane(rows, (name,))
        return _Called(name, sink, _keep(call_python(asked, [call], schema, number), kept))

    def _after_call(self, called: _Called, number: int) -> None:
        """Write what a function took, and what it did not take in the end."""
        name, sink, rows = called
        taken = rows.where("_failed IS NULL")
        refused = rows.where("_failed.lane IS NULL AND _failed IS NOT NULL")
        self.counts["written", name] += taken.count()
        if sink.on_success is not None:
            self._place(f"{name}-on_success", sink.on_success, taken, number)
        if sink.fallback is not None:
            failed = refused.withColumn("error", F.col("_failed.error"))
            self.counts["fallback", name] += self._place(
                f"{name}-fallback", sink.fallback, failed, number
            )
        else:
            letters = rejected_rows(refused, "payload")
            self.counts["failed", name] += self._dead_letters(name, letters, number)

    def _place(self, name: str, target: TargetSettings, rows: DataFrame, number: int) -> int:
        """Write rows where a target says; return how many they are."""
        if target.console:
            written(rows, SinkOptions()).show(CONSOLE_ROWS_MAX, truncate=False)
            return rows.count()
        options = target_options(name, target, self._places, self._checkpoint)
        return self._write(rows, options, number)

    def _write(self, rows: DataFrame, options: SinkOptions, number: int) -> int:
        """Write a batch, once; return how many rows it has."""
        writer = stream_writer(options)

        def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            counter = _CountedRows(batches)
            message = pickle.dumps(writer.write(iter(counter)))
            yield pa.record_batch({"message": [message], "rows": [counter.rows]})

        staged = written(rows, options).mapInArrow(stage, "message binary, rows bigint").collect()
        messages: list[WriterCommitMessage | None] = [pickle.loads(row.message) for row in staged]
        writer.commit(messages, number)
        return sum(int(row.rows) for row in staged)


class _CountedRows:
    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self.rows = 0
        self._batches = batches

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += batch.num_rows
            yield batch


def _keep(frame: DataFrame, kept: ExitStack) -> DataFrame:
    """Have a frame worked out once, until the batch is done."""
    frame.persist()
    kept.callback(frame.unpersist)
    return frame
