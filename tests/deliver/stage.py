"""A gateway's middle on a simulated machine: a quiver, a backend, and destinations between them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
from tests.deliver.backend import Backend, Letters
from tests.deliver.virtual import VirtualTimer, watch_threads
from tests.readers.setting import StillMachine, calm, check_books
from tests.readers.world import ArmedDisk

from holdfast.deliver.context import DeliveryContext, ProcessorChain, refuses_all_but_raw_events
from holdfast.deliver.destination import DeliverySettings, Destination, DestinationStatistics
from holdfast.quiver import Outcome, Quiver, QuiverConfig
from holdfast.quiver.base.frame import Totals
from holdfast.seam import Seam
from holdfast.seam.randomness import seeded_randomness
from holdfast.seam.simulated import SimulatedDisk
from holdfast.signals import registry
from holdfast.signals.event import Event
from holdfast.signals.signal import Form, Signal, in_raw_slot

NAME = "backend"


def key_of(event: Event) -> str:
    """The key of a test's events stands before the colon."""
    return event.payload.partition(b":")[0].decode()


# Of events in the slot that `append_raw` uses by default.
EVENTS = Signal("events", Form.RAW, in_raw_slot("events"), order_keys={"name": key_of})


class Stage:
    """One machine; each `running` is a process on it."""

    def __init__(self, patch: pytest.MonkeyPatch, config: QuiverConfig | None = None) -> None:
        self.machine = StillMachine()
        self.disk: ArmedDisk | None = None
        self.timer = VirtualTimer(self.machine.clock.pass_time)
        self.backend = Backend()
        self.letters = Letters()
        self.paths: Sequence[Callable[[Event], Event | None]] = ()
        self.reached: Callable[[str], None] = lambda point: None
        self.destination: Destination | None = None
        self._config = config or calm()
        self._quiver: Quiver | None = None
        watch_threads(patch, self.timer)
        patch.setattr(registry, "_signals", [EVENTS])

    @property
    def quiver(self) -> Quiver:
        """The quiver, opened if need be."""
        if self.machine.quiver is None:
            self._quiver = self.machine.start(self._config, through=self._arm)
        assert self._quiver is not None
        return self._quiver

    def use(self, quiver: Quiver) -> None:
        """Use a quiver that was opened on the machine in another way."""
        self._quiver = quiver

    def _arm(self, disk: SimulatedDisk) -> ArmedDisk:
        self.disk = ArmedDisk(disk)
        return self.disk

    def append(self, *payloads: bytes) -> int:
        """Append one bundle; return its seq."""
        return self.quiver.append_raw(list(payloads)).seq

    def append_each(self, *payloads: bytes) -> None:
        """Append one bundle for each event."""
        for payload in payloads:
            self.append(payload)

    def make(
        self, settings: DeliverySettings | None = None, *, name: str = NAME, **others: Any
    ) -> Destination:
        """Return a destination, attached."""
        machine, randomness = self.machine, seeded_randomness(7)
        seam = Seam(machine.disk, machine.clock, randomness, self._reached)
        context = DeliveryContext(
            name=name,
            settings=settings or DeliverySettings(retention_bytes=None),
            make_exporter=lambda: others.get("exporter", self.backend),
            dead_letters=self.letters,
            seam=seam,
            chains=[ProcessorChain((one,)) for one in self.paths],
            refusal_of=others.get("refusal_of", refuses_all_but_raw_events),
        )
        destination = Destination(context, self.quiver)
        destination.timer = self.timer
        return destination

    def _reached(self, point: str) -> None:
        self.reached(point)

    @contextlib.asynccontextmanager
    async def running(
        self, settings: DeliverySettings | None = None, **others: Any
    ) -> AsyncIterator[Destination]:
        """Run a destination; it is stopped in the end."""
        destination = self.destination = self.make(settings, **others)
        task = asyncio.get_running_loop().create_task(destination.run())
        try:
            yield destination
        finally:
            await self.stop(destination, task)

    async def stop(self, destination: Destination, task: asyncio.Task[None]) -> None:
        """Stop a destination, and let the time pass that this takes."""
        stopping = asyncio.ensure_future(destination.stop(30.0))
        await self.timer.until(stopping.done)
        await stopping
        await task

    def deliver_all(self, settings: DeliverySettings | None = None, **others: Any) -> None:
        """Run a destination until nothing is pending."""

        async def run(_: Destination) -> None:
            await self.timer.until(lambda: self.pending(others.get("name", NAME)) == 0)

        self.run(run, settings, **others)

    def run(
        self,
        play: Callable[[Destination], Awaitable[None]],
        settings: DeliverySettings | None = None,
        **others: Any,
    ) -> None:
        """Run a destination while something is played."""

        async def main() -> None:
            async with self.running(settings, **others) as destination:
                await play(destination)

        asyncio.run(main())
        self.check()

    def pending(self, name: str = NAME) -> int:
        """How many events have no outcome."""
        return self.quiver.balance(name).pending.events

    def outcomes(self, name: str = NAME) -> dict[Outcome, Totals]:
        """What became of all others."""
        found = self.quiver.balance(name).outcomes
        return {outcome: counts for outcome, counts in found.items() if counts != Totals(0, 0)}

    def events(self, outcome: Outcome, name: str = NAME) -> int:
        """How many events have an outcome."""
        return self.outcomes(name).get(outcome, Totals(0, 0)).events

    def statistics(self) -> DestinationStatistics:
        """What the destination says of itself."""
        assert self.destination is not None
        return self.destination.statistics()

    def check(self) -> None:
        """See that every account is balanced."""
        check_books(self.quiver)

    def kill(self) -> None:
        """End the process that owns the quiver, as kill -9 does."""
        self.machine.kill()

    def close(self) -> None:
        """Leave nothing running."""
        self.machine.kill()
