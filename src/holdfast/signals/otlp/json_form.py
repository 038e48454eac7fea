"""OTLP's JSON, to protobuf and back.

It is protobuf's JSON with four differences, which is why protobuf's own reader cannot be used (it
would take 24 bytes of a trace id out of its 32 hexadecimal digits): ids are hexadecimal, enums are
integers and never names, names are in lowerCamelCase only, and what is not known is ignored. As in
all of protobuf's JSON, 64-bit numbers are texts or numbers, `null` is a field that is not there,
and bytes are base64.

Both ways follow the descriptors, so that a field that OTLP adds is known with the next version of
its package. For each message, what to do with a name is looked up once.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import orjson
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from holdfast.signals.otlp.codec import item_lists
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import REQUESTS
from holdfast.signals.otlp.problem import NotOtlp

# Fields whose bytes are hexadecimal.
_HEX_FIELDS = {"trace_id", "span_id", "parent_span_id"}
# What readers of protobuf take at most; deeper JSON could be written and never be read again.
DEPTH_MAX = 100
_INTEGER = re.compile(r"-?[0-9]{1,20}")
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_AS_TEXT = {FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64}

# Puts a value of JSON into a field of a message, at a depth.
_Fill = Callable[[Any, Any, int], None]
_Convert = Callable[[Any], object]


def to_protobuf(kind: OtlpKind, body: bytes) -> bytes:
    """Return a request in JSON as protobuf; raises `NotOtlp`, which says where."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise NotOtlp(f"this is not JSON: {error.msg} at byte {error.pos}") from None
    request = REQUESTS[kind]()
    _fill_message(request, document, 1)
    return request.SerializeToString()


def to_document(message: Message) -> dict[str, Any]:
    """Return a message as OTLP's JSON has it."""
    return {
        field.json_name: _value_of(field, value)
        if not field.is_repeated
        else [_value_of(field, one) for one in value]
        for field, value in message.ListFields()
    }


def request_document(kind: OtlpKind, body: bytes, items_max: int | None = None) -> dict[str, Any]:
    """Return a stored request as OTLP's JSON has it, for people to read; raises `NotOtlp`.

    Of one that has more than `items_max` items, the first; how many more there are stands beside
    them, as `more`.
    """
    try:
        request = REQUESTS[kind].FromString(body)
    except DecodeError as error:
        raise NotOtlp("this is not a valid protobuf message of the kind") from error
    left_out = 0 if items_max is None else _leave_first(kind, request, items_max)
    return {**to_document(request), "more": left_out} if left_out else to_document(request)


def _leave_first(kind: OtlpKind, request: Message, items_max: int) -> int:
    """Remove all items but the first, and return how many."""
    removed = 0
    for items in item_lists(kind, request):
        kept = min(len(items), items_max)
        items_max -= kept
        removed += len(items) - kept
        del items[kept:]
    return removed


# ------------------------------------------------------------------------ from JSON


def _fill_message(message: Message, document: object, depth: int) -> None:
    if type(document) is not dict:
        raise NotOtlp("an object is expected")
    if depth > DEPTH_MAX:
        raise NotOtlp(f"the values are nested more than {DEPTH_MAX} deep")
    # The document leads, not the message: a request has few of the fields there could be. An error
    # gets its path on the way out, so that what is right pays nothing for it.
    fills = _fills_of(message.DESCRIPTOR)
    for name, value in document.items():
        fill = fills.get(name)
        if fill is None or value is None:
            continue
        try:
            fill(message, value, depth)
        except NotOtlp as error:
            raise error.inside(name) from None


@cache
def _fills_of(descriptor: Descriptor) -> dict[str, _Fill]:
    return {field.json_name: _fill_of(field) for field in descriptor.fields}


def _fill_of(field: FieldDescriptor) -> _Fill:
    """Return what puts a value into a field."""
    name = field.name
    is_message = field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE
    if field.is_repeated:
        return _messages(name) if is_message else _values(name, _conversion(field))
    fill = _message(name) if is_message else _value(name, _conversion(field))
    oneof = field.containing_oneof
    if oneof is None or len(oneof.fields) == 1:
        return fill
    return _alone(oneof.name, fill)


