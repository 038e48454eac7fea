"""The numbers by which tables refer to each other: as they are sent, and plain.

*Delta*: each is the difference to the one before; nulls are passed over. So are the ids of rows,
and the parents of data points, which stand in order anyway.

*Quasi-delta*: the difference to the row before if that row is alike, else the number itself. Alike
are events of one name, links to one trace, exemplars of one value, and attributes of one type, key
and value; what has no value to compare (a list, a map, nothing) is like no other.

Sums run in the width of the column, as they do in the implementations of the protocol: a difference
below zero is one that wraps around. Values are compared as IEEE 754 has it, so that not-a-number is
like no other row, and the two zeros are alike.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from holdfast.signals.otap.dictionaries import index_dtype
from holdfast.signals.otap.numpy_columns import (
    Flags,
    Numbers,
    bits_of,
    column_of,
    numbers_of,
    present,
)
from holdfast.signals.otap.payloads import (
    ENCODING_KEY,
    FORMS,
    ID,
    PARENT_ID,
    PARENTS,
    PLAIN,
    RESOURCE,
    ROOTS,
    SCOPE,
    PayloadType,
    TableForm,
    ValueType,
)
from holdfast.signals.otap.plans import POINTS
from holdfast.signals.otap.problem import NotOtap

_LIKE_COLUMNS: Mapping[TableForm, tuple[str, ...]] = {
    TableForm.EVENTS: ("name",),
    TableForm.LINKS: ("trace_id",),
    TableForm.EXEMPLARS: ("int_value", "double_value"),
}
_ROOT_TABLES = frozenset(ROOTS.values())
# The columns of attributes that hold a value which can be compared, by type.
_COMPARED = {
    ValueType.STR: "str",
    ValueType.INT: "int",
    ValueType.DOUBLE: "double",
    ValueType.BOOL: "bool",
    ValueType.BYTES: "bytes",
}


def with_plain_ids(table: PayloadType, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a table that came over a stream with the ids that its numbers mean."""
    return _coded(table, batch, _IdDecoding())


