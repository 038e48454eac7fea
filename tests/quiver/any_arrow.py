"""Arrow batches of any type the IPC format knows: types by hypothesis, values by a seed.

Arrays are put together from their parts (offsets, children, dictionaries, runs), because
`pyarrow.array` cannot make all of them from Python values. Values come from a seeded random
generator and not from hypothesis, which would need a second for each batch.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from decimal import Decimal
from itertools import accumulate
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy[Any]], Any]
Value = Callable[[random.Random], Any]

UNITS = ("s", "ms", "us", "ns")
SIGNED = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
UNSIGNED = (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
FLOATS = (pa.float16(), pa.float32(), pa.float64())
TEXTS = (pa.string(), pa.large_string(), pa.string_view())
BLOBS = (pa.binary(), pa.large_binary(), pa.binary_view())
DECIMALS = (pa.decimal32(5, 2), pa.decimal64(12, 2), pa.decimal128(20, 2), pa.decimal256(40, 2))
TIMES = (
    pa.date32(),
    pa.time32("s"),
    pa.time64("ns"),
    *(pa.duration(unit) for unit in UNITS),
    *(pa.timestamp(unit) for unit in UNITS),
    *(pa.timestamp(unit, "UTC") for unit in UNITS),
    pa.timestamp("us", "Europe/Lisbon"),
    pa.timestamp("ms", "+05:30"),
)
STRANGE_FLOATS = (float("nan"), float("inf"), -0.0, 0.0, 1.5, -65504.0)


def _whole(kind: pa.DataType, *, signed: bool) -> Value:
    low = -(2 ** (kind.bit_width - 1)) if signed else 0
    high = low + 2**kind.bit_width - 1
    return lambda chance: chance.choice((low, high, 0, chance.randint(low, high)))


def _text(chance: random.Random) -> str:
    return "".join(chance.choices("ab\0äß漢🦀", k=chance.randrange(20)))


def _leaves() -> dict[pa.DataType, Value]:
    """Return every type without children, and what makes values for it."""

    def small(chance: random.Random) -> int:
        return chance.randrange(86_400)

    leaves: dict[pa.DataType, Value] = {kind: _whole(kind, signed=True) for kind in SIGNED}
    leaves |= {kind: _whole(kind, signed=False) for kind in UNSIGNED}
    leaves |= dict.fromkeys(FLOATS, lambda chance: chance.choice(STRANGE_FLOATS))
    leaves |= dict.fromkeys(TEXTS, _text)
    leaves |= dict.fromkeys(BLOBS, lambda chance: chance.randbytes(chance.randrange(20)))
    leaves |= dict.fromkeys(DECIMALS, lambda chance: Decimal(chance.randint(-999, 999)))
    leaves |= dict.fromkeys(TIMES, small)
    leaves[pa.date64()] = lambda chance: chance.randint(-1000, 1000) * 86_400_000
    leaves[pa.bool_()] = lambda chance: chance.random() < 0.5
    leaves[pa.binary(3)] = lambda chance: chance.randbytes(3)
    leaves[pa.month_day_nano_interval()] = lambda chance: (small(chance), small(chance), 1)
    leaves[pa.uuid()] = lambda chance: chance.randbytes(16)
    leaves[pa.json_()] = lambda chance: chance.choice(("{}", "[1]", '"x"'))
    return leaves


LEAVES = _leaves()
# An extension type inside a dictionary cannot be read back, and is refused at append.
DICTIONARY_VALUES = tuple(kind for kind in LEAVES if not isinstance(kind, pa.BaseExtensionType))


# --------------------------------------------------------------------------- types


def types() -> st.SearchStrategy[pa.DataType]:
    """Return a strategy for types, up to some depth."""
    leaves = st.sampled_from([*LEAVES, pa.null()])
    dictionaries = st.builds(
        pa.dictionary,
        st.sampled_from(SIGNED + UNSIGNED),
        st.sampled_from(DICTIONARY_VALUES),
        st.booleans(),
    )
    # Runs of plain values only: pyarrow 26 crashes when it looks at lists of runs, and cannot make
    # an empty array of some runs of dictionaries.
    run_ends = st.sampled_from([pa.int16(), pa.int32(), pa.int64()])
    runs = st.builds(pa.run_end_encoded, run_ends, leaves)
    return st.recursive(leaves | dictionaries, _nested, max_leaves=4) | runs


def _nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    keys = st.sampled_from([pa.string(), pa.int64(), pa.binary(3)])
    fields = st.lists(inner, min_size=1, max_size=3).map(_fields)
    return st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        inner.map(pa.list_view),
        inner.map(pa.large_list_view),
        inner.map(lambda kind: pa.list_(kind, 2)),
        fields.map(pa.struct),
        st.builds(pa.map_, keys, inner),
        fields.map(lambda fields: pa.union(fields, "sparse")),
        fields.map(lambda fields: pa.union(fields, "dense")),
    )


def _fields(kinds: list[pa.DataType]) -> list[pa.Field]:
    return [pa.field(name, kind) for name, kind in zip(string.ascii_lowercase, kinds, strict=False)]


def schemas() -> st.SearchStrategy[pa.Schema]:
    """Return a strategy for schemas of a few columns, with metadata now and then."""
    metadata = st.none() | st.just({"origin": "test"})
    fields = st.lists(types(), min_size=1, max_size=3).map(_fields)
    return st.builds(pa.schema, fields, metadata=metadata)


# -------------------------------------------------------------------------- values


def batch_of(schema: pa.Schema, chance: random.Random, *, min_rows: int = 0) -> pa.RecordBatch:
    """Return a few rows of a schema, sometimes cut out of more."""
    before, rows, after = chance.randrange(3), chance.randint(min_rows, 6), chance.randrange(3)
    columns = [array_of(field.type, before + rows + after, chance) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema).slice(before, rows)


def array_of(
    kind: pa.DataType, length: int, chance: random.Random, *, nulls: bool = True
) -> pa.Array:
    """Return an array of a type."""
    if pa.types.is_null(kind):
        return pa.nulls(length)
    if kind in LEAVES:
        make, share = LEAVES[kind], 0.3 if nulls else 0.0
        values = [None if chance.random() < share else make(chance) for _ in range(length)]
        return pa.array(values, kind)
    if pa.types.is_dictionary(kind):
        return _dictionary(kind, length, chance)
    if pa.types.is_run_end_encoded(kind):
        return _runs(kind, length, chance)
    if pa.types.is_union(kind):
        return _union(kind, length, chance)
    mask = pa.array([chance.random() < 0.3 for _ in range(length)], pa.bool_())
    if pa.types.is_struct(kind):
        children = [array_of(field.type, length, chance) for field in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if pa.types.is_fixed_size_list(kind):
        values = array_of(kind.value_type, length * kind.list_size, chance)
        return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=mask)
    return _list(kind, length, mask, chance)


def _list(kind: pa.DataType, length: int, mask: pa.Array, chance: random.Random) -> pa.Array:
    sizes = [chance.randrange(4) for _ in range(length)]
    ends = [0, *accumulate(sizes)]
    if pa.types.is_map(kind):
        keys = array_of(kind.key_type, ends[-1], chance, nulls=False)
        items = array_of(kind.item_type, ends[-1], chance)
        offsets = pa.array(ends, pa.int32())
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=mask)
    values = array_of(kind.value_type, ends[-1], chance)
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values, type=kind, mask=mask)
    if pa.types.is_large_list(kind):
        offsets = pa.array(ends, pa.int64())
        return pa.LargeListArray.from_arrays(offsets, values, type=kind, mask=mask)
    large = pa.types.is_large_list_view(kind)
    maker = pa.LargeListViewArray if large else pa.ListViewArray
    number = pa.int64() if large else pa.int32()
    starts, counts = pa.array(ends[:-1], number), pa.array(sizes, number)
    return maker.from_arrays(starts, counts, values, type=kind, mask=mask)


def _dictionary(kind: pa.DataType, length: int, chance: random.Random) -> pa.Array:
    size = chance.randint(1, 5)
    values = array_of(kind.value_type, size, chance, nulls=chance.random() < 0.5)
    indices = [chance.choice((None, *range(size))) for _ in range(length)]
    return pa.DictionaryArray.from_arrays(
        pa.array(indices, kind.index_type), values, ordered=kind.ordered
    )


def _runs(kind: pa.DataType, length: int, chance: random.Random) -> pa.Array:
    inner = {chance.randint(1, length) for _ in range(3)} if length else set()
    ends = sorted(inner | {length} - {0})
    values = array_of(kind.value_type, len(ends), chance)
    return pa.RunEndEncodedArray.from_arrays(pa.array(ends, kind.run_end_type), values, type=kind)


def _union(kind: pa.DataType, length: int, chance: random.Random) -> pa.Array:
    fields = [kind.field(place) for place in range(kind.num_fields)]
    codes = [chance.randrange(len(fields)) for _ in range(length)]
    dense = kind.mode == "dense"
    children = [
        array_of(field.type, codes.count(place) if dense else length, chance)
        for place, field in enumerate(fields)
    ]
    names, chosen = [field.name for field in fields], pa.array(codes, pa.int8())
    if not dense:
        return pa.UnionArray.from_sparse(chosen, children, names)
    places = [codes[:row].count(code) for row, code in enumerate(codes)]
    return pa.UnionArray.from_dense(chosen, pa.array(places, pa.int32()), children, names)
