"""Limits of a destination that is down for long: its oldest goes, counted; nobody else notices."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from tests.deliver.backend import DOWN, Backend, fails
from tests.deliver.stage import Stage
from tests.deliver.tuned import tuned_settings
from tests.deliver.virtual import really
from tests.patience import APPEND_S, PATIENCE_S
from tests.readers.setting import calm, keep

from holdfast.deliver.destination import DeliverySettings, Destination, State
from holdfast.errors import Overloaded
from holdfast.quiver import Outcome
from holdfast.quiver.base.config import MB
from holdfast.quiver.base.frame import Totals
from holdfast.seam.disk import Handle
from holdfast.seam.faulty import FaultyDisk
from holdfast.seam.simulated import SimulatedDisk

HOUR_S = 3600.0


@contextlib.asynccontextmanager
async def both(
    stage: Stage, settings: DeliverySettings, dead: Backend, alive: Backend
) -> AsyncIterator[tuple[Destination, Destination]]:
    """Run two destinations side by side."""
    unlimited = DeliverySettings(retention_bytes=None)
    made = [
        stage.make(settings, name="dead", exporter=dead),
        stage.make(unlimited, name="alive", exporter=alive),
    ]
    tasks = [asyncio.get_running_loop().create_task(one.run()) for one in made]
    try:
        yield made[0], made[1]
    finally:
        for one, task in zip(made, tasks, strict=True):
            await stage.stop(one, task)


def numbered(count: int, size_bytes: int) -> list[bytes]:
    return [(b"%06d" % number).ljust(size_bytes, b"x") for number in range(count)]


def test_a_destination_that_is_down_for_days_loses_its_oldest_and_the_other_gets_everything(
    stage: Stage,
) -> None:
    dead, alive = Backend(otherwise=fails(DOWN)), Backend()
    settings = tuned_settings(
        retention_time_s=24 * HOUR_S,
        retention_bytes=100 * MB,
        # Few tries, because each costs the test some time.
        retry_initial_s=HOUR_S / 2,
        retry_max_s=HOUR_S,
        breaker_open_s=HOUR_S / 2,
    )
    events = numbered(5 * 24, 100)

    async def main() -> None:
        async with both(stage, settings, dead, alive) as (at_dead, _):
            for number, payload in enumerate(events):
                await asyncio.to_thread(stage.append, payload)
                await stage.timer.until(lambda: stage.pending("alive") == 0)
                await stage.timer.pass_s(HOUR_S)
                keep(stage.quiver)
                stage.check()
                assert len(alive.taken) == number + 1
            found = at_dead.statistics()
            assert found.state is State.BACKING_OFF
            lost = found.lost_events["expired"]
            # One day waits; what was read before it grew old is kept for an hour longer at most.
            assert 24 <= found.lag_events <= 26
            assert lost + found.lag_events == len(events)
            assert stage.events(Outcome.EXPIRED, "dead") == lost
            dead.otherwise = lambda backend, sent: backend.take(sent)
            await stage.timer.until(lambda: stage.pending("dead") == 0)
            assert dead.taken == events[lost:]
            assert stage.outcomes("dead") == {
                Outcome.EXPIRED: Totals(lost, lost),
                Outcome.ACKED: Totals(len(events) - lost, len(events) - lost),
            }

    asyncio.run(main())
    assert alive.taken == events
    assert stage.outcomes("alive") == {Outcome.ACKED: Totals(len(events), len(events))}


def test_what_waited_is_sent_no_faster_than_it_may(stage: Stage) -> None:
    backend = Backend()
    events = numbered(20, 500)

    async def main() -> None:
        for payload in events:
            await asyncio.to_thread(stage.append, payload)
        settings = DeliverySettings(max_bytes_per_s=1000)
        destination = stage.make(settings, name="slow", exporter=backend)
        task = asyncio.get_running_loop().create_task(destination.run())
        # Virtual: it passes only when everybody waits for it.
        began_s = stage.timer.now_s()
        try:
            await stage.timer.until(lambda: stage.pending("slow") == 0)
            assert stage.timer.now_s() - began_s >= 19 * 500 / 1000
        finally:
            await stage.stop(destination, task)

    asyncio.run(main())
    assert backend.taken == events


def test_bytes_that_wait_are_bounded_and_the_oldest_go(stage: Stage) -> None:
    dead, alive = Backend(otherwise=fails(DOWN)), Backend()
    settings = DeliverySettings(retention_bytes=1 * MB, read_ahead_bytes=10_000)
    events = numbered(300, 10_000)

    async def main() -> None:
        async with both(stage, settings, dead, alive) as (at_dead, _):
            for payload in events:
                await asyncio.to_thread(stage.append, payload)
                keep(stage.quiver)
            await stage.timer.until(lambda: stage.pending("alive") == 0)
            found = at_dead.statistics()
            assert 0 < found.lag_bytes <= 1 * MB
            dropped = found.lost_events["dropped"]
            assert dropped + found.lag_events == len(events)
            dead.otherwise = lambda backend, sent: backend.take(sent)
            await stage.timer.until(lambda: stage.pending("dead") == 0)
            # What was in hand when the limit was reached is not taken out of it.
            assert sorted(dead.taken) == dead.taken
            assert len(dead.taken) == len(events) - dropped
            assert dead.taken[-50:] == events[-50:]

    asyncio.run(main())
    assert alive.taken == events
    stage.check()


def test_a_destination_that_blocks_at_its_limit_refuses_for_everyone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = calm(timeout_s=APPEND_S)
    stage = Stage(monkeypatch, config)
    stage.backend.otherwise = fails(DOWN)
    settings = DeliverySettings(retention_bytes=1 * MB, on_full="block")

    async def play(destination: Destination) -> None:
        with pytest.raises(Overloaded, match="'backend'"):
            await asyncio.to_thread(stage.append_each, *numbered(300, 10_000))
        stage.backend.otherwise = lambda backend, sent: backend.take(sent)
        await stage.timer.until(lambda: stage.pending() == 0)
        await asyncio.to_thread(stage.append, b"there is room again")

    try:
        stage.run(play, settings)
        assert set(stage.outcomes()) == {Outcome.ACKED}
    finally:
        stage.close()


class SlowLedger(FaultyDisk):
    """Holds every write of the ledger until it is let go."""

    def __init__(self, inner: SimulatedDisk) -> None:
        super().__init__(inner, (), inner.die)
        self.gate = threading.Event()
        self.gate.set()
        self.is_held = threading.Event()

    def write(self, handle: Handle, buffers: object, at: str) -> int:
        if at == "ledger.write" and not self.gate.is_set():
            self.is_held.set()
            assert self.gate.wait(PATIENCE_S), "nobody let it go"
        return super().write(handle, buffers, at)  # type: ignore[arg-type]


def test_a_disk_that_is_slow_to_take_an_outcome_does_not_stop_the_event_loop(
    stage: Stage,
) -> None:
    disks: list[SlowLedger] = []

    def through(disk: SimulatedDisk) -> SlowLedger:
        disks.append(SlowLedger(disk))
        return disks[-1]

    stage.use(stage.machine.start(replace(calm()), through=through))
    stage.append_each(b"a", b"b")

    def reached(point: str) -> None:
        if point == "deliver-sent":
            disks[0].gate.clear()

    stage.reached = reached

    async def play(destination: Destination) -> None:
        await really(disks[0].is_held.is_set)
        assert stage.backend.taken == [b"a"], "the loop runs, and nothing is sent meanwhile"
        disks[0].gate.set()
        stage.reached = lambda point: None
        await really(lambda: stage.backend.taken == [b"a", b"b"])

    stage.run(play)
