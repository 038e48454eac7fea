"""Running destinations: for each one its exporter and its delivery loop, for as long as it lives.

A delivery loop is made to run for ever and to take every answer for what it is. If one ends by a
bug all the same, it is told and begun again after a pause, so that one destination's bug is not
everyone's; nothing is lost by it, because progress is in the ledger.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.dead_letters.queue import DeadLetterQueue
from holdfast.deliver.destination import Destination
from holdfast.deliver.exporter import Exporter, ExporterContext
from holdfast.deliver.exporters.round_robin import RoundRobin
from holdfast.deliver.redrive import Way as ReplayWay
from holdfast.deliver.settings import DeliverySettings
from holdfast.graph.chains import Way, first_of, follow, tapped
from holdfast.graph.paths import DestinationPlan
from holdfast.graph.taps import Taps
from holdfast.quiver import Quiver
from holdfast.seam import Seam
from holdfast.signals.event import Unit

# Before a loop that ended by a bug begins again: doubles from the first to the second, and is the
# first again for one that ran longer than the second.
RESTART_MIN_S = 1.0
RESTART_MAX_S = 60.0

log = logging.getLogger("holdfast.graph")


@dataclass(frozen=True)
class Surroundings:
    """What every destination of a gateway has in common."""

    dead_letters: DeadLetterQueue
    taps: Taps
    seam: Seam
    context: Callable[[str], ExporterContext]


def make_exporter(plan: DestinationPlan, around: Surroundings) -> Exporter:
    """Return what sends to a destination."""
    made = [
        node.component.code.make(node.config, around.context(plan.name)) for node in plan.exporters
    ]
    exporter: Exporter = made[0] if len(made) == 1 else RoundRobin(made)
    return exporter


def way_of(plan: DestinationPlan) -> Way:
    """Return what the processors on the way to a destination make of an event."""
    return first_of([follow(chain) for chain in plan.chains])


class Courier:
    """One destination of one quiver: makes it, runs it, ends it.

    Making one registers the destination with the quiver, which touches the disk: not on the loop.
    """

    def __init__(
        self,
        plan: DestinationPlan,
        quiver: Quiver,
        around: Surroundings,
        core_id: int = 0,
    ) -> None:
        self.plan = plan
        self.name = plan.name
        self.core_id = core_id
        self.settings: DeliverySettings = plan.delivery
        self._quiver = quiver
        self._around = around
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._pause_s = RESTART_MIN_S
        self.destination = self._make()

    def _make(self) -> Destination:
        around = self._around
        return Destination(
            self.name,
            self._quiver,
            make_exporter(self.plan, around),
            self.settings,
            around.dead_letters,
            [tapped(follow(chain), around.taps, self.name) for chain in self.plan.chains],
            around.seam,
            self.plan.refusal_of,
        )

    def start(self) -> None:
        """Deliver, until `stop`."""
        self._task = asyncio.create_task(self._run(), name=f"destination {self.name}")

    async def _run(self) -> None:
        while True:
            try:
                await self.destination.run()
            except Exception:
                log.exception("the delivery to %s ended; it begins again", self.name)
            if self._stopping:
                return
            await self._make_anew()

    async def _make_anew(self) -> None:
        """Make the destination once more, as often as it takes: the disk may be full right now."""
        while True:
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(2 * self._pause_s, RESTART_MAX_S)
            try:
                self.destination = await asyncio.to_thread(self._make)
            except Exception:
                log.exception("%s cannot be begun again; that is tried again", self.name)
            else:
                return

    async def stop(self, drain_s: float) -> None:
        """Finish what is under way for at most `drain_s`, and end."""
        self._stopping = True
        if self._task is None:
            await self.destination.stop(0.0)
            return
        try:
            await self.destination.stop(drain_s)
        finally:
            self._task.cancel()
            await asyncio.wait([self._task])

    def replay_way(self) -> ReplayWay:
        """Return how dead letters reach the destination: through its processors, out of order."""
        way = way_of(self.plan)

        def passes(event: Unit) -> Unit | None:
            with contextlib.suppress(Exception):  # the destination says what is wrong with it
                return None if way(event) is None else event
            return event

        # What it processes is sent by `redrive`, which processes it itself.
        return ReplayWay(self.destination.redrive, passes)
