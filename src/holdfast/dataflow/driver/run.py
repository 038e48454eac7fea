"""Running a pipeline: its queries, their progress, draining them, and how they end.

    state_dir/
      lock, closed, drain.json   see state_dir.py
      plan.json                  all queries, and what their state is made of (recorded.py)
      <query>/checkpoint/        Spark's, and our notes in holdfast/
      <query>/dead_letters/      a quiver of rows that failed
      buffers/<output>/          a quiver between two queries

`start` runs until it is stopped. `drain` reads what is there now, query after query, so that what
one puts out is read by the next; with `close` it claims the end of time and every window closes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException

from holdfast.dataflow.compiler.continuation import (
    SHAPE,
    continued,
    copied_states,
    record_of,
    recorded_plan,
    refusal,
)
from holdfast.dataflow.compiler.frames import Frames
from holdfast.dataflow.compiler.places import (
    Places,
    buffer_options,
    source_options,
    target_options,
)
from holdfast.dataflow.compiler.plan import PARTITIONS_MIN, Output, Plan, Query
from holdfast.dataflow.compiler.recorded import read_record, write_record
from holdfast.dataflow.compiler.sources import Buffered, pushed, streams, waiting
from holdfast.dataflow.compiler.tails import Tail, gathered, written
from holdfast.dataflow.driver.checkpoint_edits import (
    arrange_offsets,
    copy_state,
    leftovers,
    mend_moved,
    settle_copies,
    subscribers_of,
)
from holdfast.dataflow.driver.cluster import (
    check_shared,
    own_authorities,
    own_ports,
    own_server,
    refuse_address,
)
from holdfast.dataflow.driver.failures import (
    Restarts,
    failed,
    hangs,
    reason_of,
    told_briefly,
)
from holdfast.dataflow.driver.own_quivers import Buffers, Intakes
from holdfast.dataflow.driver.progress import QueryProgress
from holdfast.dataflow.driver.session import (
    activate,
    query_session,
    require_classic,
    starting_in_turn,
)
from holdfast.dataflow.driver.state_dir import StateDir
from holdfast.dataflow.driver.wire import QueryStatistics
from holdfast.dataflow.sink.options import EVENT_TIME, SinkOptions
from holdfast.dataflow.sink.quiver_writer import producer_name
from holdfast.dataflow.source.checkpoint import Checkpoint
from holdfast.dataflow.source.partials import PartialSpec
from holdfast.dataflow.source.rejected_publish import RejectedCount
from holdfast.dataflow.spec.pipeline import PipelineSettings
from holdfast.errors import BadConfig, DirectoryLocked, HoldfastError, PipelineFailed
from holdfast.quiver.tools.changes import directory_lock
from holdfast.seam import Seam

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

# A query writes its id before it reads anything.
ID_TIMEOUT_S = 60.0
# How long to wait for a data directory that another process has open.
FREE_TIMEOUT_S = 10.0
POLL_S = 0.1
# For batches that run to come to their end before they are stopped.
FINISH_PATIENCE_S = 60.0
FINISHED_LOOKS = 5
# For the process that plans to answer. It asks gateways, each with a time-out of its own.
PLANNING_PATIENCE_S = 600.0

log = logging.getLogger("holdfast.dataflow")


def with_partitions(pipeline: PipelineSettings, cores: int) -> PipelineSettings:
    """Return a pipeline whose state has as many parts as Spark has cores, unless it says so.

    A state directory that is there decides otherwise: Spark cannot repartition state.
    """
    if pipeline.shuffle_partitions is not None:
        return pipeline
    return pipeline.model_copy(update={"shuffle_partitions": max(PARTITIONS_MIN, cores)})


class PipelineRun:
    """A pipeline and its driver; one at a time for each state directory."""

    def __init__(
        self, name: str, pipeline: PipelineSettings, places: Places, session: SparkSession
    ) -> None:
        require_classic(session)
        pipeline = with_partitions(pipeline, session.sparkContext.defaultParallelism)
        # Spark's own processes have other working directories.
        served = own_server(session)
        self._places = places = replace(
            places,
            state_dir=places.state_dir.absolute(),
            base_dir=places.base_dir.absolute(),
            own_token=served.tokens[0].token,
            own_ca_file=own_authorities(session),
        )
        self._session = session
        self._asking_since_s: float | None = None
        self._running: list[QueryProgress] = []
        self._ended: list[QueryProgress] = []
        # Queries that were stopped and still run: Spark cannot start them again.
        self.not_stopped: list[str] = []
        refuse_address(places.state_dir)
        self.state_dir = StateDir(places.state_dir)
        self._lock = self.state_dir.lock()
        self._ports = own_ports(session)
        with ExitStack() as opening:
            opening.callback(self._lock.close)
            opening.callback(self._ports.close)
            last = read_record(places.state_dir)
            self.plan = self._planned(name, pipeline)
            check_shared(session, self.plan, places)
            self._buffers = Buffers(self.plan, places, self._ports.given_to(served), last)
            opening.callback(self._buffers.close)
            self._intakes = Intakes(self.plan, places, self._ports.given_to(served))
            opening.pop_all()
        self._places = replace(places, intakes=self._intakes.addresses)

    def __enter__(self) -> PipelineRun:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def asking_s(self) -> float:
        """How long Spark has not answered what it was asked; 0 if nothing is asked."""
        since_s = self._asking_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Note since when Spark has not answered; nested questions count from the first.

        py4j waits for Java without a time-out. The process that keeps pipelines going looks at this
        from another thread, and replaces Spark if it is too long.
        """
        before_s = self._asking_since_s
        self._asking_since_s = time.monotonic() if before_s is None else before_s
        try:
            yield
        finally:
            self._asking_since_s = before_s

    # ------------------------------------------------------------------- starting

    def start(self) -> None:
        """Start all queries; they run until they are stopped."""
        buffered: dict[Output, Buffered] = {}
        for query in self.plan.queries:
            self._start(query, buffered, close=False, once=False)
        self._buffers.start()
        self._intakes.start()

    def drain(self, *, close: bool = False) -> None:
        """Read what is there now, to the end; with `close` close all windows, for good.

        Queries run one after the other, each until it has read everything, so that the next one
        finds all that the first has put out. Rows of a lane that are due come with it; with `close`
        all others follow, as often as rows still fail and have attempts left, because no later run
        will try them.
        """
        self.finish()
        self._stop_queries()
        self._intakes.stop()
        self._intakes.take_in()
        buffered: dict[Output, Buffered] = {}
        for query in self.plan.queries:
            lane = self._buffers.lanes.get(query.name)
            if lane is not None:
                lane.move()
            is_left = True
            while is_left:
                self._start(query, buffered, close=close, once=True)
                self.wait()
                self._ended, self._running = [*self._ended, *self._running], []
                # Nothing comes any more: rows that failed are tried as often as they may, now.
                is_left = close and lane is not None and lane.move(hurry=True) > 0
        if close:
            self.state_dir.close()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all queries have ended, or one failed; whether they have."""
        give_up_s = None if timeout_s is None else time.monotonic() + timeout_s
        while self._goes_on():
            if give_up_s is not None and time.monotonic() > give_up_s:
                return False
            time.sleep(POLL_S)
        with self._asking():
            for one in self._running:
                error = one.spark.exception()
                if error is not None:
                    self.stop()
                    raise failed(one.name, error) from error
            self._look()
        return True

    def _goes_on(self) -> bool:
        """Whether there is something to wait for: a query that runs, while none has failed.

        A query that ended for lack of a Python process is restarted here; one that hangs is an
        error, because a query that waits for ever looks like one that has nothing to do.
        """
        with self._asking():
            for one in self._running:
                one.begin_again()
            self._look()
            for one in self._running:
                stuck = one.stuck(PLANNING_PATIENCE_S, self._has_jobs)
                if stuck is not None:
                    self.stop()
                    raise hangs(one.name, *stuck)
            if any(one.spark.exception() is not None for one in self._running):
                return False
            return any(one.spark.isActive for one in self._running)

    def _has_jobs(self, query: StreamingQuery) -> bool:
        """Whether Spark has a job of a query: its name for them is that of the query's run."""
        tracker = self._session.sparkContext.statusTracker()
        mine = tracker.getJobIdsForGroup(str(query.runId))
        return not set(mine).isdisjoint(tracker.getActiveJobsIds())

    def ended_queries(self) -> list[str]:
        """Return the queries that ended without an error, and were not stopped here."""
        with self._asking():
            ended = [one for one in self._running if not one.spark.isActive]
            return [one.name for one in ended if one.spark.exception() is None]

    def finish(self, patience_s: float = FINISH_PATIENCE_S) -> None:
        """Start no more batches, and wait for those that run, up to a timeout."""
        if not self._running:
            return
        self._buffers.hold_sources()
        give_up_s, looks = time.monotonic() + patience_s, 0
        # A source may have planned a batch just before: nothing is known of that for a moment.
        while looks < FINISHED_LOOKS and time.monotonic() < give_up_s:
            looks = 0 if any(one.is_in_batch() for one in self._running) else looks + 1
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Stop all queries, and let go of everything; a batch that runs is run again next time."""
        with ExitStack() as ending:
            # All of them, the last one first, whatever the others say.
            for one in (self._lock, self._ports, self._buffers, self._intakes):
                ending.callback(one.close)
            self._stop_queries()

    def _stop_queries(self) -> None:
        """Stop all queries, and keep their statistics."""
        with self._asking():
            for one in self._running:
                self._stop_query(one)
            self._look()
        self._ended, self._running = [*self._ended, *self._running], []

    def _stop_query(self, one: QueryProgress) -> None:
        """Stop a query; note one that does not: Spark cannot start it again beside itself."""
        try:
            one.spark.stop()
        except Py4JJavaError as error:
            doing = one.spark.status["message"]
            log.error("%s did not stop; it is at: %s; %s", one.name, doing, reason_of(error))
            self.not_stopped.append(one.name)

    def _start(
        self, query: Query, buffered: dict[Output, Buffered], *, close: bool, once: bool
    ) -> None:
        """Start a query, again if its Python process did not come up in time.

        What it puts out for other queries is noted only now: its columns are known when it is
        planned, and the name under which it promises watermarks when it has its id.
        """
        restarts = Restarts(self.plan.pipeline.worker_attempts)
        rejected = RejectedCount(self._places.checkpoint(query))
        while True:
            try:
                with starting_in_turn(), self._asking():
                    frames, tail, begin = self._prepare(query, buffered, close=close, once=once)
                    started = begin()
            except PipelineFailed as error:
                if not restarts.may_begin(error):
                    raise
                log.warning("restarting %s: %s", query.name, error.message)
                continue
            checkpoint = Checkpoint(str(self._places.checkpoint(query)))
            self._running.append(
                QueryProgress(query.name, started, tail, begin, restarts, checkpoint, rejected)
            )
            self._note_buffers(query, frames, buffered)
            return

    def _prepare(
        self, query: Query, buffered: dict[Output, Buffered], *, close: bool, once: bool
    ) -> tuple[Frames, Tail | None, Callable[[], StreamingQuery]]:
        """Return a query's frames, what is done with its batches, and what starts it.

        A query without branches is written by Spark's own writer; one with branches hands each
        batch to a `Tail`. The offset log is arranged only now, when Spark has analyzed the plan:
        the order of sources in it is Spark's, and nothing else knows it.
        """
        pipeline = self.plan.pipeline
        self._wait_for_sources(query)
        is_repeated = len(set(query.operators)) < len(query.operators)
        session = query_session(self._session, query.shuffle_partitions, is_repeated=is_repeated)
        lane = self._buffers.lanes.get(query.name)
        try:
            given = streams(
                session, self.plan, query, self._places, buffered,
                close=close, waits=not once, lane="" if lane is None else lane.due_address,
            )  # fmt: skip
        except (AnalysisException, Py4JJavaError) as error:
            raise failed(query.name, error) from error
        wait = {} if once else waiting(query, self._places)

        def pushing(name: str, spec: PartialSpec, schema: StructType) -> DataFrame:
            options = source_options(self.plan, query, name, self._places, close=close)
            return pushed(session, {**options, **wait}, spec, schema)

        frames = Frames(self.plan, query, given, is_stream=True, pushing=pushing)
        tail = None
        if query.terminal == "writer":
            options = self._writer_options(query)
            rows = _along_the_edge(frames, query, self.plan, options)
            writer = rows.writeStream.format("holdfast").options(**_as_text(options))
        else:
            tail = Tail(self.plan, query, self._places, self._buffers.addresses, lane)
            rows = gathered(frames, query.taps)
            writer = rows.writeStream.foreachBatch(told_briefly(tail))
        arrange_offsets(self._places.checkpoint(query), subscribers_of(rows))
        mend_moved(self._places.checkpoint(query))
        writer = writer.queryName(f"{self.plan.name}.{query.name}").outputMode("append")
        writer = writer.option("checkpointLocation", str(self._places.checkpoint(query)))
        trigger = {"processingTime": f"{round(pipeline.trigger * 1000)} milliseconds"}
        writer = writer.trigger(**({"availableNow": True} if once else trigger))
        return frames, tail, partial(self._begin, query, session, writer)

    def _begin(
        self, query: Query, session: SparkSession, writer: DataStreamWriter
    ) -> StreamingQuery:
        """Start a query, from its checkpoint if it has one."""
        self._wait_for_sources(query)
        activate(session)
        try:
            return writer.start()
        except Py4JJavaError as error:
            raise failed(query.name, error) from error

    def _wait_for_sources(self, query: Query) -> None:
        """Wait until no process has the query's data directories open.

        A process that planned for the query before lets go of them a little after its end. If it
        is another process, the query will say which.
        """
        sources = [self.plan.pipeline.vertices[name].source for name in query.vertices]
        named = [self._places.quiver(q) for source in sources if source for q in source.quiver]
        give_up_s = time.monotonic() + FREE_TIMEOUT_S
        paths = [path for one in named if "path" in one for path in one["path"].split(",")]
        for path in map(PurePath, (*paths, str(self._places.dead_letters(query)))):
            while time.monotonic() < give_up_s and not _is_free(path):
                time.sleep(POLL_S)

    def _writer_options(self, query: Query) -> SinkOptions:
        """Return the options of the one place that a query without branches writes to."""
        checkpoint = self._places.checkpoint(query)
        if query.writes:
            (output,) = query.writes
            address = self._buffers.addresses[output]
            return buffer_options(self.plan, query, output, address, self._places)
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
            options = buffer_options(self.plan, query, output, address, self._places)
            stored = written(rows, options)
            producer = producer_name(_query_id(checkpoint), str(output))
            is_time_ours = EVENT_TIME not in rows.columns
            buffered[output] = Buffered(address, stored.schema, is_time_ours, producer)

    def _schema_of(self, frames: Frames, query: Query, output: Output) -> DataFrame:
        """Return a frame with the columns of an output, for the query that reads it.

        What is put out behind the trunk exists only inside of batches. So the tail is built once
        more over the trunk's taps, for its columns alone; nothing runs.
        """
        if output.vertex in query.trunk:
            return frames.tap(output)
        taps = {tap: frames.tap(tap) for tap in query.taps}
        return Frames(self.plan, query, taps, is_stream=False).output(output)

    # ---------------------------------------------------------------------- state

    def _planned(self, name: str, pipeline: PipelineSettings) -> Plan:
        """Return the plan, and write it down; refuse a state directory that it does not fit.

        Copies of states are made before the plan is written down. A driver that dies in between
        leaves copies that no plan names, and the next one removes them.
        """
        state = self._places.state_dir
        if self.state_dir.is_closed:
            raise BadConfig(
                "the pipeline was closed: all its windows are written",
                hint=f"`mv {state} {state}.closed`: the next start resumes after what was read",
                path=str(state),
            )
        recorded = recorded_plan(name, pipeline, state)
        plan = continued(name, pipeline, recorded, state)
        if recorded is not None:
            left = list(leftovers(plan, recorded, self._places))
            if left:
                raise refusal(name, left, state)
            for known in recorded.queries:
                settle_copies(state / known.name / "checkpoint", len(known.operators))
            for query, source, place in copied_states(plan, recorded):
                copy_state(self._places.checkpoint(query), source, place)
        write_record(state, record_of(plan))
        for old in state.glob(f"*/{SHAPE}"):
            old.unlink()
        return plan

    # ------------------------------------------------------------------- progress

    def statistics(self) -> tuple[QueryStatistics, ...]:
        """Return a snapshot of all queries that were started."""
        with self._asking():
            self._look()
            return tuple(self._named(one.statistics()) for one in (*self._ended, *self._running))

    def _named(self, statistics: QueryStatistics) -> QueryStatistics:
        """Return the statistics of a query, with vertices named as in the file."""
        parts = [(*name.partition("."), n) for name, n in statistics.counts.items()]
        named = {f"{what}{dot}{self.plan.name_of(where)}": n for what, dot, where, n in parts}
        return statistics._replace(counts=named)

    def _look(self) -> None:
        for one in self._running:
            one.look()


def _along_the_edge(frames: Frames, query: Query, plan: Plan, options: SinkOptions) -> DataFrame:
    """Return what Spark's own writer writes: the only tap, along its only edge."""
    (tap,) = query.taps
    if query.writes:
        return written(frames.tap(tap), options)
    (name,) = query.tail
    taps = {tap: frames.tap(tap)}
    return written(Frames(plan, query, taps, is_stream=True).rows_into(name), options)


def _as_text(options: SinkOptions) -> dict[str, str]:
    """Return options as Spark takes them; secrets are revealed here and nowhere else."""
    given = options.model_dump(exclude_defaults=True)
    secrets = {"token": options.token, "database": options.database}
    revealed = {name: secret.get_secret_value() for name, secret in secrets.items() if secret}
    return {
        name: str(value).lower() if value is True else str(value) for name, value in given.items()
    } | revealed


def _query_id(checkpoint: Path) -> str:
    """Return the id of a query that has just started, as soon as Spark has written it down."""
    found, give_up_s = Checkpoint(str(checkpoint)), time.monotonic() + ID_TIMEOUT_S
    while found.query_id() is None and time.monotonic() < give_up_s:
        time.sleep(POLL_S)
    return found.require_query_id()


def _is_free(directory: PurePath) -> bool:
    """Whether no process has a data directory open just now."""
    try:
        with directory_lock(Seam(), directory):
            return True
    except DirectoryLocked:
        return False
    except HoldfastError:
        return True  # nothing is there: the query will say so
