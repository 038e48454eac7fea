"""Fields of messages (`wire.py`) as columns of flat tables.

Each column is made at once, from the places at which a field stands. Of what is nested, all inner
messages are one list of messages, whosesoever they are, and become columns in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from holdfast.signals.otlp.flat.columns import distinct_keys, struct_of
from holdfast.signals.otlp.flat.schema import ATTRIBUTES, TIME, VALUE
from holdfast.signals.otlp.flat.values import as_text, decoded_pairs, decoded_values
from holdfast.signals.otlp.flat.wire import (
    CONTINUED,
    NOWHERE,
    FieldPlaces,
    Found,
    Messages,
    NumpyArray,
    bitmap,
    fields_of,
    message_in,
)
from holdfast.signals.otlp.problem import NotOtlp

_WORDS = {
    FieldDescriptor.TYPE_DOUBLE: "<f8",
    FieldDescriptor.TYPE_FIXED64: "<i8",
    FieldDescriptor.TYPE_SFIXED64: "<i8",
    FieldDescriptor.TYPE_FIXED32: "<u4",
}
# Numbers of fewer bits than they may be written with: the upper ones count for nothing.
_NARROW = {
    FieldDescriptor.TYPE_UINT32: np.uint32,
    FieldDescriptor.TYPE_INT32: np.int32,
    FieldDescriptor.TYPE_ENUM: np.int32,
    FieldDescriptor.TYPE_SINT32: np.uint32,
}
_INTEGERS = {32: np.int32, 64: np.int64}
_NS_PER_US = 1000
# A column by name, while a table is put together.
FlatColumns = dict[str, pa.Array]
_DTYPES = {pa.int32(): np.int32, pa.int64(): np.int64, pa.float64(): np.float64, pa.bool_(): bool}


class MessageLevel(NamedTuple):
    """The messages of one level of all requests: resources, scopes, items or metrics."""

    messages: Messages
    descriptor: Descriptor
    # The message of the level above that each one is in.
    owners: NumpyArray
    fields: Found

    def below(self, name: str) -> MessageLevel:
        """Return the messages of a list that each message has."""
        places = self.fields.get(name, NOWHERE).in_order()
        messages = Messages(self.messages.content, places.firsts, places.ends)
        descriptor = message_in(self.descriptor.fields_by_name[name])
        return MessageLevel(messages, descriptor, places.rows, fields_of(messages, descriptor))

    def column(self, name: str, target: pa.DataType) -> pa.Array:
        """Return a field of each message."""
        return column_of(
            self.messages.content,
            self.descriptor.fields_by_name[name],
            self.fields.get(name, NOWHERE),
            rows_having(self.descriptor, name, len(self.messages.starts)),
            target,
        )

    def members(self, name: str, prefix: str, schema: pa.Schema) -> FlatColumns:
        """Return the fields of a message in each message, null where it is not there."""
        descriptor = message_in(self.descriptor.fields_by_name[name])
        places = self.fields.get(name, NOWHERE).in_order()
        rows = len(self.messages.starts)
        content = self.messages.content
        inner = fields_of(Messages(content, places.firsts, places.ends), descriptor)
        there = np.zeros(rows, bool)
        there[places.rows] = True
        return {
            prefix + field.name: column_of(
                content,
                field,
                inner.get(field.name, NOWHERE).inside(places.rows),
                there,
                schema.field(prefix + field.name).type,
            )
            for field in descriptor.fields
        }


def columns_of(
    messages: Messages, descriptor: Descriptor, targets: Iterable[pa.Field]
) -> FlatColumns:
    """Return fields of messages as columns, by name and type.

    Raises `NotOtlp` and `SeveralValues`.
    """
    found = fields_of(messages, descriptor)
    return {
        target.name: column_of(
            messages.content,
            descriptor.fields_by_name[target.name],
            found.get(target.name, NOWHERE),
            rows_having(descriptor, target.name, len(messages.starts)),
            target.type,
        )
        for target in targets
    }


def rows_having(descriptor: Descriptor, name: str, rows: int) -> NumpyArray:
    """Return which of some messages have a field even if it is not written: all of them or none."""
    return np.full(rows, not descriptor.fields_by_name[name].has_presence)


def column_of(
    content: NumpyArray,
    field: FieldDescriptor,
    places: FieldPlaces,
    having: NumpyArray,
    target: pa.DataType,
) -> pa.Array:
    """Return a field as a column.

    Where it is not written it is 0 or empty in the rows that have it anyway, and null in others.
    """
    if not len(places.rows):
        return _unwritten(having, target)
    rows, there = len(having), having.copy()
    there[places.rows] = True
    if pa.types.is_list(target) or pa.types.is_map(target):
        return _list(content, field, places.in_order(), there, target)
    if pa.types.is_struct(target) or pa.types.is_binary(target) or pa.types.is_string(target):
        messages = _in_rows(content, places, rows)
        if target.equals(VALUE):
            return decoded_values(messages, there)
        if pa.types.is_struct(target):
            members = columns_of(messages, message_in(field), target)
            return struct_of(target, rows, members, bitmap(there))
        flags = None if there.all() else there
        found = messages.slices(messages.starts, messages.ends, flags)
        return as_text(found) if pa.types.is_string(target) else found
    values = np.zeros(rows, _DTYPES[target])
    values[places.rows] = _numbers(content, field, places.firsts)
    data = np.packbits(values, bitorder="little") if target == pa.bool_() else values
    return pa.Array.from_buffers(target, rows, [bitmap(there), pa.py_buffer(data)])


def _unwritten(having: NumpyArray, target: pa.DataType) -> pa.Array:
    rows = len(having)
    if not having.any() or pa.types.is_struct(target):
        return pa.nulls(rows, target)
    # As many zeros as the offsets of texts and lists need, or numbers of 64 bits.
    buffers = [bitmap(having), pa.py_buffer(bytes(8 * rows + 4))]
    if pa.types.is_list(target) or pa.types.is_map(target):
        children = [pa.nulls(0, target.field(0).type)]
        return pa.Array.from_buffers(target, rows, buffers, children=children)
    if pa.types.is_string(target) or pa.types.is_binary(target):
        buffers.append(pa.py_buffer(b""))
    return pa.Array.from_buffers(target, rows, buffers)


def _in_rows(content: NumpyArray, places: FieldPlaces, rows: int) -> Messages:
    """Return a message for each row: an empty one for none, the last one of several."""
    starts, ends = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    ends[places.rows] = places.ends
    starts[places.rows] = places.firsts
    if len(places.rows) < rows:
        # Places have to ascend.
        ends = np.maximum.accumulate(ends)
        written = np.zeros(rows, bool)
        written[places.rows] = True
        starts = np.where(written, starts, ends)
    return Messages(content, starts, ends)


def _list(
    content: NumpyArray,
    field: FieldDescriptor,
    places: FieldPlaces,
    there: NumpyArray,
    target: pa.DataType,
) -> pa.Array:
    messages = Messages(content, places.firsts, places.ends)
    counts = np.bincount(places.rows, minlength=len(there))
    inner = target.field(0).type
    if target.equals(ATTRIBUTES):
        keys, values = decoded_pairs(messages)
        keys = distinct_keys(places.rows, len(there), keys)
        items = struct_of(inner, len(keys), {"key": keys, "value": values})
    elif field.message_type is not None:
        items = struct_of(inner, len(places.rows), columns_of(messages, message_in(field), inner))
    elif pa.types.is_string(inner):
        items = as_text(messages.slices(messages.starts, messages.ends))
    else:
        # Written once for all of a row.
        items, sizes = _packed(messages, field, inner)
        counts[places.rows] = sizes
    offsets = np.zeros(len(there) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    buffers = [bitmap(there), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(target, len(there), buffers, children=[items])


def _numbers(content: NumpyArray, field: FieldDescriptor, firsts: NumpyArray) -> NumpyArray:
    messages = Messages(content, firsts, firsts)
    if field.type in _WORDS:
        return messages.words_at(firsts, _WORDS[field.type])
    found, _ = messages.numbers_at(firsts)
    if field.type in _NARROW:
        found = found.astype(_NARROW[field.type])
    if field.type == FieldDescriptor.TYPE_SINT32:
        return (found >> 1).astype(np.int32) ^ -(found & 1).astype(np.int32)
    return found


def _packed(
    messages: Messages, field: FieldDescriptor, target: pa.DataType
) -> tuple[pa.Array, NumpyArray]:
    """Return numbers that stand behind each other, and how many each message has."""
    sizes = messages.ends - messages.starts
    data = messages.slices(messages.starts, messages.ends).buffers()[2]
    written = np.frombuffer(data or b"", np.uint8)[: int(sizes.sum())]
    if field.type in _WORDS:
        width = np.dtype(_WORDS[field.type]).itemsize
        if (sizes % width).any():
            raise NotOtlp("a list of numbers ends within a number")
        return pa.Array.from_buffers(target, len(written) // width, [None, data]), sizes // width
    lasts = written < CONTINUED
    until = np.cumsum(sizes)
    filled = sizes > 0
    if not lasts[until[filled] - 1].all():
        raise NotOtlp("a list of numbers ends within a number")
    behind = np.flatnonzero(lasts) + 1
    firsts = np.concatenate((behind[:1] * 0, behind[:-1]))
    found, lengths = Messages(written, firsts, behind).numbers_at(firsts)
    if not (lengths > 0).all():
        raise NotOtlp("a number is too long")
    seen = np.concatenate(([0], np.cumsum(lasts)))
    numbers = found.astype(_DTYPES[target])
    column = pa.Array.from_buffers(target, len(numbers), [None, pa.py_buffer(numbers)])
    return column, seen[until] - seen[until - sizes]


def integers(values: NumpyArray, kind: pa.DataType, flags: NumpyArray | None = None) -> pa.Array:
    """Return whole numbers, or times as such, as a column; null where a flag is not set."""
    present = None if flags is None else bitmap(flags)
    data = np.ascontiguousarray(values, _INTEGERS[kind.bit_width])
    return pa.Array.from_buffers(kind, len(values), [present, pa.py_buffer(data)])


def integers_in(column: pa.Array) -> NumpyArray:
    """Return what stands in a column of 64 bits, anything where it is null."""
    # From buffers, because `to_numpy` imports pandas where it is installed.
    return np.frombuffer(column.buffers()[1], np.int64, len(column))


def time_of(times_ns: NumpyArray) -> pa.Array:
    """Return times as such; one beyond 2262, which has the sign of one before 1970, is none."""
    return integers(times_ns // _NS_PER_US, TIME, times_ns > 0)
