"""Lists and maps within attributes, as JSON that people can ask and that keeps every type.

A list is an array and a map an object. Whole numbers have no point, doubles always have one or an
exponent, and what is empty is null. JSON has no way to say the rest, which is said by an object
with one key that is the name of a field of OTLP:

    {"bytes_value": "3q2+7w=="}         bytes, in base64
    {"double_value": "NaN"}             a double that is no number: also "Infinity", "-Infinity"
    {"kvlist_value": [["k", 1], ["k"]]} a map that no object can be: a key is there twice, or has no
                                        value at all, or it would look like one of these three
"""

from __future__ import annotations

import base64
import math
from typing import Any

import orjson
from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import ArrayValue, KeyValueList

from holdfast.errors import BadInput
from holdfast.signals.otlp.problem import NotOtlp

_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_MARKS = {"bytes_value", "double_value", "kvlist_value"}


def text_of_array(body: bytes) -> str:
    """Return a message `ArrayValue` as JSON; raises `NotOtlp`."""
    return _text([_plain(value) for value in _parsed(ArrayValue, body).values])


def text_of_kvlist(body: bytes) -> str:
    """Return a message `KeyValueList` as JSON; raises `NotOtlp`."""
    return _text(_object(_parsed(KeyValueList, body)))


def _parsed(message: Any, body: bytes) -> Any:
    try:
        return message.FromString(body)
    except DecodeError as error:
        raise NotOtlp("a value is not a valid protobuf message") from error


def _text(plain: Any) -> str:
    return orjson.dumps(plain).decode()


def _plain(value: Any) -> Any:
    which = value.WhichOneof("value")
    match which:
        # An index into a table that only profiles have: to others the value is empty.
        case None | "string_value_strindex":
            return None
        case "array_value":
            return [_plain(one) for one in value.array_value.values]
        case "kvlist_value":
            return _object(value.kvlist_value)
        case "bytes_value":
            return {"bytes_value": base64.b64encode(value.bytes_value).decode()}
        case "double_value" if not math.isfinite(value.double_value):
            number = value.double_value
            return {
                "double_value": "NaN"
                if math.isnan(number)
                else "Infinity"
                if number > 0
                else "-Infinity"
            }
    return getattr(value, which)


def _object(kvlist: Any) -> dict[str, Any]:
    pairs = kvlist.values
    plain = {pair.key: _plain(pair.value) for pair in pairs}
    if (
        len(plain) == len(pairs)
        and all(pair.HasField("value") for pair in pairs)
        and not (len(plain) == 1 and plain.keys() <= _MARKS)
    ):
        return plain
    listed = [
        [pair.key, _plain(pair.value)] if pair.HasField("value") else [pair.key] for pair in pairs
    ]
    return {"kvlist_value": listed}


def message_of(text: str) -> ArrayValue | KeyValueList:
    """Return the message that a text stands for; raises `BadInput`."""
    try:
        plain = orjson.loads(text)
        if isinstance(plain, list):
            array = ArrayValue()
            for one in plain:
                _fill(array.values.add(), one)
            return array
        if isinstance(plain, dict) and _mark(plain) in (None, "kvlist_value"):
            kvlist = KeyValueList()
            _fill_pairs(kvlist, plain)
            return kvlist
    except (ValueError, TypeError, KeyError) as error:
        raise _not_a_value(str(error)) from None
    raise _not_a_value("neither a list nor a map")


def _not_a_value(reason: str) -> BadInput:
    return BadInput(
        f"a `json_value` stands for no value of OTLP: {reason}",
        hint="docs/format/flat.md says what it may be",
    )


def _mark(plain: dict[str, Any]) -> str | None:
    return next(iter(plain)) if len(plain) == 1 and plain.keys() <= _MARKS else None


def _fill(value: Any, plain: Any) -> None:
    """Put what was read from JSON into an `AnyValue`."""
    if isinstance(plain, str):
        value.string_value = plain
    elif isinstance(plain, bool):
        value.bool_value = plain
    elif isinstance(plain, int):
        value.int_value = plain
    elif isinstance(plain, float):
        value.double_value = plain
    elif isinstance(plain, list):
        value.array_value.SetInParent()
        for one in plain:
            _fill(value.array_value.values.add(), one)
    elif isinstance(plain, dict):
        match _mark(plain):
            case "bytes_value":
                value.bytes_value = base64.b64decode(plain["bytes_value"], validate=True)
            case "double_value":
                value.double_value = _SPECIAL[plain["double_value"]]
            case _:
                value.kvlist_value.SetInParent()
                _fill_pairs(value.kvlist_value, plain)


def _fill_pairs(kvlist: Any, plain: dict[str, Any]) -> None:
    pairs = plain["kvlist_value"] if _mark(plain) else plain.items()
    for key, *rest in pairs:
        pair = kvlist.values.add(key=key)
        if rest:
            pair.value.SetInParent()
            _fill(pair.value, rest[0])
