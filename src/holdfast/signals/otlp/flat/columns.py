"""Columns of nested form (`nested.py`) as columns of flat tables, and back.

Nothing here looks at one row after the other, but for what is rare: keys that are there twice.
Arrow's buffers are handed on wherever their content stays what it is, under another type: a list
becomes a map, and an unsigned number one with a sign, without a copy.

**Keys that are there twice.** OTLP forbids it, and says that what readers do with it cannot be
foreseen. What duckdb does is to refuse the whole table. So the second value of a key gets a key of
its own: the key, a NUL, and the number of its occurrence. A key that contains a NUL itself is
numbered, too; on the way back everything from the last NUL on is taken off.

**More than one value.** Of a `oneof` only the last one counts, and which one was last is not seen
in columns. `SeveralValues` says that somebody wrote two, so that the caller has protobuf settle it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.quiver.base.arrow import texts
from holdfast.signals.otlp.flat.nested import Converter
from holdfast.signals.otlp.flat.schema import ATTRIBUTES, VALUE
from holdfast.signals.otlp.flat.values import (
    as_text,
    decoded_pairs,
    decoded_values,
    encoded_pairs,
    encoded_values,
)

_NUMBERED = "\0"
# Of more different keys, rows and keys are compared one by one: the table would be too large.
_KEYS_MAX = 4096


class SeveralValues(Exception):
    """A message has more than one field of which it may have only one."""


def as_flat(column: pa.Array, target: pa.DataType) -> pa.Array:
    """Return a column of nested form as the type that it has in a flat table."""
    assert column.offset == 0, "BUG: a slice of a column"
    if not len(column):
        return pa.nulls(0, target)
    if target.equals(ATTRIBUTES):
        return _attributes(column)
    if target.equals(VALUE):
        return decoded_values(column)
    if pa.types.is_list(target):
        return _list(column, target, as_flat(column.values, target.value_type))
    if pa.types.is_struct(target):
        names = [field.name for field in target]
        if "as_double" in names:
            check_single([column.field("as_double"), column.field("as_int")])
        children = [as_flat(column.field(field.name), field.type) for field in target]
        return _struct(column, target, children)
    return _number(column, target)


def check_single(members: Sequence[pa.Array]) -> None:
    """Raise `SeveralValues` if a row has more than one of the members of a `oneof`."""
    seen = 0
    for member in members:
        bits = _present(member)
        if seen & bits:
            raise SeveralValues
        seen |= bits


def _present(column: pa.Array) -> int:
    """Return a number with a bit for each row that is not null."""
    everything = (1 << len(column)) - 1
    if column.null_count == 0:
        return everything
    if column.null_count == len(column):
        return 0
    return int.from_bytes(column.buffers()[0], "little") & everything


def _list(column: pa.Array, target: pa.DataType, items: pa.Array) -> pa.Array:
    """Return lists of the same lengths with other items."""
    buffers = column.buffers()[:2]
    return pa.Array.from_buffers(target, len(column), buffers, children=[items])


def _struct(column: pa.Array, target: pa.DataType, children: list[pa.Array]) -> pa.Array:
    """Return structs with other members that are null where those of the column are."""
    buffers = column.buffers()[:1]
    return pa.Array.from_buffers(target, len(column), buffers, children=children)


def _number(column: pa.Array, target: pa.DataType) -> pa.Array:
    if column.type.equals(target):
        return column
    if column.type.bit_width == target.bit_width:
        return column.view(target)
    return column.cast(target)


# --------------------------------------------------------------------- to flat tables


def _attributes(column: pa.Array) -> pa.Array:
    if not len(column.values):
        return _list(column, ATTRIBUTES, pa.nulls(0, ATTRIBUTES.field(0).type))
    keys, values = decoded_pairs(column.values)
    children = {"key": _distinct(column, keys), "value": values}
    return _list(column, ATTRIBUTES, struct_of(ATTRIBUTES.field(0).type, len(keys), children))


def _distinct(lists: pa.Array, keys: pa.Array) -> pa.Array:
    """Return the keys of attributes, with numbers behind those that are there twice."""
    encoded_keys = keys.dictionary_encode()
    # There are few different ones: all are texts if these are.
    known = as_text(encoded_keys.dictionary)
    keys = keys.view(pa.string())
    if _NUMBERED not in "".join(known.to_pylist()) and len(known) <= _KEYS_MAX:
        # A place for each key in each row, of which none may be taken twice.
        # From buffers, because `to_numpy` imports pandas where it is installed.
        owners = pc.list_parent_indices(lists).buffers()[1]
        rows = np.frombuffer(owners, np.int64, len(keys)) * len(known)
        keys_of_rows = np.frombuffer(encoded_keys.indices.buffers()[1], np.int32, len(keys))
        taken = np.zeros(len(lists) * len(known), bool)
        taken[rows + keys_of_rows] = True
        if np.count_nonzero(taken) == len(keys):
            return keys
    return _numbered(lists, keys)


def _numbered(lists: pa.Array, keys: pa.Array) -> pa.Array:
    names: list[str] = keys.to_pylist()
    for first, end in pairwise(lists.offsets.to_pylist()):
        seen: Counter[str] = Counter()
        for place in range(first, end):
            name = names[place]
            seen[name] += 1
            if seen[name] > 1 or _NUMBERED in name:
                names[place] = f"{name}{_NUMBERED}{seen[name]}"
    return texts(names)


# ------------------------------------------------------------------------------- back


def as_nested(column: pa.Array, target: pa.DataType, by: Converter) -> pa.Array:
    """Return a column of a flat table as the type that it has in nested form."""
    assert column.offset == 0, "BUG: a slice of a column"
    if pa.types.is_map(column.type):
        keys = _without_numbers(column.keys)
        return _list(column, target, encoded_pairs(keys, column.items, by))
    if column.type.equals(VALUE):
        return encoded_values(column, by)
    if pa.types.is_list(target):
        return _list(column, target, as_nested(column.values, target.value_type, by))
    if pa.types.is_struct(target):
        given = {field.name: column.field(field.name) for field in column.type}
        nested = {
            field.name: as_nested(given[field.name], field.type, by)
            for field in target
            if field.name in given
        }
        return struct_of(target, len(column), nested, column.buffers()[0])
    return _number(column, target)


def struct_of(
    target: pa.DataType,
    rows: int,
    members: dict[str, pa.Array],
    present: pa.Buffer | None = None,
) -> pa.Array:
    """Return structs with some members; the others are null, which is written as nothing."""
    children = [
        members[field.name] if field.name in members else pa.nulls(rows, field.type)
        for field in target
    ]
    return pa.Array.from_buffers(target, rows, [present], children=children)


def _without_numbers(keys: pa.Array) -> pa.Array:
    names = keys.dictionary_encode()
    known = names.dictionary.to_pylist()
    if _NUMBERED not in "".join(known):
        return keys
    plain = [name.rpartition(_NUMBERED)[0] if _NUMBERED in name else name for name in known]
    return texts(plain).take(names.indices)
