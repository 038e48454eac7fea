"""Columns of nested form (`nested.py`) as columns of flat tables, and back.

Nothing here looks at one row after the other, but for what is rare: values that are lists or maps,
and keys that are there twice. Arrow's buffers are handed on wherever their content stays what it
is, under another type: a list of keys and values becomes a map, and an unsigned number one with a
sign, without a copy.

**Keys that are there twice.** OTLP forbids it, and says that what readers do with it cannot be
foreseen. What duckdb does is to refuse the whole table. So the second value of a key gets a key of
its own: the key, a NUL, and the number of its occurrence. A key that contains a NUL itself is
numbered, too; on the way back everything from the last NUL on is taken off.

**More than one value.** Of a `oneof` only the last one counts, and which one was last is not seen
in columns. `SeveralValues` says that somebody wrote two, so that the caller has protobuf settle it.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.quiver.base.arrow import constant, texts
from holdfast.signals.otlp.flat.json_value import message_of, text_of_array, text_of_kvlist
from holdfast.signals.otlp.flat.schema import ATTRIBUTES, VALUE

_NUMBERED = "\0"
_PLAIN_MEMBERS = ("string_value", "bool_value", "int_value", "double_value", "bytes_value")


class SeveralValues(Exception):
    """A message has more than one field of which it may have only one."""


def as_flat(column: pa.Array, target: pa.DataType) -> pa.Array:
    """Return a column of nested form as the type that it has in a flat table."""
    assert column.offset == 0, "BUG: a slice of a column"
    if target.equals(ATTRIBUTES):
        return _attributes(column)
    if target.equals(VALUE):
        return _values(column)
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
    pairs = column.values
    keys = _distinct(column, pairs.field("key"))
    entries = _struct(pairs, ATTRIBUTES.field(0).type, [keys, _values(pairs.field("value"))])
    return _list(column, ATTRIBUTES, entries)


def _distinct(lists: pa.Array, keys: pa.Array) -> pa.Array:
    """Return the keys of attributes, with numbers behind those that are there twice."""
    if not len(keys):
        return keys
    encoded = keys.dictionary_encode()
    known = encoded.dictionary
    if _NUMBERED not in "".join(known.to_pylist()):
        # Row and key as one number, of which there may be no two.
        rows = pc.multiply(pc.list_parent_indices(lists), constant(len(known), pa.int64()))
        places = pc.add(rows, encoded.indices)
        if pc.count_distinct(places).as_py() == len(places):
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


def _values(column: pa.Array) -> pa.Array:
    """Return values of attributes: `AnyValue` as a struct."""
    plain = {name: column.field(name) for name in _PLAIN_MEMBERS}
    arrays, kvlists = column.field("array_value"), column.field("kvlist_value")
    json_values = _json_values(arrays, kvlists)
    # An index into a table that only profiles have is no value, but it may stand behind one.
    check_single([*plain.values(), json_values, column.field("string_value_strindex")])
    return _struct(column, VALUE, [*plain.values(), json_values])


def _json_values(arrays: pa.Array, kvlists: pa.Array) -> pa.Array:
    if not len(arrays.values) and not len(kvlists.values):
        return pa.nulls(len(arrays), pa.string())
    found: list[str | None] = [None] * len(arrays)
    for column, text_of in ((arrays, text_of_array), (kvlists, text_of_kvlist)):
        _put_texts(column, text_of, found)
    return texts(found)


def _put_texts(column: pa.Array, text_of: Callable[[bytes], str], found: list[str | None]) -> None:
    bodies = column.values.to_pylist()
    # The same list stands in many rows, often.
    known: dict[bytes, str] = {}
    for row, (first, end) in enumerate(pairwise(column.offsets.to_pylist())):
        if first == end:
            continue
        if found[row] is not None:
            raise SeveralValues
        body = bodies[first] if end == first + 1 else b"".join(bodies[first:end])
        text = known.get(body)
        if text is None:
            text = known[body] = text_of(body)
        found[row] = text


# ------------------------------------------------------------------------------- back


def as_nested(column: pa.Array, target: pa.DataType) -> pa.Array:
    """Return a column of a flat table as the type that it has in nested form."""
    assert column.offset == 0, "BUG: a slice of a column"
    if pa.types.is_map(column.type):
        pairs = target.value_type
        value = _any_values(column.items, pairs.field("value").type)
        children = {"key": _without_numbers(column.keys), "value": value}
        entries = struct_of(pairs, len(value), children)
        return _list(column, target, entries)
    if column.type.equals(VALUE):
        return _any_values(column, target)
    if pa.types.is_list(target):
        return _list(column, target, as_nested(column.values, target.value_type))
    if pa.types.is_struct(target):
        given = {field.name: column.field(field.name) for field in column.type}
        nested = {
            field.name: as_nested(given[field.name], field.type)
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


def _any_values(column: pa.Array, target: pa.DataType) -> pa.Array:
    members = {name: column.field(name) for name in _PLAIN_MEMBERS}
    written: dict[str, list[bytes]] = {"array_value": [], "kvlist_value": []}
    ends = {name: array("i", [0]) for name in written}
    if column.field("json_value").null_count < len(column):
        for text in column.field("json_value").to_pylist():
            if text is not None:
                message = message_of(text)
                name = "array_value" if message.DESCRIPTOR.name == "ArrayValue" else "kvlist_value"
                written[name].append(message.SerializeToString())
            for name, bodies in written.items():
                ends[name].append(len(bodies))
        for name, bodies in written.items():
            buffers = [None, pa.py_buffer(ends[name])]
            members[name] = pa.Array.from_buffers(
                target.field(name).type, len(column), buffers, children=[_binaries(bodies)]
            )
    return struct_of(target, len(column), members, column.buffers()[0])


def _binaries(bodies: list[bytes]) -> pa.Array:
    ends = array("i", [0])
    for body in bodies:
        ends.append(ends[-1] + len(body))
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(bodies))]
    return pa.Array.from_buffers(pa.binary(), len(bodies), buffers)
