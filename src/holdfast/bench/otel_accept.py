"""Accepting telemetry: what a durable request costs, beside a server that parses and forgets.

The peer does the least that a server of OTLP can do: grpcio's C core takes the request, upb parses
it, and nothing is kept. A gateway parses the same bytes, counts them in and syncs them to disk
before it answers. Compared is the CPU of the two servers for one request: how fast a request is
answered depends on the disk, which the peer does not use.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from holdfast.bench.figures import Figures, rotated
from holdfast.bench.gateway_process import running
from holdfast.bench.otel_load import OtelLoad
from holdfast.bench.otel_process import (
    AcceptedRequests,
    OtelClient,
    OtelGateway,
    PlainServicer,
)
from holdfast.bench.scale import OtelScale

OTEL_SENDERS = 16
# Spans in a request, and what the figures of that size end with.
SIZES = ((100, ""), (1000, "_1000"))


def measure_otel_accept(
    folder: Path, scale: OtelScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Measure what a request costs, over gRPC and HTTP, and at the peer."""
    gateway, peer = OtelGateway(folder / "gateway"), PlainServicer(folder / "peer")
    with running(gateway, peer), OtelClient() as client:
        for spans, suffix in SIZES:
            progress(f"accept: {OTEL_SENDERS} senders, {spans} spans, {scale.rounds} rounds")
            load = partial(OtelLoad, seconds=scale.seconds, senders=OTEL_SENDERS, spans=spans)
            plain = partial(client.accept, peer, load(to="grpc", port=peer.grpc_port))
            contenders: dict[str, Callable[[], AcceptedRequests]] = {
                "grpc": partial(client.accept, gateway, load(to="grpc", port=gateway.grpc_port)),
                "plain": plain,
                "http": partial(client.accept, gateway, load(to="http", port=gateway.http_port)),
                "control": plain,
            }
            found = rotated(contenders, scale.rounds, warm_up=True)
            _note(found, spans, suffix, figures)


def _note(
    found: dict[str, list[AcceptedRequests]], spans: int, suffix: str, figures: Figures
) -> None:
    names = {"grpc": "grpc_vs_plain", "http": "http_vs_plain", "control": "plain_control"}
    for name, figure in names.items():
        pairs = zip(found[name], found["plain"], strict=True)
        figures.add(f"{figure}{suffix}", [one.cpu_us / peer.cpu_us for one, peer in pairs])
    for name in ("grpc", "http", "plain"):
        runs = found[name]
        figures.add(f"{name}_cpu_us_per_request{suffix}", [one.cpu_us for one in runs])
        figures.add(f"{name}_client_cpu_us_per_request{suffix}", [o.client_cpu_us for o in runs])
    figures.add(f"spans_per_s{suffix}", [one.per_s * spans for one in found["grpc"]])
    figures.add(f"http_spans_per_s{suffix}", [one.per_s * spans for one in found["http"]])
