"""Running a pipeline: its queries, their progress, draining them, and how they end.

    state_dir/
      lock                     held while a driver runs
      closed                   the pipeline was drained and closed: it is finished
      drain.json               somebody asks a running driver to drain
      <query>/checkpoint/      Spark's, and our notes in holdfast/
      <query>/shape.json       what its state is made of
      <query>/dead_letters/    a quiver of rows that failed
      buffers/<output>/        a quiver between two queries

`start` runs until it is stopped. `drain` reads what is there now, query after query, so that what
one puts out is read by the next; with `close` it claims the end of time and every window closes.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from pyspark.errors import AnalysisException

from holdfast.dataflow.buffers import Buffers
from holdfast.dataflow.compiler.frames import Frames
from holdfast.dataflow.compiler.places import (
    EVENT_TIME,
    Places,
    buffer_options,
    target_options,
)
from holdfast.dataflow.compiler.plan import Output, Plan, Query, make_plan
from holdfast.dataflow.compiler.sources import Buffered, streams
from holdfast.dataflow.compiler.tails import Tail, gathered, written
from holdfast.dataflow.session import query_session
from holdfast.dataflow.sink.options import SinkOptions
from holdfast.dataflow.sink.quiver_writer import producer_name
from holdfast.dataflow.source.checkpoint import Checkpoint
from holdfast.dataflow.spec.pipeline import PipelineSettings
from holdfast.errors import BadConfig, DirectoryLocked, HoldfastError, PipelineFailed
from holdfast.quiver.tools.offline import directory_lock
from holdfast.seam import Seam

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# A query writes its id before it reads anything.
ID_TIMEOUT_S = 60.0
# How long to wait for a data directory that somebody has open.
FREE_TIMEOUT_S = 10.0
POLL_S = 0.1


class QueryStatistics(NamedTuple):
    """A moment's picture of one query. Totals count since the driver began."""

    name: str
    is_running: bool
    batch: int | None
    rows_total: int
    rows_per_s: float
    # As Spark writes it; None before the first.
    watermark: str | None
    state_rows: int
    # Rows that Spark left out of windows that were closed: of sliding windows, whose rows still
    # count in others. A row that counts nowhere is late, and told under `counts`.
    left_out_total: int
    # By what became of rows, and where: late.perjob, failed.parse, written.out, fallback.out.
    counts: Mapping[str, int]


@dataclass
class _Running:
    query: Query
    spark: StreamingQuery
    tail: Tail | None
    rows_total: int = 0
    left_out_total: int = 0
    seen_batch: int = -1
    observed: Counter[str] = field(default_factory=Counter)


