"""OTLP's JSON means what the specification says, where protobuf's own JSON differs from it."""

from __future__ import annotations

import base64
import math
import random
from typing import Any

import orjson
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from tests.signals.otlp.telemetry import request

from holdfast.signals.otlp import codec
from holdfast.signals.otlp.json_form import DEPTH_MAX, request_document, to_protobuf
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import REQUESTS
from holdfast.signals.otlp.problem import NotOtlp

TRACE_ID = "5B8EFFF798038103D269B633813FC60C"


def span(**fields: Any) -> bytes:
    """Return a request with one span, as JSON."""
    spans = [{"traceId": TRACE_ID, "spanId": "EEE19B7EC3C1B174", **fields}]
    return orjson.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]})


def read_span(body: bytes) -> Any:
    """Return the span of a request."""
    found: Any = REQUESTS[OtlpKind.TRACES].FromString(to_protobuf(OtlpKind.TRACES, body))
    return found.resource_spans[0].scope_spans[0].spans[0]


def test_ids_are_hexadecimal_and_numbers_may_be_texts() -> None:
    found = read_span(span(kind=2, startTimeUnixNano="1544712660000000000", endTimeUnixNano=5e9))
    assert found.trace_id == bytes.fromhex(TRACE_ID)
    assert (found.kind, found.start_time_unix_nano) == (2, 1544712660000000000)
    assert found.end_time_unix_nano == 5_000_000_000


def test_other_names_are_ignored_and_null_is_absent() -> None:
    found = read_span(span(end_time_unix_nano=7, later="field", name=None, kind=None))
    assert not found.end_time_unix_nano
    assert not found.name


def test_other_bytes_are_base64() -> None:
    # In all spellings that protobuf's JSON allows.
    raw = bytes(range(250, 256)) + b"?"
    for text in (base64.b64encode(raw), base64.urlsafe_b64encode(raw).rstrip(b"=")):
        value = {"bytesValue": text.decode()}
        found = read_span(span(attributes=[{"key": "k", "value": value}]))
        assert found.attributes[0].value.bytes_value == raw


def test_an_empty_list_or_map_is_a_value() -> None:
    found = read_span(span(attributes=[{"key": "k", "value": {"arrayValue": {}}}]))
    assert found.attributes[0].value.WhichOneof("value") == "array_value"


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"kind": "SPAN_KIND_SERVER"}, "kind"),
        ({"kind": 2.5}, "kind"),
        ({"spanId": "not hex"}, "spanId"),
        ({"name": 5}, "name"),
        ({"flags": -1}, "flags"),
        ({"flags": 2**32}, "flags"),
        ({"endTimeUnixNano": "18446744073709551616"}, "endTimeUnixNano"),
        ({"endTimeUnixNano": True}, "endTimeUnixNano"),
        ({"endTimeUnixNano": "\u0661"}, "endTimeUnixNano"),
        ({"attributes": {}}, "attributes"),
        ({"attributes": [None]}, "attributes[0]"),
        (
            {"attributes": [{"value": {"intValue": 1, "boolValue": True}}]},
            "attributes[0].value.boolValue",
        ),
        ({"attributes": [{"value": {"boolValue": "true"}}]}, "attributes[0].value.boolValue"),
        ({"attributes": [{"value": {"bytesValue": "*"}}]}, "attributes[0].value.bytesValue"),
        ({"attributes": [{"value": {"doubleValue": "1e999"}}]}, "attributes[0].value.doubleValue"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(NotOtlp) as caught:
        to_protobuf(OtlpKind.TRACES, span(**fields))
    assert caught.value.path == "resourceSpans[0].scopeSpans[0].spans[0]." + path


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"5", b'{"resourceSpans":5}', b'"\xff"'])
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(NotOtlp):
        to_protobuf(OtlpKind.TRACES, body)


def test_values_are_as_deep_as_protobuf_can_read_them() -> None:
    def nested(lists: int) -> bytes:
        value: dict[str, Any] = {"intValue": 1}
        for _ in range(lists):
            value = {"arrayValue": {"values": [value]}}
        return span(attributes=[{"key": "k", "value": value}])

    # Request, resource, scope, span, attribute and the value itself; then two for each list.
    deepest = (DEPTH_MAX - 6) // 2
    body = to_protobuf(OtlpKind.TRACES, nested(deepest))
    assert codec.check(OtlpKind.TRACES, body) == 1
    for more in (deepest + 1, 60):
        with pytest.raises(NotOtlp, match="deep"):
            to_protobuf(OtlpKind.TRACES, nested(more))


# ------------------------------------------------------------------------ any message


def _scalars(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    kinds: dict[int, st.SearchStrategy[Any]] = {
        FieldDescriptor.CPPTYPE_INT32: st.integers(-(2**31), 2**31 - 1),
        FieldDescriptor.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1),
        FieldDescriptor.CPPTYPE_UINT32: st.integers(0, 2**32 - 1),
        FieldDescriptor.CPPTYPE_UINT64: st.integers(0, 2**64 - 1),
        FieldDescriptor.CPPTYPE_DOUBLE: st.floats().filter(lambda x: not math.isnan(x)),
        FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
        FieldDescriptor.CPPTYPE_ENUM: st.integers(-(2**31), 2**31 - 1),
    }
    if field.cpp_type in kinds:
        return kinds[field.cpp_type]
    if field.type == FieldDescriptor.TYPE_STRING:
        return st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    return st.binary(max_size=5)


def _fill(draw: st.DrawFn, message: Message, depth: int) -> None:
    known: list[FieldDescriptor] = [*message.DESCRIPTOR.fields]
    fields = draw(st.lists(st.sampled_from(known), unique_by=_exclusive, max_size=3))
    for field in fields:
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            inner = getattr(message, field.name)
            if field.is_repeated:
                inner = inner.add()
            else:
                inner.SetInParent()
            if depth:
                _fill(draw, inner, depth - 1)
        elif field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(_scalars(field), max_size=2)))
        else:
            setattr(message, field.name, draw(_scalars(field)))


def _exclusive(field: FieldDescriptor) -> str:
    """Return what at most one of a message's fields may have."""
    return field.containing_oneof.name if field.containing_oneof else field.name


@st.composite
def any_request(draw: st.DrawFn) -> tuple[OtlpKind, bytes]:
    kind = draw(st.sampled_from(OtlpKind))
    message = REQUESTS[kind]()
    _fill(draw, message, depth=7)
    return kind, message.SerializeToString()


@given(any_request())
def test_any_message_comes_back_from_its_json(made: tuple[OtlpKind, bytes]) -> None:
    kind, body = made
    text = orjson.dumps(request_document(kind, body))
    assert to_protobuf(kind, text) == body


@pytest.mark.parametrize("kind", OtlpKind)
def test_a_request_comes_back_from_its_json(kind: OtlpKind) -> None:
    body = request(kind, random.Random(5))
    assert to_protobuf(kind, orjson.dumps(request_document(kind, body))) == body
