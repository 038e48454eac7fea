"""What a request of OTLP says, whatever way it is written.

Equal resources are one, and so are equal scopes of one; equal metrics that follow each other are
one, too. What holds no items says nothing, and is left out; fields that are not known are, as well.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message
from tests.signals.otlp.made_up import INDICES

from holdfast.signals.otlp.items import lists_of_scope
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import REQUESTS

_LISTS = {
    OtlpKind.TRACES: ("resource_spans", "scope_spans"),
    OtlpKind.LOGS: ("resource_logs", "scope_logs"),
    OtlpKind.METRICS: ("resource_metrics", "scope_metrics"),
}
# What stands above the items, and them: bytes, so that any two can be compared.
Canonical = dict[tuple[bytes | None, str], dict[tuple[bytes | None, str], list[Any]]]


def canonical(kind: OtlpKind, body: bytes) -> Canonical:
    """Return what a request says."""
    request: Any = REQUESTS[kind].FromString(body)
    request.DiscardUnknownFields()
    _drop_indices(request)
    found: Canonical = {}
    resources, scopes = _LISTS[kind]
    for resource in getattr(request, resources):
        for scope in getattr(resource, scopes):
            for metric, items in lists_of_scope(kind, scope):
                if not items:
                    continue
                above = found.setdefault(_key(resource, "resource"), {})
                held = above.setdefault(_key(scope, "scope"), [])
                written = [_bytes(item) for item in items]
                if metric is None:
                    held += written
                    continue
                head = _head(metric)
                if held and held[-1][0] == head:
                    held[-1][1].extend(written)
                else:
                    held.append((head, written))
    return found


def _key(holder: Any, name: str) -> tuple[bytes | None, str]:
    message = getattr(holder, name)
    return _bytes(message) if holder.HasField(name) else None, holder.schema_url


def _head(metric: Any) -> bytes:
    head = type(metric)()
    head.CopyFrom(metric)
    del getattr(head, head.WhichOneof("data")).data_points[:]
    return _bytes(head)


def _bytes(message: Any) -> bytes:
    written: bytes = message.SerializeToString(deterministic=True)
    return written


def _drop_indices(message: Message) -> None:
    """Leave out what has a meaning in profiles only, and a place in no other form."""
    for field, value in message.ListFields():
        if field.name in INDICES:
            message.ClearField(field.name)
        elif field.message_type is not None:
            for one in [value] if isinstance(value, Message) else value:
                _drop_indices(one)
