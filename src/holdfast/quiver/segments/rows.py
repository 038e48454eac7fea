"""The rows of a segment: accepted bundles sorted into groups that can share one Arrow file.

A group is one slot with one schema. Raw events of a slot form one group, with the columns `payload`
and `headers`. What cannot or should not have a file of its own goes into the opaque group: one row
per bundle and slot (or per raw event), kept as the bytes it came in.

`TableMaker` puts the envelope beside the rows, for the sealer and for readers of the open buffer.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import NamedTuple

import pyarrow as pa
from xxhash import xxh3_128_hexdigest

from holdfast.quiver.base import compute as pc
from holdfast.quiver.base.arrow import constant, texts, unify
from holdfast.quiver.base.bundle import (
    ENVELOPE_BYTES,
    EVENT_LENGTHS,
    RESERVED_COLUMNS,
    decode_arrow,
    decode_events,
    joined,
    one_batch,
    raw_head,
    read_streams,
)
from holdfast.quiver.base.config import Extractor, QuiverConfig
from holdfast.quiver.base.envelope import (
    ITEM_TIMES,
    SEARCH_IDS,
    SEARCH_IDS_TYPE,
    TIME_TYPE,
    ItemTimes,
    extract,
    read_item_times,
    read_times,
)
from holdfast.quiver.base.frame import FrameKind
from holdfast.quiver.base.held_bundle import HeldBundle
from holdfast.quiver.segments.manifest import ARROW, OPAQUE, RAW

NO_HEADERS = memoryview(b"")
RAW_FIELDS = (pa.field("payload", pa.binary()), pa.field("headers", pa.string()))


class BundleRows(NamedTuple):
    """What one bundle has in a group."""

    seq: int
    ingestion_ns: int
    # Which of the bundle's slots, from 0, and how many events the bundle has before these.
    slot_index: int
    first_row: int
    rows: int


@dataclass(eq=False)
class Values:
    """The values of a binary column, with no Python object for a single one."""

    lengths: array[int] = field(default_factory=lambda: array("I"))
    # Their bytes, one after the other; each piece holds whole values.
    pieces: list[memoryview] = field(default_factory=list)

    def add(self, lengths: array[int], piece: memoryview) -> None:
        """Take values of these lengths."""
        self.lengths += lengths
        if piece:
            self.pieces.append(piece)

    def split(self) -> Iterator[memoryview]:
        """Yield every single value."""
        pieces = iter(self.pieces)
        piece, position = memoryview(b""), 0
        for length in self.lengths:
            while length > len(piece) - position:
                piece, position = next(pieces), 0
            yield piece[position : position + length]
            position += length

    def column(self, kind: pa.DataType, *, empty_is_null: bool = False) -> pa.Array:
        """Return them as an Arrow array."""
        if empty_is_null and not self.pieces:
            return pa.nulls(len(self.lengths), kind)
        present = None
        if empty_is_null:
            lengths = _fixed(pa.int32(), self.lengths)
            present = pc.not_equal(lengths, constant(0, pa.int32())).buffers()[1]
        offsets = pa.py_buffer(array("i", accumulate(self.lengths, initial=0)))
        buffers = [present, offsets, joined(self.pieces)]
        return pa.Array.from_buffers(kind, len(self.lengths), buffers)


@dataclass(eq=False)
class Group:
    """Rows that share one Arrow file. `slot` is empty for the opaque group."""

    slot: str
    kind: str
    shares: list[BundleRows] = field(default_factory=list)
    # arrow only: one IPC stream per share.
    streams: list[memoryview] = field(default_factory=list)
    # raw and opaque: one of each per row.
    payloads: Values = field(default_factory=Values)
    headers: Values = field(default_factory=Values)
    # opaque only: whose row it is.
    slots: list[str] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """The number of rows the file will have."""
        return sum(share.rows for share in self.shares)

    def share_bytes(self) -> list[int]:
        """Return how much the rows of each share brought, with their envelope."""
        if self.kind == ARROW:
            pairs = zip(self.shares, self.streams, strict=True)
            return [share.rows * _row_bytes(share, stream) for share, stream in pairs]
        sizes = self._event_bytes(0, len(self.payloads.lengths))
        if len(sizes) == len(self.shares):
            return sizes
        left = iter(sizes)
        return [sum(islice(left, share.rows)) for share in self.shares]

    def row_bytes(self, share: int, first: int) -> list[int]:
        """Return the same of each row of one share, which begins at the row `first`.

        Of an Arrow stream each row has its part.
        """
        rows = self.shares[share].rows
        if self.kind == ARROW:
            return [_row_bytes(self.shares[share], self.streams[share])] * rows
        return self._event_bytes(first, first + rows)

    def _event_bytes(self, first: int, end: int) -> list[int]:
        sizes = zip(self.payloads.lengths[first:end], self.headers.lengths[first:end], strict=True)
        return [payload + headers + ENVELOPE_BYTES for payload, headers in sizes]


def _row_bytes(share: BundleRows, stream: memoryview) -> int:
    return len(stream) // max(1, share.rows) + ENVELOPE_BYTES


def group_bundles(bundles: Sequence[HeldBundle], max_groups: int) -> list[Group]:
    """Sort bundles into at most `max_groups` groups, the last of them opaque if need be."""
    groups: dict[tuple[str, str], Group] = {}
    raw, arrow = FrameKind.RAW, FrameKind.ARROW
    for held in bundles:
        if held.kind == raw:
            _add_events(groups, held)
        elif held.kind == arrow:
            first_row = 0
            for index, (name, stream, rows) in enumerate(decode_arrow(held.content())):
                group = _group(groups, name, ARROW, _schema_key(stream))
                group.shares.append(BundleRows(held.seq, held.ingestion_ns, index, first_row, rows))
                group.streams.append(stream)
                first_row += rows
    # The groups with most bundles get files of their own; rare schemas share the opaque one. A
    # producer that invents a schema per bundle then costs itself columns, and nobody else a file.
    ordered = sorted(groups.values(), key=lambda group: -len(group.shares))
    if len(ordered) <= max_groups:
        return ordered
    return [*ordered[: max_groups - 1], make_opaque(ordered[max_groups - 1 :])]


def _add_events(groups: dict[tuple[str, str], Group], held: HeldBundle) -> None:
    """Sort in a raw bundle; one event in few steps: a segment may have 15,000 such bundles."""
    seq, _, ingestion_ns, _, _, _, _, payload = held
    content = memoryview(payload) if type(payload) is bytes else held.content()
    slot, count, position = raw_head(content)
    group = groups.get((slot, RAW)) or _group(groups, slot, RAW, "")
    group.shares.append(BundleRows(seq, ingestion_ns, 0, 0, count))
    payloads, headers = group.payloads, group.headers
    if count > 1:
        events = decode_events(content, count, position)
        payloads.add(events.lengths, events.payloads)
        headers.add(events.header_lengths, events.headers)
        return
    size_bytes, header_bytes = EVENT_LENGTHS.unpack_from(content, position)
    position += EVENT_LENGTHS.size
    payloads.lengths.append(size_bytes)
    headers.lengths.append(header_bytes)
    payloads.pieces.append(content[position : position + size_bytes])
    if header_bytes:
        headers.pieces.append(content[position + size_bytes :])


def _group(groups: dict[tuple[str, str], Group], slot: str, kind: str, key: str) -> Group:
    found = groups.get((slot, kind + key))
    if found is None:
        found = groups[slot, kind + key] = Group(slot, kind)
    return found


def _schema_key(stream: memoryview) -> str:
    """Return a key that is equal for streams of one schema: their first message is the schema.

    The bytes of the message, not the decoded schema: cheap, and equal bytes are certainly an equal
    schema. Equal schemas with other bytes only land in two files.
    """
    metadata_bytes = int.from_bytes(stream[4:8], "little")
    return xxh3_128_hexdigest(stream[: 8 + metadata_bytes])


def make_opaque(groups: Iterable[Group]) -> Group:
    """Return one group that keeps the bytes of all, in the order of their positions."""
    rows: list[tuple[BundleRows, str, str, memoryview, memoryview]] = []
    for group in groups:
        if group.kind == ARROW:
            for share, stream in zip(group.shares, group.streams, strict=True):
                rows.append((share._replace(rows=1), group.slot, ARROW, stream, NO_HEADERS))
        else:
            events = zip(group.payloads.split(), group.headers.split(), strict=True)
            for share in group.shares:
                for row in range(share.rows):
                    single = share._replace(first_row=share.first_row + row, rows=1)
                    rows.append((single, group.slot, RAW, *next(events)))
    rows.sort(key=lambda row: (row[0].seq, row[0].slot_index, row[0].first_row))
    opaque = Group("", OPAQUE)
    for share, slot, kind, payload, headers in rows:
        opaque.shares.append(share)
        opaque.slots.append(slot)
        opaque.kinds.append(kind)
        opaque.payloads.add(array("I", [len(payload)]), payload)
        opaque.headers.add(array("I", [len(headers)]), headers)
    return opaque


def group_table(group: Group) -> pa.Table:
    """Return the user's columns of a group, in one chunk each; raises what Arrow raises."""
    if group.kind == ARROW:
        return unify(pa.Table.from_batches(read_streams(group.streams))).combine_chunks()
    columns = [
        group.payloads.column(pa.binary()),
        group.headers.column(pa.string(), empty_is_null=True),
    ]
    fields = list(RAW_FIELDS)
    if group.kind == OPAQUE:
        columns += [texts(group.slots), texts(group.kinds)]
        fields += [pa.field("slot", pa.string()), pa.field("slot_kind", pa.string())]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def position_columns(shares: Sequence[BundleRows]) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return `_seq`, `_row` and `_ingestion_time` of a group's rows.

    Made by Arrow, a run for each bundle, while other threads have the interpreter's lock: in Python
    this was half of what a seal took of it.
    """
    held = [share for share in shares if share.rows]
    row_ends = array("i", accumulate([share.rows for share in held]))
    ends, total = _fixed(pa.int32(), row_ends), row_ends[-1] if held else 0
    # The place of a row in the group, less where its bundle's rows begin, counted from `first_row`.
    shifts = [share.first_row + share.rows - end for share, end in zip(held, row_ends, strict=True)]
    one, minus_one = constant(1, pa.int32()), constant(-1, pa.int32())
    places = pc.add(pc.cumulative_sum(pa.repeat(one, total)), minus_one)
    return (
        _runs(ends, _fixed(pa.int64(), array("q", [share.seq for share in held]))),
        pc.add(places, _runs(ends, _fixed(pa.int32(), array("i", shifts)))),
        _runs(ends, _fixed(TIME_TYPE, array("q", [share.ingestion_ns // 1000 for share in held]))),
    )


def _runs(ends: pa.Array, values: pa.Array) -> pa.Array:
    """Return each value as often as its run is long."""
    if not len(values):
        return values
    kind = pa.run_end_encoded(ends.type, values.type)
    # Not `RunEndEncodedArray.from_arrays`, which imports pandas where it is installed.
    runs = pa.Array.from_buffers(kind, ends[-1].as_py(), [None], children=[ends, values])
    return pc.run_end_decode(runs)


def _fixed(kind: pa.DataType, values: array[int]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


class GroupTable(NamedTuple):
    """One group as it is stored: envelope columns first, then the `own_columns` of the bundles."""

    group: Group
    table: pa.Table
    own_columns: int
    # Event times in µs as given, and clamped; in the order of the rows.
    event_us: pa.Array
    clamped_us: pa.Array
    # Where rows stand for several items, the times of those.
    items: ItemTimes | None = None
    # The ids by which its rows are searched for; None if they are not all known.
    ids: pa.Array | None = None


class TableMaker:
    """Turns bundles into tables. Never fails because of what a bundle or an extractor does."""

    def __init__(self, config: QuiverConfig) -> None:
        self.extractor_failures = 0
        self.opaque_rows = 0
        self._config = config

    def tables(self, bundles: Sequence[HeldBundle]) -> Iterator[GroupTable]:
        """Yield the groups of some bundles, at most `segment.max_files`."""
        for group in group_bundles(bundles, self._config.segment.max_files):
            try:
                yield self._with_envelope(group, group_table(group))
            # One group, not the segment: whatever cannot be a table is kept as the bytes it came
            # in.
            except (pa.ArrowException, ValueError):
                opaque = make_opaque([group])
                yield self._with_envelope(opaque, group_table(opaque))

    def _with_envelope(self, group: Group, rows: pa.Table) -> GroupTable:
        seqs, positions, ingestion = position_columns(group.shares)
        extracted = self._extract(group, rows)
        given = None if extracted is None else extracted.column("event_time")
        timed = read_times(given, ingestion, self._config.max_skew_s)
        envelope = {
            "_seq": seqs,
            "_row": positions,
            "_ingestion_time": ingestion,
            "_event_time": timed.times,
            "_event_time_flag": timed.flags,
        }
        if extracted is not None:
            # The bundle's own column wins over a key of the same name.
            taken = RESERVED_COLUMNS | set(rows.schema.names) | {"event_time", SEARCH_IDS}
            keys = [name for name in extracted.schema.names if name not in taken]
            envelope |= {name: extracted.column(name) for name in keys}
        if group.kind == OPAQUE:
            self.opaque_rows += group.rows
        fields = [pa.field(name, column.type) for name, column in envelope.items()]
        schema = pa.schema([*fields, *rows.schema], metadata=rows.schema.metadata)
        table = pa.Table.from_arrays([*envelope.values(), *rows.columns], schema=schema)
        event_us, clamped_us = timed.times.cast(pa.int64()), timed.clamped.cast(pa.int64())
        items = None
        if extracted is not None and group.kind == RAW and ITEM_TIMES in envelope:
            skew_us = int(self._config.max_skew_s * 1e6)
            arrived_us = ingestion.cast(pa.int64())
            items = read_item_times(envelope[ITEM_TIMES], clamped_us, arrived_us, skew_us)
        ids = None if extracted is None else _search_ids(extracted)
        return GroupTable(group, table, rows.num_columns, event_us, clamped_us, items, ids)

    def _extract(self, group: Group, rows: pa.Table) -> pa.RecordBatch | None:
        extractor = self._config.extractors.get(group.slot)
        if extractor is None or group.kind == OPAQUE:
            return None
        return self._extract_shares(extractor, group.shares, one_batch(rows))

    def _extract_shares(
        self, extractor: Extractor, shares: Sequence[BundleRows], rows: pa.RecordBatch
    ) -> pa.RecordBatch:
        """Return what the extractor finds; where it fails, ask for one half and the other.

        So a bundle on which it fails costs no other bundle its event times.

        Extractors are code of users and see the rows of many bundles in one call, for speed.
        Halving finds the bundles at fault with few calls, and only those go without event times.
        """
        if not rows.num_rows:
            return pa.record_batch({"event_time": pa.nulls(0, TIME_TYPE)})
        try:
            return extract(extractor, rows)
        except Exception:
            if len(shares) <= 1:
                self.extractor_failures += 1
                return pa.record_batch({"event_time": pa.nulls(rows.num_rows, TIME_TYPE)})
        middle = len(shares) // 2
        cut = sum(share.rows for share in shares[:middle])
        return _joined(
            self._extract_shares(extractor, shares[:middle], rows.slice(0, cut)),
            self._extract_shares(extractor, shares[middle:], rows.slice(cut)),
        )


def _search_ids(extracted: pa.RecordBatch) -> pa.Array | None:
    """Return all ids that an extractor found; None if those of some row are not known.

    It may have failed for some bundles. A filter without their ids would hide them.
    """
    place = extracted.schema.get_field_index(SEARCH_IDS)
    if place < 0 or extracted.schema.types[place] != SEARCH_IDS_TYPE:
        return None
    lists = extracted.column(place)
    ids = pc.list_flatten(lists)
    return None if lists.null_count or ids.null_count else ids


def _joined(one: pa.RecordBatch, two: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows of both; keys whose types do not go together are left out."""
    tables = [pa.Table.from_batches([one]), pa.Table.from_batches([two])]
    try:
        return one_batch(unify(pa.concat_tables(tables, promote_options="permissive")))
    except pa.ArrowException:
        return one_batch(pa.concat_tables([table.select(["event_time"]) for table in tables]))
