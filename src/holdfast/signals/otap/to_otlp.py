"""Batches of OTAP to requests of OTLP.

The rows of a table become messages in nested columns (`otlp/flat/nested.py`), with what refers to
them as lists. Those are written by one call for many rows; resources and scopes are written once
each, and everything is put together on the wire, where a message needs a number and a length before
it and nothing else.

Tables are believed as far as `StreamDecoder` has checked them. What is bounded here is how often
the attributes of one scope or resource are repeated, because a table may have a scope of a megabyte
and refer to it from each of 65,536 resources; and how much all requests are together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.signals.otap.attributes import bodies_of, pairs_of, without_dictionary
from holdfast.signals.otap.dictionaries import index_dtype
from holdfast.signals.otap.numpy_columns import Numbers, column_of, numbers_of, packed, present
from holdfast.signals.otap.payloads import ID, PARENT_ID, PayloadType
from holdfast.signals.otap.plans import (
    METRIC_COLUMNS,
    PLANS,
    POINTS,
    RESOURCE_MESSAGE,
    SCOPE_MESSAGE,
    TablePlan,
)
from holdfast.signals.otap.problem import NotOtap
from holdfast.signals.otlp.codec import as_varint
from holdfast.signals.otlp.flat.columns import struct_of
from holdfast.signals.otlp.flat.nested import Converter, converter, descriptor_of, type_of, write
from holdfast.signals.otlp.flat.pieces import CALL_BYTES_MAX
from holdfast.signals.otlp.kinds import OtlpKind

# Items of one request; a single one may be larger. Far below what backends take, and they count
# resources and scopes, too: what they find too large is cut between requests, and nowhere else.
REQUEST_BYTES_MAX = 512 * 1024
# All requests of one batch. Each says its resources and scopes again, so that they can be far more
# than the tables were.
CONVERTED_BYTES_MAX = 256 * 1024 * 1024
# How many rows a table may become by being referred to more than once, above those that it has.
REPEATED_ROWS_MAX = 1024 * 1024
# Numbers of fields, the same for all signals: the resources of a request; of a resource or a scope
# what it is, what it holds, and its schema.
_RESOURCES, _MESSAGE, _HELD, _SCHEMA_URL = 1, 1, 2, 3
_NO_ID = -1


def otlp_of(
    kind: OtlpKind, tables: Mapping[str, pa.RecordBatch], *, by: Converter | None = None
) -> list[bytes]:
    """Return the requests that a batch stands for, each of bounded size; raises `NotOtap`."""
    by = by or converter()
    requests, size_bytes = [], 0
    try:
        for request in _RequestMaker(kind, tables, by).requests():
            size_bytes += len(request)
            if size_bytes > CONVERTED_BYTES_MAX:
                raise NotOtap(f"as OTLP it has more than {CONVERTED_BYTES_MAX} bytes")
            requests.append(request)
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise NotOtap(f"the tables are not a batch of {kind.value}: {error}") from error
    return requests


class _Above(NamedTuple):
    """A resource or a scope, as the bytes of its two fields."""

    message: bytes
    schema_url: bytes


class _RequestMaker:
    """Makes requests of tables."""

    def __init__(self, kind: OtlpKind, tables: Mapping[str, pa.RecordBatch], by: Converter) -> None:
        self._kind = kind
        self._by = by
        self._plan = PLANS[kind]
        self._root = tables.get(self._plan.table.slot)
        self._children = {
            table: _Children(tables[table.slot])
            for table in PayloadType
            if table is not self._plan.table and table.slot in tables
        }
        self._bytes = sum(batch.nbytes for batch in tables.values())

    def requests(self) -> Iterator[bytes]:
        """Yield them."""
        if self._root is None or not self._root.num_rows:
            return
        resources, resource_of = self._heads("resource", RESOURCE_MESSAGE)
        scopes, scope_of = self._heads("scope", SCOPE_MESSAGE)
        rows = self._root.num_rows
        call_rows = max(1, CALL_BYTES_MAX * rows // max(1, self._bytes))
        held: dict[_Above, dict[_Above, list[bytes]]] = {}
        size_bytes = 0
        for first in range(0, rows, call_rows):
            items = self._items(first, min(call_rows, rows - first))
            places = zip(
                resource_of[first : first + call_rows].tolist(),
                scope_of[first : first + call_rows].tolist(),
                strict=True,
            )
            for item, (resource, scope) in zip(items, places, strict=True):
                if held and size_bytes + len(item) > REQUEST_BYTES_MAX:
                    yield _request(held)
                    held, size_bytes = {}, 0
                above = held.setdefault(resources[resource], {})
                above.setdefault(scopes[scope], []).append(item)
                size_bytes += len(item)
        if held:
            yield _request(held)

    # -------------------------------------------------------- resources and scopes

    def _heads(self, name: str, message: str) -> tuple[list[_Above], Numbers]:
        """Return the resources or scopes that differ, and which one each row has."""
        assert self._root is not None
        columns = _members(_column(self._root, name), self._root.num_rows)
        if name == "scope":
            columns["schema_url"] = _column(self._root, "schema_url")
        codes = [_codes(column, self._root.num_rows) for column in columns.values()]
        if not codes:
            codes = [np.zeros(self._root.num_rows, "<i8")]
        _, firsts, which = np.unique(
            np.stack(codes, axis=1), axis=0, return_index=True, return_inverse=True
        )
        places = column_of(firsts.astype("<i8"), pa.int64())
        chosen = {key: None if one is None else one.take(places) for key, one in columns.items()}
        kind = type_of(descriptor_of(message))
        attributes = PayloadType.RESOURCE_ATTRS if name == "resource" else PayloadType.SCOPE_ATTRS
        ids = _ids(chosen.get(ID), len(firsts))
        members = {"attributes": self._attributes(attributes, ids, kind.field("attributes").type)}
        for field in kind:
            column = chosen.get(field.name)
            if column is not None:
                members[field.name] = _as_field(column, field.type)
        written = write(message, struct_of(kind, len(firsts), members), self._by)
        urls = chosen.get("schema_url")
        texts = [None] * len(firsts) if urls is None else urls.to_pylist()
        heads = [
            _Above(
                _field(_MESSAGE, body) if body else b"",
                _field(_SCHEMA_URL, url.encode()) if url else b"",
            )
            for body, url in zip(written, texts, strict=True)
        ]
        return heads, which.reshape(-1)

    # ----------------------------------------------------------------------- items

    def _items(self, first: int, count: int) -> list[bytes]:
        assert self._root is not None
        batch = self._root.slice(first, count)
        columns = [pa.concat_arrays([column]) for column in batch.columns]
        whole = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
        return write(self._plan.message, self._messages(self._plan, whole), self._by)

    def _messages(self, plan: TablePlan, batch: pa.RecordBatch) -> pa.StructArray:
        """Return the rows of a table as messages, with all that refers to them."""
        kind = type_of(descriptor_of(plan.message))
        ids = _ids(_column(batch, ID), batch.num_rows)
        members: dict[str, pa.Array] = {}
        if plan.attributes is not None:
            field, table = plan.attributes
            members[field] = self._attributes(table, ids, kind.field(field).type)
        for field, child in plan.children.items():
            members[field] = self._lists(child, ids, kind.field(field).type)
        columns = {plan.renamed.get(one.name, one.name): one.name for one in batch.schema}
        if plan.table is PayloadType.LOGS and (body := _column(batch, "body")) is not None:
            members["body"] = bodies_of(body, kind.field("body").type, self._by)
        for target in kind:
            column = _column(batch, columns.get(target.name, ""))
            if target.name not in members and column is not None:
                members[target.name] = _as_field(column, target.type)
        if plan.table is PayloadType.SPANS:
            members["end_time_unix_nano"] = _ends(batch)
        if plan.table is PayloadType.UNIVARIATE_METRICS:
            members |= self._points(batch, ids, kind)
        return struct_of(kind, batch.num_rows, members)

    def _attributes(self, table: PayloadType, ids: Numbers, target: pa.DataType) -> pa.Array:
        return self._gathered(table, ids, target, lambda batch: pairs_of(batch, self._by))

    def _lists(self, plan: TablePlan, ids: Numbers, target: pa.DataType) -> pa.Array:
        return self._gathered(plan.table, ids, target, lambda batch: self._messages(plan, batch))

    def _gathered(
        self,
        table: PayloadType,
        ids: Numbers,
        target: pa.DataType,
        made: Callable[[pa.RecordBatch], pa.Array],
    ) -> pa.Array:
        """Return, for each id, a list of the rows that refer to it."""
        children = self._children.get(table)
        if children is None:
            return _empty_lists(len(ids), target)
        batch, ends = children.of(ids, table)
        return pa.Array.from_buffers(
            target, len(ids), [None, pa.py_buffer(ends)], children=[made(batch)]
        )

    def _points(
        self, batch: pa.RecordBatch, ids: Numbers, kind: pa.StructType
    ) -> dict[str, pa.Array]:
        """Return what holds the points of metrics: one of five fields, as `metric_type` says."""
        types = numbers_of(batch.column("metric_type"), "u1")
        members = {}
        for name, (number, plan) in POINTS.items():
            flags = types == number
            if not flags.any():
                continue
            holder = kind.field(name).type
            own_ids = np.where(flags, ids, _NO_ID)
            inner = {"data_points": self._lists(plan, own_ids, holder.field("data_points").type)}
            for column, holders in METRIC_COLUMNS.items():
                found = _column(batch, column)
                if name in holders and found is not None:
                    inner[column] = _as_field(found, holder.field(column).type)
            members[name] = struct_of(holder, batch.num_rows, inner, packed(flags))
        return members


class _Children:
    """A table whose rows refer to those of another."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        column = without_dictionary(batch.column(PARENT_ID))
        parents = numbers_of(column, index_dtype(column.type)).astype("<i8")
        self._batch = batch
        self._order = np.argsort(parents, kind="stable")
        self._parents = parents[self._order]
        self._given = 0

    def of(self, ids: Numbers, table: PayloadType) -> tuple[pa.RecordBatch, Numbers]:
        """Return the rows of these ids, one after the other, and where those of each end."""
        begins = np.searchsorted(self._parents, ids, side="left")
        counts = np.searchsorted(self._parents, ids, side="right") - begins
        ends = np.concatenate(([0], np.cumsum(counts)))
        total = int(ends[-1])
        self._given += total
        if self._given > self._batch.num_rows + REPEATED_ROWS_MAX:
            raise NotOtap(
                f"rows of {table.name} are referred to too often: they would be {self._given}"
            )
        # For each row that is given, its place among those of its id, and where these begin.
        places = np.arange(total) - np.repeat(ends[:-1], counts) + np.repeat(begins, counts)
        rows = column_of(self._order[places].astype("<i8"), pa.int64())
        return self._batch.take(rows), ends.astype("<i4")


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    place = batch.schema.get_field_index(name)
    return None if place < 0 else batch.column(place)


