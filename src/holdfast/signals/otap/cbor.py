"""Lists and maps within attributes: CBOR in OTAP's tables, messages in OTLP.

Only what a value of OTLP can be is read, straight from one kind of bytes to the other: no tags
(with which CBOR can name dates, regular expressions and references to itself), no keys but texts,
no numbers beyond 64 bits, and no more levels than a reader of protobuf follows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import ArrayValue, KeyValueList

from holdfast.signals.otap.payloads import ValueType
from holdfast.signals.otap.problem import NotOtap
from holdfast.signals.otlp.codec import as_varint

# Readers of protobuf follow 100 levels. A span has its attributes on the sixth; a list takes two
# more, a map three.
_LEVELS_MAX = 94
_LIST_LEVELS, _MAP_LEVELS = 2, 3
# The kinds of items, in the upper three bits of their first byte.
_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _LIST, _MAP, _TAG, _SIMPLE = range(8)
# What the lower five say: a number below is meant itself, or how many bytes of it follow.
_ONE_BYTE, _TWO_BYTES, _FOUR_BYTES, _EIGHT_BYTES, _INDEFINITE = 24, 25, 26, 27, 31
_NUMBERS = {
    _ONE_BYTE: struct.Struct(">B"),
    _TWO_BYTES: struct.Struct(">H"),
    _FOUR_BYTES: struct.Struct(">I"),
    _EIGHT_BYTES: struct.Struct(">Q"),
}
_FLOATS = {
    _TWO_BYTES: struct.Struct(">e"),
    _FOUR_BYTES: struct.Struct(">f"),
    _EIGHT_BYTES: struct.Struct(">d"),
}
_FALSE, _TRUE, _NULL, _UNDEFINED = 20, 21, 22, 23
_BREAK = 0xFF
_INT64_MAX = 2**63 - 1
_DOUBLE = struct.Struct("<d")
# The tags of protobuf's fields: of `AnyValue`, `ArrayValue`, `KeyValueList` and `KeyValue`.
_STRING_VALUE, _BOOL_VALUE, _INT_VALUE, _DOUBLE_VALUE = b"\x0a", b"\x10", b"\x18", b"\x21"
_ARRAY_VALUE, _KVLIST_VALUE, _BYTES_VALUE = b"\x2a", b"\x32", b"\x3a"
_VALUES, _KEY, _VALUE = b"\x0a", b"\x0a", b"\x12"


# ---------------------------------------------------------------------- to protobuf


def message_of(written: bytes, kind: ValueType) -> bytes:
    """Return a list as an `ArrayValue`, a map as a `KeyValueList`; raises `NotOtap`."""
    return _CborReader(written).whole(kind)


class _CborReader:
    """Reads one item and what is within."""

    def __init__(self, written: bytes) -> None:
        self._written = written
        self._at = 0

    def whole(self, kind: ValueType) -> bytes:
        try:
            major, low = self._head()
            if major != (_MAP if kind is ValueType.MAP else _LIST):
                raise NotOtap(f"a value is not the {kind.name.lower()} that it is said to be")
            body = self._pairs(low, 0) if major == _MAP else self._elements(low, 0)
        except (IndexError, struct.error, UnicodeDecodeError):
            raise NotOtap("a value is cut short, or a text in it is not UTF-8") from None
        if self._at < len(self._written):
            raise NotOtap("there is more behind a value")
        return body

    def _head(self) -> tuple[int, int]:
        first = self._written[self._at]
        self._at += 1
        return first >> 5, first & 0x1F

    def _number(self, low: int) -> int:
        if low < _ONE_BYTE:
            return low
        if low not in _NUMBERS:
            raise NotOtap("a number in a value has no length that CBOR knows")
        form = _NUMBERS[low]
        (number,) = form.unpack_from(self._written, self._at)
        self._at += form.size
        return int(number)

    def _content(self, major: int, low: int) -> bytes:
        """Return bytes or a text, which may come in pieces."""
        if low != _INDEFINITE:
            length = self._number(low)
            content = self._written[self._at : self._at + length]
            if len(content) < length:
                raise IndexError
            self._at += length
            return content
        pieces = []
        while not self._is_at_break():
            piece_major, piece_low = self._head()
            if piece_major != major or piece_low == _INDEFINITE:
                raise NotOtap("a text or bytes in pieces of another kind")
            pieces.append(self._content(major, piece_low))
        return b"".join(pieces)

    def _is_at_break(self) -> bool:
        if self._written[self._at] != _BREAK:
            return False
        self._at += 1
        return True

    def _each(self, low: int, read: Callable[[], bytes]) -> bytes:
        """Return what as many items are as a list or a map says that it has."""
        found = []
        if low == _INDEFINITE:
            while not self._is_at_break():
                found.append(read())
        else:
            # Every one of them has a byte at least: a number that is a lie ends with them.
            found += (read() for _ in range(self._number(low)))
        return b"".join(found)

    def _elements(self, low: int, levels: int) -> bytes:
        return self._each(low, lambda: _field(_VALUES, self._value(levels + _LIST_LEVELS)))

    def _pairs(self, low: int, levels: int) -> bytes:
        return self._each(low, lambda: _field(_VALUES, self._pair(levels + _MAP_LEVELS)))

    def _pair(self, levels: int) -> bytes:
        major, low = self._head()
        if major != _TEXT:
            raise NotOtap("a key in a map is not a text")
        key = self._content(major, low)
        key.decode()
        return _field(_KEY, key) + _field(_VALUE, self._value(levels))

    def _value(self, levels: int) -> bytes:
        """Return the fields of an `AnyValue`."""
        if levels > _LEVELS_MAX:
            raise NotOtap("a value is nested too deeply")
        major, low = self._head()
        if major in (_UNSIGNED, _NEGATIVE):
            return _INT_VALUE + _as_int64(self._number(low), is_negative=major == _NEGATIVE)
        if major == _TEXT:
            text = self._content(major, low)
            text.decode()
            return _field(_STRING_VALUE, text)
        if major == _BYTES:
            return _field(_BYTES_VALUE, self._content(major, low))
        if major == _LIST:
            return _field(_ARRAY_VALUE, self._elements(low, levels))
        if major == _MAP:
            return _field(_KVLIST_VALUE, self._pairs(low, levels))
        return self._simple(major, low)

    def _simple(self, major: int, low: int) -> bytes:
        if major == _TAG:
            raise NotOtap("a value has a tag of CBOR, which no value of OTLP has")
        if low in (_FALSE, _TRUE):
            return _BOOL_VALUE + bytes([low == _TRUE])
        if low in (_NULL, _UNDEFINED):
            return b""
        if low not in _FLOATS:
            raise NotOtap("a value is of a kind that OTLP does not have")
        form = _FLOATS[low]
        (number,) = form.unpack_from(self._written, self._at)
        self._at += form.size
        return _DOUBLE_VALUE + _DOUBLE.pack(number)


def _field(tag: bytes, content: bytes) -> bytes:
    return b"".join((tag, as_varint(len(content)), content))


def _as_int64(number: int, *, is_negative: bool) -> bytes:
    if number > _INT64_MAX:
        raise NotOtap("a number in a value has more than 64 bits")
    return as_varint(2**64 - 1 - number if is_negative else number)


# -------------------------------------------------------------------- from protobuf


def cbor_of_list(message: bytes) -> bytes:
    """Return an `ArrayValue` as CBOR; raises what protobuf raises."""
    return _written_list(ArrayValue.FromString(message))


def cbor_of_map(message: bytes) -> bytes:
    """Return a `KeyValueList` as CBOR; raises what protobuf raises."""
    return _written_map(KeyValueList.FromString(message))


def _written_list(values: Any) -> bytes:
    items = [_written(value) for value in values.values]
    return b"".join((_item(_LIST, len(items)), *items))


def _written_map(pairs: Any) -> bytes:
    items = []
    for pair in pairs.values:
        key = pair.key.encode()
        items += [_item(_TEXT, len(key)), key, _written(pair.value)]
    return b"".join((_item(_MAP, len(pairs.values)), *items))


def _written(value: Any) -> bytes:
    which = value.WhichOneof("value")
    if which == "string_value":
        text: bytes = value.string_value.encode()
        return _item(_TEXT, len(text)) + text
    if which == "int_value":
        number = value.int_value
        return _item(_UNSIGNED, number) if number >= 0 else _item(_NEGATIVE, -1 - number)
    if which == "double_value":
        number_bytes = _FLOATS[_EIGHT_BYTES].pack(value.double_value)
        return bytes([_SIMPLE << 5 | _EIGHT_BYTES]) + number_bytes
    if which == "bool_value":
        return bytes([_SIMPLE << 5 | (_TRUE if value.bool_value else _FALSE)])
    if which == "bytes_value":
        return _item(_BYTES, len(value.bytes_value)) + bytes(value.bytes_value)
    if which == "array_value":
        return _written_list(value.array_value)
    if which == "kvlist_value":
        return _written_map(value.kvlist_value)
    # Nothing, or a number that only profiles have.
    return bytes([_SIMPLE << 5 | _NULL])


def _item(major: int, number: int) -> bytes:
    """Return the first bytes of an item, with the number in as few bytes as it needs."""
    if number < _ONE_BYTE:
        return bytes([major << 5 | number])
    low = next(low for low, form in _NUMBERS.items() if number < 1 << 8 * form.size)
    return bytes([major << 5 | low]) + _NUMBERS[low].pack(number)
