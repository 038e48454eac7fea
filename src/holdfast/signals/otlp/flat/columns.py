"""Columns of flat tables as columns of nested form (`nested.py`), and the keys of attributes.

Nothing here looks at one row after the other, but for what is rare: keys that are there twice.
Arrow's buffers are handed on wherever their content stays what it is, under another type: a map
becomes a list, and a number with a sign an unsigned one, without a copy.

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

import numpy as np
import pyarrow as pa

from holdfast.quiver.base.arrow import texts
from holdfast.signals.otlp.flat.nested import Converter
from holdfast.signals.otlp.flat.schema import VALUE
from holdfast.signals.otlp.flat.values import (
    as_text,
    encoded_pairs,
    encoded_values,
)
from holdfast.signals.otlp.flat.wire import NumpyArray, SeveralValues

_NUMBERED = "\0"
# Of more different keys, rows and keys are compared one by one: the table would be too large.
_KEYS_MAX = 4096


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


def _number(column: pa.Array, target: pa.DataType) -> pa.Array:
    if column.type.equals(target):
        return column
    if column.type.bit_width == target.bit_width:
        return column.view(target)
    return column.cast(target)


# --------------------------------------------------------------------- keys


def distinct_keys(owners: NumpyArray, rows: int, keys: pa.Array) -> pa.Array:
    """Return the keys of attributes, with numbers behind those that a row has twice."""
    encoded_keys = keys.dictionary_encode()
    # There are few different ones: all are texts if these are.
    known = as_text(encoded_keys.dictionary)
    keys = keys.view(pa.string())
    if _NUMBERED not in "".join(known.to_pylist()) and len(known) <= _KEYS_MAX:
        # A place for each key in each row, of which none may be taken twice.
        # From buffers, because `to_numpy` imports pandas where it is installed.
        keys_of_rows = np.frombuffer(encoded_keys.indices.buffers()[1], np.int32, len(keys))
        taken = np.zeros(rows * len(known), bool)
        taken[owners * len(known) + keys_of_rows] = True
        if np.count_nonzero(taken) == len(keys):
            return keys
    return _numbered(owners, keys)


def _numbered(owners: NumpyArray, keys: pa.Array) -> pa.Array:
    names: list[str] = keys.to_pylist()
    seen: Counter[tuple[int, str]] = Counter()
    for place, (owner, name) in enumerate(zip(owners.tolist(), names, strict=True)):
        seen[owner, name] += 1
        if seen[owner, name] > 1 or _NUMBERED in name:
            names[place] = f"{name}{_NUMBERED}{seen[owner, name]}"
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
