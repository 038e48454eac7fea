"""Accepting durably, beside the OpenTelemetry Collector that is durable, too.

Both answer when a request is on stable storage: the Collector has its `sending_queue` on
`file_storage` with `fsync: true`, and no batch processor. That this is so is shown, not assumed:
each is killed under load, and whatever it had answered has to arrive after a restart. A Collector
that loses anything is no peer, and then nothing is compared.

While accepting is measured, the backend of both is away: what is accepted stays where it is. The
same client process sends the same requests to both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from holdfast.bench.figures import Figures, rotated
from holdfast.bench.gateway_process import POLL_SECONDS, free_ports, running
from holdfast.bench.otel_load import NUMBER, OtelLoad
from holdfast.bench.otel_process import (
    AcceptedRequests,
    OtelClient,
    OtelCollector,
    OtelGateway,
    OtelSink,
    collector_program,
    otlp_exporter,
)
from holdfast.bench.scale import OtelScale
from holdfast.errors import CheckFailed

SENDERS_EACH = (1, 16, 64)
# What the bar is for: the figures of the others end with their number of senders.
_SENDERS = 64
_SPANS_EACH = ((100, ""), (1000, "_1000"))
_KILL_SENDERS = 16
_KILL_SPANS = 100
_WAIT_SECONDS_MAX = 120.0
FIGURE = "vs_otelcol_durable"

DurableServer = OtelGateway | OtelCollector


def measure_otel_durable(
    folder: Path, scale: OtelScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Measure what both accept, if both keep it."""
    if collector_program() is None:
        figures.note(FIGURE, "skipped")
        progress("no OpenTelemetry Collector here (HOLDFAST_OTELCOL): it is left out")
        return
    lost = _measure_loss(folder, scale, figures, progress)
    if lost:
        figures.note(FIGURE, "void")
        progress(f"the Collector lost {lost} requests that it had answered: not compared with")
        return
    (away,) = free_ports(1)
    gateway = OtelGateway(folder / "ours", exporters={"backend": otlp_exporter(away)})
    collector = OtelCollector(folder / "collector", away)
    with running(gateway, collector), OtelClient() as client:
        for spans, suffix in _SPANS_EACH:
            for senders in SENDERS_EACH:
                progress(f"durable: {senders} senders, {spans} spans, {scale.rounds} rounds")
                load = partial(
                    OtelLoad, "grpc", seconds=scale.seconds, senders=senders, spans=spans
                )
                peer = partial(client.accept, collector, load(port=collector.grpc_port))
                ours = partial(client.accept, gateway, load(port=gateway.grpc_port))
                found = rotated(
                    {"ours": ours, "peer": peer, "control": peer}, scale.rounds, warm_up=True
                )
                _note(found, spans, senders, suffix, figures)


def _note(
    found: dict[str, list[AcceptedRequests]],
    spans: int,
    senders: int,
    suffix: str,
    figures: Figures,
) -> None:
    ending = suffix if senders == _SENDERS else f"_{senders}_senders{suffix}"
    rows = list(zip(found["ours"], found["peer"], found["control"], strict=True))
    figures.add(f"{FIGURE}{ending}", [ours.per_s / peer.per_s for ours, peer, _ in rows])
    figures.add(f"{FIGURE}_control{ending}", [again.per_s / peer.per_s for _, peer, again in rows])
    figures.add(f"{FIGURE}_cpu{ending}", [ours.cpu_us / peer.cpu_us for ours, peer, _ in rows])
    for name, runs in (("durable", found["ours"]), ("otelcol", found["peer"])):
        figures.add(f"{name}_spans_per_s{ending}", [one.per_s * spans for one in runs])
        figures.add(f"{name}_cpu_us_per_span{ending}", [one.cpu_us / spans for one in runs])
        figures.add(f"{name}_p99_ms{ending}", [one.p99_ms for one in runs])
        client = [one.client_cpu_us / spans for one in runs]
        figures.add(f"{name}_client_cpu_us_per_span{ending}", client)


def _measure_loss(
    folder: Path, scale: OtelScale, figures: Figures, progress: Callable[[str], None]
) -> int:
    """Kill each under load; return how many answered requests the Collector has lost."""
    count = scale.answered_before_kill
    progress(f"durable: each is killed after {count:,} answers")
    backends, ports = free_ports(2), free_ports(3)
    exporters = {"backend": otlp_exporter(backends[0])}

    def ours() -> DurableServer:
        return OtelGateway(folder / "killed", exporters=exporters, ports=(ports[0], ports[1]))

    def collector() -> DurableServer:
        return OtelCollector(folder / "killed-collector", backends[1], ports[2])

    lost = {}
    for name, start, backend in (("holdfast", ours, 0), ("otelcol", collector, 1)):
        place = folder / f"kill-{name}"
        place.mkdir()
        answered, missing = _lost_by_killing(start, place, backends[backend], count)
        figures.note(f"{name}_answered", answered)
        figures.note(f"{name}_lost", missing)
        lost[name] = missing
    if lost["holdfast"]:
        raise CheckFailed(
            f"{lost['holdfast']} requests are lost that were answered", hint="this is a bug"
        )
    return lost["otelcol"]


def _lost_by_killing(
    start: Callable[[], DurableServer], place: Path, backend_port: int, count: int
) -> tuple[int, int]:
    """Return how many requests were answered until a server was killed, and how many never came."""
    journal = place / "answered"
    journal.touch()
    server = start()
    load = OtelLoad(
        to="grpc",
        port=server.grpc_port,
        seconds=_WAIT_SECONDS_MAX,
        senders=_KILL_SENDERS,
        spans=_KILL_SPANS,
        journal=str(journal),
    )
    with OtelClient() as client:
        client.begin(load)
        deadline_s = time.monotonic() + _WAIT_SECONDS_MAX
        while journal.stat().st_size < count * NUMBER.size and time.monotonic() < deadline_s:
            time.sleep(POLL_SECONDS)
        server.kill()
        client.end()
    answered = {number for (number,) in NUMBER.iter_unpack(journal.read_bytes())}
    if len(answered) < count:
        raise CheckFailed("a server answered too few requests", hint="see its log", path=str(place))
    sink = OtelSink(place, backend_port)
    with running(sink, start()):
        deadline_s = time.monotonic() + _WAIT_SECONDS_MAX
        missing = answered
        while missing and time.monotonic() < deadline_s:
            missing = answered - {one.number for one in sink.arrivals()}
            time.sleep(POLL_SECONDS)
    return len(answered), len(missing)
