"""Requests of OTLP to a flat table: one row for each item, with what it belongs to joined to it.

Requests are converted in pieces (`pieces.py`), each into nested columns (`nested.py`) of which the
levels are then unfolded: the items are all in one column already, whatever scope they are in, and
what stands above them is repeated by the number of its items.

That repetition is the only thing here that can be far larger than what came: 100,000 empty spans
of a resource with a megabyte of attributes are a request of 1.2 MB. So it is bounded, in each batch
(`JOINED_BYTES_MAX`, by making more of them) and in a table (`TABLE_BYTES_MAX`, by refusing).

Bytes in which a reader of columns would see something else than protobuf does (two values of which
the last one counts, groups, and whatever is not valid at all) are read and written once by protobuf
itself, which leaves what they mean, or says that they mean nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableSequence, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from holdfast.quiver.base.arrow import constant, numbers, texts
from holdfast.signals.otlp.codec import SERVICE_NAME
from holdfast.signals.otlp.flat.columns import SeveralValues, as_flat, check_single
from holdfast.signals.otlp.flat.nested import Converter, converter, read
from holdfast.signals.otlp.flat.pieces import CALL_BYTES_MAX, LEVELS, pieces_of
from holdfast.signals.otlp.flat.schema import METRIC_TYPES, REQUEST, SCHEMAS, TABLES, TIME
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import REQUESTS
from holdfast.signals.otlp.problem import NotOtlp, TooMuchMemory

# So many results of calls are unfolded together, 4 MB of requests: unfolding takes a millisecond,
# however few the items are.
CALLS_AT_ONCE = 16
# What resources, scopes and metrics take in one batch.
JOINED_BYTES_MAX = 64 * 1024 * 1024
# A whole table; a column of texts can hold twice as much at most.
TABLE_BYTES_MAX = 1024 * 1024 * 1024
_NS_PER_US = 1000
# A column by name, while a batch is put together.
_ColumnsByName = dict[str, pa.Array]


def flat_table(
    kind: OtlpKind,
    requests: Sequence[bytes],
    *,
    unreadable: MutableSequence[int] | None = None,
    by: Converter | None = None,
) -> pa.RecordBatch:
    """Return the items of all requests, in their order, as `SCHEMAS` has them.

    Raises `NotOtlp` for a request that is none; with `unreadable`, its place is put there and the
    others are read. Raises `TooMuchMemory` where `flat_batches` has to be used.
    """
    batches, size_bytes = [], 0
    for batch in flat_batches(kind, requests, unreadable=unreadable, by=by):
        batches.append(batch)
        size_bytes += batch.nbytes
        if size_bytes > TABLE_BYTES_MAX:
            raise TooMuchMemory(f"a flat table of more than {TABLE_BYTES_MAX} bytes")
    if not batches:
        schema = SCHEMAS[TABLES[kind]]
        return pa.RecordBatch.from_arrays([pa.nulls(0, one.type) for one in schema], schema=schema)
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def flat_batches(
    kind: OtlpKind,
    requests: Sequence[bytes],
    *,
    unreadable: MutableSequence[int] | None = None,
    by: Converter | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches that are small, however much their resources take."""
    by = by or converter()
    calls = _calls(kind, requests, unreadable)
    while some := list(islice(calls, CALLS_AT_ONCE)):
        yield from _batches_of(kind, some, unreadable, by)


# Pieces of requests, each with the place of its request.
_PlacedPieces = list[tuple[int, bytes]]


def _calls(
    kind: OtlpKind, requests: Sequence[bytes], unreadable: MutableSequence[int] | None
) -> Iterator[_PlacedPieces]:
    """Yield the pieces that are converted at once."""
    waiting: _PlacedPieces = []
    size_bytes = 0
    for place, request in enumerate(requests):
        try:
            for piece in pieces_of(kind, request):
                if waiting and size_bytes + len(piece) > CALL_BYTES_MAX:
                    yield waiting
                    waiting, size_bytes = [], 0
                waiting.append((place, piece))
                size_bytes += len(piece)
        except NotOtlp as error:
            _leave_out(place, error, unreadable)
    if waiting:
        yield waiting


