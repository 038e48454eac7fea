"""Attributes and their values: messages of protobuf as bytes to maps of typed members, and back.

Most of telemetry is attributes, and most of what a general reader does with one is to say of seven
types that it is not of them. An attribute that a writer of protobuf made is a key and a value, and
a value is one field: a byte that says which, a length or a number, and the content. So all of them
are looked at together, by the few bytes that say what follows. What follows, keys and texts, is not
looked at but copied once, without what stands between.

Whatever is not written like that (two values, of which the last one counts, or a field that is not
known) is read and written once by protobuf, one after the other, and then it is. Nothing is taken
from bytes before their lengths were compared with where they end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from holdfast.quiver.base.arrow import texts
from holdfast.signals.otlp.flat.json_value import message_of, text_of_array, text_of_kvlist
from holdfast.signals.otlp.flat.nested import Converter, descriptor_of, type_of, write
from holdfast.signals.otlp.flat.schema import VALUE
from holdfast.signals.otlp.flat.wire import CONTINUED, Messages, NumpyArray, bitmap
from holdfast.signals.otlp.problem import NotOtlp

# The first byte of a field: its number, and how its content is written.
_KEY, _VALUE_FIELD = 0x0A, 0x12
_TEXT, _BOOL, _INT, _DOUBLE, _ARRAY, _KVLIST, _BYTES = 0x0A, 0x10, 0x18, 0x21, 0x2A, 0x32, 0x3A
_WITH_LENGTH = np.zeros(256, bool)
_WITH_LENGTH[[_TEXT, _ARRAY, _KVLIST, _BYTES]] = True
_DOUBLE_BYTES = 8


def as_text(column: pa.Array) -> pa.Array:
    """Return bytes as texts; raises `NotOtlp`."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise NotOtlp("a text is not UTF-8") from error


# ------------------------------------------------------------------------- attributes


def decoded_pairs(places: Messages) -> tuple[pa.Array, pa.Array]:
    """Return messages `KeyValue` as keys, which are bytes still, and values; raises `NotOtlp`."""
    pairs = _AttributePlaces(places)
    if not pairs.are_regular:
        places = _settled(places, KeyValue)
        pairs = _AttributePlaces(places)
        assert pairs.are_regular, "BUG: protobuf writes what is not expected of it"
    keys = places.slices(pairs.key_starts, pairs.key_ends)
    return keys, decoded_values(pairs.values, pairs.have_value)


class _AttributePlaces:
    """Attributes: where their keys and their values are."""

    def __init__(self, places: Messages) -> None:
        starts, ends = places.starts, places.ends
        if self._are_short(places):
            return
        have_key = (places.bytes_at(starts) == _KEY) & (starts < ends)
        lengths, sizes = places.numbers_at(starts + 1)
        # An empty key is not written.
        self.key_starts = np.where(have_key, starts + 1 + sizes, starts)
        self.key_ends = np.where(have_key, self.key_starts + lengths, starts)
        regular = ~have_key | ((sizes > 0) & (lengths >= 0) & (lengths <= ends - self.key_starts))
        if not regular.all():
            self.are_regular = False
            return
        self.have_value = self.key_ends < ends
        tags = places.bytes_at(self.key_ends)
        lengths, sizes = places.numbers_at(self.key_ends + 1)
        value_starts = np.where(self.have_value, self.key_ends + 1 + sizes, ends)
        regular = ~self.have_value | (
            (tags == _VALUE_FIELD) & (sizes > 0) & (lengths >= 0) & (value_starts + lengths == ends)
        )
        self.are_regular = bool(regular.all())
        self.values = Messages(places.content, value_starts, ends)

    def _are_short(self, places: Messages) -> bool:
        """Find keys and values where each message has both, and neither has 128 bytes."""
        starts, ends = places.starts, places.ends
        lengths = places.bytes_at(starts + 1)
        self.key_starts = starts + 2
        self.key_ends = self.key_starts + lengths
        value_lengths = places.bytes_at(self.key_ends + 1)
        value_starts = self.key_ends + 2
        if (
            _have_any(places.bytes_at(starts) != _KEY)
            or _have_any(lengths >= CONTINUED)
            or _have_any(places.bytes_at(self.key_ends) != _VALUE_FIELD)
            or _have_any(value_lengths >= CONTINUED)
            or _have_any(value_starts + value_lengths != ends)
        ):
            return False
        self.are_regular = True
        self.have_value = np.ones(len(starts), bool)
        self.values = Messages(places.content, value_starts, ends)
        return True


