"""Dictionaries of many batches made one, so that they fit into one Arrow file.

An Arrow IPC file holds one dictionary per column, while every bundle comes with its own. They are
unified; where the indices no longer fit, 8 bits become 16, and beyond that the column is decoded to
its plain values (a dictionary of 65,536 different values saves nothing). Inside maps, unions, views
and extension types nothing is widened or decoded: there `unify` raises, and the caller stores the
bundles as they came.
"""

from __future__ import annotations

import pyarrow as pa

from holdfast.quiver.base.arrow_types import has_dictionary, has_half_float_dictionary

_WIDER = {pa.int8(): pa.int16(), pa.uint8(): pa.uint16()}
_CANNOT_UNIFY = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowIndexError)


def unify(table: pa.Table) -> pa.Table:
    """Return the same rows with one dictionary per column; raises what Arrow raises."""
    for place, field in enumerate(table.schema):
        if has_dictionary(field.type):
            column = _unify_column(table.column(place))
            table = table.set_column(place, field.with_type(column.type), column)
    return table


def _unify_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    while has_dictionary(column.type):
        try:
            if has_half_float_dictionary(column.type):
                raise pa.ArrowNotImplementedError("takes the bits of half floats for numbers")
            return column.unify_dictionaries()
        except _CANNOT_UNIFY:
            relaxed = relaxed_type(column.type)
            if relaxed == column.type:
                raise
            chunks = [_recode(chunk, relaxed) for chunk in column.chunks]
            column = pa.chunked_array(chunks, relaxed)
    return column


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