def _members(column: pa.Array | None, rows: int) -> dict[str, pa.Array | None]:
    """Return the fields of a struct, null where it is; without its own columns nothing."""
    if column is None:
        return {}
    return dict(zip([one.name for one in column.type], column.flatten(), strict=True))


def _codes(column: pa.Array | None, rows: int) -> Numbers:
    """Return a number for each row, the same where values are."""
    if column is None:
        return np.zeros(rows, "<i8")
    encoded = without_dictionary(column).dictionary_encode()
    codes = numbers_of(encoded.indices, "<i4").astype("<i8")
    flags = present(encoded.indices)
    return codes if flags is None else np.where(flags, codes, _NO_ID)


def _ids(column: pa.Array | None, rows: int) -> Numbers:
    if column is None:
        return np.full(rows, _NO_ID, "<i8")
    ids = numbers_of(column, index_dtype(column.type)).astype("<i8")
    flags = present(column)
    return ids if flags is None else np.where(flags, ids, _NO_ID)


def _empty_lists(rows: int, kind: pa.DataType) -> pa.Array:
    ends = pa.py_buffer(np.zeros(rows + 1, "<i4"))
    return pa.Array.from_buffers(kind, rows, [None, ends], children=[pa.nulls(0, kind.value_type)])


def _as_field(column: pa.Array, target: pa.DataType) -> pa.Array:
    """Return a column as a field of a message; what is null is written as nothing."""
    plain = without_dictionary(column)
    if plain.offset:
        plain = pa.concat_arrays([plain])
    if pa.types.is_struct(target):
        given = dict(zip([one.name for one in plain.type], plain.flatten(), strict=True))
        if "status_message" in given:
            given["message"] = given.pop("status_message")
        members = {
            one.name: _as_field(given[one.name], one.type) for one in target if one.name in given
        }
        return struct_of(target, len(plain), members, plain.buffers()[0])
    if pa.types.is_list(target):
        values = _as_field(plain.values, target.value_type)
        return pa.Array.from_buffers(target, len(plain), plain.buffers()[:2], children=[values])
    if pa.types.is_binary(target) and pa.types.is_fixed_size_binary(plain.type):
        return plain.cast(target)
    if plain.type == target:
        return plain
    # Times, which are numbers without a sign there.
    return pa.Array.from_buffers(target, len(plain), plain.buffers())


def _ends(batch: pa.RecordBatch) -> pa.Array:
    """Return when spans end."""
    total = np.zeros(batch.num_rows, "<u8")
    for name in ("start_time_unix_nano", "duration_time_unix_nano"):
        column = _column(batch, name)
        if column is not None:
            plain = without_dictionary(column)
            numbers, flags = numbers_of(plain, "<u8"), present(plain)
            total += numbers if flags is None else np.where(flags, numbers, 0)
    return column_of(total, pa.uint64())


# ------------------------------------------------------------------------ on the wire


def _field(number: int, content: bytes) -> bytes:
    """Return a field that holds bytes, a text or a message."""
    return b"".join((as_varint(number << 3 | 2), as_varint(len(content)), content))


def _request(held: Mapping[_Above, Mapping[_Above, Sequence[bytes]]]) -> bytes:
    written = []
    for resource, scopes in held.items():
        parts = [resource.message]
        for scope, items in scopes.items():
            fields = [_field(_HELD, item) for item in items]
            parts.append(_field(_HELD, b"".join((scope.message, *fields, scope.schema_url))))
        parts.append(resource.schema_url)
        written.append(_field(_RESOURCES, b"".join(parts)))
    return b"".join(written)