class PipelineRun:
    """A pipeline and its driver; one at a time for each state directory."""

    def __init__(
        self, name: str, pipeline: PipelineSettings, places: Places, session: SparkSession
    ) -> None:
        self.plan = make_plan(name, pipeline)
        # Spark's own processes have other working directories.
        self._places = places = replace(
            places, state_dir=places.state_dir.absolute(), base_dir=places.base_dir.absolute()
        )
        self._session = session
        self._running: list[_Running] = []
        self._ended: list[_Running] = []
        self._lock = _locked(places.state_dir)
        try:
            self._check_state()
            self._buffers = Buffers(self.plan, places)
        except BaseException:
            self._lock.close()
            raise

    def __enter__(self) -> PipelineRun:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    # ------------------------------------------------------------------- starting

    def start(self) -> None:
        """Start all queries; they run until they are stopped."""
        buffered: dict[Output, Buffered] = {}
        for query in self.plan.queries:
            self._start(query, buffered, close=False, once=False)

    def drain(self, *, close: bool = False) -> None:
        """Read what is there now, to the end; with `close` close all windows, for good."""
        buffered: dict[Output, Buffered] = {}
        for query in self.plan.queries:
            self._start(query, buffered, close=close, once=True)
            self.wait()
            self._ended, self._running = [*self._ended, *self._running], []
        if close:
            (self._places.state_dir / "closed").write_text("", "utf-8")

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all queries have ended, or one failed; whether they have."""
        give_up_s = None if timeout_s is None else time.monotonic() + timeout_s
        while any(one.spark.isActive for one in self._running):
            self._look()
            if any(one.spark.exception() is not None for one in self._running):
                break
            if give_up_s is not None and time.monotonic() > give_up_s:
                return False
            time.sleep(POLL_S)
        for one in self._running:
            error = one.spark.exception()
            if error is not None:
                self.stop()
                raise _failed(one.query, error) from error
        self._look()
        return True

    def stop(self) -> None:
        """Stop all queries, and let go of everything; a batch that runs is run again next time."""
        for one in self._running:
            one.spark.stop()
        self._look()
        self._ended, self._running = [*self._ended, *self._running], []
        self._buffers.close()
        self._lock.close()

    def _start(
        self, query: Query, buffered: dict[Output, Buffered], *, close: bool, once: bool
    ) -> None:
        pipeline = self.plan.pipeline
        self._wait_for_sources(query)
        session = query_session(self._session, pipeline.shuffle_partitions)
        try:
            given = streams(session, self.plan, query, self._places, buffered, close=close)
        except AnalysisException as error:
            raise _failed(query, error) from error
        frames = Frames(self.plan, query, given, is_stream=True)
        tail = None
        if query.terminal == "writer":
            options = self._writer_options(query)
            rows = _along_the_edge(frames, query, self.plan, options)
            writer = rows.writeStream.format("holdfast").options(**_as_text(options))
        else:
            tail = Tail(self.plan, query, self._places, self._buffers.addresses)
            writer = gathered(frames, query.taps).writeStream.foreachBatch(tail)
        checkpoint = self._places.checkpoint(query)
        writer = writer.queryName(f"{self.plan.name}.{query.name}").outputMode("append")
        writer = writer.option("checkpointLocation", str(checkpoint))
        trigger = {"processingTime": f"{round(pipeline.trigger * 1000)} milliseconds"}
        started = writer.trigger(**({"availableNow": True} if once else trigger)).start()
        self._running.append(_Running(query, started, tail))
        self._note_buffers(query, frames, buffered)

    def _wait_for_sources(self, query: Query) -> None:
        """Wait until nobody has the query's data directories open.

        A process that planned for the query before lets go of them a little after its end. If it
        is somebody else, the query will say who.
        """
        sources = [self.plan.pipeline.vertices[name].source for name in query.vertices]
        named = [self._places.quiver(q) for source in sources if source for q in source.quiver]
        give_up_s = time.monotonic() + FREE_TIMEOUT_S
        for path in [PurePath(one["path"]) for one in named if "path" in one]:
            while time.monotonic() < give_up_s and not _is_free(path):
                time.sleep(POLL_S)

    def _writer_options(self, query: Query) -> SinkOptions:
        checkpoint = self._places.checkpoint(query)
        if query.writes:
            (output,) = query.writes
            return buffer_options(output, self._buffers.addresses[output], checkpoint)
        (name,) = query.tail
        sink = self.plan.pipeline.vertices[name].sink
        assert sink is not None, "BUG: a writer without a sink"
        return target_options(name, sink, self._places, checkpoint)

    def _note_buffers(self, query: Query, frames: Frames, buffered: dict[Output, Buffered]) -> None:
        """Write down what the query puts out for others."""
        for output in query.writes:
            address = self._buffers.addresses[output]
            checkpoint = self._places.checkpoint(query)
            rows = self._schema_of(frames, query, output)
            stored = written(rows, buffer_options(output, address, checkpoint))
            producer = producer_name(_query_id(checkpoint), str(output))
            is_time_ours = EVENT_TIME not in rows.columns
            buffered[output] = Buffered(address, stored.schema, is_time_ours, producer)

    def _schema_of(self, frames: Frames, query: Query, output: Output) -> DataFrame:
        if output.vertex in query.trunk:
            return frames.tap(output)
        taps = {tap: frames.tap(tap) for tap in query.taps}
        return Frames(self.plan, query, taps, is_stream=False).output(output)

    # ---------------------------------------------------------------------- state

    def _check_state(self) -> None:
        """Refuse a state directory that is finished, or of another pipeline."""
        state = self._places.state_dir
        if (state / "closed").exists():
            raise BadConfig(
                "the pipeline was closed: all its windows are written",
                hint="use another state directory for what comes next",
                path=str(state),
            )
        for query in self.plan.queries:
            path, shape = self._places.of_query(query) / "shape.json", _shape(self.plan, query)
            if path.exists() and json.loads(path.read_text("utf-8")) != shape:
                raise BadConfig(
                    f"the state of {query.name} is of other reduces than the pipeline has now",
                    hint="close it as it was (`drain --close`), then use another state directory",
                    path=str(state),
                )
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(shape), "utf-8")

    # ------------------------------------------------------------------- progress

    def statistics(self) -> tuple[QueryStatistics, ...]:
        """Return a picture of this moment, of all queries that were started."""
        self._look()
        return tuple(_picture(one) for one in (*self._ended, *self._running))

    def _look(self) -> None:
        """Take in what Spark tells about batches; it remembers the last hundred."""
        for one in self._running:
            for progress in one.spark.recentProgress:
                batch = int(progress["batchId"])
                if batch <= one.seen_batch or not _is_batch(progress):
                    continue
                one.seen_batch = batch
                one.rows_total += int(progress["numInputRows"])
                one.left_out_total += sum(
                    int(operator["numRowsDroppedByWatermark"])
                    for operator in progress["stateOperators"]
                )
                for name, row in dict(progress["observedMetrics"] or {}).items():
                    one.observed[name] += int(row["rows"] or 0)


def _is_batch(progress: Any) -> bool:
    """Whether a report is of a batch; an idle query reports its last number again."""
    return "addBatch" in progress["durationMs"]


def _picture(one: _Running) -> QueryStatistics:
    last = one.spark.lastProgress
    tail = {} if one.tail is None else {".".join(k): n for k, n in one.tail.counts.items()}
    operators = last["stateOperators"] if last else []
    return QueryStatistics(
        name=one.query.name,
        is_running=one.spark.isActive,
        batch=None if one.seen_batch < 0 else one.seen_batch,
        rows_total=one.rows_total,
        rows_per_s=float(last["processedRowsPerSecond"] or 0.0) if last else 0.0,
        watermark=(last["eventTime"] or {}).get("watermark") if last else None,
        state_rows=sum(int(operator["numRowsTotal"]) for operator in operators),
        left_out_total=one.left_out_total,
        counts={name: n for name, n in {**one.observed, **tail}.items() if n},
    )


def _along_the_edge(frames: Frames, query: Query, plan: Plan, options: SinkOptions) -> DataFrame:
    """Return what Spark's own writer writes: the only tap, along its only edge."""
    (tap,) = query.taps
    if query.writes:
        return written(frames.tap(tap), options)
    (name,) = query.tail
    taps = {tap: frames.tap(tap)}
    return written(Frames(plan, query, taps, is_stream=True).rows_into(name), options)


