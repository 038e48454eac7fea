"""Requests of OTLP to a flat table: one row for each item, with what it belongs to joined to it.

Requests are converted in pieces (`pieces.py`), some megabytes together. Of each level (resources,
scopes, items) it is found where all messages of all requests are (`wire.py`): the items are one
list, whatever scope they are in, each with the number of what it stands in, which is repeated by
that.

That repetition is the only thing here that can be far larger than what came: 100,000 empty spans
of a resource with a megabyte of attributes are a request of 1.2 MB. So it is bounded, in each batch
(`JOINED_BYTES_MAX`, by making more of them) and in a table (`TABLE_BYTES_MAX`, by refusing).

Bytes in which a reader of places would see something else than protobuf does (two values of which
the last one counts, groups, and whatever is not valid at all) are read and written once by protobuf
itself, which leaves what they mean, or says that they mean nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableSequence, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from holdfast.quiver.base.arrow import texts
from holdfast.signals.otlp.codec import SERVICE_NAME
from holdfast.signals.otlp.flat.pieces import LEVELS, pieces_of
from holdfast.signals.otlp.flat.points import points_of
from holdfast.signals.otlp.flat.schema import ATTRIBUTES, REQUEST, SCHEMAS, TABLES
from holdfast.signals.otlp.flat.wire import NumpyArray, SeveralValues, fields_of, messages_of
from holdfast.signals.otlp.flat.wire_columns import (
    FlatColumns,
    MessageLevel,
    integers,
    integers_in,
    time_of,
)
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import REQUESTS
from holdfast.signals.otlp.problem import NotOtlp, TooMuchMemory

# Requests that are converted together: that takes a millisecond, however few the items are.
TOGETHER_BYTES_MAX = 4 * 1024 * 1024
# What resources, scopes and metrics take in one batch.
JOINED_BYTES_MAX = 64 * 1024 * 1024
# A whole table; a column of texts can hold twice as much at most.
TABLE_BYTES_MAX = 1024 * 1024 * 1024
_AS_LISTS = pa.list_(ATTRIBUTES.field(0))


def flat_table(
    kind: OtlpKind,
    requests: Sequence[bytes],
    *,
    unreadable: MutableSequence[int] | None = None,
) -> pa.RecordBatch:
    """Return the items of all requests, in their order, as `SCHEMAS` has them.

    Raises `NotOtlp` for a request that is none; with `unreadable`, its place is put there and the
    others are read. Raises `TooMuchMemory` where `flat_batches` has to be used.
    """
    batches, size_bytes = [], 0
    for batch in flat_batches(kind, requests, unreadable=unreadable):
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
) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches that are small, however much their resources take."""
    for some in _together(kind, requests, unreadable):
        yield from _batches_of(kind, some, unreadable)


# Pieces of requests, each with the place of its request.
_PlacedPieces = list[tuple[int, bytes]]


def _together(
    kind: OtlpKind, requests: Sequence[bytes], unreadable: MutableSequence[int] | None
) -> Iterator[_PlacedPieces]:
    """Yield the pieces that are converted at once."""
    waiting: _PlacedPieces = []
    size_bytes = 0
    for place, request in enumerate(requests):
        try:
            for piece in pieces_of(kind, request):
                if waiting and size_bytes + len(piece) > TOGETHER_BYTES_MAX:
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
    pieces: _PlacedPieces,
    unreadable: MutableSequence[int] | None,
) -> list[pa.RecordBatch]:
    try:
        return _unfolded(kind, pieces)
    except (NotOtlp, SeveralValues):
        return _unfolded(kind, _settled(kind, pieces, unreadable))


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


# ------------------------------------------------------------- from places to columns


def _unfolded(kind: OtlpKind, pieces: _PlacedPieces) -> list[pa.RecordBatch]:
    messages = messages_of([piece for _, piece in pieces])
    descriptor: Any = REQUESTS[kind].DESCRIPTOR
    fields = fields_of(messages, descriptor)
    requests = MessageLevel(messages, descriptor, np.arange(len(pieces)), fields)
    resources = requests.below(LEVELS[kind][0])
    scopes = resources.below(LEVELS[kind][1])
    items = scopes.below(LEVELS[kind][2])
    schema = SCHEMAS[TABLES[kind]]
    scope_of = items.owners
    metric_columns: FlatColumns = {}
    metric_of = None
    if kind is OtlpKind.METRICS:
        metric_columns, columns, metric_of = points_of(items, schema)
        scope_of = scope_of[metric_of]
    else:
        columns = _items(kind, items, schema)
    resource_of = scopes.owners[scope_of]
    places = np.array([place for place, _ in pieces], np.int32)
    columns[REQUEST] = integers(places[resources.owners[resource_of]], pa.int32())
    joined = [
        (_resource_columns(resources, schema), resource_of),
        (_scope_columns(scopes, schema), scope_of),
        (metric_columns, metric_of),
    ]
    return _batches(schema, columns, joined)


def _batches(
    schema: pa.Schema, columns: FlatColumns, joined: Sequence[tuple[FlatColumns, NumpyArray | None]]
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
            if places is not None:
                some = integers(places[first : first + count], pa.int64())
                parts |= {name: _repeated(column, some) for name, column in above.items()}
        batches.append(
            pa.RecordBatch.from_arrays([parts[name] for name in schema.names], schema=schema)
        )
    return batches


def _fits_in_one(joined: Sequence[tuple[FlatColumns, NumpyArray | None]]) -> bool:
    """Whether all rows may be one batch, if all that stands above were repeated like the most."""
    size_bytes = 0
    for above, places in joined:
        if places is not None and len(places):
            most = int(np.bincount(places).max())
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


def _resource_columns(resources: MessageLevel, schema: pa.Schema) -> FlatColumns:
    columns = resources.members("resource", "resource_", schema)
    columns["service_name"] = _service_names(columns["resource_attributes"])
    columns["resource_schema_url"] = resources.column("schema_url", pa.string())
    return columns


def _service_names(attributes: pa.Array) -> pa.Array:
    """Return the service of each resource, if it is a text."""
    is_service = pc.equal(attributes.keys, texts([SERVICE_NAME])[0])
    owners = pc.list_parent_indices(attributes.cast(_AS_LISTS)).filter(is_service)
    found = attributes.items.field("string_value").filter(is_service)
    names: list[str | None] = [None] * len(attributes)
    for owner, name in zip(owners.to_pylist(), found.to_pylist(), strict=True):
        names[owner] = names[owner] or name
    return texts(names)


def _scope_columns(scopes: MessageLevel, schema: pa.Schema) -> FlatColumns:
    columns = scopes.members("scope", "scope_", schema)
    columns["scope_schema_url"] = scopes.column("schema_url", pa.string())
    return columns


def _items(kind: OtlpKind, items: MessageLevel, schema: pa.Schema) -> FlatColumns:
    columns = {
        field.name: items.column(field.name, schema.field(field.name).type)
        for field in items.descriptor.fields
        if field.name != "status"
    }
    if kind is OtlpKind.TRACES:
        columns |= items.members("status", "status_", schema)
        start, end = (
            integers_in(columns[name]) for name in ("start_time_unix_nano", "end_time_unix_nano")
        )
        columns["time"] = time_of(end)
        columns["duration_ns"] = integers(end - start, pa.int64(), (start != 0) & (end != 0))
    else:
        happened = integers_in(columns["time_unix_nano"])
        observed = integers_in(columns["observed_time_unix_nano"])
        columns["time"] = time_of(np.where(happened != 0, happened, observed))
    return columns
