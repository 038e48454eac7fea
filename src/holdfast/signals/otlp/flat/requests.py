"""A flat table to requests of OTLP, as they could have come.

Rows of one request that have equal resources are put into one again, and so are equal scopes within
one; the points of a metric are together if they follow each other. So a request that comes back is
not byte for byte what it was, but says the same: resources, scopes and metrics without items are in
no table, and fields that this version of OTLP does not know are not either.

What is equal is told by the bytes: resources and scopes are written for each row, as items are, and
compared. Then everything is put together on the wire, which needs a number and a length before each
message and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa

from holdfast.errors import BadInput
from holdfast.quiver.base.arrow import numbers
from holdfast.signals.otlp.codec import as_varint
from holdfast.signals.otlp.flat.columns import as_nested, struct_of
from holdfast.signals.otlp.flat.nested import Converter, converter, descriptor_of, type_of, write
from holdfast.signals.otlp.flat.pieces import CALL_BYTES_MAX
from holdfast.signals.otlp.flat.schema import DERIVED, METRIC_TYPES, REQUEST, SCHEMAS, TABLES
from holdfast.signals.otlp.kinds import OtlpKind

_PROTO = "opentelemetry.proto"
_RESOURCE = f"{_PROTO}.resource.v1.Resource"
_SCOPE = f"{_PROTO}.common.v1.InstrumentationScope"
_METRIC = f"{_PROTO}.metrics.v1.Metric"
_ITEMS = {
    OtlpKind.TRACES: f"{_PROTO}.trace.v1.Span",
    OtlpKind.LOGS: f"{_PROTO}.logs.v1.LogRecord",
}
# By the type of a metric: the message that holds its points, and that of a point.
_DATA = {
    "gauge": ("Gauge", "NumberDataPoint"),
    "sum": ("Sum", "NumberDataPoint"),
    "histogram": ("Histogram", "HistogramDataPoint"),
    "exponential_histogram": ("ExponentialHistogram", "ExponentialHistogramDataPoint"),
    "summary": ("Summary", "SummaryDataPoint"),
}
# Numbers of fields, the same for all signals: the resources of a request; of a resource or a scope
# itself what it is, what it holds, and its schema; the points of what a metric holds.
_RESOURCES, _MESSAGE, _HELD, _SCHEMA_URL, _DATA_POINTS = 1, 1, 2, 3, 1


def requests_of(
    kind: OtlpKind, table: pa.RecordBatch | pa.Table, *, by: Converter | None = None
) -> list[bytes]:
    """Return the requests that a table has rows of, in the order of their numbers.

    Columns that follow from others may be missing. Raises `BadInput` for a table that is no flat
    table of this kind.
    """
    by = by or converter()
    rows: list[_ItemRow] = []
    for batch in _batches_of(kind, table):
        rows += _rows_of(kind, batch, by)
    rows.sort(key=lambda row: row.request)
    return [_request(some) for _, some in groupby(rows, key=lambda row: row.request)]


class _ItemRow(NamedTuple):
    """One item, and what it belongs to, as bytes."""

    request: int
    # The fields of the resource and of the scope, but for what they hold.
    resource: tuple[bytes, bytes]
    scope: tuple[bytes, bytes]
    # Of a point: the fields of its metric, the number of the field for its type, and the fields of
    # that beside the points.
    metric: tuple[bytes, int, bytes] | None
    item: bytes


def _batches_of(kind: OtlpKind, table: pa.RecordBatch | pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield the columns that are needed, in batches that one call may have."""
    schema = SCHEMAS[TABLES[kind]]
    wanted = [field for field in schema if field.name not in DERIVED]
    missing = [field.name for field in wanted if field.name not in table.schema.names]
    if missing:
        raise BadInput(
            f"this is no flat table of {TABLES[kind]}: it has no column `{missing[0]}`",
            hint="docs/format/flat.md lists the columns",
        )
    whole = table if isinstance(table, pa.Table) else pa.Table.from_batches([table])
    try:
        whole = whole.select([field.name for field in wanted]).cast(pa.schema(wanted))
    except pa.ArrowInvalid as error:
        raise _not_flat(kind, str(error)) from None
    if not whole.num_rows:
        return
    size_max = max(1, CALL_BYTES_MAX * whole.num_rows // max(1, whole.nbytes))
    for batch in whole.to_batches(max_chunksize=size_max):
        # A copy that begins at its first row: what is behind a slice would be converted, too.
        columns = [pa.concat_arrays([column]) for column in batch.columns]
        yield pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _not_flat(kind: OtlpKind, reason: str) -> BadInput:
    return BadInput(
        f"this is no flat table of {TABLES[kind]}: {reason}",
        hint="docs/format/flat.md says what its columns are",
    )


def _rows_of(kind: OtlpKind, batch: pa.RecordBatch, by: Converter) -> list[_ItemRow]:
    try:
        resources = _members(batch, "resource_", _RESOURCE, by)
        scopes = _members(batch, "scope_", _SCOPE, by)
        items, metrics = _items(kind, batch, by)
    except (pa.ArrowInvalid, ValueError) as error:
        raise _not_flat(kind, str(error)) from None
    places = [place or 0 for place in batch.column(REQUEST).to_pylist()]
    return [_ItemRow(*row) for row in zip(places, resources, scopes, metrics, items, strict=True)]


def _members(
    batch: pa.RecordBatch, prefix: str, message: str, by: Converter
) -> list[tuple[bytes, bytes]]:
    """Return what stands above the items, as the field of the message and that of its schema."""
    kind = type_of(descriptor_of(message))
    columns = {field.name: batch.column(prefix + field.name) for field in kind}
    # The message is there where its number of dropped attributes is.
    is_there = columns["dropped_attributes_count"]
    written = write(message, _nested(kind, columns, batch.num_rows, by), by)
    urls = batch.column(f"{prefix}schema_url").to_pylist()
    return [
        (
            _field(_MESSAGE, body) if there.is_valid else b"",
            _field(_SCHEMA_URL, url.encode()) if url else b"",
        )
        for body, there, url in zip(written, is_there, urls, strict=True)
    ]


def _nested(
    kind: pa.DataType, columns: Mapping[str, pa.Array], rows: int, by: Converter
) -> pa.Array:
    nested = {
        name: as_nested(column, kind.field(name).type, by) for name, column in columns.items()
    }
    return struct_of(kind, rows, nested)


def _items(
    kind: OtlpKind, batch: pa.RecordBatch, by: Converter
) -> tuple[list[bytes], Sequence[tuple[bytes, int, bytes] | None]]:
    if kind is OtlpKind.METRICS:
        return _points(batch, by)
    message = _ITEMS[kind]
    item = type_of(descriptor_of(message))
    columns = {name: batch.column(name) for name in _names(item) if name != "status"}
    nested = {
        name: as_nested(column, item.field(name).type, by) for name, column in columns.items()
    }
    if kind is OtlpKind.TRACES:
        nested["status"] = _status(batch, item.field("status").type)
    return write(message, struct_of(item, batch.num_rows, nested), by), [None] * batch.num_rows


def _names(kind: pa.DataType) -> list[str]:
    return [field.name for field in kind]


def _status(batch: pa.RecordBatch, target: pa.DataType) -> pa.Array:
    members = {name: batch.column(f"status_{name}") for name in _names(target)}
    return struct_of(target, batch.num_rows, members, members["code"].buffers()[0])


def _points(
    batch: pa.RecordBatch, by: Converter
) -> tuple[list[bytes], Sequence[tuple[bytes, int, bytes] | None]]:
    """Return points, and what their metrics are beside them; type by type, in the rows' order."""
    metric = type_of(descriptor_of(_METRIC))
    columns = {
        name: batch.column(f"metric_{name}") for name in ("name", "description", "unit", "metadata")
    }
    heads = write(_METRIC, _nested(metric, columns, batch.num_rows, by), by)
    number_of = {field.name: field.number for field in descriptor_of(_METRIC).fields}
    types = batch.column("metric_type").to_pylist()
    points: list[bytes] = [b""] * batch.num_rows
    metrics: list[tuple[bytes, int, bytes] | None] = [None] * batch.num_rows
    for name in METRIC_TYPES:
        places = [place for place, one in enumerate(types) if one == name]
        if not places:
            continue
        some = batch.take(numbers(places, pa.int32()))
        holder, point = (f"{_PROTO}.metrics.v1.{message}" for message in _DATA[name])
        of_type = zip(places, _messages(some, point, by), _messages(some, holder, by), strict=True)
        for place, item, data in of_type:
            points[place] = item
            metrics[place] = (heads[place], number_of[name], data)
    if None in metrics:
        place = metrics.index(None)
        raise ValueError(f"`metric_type` is {types[place]!r} in row {place}")
    return points, metrics


def _messages(batch: pa.RecordBatch, message: str, by: Converter) -> list[bytes]:
    """Return a message of which every field that is no list of points is a column."""
    kind = type_of(descriptor_of(message))
    columns = {name: batch.column(name) for name in _names(kind) if name != "data_points"}
    return write(message, _nested(kind, columns, batch.num_rows, by), by)


# ------------------------------------------------------------------------ on the wire


def _field(number: int, content: bytes) -> bytes:
    """Return a field that holds bytes, a text or a message."""
    return b"".join((as_varint(number << 3 | 2), as_varint(len(content)), content))


def _request(rows: Iterator[_ItemRow]) -> bytes:
    """Return a request of rows, with what is equal put together."""
    resources: dict[tuple[bytes, bytes], dict[tuple[bytes, bytes], list[_ItemRow]]] = {}
    for row in rows:
        scopes = resources.setdefault(row.resource, {})
        scopes.setdefault(row.scope, []).append(row)
    return b"".join(
        _field(_RESOURCES, _resource(resource, scopes)) for resource, scopes in resources.items()
    )


def _resource(
    resource: tuple[bytes, bytes], scopes: Mapping[tuple[bytes, bytes], Sequence[_ItemRow]]
) -> bytes:
    message, schema_url = resource
    held = [_field(_HELD, _scope(scope, rows)) for scope, rows in scopes.items()]
    return b"".join((message, *held, schema_url))


def _scope(scope: tuple[bytes, bytes], rows: Sequence[_ItemRow]) -> bytes:
    message, schema_url = scope
    held = []
    for metric, some in groupby(rows, key=lambda row: row.metric):
        items = [row.item for row in some]
        if metric is None:
            held += [_field(_HELD, item) for item in items]
        else:
            head, number, data = metric
            points = [_field(_DATA_POINTS, item) for item in items]
            held.append(_field(_HELD, head + _field(number, b"".join((*points, data)))))
    return b"".join((message, *held, schema_url))
