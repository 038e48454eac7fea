"""Accepting telemetry: what a durable request costs, beside a server that parses and forgets.

The peer does the least that a server of OTLP can do: grpcio's C core takes the request, upb parses
it, and nothing is kept. A gateway parses the same bytes, counts them in and syncs them to disk
before it answers. Compared is the CPU of the two servers for one request: how fast a request is
answered depends on the disk, which the peer does not use.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml

from holdfast.bench.figures import Figures, interleave
from holdfast.bench.gateway_accept import QUIVER
from holdfast.bench.gateway_process import ServerProcess, free_ports, running
from holdfast.bench.otel_load import OtelLoad, peer_command
from holdfast.bench.scale import OtelScale

OTEL_SENDERS = 16
# Spans in a request, and what the figures of that size end with.
SIZES = ((100, ""), (1000, "_1000"))


class OtelGateway(ServerProcess):
    """A gateway that receives OTLP over both transports; nobody reads from its quiver."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.grpc_port, self.http_port = free_ports(2)
        nodes = {
            "otlp": {
                "kind": "receiver",
                "type": "otlp",
                "to": ["buffer"],
                "config": {
                    "listening_addr": f"127.0.0.1:{self.grpc_port}",
                    "http_listening_addr": f"127.0.0.1:{self.http_port}",
                },
            },
            "buffer": {
                "kind": "processor",
                "type": "quiver",
                "to": [],
                "config": {"path": "quiver", **QUIVER},
            },
        }
        config = folder / "gateway.yaml"
        config.write_text(yaml.safe_dump({"data_dir": "data", "nodes": nodes}))
        super().__init__([sys.executable, "-m", "holdfast", "up", str(config)], folder / "log")
        self.wait_for_port(self.grpc_port)
        self.wait_for_port(self.http_port)


class PlainServicer(ServerProcess):
    """The peer."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (self.port,) = free_ports(1)
        super().__init__(peer_command(self.port), folder / "log")
        self.wait_for_port(self.port)


@dataclass(frozen=True)
class AcceptedRequests:
    """One run of a load against one server."""

    requests: int
    wall_s: float
    client_cpu_s: float
    server_cpu_s: float

    @property
    def cpu_us(self) -> float:
        """CPU of the server per request."""
        return self.server_cpu_s / self.requests * 1e6


def measure_otel_accept(
    folder: Path, scale: OtelScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Measure what a request costs, over gRPC and HTTP, and at the peer."""
    gateway, peer = OtelGateway(folder / "gateway"), PlainServicer(folder / "peer")
    with running(gateway, peer):
        for spans, suffix in SIZES:
            progress(f"accept: {OTEL_SENDERS} senders, {spans} spans, {scale.rounds} rounds")
            load = partial(OtelLoad, seconds=scale.seconds, senders=OTEL_SENDERS, spans=spans)
            contenders: dict[str, Callable[[], AcceptedRequests]] = {
                "grpc": partial(_accept_requests, gateway, load(to="grpc", port=gateway.grpc_port)),
                "plain": partial(_accept_requests, peer, load(to="grpc", port=peer.port)),
                "http": partial(_accept_requests, gateway, load(to="http", port=gateway.http_port)),
            }
            found = interleave(contenders, scale.rounds)
            _note(found, spans, suffix, figures)


def _accept_requests(server: ServerProcess, load: OtelLoad) -> AcceptedRequests:
    began_cpu_s = server.cpu_s()
    done = subprocess.run(load.command(), capture_output=True, check=True, text=True)
    cpu_s = server.cpu_s() - began_cpu_s
    return AcceptedRequests(**json.loads(done.stdout), server_cpu_s=cpu_s)


def _note(
    found: dict[str, list[AcceptedRequests]], spans: int, suffix: str, figures: Figures
) -> None:
    for name in ("grpc", "http"):
        pairs = zip(found[name], found["plain"], strict=True)
        figures.add(f"{name}_vs_plain{suffix}", [ours.cpu_us / peer.cpu_us for ours, peer in pairs])
    for name, runs in found.items():
        figures.add(f"{name}_cpu_us_per_request{suffix}", [one.cpu_us for one in runs])
    per_s = [one.requests * spans / one.wall_s for one in found["grpc"]]
    figures.add(f"spans_per_s{suffix}", per_s)
    client = [one.client_cpu_s / one.requests * 1e6 for one in found["grpc"]]
    figures.add(f"client_cpu_us_per_request{suffix}", client)
