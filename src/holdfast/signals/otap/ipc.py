"""What the messages of an Arrow IPC stream say of themselves, read before they are unpacked.

pyarrow reads a stream whole: it unpacks what it is given and keeps the dictionaries to itself. A
record of 2.4 kB may be 64 MB that way, and a dictionary that grows has no end. So messages are
taken one by one here. Their headers (flatbuffers, which pyarrow has verified when it returns a
message) say how large each buffer will be; then pyarrow unpacks a message, or does not.

In the body of a record batch a dictionary column is only its indices. Batches are read as such, and
a dictionary's batch is read as a record batch of one column, which it is but for its header. So
the dictionaries of a stream are plain arrays in our hands: they can be measured, and a batch that
cannot be read takes nothing else with it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

import pyarrow as pa

from holdfast.signals.otap.problem import NotOtap

_I16, _I32, _U16, _U32, _I64 = (struct.Struct(f"<{code}") for code in "hiHIq")
# A buffer: where it begins, and its length. A node: how many values a column has, and nulls.
_BUFFER = _NODE = struct.Struct("<qq")
_CONTINUATION = b"\xff\xff\xff\xff"
_ALIGNMENT_BYTES = 8
# Stands where the unpacked length would be, if a buffer was left as it is.
_NOT_COMPRESSED = -1
# Fields of flatbuffer tables, by their place in Arrow's declaration of them.
_MESSAGE_HEADER_TYPE, _MESSAGE_HEADER = 1, 2
_SCHEMA_ENDIANNESS, _SCHEMA_FIELDS = 0, 1
_FIELD_DICTIONARY, _FIELD_CHILDREN = 4, 5
_ENCODING_ID = 0
_DICTIONARY_ID, _DICTIONARY_DATA, _DICTIONARY_IS_DELTA = 0, 1, 2
_BATCH_LENGTH, _BATCH_NODES, _BATCH_BUFFERS, _BATCH_COMPRESSION = 0, 1, 2, 3


class IpcKind(IntEnum):
    """What a message is, as its header says."""

    SCHEMA = 1
    DICTIONARY = 2
    RECORD_BATCH = 3


class IpcMessage(NamedTuple):
    """A message that was not unpacked yet."""

    kind: IpcKind
    message: pa.ipc.Message
    # What its buffers have once they are unpacked; of a schema, the bytes of the message.
    unpacked_bytes: int
    rows: int = 0
    # Of the column that has most of them, with those in lists.
    values: int = 0
    dictionary_id: int = 0
    is_delta: bool = False


class _FlatTable:
    """A table of a flatbuffer that was verified."""

    def __init__(self, data: memoryview | bytearray, at: int) -> None:
        self._data = data
        self.at = at
        self._fields_at = at - _I32.unpack_from(data, at)[0]
        self._fields_bytes: int = _U16.unpack_from(data, self._fields_at)[0]

    def place(self, index: int) -> int | None:
        """Return where a field begins; None if it has its default."""
        entry = 4 + 2 * index
        if entry >= self._fields_bytes:
            return None
        offset: int = _U16.unpack_from(self._data, self._fields_at + entry)[0]
        return self.at + offset if offset else None

    def number(self, index: int, form: struct.Struct) -> int:
        """Return a number; 0 if it is not there."""
        place = self.place(index)
        return 0 if place is None else int(form.unpack_from(self._data, place)[0])

    def byte(self, index: int) -> int:
        """Return a byte or a flag; 0 if it is not there."""
        place = self.place(index)
        return 0 if place is None else self._data[place]

    def table(self, index: int) -> _FlatTable | None:
        """Return a table that is a field of this one."""
        place = self.place(index)
        if place is None:
            return None
        return _FlatTable(self._data, place + _U32.unpack_from(self._data, place)[0])

    def vector(self, index: int) -> tuple[int, int]:
        """Return where the elements of a list begin, and how many there are."""
        place = self.place(index)
        if place is None:
            return 0, 0
        start = place + _U32.unpack_from(self._data, place)[0]
        return start + _U32.size, _U32.unpack_from(self._data, start)[0]

    def tables(self, index: int) -> list[_FlatTable]:
        """Return the tables of a list."""
        start, count = self.vector(index)
        places = range(start, start + _U32.size * count, _U32.size)
        return [
            _FlatTable(self._data, place + _U32.unpack_from(self._data, place)[0])
            for place in places
        ]


def _root(data: memoryview | bytearray) -> _FlatTable:
    return _FlatTable(data, _U32.unpack_from(data, 0)[0])


def read_messages(record: bytes) -> Iterator[IpcMessage]:
    """Yield the messages of a record, none of them unpacked; raises what Arrow raises."""
    source = pa.BufferReader(record)
    while source.tell() < len(record):
        try:
            message = pa.ipc.read_message(source)
        except EOFError:
            if source.tell() < len(record):
                raise NotOtap("there are bytes behind the end of the stream") from None
            return
        yield _described(message)


def _described(message: pa.ipc.Message) -> IpcMessage:
    metadata, body = memoryview(message.metadata), memoryview(message.body or b"")
    root = _root(metadata)
    header = root.table(_MESSAGE_HEADER)
    try:
        kind = IpcKind(root.byte(_MESSAGE_HEADER_TYPE))
    except ValueError:
        raise NotOtap("a message is neither a schema, nor a dictionary, nor rows") from None
    if header is None:
        raise NotOtap("a message has no header")
    if kind is IpcKind.SCHEMA:
        return IpcMessage(kind, message, len(metadata))
    if kind is IpcKind.RECORD_BATCH:
        rows = header.number(_BATCH_LENGTH, _I64)
        unpacked_bytes = _unpacked_bytes(header, metadata, body)
        return IpcMessage(kind, message, unpacked_bytes, rows, _most_values(header, metadata))
    data = header.table(_DICTIONARY_DATA)
    if data is None:
        raise NotOtap("a dictionary has no values")
    return IpcMessage(
        kind,
        message,
        _unpacked_bytes(data, metadata, body),
        data.number(_BATCH_LENGTH, _I64),
        _most_values(data, metadata),
        header.number(_DICTIONARY_ID, _I64),
        bool(header.byte(_DICTIONARY_IS_DELTA)),
    )


def _most_values(batch: _FlatTable, metadata: memoryview) -> int:
    """Return how many values the longest column of a batch has: in a list, a row has any number."""
    start, count = batch.vector(_BATCH_NODES)
    places = range(start, start + count * _NODE.size, _NODE.size)
    return max((abs(_NODE.unpack_from(metadata, place)[0]) for place in places), default=0)


def _unpacked_bytes(batch: _FlatTable, metadata: memoryview, body: memoryview) -> int:
    """Return what the buffers of a batch have in memory, as they say themselves."""
    start, count = batch.vector(_BATCH_BUFFERS)
    is_compressed = batch.table(_BATCH_COMPRESSION) is not None
    total = 0
    for place in range(start, start + count * _BUFFER.size, _BUFFER.size):
        offset, length = _BUFFER.unpack_from(metadata, place)
        if offset < 0 or length < 0 or offset + length > len(body):
            raise NotOtap("a buffer is outside its message")
        if is_compressed and length:
            if length < _I64.size:
                raise NotOtap("a compressed buffer has no length")
            (unpacked,) = _I64.unpack_from(body, offset)
            if unpacked < _NOT_COMPRESSED:
                raise NotOtap("a compressed buffer has a length below zero")
            length = length - _I64.size if unpacked == _NOT_COMPRESSED else unpacked
        total += length
    return total


# ------------------------------------------------------------------------- schemas


class DictionaryField(NamedTuple):
    """A column, or a field of a struct, that is written as indices into a dictionary."""

    dictionary_id: int
    kind: pa.DictionaryType


class SchemaLayout(NamedTuple):
    """A schema, and what of it is written as indices."""

    schema: pa.Schema
    # The same with indices in the place of dictionaries: what the body of a batch has.
    stored: pa.Schema
    # By the way to them: the place of the column, then those of the fields within.
    dictionaries: Mapping[tuple[int, ...], DictionaryField]


def read_layout(message: pa.ipc.Message) -> SchemaLayout:
    """Return what a schema's message says; raises what Arrow raises."""
    schema = pa.ipc.read_schema(message)
    header = _root(memoryview(message.metadata)).table(_MESSAGE_HEADER)
    assert header is not None, "BUG: the message was described before"
    if header.number(_SCHEMA_ENDIANNESS, _I16):
        raise NotOtap("its numbers are big-endian")
    dictionaries: dict[tuple[int, ...], DictionaryField] = {}
    fields = list(schema)
    for place, (field, table) in enumerate(zip(fields, header.tables(_SCHEMA_FIELDS), strict=True)):
        _find_dictionaries(field.type, table, (place,), dictionaries)
    by_id: dict[int, pa.DataType] = {}
    for number, kind in dictionaries.values():
        if by_id.setdefault(number, kind.value_type) != kind.value_type:
            raise NotOtap("two columns of different types share a dictionary")
    stored = pa.schema([field.with_type(_stored_type(field.type)) for field in fields])
    return SchemaLayout(schema, stored, dictionaries)