def _message(name: str) -> _Fill:
    def fill(message: Any, value: Any, depth: int) -> None:
        inner = getattr(message, name)
        # `{}` is a message that is there and empty, which is not the same as none.
        inner.SetInParent()
        _fill_message(inner, value, depth + 1)

    return fill


def _messages(name: str) -> _Fill:
    def fill(message: Any, value: Any, depth: int) -> None:
        add = getattr(message, name).add
        for index, one in enumerate(_list(value)):
            try:
                _fill_message(add(), one, depth + 1)
            except NotOtlp as error:
                raise error.inside(f"[{index}]") from None

    return fill


def _value(name: str, convert: _Convert) -> _Fill:
    def fill(message: Any, value: Any, _: int) -> None:
        setattr(message, name, convert(value))

    return fill


def _values(name: str, convert: _Convert) -> _Fill:
    def fill(message: Any, value: Any, _: int) -> None:
        getattr(message, name).extend([convert(one) for one in _list(value)])

    return fill


def _alone(oneof: str, fill: _Fill) -> _Fill:
    """Return what refuses a second member of a `oneof`: which of them is meant cannot be known."""

    def fill_alone(message: Any, value: Any, depth: int) -> None:
        if message.WhichOneof(oneof) is not None:
            raise NotOtlp("another field that excludes this one is there, too")
        fill(message, value, depth)

    return fill_alone


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise NotOtlp("an array is expected")
    return value


def _conversion(field: FieldDescriptor) -> _Convert:
    """Return what makes a field's value of one of JSON."""
    cpp_type = field.cpp_type
    if cpp_type in _INTEGERS:
        low, high = _INTEGERS[cpp_type]
        return lambda value: _integer(value, low, high)
    if cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return _enum
    if cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
        return _double
    if cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return _boolean
    assert cpp_type == FieldDescriptor.CPPTYPE_STRING, f"BUG: {field.full_name} is of no known type"
    if field.type == FieldDescriptor.TYPE_STRING:
        return _text
    return _hexadecimal if field.name in _HEX_FIELDS else _base64


def _integer(value: Any, low: int, high: int) -> int:
    is_text = type(value) is str and _INTEGER.fullmatch(value)
    if is_text or (type(value) is float and value.is_integer()):
        value = int(value)
    if type(value) is not int:
        raise NotOtlp("an integer is expected, as a number or a text")
    if not low <= value <= high:
        raise NotOtlp(f"the number is not between {low} and {high}")
    return value


def _enum(value: Any) -> int:
    if type(value) is not int:
        raise NotOtlp("an integer is expected: OTLP has no names of enum values")
    return _integer(value, *_INTEGERS[FieldDescriptor.CPPTYPE_INT32])


def _double(value: Any) -> float:
    if type(value) in (float, int):
        return float(value)
    if type(value) is str:
        if value in _SPECIAL:
            return _SPECIAL[value]
        if _DOUBLE.fullmatch(value) and math.isfinite(float(value)):
            return float(value)
    raise NotOtlp("a number is expected")


_DOUBLE = re.compile(r"-?[0-9]{1,400}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,4})?")


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise NotOtlp("true or false is expected")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise NotOtlp("a text is expected")
    return value


def _hexadecimal(value: Any) -> bytes:
    try:
        return binascii.unhexlify(_text(value))
    except ValueError:
        raise NotOtlp("an id in hexadecimal digits is expected") from None


_URL_SAFE = str.maketrans("-_", "+/")


def _base64(value: Any) -> bytes:
    """Take both alphabets, with padding or without, as protobuf's own reader does."""
    text = _text(value).translate(_URL_SAFE).rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        raise NotOtlp("bytes in base64 are expected") from None


# -------------------------------------------------------------------------- to JSON


def _value_of(field: FieldDescriptor, value: Any) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return to_document(value)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return value.hex() if field.name in _HEX_FIELDS else base64.b64encode(value).decode()
    if field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return str(value) if field.cpp_type in _AS_TEXT else value
