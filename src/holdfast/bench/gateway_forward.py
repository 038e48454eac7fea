"""Forwarding: from accepted to arrived when idle, out of a backlog, and beside a dead neighbour.

And memory: of an idle gateway, and of one with a large backlog for a backend that is dead.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

from holdfast.bench.figures import Figures, interleave, percentile
from holdfast.bench.gateway_accept import run_load
from holdfast.bench.gateway_load import EVENT_BYTES, HttpSender, Load, new_event
from holdfast.bench.gateway_process import (
    POLL_SECONDS,
    MeasuredGateway,
    ServerProcess,
    free_ports,
    http_exporter,
    running,
)
from holdfast.bench.scale import GatewayScale
from holdfast.errors import CheckFailed
from holdfast.quiver import Quiver
from holdfast.signals.openlineage.names import SLOT

ARRIVAL_SECONDS_MAX = 120.0
BUNDLES_AT_ONCE = 64
SENDERS = 16


class Discard(ServerProcess):
    """The backend, and what it noted."""

    def __init__(self, folder: Path, port: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._notes = folder / f"arrivals-{time.monotonic_ns()}"
        command = [sys.executable, "-m", "holdfast.bench.gateway_load", str(port)]
        super().__init__([*command, str(self._notes)], folder / "backend-log")
        self.wait_for_port(port)

    def arrivals(self, count: int) -> dict[str, int]:
        """Wait for so many events; return when each arrived, in nanoseconds.

        By polling a file: a connection from the measuring process to the backend would be one more
        thing that competes with the gateway for the machine.
        """
        deadline_s = time.monotonic() + ARRIVAL_SECONDS_MAX
        while time.monotonic() < deadline_s:
            lines = self._notes.read_text().splitlines()
            if len(lines) >= count:
                return {run_id: int(at) for at, run_id in (line.split(" ") for line in lines)}
            time.sleep(POLL_SECONDS)
        raise CheckFailed(f"{count} events did not arrive in time", hint="see the gateway's log")


async def post_paced(port: int, count: int, pause_s: float) -> dict[str, int]:
    """Post events one by one with pauses; return when each was accepted, in nanoseconds."""
    sender = HttpSender(port)
    await sender.connect()
    accepted = {}
    for _ in range(count):
        run_id = str(uuid.uuid4())
        await sender.send(new_event(run_id))
        accepted[run_id] = time.monotonic_ns()
        await asyncio.sleep(pause_s)
    sender.close()
    return accepted


def delays_ms(
    gateway: MeasuredGateway, backend: Discard, count: int, pause_s: float
) -> list[float]:
    """Return how long each of `count` paced events took from accepted to arrived, in order.

    Both ends note the monotonic clock of this machine, which is one for all its processes.
    """
    before = len(backend.arrivals(0))
    accepted = asyncio.run(post_paced(gateway.port, count, pause_s))
    arrived = backend.arrivals(before + count)
    return sorted((arrived[run_id] - at_ns) / 1e6 for run_id, at_ns in accepted.items())


def measure_forward(
    folder: Path, scale: GatewayScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Measure how soon, and how fast, events are at their destination."""
    progress(f"forward: {scale.idle_events} events through an idle gateway")
    (port,) = free_ports(1)
    backend = Discard(folder / "idle", port)
    gateway = MeasuredGateway(folder / "idle", exporters={"backend": http_exporter(port)})
    with running(gateway, backend):
        rounds = [
            statistics.median(delays_ms(gateway, backend, scale.idle_events, 0.02))
            for _ in range(scale.rounds)
        ]
    figures.add("idle_forward_ms", rounds)
    progress(f"forward: a backlog of {scale.backlog_events:,} events, {scale.rounds} rounds")
    rates = interleave(
        {
            "deliver_events_per_s": lambda: _empty(folder, scale.backlog_events, {}),
            "bare_client_events_per_s": lambda: _bare(folder, scale.backlog_events),
            "deliver_batch_events_per_s": lambda: _empty(
                folder, scale.backlog_events, {"dialect": "batch_array", "batch_answer": "status"}
            ),
        },
        scale.rounds,
        warm_up=False,
    )
    for name, values in rates.items():
        figures.add(name, values)
    # Both send one event in a request, and the next one when that is answered.
    pairs = zip(rates["deliver_events_per_s"], rates["bare_client_events_per_s"], strict=True)
    figures.add("deliver_vs_bare_client", [ours / bare for ours, bare in pairs])
    _measure_neighbour(folder, scale, figures, progress)


