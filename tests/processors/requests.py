"""Requests of OTLP as item processors meet them, with fields that nobody knows, and taken apart."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st
from tests.processors.passing import TEXTS

from holdfast.quiver import Position
from holdfast.signals.event import Event
from holdfast.signals.otlp.items import lists_of_scope, scopes
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import REQUESTS
from holdfast.signals.registry import signal_named

# Field 1000, as a later version of OTLP may have it.
UNKNOWN = b"\xc2\x3e\x03new"
KEYS = ["user.id", "http.route", "http.status", "host"]
SERVICES = ["checkout", "cart"]
NAMES = ["GET /", "pay", "requests"]


class Flat(NamedTuple):
    """One item, and what it stands in without the items: all as bytes."""

    resource: bytes
    scope: bytes
    metric: bytes
    item: bytes


def event_of_request(kind: OtlpKind, payload: bytes) -> Event:
    signal = signal_named(kind.value)
    assert signal is not None
    return Event(
        "quiver", Position(7, 1), kind.slot, payload, {"tenant": "a"}, 5, signal.name,
        signal.read, signal.count,
    )  # fmt: skip


def flat(kind: OtlpKind, payload: bytes) -> list[Flat]:
    """Return every item of a request with its surroundings, in order."""
    request = REQUESTS[kind].FromString(payload)
    found = []
    for one in scopes(kind, request):
        resource, scope = _written(one.resource), _written(one.holder, "spans", "log_records")
        scope = _written(one.holder, "spans", "log_records", "metrics")
        for metric, items in lists_of_scope(kind, one.holder):
            about = b"" if metric is None else _without_points(metric)
            found += [Flat(resource, scope, about, _written(item)) for item in items]
    return found


def _without_points(metric: Any) -> bytes:
    copy = type(metric)()
    copy.CopyFrom(metric)
    for _, data in copy.ListFields():
        if hasattr(data, "data_points"):
            data.ClearField("data_points")
    return _written(copy)


def _written(message: Any, *left_out: str) -> bytes:
    copy = type(message)()
    copy.CopyFrom(message)
    for name in left_out:
        if name in copy.DESCRIPTOR.fields_by_name:
            copy.ClearField(name)
    written: bytes = copy.SerializeToString(deterministic=True)
    return written


@st.composite
def requests(draw: st.DrawFn, kind: OtlpKind) -> bytes:
    """Return a request of a few resources, scopes and items."""
    made: Any = REQUESTS[kind]()
    lists = {
        OtlpKind.TRACES: ("resource_spans", "scope_spans"),
        OtlpKind.METRICS: ("resource_metrics", "scope_metrics"),
        OtlpKind.LOGS: ("resource_logs", "scope_logs"),
    }
    of_resources, of_scopes = lists[kind]
    for _ in range(draw(st.integers(0, 3))):
        resource = getattr(made, of_resources).add()
        resource.MergeFromString(UNKNOWN)
        if draw(st.booleans()):
            service = resource.resource.attributes.add(key="service.name")
            service.value.string_value = draw(st.sampled_from(SERVICES))
        for _ in range(draw(st.integers(0, 2))):
            holder = getattr(resource, of_scopes).add(schema_url="s")
            holder.scope.name = draw(st.sampled_from(["http", "db"]))
            holder.MergeFromString(UNKNOWN)
            for _ in range(draw(st.integers(0, 4))):
                _add(draw, kind, holder)
    payload: bytes = made.SerializeToString()
    return payload + draw(st.sampled_from([b"", UNKNOWN]))


def _add(draw: st.DrawFn, kind: OtlpKind, holder: Any) -> None:
    if kind is OtlpKind.TRACES:
        item = holder.spans.add(
            trace_id=draw(st.binary(min_size=16, max_size=16) | st.just(b"")),
            trace_state=draw(st.sampled_from(["", "a=b", "ot=rv:ffffffffffffff,a=b", "ot=th:f"])),
            name=draw(st.sampled_from(NAMES)),
            kind=draw(st.integers(0, 5)),
        )
        item.status.code = draw(st.integers(0, 2))
        item.events.add(name="e").attributes.add(key="user.id").value.string_value = "u"
    elif kind is OtlpKind.LOGS:
        item = holder.log_records.add(
            severity_number=draw(st.integers(0, 24)),
            trace_id=draw(st.binary(min_size=16, max_size=16) | st.just(b"")),
        )
        item.body.string_value = draw(TEXTS)
    else:
        metric = holder.metrics.add(name=draw(st.sampled_from(NAMES)))
        metric.MergeFromString(UNKNOWN)
        data = getattr(metric, draw(st.sampled_from(["gauge", "sum", "histogram", "summary"])))
        item = data.data_points.add(time_unix_nano=1)
    item.MergeFromString(UNKNOWN)
    for _ in range(draw(st.integers(0, 3))):
        value = item.attributes.add(key=draw(st.sampled_from(KEYS))).value
        which = draw(st.integers(0, 4))
        if which == 0:
            value.string_value = draw(TEXTS)
        elif which == 1:
            value.int_value = draw(st.integers(-(2**63), 2**63 - 1))
        elif which == 2:
            value.bool_value = draw(st.booleans())
        elif which == 3:
            value.array_value.values.add(string_value="in a list")
