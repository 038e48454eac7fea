"""The three flat tables, column by column: docs/format/flat.md says what each one means.

Columns are called as the fields of OTLP are. What belongs to a resource, a scope or a metric is
joined to each of its items and begins with its name. All types are such as polars, duckdb and Spark
have:

- There are no unsigned numbers in Spark. Those of 32 bits are wider here; those of 64 bits keep
  their bits, so that one above 2^63 is negative. No clock and no counter gets there.
- Attributes are a map, by which all three find a key; duckdb refuses to read a map that has a key
  twice (`columns.py` says what becomes of one).
- A value of an attribute is a struct with one member for each type, all null but one. A union would
  be closer to the protocol, and is read by none of them in every place. Lists and maps are JSON in
  text, because a column cannot contain itself.
- Null means that a message is not there (a resource, a scope, a status, a value), which OTLP tells
  apart from one that is there and empty. A field that is no message is never null by itself.

Some columns are said twice, because every question asks for them: `time`, `service_name`,
`duration_ns` and `value` follow from others, and are not looked at on the way back.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from holdfast.signals.otlp.kinds import OtlpKind

# By which request of those that were given a row came.
REQUEST = "_request"
TIME = pa.timestamp("us", tz="UTC")
VALUE = pa.struct(
    [
        ("string_value", pa.string()),
        ("bool_value", pa.bool_()),
        ("int_value", pa.int64()),
        ("double_value", pa.float64()),
        ("bytes_value", pa.binary()),
        # A list or a map: `json_value.py`.
        ("json_value", pa.string()),
    ]
)
ATTRIBUTES = pa.map_(pa.string(), VALUE)
_ENTITY_REF = pa.struct(
    [
        ("schema_url", pa.string()),
        ("type", pa.string()),
        ("id_keys", pa.list_(pa.string())),
        ("description_keys", pa.list_(pa.string())),
    ]
)
_EVENT = pa.struct(
    [
        ("time_unix_nano", pa.int64()),
        ("name", pa.string()),
        ("attributes", ATTRIBUTES),
        ("dropped_attributes_count", pa.int64()),
    ]
)
_LINK = pa.struct(
    [
        ("trace_id", pa.binary()),
        ("span_id", pa.binary()),
        ("trace_state", pa.string()),
        ("attributes", ATTRIBUTES),
        ("dropped_attributes_count", pa.int64()),
        ("flags", pa.int64()),
    ]
)
_EXEMPLAR = pa.struct(
    [
        ("filtered_attributes", ATTRIBUTES),
        ("time_unix_nano", pa.int64()),
        ("as_double", pa.float64()),
        ("as_int", pa.int64()),
        ("span_id", pa.binary()),
        ("trace_id", pa.binary()),
    ]
)
_BUCKETS = pa.struct([("offset", pa.int32()), ("bucket_counts", pa.list_(pa.int64()))])
_QUANTILE = pa.struct([("quantile", pa.float64()), ("value", pa.float64())])

_FIRST = [
    (REQUEST, pa.int32()),
    ("time", TIME),
    ("service_name", pa.string()),
]
_JOINED = [
    ("resource_attributes", ATTRIBUTES),
    ("resource_dropped_attributes_count", pa.int64()),
    ("resource_entity_refs", pa.list_(_ENTITY_REF)),
    ("resource_schema_url", pa.string()),
    ("scope_name", pa.string()),
    ("scope_version", pa.string()),
    ("scope_attributes", ATTRIBUTES),
    ("scope_dropped_attributes_count", pa.int64()),
    ("scope_schema_url", pa.string()),
]
_SPANS = [
    ("trace_id", pa.binary()),
    ("span_id", pa.binary()),
    ("parent_span_id", pa.binary()),
    ("trace_state", pa.string()),
    ("flags", pa.int64()),
    ("name", pa.string()),
    ("kind", pa.int32()),
    ("start_time_unix_nano", pa.int64()),
    ("end_time_unix_nano", pa.int64()),
    ("duration_ns", pa.int64()),
    ("status_code", pa.int32()),
    ("status_message", pa.string()),
    ("attributes", ATTRIBUTES),
    ("dropped_attributes_count", pa.int64()),
    ("events", pa.list_(_EVENT)),
    ("dropped_events_count", pa.int64()),
    ("links", pa.list_(_LINK)),
    ("dropped_links_count", pa.int64()),
]
_LOGS = [
    ("time_unix_nano", pa.int64()),
    ("observed_time_unix_nano", pa.int64()),
    ("severity_number", pa.int32()),
    ("severity_text", pa.string()),
    ("event_name", pa.string()),
    ("body", VALUE),
    ("attributes", ATTRIBUTES),
    ("dropped_attributes_count", pa.int64()),
    ("flags", pa.int64()),
    ("trace_id", pa.binary()),
    ("span_id", pa.binary()),
]
_METRIC = [
    ("metric_name", pa.string()),
    ("metric_description", pa.string()),
    ("metric_unit", pa.string()),
    ("metric_metadata", ATTRIBUTES),
    # Which of the metric's fields has the point, such as `gauge`.
    ("metric_type", pa.string()),
    ("aggregation_temporality", pa.int32()),
    ("is_monotonic", pa.bool_()),
]
_POINTS = [
    ("attributes", ATTRIBUTES),
    ("start_time_unix_nano", pa.int64()),
    ("time_unix_nano", pa.int64()),
    ("value", pa.float64()),
    ("as_double", pa.float64()),
    ("as_int", pa.int64()),
    ("count", pa.int64()),
    ("sum", pa.float64()),
    ("min", pa.float64()),
    ("max", pa.float64()),
    ("bucket_counts", pa.list_(pa.int64())),
    ("explicit_bounds", pa.list_(pa.float64())),
    ("scale", pa.int32()),
    ("zero_count", pa.int64()),
    ("zero_threshold", pa.float64()),
    ("positive", _BUCKETS),
    ("negative", _BUCKETS),
    ("quantile_values", pa.list_(_QUANTILE)),
    ("exemplars", pa.list_(_EXEMPLAR)),
    ("flags", pa.int64()),
]

TABLES: Mapping[OtlpKind, str] = {
    OtlpKind.TRACES: "spans",
    OtlpKind.LOGS: "logs",
    OtlpKind.METRICS: "points",
}
SCHEMAS: Mapping[str, pa.Schema] = {
    "spans": pa.schema([*_FIRST, *_SPANS, *_JOINED]),
    "logs": pa.schema([*_FIRST, *_LOGS, *_JOINED]),
    "points": pa.schema([*_FIRST, *_METRIC, *_POINTS, *_JOINED]),
}
# What follows from other columns.
DERIVED = frozenset({"time", "service_name", "duration_ns", "value"})
# The fields of a metric that hold its points, as `metric_type` calls them.
METRIC_TYPES = ("gauge", "sum", "histogram", "exponential_histogram", "summary")
