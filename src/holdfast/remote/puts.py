"""Appends from afar: what a DoPut stream becomes in a quiver.

A put is all or nothing: its descriptor says how many record batches follow, and a stream that ends
before is refused. With producer and epoch it may be repeated, like any append.

    rows        the batches are rows of one slot; together one bundle, or (bundles "each") one
                bundle per batch, in one transaction
    raw         columns `payload` (binary) and, if wanted, `headers` (JSON texts, or null)
    slots       columns `slot` and `stream` (an Arrow IPC stream): one bundle with several slots
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from holdfast.errors import BadInput, BundleTooLarge
from holdfast.quiver import Quiver, Receipt
from holdfast.quiver.base.bundle import DEFAULT_SLOT
from holdfast.remote.wire import Fields, decode_level

KINDS = ("rows", "raw", "slots")


def put(
    quiver: Quiver, fields: Fields, batches: Iterable[pa.RecordBatch], max_bytes: int
) -> Receipt:
    """Append what a stream holds."""
    kind = fields.one_of("kind", KINDS, "rows")
    slot = fields.text("slot", DEFAULT_SLOT)
    taken = _take(batches, fields.whole("batches"), max_bytes)
    level = fields.text_or_none("level")
    options: dict[str, Any] = {
        "producer": fields.text_or_none("producer"),
        "epoch": fields.whole_or_none("epoch"),
    }
    if kind != "slots" and fields.one_of("bundles", ("one", "each"), "one") == "each":
        with quiver.transaction(**options) as transaction:
            for batch in taken:
                if kind == "rows":
                    transaction.append({slot: batch})
                else:
                    payloads, headers = _raw(pa.Table.from_batches([batch]))
                    transaction.append_raw(payloads, slot=slot, headers=headers)
        assert transaction.receipt is not None, "BUG: a committed transaction has a receipt"
        return transaction.receipt
    options["watermark_ns"] = fields.whole_or_none("watermark_ns")
    options["level"] = None if level is None else decode_level(level)
    table = pa.Table.from_batches(taken)
    if kind == "rows":
        return quiver.append({slot: table}, **options)
    if kind == "raw":
        payloads, headers = _raw(table)
        return quiver.append_raw(payloads, slot=slot, headers=headers, **options)
    return quiver.append(_slots(table), **options)


def _take(batches: Iterable[pa.RecordBatch], count: int, max_bytes: int) -> list[pa.RecordBatch]:
    taken: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        size_bytes += batch.get_total_buffer_size()
        if size_bytes > max_bytes:
            raise BundleTooLarge(
                f"a put of more than {max_bytes} bytes (max_message)",
                hint="put less at once, or raise it",
            )
        taken.append(batch)
    if not taken or len(taken) != count:
        raise BadInput(
            f"the put ended after {len(taken)} record batches of {count}",
            hint="nothing was stored; repeat it",
        )
    return taken


def _raw(table: pa.Table) -> tuple[list[bytes], list[dict[str, str] | None] | None]:
    payloads = _column(table, "payload", pa.binary()).to_pylist()
    if None in payloads:
        raise BadInput("a payload is null", hint="leave the row out")
    if "headers" not in table.schema.names:
        return payloads, None
    texts = _column(table, "headers", pa.string()).to_pylist()
    try:
        return payloads, [None if text is None else json.loads(text) for text in texts]
    except ValueError as error:
        raise BadInput("headers are not JSON", hint="give an object of texts, or null") from error


def _slots(table: pa.Table) -> dict[str, pa.Table]:
    names = _column(table, "slot", pa.string()).to_pylist()
    streams = _column(table, "stream", pa.binary())
    if len(set(names)) != len(names) or None in names or streams.null_count:
        raise BadInput("a slot is named twice, or a null", hint="give every slot once")
    try:
        opened = [pa.ipc.open_stream(stream.as_buffer()).read_all() for stream in streams]
    except (pa.ArrowException, OSError) as error:
        raise BadInput(
            "a slot is not an Arrow IPC stream", hint="send each slot as a stream"
        ) from error
    return dict(zip(names, opened, strict=True))


def _column(table: pa.Table, name: str, kind: pa.DataType) -> pa.ChunkedArray:
    try:
        return table.column(name).cast(kind)
    except (KeyError, pa.ArrowException) as error:
        hint = "docs/reference/flight.md lists the columns of each kind of put"
        raise BadInput(f"the put has no column {name!r} of {kind}", hint=hint) from error
