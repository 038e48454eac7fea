"""Our own metrics, log records and spans as requests of OTLP.

Made of plain dicts, which protobuf takes for messages: what a request looks like can be read here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast import __version__
from holdfast.operate.metrics import Metric, Sample
from holdfast.self_watch import OwnSpan
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import REQUESTS

_CUMULATIVE = 2
_SERVER, _CLIENT = 2, 3
_ERROR = 2
# The lowest number of a severity, by the level of Python's logging.
_SEVERITIES = {
    logging.DEBUG: 5,
    logging.INFO: 9,
    logging.WARNING: 13,
    logging.ERROR: 17,
    logging.CRITICAL: 21,
}
# Units as OpenTelemetry wants them (UCUM); others are counted things, in braces.
_UNITS = {"bytes": "By", "seconds": "s", "0 or 1": "1", "rows/s": "{rows}/s"}


class OwnLog(NamedTuple):
    """A log record, cut to its bounds."""

    time_ns: int
    level: int
    logger: str
    message: str
    # Type and traceback of an exception; empty if there is none.
    error: str = ""
    traceback: str = ""


class EndedSpan(NamedTuple):
    """A span, and when it ended."""

    span: OwnSpan
    ended_ns: int
    trace_id: bytes
    span_id: bytes


def metrics_request(
    resource: Mapping[str, str],
    metrics: Iterable[Metric[Any]],
    told: Iterable[Sample],
    times_ns: tuple[int, int],
) -> bytes:
    """Return figures; `times_ns`: since when counters count, and now."""
    started_ns, now_ns = times_ns
    by_name: dict[str, list[dict[str, Any]]] = {}
    described = {metric.name: metric for metric in metrics}
    for name, labels, value in told:
        # A truth value is a whole number, too.
        number = {"as_int": int(value)} if isinstance(value, int) else {"as_double": value}
        point = {"attributes": _attributes(labels), "time_unix_nano": now_ns, **number}
        if described[name].type == "counter":
            point["start_time_unix_nano"] = started_ns
        by_name.setdefault(name, []).append(point)
    shown = [_metric(described[name], points) for name, points in by_name.items()]
    scope = {"scope": _scope("holdfast"), "metrics": shown}
    whole = {"resource": _resource(resource), "scope_metrics": [scope]}
    return REQUESTS[OtlpKind.METRICS](resource_metrics=[whole]).SerializeToString()


def _metric(metric: Metric[Any], points: list[dict[str, Any]]) -> dict[str, Any]:
    data: dict[str, Any] = {"data_points": points}
    kind = "gauge"
    if metric.type == "counter":
        kind = "sum"
        data |= {"aggregation_temporality": _CUMULATIVE, "is_monotonic": True}
    unit = _UNITS.get(metric.unit, f"{{{metric.unit}}}")
    return {"name": metric.name, "description": metric.help, "unit": unit, kind: data}


def logs_request(resource: Mapping[str, str], told: Sequence[OwnLog]) -> bytes:
    """Return log records, by logger."""
    scopes: dict[str, list[dict[str, Any]]] = {}
    for one in told:
        level = max((known for known in _SEVERITIES if known <= one.level), default=logging.DEBUG)
        error = {"exception.type": one.error, "exception.stacktrace": one.traceback}
        scopes.setdefault(one.logger, []).append(
            {
                "time_unix_nano": one.time_ns,
                "observed_time_unix_nano": one.time_ns,
                "severity_number": _SEVERITIES[level],
                "severity_text": logging.getLevelName(level),
                "body": {"string_value": one.message},
                "attributes": _attributes(error) if one.error else [],
            }
        )
    found = [{"scope": _scope(name), "log_records": records} for name, records in scopes.items()]
    whole = {"resource": _resource(resource), "scope_logs": found}
    return REQUESTS[OtlpKind.LOGS](resource_logs=[whole]).SerializeToString()


def traces_request(resource: Mapping[str, str], told: Sequence[EndedSpan]) -> bytes:
    """Return spans."""
    spans = [
        {
            "trace_id": one.trace_id,
            "span_id": one.span_id,
            "name": one.span.name,
            "kind": _SERVER if one.span.is_served else _CLIENT,
            "start_time_unix_nano": one.span.began_ns,
            "end_time_unix_nano": max(one.ended_ns, one.span.began_ns),
            "attributes": _attributes(one.span.attributes),
            "status": {"code": _ERROR, "message": one.span.failure} if one.span.failure else {},
        }
        for one in told
    ]
    scope = {"scope": _scope("holdfast"), "spans": spans}
    whole = {"resource": _resource(resource), "scope_spans": [scope]}
    return REQUESTS[OtlpKind.TRACES](resource_spans=[whole]).SerializeToString()


def _resource(attributes: Mapping[str, str]) -> dict[str, Any]:
    return {"attributes": _attributes(attributes)}


def _scope(name: str) -> dict[str, str]:
    return {"name": name, "version": __version__}


def _attributes(named: Mapping[str, str | int]) -> list[dict[str, Any]]:
    return [
        {
            "key": key,
            "value": {"int_value": value} if isinstance(value, int) else {"string_value": value},
        }
        for key, value in named.items()
    ]
