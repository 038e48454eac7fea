"""Forwarding telemetry: what joining requests saves, and what persistence costs on the way.

`join_vs_single`: out of a backlog, requests joined to larger ones ÷ one by one.

`persistence_…`: receiving and forwarding at once, with ÷ without a quiver in between. Without one,
a sender waits for the backend and nothing is stored; both speak with the same transport, and send
what came, uncompressed. Throughput is that of full load, until the last request has arrived. CPU
and delay (from sent to arrived) are those of half load, of what the durable one can do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from holdfast.bench.figures import Figures, percentile, rotated
from holdfast.bench.gateway_process import free_ports, running
from holdfast.bench.otel_load import TRACE, OtelLoad, request_of
from holdfast.bench.otel_process import (
    OtelClient,
    OtelGateway,
    OtelSink,
    PassThrough,
    otlp_exporter,
)
from holdfast.bench.scale import OtelScale
from holdfast.quiver import Quiver
from holdfast.signals.otlp.kinds import OtlpKind

SPANS = 100
FORWARD_SENDERS = 16
_REQUESTS_AT_ONCE = 64


@dataclass(frozen=True)
class ForwardedRequests:
    """Requests that went through a server to its backend."""

    per_s: float
    cpu_us: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class BacklogSent:
    """A backlog that was sent."""

    per_s: float
    cpu_us: float


def measure_joining(
    folder: Path, scale: OtelScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Measure how fast a backlog is sent, joined and one by one."""
    progress(f"join: a backlog of {scale.backlog_requests:,} requests, {scale.rounds} rounds")
    single = partial(_empty_backlog, folder, scale.backlog_requests, {"max_batch_events": 1})
    found = rotated(
        {
            "joined": partial(_empty_backlog, folder, scale.backlog_requests, {}),
            "single": single,
            "control": single,
        },
        scale.rounds,
    )
    rows = list(zip(found["joined"], found["single"], found["control"], strict=True))
    figures.add("join_vs_single", [joined.per_s / single.per_s for joined, single, _ in rows])
    figures.add("join_vs_single_control", [again.per_s / single.per_s for _, single, again in rows])
    cpu = [joined.cpu_us / single.cpu_us for joined, single, _ in rows]
    figures.add("join_vs_single_cpu", cpu)
    figures.add("joined_spans_per_s", [joined.per_s * SPANS for joined, _, _ in rows])
    figures.add("joined_cpu_us_per_request", [joined.cpu_us for joined, _, _ in rows])
    figures.add("single_cpu_us_per_request", [single.cpu_us for _, single, _ in rows])


def _empty_backlog(folder: Path, requests: int, config: dict[str, object]) -> BacklogSent:
    """Send a backlog to a backend that was away.

    The gateway stands ready and has tried in vain when the backend comes: starting is no part of
    what is measured. The rate is that from the first arrival on.
    """
    place = folder / f"backlog-{time.monotonic_ns()}"
    (port,) = free_ports(1)
    _fill(place / "quiver" / "core-00", requests)
    gateway = OtelGateway(place, exporters={"backend": otlp_exporter(port, **config)})
    with running(gateway):
        began_cpu_s = gateway.cpu_s()
        sink = OtelSink(place, port)
        with running(sink):
            sink.wait_for(requests)
            cpu_s = gateway.cpu_s() - began_cpu_s
            came_ns = sorted(one.came_ns for one in sink.arrivals())
    later = requests - came_ns.count(came_ns[0])
    assert later, "BUG: a backlog that is sent at once"
    return BacklogSent(later / ((came_ns[-1] - came_ns[0]) / 1e9), cpu_s / requests * 1e6)


