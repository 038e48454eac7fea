"""Requests of OTLP to batches of OTAP.

Requests are read in pieces into nested columns (`otlp/flat/nested.py`). What is a list there is a
table here: its items stand beside each other already, and the list's lengths say whose they are.

Rows are put in the order of their resources and scopes, equal ones together, and numbered: a reader
tells by the number alone where another resource begins. Within a scope their order stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from holdfast.signals.otap.attributes import (
    attribute_table,
    body_columns,
    in_dictionary,
    read_bodies,
)
from holdfast.signals.otap.dictionaries import index_dtype
from holdfast.signals.otap.numpy_columns import (
    Numbers,
    bits_of,
    column_of,
    numbers_of,
    packed,
    present,
)
from holdfast.signals.otap.payloads import PayloadType
from holdfast.signals.otap.plans import (
    METRIC_COLUMNS,
    PLANS,
    POINTS,
    RESOURCE_MESSAGE,
    SCOPE_MESSAGE,
    TablePlan,
)
from holdfast.signals.otap.schemas import COLUMNS
from holdfast.signals.otlp.flat.columns import check_single, struct_of
from holdfast.signals.otlp.flat.nested import Converter, converter, descriptor_of, write
from holdfast.signals.otlp.flat.pieces import LEVELS, pieces_of
from holdfast.signals.otlp.flat.wire import SeveralValues
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.otlp.messages import REQUESTS
from holdfast.signals.otlp.problem import NotOtlp

# Ids of 16 bits: more spans, log records or metrics than this are several batches.
BATCH_ROWS_MAX = 2**16
# What is put into one batch, as bytes of OTLP; a batch has about as many.
BATCH_BYTES_MAX = 8 * 1024 * 1024
# Columns that are there even if there is nothing in them.
_ALWAYS = frozenset(
    {
        "start_time_unix_nano",
        "duration_time_unix_nano",
        "time_unix_nano",
        "trace_id",
        "span_id",
        "name",
        "metric_type",
    }
)
_NEVER_OMITTED = {
    PayloadType.SPANS: _ALWAYS,
    PayloadType.SPAN_EVENTS: frozenset({"name"}),
    PayloadType.SPAN_LINKS: frozenset({"trace_id", "span_id"}),
    PayloadType.UNIVARIATE_METRICS: frozenset({"name", "metric_type"}),
}
_NEVER_OMITTED_OF_POINTS = frozenset({"time_unix_nano"})
Tables = dict[str, pa.RecordBatch]


def otap_of(
    kind: OtlpKind, requests: Sequence[bytes], *, by: Converter | None = None
) -> list[Tables]:
    """Return the items of requests as batches, each a table by slot; raises `NotOtlp`.

    Also where an id has another length than OTAP has room for.
    """
    return list(otap_batches(kind, requests, by=by))


def otap_batches(
    kind: OtlpKind, requests: Sequence[bytes], *, by: Converter | None = None
) -> Iterator[Tables]:
    """Yield the same batches one after the other, so that only one is in memory."""
    by = by or converter()
    waiting: list[bytes] = []
    size_bytes = 0
    for request in requests:
        for piece in pieces_of(kind, request):
            if waiting and size_bytes + len(piece) > BATCH_BYTES_MAX:
                yield from _converted(kind, waiting, by)
                waiting, size_bytes = [], 0
            waiting.append(piece)
            size_bytes += len(piece)
    if waiting:
        yield from _converted(kind, waiting, by)


def _converted(kind: OtlpKind, pieces: Sequence[bytes], by: Converter) -> list[Tables]:
    try:
        return list(_Batcher(kind, _nested(kind, pieces, by), by).batches())
    except (NotOtlp, SeveralValues):
        # Read and written once by protobuf itself, which leaves what they mean.
        settled = [_settled(kind, piece) for piece in pieces]
        return list(_Batcher(kind, _nested(kind, settled, by), by).batches())


def _settled(kind: OtlpKind, piece: bytes) -> bytes:
    try:
        request = REQUESTS[kind].FromString(piece)
    except DecodeError as error:
        raise NotOtlp("this is not a valid protobuf message of the kind") from error
    request.DiscardUnknownFields()
    written: bytes = request.SerializeToString()
    return written


def _nested(kind: OtlpKind, pieces: Sequence[bytes], by: Converter) -> pa.StructArray:
    """Return one row for each piece, read in calls of bounded size."""
    return read_bodies(REQUESTS[kind].DESCRIPTOR.full_name, pieces, by)


def lengths_of(lists: pa.Array) -> Numbers:
    """Return how many items each list has; none where there is no list."""
    lengths = np.diff(numbers_of(lists.offsets, "<i4"))
    flags = present(lists)
    return lengths if flags is None else np.where(flags, lengths, 0)


def _taken(column: pa.Array, places: Numbers) -> pa.Array:
    """Return some rows in this order; the column itself if that is what they are."""
    if len(places) == len(column) and (places == np.arange(len(column))).all():
        return column
    return column.take(column_of(places.astype("<i8"), pa.int64()))


class _Batcher:
    """Makes batches of nested columns."""

    def __init__(self, kind: OtlpKind, nested: pa.StructArray, by: Converter) -> None:
        self._kind = kind
        self._by = by
        resource_level, scope_level, item_level = LEVELS[kind]
        self._resources = nested.field(resource_level).values
        scope_lists = self._resources.field(scope_level)
        self._scopes = scope_lists.values
        item_lists = self._scopes.field(item_level)
        self._items = item_lists.values
        # Equal ones are one: each is the first that is equal to it.
        self._first_resource = _first_equal(
            _bodies(self._resources, "resource", RESOURCE_MESSAGE, by), self._resources
        )
        resource_of_scope = np.repeat(np.arange(len(self._resources)), lengths_of(scope_lists))
        scope_keys = _bodies(self._scopes, "scope", SCOPE_MESSAGE, by)
        owners = self._first_resource[resource_of_scope].tolist()
        self._first_scope = _first_equal(list(zip(owners, scope_keys, strict=True)), self._scopes)
        self._scope_of_item = np.repeat(np.arange(len(self._scopes)), lengths_of(item_lists))
        self._resource_of_item = resource_of_scope[self._scope_of_item]

    def batches(self) -> Iterator[Tables]:
        """Yield them, none without rows."""
        resources = self._first_resource[self._resource_of_item]
        scopes = self._first_scope[self._scope_of_item]
        order = np.lexsort((scopes, resources))
        for first in range(0, len(order), BATCH_ROWS_MAX):
            rows = order[first : first + BATCH_ROWS_MAX]
            yield self._batch(rows, resources[rows], scopes[rows])

    def _batch(self, rows: Numbers, resources: Numbers, scopes: Numbers) -> Tables:
        made: dict[PayloadType, pa.RecordBatch] = {}
        columns: dict[str, pa.Array] = {}
        columns["resource"] = self._above(
            self._resources, "resource", resources, made, PayloadType.RESOURCE_ATTRS
        )
        columns["scope"] = self._above(self._scopes, "scope", scopes, made, PayloadType.SCOPE_ATTRS)
        urls = self._scopes.field("schema_url")
        if _has_any(urls):
            columns["schema_url"] = in_dictionary(_taken(urls, scopes))
        items = _taken(self._items, rows)
        if self._kind is OtlpKind.METRICS:
            columns |= _metric_columns(items)
            _add_points(items, made, self._by)
        if self._kind is OtlpKind.LOGS and _has_any(items.field("body")):
            columns["body"] = _body(items.field("body"), self._by)
        _add_table(PLANS[self._kind], items, None, made, columns, self._by)
        root = PLANS[self._kind].table
        ordered = sorted(made, key=lambda table: (table is not root, table))
        return {table.slot: made[table] for table in ordered}

    def _above(
        self,
        holders: pa.Array,
        name: str,
        chosen: Numbers,
        made: dict[PayloadType, pa.RecordBatch],
        table: PayloadType,
    ) -> pa.Array:
        """Return the struct that says what resource or scope each row has; rows are sorted."""
        begins = np.concatenate(([True], chosen[1:] != chosen[:-1]))
        ids = np.cumsum(begins) - 1
        distinct = chosen[begins]
        holder = _taken(holders, distinct)
        members = _fields_of(holder.field(name))
        attributes = attribute_table(
            _without_nulls(members["attributes"]), np.arange(len(distinct)), pa.uint16(), self._by
        )
        if attributes is not None:
            made[table] = attributes
        columns = {"id": column_of(ids.astype("<u2"), pa.uint16())}
        expected = COLUMNS[PLANS[self._kind].table][name]
        if name == "resource":
            members["schema_url"] = holder.field("schema_url")
        for field in expected:
            if field.name != "id" and _has_any(members[field.name]):
                column = _taken(members[field.name], ids)
                is_text = pa.types.is_string(field.type)
                columns[field.name] = in_dictionary(column) if is_text else column
        return pa.StructArray.from_arrays(list(columns.values()), names=list(columns))


def _bodies(
    holders: pa.Array, name: str, message: str, by: Converter
) -> list[tuple[bytes, str | None]]:
    """Return resources or scopes as bytes, with their schemas: what they are equal by."""
    struct = holders.field(name)
    whole = struct_of(struct.type, len(struct), _fields_of(struct))
    written = write(message, whole, by) if len(struct) else []
    return list(zip(written, holders.field("schema_url").to_pylist(), strict=True))


def _fields_of(struct: pa.StructArray) -> dict[str, pa.Array]:
    """Return the fields of messages; of one that is not there, those of an empty one."""
    return {one.name: struct.field(place) for place, one in enumerate(struct.type)}


def _first_equal(keys: Sequence[object], holders: pa.Array) -> Numbers:
    first: dict[object, int] = {}
    found = [first.setdefault(key, place) for place, key in enumerate(keys)]
    return np.array(found, "<i8").reshape(len(holders))


def _without_nulls(lists: pa.Array) -> pa.Array:
    """Return lists that are empty where there was none."""
    if not lists.null_count:
        return lists
    ends = np.concatenate(([0], np.cumsum(lengths_of(lists)))).astype("<i4")
    return pa.Array.from_buffers(
        lists.type, len(lists), [None, pa.py_buffer(ends)], children=[lists.flatten()]
    )


# ----------------------------------------------------------------- tables of messages


def _add_table(
    plan: TablePlan,
    rows: pa.StructArray,
    parents: Numbers | None,
    made: dict[PayloadType, pa.RecordBatch],
    given: Mapping[str, pa.Array],
    by: Converter,
) -> None:
    """Add the table of some messages, and those of what they hold."""
    ids = np.arange(len(rows))
    expected = COLUMNS[plan.table]
    before = len(made)
    if plan.attributes is not None:
        field, table = plan.attributes
        id_type = COLUMNS[table]["parent_id"]
        attributes = attribute_table(_without_nulls(rows.field(field)), ids, id_type, by)
        if attributes is not None:
            made[table] = attributes
    for field, child in plan.children.items():
        lists = _without_nulls(rows.field(field))
        if len(lists.values):
            _add_table(child, lists.values, np.repeat(ids, lengths_of(lists)), made, {}, by)
    columns: dict[str, pa.Array] = {}
    # Only who is referred to needs an id. (Whether a metric is, its points decide.)
    if len(made) > before or plan.table is PayloadType.UNIVARIATE_METRICS:
        columns["id"] = column_of(ids.astype(index_dtype(expected["id"])), expected["id"])
    if parents is not None:
        kind = expected["parent_id"]
        columns["parent_id"] = column_of(parents.astype(index_dtype(kind)), kind)
    columns |= given
    for name, kind in expected.items():
        if name not in columns:
            column = _column(plan, rows, name, kind)
            if column is not None:
                columns[name] = column
    ordered = [name for name in expected if name in columns]
    made[plan.table] = pa.RecordBatch.from_arrays([columns[name] for name in ordered], ordered)


def _column(plan: TablePlan, rows: pa.StructArray, name: str, kind: pa.DataType) -> pa.Array | None:
    """Return what a field of the messages is as a column; None if nothing is in it."""
    if name == "duration_time_unix_nano":
        begins, ends = (
            numbers_of(rows.field(field), "<u8")
            for field in ("start_time_unix_nano", "end_time_unix_nano")
        )
        # Also what ends before it begins: numbers of 64 bits wrap around, here and back.
        return column_of(ends - begins, kind)
    field = plan.renamed.get(name, name)
    if rows.type.get_field_index(field) < 0:
        return None
    column = rows.field(field)
    always = _NEVER_OMITTED.get(plan.table, _NEVER_OMITTED_OF_POINTS)
    has_presence = descriptor_of(plan.message).fields_by_name[field].has_presence
    # That a number is there says something, also if it is zero.
    has_any = column.null_count < len(column) if has_presence else _has_any(column)
    if name not in always and not has_any:
        return None
    if name in ("int_value", "double_value"):
        check_single([rows.field("as_int"), rows.field("as_double")])
    if pa.types.is_fixed_size_binary(kind):
        return _ids(column, kind, f"{name} of {plan.message.rpartition('.')[2]}")
    return _status(column) if name == "status" else _as_column(column, kind)


def _as_column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(kind):
        return in_dictionary(column)
    if pa.types.is_timestamp(kind):
        return column_of(numbers_of(column, "<u8"), kind)
    return column


def _has_any(column: pa.Array) -> bool:
    """Say whether something in a column is neither null nor what is meant by nothing."""
    kind = column.type
    if column.null_count == len(column):
        return False
    if pa.types.is_list(kind):
        return bool(lengths_of(column).any())
    if pa.types.is_struct(kind) or column.null_count:
        return True
    if pa.types.is_boolean(kind):
        return bool(bits_of(column).any())
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        ends = np.frombuffer(column.buffers()[1], "<i4")[column.offset :]
        return bool(ends[len(column)] > ends[0])
    return bool(numbers_of(column, f"<u{kind.bit_width // 8}").any())


def _ids(column: pa.Array, kind: pa.DataType, what: str) -> pa.Array:
    """Return ids of traces or spans, null where there is none."""
    width = kind.byte_width
    ends = np.frombuffer(column.buffers()[1], "<i4")[column.offset :][: len(column) + 1]
    lengths = np.diff(ends)
    flags = lengths == width
    if not (flags | (lengths == 0)).all():
        raise NotOtlp(f"{what} has neither 0 nor {width} bytes")
    data = column.buffers()[2]
    content = np.frombuffer(b"" if data is None else data, "u1")[ends[0] : ends[-1]]
    if flags.all():
        filled = content
    else:
        filled = np.zeros((len(column), width), "u1")
        filled[flags] = content.reshape(-1, width)
    validity = None if flags.all() else packed(flags)
    return pa.Array.from_buffers(kind, len(column), [validity, pa.py_buffer(filled.tobytes())])


def _status(column: pa.Array) -> pa.Array | None:
    columns = {}
    if _has_any(column.field("code")):
        columns["code"] = column.field("code")
    if _has_any(column.field("message")):
        columns["status_message"] = in_dictionary(column.field("message"))
    if not columns:
        return None
    mask = column.is_null() if column.null_count else None
    return pa.StructArray.from_arrays(list(columns.values()), names=list(columns), mask=mask)


def _body(column: pa.Array, by: Converter) -> pa.Array:
    columns, nulls = body_columns(column, by)
    if "str" in columns:
        text = in_dictionary(columns["str"], pa.uint16())
        # A text that is another in nearly every row needs more in a dictionary than without.
        if pa.types.is_dictionary(text.type) and 2 * len(text.dictionary) <= len(text):
            columns["str"] = text
    return pa.StructArray.from_arrays(list(columns.values()), names=list(columns), mask=nulls)


# --------------------------------------------------------------------------- metrics


def _metric_columns(metrics: pa.StructArray) -> dict[str, pa.Array]:
    """Return the columns of metrics that are fields of what holds their points."""
    check_single([metrics.field(name) for name in POINTS])
    types = np.zeros(len(metrics), "u1")
    columns: dict[str, pa.Array] = {}
    flags_of = {}
    for name, (number, _) in POINTS.items():
        flags = present(metrics.field(name))
        flags_of[name] = np.ones(len(metrics), np.bool_) if flags is None else flags
        types[flags_of[name]] = number
    for column, holders in METRIC_COLUMNS.items():
        kind = COLUMNS[PayloadType.UNIVARIATE_METRICS][column]
        numbers = np.zeros(len(metrics), np.bool_ if kind == pa.bool_() else "<i4")
        for name in holders:
            field = metrics.field(name).field(column)
            values = bits_of(field) if kind == pa.bool_() else numbers_of(field, "<i4")
            numbers[flags_of[name]] = values[flags_of[name]]
        if numbers.any():
            columns[column] = (
                pa.Array.from_buffers(kind, len(metrics), [None, packed(numbers)])
                if kind == pa.bool_()
                else column_of(numbers, kind)
            )
    return {"metric_type": column_of(types, pa.uint8()), **columns}


def _add_points(
    metrics: pa.StructArray, made: dict[PayloadType, pa.RecordBatch], by: Converter
) -> None:
    """Add the tables of points; those of gauges and sums are one, in the order of metrics."""
    found: dict[PayloadType, tuple[TablePlan, list[pa.Array], list[Numbers]]] = {}
    for name, (_, plan) in POINTS.items():
        holder = metrics.field(name)
        lists = _without_nulls(holder.flatten()[holder.type.get_field_index("data_points")])
        if len(lists.values):
            _, points, parents = found.setdefault(plan.table, (plan, [], []))
            points.append(lists.values)
            parents.append(np.repeat(np.arange(len(metrics)), lengths_of(lists)))
    for plan, points, parents in found.values():
        rows, owners = pa.concat_arrays(points), np.concatenate(parents)
        order = np.argsort(owners, kind="stable")
        _add_table(plan, _taken(rows, order), owners[order], made, {}, by)
