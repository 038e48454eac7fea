"""Memory of a gateway: idle with all receivers open, and while large requests are under way.

That of its children is counted, too: a large request is checked in one. What the processes share
(their program, the libraries) counts once for each of them, so the sum is an upper bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from holdfast.bench.figures import Figures
from holdfast.bench.gateway_process import free_ports, http_exporter, running
from holdfast.bench.otel_load import OtelLoad, request_of
from holdfast.bench.otel_process import OtelClient, OtelGateway, otlp_exporter
from holdfast.bench.scale import OtelScale

LARGE_BYTES = 4_000_000
LARGE_SENDERS = 16
_LOOK_SECONDS = 0.005
_FIRST_SECONDS = 0.1


def measure_otel_memory(
    folder: Path, scale: OtelScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Measure resident memory."""
    spans = LARGE_BYTES * 1000 // len(request_of(1000))
    progress(f"memory: idle, and {LARGE_SENDERS} requests of {LARGE_BYTES / 1e6:.0f} MB in flight")
    lineage, dead, other = free_ports(3)
    catalog = {**http_exporter(other), "delivery": {"signals": ["openlineage"]}}
    gateway = OtelGateway(
        folder / "memory",
        receivers={
            "lineage": {
                "kind": "receiver",
                "type": "openlineage",
                "to": ["buffer"],
                "config": {"listen": f"127.0.0.1:{lineage}"},
            }
        },
        exporters={"backend": otlp_exporter(dead), "catalog": catalog},
    )
    with running(gateway), OtelClient() as client:
        grpc = OtelLoad("grpc", gateway.grpc_port, scale.seconds, LARGE_SENDERS, spans)
        http = replace(grpc, to="http", port=gateway.http_port)
        # Both ports have been used, so that what is made with the first request is there.
        for load in (grpc, http):
            client.accept(gateway, replace(load, seconds=_FIRST_SECONDS, senders=1, spans=1))
        figures.add("rss_mb", [gateway.tree_rss_mb()])
        highest = []
        for load in (grpc, http):
            highest_mb, requests = _highest_rss_mb(client, gateway, load)
            highest.append(highest_mb)
            figures.add(f"rss_in_flight_{load.to}_mb", [highest_mb])
            figures.note(f"rss_in_flight_{load.to}_requests", requests)
        figures.add("rss_in_flight_mb", [max(highest)])


def _highest_rss_mb(client: OtelClient, gateway: OtelGateway, load: OtelLoad) -> tuple[float, int]:
    """Run a load; return the most memory that was seen, and how many requests were answered."""
    highest_mb = 0.0
    client.begin(load)
    while not client.is_done():
        highest_mb = max(highest_mb, gateway.tree_rss_mb())
        time.sleep(_LOOK_SECONDS)
    return highest_mb, client.end()["requests"]
