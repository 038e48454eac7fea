"""Messages of OTLP as Arrow columns that are nested as the messages are, and back.

There are two ways, which give the same columns: ptars, a library that goes from the bytes to the
columns at once, and protobuf's own reader (upb) with a loop in Python, ten times slower. The second
is for machines for which there is no ptars, and to compare with. Everything that is done with the
columns later is done once, whoever made them.

A column cannot contain itself, and a value of OTLP can: a list of values is a value. So the
messages are declared anew, with attributes and values as bytes, which are looked at later
(`values.py`). On the wire they are the same. A value is declared as *repeated* bytes, which keeps
what protobuf would do with one that is there twice: the two are merged, and that is to put their
bytes behind each other.

Both hold the interpreter's lock for as long as a call takes; `pieces.py` keeps calls short.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from importlib.util import find_spec
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from holdfast.signals.otlp.messages import PROTO_FILES, REQUESTS
from holdfast.signals.otlp.problem import NotOtlp

# What is declared as bytes.
_AS_BYTES = {"KeyValue", "AnyValue", "ArrayValue", "KeyValueList"}


class Converter(StrEnum):
    """Who turns messages into columns."""

    PTARS = "ptars"
    UPB = "upb"


@cache
def converter() -> Converter:
    """Return who does it in this installation."""
    return Converter.UPB if find_spec("ptars") is None else Converter.PTARS


def read(message: str, bodies: Sequence[bytes], by: Converter) -> pa.StructArray:
    """Return one row for each body, a message of that (full) name; raises `NotOtlp`.

    The two do not refuse the same, where bytes are not as a writer of protobuf makes them.
    """
    return _READERS[by](message, bodies)


def write(message: str, rows: pa.StructArray, by: Converter) -> list[bytes]:
    """Return the messages of rows that are as `type_of` has them."""
    return _WRITERS[by](message, rows)


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for module in PROTO_FILES:
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        for message in file.message_type:
            for one in (message, *message.nested_type):
                _declare_bytes(one)
        pool.Add(file)
    return pool


def _declare_bytes(message: descriptor_pb2.DescriptorProto) -> None:
    for field in message.field:
        inner = field.type_name.rpartition(".")[2]
        # An attribute by itself has its value as a message: so both can be written.
        if inner in _AS_BYTES and (message.name, inner) != ("KeyValue", "AnyValue"):
            field.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
            field.label = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
            field.ClearField("type_name")
            field.ClearField("oneof_index")


@cache
def descriptor_of(message: str) -> Descriptor:
    """Return what a message is declared as here."""
    return _pool().FindMessageTypeByName(message)


@cache
def _class_of(message: str) -> Any:
    return message_factory.GetMessageClass(descriptor_of(message))


# ---------------------------------------------------------------------------- by ptars


@cache
def _handler(message: str) -> Any:
    from ptars import HandlerPool

    files = [_pool().FindFileByName(full.DESCRIPTOR.file.name) for full in REQUESTS.values()]
    return HandlerPool(files).get_for_message(descriptor_of(message))


def _read_by_ptars(message: str, bodies: Sequence[bytes]) -> pa.StructArray:
    try:
        return _handler(message).list_to_record_batch(list(bodies)).to_struct_array()
    except ValueError as error:
        raise NotOtlp(f"ptars cannot read it: {error}") from None
    except BaseException as error:
        # A length that does not fit the machine's numbers; the class cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        raise NotOtlp("ptars cannot read it: a length is out of range") from None


def _write_by_ptars(message: str, rows: pa.StructArray) -> list[bytes]:
    batch = pa.RecordBatch.from_struct_array(rows)
    written: list[bytes] = _handler(message).record_batch_to_array(batch).to_pylist()
    return written


# ------------------------------------------------------------------------------ by upb


def _read_by_upb(message: str, bodies: Sequence[bytes]) -> pa.StructArray:
    try:
        messages = [_class_of(message).FromString(body) for body in bodies]
    except DecodeError as error:
        raise NotOtlp("this is not a valid protobuf message of the kind") from error
    return _struct(messages, descriptor_of(message))


def _struct(
    messages: Sequence[Any], descriptor: Descriptor, is_there: Sequence[bool] | None = None
) -> pa.StructArray:
    columns = [_column(messages, field) for field in descriptor.fields]
    kind = type_of(descriptor)
    return pa.Array.from_buffers(kind, len(messages), [_bitmap(is_there)], children=columns)


def _column(messages: Sequence[Any], field: FieldDescriptor) -> pa.Array:
    name, inner = field.name, field.message_type
    values = [getattr(message, name) for message in messages]
    if field.is_repeated:
        ends = pa.py_buffer(array("i", accumulate(map(len, values), initial=0)))
        each = [*chain.from_iterable(values)]
        items = _struct(each, inner) if inner is not None else _scalars(each, field)
        return pa.Array.from_buffers(
            pa.list_(items.type), len(values), [None, ends], children=[items]
        )
    # Where a message is not there, an empty one stands in its place, with a null over it.
    is_there = [message.HasField(name) for message in messages] if field.has_presence else None
    if inner is not None:
        return _struct(values, inner, is_there)
    return _scalars(values, field, is_there)


_CODES = {
    FieldDescriptor.CPPTYPE_INT32: ("i", pa.int32()),
    FieldDescriptor.CPPTYPE_ENUM: ("i", pa.int32()),
    FieldDescriptor.CPPTYPE_INT64: ("q", pa.int64()),
    FieldDescriptor.CPPTYPE_UINT32: ("I", pa.uint32()),
    FieldDescriptor.CPPTYPE_UINT64: ("Q", pa.uint64()),
    FieldDescriptor.CPPTYPE_DOUBLE: ("d", pa.float64()),
}


def _scalars(
    values: Sequence[Any], field: FieldDescriptor, is_there: Sequence[bool] | None = None
) -> pa.Array:
    kind, present = _scalar_type(field), _bitmap(is_there)
    if field.cpp_type in _CODES:
        data = pa.py_buffer(array(_CODES[field.cpp_type][0], values))
        return pa.Array.from_buffers(kind, len(values), [present, data])
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return pa.Array.from_buffers(kind, len(values), [present, _bitmap(values)])
    encoded = values if kind == pa.binary() else [value.encode() for value in values]
    ends = pa.py_buffer(array("i", accumulate(map(len, encoded), initial=0)))
    return pa.Array.from_buffers(
        kind, len(values), [present, ends, pa.py_buffer(b"".join(encoded))]
    )


def _bitmap(flags: Sequence[bool] | None) -> pa.Buffer | None:
    if flags is None:
        return None
    bits = bytearray(-(-len(flags) // 8))
    for place, flag in enumerate(flags):
        bits[place >> 3] |= flag << (place & 7)
    return pa.py_buffer(bytes(bits))


@cache
def type_of(descriptor: Descriptor) -> pa.StructType:
    """Return what rows of a message are."""
    return pa.struct([(field.name, _field_type(field)) for field in descriptor.fields])


def _field_type(field: FieldDescriptor) -> pa.DataType:
    inner = field.message_type
    kind = _scalar_type(field) if inner is None else type_of(inner)
    return pa.list_(kind) if field.is_repeated else kind


def _scalar_type(field: FieldDescriptor) -> pa.DataType:
    if field.cpp_type in _CODES:
        return _CODES[field.cpp_type][1]
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return pa.bool_()
    return pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else pa.string()


def _write_by_upb(message: str, rows: pa.StructArray) -> list[bytes]:
    written = []
    for row in rows.to_pylist():
        made = _class_of(message)()
        _fill(made, row)
        written.append(made.SerializeToString())
    return written


def _fill(message: Any, row: Mapping[str, Any]) -> None:
    for name, value in row.items():
        if value is None:
            continue
        if isinstance(value, dict):
            inner = getattr(message, name)
            # One that is there and empty is not the same as none.
            inner.SetInParent()
            _fill(inner, value)
        elif isinstance(value, list):
            target = getattr(message, name)
            if value and isinstance(value[0], dict):
                for one in value:
                    _fill(target.add(), one)
            else:
                target.extend(value)
        else:
            setattr(message, name, value)


_READERS: Mapping[Converter, Callable[[str, Sequence[bytes]], pa.StructArray]] = {
    Converter.PTARS: _read_by_ptars,
    Converter.UPB: _read_by_upb,
}
_WRITERS: Mapping[Converter, Callable[[str, pa.StructArray], list[bytes]]] = {
    Converter.PTARS: _write_by_ptars,
    Converter.UPB: _write_by_upb,
}
