"""What the console knows of its gateway: asks it, remembers an hour, and counts rates.

The gateway is asked every `STEP_S` for the history, and every `LIVE_S` while a page is open; all
open pages share one answer, so that many of them cost the gateway no more than one.

Verbs are called in threads of our own. They wait there for the gateway's event loop, which itself
uses asyncio's threads to count: with those, a few slow answers could wait for each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeVar

from holdfast.console.history import STEP_S, History
from holdfast.console.snapshot import GatewaySnapshot, snapshot_of
from holdfast.dataflow.driver.wire import DriverFigures
from holdfast.errors import BadInput, HoldfastError
from holdfast.graph.model import Graph
from holdfast.quiver.engine.control import Verbs

# How old a picture may be that is shown again.
LIVE_S = 1.0
# Rates are counted over about this long: a figure that jumps every second cannot be read.
RATE_S = 10.0
THREADS = 4

log = logging.getLogger("holdfast.console")

Result = TypeVar("Result")


class ConsoleSource(Protocol):
    """The gateway, or the parent of several workers, as the console needs it."""

    @property
    def driver_figures(self) -> DriverFigures | None:
        """What the driver of the pipelines said last; None if there is none."""

    def verbs(self) -> Verbs:
        """Return what the control socket can be asked."""


class Sampled(NamedTuple):
    """A picture, and when it was taken."""

    at_s: float
    snapshot: GatewaySnapshot


class ConsoleView:
    """Asks the gateway; one event loop uses it."""

    def __init__(self, graph: Graph, source: ConsoleSource) -> None:
        # As it was started: a reload changes destinations, which are then in the figures only.
        self.graph = graph
        self.source = source
        self.history = History()
        self._verbs = source.verbs()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="console")
        self._asking = asyncio.Lock()
        # As many as a rate needs, the newest last.
        self._samples: deque[Sampled] = deque()
        self._sampling: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to remember."""
        self._sampling = asyncio.create_task(self._sample())

    async def close(self) -> None:
        """End; a verb that is being served is not waited for."""
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.wait([self._sampling])
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _sample(self) -> None:
        while True:
            # Not during a start: nothing is there yet, and the next point is near.
            with contextlib.suppress(HoldfastError):
                snapshot = await self.snapshot()
                self.history.add(time.time(), self._points(snapshot))
            await asyncio.sleep(STEP_S)

    # -------------------------------------------------------------------- asking

    async def ask(self, verb: str, **fields: Any) -> dict[str, Any]:
        """Ask the gateway as a tool does over its control socket; raises what it answers."""
        return await self.in_thread(lambda: self._verbs[verb]({"verb": verb, **fields}))

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        """Do what blocks, in a thread of the console's own."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def snapshot(self) -> GatewaySnapshot:
        """Return how the gateway is, at most `LIVE_S` ago."""
        async with self._asking:
            newest = self._samples[-1] if self._samples else None
            # Never a picture of a start: once that is over, destinations would be missing in it.
            if (
                newest is not None
                and not newest.snapshot.is_starting
                and time.monotonic() - newest.at_s < LIVE_S
            ):
                return newest.snapshot
            status = await self.ask("status")
            if "workers" in status and not status["workers"]:
                raise BadInput("no worker answers yet", hint="try again in a moment")
            taken = Sampled(time.monotonic(), snapshot_of(status))
            self._samples.append(taken)
            # One that is older than the span stays, or there would be nothing to compare with.
            while len(self._samples) > 2 and taken.at_s - self._samples[1].at_s >= RATE_S:  # noqa: PLR2004
                self._samples.popleft()
            return taken.snapshot

    # --------------------------------------------------------------------- rates

    def rates(self) -> Mapping[str, float]:
        """Return events per second by what is counted, such as `sent:marquez`."""
        if len(self._samples) < 2:  # noqa: PLR2004
            return {}
        first, last = self._samples[0], self._samples[-1]
        span_s = last.at_s - first.at_s
        before, after = _totals(first.snapshot), _totals(last.snapshot)
        # A count that fell began anew: a worker was restarted.
        return {
            name: (count - before[name]) / span_s
            for name, count in after.items()
            if name in before and count >= before[name] and span_s > 0
        }

    def _points(self, snapshot: GatewaySnapshot) -> dict[str, float]:
        """Return one point of every series."""
        points: dict[str, float] = dict(self.rates())
        for one in snapshot.destinations:
            points[f"waiting:{one.name}"] = one.waiting_events
        for buffer in snapshot.quivers:
            points[f"used:{buffer.name}"] = buffer.used_bytes
        return points


def _totals(snapshot: GatewaySnapshot) -> dict[str, int]:
    totals = {f"accepted:{one.name}": one.accepted for one in snapshot.receivers}
    totals["accepted"] = snapshot.accepted
    totals |= {f"sent:{one.name}": one.sent_events for one in snapshot.destinations}
    for one in snapshot.readers:
        totals[f"read:{one.quiver}/{one.name}"] = one.account.accepted - one.account.waiting
    return totals