def fill(directory: Path, events: int) -> None:
    """Put events into a quiver that no gateway has open, for a destination named `backend`.

    Written before the gateway starts, through the library: posting the backlog would take as long
    as accepting it does, round after round.
    """
    with Quiver.open(directory) as quiver:
        if "backend" not in quiver.subscribers():
            quiver.register("backend")
        for first in range(0, events, BUNDLES_AT_ONCE):
            with quiver.transaction() as transaction:
                for _ in range(min(BUNDLES_AT_ONCE, events - first)):
                    transaction.append_raw(new_event(), slot=SLOT)


def _empty(folder: Path, events: int, dialect: dict[str, object]) -> float:
    """Return how many events per second arrive out of a backlog."""
    place = folder / f"backlog-{time.monotonic_ns()}"
    (port,) = free_ports(1)
    fill(place / "quiver" / "core-00", events)
    backend = Discard(place, port)
    gateway = MeasuredGateway(place, exporters={"backend": http_exporter(port, **dialect)})
    with running(gateway, backend):
        return _rate_per_s(backend, events)


def _bare(folder: Path, events: int) -> float:
    """Return how many events per second arrive from a client that knows nothing of durability."""
    place = folder / f"bare-{time.monotonic_ns()}"
    (port,) = free_ports(1)
    backend = Discard(place, port)
    with running(backend):
        run_load(Load("backend", port, seconds=0.0, senders=1, events=events))
        return _rate_per_s(backend, events)


def _rate_per_s(backend: Discard, events: int) -> float:
    """Return how many events per second came.

    From the first arrival to the last, so that starting what sends them, and attaching to the
    quiver, are not part of the rate; hence one event less than arrived.
    """
    arrived = sorted(backend.arrivals(events).values())
    return (events - 1) / ((arrived[-1] - arrived[0]) / 1e9)


def _measure_neighbour(
    folder: Path, scale: GatewayScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Measure what a dead destination costs another one, at the same rate with and without it.

    Two gateways run at the same time, one with a dead destination and one without, and take turns
    with the same paced load. The rate is far from full load: this is about whether a dead
    destination holds up its neighbour, not about how much both can do together.
    """
    progress("forward: beside a dead destination, and without one")
    port, other, dead = free_ports(3)
    backends = {"alone": Discard(folder / "alone", port), "beside": Discard(folder / "dead", other)}
    gateways = {
        "alone": MeasuredGateway(folder / "alone", exporters={"backend": http_exporter(port)}),
        "beside": MeasuredGateway(
            folder / "dead",
            exporters={"backend": http_exporter(other), "dead": http_exporter(dead)},
        ),
    }
    pause_s = 1 / scale.neighbour_rate_per_s
    count = max(3, int(scale.seconds * scale.neighbour_rate_per_s))

    def contend(name: str) -> list[float]:
        return delays_ms(gateways[name], backends[name], count, pause_s)

    with running(*gateways.values(), *backends.values()):
        found = interleave({name: partial(contend, name) for name in gateways}, scale.rounds)
    for percent in (50, 99):
        ratios = [
            percentile(beside, percent) / percentile(alone, percent)
            for alone, beside in zip(found["alone"], found["beside"], strict=True)
        ]
        figures.add(f"dead_neighbour_p{percent}_ratio", ratios)


def measure_memory(
    folder: Path, scale: GatewayScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Measure resident memory; `anonymous` leaves out mapped files, which the kernel may drop."""
    progress(f"memory: idle, and with a backlog of {scale.backlog_mb:,} MB")
    (dead,) = free_ports(1)
    exporters = {"backend": http_exporter(dead)}
    idle = MeasuredGateway(folder / "idle-memory", exporters=exporters)
    with running(idle):
        asyncio.run(post_paced(idle.port, 3, 0.01))
        figures.add("rss_mb", [idle.rss_mb()])
        figures.add("anonymous_mb", [idle.anonymous_mb()])
    place = folder / "backlog-memory"
    fill(place / "quiver" / "core-00", scale.backlog_mb * 1_000_000 // EVENT_BYTES)
    loaded = MeasuredGateway(place, exporters=exporters)
    with running(loaded):
        run_load(Load("http", loaded.port, scale.seconds, SENDERS))
        figures.add("rss_backlog_mb", [loaded.rss_mb()])
        figures.add("anonymous_backlog_mb", [loaded.anonymous_mb()])
