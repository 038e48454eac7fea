"""The rows of a segment: accepted bundles sorted into groups that can share one Arrow file.

A group is one slot with one schema. Raw events of a slot form one group, with the columns `payload`
and `headers`. What cannot or should not have a file of its own goes into the opaque group: one row
per bundle and slot (or per raw event), kept as the bytes it came in.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
from xxhash import xxh3_128_hexdigest

from holdfast.quiver.buffer import Held
from holdfast.quiver.bundle import decode_arrow, decode_raw, read_stream
from holdfast.quiver.dictionaries import unify
from holdfast.quiver.envelope import TIME_TYPE
from holdfast.quiver.frame import Kind

ARROW, RAW, OPAQUE = "arrow", "raw", "opaque"
RAW_FIELDS = (pa.field("payload", pa.binary()), pa.field("headers", pa.string()))


class Share(NamedTuple):
    """What one bundle has in a group."""

    seq: int
    ingestion_ns: int
    # Which of the bundle's slots, from 0, and how many events the bundle has before these.
    slot_index: int
    first_row: int
    rows: int


@dataclass(eq=False)
class Group:
    """Rows that share one Arrow file. `slot` is empty for the opaque group."""

    slot: str
    kind: str
    shares: list[Share] = field(default_factory=list)
    # arrow: one IPC stream per share. raw: one payload per row. opaque: one payload per row.
    payloads: list[memoryview] = field(default_factory=list)
    headers: list[bytes | None] = field(default_factory=list)
    # opaque only: whose row it is.
    slots: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """The number of rows the file will have."""
        return sum(share.rows for share in self.shares)


def group_bundles(bundles: Sequence[Held], max_groups: int) -> list[Group]:
    """Sort bundles into at most `max_groups` groups, the last of them opaque if need be."""
    groups: dict[tuple[str, str], Group] = {}
    for held in bundles:
        payload = memoryview(held.payload)
        if held.kind == Kind.RAW:
            events = decode_raw(payload)
            group = _group(groups, events.slot, RAW, "")
            group.shares.append(Share(held.seq, held.ingestion_ns, 0, 0, len(events.payloads)))
            group.payloads += events.payloads
            group.headers += events.headers
        elif held.kind == Kind.ARROW:
            first_row = 0
            for index, (name, stream, rows) in enumerate(decode_arrow(payload)):
                group = _group(groups, name, ARROW, _schema_key(stream))
                group.shares.append(Share(held.seq, held.ingestion_ns, index, first_row, rows))
                group.payloads.append(stream)
                first_row += rows
    ordered = sorted(groups.values(), key=lambda group: -len(group.shares))
    if len(ordered) <= max_groups:
        return ordered
    return [*ordered[: max_groups - 1], make_opaque(ordered[max_groups - 1 :])]


def _group(groups: dict[tuple[str, str], Group], slot: str, kind: str, key: str) -> Group:
    found = groups.get((slot, kind + key))
    if found is None:
        found = groups[slot, kind + key] = Group(slot, kind)
    return found


def _schema_key(stream: memoryview) -> str:
    """Return a key that is equal for streams of one schema: their first message is the schema."""
    metadata_bytes = int.from_bytes(stream[4:8], "little")
    return xxh3_128_hexdigest(stream[: 8 + metadata_bytes])


def make_opaque(groups: Iterable[Group]) -> Group:
    """Return one group that keeps the bytes of all, in the order of their positions."""
    rows: list[tuple[Share, str, str, memoryview, bytes | None]] = []
    for group in groups:
        if group.kind == ARROW:
            for share, stream in zip(group.shares, group.payloads, strict=True):
                rows.append((share._replace(rows=1), group.slot, ARROW, stream, None))
        else:
            events = zip(group.payloads, group.headers, strict=True)
            for share in group.shares:
                for row in range(share.rows):
                    single = share._replace(first_row=share.first_row + row, rows=1)
                    rows.append((single, group.slot, RAW, *next(events)))
    rows.sort(key=lambda row: (row[0].seq, row[0].slot_index, row[0].first_row))
    opaque = Group("", OPAQUE)
    opaque.shares = [row[0] for row in rows]
    opaque.slots = [row[1] for row in rows]
    opaque.kinds = [row[2] for row in rows]
    opaque.payloads = [row[3] for row in rows]
    opaque.headers = [row[4] for row in rows]
    return opaque


def group_table(group: Group) -> pa.Table:
    """Return the user's columns of a group, in one chunk each; raises what Arrow raises."""
    if group.kind == ARROW:
        batches = [read_stream(stream) for stream in group.payloads]
        return unify(pa.Table.from_batches(batches)).combine_chunks()
    columns = [_binary(group.payloads), pa.array(group.headers, pa.string())]
    fields = list(RAW_FIELDS)
    if group.kind == OPAQUE:
        columns += [pa.array(group.slots, pa.string()), pa.array(group.kinds, pa.string())]
        fields += [pa.field("slot", pa.string()), pa.field("slot_kind", pa.string())]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _binary(values: Sequence[memoryview]) -> pa.Array:
    """Return a binary array without a Python object per value on the way."""
    offsets = array("i", [0])
    end = 0
    for value in values:
        end += len(value)
        offsets.append(end)
    data = pa.py_buffer(b"".join(values))
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(offsets), data])


def position_columns(shares: Sequence[Share]) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return `_seq`, `_row` and `_ingestion_time` of a group's rows."""
    seqs, rows, times = array("q"), array("i"), array("q")
    counting = array("i", range(max((share.rows for share in shares), default=0)))
    for seq, ingestion_ns, _, first_row, count in shares:
        if first_row == 0:
            rows += counting[:count]
        else:
            rows.extend(range(first_row, first_row + count))
        seqs += array("q", [seq]) * count
        times += array("q", [ingestion_ns // 1000]) * count
    return (
        _fixed(pa.int64(), seqs),
        _fixed(pa.int32(), rows),
        _fixed(TIME_TYPE, times),
    )


def _fixed(kind: pa.DataType, values: array[int]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])
