"""Quivers that a driver owns and serves: between queries, retry lanes, and what intakes fill.

`Buffers` are those between queries, and the retry lanes. Two queries cannot both have a directory
open, and executors may be on other hosts: so they are served like a gateway's, by the driver that
owns them (cluster.py).

What waits in them is bounded (`buffers.max_rows`): while there is more in what a query writes, or
in its retry lane, its sources plan nothing new. They live in other processes, which see it by a
file.

`Intakes` are the sources that are not quivers, and the quivers they fill. A thread for each looks
for something new; what fails is logged and tried again, because a folder may be created later, or
disk space freed. `take_in` does the same once, for a run that reads what is there now and ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql.pandas.types import to_arrow_schema

from holdfast.dataflow.compiler.calls import parse_columns
from holdfast.dataflow.compiler.lane import Lane
from holdfast.dataflow.compiler.places import SINK_CONFIG, Places, buffer_subscriber
from holdfast.dataflow.compiler.plan import Output, Plan, Query, QueryBuffer
from holdfast.dataflow.compiler.recorded import RecordedPlan
from holdfast.dataflow.driver.settings import LOOPBACK
from holdfast.dataflow.source.intake import (
    SLOT,
    FileSetIntake,
    FilesIntake,
    GeneratorIntake,
    SourceIntake,
)
from holdfast.dataflow.spec.vertices import SourceSettings
from holdfast.errors import HoldfastError
from holdfast.quiver import ColumnExtractor, Quiver, QuiverConfig
from holdfast.remote import FlightSettings, QuiverServer

# How often to count what waits.
WATCH_EVERY_S = 0.25
_US = 1_000_000
# How often an intake looks for something new, and how long it waits after a failure.
LOOK_EVERY_S = 0.5
AFTER_ERROR_S = 5.0
_LOOPBACK = FlightSettings(listen=f"{LOOPBACK}:0")

log = logging.getLogger("holdfast.dataflow")


class Buffers:
    """The open quivers of a pipeline, and their server."""

    def __init__(
        self,
        plan: Plan,
        places: Places,
        served: FlightSettings = _LOOPBACK,
        last: RecordedPlan | None = None,
    ) -> None:
        """Open them; `last` is what the last run planned, if there was one."""
        self._plan = plan
        self._places = places
        self._stack = ExitStack()
        self.addresses: Mapping[Output, str] = {}
        # By the name of the query.
        self.lanes: dict[str, Lane] = {}
        self._quivers: dict[str, Quiver] = {}
        self._stopped = threading.Event()
        self._watcher: threading.Thread | None = None
        self.let_go()
        if not plan.buffers and not any(query.has_lane for query in plan.queries):
            return
        with ExitStack() as opening:
            self._open(opening, served)
            self._register_readers(last)
            self._stack = opening.pop_all()

    def _register_readers(self, last: RecordedPlan | None) -> None:
        """Register the queries that read each quiver, before any query writes to one.

        A query registers when it first plans. By then those before it may have written, and those
        beside it may have read and let go: a query that was added to the file would miss rows. It
        begins with what comes from now on. One that the last run knew and that never came to
        register begins with all that is left: what is there was written for it, too.
        """
        for query in self._plan.queries:
            former = None if last is None else last.query(query.name)
            for buffer in self._plan.buffers:
                if buffer.output not in query.reads:
                    continue
                output, quiver = str(buffer.output), self._quivers[buffer.name]
                is_new = last is not None and (former is None or output not in former.reads)
                name = buffer_subscriber(self._plan, query, buffer.output)
                if name not in quiver.subscribers():
                    quiver.register(name, start="latest" if is_new else "oldest")

    def _open(self, opening: ExitStack, served: FlightSettings) -> None:
        """Open all quivers, then serve them at one address.

        Addresses are known only when the server listens, and it is given all quivers together,
        those of lanes included. So lanes learn their addresses last.
        """
        plan, places = self._plan, self._places
        for buffer in plan.buffers:
            self._quivers[buffer.name] = opening.enter_context(
                Quiver.open(places.buffer(buffer.output), SINK_CONFIG)
            )
        for query in plan.queries:
            if query.has_lane:
                self._open_lane(query, opening)
        server = QuiverServer(self._quivers, served)
        opening.enter_context(server)
        self.addresses = {
            buffer.output: f"{server.location}/{buffer.name}" for buffer in plan.buffers
        }
        for name, lane in self.lanes.items():
            lane.waiting_address = f"{server.location}/{name}-waiting"
            lane.due_address = f"{server.location}/{name}-due"

    def _open_lane(self, query: Query, opening: ExitStack) -> None:
        """Open the two quivers of a retry lane.

        It is given the quivers that its query writes: a row that waits holds what the query
        promises there, but nothing older than what is promised already.
        """
        waiting, due = (
            opening.enter_context(Quiver.open(self._places.lane(query, part), SINK_CONFIG))
            for part in ("waiting", "due")
        )
        self._quivers |= {f"{query.name}-waiting": waiting, f"{query.name}-due": due}
        written = [self._quivers[one.name] for one in self._written_by(query)]
        max_hold_us = int(self._plan.pipeline.watermark.max_hold * _US)
        self.lanes[query.name] = Lane(waiting, due, written, max_hold_us)

    def _written_by(self, query: Query) -> list[QueryBuffer]:
        return [buffer for buffer in self._plan.buffers if buffer.output in query.writes]

    # ------------------------------------------------------------------- watching

    def start(self) -> None:
        """Let rows come again when they are due, and sources wait while too many do."""
        for lane in self.lanes.values():
            lane.start()
        if self._quivers and self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="buffers", daemon=True)
            self._watcher.start()

    def _watch(self) -> None:
        """Look again and again; what cannot be counted now leaves sources as they are."""
        while not self._stopped.wait(WATCH_EVERY_S):
            try:
                self.look()
            except (HoldfastError, OSError) as error:
                log.warning("cannot count the rows that wait between queries: %s", error)

    def look(self) -> None:
        """Let the sources of each query wait, or go on, by how much is behind them.

        A file is all that sources see of it: they plan in other processes. They resume only when
        clearly less waits than the limit, so that they do not start and stop with every batch.
        """
        limit = self._plan.pipeline.buffers
        for query in self._plan.queries:
            path = self._places.wait_file(query)
            waiting = self.waiting_rows(query)
            if waiting > limit.max_rows and not path.exists():
                log.warning("pausing %s: %d rows wait behind it", query.name, waiting)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            elif waiting <= limit.max_rows * limit.resume:
                path.unlink(missing_ok=True)

    def waiting_rows(self, query: Query) -> int:
        """Return how many rows wait in the fullest quiver that a query writes."""
        found = [_backlog(self._quivers[one.name]) for one in self._written_by(query)]
        lane = self.lanes.get(query.name)
        return max([*found, 0 if lane is None else lane.rows])

    def hold_sources(self) -> None:
        """Let no source plan anything new, until the pipeline is opened again.

        The watcher is ended first: it would remove the files again.
        """
        self._stop()
        for query in self._plan.queries:
            path = self._places.wait_file(query)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def let_go(self) -> None:
        """Let sources plan again."""
        for query in self._plan.queries:
            self._places.wait_file(query).unlink(missing_ok=True)

    def close(self) -> None:
        """Stop serving, and close the quivers."""
        self._stop()
        self._stack.close()

    def _stop(self) -> None:
        """End the threads that watch and that move rows; files that let sources wait stay."""
        self._stopped.set()
        if self._watcher is not None:
            self._watcher.join()
        for lane in self.lanes.values():
            lane.stop()


def _backlog(quiver: Quiver) -> int:
    """Return how many rows the slowest reader of a quiver has before it."""
    pending = [quiver.balance(name).pending.events for name in quiver.subscribers()]
    return max(pending, default=0)


class Intakes:
    """The intakes of a pipeline, by vertex."""

    def __init__(self, plan: Plan, places: Places, served: FlightSettings = _LOOPBACK) -> None:
        self._stack = ExitStack()
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self.intakes: dict[str, SourceIntake] = {}
        # Where sources read what was taken in.
        self.addresses: Mapping[str, str] = {}
        wanted = {
            name: source
            for name, vertex in plan.pipeline.vertices.items()
            if (source := vertex.source) is not None and not source.quiver
        }
        if not wanted:
            return
        with ExitStack() as opening:
            quivers = {
                name: self._open(name, source, places, opening) for name, source in wanted.items()
            }
            server = QuiverServer(quivers, served)
            opening.enter_context(server)
            self._stack = opening.pop_all()
        self.addresses = {name: f"{server.location}/{name}" for name in quivers}

    def _open(
        self, name: str, source: SourceSettings, places: Places, opening: ExitStack
    ) -> Quiver:
        """Open the quiver of a source that is none itself, and make what fills it.

        The event times of rows are read from the column that the source names, so that the quiver
        can state them, and a watermark follows, as for the events of a gateway.
        """
        folder = places.intake(name)
        config = QuiverConfig(extractors={SLOT: ColumnExtractor(source.event_time)})
        quiver = opening.enter_context(Quiver.open(folder / "rows", config))
        if source.generator is not None:
            made = source.generator
            self.intakes[name] = GeneratorIntake(
                folder, quiver, made.rows_per_s, made.keys, made.rows
            )
            return quiver
        rejected = opening.enter_context(Quiver.open(folder / "rejected"))
        schema = None
        if source.columns_are:
            columns = parse_columns(source.columns_are, f"`columns_are` of {name}")
            schema = to_arrow_schema(columns, timezone="UTC")
        kinds = (source.format, source.event_time, schema)
        if source.fileset is not None:
            stored = source.fileset
            database = stored.database.get_secret_value() if stored.database else None
            place = (places.store(stored.store), database, stored.commit)
            self.intakes[name] = FileSetIntake(folder, (quiver, rejected), place, *kinds)
        else:
            incoming = places.base_dir / Path(source.files or "")
            self.intakes[name] = FilesIntake(folder, quiver, rejected, incoming, *kinds)
        return quiver

    def take_in(self) -> None:
        """Take in what is there now."""
        for intake in self.intakes.values():
            intake.take(self._stopped.is_set)

    def start(self) -> None:
        """Take in what comes, until it is closed."""
        for name, intake in self.intakes.items():
            thread = threading.Thread(
                target=self._run, args=(name, intake), name=f"intake-{name}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _run(self, name: str, intake: SourceIntake) -> None:
        """Take in what comes; a failure (no folder yet, a full disk) makes the pause longer."""
        pause_s = 0.0
        while not self._stopped.wait(pause_s):
            try:
                intake.take(self._stopped.is_set)
                pause_s = LOOK_EVERY_S
            except (HoldfastError, OSError) as error:
                log.warning("%s: could not take anything in: %s", name, error)
                pause_s = AFTER_ERROR_S

    def stop(self) -> None:
        """Take in no more."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        self._threads = []
        self._stopped.clear()

    def close(self) -> None:
        """Take in no more, and close the quivers."""
        self.stop()
        self._stack.close()
