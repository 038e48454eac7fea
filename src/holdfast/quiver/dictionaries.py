"""Dictionaries of many batches made one, so that they fit into one Arrow file.

An Arrow IPC file holds one dictionary per column, while every bundle comes with its own. They are
unified; where the indices no longer fit, 8 bits become 16, and beyond that the column is decoded to
its plain values (a dictionary of 65,536 different values saves nothing). Inside maps, unions, views
and extension types nothing is widened or decoded: there `unify` raises, and the caller stores the
bundles as they came.
"""

from __future__ import annotations

import pyarrow as pa

_WIDER = {pa.int8(): pa.int16(), pa.uint8(): pa.uint16()}
_CANNOT_UNIFY = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowIndexError)


def unify(table: pa.Table) -> pa.Table:
    """Return the same rows with one dictionary per column; raises what Arrow raises."""
    while any(has_dictionary(field.type) for field in table.schema):
        try:
            return table.unify_dictionaries()
        except _CANNOT_UNIFY:
            relaxed = _relax(table)
            if relaxed.schema == table.schema:
                raise
            table = relaxed
    return table


def has_dictionary(kind: pa.DataType) -> bool:
    """Whether the type is a dictionary, or has one inside."""
    if isinstance(kind, pa.BaseExtensionType):
        return has_dictionary(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return True
    return any(has_dictionary(kind.field(i).type) for i in range(kind.num_fields))


def _relax(table: pa.Table) -> pa.Table:
    """Widen or decode the dictionaries of the columns that cannot be unified as they are."""
    for place, field in enumerate(table.schema):
        if not has_dictionary(field.type):
            continue
        column = table.column(place)
        try:
            column.unify_dictionaries()
        except _CANNOT_UNIFY:
            relaxed = field.with_type(relaxed_type(field.type))
            chunks = [_recode(chunk, relaxed.type) for chunk in column.chunks]
            table = table.set_column(place, relaxed, pa.chunked_array(chunks, relaxed.type))
    return table


def relaxed_type(kind: pa.DataType) -> pa.DataType:
    """Return the type with every dictionary inside it one step wider, or plain."""
    if pa.types.is_dictionary(kind):
        wider = _WIDER.get(kind.index_type)
        if wider is None:
            return kind.value_type
        return pa.dictionary(wider, kind.value_type, kind.ordered)
    if pa.types.is_struct(kind):
        return pa.struct([f.with_type(relaxed_type(f.type)) for f in _fields(kind)])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(relaxed_type(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(relaxed_type(kind.value_type)))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(relaxed_type(kind.value_type)), kind.list_size)
    return kind


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type without any dictionary."""
    while has_dictionary(kind):
        relaxed = relaxed_type(kind)
        if relaxed == kind:
            raise pa.ArrowNotImplementedError(f"cannot take the dictionary out of {kind}")
        kind = relaxed
    return kind


def _fields(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(i) for i in range(kind.num_fields)]


def _recode(chunk: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast a chunk whose dictionaries, at any depth of structs and lists, change to `target`."""
    kind = chunk.type
    if kind == target:
        return chunk
    if pa.types.is_dictionary(kind):
        if pa.types.is_dictionary(target):
            indices = chunk.indices.cast(target.index_type)
            return pa.DictionaryArray.from_arrays(indices, chunk.dictionary, ordered=target.ordered)
        return chunk.dictionary_decode()
    if pa.types.is_struct(kind):
        children = [_recode(chunk.field(i), target.field(i).type) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=_fields(target), mask=chunk.is_null())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        values = _recode(chunk.values, target.value_type)
        return type(chunk).from_arrays(chunk.offsets, values, type=target, mask=chunk.is_null())
    raise pa.ArrowNotImplementedError(f"cannot take the dictionary out of {kind}")
