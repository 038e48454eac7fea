"""Attributes: rows of a table in OTAP, lists of keys and values in OTLP; both are columns here.

The columns of OTLP are those of `otlp/flat/nested.py`: lists of attributes that are bytes still.
Read together, all attributes are one column of structs, whose value has a member for each type, of
which one is not null. So a table is those members beside each other, with a number that says which
one it is, and a parent in place of the list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from holdfast.signals.otap.cbor import cbor_of_list, cbor_of_map, message_of
from holdfast.signals.otap.dictionaries import index_dtype
from holdfast.signals.otap.numpy_columns import (
    Flags,
    Numbers,
    column_of,
    numbers_of,
    packed,
    present,
)
from holdfast.signals.otap.payloads import FORMS, PayloadType, TableForm, ValueType
from holdfast.signals.otap.problem import NotOtap
from holdfast.signals.otlp.flat.columns import check_single, struct_of
from holdfast.signals.otlp.flat.nested import Converter, descriptor_of, read, type_of, write
from holdfast.signals.otlp.flat.pieces import CALL_BYTES_MAX
from holdfast.signals.otlp.problem import NotOtlp

KEY_VALUE = "opentelemetry.proto.common.v1.KeyValue"
ANY_VALUE = "opentelemetry.proto.common.v1.AnyValue"
# Column of a table: the member of a value, and what says that it is there.
_MEMBERS: Mapping[str, tuple[str, ValueType]] = {
    "str": ("string_value", ValueType.STR),
    "int": ("int_value", ValueType.INT),
    "double": ("double_value", ValueType.DOUBLE),
    "bool": ("bool_value", ValueType.BOOL),
    "bytes": ("bytes_value", ValueType.BYTES),
}
_LISTS = {"array_value": ValueType.SLICE, "kvlist_value": ValueType.MAP}
# Indices of 8 bits are for columns with few values; beyond 16 bits a dictionary saves nothing.
_INDEX_TYPES = (pa.uint8(), pa.uint16())


def in_dictionary(column: pa.Array, smallest: pa.DataType = _INDEX_TYPES[0]) -> pa.Array:
    """Return a column in a dictionary, if it has few enough values for that."""
    encoded = column.dictionary_encode()
    for index in _INDEX_TYPES:
        fits = len(encoded.dictionary) - 1 <= np.iinfo(index_dtype(index)).max
        if fits and index.bit_width >= smallest.bit_width:
            indices = numbers_of(encoded.indices, "<i4").astype(index_dtype(index))
            written = column_of(indices, index, present(encoded.indices))
            return pa.DictionaryArray.from_arrays(written, encoded.dictionary)
    return column


def without_dictionary(column: pa.Array) -> pa.Array:
    """Return a column with its values in their places."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def check_values(table: PayloadType, batch: pa.RecordBatch) -> None:
    """Raise `NotOtap` if a value has a type that there is not, or is a list or map that is none."""
    if FORMS[table] is TableForm.ATTRIBUTES:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    elif table is PayloadType.LOGS and batch.schema.get_field_index("body") >= 0:
        body = batch.column("body")
        columns = dict(zip([field.name for field in body.type], body.flatten(), strict=True))
    else:
        return
    if "type" not in columns:
        raise NotOtap(f"values of {table.name} have no column 'type'")
    types, there = numbers_of(columns["type"], "u1"), present(columns["type"])
    types = types if there is None else np.where(there, types, ValueType.EMPTY)
    if int(types.max(initial=0)) > max(ValueType):
        raise NotOtap(f"a value of {table.name} has type {types.max()}, which there is not")
    if "ser" in columns:
        for kind in _LISTS.values():
            if (types == kind).any():
                _messages(columns["ser"], types == kind, kind, pa.list_(pa.binary()))


# -------------------------------------------------------------------------- to OTAP