def with_encoded_ids(table: PayloadType, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a table with plain ids as it is sent."""
    return _coded(table, batch, _IdEncoding())


class _IdDecoding:
    """From what was sent to plain ids."""

    def is_done(self, field: pa.Field) -> bool:
        return _encoding_of(field) == PLAIN

    def delta(self, values: Numbers) -> Numbers:
        # In the width of the column: this wraps.
        return np.cumsum(values, dtype=values.dtype)

    def quasi_delta(self, values: Numbers, like: Flags) -> Numbers:
        sums = np.cumsum(values, dtype=values.dtype)
        # Where a run of like rows begins, its first number counts from nothing: what was summed up
        # before it is taken away from the whole run.
        begins = np.flatnonzero(~like)
        before = sums[begins] - values[begins]
        runs = np.cumsum(~like) - 1
        plain: Numbers = sums - before[runs]
        return plain

    def metadata(self, field: pa.Field) -> dict[bytes, bytes] | None:
        return {**(field.metadata or {}), ENCODING_KEY: PLAIN}


class _IdEncoding:
    """From plain ids to what is sent."""

    def is_done(self, field: pa.Field) -> bool:
        return False

    def delta(self, values: Numbers) -> Numbers:
        return np.diff(values, prepend=values.dtype.type(0))

    def quasi_delta(self, values: Numbers, like: Flags) -> Numbers:
        return np.where(like, self.delta(values), values)

    def metadata(self, field: pa.Field) -> dict[bytes, bytes] | None:
        # Nothing said means encoded.
        rest = {key: value for key, value in (field.metadata or {}).items() if key != ENCODING_KEY}
        return rest or None


def _encoding_of(field: pa.Field) -> bytes | None:
    encoding: bytes | None = (field.metadata or {}).get(ENCODING_KEY)
    return encoding


def _coded(
    table: PayloadType, batch: pa.RecordBatch, coding: _IdDecoding | _IdEncoding
) -> pa.RecordBatch:
    if not batch.num_rows:
        return batch
    columns, fields = list(batch.columns), list(batch.schema)
    for place, field in enumerate(fields):
        column = columns[place]
        if field.name == ID and FORMS[table] is not TableForm.ATTRIBUTES:
            columns[place], fields[place] = _coded_ids(column, field, coding)
        elif field.name == PARENT_ID and table not in _ROOT_TABLES:
            columns[place], fields[place] = _coded_parents(table, batch, column, field, coding)
        elif field.name in (RESOURCE, SCOPE) and table in _ROOT_TABLES:
            columns[place], fields[place] = _coded_struct(column, field, coding)
    schema = pa.schema(fields, batch.schema.metadata)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _coded_ids(
    column: pa.Array, field: pa.Field, coding: _IdDecoding | _IdEncoding
) -> tuple[pa.Array, pa.Field]:
    marked = field.with_metadata(coding.metadata(field))
    if coding.is_done(field):
        return column, marked
    if pa.types.is_dictionary(column.type):
        raise NotOtap(f"ids in {field.name!r} are in a dictionary")
    values, flags = numbers_of(column, index_dtype(column.type)), present(column)
    if flags is None:
        return column_of(coding.delta(values), column.type), marked
    coded = np.zeros(len(values), values.dtype)
    coded[flags] = coding.delta(values[flags])
    return column_of(coded, column.type, flags), marked


def _coded_struct(
    column: pa.Array, field: pa.Field, coding: _IdDecoding | _IdEncoding
) -> tuple[pa.Array, pa.Field]:
    kind = column.type
    place = kind.get_field_index(ID)
    if place < 0:
        return column, field
    # As seen from outside: null where the struct is.
    ids = column.flatten()[place]
    children = [column.field(number) for number in range(kind.num_fields)]
    fields = [kind.field(number) for number in range(kind.num_fields)]
    children[place], fields[place] = _coded_ids(ids, kind.field(place), coding)
    mask = column.is_null() if column.null_count else None
    made = pa.StructArray.from_arrays(children, fields=fields, mask=mask)
    return made, field.with_type(made.type)


def _coded_parents(
    table: PayloadType,
    batch: pa.RecordBatch,
    column: pa.Array,
    field: pa.Field,
    coding: _IdDecoding | _IdEncoding,
) -> tuple[pa.Array, pa.Field]:
    marked = field.with_metadata(coding.metadata(field))
    if pa.types.is_dictionary(column.type):
        # Sums need not be among the values that were in the dictionary.
        column = column.dictionary_decode()
        marked = marked.with_type(column.type)
    if coding.is_done(field):
        return column, marked
    values = numbers_of(column, index_dtype(column.type))
    if FORMS[table] is TableForm.POINTS:
        coded = coding.delta(values)
    else:
        coded = coding.quasi_delta(values, _like_the_row_before(table, batch))
    return column_of(coded, column.type), marked


def _like_the_row_before(table: PayloadType, batch: pa.RecordBatch) -> Flags:
    """Return which rows are alike the one before them; the first one never is."""
    form = FORMS[table]
    like = np.ones(batch.num_rows, np.bool_)
    like[0] = False
    if form is TableForm.ATTRIBUTES:
        like[1:] = _like_attributes(batch)
        return like
    for name in _LIKE_COLUMNS[form]:
        column = _column(batch, name)
        if column is not None:
            like[1:] &= _equal_to_before(column, nulls_are_equal=True)
    return like


def _like_attributes(batch: pa.RecordBatch) -> Flags:
    types = numbers_of(batch.column("type"), "u1")
    like: Flags = types[1:] == types[:-1]
    like &= _equal_to_before(batch.column("key"), nulls_are_equal=True)
    equal = np.zeros(len(like), np.bool_)
    for kind, name in _COMPARED.items():
        rows = types[1:] == kind
        column = _column(batch, name)
        if column is not None and rows.any():
            equal |= rows & _equal_to_before(column, nulls_are_equal=False)
    return like & equal


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    place = batch.schema.get_field_index(name)
    return None if place < 0 else batch.column(place)


def _equal_to_before(column: pa.Array, *, nulls_are_equal: bool) -> Flags:
    """Return of every row but the first whether its value is that of the row before."""
    if pa.types.is_dictionary(column.type):
        equal = _equal_in_dictionary(column)
    elif pa.types.is_boolean(column.type):
        bits = bits_of(column)
        equal = bits[1:] == bits[:-1]
    elif pa.types.is_fixed_size_binary(column.type):
        values = numbers_of(column, f"S{column.type.byte_width}")
        equal = values[1:] == values[:-1]
    elif pa.types.is_floating(column.type):
        values = numbers_of(column, "<f8")
        equal = values[1:] == values[:-1]
    elif pa.types.is_integer(column.type):
        values = numbers_of(column, index_dtype(column.type))
        equal = values[1:] == values[:-1]
    else:
        return _equal_texts(column, nulls_are_equal=nulls_are_equal)
    flags = present(column)
    if flags is None:
        return equal
    if nulls_are_equal:
        both_null: Flags = ~flags[1:] & ~flags[:-1]
        return (equal & flags[1:] & flags[:-1]) | both_null
    return equal & flags[1:] & flags[:-1]


def _equal_in_dictionary(column: pa.Array) -> Flags:
    """Compare indices, if every value is in the dictionary once."""
    values = column.dictionary
    places = numbers_of(column.indices, index_dtype(column.indices.type))
    unique = values.dictionary_encode()
    if len(unique.dictionary) == len(values) and not pa.types.is_floating(values.type):
        equal: Flags = places[1:] == places[:-1]
        return equal
    # Two indices of one value: compare what they are of.
    return _equal_to_before(column.dictionary_decode(), nulls_are_equal=False)


def _equal_texts(column: pa.Array, *, nulls_are_equal: bool) -> Flags:
    """Compare texts or bytes of any length by what a dictionary says of them."""
    return _equal_to_before(column.dictionary_encode(), nulls_are_equal=nulls_are_equal)


# ------------------------------------------------------------------------- checks


def check_ids(tables: Mapping[PayloadType, pa.RecordBatch]) -> None:
    """Raise `NotOtap` if an id is there twice, or a row refers to one that is not there.

    Attributes of resources and scopes may be of none that is in the batch: no table owns those ids.
    """
    known = {table: _unique_ids(table, batch) for table, batch in tables.items()}
    for table, batch in tables.items():
        parent = PARENTS.get(table)
        if parent is None:
            continue
        ids = known.get(parent)
        parents = numbers_of(batch.column(PARENT_ID), index_dtype(batch.column(PARENT_ID).type))
        if ids is None or not np.isin(parents, ids).all():
            raise NotOtap(f"a row of {table.name} refers to a row of {parent.name} that is missing")


def check_points(tables: Mapping[PayloadType, pa.RecordBatch]) -> None:
    """Raise `NotOtap` if data points are of another kind than their metric: no request has both."""
    metrics = tables.get(PayloadType.UNIVARIATE_METRICS)
    if metrics is None:
        return
    column = metrics.column(ID)
    ids, types = numbers_of(column, index_dtype(column.type)), metrics.column("metric_type")
    for table in {plan.table for _, plan in POINTS.values()} & tables.keys():
        fitting = [number for number, plan in POINTS.values() if plan.table is table]
        own_ids = ids[np.isin(numbers_of(types, "u1"), fitting)]
        parents = tables[table].column(PARENT_ID)
        if not np.isin(numbers_of(parents, index_dtype(parents.type)), own_ids).all():
            raise NotOtap(f"a row of {table.name} is of a metric whose metric_type is another")


def _unique_ids(table: PayloadType, batch: pa.RecordBatch) -> Numbers:
    column = _column(batch, ID)
    if column is None:
        return np.zeros(0, np.uint32)
    values, flags = numbers_of(column, index_dtype(column.type)), present(column)
    ids = np.unique(values if flags is None else values[flags])
    if len(ids) < len(column) - column.null_count:
        raise NotOtap(f"two rows of {table.name} have one id")
    return ids
