"""Requests of OTLP made up by hypothesis, with any field of any message."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from hypothesis import strategies as st

from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import REQUESTS

# Indices into a table that only profiles have; other signals take them for nothing.
INDICES = {"string_value_strindex", "key_strindex"}
_LIST_MAX = 3
_DEPTH_MAX = 16
_TEXTS = st.sampled_from(["", "a", "service.name", "ä\0b", "bytes_value"]) | st.text(max_size=5)
_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.CPPTYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_ENUM: st.integers(0, 3) | st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_DOUBLE: st.floats(allow_nan=False) | st.just(math.nan),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
}


def scalars(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    """Return values that a field may have."""
    if field.cpp_type in _SCALARS:
        return _SCALARS[field.cpp_type]
    return st.binary(max_size=16) if field.type == FieldDescriptor.TYPE_BYTES else _TEXTS


@st.composite
def otlp_requests(draw: Callable[..., Any], kind: OtlpKind) -> bytes:
    """Return a request in which every field may be there, or not."""
    request = REQUESTS[kind]()
    _fill(draw, request, 0)
    body: bytes = request.SerializeToString()
    return body


def _fill(draw: Callable[..., Any], message: Any, depth: int) -> None:
    fields = [field for field in message.DESCRIPTOR.fields if field.name not in INDICES]
    if depth > _DEPTH_MAX:
        fields = [field for field in fields if field.message_type is None]
    chosen = draw(st.sets(st.integers(0, len(fields) - 1))) if fields else set()
    done = set()
    for place in sorted(chosen):
        field = fields[place]
        oneof = field.containing_oneof
        if oneof is not None:
            if oneof.name in done:
                continue
            done.add(oneof.name)
        _fill_field(draw, message, field, depth)


def _fill_field(draw: Callable[..., Any], message: Any, field: FieldDescriptor, depth: int) -> None:
    value = getattr(message, field.name)
    if field.is_repeated:
        for _ in range(draw(st.integers(1, _LIST_MAX))):
            if field.message_type is None:
                value.append(draw(scalars(field)))
            else:
                _fill(draw, value.add(), depth + 1)
    elif field.message_type is not None:
        value.SetInParent()
        _fill(draw, value, depth + 1)
    else:
        setattr(message, field.name, draw(scalars(field)))
