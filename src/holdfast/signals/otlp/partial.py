"""Requests of OTLP of which only some items are sound, divided: what can be taken, and the rest.

An item is not sound if protobuf cannot read it (a text that is not UTF-8, mostly) while everything
around it can be read, or if it is a span without a valid trace id and span id: OTLP asks for 16 and
8 bytes that are not all zero. Collectors refuse a whole request because of one such span, and a
request is joined with others when it is sent on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from holdfast.signals.otlp import codec
from holdfast.signals.otlp.items import holders, lists_of_scope, prune
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import COUNTED_REQUESTS, REQUESTS
from holdfast.signals.otlp.problem import NotOtlp

_TRACE_ID_BYTES, _SPAN_ID_BYTES = 16, 8


class DividedRequest(NamedTuple):
    """What can be taken of a request, and what cannot, as a request of its own."""

    # The bytes that came, if all of it can.
    sound: bytes
    items: int
    rejected: bytes = b""
    rejected_items: int = 0


def divide(kind: OtlpKind, body: bytes) -> DividedRequest:
    """Return a request in two; raises `NotOtlp` if nothing of it can be taken."""
    try:
        items = codec.check(kind, body)
    except NotOtlp:
        return _divided(kind, body)
    if kind is not OtlpKind.TRACES or _all_ids_are_valid(body):
        return DividedRequest(body, items)
    return _divided(kind, body)


def _all_ids_are_valid(body: bytes) -> bool:
    request: Any = REQUESTS[OtlpKind.TRACES].FromString(body)
    return all(
        _has_valid_ids(span)
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    )


def _divided(kind: OtlpKind, body: bytes) -> DividedRequest:
    is_sound = _soundness(kind)
    sound, kept = _filtered(kind, body, is_sound)
    rejected, left_out = _filtered(kind, body, lambda field, item: not is_sound(field, item))
    if not kept:
        raise NotOtlp(f"none of its {left_out} {kind.items} is valid" if left_out else _UNREADABLE)
    # What is around the items was not looked at yet.
    return DividedRequest(sound, codec.check(kind, sound), rejected, left_out)


_UNREADABLE = "this is not a valid protobuf message of the kind"


def _filtered(
    kind: OtlpKind, body: bytes, wanted: Callable[[str, bytes], bool]
) -> tuple[bytes, int]:
    """Return a request with some of its items, and how many; these are bytes, and stay so."""
    try:
        request: Any = COUNTED_REQUESTS[kind].FromString(body)
    except DecodeError as error:
        raise NotOtlp(_UNREADABLE) from error
    count = 0
    for _, holder in holders(kind, request):
        for metric, items in lists_of_scope(kind, holder):
            field = "" if metric is None else metric.WhichOneof("data")
            kept = [item for item in items if wanted(field, item)]
            count += len(kept)
            if len(kept) < len(items):
                del items[:]
                items.extend(kept)
    prune(kind, request)
    written: bytes = request.SerializeToString()
    return written, count


def _soundness(kind: OtlpKind) -> Callable[[str, bytes], bool]:
    """Return what says whether the bytes of an item are one, given the metric's kind of data."""
    classes = _item_classes(kind)

    def is_sound(field: str, item: bytes) -> bool:
        try:
            read = classes[field].FromString(item)
        except DecodeError:
            return False
        return kind is not OtlpKind.TRACES or _has_valid_ids(read)

    return is_sound


def _item_classes(kind: OtlpKind) -> dict[str, Any]:
    request: Any = REQUESTS[kind]()
    if kind is OtlpKind.TRACES:
        return {"": type(request.resource_spans.add().scope_spans.add().spans.add())}
    if kind is OtlpKind.LOGS:
        return {"": type(request.resource_logs.add().scope_logs.add().log_records.add())}
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add()
    names = [field.name for field in metric.DESCRIPTOR.oneofs_by_name["data"].fields]
    return {name: type(getattr(metric, name).data_points.add()) for name in names}


def _has_valid_ids(span: Any) -> bool:
    trace_id, span_id = span.trace_id, span.span_id
    return (
        len(trace_id) == _TRACE_ID_BYTES
        and len(span_id) == _SPAN_ID_BYTES
        and any(trace_id)
        and any(span_id)
    )