def _have_any(flags: NumpyArray) -> bool:
    # The quickest of all ways to ask.
    return bool(np.count_nonzero(flags))


def _settled(places: Messages, message: Any) -> Messages:
    """Return messages as protobuf would write what it reads."""
    settled = []
    for body in places.each():
        try:
            read = message.FromString(body)
        except DecodeError as error:
            raise NotOtlp("an attribute is not a valid protobuf message") from error
        read.DiscardUnknownFields()
        # Indices into a table that only profiles have: to others there is nothing.
        if message is AnyValue:
            read.ClearField("string_value_strindex")
        else:
            read.ClearField("key_strindex")
            if read.HasField("value"):
                read.value.ClearField("string_value_strindex")
        settled.append(read.SerializeToString())
    ends = np.cumsum([0, *map(len, settled)], dtype=np.int32)
    return Messages(np.frombuffer(b"".join(settled), np.uint8), ends[:-1], ends[1:])


# ----------------------------------------------------------------------------- values


def decoded_values(places: Messages, are_there: NumpyArray) -> pa.Array:
    """Return messages `AnyValue`, null where they are not there; raises `NotOtlp`."""
    values = _ValuePlaces(places)
    if not values.are_regular:
        values = _ValuePlaces(_settled(places, AnyValue))
        assert values.are_regular, "BUG: protobuf writes what is not expected of it"
    rows = len(are_there)
    return pa.Array.from_buffers(VALUE, rows, [bitmap(are_there)], children=values.members())


class _ValuePlaces:
    """Values: of which type they are, and where their content is."""

    def __init__(self, places: Messages) -> None:
        self._places = places
        starts, ends = places.starts, places.ends
        tags, lengths = places.bytes_at(starts), places.bytes_at(starts + 1)
        if not (
            _have_any(tags != _TEXT)
            or _have_any(lengths >= CONTINUED)
            or _have_any(starts + 2 + lengths != ends)
        ):
            # Short texts, as most are.
            self._tags, self._numbers, self._firsts = tags, lengths, starts + 2
            self.are_regular = True
            return
        self._tags = np.where(starts < ends, tags, np.uint8(0))
        # Lengths of those that have one, integers as they are, and what means nothing.
        self._numbers, sizes = places.numbers_at(starts + 1)
        self._firsts = starts + 1 + sizes
        with_length = _WITH_LENGTH[self._tags]
        regular = with_length & (self._firsts + self._numbers == ends)
        regular &= (self._numbers >= 0) & (sizes > 0)
        if not regular.all():
            ends_there = (self._firsts == ends) & (sizes > 0)
            regular |= (self._tags == _INT) & ends_there
            regular |= (self._tags == _BOOL) & ends_there & (self._numbers < 2)  # noqa: PLR2004
            regular |= (self._tags == _DOUBLE) & (ends - starts == 1 + _DOUBLE_BYTES)
            regular |= starts == ends
        self.are_regular = bool(regular.all())

    def members(self) -> list[pa.Array]:
        """Return the columns of `VALUE`."""
        contents = self._contents(_TEXT)
        is_none = contents.null_count == len(contents)
        return [
            pa.nulls(len(contents), pa.string()) if is_none else as_text(contents),
            self._bools(),
            self._ints(),
            self._doubles(),
            self._contents(_BYTES),
            self._json(),
        ]

    def _contents(self, tag: int) -> pa.Array:
        flags = self._tags == tag
        if not flags.any():
            return pa.nulls(len(flags), pa.binary())
        ends = self._places.ends
        if flags.all():
            return self._places.slices(self._firsts, ends)
        return self._places.slices(np.where(flags, self._firsts, ends), ends, flags)

    def _bools(self) -> pa.Array:
        flags = self._tags == _BOOL
        if not flags.any():
            return pa.nulls(len(flags), pa.bool_())
        bits = pa.py_buffer(np.packbits(self._numbers == 1, bitorder="little"))
        return pa.Array.from_buffers(pa.bool_(), len(flags), [bitmap(flags), bits])

    def _ints(self) -> pa.Array:
        flags = self._tags == _INT
        if not flags.any():
            return pa.nulls(len(flags), pa.int64())
        buffers = [bitmap(flags), pa.py_buffer(self._numbers.astype(np.int64))]
        return pa.Array.from_buffers(pa.int64(), len(flags), buffers)

    def _doubles(self) -> pa.Array:
        flags = self._tags == _DOUBLE
        rows = np.flatnonzero(flags)
        if not len(rows):
            return pa.nulls(len(flags), pa.float64())
        places = self._places.starts[rows][:, None] + np.arange(1, 1 + _DOUBLE_BYTES)
        found = np.zeros(len(flags), np.float64)
        found[rows] = self._places.content[places].view(np.float64)[:, 0]
        return pa.Array.from_buffers(pa.float64(), len(flags), [bitmap(flags), pa.py_buffer(found)])

    def _json(self) -> pa.Array:
        flags = (self._tags == _ARRAY) | (self._tags == _KVLIST)
        rows = np.flatnonzero(flags)
        if not len(rows):
            return pa.nulls(len(flags), pa.string())
        found: list[str | None] = [None] * len(flags)
        # The same list stands in many rows, often.
        known: dict[tuple[int, bytes], str] = {}
        for row in rows.tolist():
            tag = int(self._tags[row])
            body = self._places.content[self._firsts[row] : self._places.ends[row]].tobytes()
            text = known.get((tag, body))
            if text is None:
                text_of = text_of_array if tag == _ARRAY else text_of_kvlist
                text = known[tag, body] = text_of(body)
            found[row] = text
        return texts(found)


