"""Telemetry of services that call each other, now: what statistics of telemetry are proven with.

An item is known by its name, and everything in it but its time follows from that. Of a call there
are two spans, one of the client and one of the server below it. They come in one request, but for
one call of each larger request: its server's end comes with the same client's next request of
spans. So a kill may part them, and what belongs together is in several bundles.
"""

from __future__ import annotations

import hashlib
from typing import Any

from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import REQUESTS

NAME = "name"
SERVICES = ("shop", "cart", "stock")
SEVERITIES = ("DEBUG", "INFO", "WARN", "ERROR")
DURATIONS_MS = (1, 7, 50, 400, 3_000, 20_000)
INTERNAL, SERVER, CLIENT = 1, 2, 3
FAILED = 2
# Items are out of order by so much.
JITTER_MS = 3_000
# A client's requests of spans are so many requests apart, and by turns large and of one item.
_SPANS_EVERY = len(OtlpKind)
_OPEN_PLACE = 4


def service_request(kind: OtlpKind, names: list[str], now_ns: int) -> bytes:
    """Return a request with an item for each name, of about now."""
    request: Any = REQUESTS[kind]()
    for name in names:
        at_ns = now_ns - _digest(name)[14] * JITTER_MS // 256 * 1_000_000
        if kind is OtlpKind.TRACES:
            of_service = request.resource_spans.add()
            item = of_service.scope_spans.add().spans.add()
        elif kind is OtlpKind.LOGS:
            of_service = request.resource_logs.add()
            item = of_service.scope_logs.add().log_records.add()
        else:
            of_service = request.resource_metrics.add()
            metric = of_service.scope_metrics.add().metrics.add(name="work")
            item = metric.gauge.data_points.add()
        service = of_service.resource.attributes.add(key="service.name")
        service.value.string_value = service_of(name)
        fill(kind, item, name, at_ns)
    return bytes(request.SerializeToString())


def fill(kind: OtlpKind, item: Any, name: str, at_ns: int) -> None:
    """Make an item the one with this name."""
    digest = _digest(name)
    item.attributes.add(key=NAME).value.string_value = name
    if kind is not OtlpKind.TRACES:
        item.time_unix_nano = at_ns
    if kind is OtlpKind.METRICS:
        item.as_int = digest[0]
    if kind is OtlpKind.LOGS:
        item.severity_text = SEVERITIES[digest[13] % len(SEVERITIES)]
        item.body.string_value = "worked"
    if kind is OtlpKind.TRACES:
        caller = _caller(name)
        item.name, item.kind = "work", CLIENT if caller == name else SERVER
        item.span_id, item.trace_id = digest[:8], _digest(caller)[8:24]
        if caller != name:
            item.parent_span_id = _digest(caller)[:8]
        duration_ms = DURATIONS_MS[digest[9] % len(DURATIONS_MS)]
        item.start_time_unix_nano = at_ns - duration_ms * 1_000_000
        item.end_time_unix_nano = at_ns
        item.status.code = FAILED if digest[12] % 5 == 0 else 0


def service_of(name: str) -> str:
    """Return which service an item is of."""
    return SERVICES[_digest(name)[10] % len(SERVICES)]


def _caller(name: str) -> str:
    """Return the name of the client's end of the call that a span is an end of."""
    request, _, place_text = name.rpartition(".")
    client, _, count_text = request.rpartition("-")
    count, place = int(count_text), int(place_text)
    if count % 2 == 0:
        return f"{client}-{count - _SPANS_EVERY}.{_OPEN_PLACE}"
    return f"{request}.{place - place % 2}"


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()
