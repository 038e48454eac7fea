"""What pyarrow needs help with: types it cannot be trusted with, dictionaries, columns from Python.

**Dictionaries.** An Arrow IPC file holds one dictionary per column, while every bundle comes with
its own. They are unified; where the indices no longer fit, 8 bits become 16, and beyond that the
column is decoded to its plain values (a dictionary of 65,536 different values saves nothing).
Inside maps, unions, views and extension types nothing is widened or decoded: there `unify` raises,
and the caller stores the bundles as they came.

**Columns** and scalars are made without `pyarrow.array` and `pyarrow.scalar`. Those check whether
they are given something of pandas, and import it for that where it is installed: 60 MB of memory
and a second of a sealer's time, in a process that has no use for it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate

import pyarrow as pa


def parts(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yield the type and all types inside it; extension types as what they are stored as."""
    if isinstance(kind, pa.BaseExtensionType):
        yield from parts(kind.storage_type)
        return
    yield kind
    if pa.types.is_dictionary(kind):
        yield from parts(kind.value_type)
    for place in range(kind.num_fields):
        yield from parts(kind.field(place).type)


def has_dictionary(kind: pa.DataType) -> bool:
    """Whether the type is a dictionary, or has one inside."""
    return any(pa.types.is_dictionary(part) for part in parts(kind))


def has_extension(kind: pa.DataType) -> bool:
    """Whether the type is one that a user or an extension defined, or has one inside."""
    if isinstance(kind, pa.BaseExtensionType):
        return True
    return any(has_extension(kind.field(place).type) for place in range(kind.num_fields))


def has_half_float_dictionary(kind: pa.DataType) -> bool:
    """Whether a dictionary of half floats is inside: Arrow unifies those into other values."""
    return any(
        pa.types.is_dictionary(part) and pa.types.is_float16(part.value_type)
        for part in parts(kind)
    )


def check_readable(kind: pa.DataType) -> None:
    """Raise for a type that Arrow writes without complaint, and cannot read."""
    for part in parts(kind):
        if not pa.types.is_dictionary(part):
            continue
        values = part.value_type
        if pa.types.is_dictionary(values) or isinstance(values, pa.BaseExtensionType):
            raise pa.ArrowNotImplementedError(f"a dictionary of {values} cannot be read back")


def can_be_filtered(kind: pa.DataType) -> bool:
    """Whether Arrow filters the type: views and runs it refuses, unions inside maps it breaks."""
    return not any(
        _is_view(part) or pa.types.is_run_end_encoded(part) or pa.types.is_union(part)
        for part in parts(kind)
    )


def slices_take_all(kind: pa.DataType) -> bool:
    """Whether Arrow writes the values of a whole array with every slice of it."""
    return any(
        _is_view(part)
        or pa.types.is_list_view(part)
        or pa.types.is_large_list_view(part)
        or (pa.types.is_union(part) and part.mode == "dense")
        for part in parts(kind)
    )


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


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
    # This ends: every turn returns, raises, or relaxes dictionaries that have at most two steps to
    # go, wider indices and then none.
    while has_dictionary(column.type):
        try:
            # Arrow does not refuse these, it returns other values: the only case here that has to
            # be caught before Arrow is called.
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
    # `_recode` has no case for these, and raises: an append of such a table is refused, while the
    # sealer stores the bundles as they came.
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
        # The children alone do not know where the struct itself is null; the mask carries that
        # over.
        children = [_recode(chunk.field(i), target.field(i).type) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=_fields(target), mask=chunk.is_null())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        if chunk.offset:
            # Arrow takes no mask beside offsets that begin within a buffer: a copy begins anew.
            chunk = pa.concat_arrays([chunk])
        values = _recode(chunk.values, target.value_type)
        return type(chunk).from_arrays(chunk.offsets, values, type=target, mask=chunk.is_null())
    raise pa.ArrowNotImplementedError(f"cannot take the dictionary out of {kind}")


# By the width of a type in bits; all numbers are signed.
_CODES = {8: "b", 32: "i", 64: "q"}


def numbers(values: Sequence[int | None], kind: pa.DataType) -> pa.Array:
    """Return whole numbers, or times as such, as a column."""
    present = _present(values)
    # A place in the buffer is needed for nulls, too. What stands there is not read.
    filled = values if present is None else [value or 0 for value in values]
    data = pa.py_buffer(array(_CODES[kind.bit_width], filled))  # type: ignore[type-var]
    return pa.Array.from_buffers(kind, len(filled), [present, data])


def texts(values: Sequence[str | None]) -> pa.Array:
    """Return texts as a column."""
    encoded = [b"" if value is None else value.encode() for value in values]
    offsets = pa.py_buffer(array("i", accumulate(map(len, encoded), initial=0)))
    buffers = [_present(values), offsets, pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def constant(value: int, kind: pa.DataType) -> pa.Scalar:
    """Return one number, time or duration."""
    return numbers([value], kind)[0]


def _present(values: Sequence[object]) -> pa.Buffer | None:
    """Return the bitmap of those that are not None; None if all are there."""
    if None not in values:
        return None
    bits = bytearray(-(-len(values) // 8))
    for place, value in enumerate(values):
        if value is not None:
            bits[place >> 3] |= 1 << (place & 7)
    return pa.py_buffer(bytes(bits))