# ------------------------------------------------------------------------------- back

_KEY_VALUE, _ANY_VALUE = KeyValue.DESCRIPTOR.full_name, AnyValue.DESCRIPTOR.full_name
_PLAIN_MEMBERS = ("string_value", "bool_value", "int_value", "double_value", "bytes_value")


def encoded_pairs(keys: pa.Array, values: pa.Array, by: Converter) -> pa.Array:
    """Return keys and values as messages `KeyValue`; raises `BadInput`."""
    kind = type_of(descriptor_of(_KEY_VALUE))
    members = {"key": keys, "value": _any_values(values)}
    children = [
        members[field.name] if field.name in members else pa.nulls(len(keys), field.type)
        for field in kind
    ]
    rows = pa.Array.from_buffers(kind, len(keys), [None], children=children)
    return _binaries(write(_KEY_VALUE, rows, by))


def encoded_values(column: pa.Array, by: Converter) -> pa.Array:
    """Return values as lists of one message each, or of none; raises `BadInput`."""
    flags = [one.is_valid for one in column]
    bodies = write(_ANY_VALUE, _any_values(column).filter(column.is_valid()), by)
    return _lists(np.array(flags, np.int32), bodies)


def _any_values(column: pa.Array) -> pa.Array:
    kind = type_of(descriptor_of(_ANY_VALUE))
    members = {name: column.field(name) for name in _PLAIN_MEMBERS}
    members |= _json_members(column.field("json_value"))
    children = [
        members[field.name] if field.name in members else pa.nulls(len(column), field.type)
        for field in kind
    ]
    buffers = column.buffers()[:1]
    return pa.Array.from_buffers(kind, len(column), buffers, children=children)


def _json_members(column: pa.Array) -> dict[str, pa.Array]:
    if column.null_count == len(column):
        return {}
    written: dict[str, list[bytes]] = {"array_value": [], "kvlist_value": []}
    counts = {name: np.zeros(len(column), np.int32) for name in written}
    for row, text in enumerate(column.to_pylist()):
        if text is not None:
            message = message_of(text)
            name = "array_value" if message.DESCRIPTOR.name == "ArrayValue" else "kvlist_value"
            written[name].append(message.SerializeToString())
            counts[name][row] = 1
    return {name: _lists(counts[name], bodies) for name, bodies in written.items()}


def _lists(counts: NumpyArray, bodies: Sequence[bytes]) -> pa.Array:
    """Return bytes in lists of so many each."""
    places = np.concatenate([np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)])
    buffers = [None, pa.py_buffer(places)]
    kind = pa.list_(pa.binary())
    return pa.Array.from_buffers(kind, len(counts), buffers, children=[_binaries(bodies)])


def _binaries(bodies: Sequence[bytes]) -> pa.Array:
    ends = np.cumsum([0, *map(len, bodies)], dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(bodies))]
    return pa.Array.from_buffers(pa.binary(), len(bodies), buffers)
