"""Requests of OTLP for tests: made up at random, and broken at random."""

from __future__ import annotations

import random
from typing import Any

from google.protobuf.message import Message

from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import REQUESTS

NOW_NS = 1_790_000_000_000_000_000


def request(kind: OtlpKind, chance: random.Random, items: int = 3) -> bytes:
    """Return a request of one or two resources with a few items."""
    made: Any = REQUESTS[kind]()
    for number in range(chance.randint(1, 2)):
        resource = _resource_of(kind, made)
        _attribute(resource.resource, "service.name", f"service-{number}")
        _attribute(resource.resource, "host.name", "über")
        scope = _scope_of(kind, resource)
        scope.scope.name = "scope"
        for _ in range(items):
            _add_item(kind, scope, chance)
    return _bytes(made)


def _resource_of(kind: OtlpKind, made: Any) -> Any:
    lists = {
        OtlpKind.TRACES: "resource_spans",
        OtlpKind.METRICS: "resource_metrics",
        OtlpKind.LOGS: "resource_logs",
    }
    return getattr(made, lists[kind]).add()


def _scope_of(kind: OtlpKind, resource: Any) -> Any:
    lists = {
        OtlpKind.TRACES: "scope_spans",
        OtlpKind.METRICS: "scope_metrics",
        OtlpKind.LOGS: "scope_logs",
    }
    return getattr(resource, lists[kind]).add()


def _add_item(kind: OtlpKind, scope: Any, chance: random.Random) -> None:
    time_ns = chance.choice([0, NOW_NS + chance.randint(-(10**12), 10**12)])
    if kind is OtlpKind.TRACES:
        span = scope.spans.add(
            trace_id=chance.randbytes(16),
            span_id=chance.randbytes(8),
            name="GET /",
            kind=2,
            end_time_unix_nano=time_ns,
        )
        _attribute(span, "http.route", "/")
        span.events.add(name="begun", time_unix_nano=time_ns)
        span.status.code = 2
    elif kind is OtlpKind.LOGS:
        log = scope.log_records.add(
            time_unix_nano=time_ns, observed_time_unix_nano=chance.choice([0, NOW_NS])
        )
        log.body.kvlist_value.values.add(key="k").value.array_value.values.add(int_value=-5)
    else:
        _add_metric(scope, chance, time_ns)


def _add_metric(scope: Any, chance: random.Random, time_ns: int) -> None:
    metric = scope.metrics.add(name="requests", unit="1")
    which = chance.randrange(5)
    if which == 0:
        metric.gauge.data_points.add(time_unix_nano=time_ns, as_double=1.5)
    elif which == 1:
        metric.sum.data_points.add(time_unix_nano=time_ns, as_int=-7)
        metric.sum.data_points.add(time_unix_nano=NOW_NS, as_int=8)
    elif which == 2:
        metric.histogram.data_points.add(
            time_unix_nano=time_ns, bucket_counts=[1, 2], explicit_bounds=[0.5], sum=3.0
        )
    elif which == 3:
        point = metric.exponential_histogram.data_points.add(time_unix_nano=time_ns, scale=-1)
        point.positive.bucket_counts.extend([1, 2, 3])
    else:
        metric.summary.data_points.add(time_unix_nano=time_ns).quantile_values.add(quantile=0.9)


def _attribute(of: Any, key: str, text: str) -> None:
    of.attributes.add(key=key).value.string_value = text


def _bytes(message: Message) -> bytes:
    return message.SerializeToString()


def mutated(body: bytes, chance: random.Random) -> bytes:
    """Return a request with some bytes changed, removed, put in, repeated or cut off."""
    changed = bytearray(body)
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        at = chance.randrange(len(changed) + 1)
        length = chance.choice([1, 1, 2, 8])
        what = chance.randrange(6)
        if what == 0 and at < len(changed):
            changed[at] ^= 1 << chance.randrange(8)
        elif what == 1 and at < len(changed):
            changed[at] = chance.choice([0, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        elif what == 2:
            del changed[at : at + length]
        elif what == 3:
            changed[at:at] = chance.randbytes(length)
        elif what == 4:
            changed[at:at] = changed[at : at + 4 * length]
        else:
            del changed[at:]
    return bytes(changed)
