"""Accepting: events per second and CPU, at both levels, and against JetStream that syncs too.

The peer is NATS JetStream: a durable stream that syncs before it acknowledges, as we do.

What makes the comparison fair: both ends are durable before they answer (`sync_interval: always`),
events are the same bytes, the same client process sends them with the same number of senders, each
waiting for its answer and without a library in between, and both servers write to the same disk.
What favours the peer is left in: it takes bytes as they are, while a gateway parses and validates
every event.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from holdfast.bench.figures import Figures, interleave
from holdfast.bench.gateway_load import STREAM, SUBJECT, Load
from holdfast.bench.gateway_process import MeasuredGateway, ServerProcess, free_ports, running
from holdfast.bench.scale import GatewayScale

# Its own retries and heartbeats stay out of the measurement.
_CONFIG = """
listen: 127.0.0.1:{port}
jetstream {{ store_dir: "{folder}", sync_interval: always, max_file_store: 64GB }}
"""


def nats_server() -> str | None:
    """Return the server's program: beside this interpreter, or on the path."""
    return shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which(
        "nats-server"
    )


class JetStream(ServerProcess):
    """A server with one stream in files."""

    def __init__(self, folder: Path) -> None:
        program = nats_server()
        assert program is not None, "BUG: no nats-server"
        folder.mkdir(parents=True)
        (self.port,) = free_ports(1)
        config = folder / "nats.conf"
        config.write_text(_CONFIG.format(port=self.port, folder=folder / "data"))
        super().__init__([program, "-c", str(config)], folder / "log")
        self.wait_for_port(self.port)
        asyncio.run(self._make_stream())

    async def _make_stream(self) -> None:
        import nats
        from nats.js.api import StorageType

        connection = await nats.connect(f"nats://127.0.0.1:{self.port}")
        stream = connection.jetstream()
        await stream.add_stream(name=STREAM, subjects=[SUBJECT], storage=StorageType.FILE)
        await connection.close()


SENDERS = 64
# Nobody reads here, so that accepting alone is measured; what was accepted may be dropped again.
QUIVER = {"retention": {"size_cap": "4GB", "size_cap_policy": "drop_oldest"}}


@dataclass(frozen=True)
class Accepted:
    """One run of a load against one server."""

    events: int
    wall_s: float
    client_cpu_s: float
    p50_ms: float
    p99_ms: float
    server_cpu_s: float
    syncs: float

    @property
    def per_s(self) -> float:
        """Events per second."""
        return self.events / self.wall_s

    @property
    def cpu_us(self) -> float:
        """CPU of the server per event."""
        return self.server_cpu_s / self.events * 1e6

    @property
    def client_cpu_us(self) -> float:
        """CPU of the client per event."""
        return self.client_cpu_s / self.events * 1e6


def run_load(load: Load) -> dict[str, Any]:
    """Run a load in its own process and return what it measured.

    In a process of its own, since a client in this one would share the interpreter with whatever
    else is measured here, and its CPU could not be told apart.
    """
    done = subprocess.run(load.command(), capture_output=True, check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure_accept(
    folder: Path, scale: GatewayScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Measure what a sender sees, and what it costs."""
    progress(f"accept: {SENDERS} senders, 1.9 kB events, {scale.rounds} rounds")
    durable = MeasuredGateway(folder / "durable", quiver=QUIVER)
    memory = MeasuredGateway(folder / "memory", level="memory", quiver=QUIVER)
    servers: dict[str, ServerProcess] = {"durable": durable, "memory": memory}
    if nats_server() and importlib.util.find_spec("nats"):
        servers["jetstream"] = JetStream(folder / "jetstream")
    else:
        figures.note("vs_jetstream_sync", None)
        figures.note("jetstream_client_cpu_ratio", None)
        progress("no nats-server or nats-py here: JetStream is left out")

    def contend(name: str, rate_per_s: float | None = None) -> Accepted:
        return _accept(servers[name], scale.seconds, rate_per_s)

    with running(*servers.values()):
        full = interleave({name: partial(contend, name) for name in servers}, scale.rounds)
        _note_full(full, figures)
        # At full load the delay is that of a queue. At half load it is that of one event, and the
        # CPU of both levels can be compared because they do the same work in the same time.
        # Half of what was just measured and not a fixed rate: on a slow disk a fixed one would be
        # full load.
        half_per_s = figures.spreads["durable_events_per_s"].median / 2
        progress(f"accept: half load, {half_per_s:,.0f} events/s")
        half = interleave(
            {name: partial(contend, name, half_per_s) for name in ("durable", "memory")},
            scale.rounds,
        )
    pairs = zip(half["durable"], half["memory"], strict=True)
    figures.add("memory_level_ratio", [one.cpu_us / other.cpu_us for one, other in pairs])
    figures.add("half_load_cpu_us_per_event", [one.cpu_us for one in half["durable"]])
    figures.add("half_load_p50_ms", [one.p50_ms for one in half["durable"]])
    figures.add("half_load_p99_ms", [one.p99_ms for one in half["durable"]])


def _accept(server: ServerProcess, seconds: float, rate_per_s: float | None) -> Accepted:
    """Run one load, and take the server's CPU and syncs over exactly that time."""
    to: Literal["http", "nats"] = "nats" if isinstance(server, JetStream) else "http"
    assert isinstance(server, JetStream | MeasuredGateway)
    load = Load(to, server.port, seconds, SENDERS, rate_per_s)
    # The syncs are asked for first: answering the question costs the server CPU, which must not
    # count.
    began_syncs, began_cpu_s = _syncs(server), server.cpu_s()
    found = run_load(load)
    cpu_s = server.cpu_s() - began_cpu_s
    return Accepted(**found, server_cpu_s=cpu_s, syncs=_syncs(server) - began_syncs)


def _syncs(server: ServerProcess) -> float:
    if not isinstance(server, MeasuredGateway):
        return 0.0
    return server.metric("quiver_wal_syncs_total")


def _note_full(full: dict[str, list[Accepted]], figures: Figures) -> None:
    """Add the figures at full load; the peer's only where there is one."""
    durable = full["durable"]
    figures.add("durable_events_per_s", [one.per_s for one in durable])
    figures.add("cpu_us_per_event", [one.cpu_us for one in durable])
    figures.add("syncs_per_event", [one.syncs / one.events for one in durable])
    figures.add("p50_ms", [one.p50_ms for one in durable])
    figures.add("p99_ms", [one.p99_ms for one in durable])
    figures.add("client_cpu_us_per_event", [one.client_cpu_us for one in durable])
    figures.add("memory_events_per_s", [one.per_s for one in full["memory"]])
    if "jetstream" in full:
        peers = full["jetstream"]
        figures.add("jetstream_events_per_s", [one.per_s for one in peers])
        figures.add("jetstream_cpu_us_per_event", [one.cpu_us for one in peers])
        figures.add("jetstream_p50_ms", [one.p50_ms for one in peers])
        figures.add("jetstream_client_cpu_us_per_event", [one.client_cpu_us for one in peers])
        pairs = list(zip(durable, peers, strict=True))
        figures.add("vs_jetstream_sync", [one.per_s / other.per_s for one, other in pairs])
        # A client that costs more would be part of what the peer is measured by.
        figures.add(
            "jetstream_client_cpu_ratio",
            [other.client_cpu_us / one.client_cpu_us for one, other in pairs],
        )
