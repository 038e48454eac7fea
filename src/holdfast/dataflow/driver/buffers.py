"""The quivers of a pipeline's own: between its queries, and the retry lanes of queries.

Two queries cannot both have a directory open, and executors may be elsewhere: so they are served
like a gateway's, by the driver that owns them: cluster.py.

What waits in them is bounded (`buffers.max_rows`): while there is more in what a query writes, or
in its retry lane, its sources plan nothing new. They live in other processes, which see it by a
file.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import ExitStack

from holdfast.dataflow.compiler.lane import Lane
from holdfast.dataflow.compiler.places import SINK_CONFIG, Places
from holdfast.dataflow.compiler.plan import Output, Plan, Query, QueryBuffer
from holdfast.dataflow.driver.cluster import LOOPBACK
from holdfast.errors import HoldfastError
from holdfast.quiver import Quiver
from holdfast.remote import FlightSettings, QuiverServer

# How often it is looked at how much waits.
WATCH_EVERY_S = 0.25
_US = 1_000_000
_LOOPBACK = FlightSettings(listen=f"{LOOPBACK}:0")

log = logging.getLogger("holdfast.dataflow")


class Buffers:
    """The open quivers of a pipeline, and their server."""

    def __init__(self, plan: Plan, places: Places, served: FlightSettings = _LOOPBACK) -> None:
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
            self._stack = opening.pop_all()

    def _open(self, opening: ExitStack, served: FlightSettings) -> None:
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
        while not self._stopped.wait(WATCH_EVERY_S):
            try:
                self.look()
            except (HoldfastError, OSError) as error:
                log.warning("cannot count the rows that wait between queries: %s", error)

    def look(self) -> None:
        """Let the sources of each query wait, or go on, by how much is behind them."""
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
        """Let no source plan anything new, until the pipeline is opened again."""
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
        self._stopped.set()
        if self._watcher is not None:
            self._watcher.join()
        for lane in self.lanes.values():
            lane.stop()


def _backlog(quiver: Quiver) -> int:
    pending = [quiver.balance(name).pending.events for name in quiver.subscribers()]
    return max(pending, default=0)
