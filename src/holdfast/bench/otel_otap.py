"""Telemetry as OTAP: what it takes on disk and on the wire, and how fast it is converted.

The spans are those of a web service: ids at random, five spans in a trace, durations spread over
three orders of magnitude, eight attributes of which half repeat and half are nearly always new.

otlp      each request, compressed by itself with zstd, as OTLP is sent and stored
joined    the requests behind each other, compressed as one: what grouping alone would save
stored    the same spans as batches of OTAP, each a bundle of a quiver with `compression: zstd`: all
          files of its segments, with the columns that the quiver adds to each row; more than one
          segment, as a quiver that is used has them
wire      the messages of one stream, with zstd inside
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zstandard

from holdfast.bench.figures import Figures
from holdfast.bench.scale import OtelScale
from holdfast.bench.stopwatch import Stopwatch
from holdfast.quiver import Quiver, QuiverConfig, SegmentConfig
from holdfast.signals.otap.from_otlp import otap_of
from holdfast.signals.otap.stream_decoder import StreamDecoder
from holdfast.signals.otap.stream_encoder import StreamEncoder
from holdfast.signals.otap.to_otlp import otlp_of
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import REQUESTS

_SPANS = 100
_SPANS_PER_TRACE = 5
_BEGAN_NS = 1_790_000_000_000_000_000
_ROUTES = ("/api/orders/{id}", "/api/cart", "/api/products", "/health")


def measure_otap(
    folder: Path, scale: OtelScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Add `otap_vs_otlp_bytes`, its part on the wire, and `otap_rows_per_s` for each way."""
    requests = scale.backlog_requests // 2
    progress(f"OTAP: {requests} requests of {_SPANS} spans, {scale.rounds} rounds")
    chance = random.Random(1)
    stored, joined, wire, seconds = [], [], [], []
    for number in range(scale.rounds):
        bodies = [_web_request(chance) for _ in range(requests)]
        otlp_bytes = sum(len(zstandard.compress(body)) for body in bodies)
        with Stopwatch() as watch:
            batches = [tables for body in bodies for tables in otap_of(OtlpKind.TRACES, [body])]
        encoder, decoder = StreamEncoder(compression="zstd"), StreamDecoder(OtlpKind.TRACES)
        messages = [encoder.encode(place, tables) for place, tables in enumerate(batches)]
        with Stopwatch() as receiving:
            received = [decoder.decode(message).tables for message in messages]
        with Stopwatch() as back:
            for tables in received:
                otlp_of(OtlpKind.TRACES, tables)
        rows = sum(table.num_rows for tables in batches for table in tables.values())
        seconds.append((rows / watch.cpu_s, rows / receiving.cpu_s, rows / back.cpu_s))
        stored_bytes = _stored_bytes(folder / f"otap-{number}", batches)
        stored.append(stored_bytes / otlp_bytes)
        joined.append(stored_bytes / len(zstandard.compress(b"".join(bodies))))
        wire.append(sum(map(len, messages)) / otlp_bytes)
    figures.add("otap_vs_otlp_bytes", stored)
    figures.add("otap_vs_joined_otlp_bytes", joined)
    figures.add("otap_vs_otlp_wire_bytes", wire)
    figures.add("otap_rows_per_s", (received for _, received, _ in seconds))
    figures.add("otap_from_otlp_rows_per_s", (made for made, _, _ in seconds))
    figures.add("otap_to_otlp_rows_per_s", (back for _, _, back in seconds))


def _stored_bytes(folder: Path, batches: list[dict[str, Any]]) -> int:
    config = QuiverConfig(segment=SegmentConfig(compression="zstd"))
    # Closed, a quiver has sealed everything.
    with Quiver.open(folder, config) as quiver:
        for tables in batches:
            quiver.append(tables)
    return sum(path.stat().st_size for path in (folder / "segments").rglob("*") if path.is_file())


def _web_request(chance: random.Random) -> bytes:
    request: Any = REQUESTS[OtlpKind.TRACES]()
    resource = request.resource_spans.add()
    for key, value in (("service.name", "checkout"), ("host.name", "node-17")):
        resource.resource.attributes.add(key=key).value.string_value = value
    scope = resource.scope_spans.add()
    scope.scope.name = "opentelemetry.instrumentation.asgi"
    began_ns, trace_id = _BEGAN_NS, b""
    for number in range(_SPANS):
        if number % _SPANS_PER_TRACE == 0:
            trace_id = chance.randbytes(16)
        began_ns += chance.randrange(1_000_000)
        span = scope.spans.add(
            trace_id=trace_id,
            span_id=chance.randbytes(8),
            parent_span_id=chance.randbytes(8) if number % _SPANS_PER_TRACE else b"",
            name=f"GET {chance.choice(_ROUTES)}",
            kind=2,
            start_time_unix_nano=began_ns,
            end_time_unix_nano=began_ns + int(chance.lognormvariate(14, 1)),
        )
        for key, text in (
            ("http.request.method", "GET"),
            ("http.route", chance.choice(_ROUTES)),
            ("url.path", f"/api/orders/{chance.randrange(100_000)}"),
            ("client.address", f"10.0.{chance.randrange(4)}.{chance.randrange(256)}"),
            ("user_agent.original", "python-httpx/0.28"),
        ):
            span.attributes.add(key=key).value.string_value = text
        for key, count in (
            ("http.response.status_code", chance.choice([200, 200, 200, 404, 500])),
            ("server.port", 8080),
            ("http.response.body.size", chance.randrange(20_000)),
        ):
            span.attributes.add(key=key).value.int_value = count
    written: bytes = request.SerializeToString()
    return written