def _find_dictionaries(
    kind: pa.DataType,
    table: _FlatTable,
    path: tuple[int, ...],
    found: dict[tuple[int, ...], DictionaryField],
) -> None:
    if pa.types.is_dictionary(kind):
        encoding = table.table(_FIELD_DICTIONARY)
        number = 0 if encoding is None else encoding.number(_ENCODING_ID, _I64)
        found[path] = DictionaryField(number, kind)
    elif pa.types.is_struct(kind):
        for place, child in enumerate(table.tables(_FIELD_CHILDREN)):
            _find_dictionaries(kind.field(place).type, child, (*path, place), found)


def _stored_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return kind.index_type
    if pa.types.is_struct(kind):
        children = [kind.field(place) for place in range(kind.num_fields)]
        return pa.struct([child.with_type(_stored_type(child.type)) for child in children])
    return kind


# ------------------------------------------------------------------------ unpacking


def unpack_rows(message: pa.ipc.Message, layout: SchemaLayout) -> pa.RecordBatch:
    """Return a record batch with indices in the place of dictionaries; raises what Arrow raises."""
    batch = pa.ipc.read_record_batch(message, layout.stored)
    batch.validate(full=True)
    return batch


def unpack_dictionary(message: pa.ipc.Message, kind: pa.DataType) -> pa.Array:
    """Return the values that a dictionary's message brings; raises what Arrow raises."""
    metadata = bytearray(message.metadata)
    root = _root(metadata)
    dictionary = root.table(_MESSAGE_HEADER)
    data = None if dictionary is None else dictionary.table(_DICTIONARY_DATA)
    header_place, type_place = root.place(_MESSAGE_HEADER), root.place(_MESSAGE_HEADER_TYPE)
    assert data is not None, "BUG: the message was described before"
    assert header_place is not None, "BUG: as above"
    assert type_place is not None, "BUG: as above"
    if data.at < header_place:
        raise NotOtap("a dictionary's values stand before its header")
    # Now its header is that of the record batch inside the dictionary.
    metadata[type_place] = IpcKind.RECORD_BATCH
    _U32.pack_into(metadata, header_place, data.at - header_place)
    metadata += bytes(-len(metadata) % _ALIGNMENT_BYTES)
    head = _CONTINUATION + _I32.pack(len(metadata))
    whole = pa.py_buffer(b"".join((head, metadata, memoryview(message.body or b""))))
    batch = pa.ipc.read_record_batch(whole, pa.schema([pa.field("values", kind)]))
    batch.validate(full=True)
    return batch.column(0)