def value_columns(values: pa.StructArray) -> dict[str, pa.Array]:
    """Return the columns of a table for values of OTLP: `type`, and those that hold any.

    Raises `SeveralValues` if something is two values at once, as protobuf's bytes can be.
    """
    types = np.zeros(len(values), "u1")
    columns: dict[str, pa.Array] = {}
    members = dict(zip([field.name for field in values.type], values.flatten(), strict=True))
    lists = {name: _joined_lists(members[name]) for name in _LISTS}
    # Which is set, is told by what is not null.
    check_single(
        [
            *(members[name] for name, _ in _MEMBERS.values()),
            *lists.values(),
            members["string_value_strindex"],
        ]
    )
    for column, (member, kind) in _MEMBERS.items():
        if members[member].null_count < len(values):
            flags = present(members[member])
            types[slice(None) if flags is None else flags] = kind
            columns[column] = members[member]
    for member, kind in _LISTS.items():
        if lists[member].null_count < len(values):
            flags = present(lists[member])
            types[slice(None) if flags is None else flags] = kind
    if (types == ValueType.MAP).any() or (types == ValueType.SLICE).any():
        columns["ser"] = _serialised(lists)
    return {"type": column_of(types, pa.uint8()), **columns}


def _joined_lists(column: pa.Array) -> pa.Array:
    """Return lists of bytes, each as one: written twice, a message is what both are together."""
    lengths = np.diff(numbers_of(column.offsets, "<i4"))
    flags = lengths > 0
    there = present(column)
    if there is not None:
        flags &= there
    if not flags.any():
        return pa.nulls(len(column), pa.binary())
    values = column.values.to_pylist()
    ends = numbers_of(column.offsets, "<i4").tolist()
    joined = [
        b"".join(values[ends[row] : ends[row + 1]]) if flag else None
        for row, flag in enumerate(flags.tolist())
    ]
    return binary_column(joined)


def _serialised(lists: Mapping[str, pa.Array]) -> pa.Array:
    arrays, maps = (lists[name].to_pylist() for name in _LISTS)
    try:
        return binary_column(
            [
                cbor_of_list(array)
                if array is not None
                else None
                if one is None
                else cbor_of_map(one)
                for array, one in zip(arrays, maps, strict=True)
            ]
        )
    except DecodeError as error:
        raise NotOtlp("a value is not a valid protobuf message") from error


def binary_column(values: Sequence[bytes | None]) -> pa.Array:
    """Return bytes as a column."""
    ends = np.cumsum([0, *(len(value or b"") for value in values)], dtype="<i4")
    flags = np.array([value is not None for value in values], np.bool_)
    data = pa.py_buffer(b"".join(value for value in values if value is not None))
    buffers = [None if flags.all() else packed(flags), pa.py_buffer(ends), data]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def read_bodies(message: str, bodies: Sequence[bytes], by: Converter) -> pa.StructArray:
    """Return the messages that are bytes in nested columns, read in calls of bounded size."""
    parts: list[pa.StructArray] = []
    call: list[bytes] = []
    call_bytes = 0
    for body in bodies:
        if call and call_bytes + len(body) > CALL_BYTES_MAX:
            parts.append(read(message, call, by))
            call, call_bytes = [], 0
        call.append(body)
        call_bytes += len(body)
    parts.append(read(message, call, by))
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def body_columns(column: pa.Array, by: Converter) -> tuple[dict[str, pa.Array], pa.Array]:
    """Return the columns of a table for bodies of log records, and which of them are null."""
    joined = _joined_lists(column)
    values = read_bodies(ANY_VALUE, [body or b"" for body in joined.to_pylist()], by)
    return value_columns(values), joined.is_null()


def attribute_table(
    lists: pa.Array, parents: Numbers, id_type: pa.DataType, by: Converter
) -> pa.RecordBatch | None:
    """Return the attributes of rows with these ids as a table; None if there are none.

    The first attributes of all parents come first, then all second ones, and so on. Items of one
    library have their attributes in one order, so what stands below each other has one key, one
    type and values of one kind, which compresses well; those of each parent stay in their order.
    Sorted by key and value, as others do it, parents would be scattered, and need more than is
    saved.
    """
    if not len(lists.values):
        return None
    offsets = numbers_of(lists.offsets, "<i4")
    lengths = np.diff(offsets)
    # The place of each attribute in its own list.
    within = np.arange(len(lists.values)) - np.repeat(offsets[:-1] - offsets[0], lengths)
    order = np.argsort(within, kind="stable")
    bodies = lists.values.take(column_of(order.astype("<i8"), pa.int64()))
    pairs = read_bodies(KEY_VALUE, bodies.to_pylist(), by)
    owners = np.repeat(parents, lengths)[order]
    columns = {
        "parent_id": column_of(owners.astype(index_dtype(id_type)), id_type),
        "key": in_dictionary(pairs.field("key")),
        **value_columns(pairs.field("value")),
    }
    if "str" in columns:
        columns["str"] = in_dictionary(columns["str"], pa.uint16())
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