def _fill(directory: Path, requests: int) -> None:
    """Put requests into a quiver that no gateway has open, for a destination named `backend`."""
    body = request_of(SPANS)
    mark = body.index(b"0123456789abcdef")
    with Quiver.open(directory) as quiver:
        quiver.register("backend")
        for first in range(0, requests, _REQUESTS_AT_ONCE):
            with quiver.transaction() as transaction:
                for number in range(first, min(first + _REQUESTS_AT_ONCE, requests)):
                    name = TRACE.pack(number, time.time_ns())
                    one = body[:mark] + name + body[mark + TRACE.size :]
                    transaction.append_raw(one, slot=OtlpKind.TRACES.slot)


def measure_persistence(
    folder: Path, scale: OtelScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Measure receiving and forwarding, with a quiver in between and without one."""
    progress(f"persistence: full load, then half, {scale.rounds} rounds each")
    ports = free_ports(2)
    sinks = [OtelSink(folder / f"sink-{place}", port) for place, port in enumerate(ports)]
    exporters = {"backend": otlp_exporter(ports[0])}
    durable = OtelGateway(folder / "durable", exporters=exporters)
    passing = PassThrough(folder / "passing", ports[1])

    def contend(server: OtelGateway | PassThrough, rate_per_s: float | None) -> ForwardedRequests:
        sink = sinks[0] if server is durable else sinks[1]
        return _forward(client, server, sink, scale.seconds, rate_per_s)

    def contenders(rate_per_s: float | None) -> dict[str, Callable[[], ForwardedRequests]]:
        without = partial(contend, passing, rate_per_s)
        return {
            "with": partial(contend, durable, rate_per_s),
            "without": without,
            "control": without,
        }

    with running(*sinks, durable, passing), OtelClient() as client:
        full = rotated(contenders(None), scale.rounds, warm_up=True)
        _note_ratios(full, "throughput", lambda one: one.per_s, figures)
        figures.add("forward_requests_per_s", [one.per_s for one in full["with"]])
        half_per_s = figures.spreads["forward_requests_per_s"].median / 2
        progress(f"persistence: half load, {half_per_s:,.0f} requests/s")
        half = rotated(contenders(half_per_s), scale.rounds, warm_up=True)
    _note_ratios(half, "cpu", lambda one: one.cpu_us, figures)
    _note_ratios(half, "p99", lambda one: one.p99_ms, figures)
    for name, runs in (("with", half["with"]), ("without", half["without"])):
        figures.add(f"forward_cpu_us_per_request_{name}", [one.cpu_us for one in runs])
        figures.add(f"forward_p50_ms_{name}", [one.p50_ms for one in runs])
        figures.add(f"forward_p99_ms_{name}", [one.p99_ms for one in runs])


def _forward(
    client: OtelClient,
    server: OtelGateway | PassThrough,
    sink: OtelSink,
    seconds: float,
    rate_per_s: float | None,
) -> ForwardedRequests:
    """Run a load, until all of it has arrived."""
    before = sink.count
    began_cpu_s = server.cpu_s()
    load = OtelLoad("grpc", server.grpc_port, seconds, FORWARD_SENDERS, SPANS, rate_per_s)
    # One request more opens the connection.
    sent = client.accept(server, load).requests + 1
    sink.wait_for(before + sent)
    cpu_s = server.cpu_s() - began_cpu_s
    arrived = sink.arrivals(before)
    first_ns, last_ns = (pick(one.came_ns for one in arrived) for pick in (min, max))
    delays_ms = sorted(one.delay_ms for one in arrived)
    return ForwardedRequests(
        (sent - 1) / ((last_ns - first_ns) / 1e9),
        cpu_s / sent * 1e6,
        percentile(delays_ms, 50),
        percentile(delays_ms, 99),
    )


def _note_ratios(
    found: dict[str, list[ForwardedRequests]],
    what: str,
    value: Callable[[ForwardedRequests], float],
    figures: Figures,
) -> None:
    without = [value(one) for one in found["without"]]
    for name, ending in (("with", ""), ("control", "_control")):
        pairs = zip(found[name], without, strict=True)
        ratios = [value(one) / base for one, base in pairs]
        figures.add(f"persistence_{what}_ratio{ending}", ratios)
