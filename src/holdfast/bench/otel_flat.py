"""What flat tables cost: requests parsed by protobuf's own reader, and made into tables.

The reader (upb) is the floor: whoever wants to look at a request at all pays that much, and then
has objects, which are no table yet. Both get the same requests of 100 items, and both keep what
they made until they have 4 MB of them. Spans have eight attributes, log records five and a text,
points are of sums and histograms and have three.

parse       every request is parsed, and nothing else
flat        every request is in a table, its resource joined to each item
control     the parse again: how far apart two equal things are
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast.bench.figures import Figures, rotated
from holdfast.bench.otel_load import request_of
from holdfast.bench.scale import OtelScale
from holdfast.bench.stopwatch import Stopwatch
from holdfast.errors import CheckFailed
from holdfast.signals.otlp.flat.table import TOGETHER_BYTES_MAX, flat_batches
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import REQUESTS

_ITEMS = 100


def measure_flat_tables(
    _folder: Path, scale: OtelScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Add `flat_vs_parse`, for spans, log records and points, and how many spans there are in a
    second of CPU.
    """
    made = {
        OtlpKind.TRACES: (request_of(_ITEMS), ""),
        OtlpKind.LOGS: (_logs(), "_logs"),
        OtlpKind.METRICS: (_points(), "_points"),
    }
    for kind, (body, suffix) in made.items():
        requests = [body] * scale.backlog_requests
        progress(f"flat tables: {len(requests)} requests of {_ITEMS} {kind.items}")
        parse = _parse(kind, requests)
        contenders = {"parse": parse, "flat": _flat(kind, requests), "control": parse}
        runs = rotated(contenders, scale.rounds, warm_up=True)
        for name, ending in (("flat", ""), ("control", "_control")):
            pairs = zip(runs[name], runs["parse"], strict=True)
            figures.add(f"flat_vs_parse{ending}{suffix}", [one / parse_s for one, parse_s in pairs])
        items = _ITEMS * len(requests)
        figures.add(f"flat_items_per_cpu_s{suffix}", [items / flat_s for flat_s in runs["flat"]])


def _parse(kind: OtlpKind, requests: Sequence[bytes]) -> Callable[[], float]:
    together = max(1, TOGETHER_BYTES_MAX // len(requests[0]))

    def contend() -> float:
        with Stopwatch() as watch:
            for first in range(0, len(requests), together):
                kept = [
                    REQUESTS[kind].FromString(one) for one in requests[first : first + together]
                ]
                del kept
        return watch.cpu_s

    return contend


def _flat(kind: OtlpKind, requests: Sequence[bytes]) -> Callable[[], float]:
    def contend() -> float:
        rows = 0
        with Stopwatch() as watch:
            for batch in flat_batches(kind, requests):
                rows += batch.num_rows
        if rows != _ITEMS * len(requests):
            raise CheckFailed(f"a table of {rows} rows", hint="it should have one for each item")
        return watch.cpu_s

    return contend


def _logs() -> bytes:
    """Return a request with log records as a web service writes them."""
    request: Any = REQUESTS[OtlpKind.LOGS]()
    scope = _scope(request.resource_logs.add(), "scope_logs")
    now_ns = time.time_ns()
    for number in range(_ITEMS):
        record = scope.log_records.add(
            time_unix_nano=now_ns + number,
            observed_time_unix_nano=now_ns + number,
            severity_number=9,
            severity_text="INFO",
            trace_id=number.to_bytes(16, "big"),
            span_id=number.to_bytes(8, "big"),
        )
        record.body.string_value = f"order {number} was accepted and will be sent in {number} days"
        _add_attributes(record, number, 5)
    return _bytes(request)


def _points() -> bytes:
    """Return a request with sums and histograms, ten points each."""
    request: Any = REQUESTS[OtlpKind.METRICS]()
    scope = _scope(request.resource_metrics.add(), "scope_metrics")
    now_ns = time.time_ns()
    for number in range(_ITEMS):
        is_sum = number % 20 < 10  # noqa: PLR2004
        if number % 10 == 0:
            scope.metrics.add(name=f"http.server.metric_{number}", unit="ms")
        metric = scope.metrics[-1]
        data = metric.sum if is_sum else metric.histogram
        data.aggregation_temporality = 2
        point = data.data_points.add(start_time_unix_nano=now_ns, time_unix_nano=now_ns + number)
        if is_sum:
            point.as_int = number
        else:
            point.count, point.sum = number, number / 2
            point.bucket_counts.extend([number] * 11)
            point.explicit_bounds.extend([5.0 * bound for bound in range(10)])
        _add_attributes(point, number, 3)
    return _bytes(request)


def _scope(resource: Any, scopes: str) -> Any:
    resource.resource.attributes.add(key="service.name").value.string_value = "checkout"
    return getattr(resource, scopes).add()


def _add_attributes(item: Any, number: int, count: int) -> None:
    for index in range(count):
        attribute = item.attributes.add(key=f"http.request.attribute_{index}")
        attribute.value.string_value = f"value-{number % 10}"


def _bytes(request: Any) -> bytes:
    body: bytes = request.SerializeToString()
    return body
