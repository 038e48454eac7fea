"""The columns of OTAP's tables: their native types, as the specification lists them.

A table may lack columns that are not required, have its texts, ids and numbers in dictionaries, and
have columns that are not listed here; those are kept. What it may not do is to give a listed column
another type: that is told to its sender, since nobody could read it later.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from holdfast.signals.otap.payloads import FORMS, PARENTS, PayloadType, TableForm
from holdfast.signals.otap.problem import NotOtap

_TIME, _DURATION = pa.timestamp("ns"), pa.duration("ns")
_TRACE_ID, _SPAN_ID = pa.binary(16), pa.binary(8)
_U8, _U16, _U32, _U64 = pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()
_I32, _I64, _F64, _BOOL = pa.int32(), pa.int64(), pa.float64(), pa.bool_()
_TEXT, _BYTES = pa.string(), pa.binary()

_RESOURCE = pa.struct(
    {"id": _U16, "schema_url": _TEXT, "dropped_attributes_count": _U32},
)
_SCOPE = pa.struct(
    {"id": _U16, "name": _TEXT, "version": _TEXT, "dropped_attributes_count": _U32},
)
_VALUE = {
    "type": _U8,
    "str": _TEXT,
    "int": _I64,
    "double": _F64,
    "bool": _BOOL,
    "bytes": _BYTES,
    "ser": _BYTES,
}
_BUCKETS = pa.struct({"offset": _I32, "bucket_counts": pa.list_(_U64)})
_QUANTILE = pa.struct({"quantile": _F64, "value": _F64})
_ROOT_COLUMNS = {"id": _U16, "resource": _RESOURCE, "scope": _SCOPE, "schema_url": _TEXT}
_POINT_COLUMNS = {
    "id": _U32,
    "parent_id": _U16,
    "start_time_unix_nano": _TIME,
    "time_unix_nano": _TIME,
}
_COLUMNS: Mapping[PayloadType, Mapping[str, pa.DataType]] = {
    PayloadType.LOGS: {
        **_ROOT_COLUMNS,
        "time_unix_nano": _TIME,
        "observed_time_unix_nano": _TIME,
        "trace_id": _TRACE_ID,
        "span_id": _SPAN_ID,
        "severity_number": _I32,
        "severity_text": _TEXT,
        "event_name": _TEXT,
        "body": pa.struct(_VALUE),
        "dropped_attributes_count": _U32,
        "flags": _U32,
    },
    PayloadType.SPANS: {
        **_ROOT_COLUMNS,
        "start_time_unix_nano": _TIME,
        "duration_time_unix_nano": _DURATION,
        "trace_id": _TRACE_ID,
        "span_id": _SPAN_ID,
        "trace_state": _TEXT,
        "parent_span_id": _SPAN_ID,
        "name": _TEXT,
        "kind": _I32,
        "dropped_attributes_count": _U32,
        "dropped_events_count": _U32,
        "dropped_links_count": _U32,
        "status": pa.struct({"code": _I32, "status_message": _TEXT}),
        "flags": _U32,
    },
    PayloadType.SPAN_EVENTS: {
        "id": _U32,
        "parent_id": _U16,
        "time_unix_nano": _TIME,
        "name": _TEXT,
        "dropped_attributes_count": _U32,
    },
    PayloadType.SPAN_LINKS: {
        "id": _U32,
        "parent_id": _U16,
        "trace_id": _TRACE_ID,
        "span_id": _SPAN_ID,
        "trace_state": _TEXT,
        "dropped_attributes_count": _U32,
        "flags": _U32,
    },
    PayloadType.UNIVARIATE_METRICS: {
        **_ROOT_COLUMNS,
        "metric_type": _U8,
        "name": _TEXT,
        "description": _TEXT,
        "unit": _TEXT,
        "aggregation_temporality": _I32,
        "is_monotonic": _BOOL,
    },
    PayloadType.NUMBER_DATA_POINTS: {
        **_POINT_COLUMNS,
        "int_value": _I64,
        "double_value": _F64,
        "flags": _U32,
    },
    PayloadType.SUMMARY_DATA_POINTS: {
        **_POINT_COLUMNS,
        "count": _U64,
        "sum": _F64,
        "quantile": pa.list_(_QUANTILE),
        "flags": _U32,
    },
    PayloadType.HISTOGRAM_DATA_POINTS: {
        **_POINT_COLUMNS,
        "count": _U64,
        "sum": _F64,
        "bucket_counts": pa.list_(_U64),
        "explicit_bounds": pa.list_(_F64),
        "flags": _U32,
        "min": _F64,
        "max": _F64,
    },
    PayloadType.EXP_HISTOGRAM_DATA_POINTS: {
        **_POINT_COLUMNS,
        "count": _U64,
        "sum": _F64,
        "scale": _I32,
        "zero_count": _U64,
        "positive": _BUCKETS,
        "negative": _BUCKETS,
        "flags": _U32,
        "min": _F64,
        "max": _F64,
        "zero_threshold": _F64,
    },
}
_EXEMPLAR_COLUMNS = {
    "id": _U32,
    "parent_id": _U32,
    "time_unix_nano": _TIME,
    "int_value": _I64,
    "double_value": _F64,
    "span_id": _SPAN_ID,
    "trace_id": _TRACE_ID,
}


def _columns(table: PayloadType) -> Mapping[str, pa.DataType]:
    form = FORMS[table]
    if form is TableForm.EXEMPLARS:
        return _EXEMPLAR_COLUMNS
    if form is not TableForm.ATTRIBUTES:
        return _COLUMNS[table]
    # Of what roots have, there are as many as 16 bits can number; of all else, 32.
    is_of_root = table not in PARENTS or FORMS[PARENTS[table]] is TableForm.ROOT
    return {"parent_id": _U16 if is_of_root else _U32, "key": _TEXT, **_VALUE}


COLUMNS: Mapping[PayloadType, Mapping[str, pa.DataType]] = {
    table: _columns(table) for table in PayloadType
}
# Without these no row means anything. (The specification requires more, and its own reference
# implementation leaves some of that null where it is empty.)
REQUIRED: Mapping[TableForm, frozenset[str]] = {
    TableForm.ROOT: frozenset(),
    TableForm.POINTS: frozenset({"parent_id"}),
    TableForm.EVENTS: frozenset({"parent_id"}),
    TableForm.LINKS: frozenset({"parent_id"}),
    TableForm.EXEMPLARS: frozenset({"parent_id"}),
    TableForm.ATTRIBUTES: frozenset({"parent_id", "key", "type"}),
}
# What the other columns are read by.
_NEVER_IN_DICTIONARIES = frozenset({"id", "type", "metric_type"})
_REQUIRED_OF_ROOT = {
    PayloadType.SPANS: frozenset({"trace_id", "span_id"}),
    PayloadType.UNIVARIATE_METRICS: frozenset({"id", "metric_type"}),
}


def check_columns(table: PayloadType, batch: pa.RecordBatch) -> None:
    """Raise `NotOtap` if a listed column has another type, or a required one is not there."""
    expected = COLUMNS[table]
    for field in batch.schema:
        if field.name in expected and not _fits(field.type, expected[field.name], field.name):
            raise NotOtap(
                f"column {field.name!r} of {table.name} is {field.type}, "
                f"and not {expected[field.name]}"
            )
    for name in REQUIRED[FORMS[table]] | _REQUIRED_OF_ROOT.get(table, frozenset()):
        place = batch.schema.get_field_index(name)
        if place < 0 or batch.column(place).null_count:
            raise NotOtap(f"column {name!r} of {table.name} is missing, or null in some row")


def _fits(found: pa.DataType, expected: pa.DataType, name: str = "") -> bool:
    if pa.types.is_dictionary(found):
        return name not in _NEVER_IN_DICTIONARIES and bool(found.value_type == expected)
    if pa.types.is_timestamp(expected):
        # Some say that it is UTC, which it always is.
        return bool(pa.types.is_timestamp(found) and found.unit == expected.unit)
    if pa.types.is_struct(expected):
        return pa.types.is_struct(found) and _fields_fit(found, expected)
    if pa.types.is_list(expected):
        return pa.types.is_list(found) and _fits(found.value_type, expected.value_type)
    return bool(found == expected)


def _fields_fit(found: pa.StructType, expected: pa.StructType) -> bool:
    names = [found.field(place).name for place in range(found.num_fields)]
    return len(set(names)) == len(names) and all(
        _fits(found.field(name).type, expected.field(name).type, name)
        for name in names
        if expected.get_field_index(name) >= 0
    )
