"""Requests of OTLP, reduced to what OTAP can say.

Attributes of one thing are a set by key there, in any order. A message that is there and empty is
the same as none. Fields in `LOST_FIELDS` are left out, as are ids of another length than ids have.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from tests.signals.otlp.canonical import Canonical, canonical

from holdfast.signals.otap.plans import LOST_FIELDS
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import REQUESTS

_ID_BYTES = {"trace_id": 16, "span_id": 8, "parent_span_id": 8}
_ATTRIBUTES = {"attributes", "filtered_attributes", "metadata"}
# Whether they are there says something, also if they are empty.
_TELLING = {
    *("gauge", "sum", "histogram", "exponential_histogram", "summary"),
    *("array_value", "kvlist_value"),
}


def reduced(kind: OtlpKind, body: bytes) -> bytes:
    """Return a request that says what OTAP can say of another."""
    request = REQUESTS[kind].FromString(body)
    request.DiscardUnknownFields()
    _reduce(request)
    written: bytes = request.SerializeToString()
    return written


def normal_form(kind: OtlpKind, body: bytes) -> Canonical:
    """Return what a request says, as far as OTAP can say it."""
    return canonical(kind, reduced(kind, body))


def _reduce(message: Any) -> None:
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        is_no_id = field.name in _ID_BYTES and len(value) != _ID_BYTES[field.name]
        if field.full_name in LOST_FIELDS or is_no_id:
            message.ClearField(field.name)
        elif field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
            continue
        elif field.is_repeated:
            for one in value:
                _reduce(one)
            if field.name in _ATTRIBUTES:
                value.sort(key=lambda one: (one.key, one.SerializeToString()))
        elif message.HasField(field.name):
            _reduce(value)
            if not value.ByteSize() and field.name not in _TELLING:
                message.ClearField(field.name)