# -------------------------------------------------------------------------- to OTLP


def pairs_of(batch: pa.RecordBatch, by: Converter) -> pa.Array:
    """Return the rows of a table of attributes as messages `KeyValue`, which are bytes."""
    if not batch.num_rows:
        return pa.nulls(0, pa.binary())
    kind = type_of(descriptor_of(KEY_VALUE))
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    members = {
        "key": without_dictionary(columns["key"]),
        "value": values_of(columns, kind.field("value").type),
    }
    return binary_column(write(KEY_VALUE, struct_of(kind, batch.num_rows, members), by))


def bodies_of(column: pa.Array, target: pa.DataType, by: Converter) -> pa.Array:
    """Return bodies of log records as messages `AnyValue`, each a list of one or of none."""
    columns = dict(zip([field.name for field in column.type], column.flatten(), strict=True))
    written = write(ANY_VALUE, values_of(columns, type_of(descriptor_of(ANY_VALUE))), by)
    there = present(column)
    flags = np.ones(len(column), np.bool_) if there is None else there
    ends = np.concatenate(([0], np.cumsum(flags))).astype("<i4")
    bodies = binary_column([body for body, flag in zip(written, flags, strict=True) if flag])
    return pa.Array.from_buffers(target, len(column), [None, pa.py_buffer(ends)], children=[bodies])


def values_of(columns: Mapping[str, pa.Array], target: pa.StructType) -> pa.StructArray:
    """Return the columns of a table as values of OTLP, empty where their column is missing."""
    types = numbers_of(columns["type"], "u1")
    members: dict[str, pa.Array] = {}
    for column, (member, kind) in _MEMBERS.items():
        flags = types == kind
        if column in columns and flags.any():
            members[member] = _only(columns[column], flags)
    if "ser" in columns:
        for member, kind in _LISTS.items():
            flags = types == kind
            if flags.any():
                members[member] = _messages(columns["ser"], flags, kind, target.field(member).type)
    return struct_of(target, len(types), members)


def _only(column: pa.Array, flags: Flags) -> pa.Array:
    """Return a column that is null but for some rows, and there in all of these."""
    plain = without_dictionary(column)
    if plain.null_count:
        plain = plain.fill_null(_nothing(plain.type))
    if plain.offset:
        # A copy that begins at its first row.
        plain = pa.concat_arrays([plain])
    return pa.Array.from_buffers(plain.type, len(plain), [packed(flags), *plain.buffers()[1:]])


def _nothing(kind: pa.DataType) -> pa.Scalar:
    """Return an empty text or bytes, or a zero."""
    zeros = pa.py_buffer(bytes(8))
    has_offsets = pa.types.is_string(kind) or pa.types.is_binary(kind)
    buffers = [None, zeros, pa.py_buffer(b"")] if has_offsets else [None, zeros]
    return pa.Array.from_buffers(kind, 1, buffers)[0]


def _messages(column: pa.Array, flags: Flags, kind: ValueType, target: pa.DataType) -> pa.Array:
    """Return CBOR as messages of protobuf, each a list of one; no list where there is none."""
    serialised = without_dictionary(column)
    there = present(serialised)
    if there is not None:
        flags = flags & there
    chosen = serialised.take(column_of(np.flatnonzero(flags).astype("<i8"), pa.int64()))
    encoded = chosen.dictionary_encode()
    known = [message_of(value, kind) for value in encoded.dictionary.to_pylist()]
    values = binary_column(known).take(encoded.indices)
    ends = np.concatenate(([0], np.cumsum(flags))).astype("<i4")
    return pa.Array.from_buffers(target, len(flags), [None, pa.py_buffer(ends)], children=[values])