def _leave_out(place: int, error: NotOtlp, unreadable: MutableSequence[int] | None) -> None:
    if unreadable is None:
        raise error.inside(f"requests[{place}]") from error
    if place not in unreadable:
        unreadable.append(place)


def _batches_of(
    kind: OtlpKind,
    calls: Sequence[_PlacedPieces],
    unreadable: MutableSequence[int] | None,
    by: Converter,
) -> list[pa.RecordBatch]:
    try:
        return _unfolded(kind, calls, by)
    except (NotOtlp, SeveralValues):
        settled = [_settled(kind, pieces, unreadable) for pieces in calls]
        return _unfolded(kind, settled, by)


def _settled(
    kind: OtlpKind, pieces: _PlacedPieces, unreadable: MutableSequence[int] | None
) -> _PlacedPieces:
    """Return the pieces as protobuf understands them, without those that it refuses."""
    settled = []
    for place, piece in pieces:
        try:
            request = REQUESTS[kind].FromString(piece)
        except DecodeError:
            error = NotOtlp("this is not a valid protobuf message of the kind")
            _leave_out(place, error, unreadable)
            continue
        request.DiscardUnknownFields()
        settled.append((place, request.SerializeToString()))
    return settled


# --------------------------------------------------------------- from nested columns


def _unfolded(
    kind: OtlpKind, calls: Sequence[_PlacedPieces], by: Converter
) -> list[pa.RecordBatch]:
    message = REQUESTS[kind].DESCRIPTOR.full_name
    nested = pa.concat_arrays(
        [read(message, [piece for _, piece in pieces], by) for pieces in calls]
    )
    resource_lists = nested.field(LEVELS[kind][0])
    resources = resource_lists.values
    scope_lists = resources.field(LEVELS[kind][1])
    scopes = scope_lists.values
    item_lists = scopes.field(LEVELS[kind][2])
    items = item_lists.values
    schema = SCHEMAS[TABLES[kind]]
    scope_of = pc.list_parent_indices(item_lists)
    metric_columns: _ColumnsByName = {}
    metric_of = None
    if kind is OtlpKind.METRICS:
        metric_columns = _metric_columns(items, schema)
        columns, metric_of = _points(items, schema)
        scope_of = scope_of.take(metric_of)
    else:
        columns = _items(kind, items, schema)
    resource_of = pc.list_parent_indices(scope_lists).take(scope_of)
    request_of = pc.list_parent_indices(resource_lists).take(resource_of)
    places = numbers([place for pieces in calls for place, _ in pieces], pa.int32())
    columns[REQUEST] = places.take(request_of)
    joined = [
        (_resource_columns(resources, schema), resource_of),
        (_scope_columns(scopes, schema), scope_of),
        (metric_columns, metric_of),
    ]
    return _batches(schema, columns, joined)