def _as_text(options: SinkOptions) -> dict[str, str]:
    given = options.model_dump(exclude_defaults=True)
    secret = {"token": options.token.get_secret_value()} if options.token else {}
    return {
        name: str(value).lower() if value is True else str(value) for name, value in given.items()
    } | secret


def _shape(plan: Plan, query: Query) -> dict[str, Any]:
    reduces = {name: plan.pipeline.vertices[name].reduce for name in query.trunk}
    return {
        "reduces": {
            name: reduce.model_dump(mode="json", include={"window", "key", "aggregate"})
            for name, reduce in reduces.items()
            if reduce is not None
        },
        "shuffle_partitions": plan.pipeline.shuffle_partitions if query.stateful else None,
    }


def _query_id(checkpoint: Path) -> str:
    found, give_up_s = Checkpoint(str(checkpoint)), time.monotonic() + ID_TIMEOUT_S
    while found.query_id() is None and time.monotonic() < give_up_s:
        time.sleep(POLL_S)
    return found.require_query_id()


def _locked(state_dir: Path) -> IO[bytes]:
    state_dir.mkdir(parents=True, exist_ok=True)
    lock = open(state_dir / "lock", "ab")  # noqa: SIM115
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise DirectoryLocked(
            "another driver runs this pipeline",
            hint="stop it, or ask it with `holdfast dataflow drain`",
            path=str(state_dir),
        ) from error
    return lock


def _is_free(directory: PurePath) -> bool:
    try:
        with directory_lock(Seam(), directory):
            return True
    except DirectoryLocked:
        return False
    except HoldfastError:
        return True  # nothing is there: the query will say so


def _failed(query: Query, error: Exception) -> PipelineFailed:
    told = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [
        line for line in told if line.startswith(("holdfast.", "pyspark.errors", "FunctionFailed"))
    ]
    reason = ours[-1] if ours else told[0] if told else type(error).__name__
    hint = "nothing is lost: it goes on where it was when it is started again"
    if "its columns are not known" in reason:
        hint = "say what they are with `columns_are` of the source, or start when there is data"
    return PipelineFailed(f"the query {query.name} ended: {reason}", hint=hint)


# -------------------------------------------------------------------- asking a driver


def ask_to_drain(state_dir: Path, *, close: bool) -> bool:
    """Ask the driver that runs here to drain and end; False if there is none."""
    if not is_running(state_dir):
        return False
    fresh = state_dir / "drain.new"
    fresh.write_text(json.dumps({"close": close}), "utf-8")
    os.replace(fresh, state_dir / "drain.json")
    return True


def asked_to_drain(state_dir: Path) -> dict[str, bool] | None:
    """Return what somebody asked this driver for, once."""
    path = state_dir / "drain.json"
    try:
        asked: dict[str, bool] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    path.unlink(missing_ok=True)
    return asked


def is_running(state_dir: Path) -> bool:
    """Whether a driver runs here."""
    try:
        _locked(state_dir).close()
    except DirectoryLocked:
        return True
    return False