def _batches(
    schema: pa.Schema, columns: _ColumnsByName, joined: Sequence[tuple[_ColumnsByName, Any]]
) -> list[pa.RecordBatch]:
    """Return the rows with what is joined to them, in batches of bounded size."""
    rows = len(columns[REQUEST])
    batch_rows = max(1, rows)
    if not _fits_in_one(joined):
        # As if each row were joined to all there is: one that is joined to less is only smaller.
        row_bytes = sum(column.nbytes for above, _ in joined for column in above.values())
        batch_rows = max(1, JOINED_BYTES_MAX // max(1, row_bytes))
    batches = []
    for first in range(0, rows, batch_rows):
        count = min(batch_rows, rows - first)
        parts = {name: column.slice(first, count) for name, column in columns.items()}
        for above, places in joined:
            for name, column in above.items():
                parts[name] = _repeated(column, places.slice(first, count))
        batches.append(
            pa.RecordBatch.from_arrays([parts[name] for name in schema.names], schema=schema)
        )
    return batches


def _fits_in_one(joined: Sequence[tuple[_ColumnsByName, Any]]) -> bool:
    """Whether all rows may be one batch, if all that stands above were repeated like the most."""
    size_bytes = 0
    for above, places in joined:
        if above and len(places):
            held = np.frombuffer(places.buffers()[1], str(places.type))
            most = int(np.bincount(held[places.offset : places.offset + len(places)]).max())
            size_bytes += most * sum(column.nbytes for column in above.values())
    return size_bytes <= JOINED_BYTES_MAX


def _repeated(column: pa.Array, places: pa.Array) -> pa.Array:
    """Return the values at places; most columns above items are empty, which is said at once."""
    kind, rows = column.type, len(places)
    is_list = pa.types.is_list(kind) or pa.types.is_map(kind)
    if column.null_count or not (is_list or pa.types.is_string(kind)):
        return column.take(places)
    nothing = pa.py_buffer(bytes(4 * (rows + 1)))
    if is_list:
        items = column.values if pa.types.is_list(kind) else column.keys
        if not len(items):
            children = [pa.nulls(0, kind.field(0).type)]
            return pa.Array.from_buffers(kind, rows, [None, nothing], children=children)
    elif column.buffers()[2] is None or not column.buffers()[2].size:
        return pa.Array.from_buffers(kind, rows, [None, nothing, pa.py_buffer(b"")])
    return column.take(places)


def _flat_members(struct: pa.Array, schema: pa.Schema, prefix: str) -> _ColumnsByName:
    """Return the members of a message as columns with a prefix; null where it is not there."""
    # `flatten` carries the nulls of the whole over to its members.
    members = zip([field.name for field in struct.type], struct.flatten(), strict=True)
    return {
        prefix + name: as_flat(member, schema.field(prefix + name).type) for name, member in members
    }


def _resource_columns(resources: pa.Array, schema: pa.Schema) -> _ColumnsByName:
    resource = resources.field("resource")
    columns = _flat_members(resource, schema, "resource_")
    columns["service_name"] = _service_names(
        resource.field("attributes"), columns["resource_attributes"]
    )
    columns["resource_schema_url"] = resources.field("schema_url")
    return columns


def _service_names(lists: pa.Array, attributes: pa.Array) -> pa.Array:
    """Return the service of each resource, if it is a text."""
    is_service = pc.equal(attributes.keys, texts([SERVICE_NAME])[0])
    owners = pc.list_parent_indices(lists).filter(is_service)
    found = attributes.items.field("string_value").filter(is_service)
    names: list[str | None] = [None] * len(attributes)
    for owner, name in zip(owners.to_pylist(), found.to_pylist(), strict=True):
        names[owner] = names[owner] or name
    return texts(names)


def _scope_columns(scopes: pa.Array, schema: pa.Schema) -> _ColumnsByName:
    columns = _flat_members(scopes.field("scope"), schema, "scope_")
    columns["scope_schema_url"] = scopes.field("schema_url")
    return columns


def _items(kind: OtlpKind, items: pa.Array, schema: pa.Schema) -> _ColumnsByName:
    columns = {
        field.name: as_flat(items.field(field.name), schema.field(field.name).type)
        for field in items.type
        if field.name != "status"
    }
    if kind is OtlpKind.TRACES:
        columns |= _flat_members(items.field("status"), schema, "status_")
        start, end = columns["start_time_unix_nano"], columns["end_time_unix_nano"]
        columns["time"] = _time(end)
        columns["duration_ns"] = pc.subtract(_unless_zero(end), _unless_zero(start))
    else:
        known = _unless_zero(columns["time_unix_nano"])
        columns["time"] = _time(pc.coalesce(known, columns["observed_time_unix_nano"]))
    return columns


def _unless_zero(times_ns: pa.Array) -> pa.Array:
    """Return times with null for those that are not known."""
    zero = constant(0, pa.int64())
    return pc.if_else(pc.equal(times_ns, zero), pa.nulls(1, pa.int64())[0], times_ns)


def _time(times_ns: pa.Array) -> pa.Array:
    """Return times as such; one beyond 2262, which has the sign of one before 1970, is none."""
    known = pc.if_else(
        pc.greater(times_ns, constant(0, pa.int64())), times_ns, pa.nulls(1, pa.int64())[0]
    )
    return pc.divide(known, constant(_NS_PER_US, pa.int64())).cast(TIME)


# ---------------------------------------------------------------------------- metrics


def _metric_columns(metrics: pa.Array, schema: pa.Schema) -> _ColumnsByName:
    names = ("name", "description", "unit", "metadata")
    return {
        f"metric_{name}": as_flat(metrics.field(name), schema.field(f"metric_{name}").type)
        for name in names
    }


def _points(metrics: pa.Array, schema: pa.Schema) -> tuple[_ColumnsByName, pa.Array]:
    """Return the points of all metrics in their order, and the place of each one's metric."""
    check_single([metrics.field(name) for name in METRIC_TYPES])
    found = [_TypedPoints(place, metrics.field(name)) for place, name in enumerate(METRIC_TYPES)]
    some = [one for one in found if one.count] or found[:1]
    metric_of = pa.concat_arrays([one.metric_of for one in some])
    # A metric has points of one type only, so these stay in their order.
    order = None if len(some) == 1 else pc.sort_indices(metric_of)
    columns = {name: _point_column(name, some, order, schema) for name in _OF_POINTS}
    check_single([columns["as_double"], columns["as_int"]])
    for name in ("aggregation_temporality", "is_monotonic"):
        columns[name] = _ordered([one.of_data(name, schema) for one in some], order)
    places = pa.concat_arrays([numbers([one.place] * one.count, pa.int32()) for one in some])
    columns["metric_type"] = texts(METRIC_TYPES).take(_ordered([places], order))
    columns["time"] = _time(columns["time_unix_nano"])
    whole = columns["as_int"].cast(pa.float64(), safe=False)
    columns["value"] = pc.coalesce(columns["as_double"], whole)
    return columns, _ordered([metric_of], order)


# What a point has of its own, beside what its metric says of all its points.
_OF_POINTS = (
    *("attributes", "start_time_unix_nano", "time_unix_nano", "as_double", "as_int", "count"),
    *("sum", "min", "max", "bucket_counts", "explicit_bounds", "scale", "zero_count"),
    *("zero_threshold", "positive", "negative", "quantile_values", "exemplars", "flags"),
)


class _TypedPoints:
    """The points of one type, in nested form."""

    def __init__(self, place: int, data: pa.Array) -> None:
        self.place = place
        self._data = data
        lists = data.field("data_points")
        self._points = lists.values
        self._names = {field.name for field in self._points.type}
        self.metric_of = pc.list_parent_indices(lists)
        self.count = len(self._points)

    def field(self, name: str) -> pa.Array | None:
        """Return what each point has of a field; None if points of this type have none."""
        return self._points.field(name) if name in self._names else None

    def of_data(self, name: str, schema: pa.Schema) -> pa.Array:
        """Return what the metric says of each of its points."""
        if name in {field.name for field in self._data.type}:
            return self._data.field(name).take(self.metric_of)
        return pa.nulls(self.count, schema.field(name).type)


def _point_column(
    name: str, some: Sequence[_TypedPoints], order: pa.Array | None, schema: pa.Schema
) -> pa.Array:
    """Return one column of all points.

    They are put in order before they are made flat, where several types have the column: what is
    nested still is one list of bytes where a flat column has seven within each other.
    """
    kind = schema.field(name).type
    fields = [one.field(name) for one in some]
    having = [field for field in fields if field is not None]
    if not having:
        return pa.nulls(sum(one.count for one in some), kind)
    if len(having) < len(some):
        filled = [
            pa.nulls(one.count, kind) if field is None else as_flat(field, kind)
            for one, field in zip(some, fields, strict=True)
        ]
        return _ordered(filled, order)
    if order is None:
        return as_flat(having[0], kind)
    if len({field.type for field in having}) > 1:
        return _ordered([as_flat(field, kind) for field in having], order)
    return as_flat(_ordered(having, order), kind)


def _ordered(parts: Sequence[pa.Array], order: pa.Array | None) -> pa.Array:
    """Return parts behind each other, or in an order."""
    whole = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
    return whole if order is None else whole.take(order)
