"""Tables of items: a row for each span, log record or data point in what is stored.

A table is made from slots while they are read, segment by segment, and is nowhere stored. Payloads
are taken a block at a time. Slots of Arrow bundles are another matter. Their rows refer to each
other by numbers that mean something within one bundle only, while a segment has each slot in a file
of its own, so the slots of a whole segment are read before its bundles can be put together again.

Here a slot is whatever `scan_slot` returns: the caller knows whether it lies in this process, in
the files of another one, or at a server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast.errors import BadInput
from holdfast.quiver.base import compute as pc
from holdfast.quiver.base.arrow import numbers
from holdfast.quiver.base.bundle import one_batch
from holdfast.quiver.base.config import ItemTable
from holdfast.quiver.base.envelope import TIME_TYPE
from holdfast.quiver.read.damaged_slots import DAMAGED_SLOTS
from holdfast.quiver.read.scan import (
    ENVELOPE_SCHEMA,
    EVERYTHING,
    OnDamage,
    Span,
    TimeRange,
    WasRemoved,
    scan_pieces,
)
from holdfast.quiver.segments.manifest import OPAQUE, BatchSummary
from holdfast.quiver.segments.rows import GroupTable
from holdfast.quiver.segments.segment import Segment

# What stands before the columns of every table. The first three together are an item's identity.
TABLE_ENVELOPE = pa.schema(
    [
        ("_seq", pa.int64()),
        ("_row", pa.int32()),
        ("_item", pa.int32()),
        ("_ingestion_time", TIME_TYPE),
        ("_event_time", TIME_TYPE),
    ]
)
_POSITION = ("_seq", "_row", "_ingestion_time")

# Returns the rows of a slot in one segment, or in what is not sealed; the columns named, or all.
ScanSlot = Callable[[str, Sequence[str] | None], pa.RecordBatchReader]


@dataclass(frozen=True)
class ItemTimeRange(TimeRange):
    """The event times of items: a row is kept as long as one of its items may be in the range.

    Which of them are is decided when the items are rows of their own.
    """

    def may_hold(self, batch: BatchSummary) -> bool:
        """Whether rows of a block may have items in the range; of former segments any may."""
        if batch.min_item_us is None or batch.max_item_us is None:
            return True
        return self.may_overlap(batch.min_item_us, batch.max_item_us)

    def mask(self, times: pa.Array) -> pa.Array | None:
        """Return None: all rows."""
        return None


def table_schema(
    table: ItemTable, columns: Sequence[str] | None = None, on_damage: OnDamage = "fail"
) -> pa.Schema:
    """Return the columns of a table, envelope included, or those of them that are asked for.

    With flags for what is damaged there is one more, asked for or not.
    """
    flags = [DAMAGED_SLOTS] if on_damage == "flag" else []
    whole = pa.schema([*TABLE_ENVELOPE, *table.schema, *flags])
    if columns is not None:
        columns = [*columns, *(flag.name for flag in flags if flag.name not in columns)]
    if columns is None:
        return whole
    unknown = [name for name in columns if name not in whole.names]
    if unknown:
        raise BadInput(
            f"no column {', '.join(unknown)} in this table", hint=f"it has {', '.join(whole.names)}"
        )
    return pa.schema([whole.field(name) for name in columns])


def known_table(tables: Mapping[str, ItemTable], name: str) -> ItemTable:
    """Return the table of a name; raise `BadInput` if there is none."""
    if name not in tables:
        known = f"there are {', '.join(sorted(tables))}" if tables else "QuiverConfig(tables=…)"
        raise BadInput(f"there is no table {name!r}", hint=known)
    return tables[name]


def may_have_items(table: ItemTable, segment: Segment) -> bool:
    """Whether a segment may have rows of a table; which slots are in opaque files only they say."""
    wanted = {table.raw_slot, *table.arrow_slots}
    return any(file.slot in wanted or file.kind == OPAQUE for file in segment.summary.files)


@dataclass(frozen=True)
class StoredParts:
    """What a table is made from: sealed segments, and what is not sealed yet."""

    # Each with those of its bundles that are to be read.
    pieces: Sequence[tuple[Segment, Span]]
    # Of each quiver by itself: the numbers of bundles are its own.
    tails: Sequence[Sequence[GroupTable]]
    on_damage: OnDamage = "fail"
    # Of the tails.
    span: Span = EVERYTHING
    was_removed: WasRemoved = lambda _: False

    def each(self, table: ItemTable, times: TimeRange) -> Iterator[ScanSlot]:
        """Yield what scans the slots of a table, for each segment that has any, then of the rest.

        One by one: numbers by which the rows of several slots refer to each other are put together
        within a segment.
        """
        for segment, span in self.pieces:
            summary = segment.summary
            overlaps = span.overlaps(summary.first_seq, summary.last_seq)
            if overlaps and may_have_items(table, segment):
                yield self._scan_slot([(segment, span)], (), times)
        for tail in self.tails:
            yield self._scan_slot([], tail, times)

    def _scan_slot(
        self,
        pieces: Sequence[tuple[Segment, Span]],
        tail: Sequence[GroupTable],
        times: TimeRange,
    ) -> ScanSlot:
        # A bundle that lacks rows of one slot is left out whole, which the others have to say.
        return lambda slot, columns: scan_pieces(
            pieces,
            [(made, self.span) for made in tail],
            slot,
            columns,
            times,
            "flag" if self.on_damage == "skip" and columns is None else self.on_damage,
            nulls_for_unknown=True,
            was_removed=self.was_removed,
        )


def scan_table(
    table: ItemTable, parts: StoredParts, columns: Sequence[str] | None, times: TimeRange
) -> pa.RecordBatchReader:
    """Return a reader over a table; `times` are those of its items."""
    schema = table_schema(table, columns, parts.on_damage)
    held = ItemTimeRange(times.since_us, times.until_us)
    batches = (
        batch
        for scan_slot in parts.each(table, held)
        for batch in table_batches(table, scan_slot, schema, times)
    )
    return pa.RecordBatchReader.from_batches(schema, batches)


def table_batches(
    table: ItemTable, scan_slot: ScanSlot, schema: pa.Schema, times: TimeRange
) -> Iterator[pa.RecordBatch]:
    """Yield the items of one segment, or of what is not sealed, of some event times.

    Bundles that lack slots have items only if the schema has a column for what they lack.
    """
    flags = DAMAGED_SLOTS.name in schema.names
    for stored in scan_slot(table.raw_slot, (*_POSITION, "payload")):
        made = table.of_payloads(stored.column("payload").to_pylist())
        yield from with_envelope(made, stored, schema, times)
    if table.arrow_slots:
        for seq, slots in _bundles(table.arrow_slots, scan_slot, flags=flags):
            main = slots[table.arrow_slots[0]].slice(0, 1)
            damaged_slots = _flags_of(main)[0].as_py() or ()
            made = table.of_bundle(
                {name: _own(rows) for name, rows in slots.items()}, damaged_slots
            )
            first = main.select([*_POSITION, *_flag_names(main)])
            at = first.set_column(1, "_row", numbers([0], pa.int32()))
            assert at.column("_seq")[0].as_py() == seq, "BUG: rows of another bundle"
            yield from with_envelope(made, at, schema, times)


def with_envelope(
    made: Iterator[pa.RecordBatch], stored: pa.RecordBatch, schema: pa.Schema, times: TimeRange
) -> Iterator[pa.RecordBatch]:
    """Yield items with their envelope: position and times of the stored rows they are from."""
    # The stored row that the last batch ended within, and how many of its items came.
    last, seen = -1, 0
    for batch in made:
        if not batch.num_rows:
            continue
        places = batch.column("_place")
        items = _numbers_within(places, last, seen)
        last, seen = places[-1].as_py(), items[-1].as_py() + 1
        ingestion = stored.column("_ingestion_time").take(places)
        columns = {
            "_seq": stored.column("_seq").take(places),
            "_row": stored.column("_row").take(places),
            "_item": items,
            "_ingestion_time": ingestion,
            "_event_time": pc.coalesce(batch.column("_time"), ingestion),
        }
        if DAMAGED_SLOTS.name in schema.names:
            columns[DAMAGED_SLOTS.name] = _flags_of(stored).take(places)
        mask = times.mask(columns["_event_time"])
        arrays = [
            columns[field.name] if field.name in columns else batch.column(field.name)
            for field in schema
        ]
        rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
        rows = rows if mask is None else rows.filter(mask)
        if rows.num_rows:
            yield rows


def _numbers_within(places: pa.Array, last: int, seen: int) -> pa.Array:
    """Return for each item its number among those of the same place, from 0; places ascend.

    `seen` items of the place `last` came before these.
    """
    ends = pc.run_end_encode(places).run_ends
    before = seen if places[0].as_py() == last else 0
    starts = pa.concat_arrays([numbers([-before], ends.type), ends.slice(0, len(ends) - 1)])
    first = pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, starts))
    every = numbers(range(len(places)), pa.int32())
    return pc.subtract(every, first.cast(pa.int32()))


# ---------------------------------------------------------------- bundles of several slots


def _bundles(
    names: Sequence[str], scan_slot: ScanSlot, *, flags: bool
) -> Iterator[tuple[int, dict[str, pa.RecordBatch]]]:
    """Yield the bundles of a segment that have rows in the first slot, each with all its slots.

    Those that lack some are left out without `flags`.
    """
    main = _by_bundle(scan_slot(names[0], None))
    if not main:
        return
    others = {name: _by_bundle(scan_slot(name, None)) for name in names[1:]}
    for seq in sorted(main):
        slots = {names[0]: main.pop(seq)}
        for name, found in others.items():
            if seq in found:
                slots[name] = found.pop(seq)
        if flags or not any(_lacks_slots(rows) for rows in slots.values()):
            yield seq, {name: one_batch(pa.Table.from_batches(r)) for name, r in slots.items()}


def _by_bundle(reader: pa.RecordBatchReader) -> dict[int, list[pa.RecordBatch]]:
    """Return the rows of each bundle; they lie behind each other, in one block or in several."""
    found: dict[int, list[pa.RecordBatch]] = {}
    for batch in reader:
        runs = pc.run_end_encode(batch.column("_seq"))
        start = 0
        for seq, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            found.setdefault(seq, []).append(batch.slice(start, end - start))
            start = end
    return found


def _flag_names(rows: pa.RecordBatch) -> list[str]:
    return [DAMAGED_SLOTS.name] if DAMAGED_SLOTS.name in rows.schema.names else []


def _flags_of(rows: pa.RecordBatch) -> pa.Array:
    """Return which slots each row's bundle lacks; null where it lacks none."""
    for name in _flag_names(rows):
        return rows.column(name)
    return pa.nulls(rows.num_rows, DAMAGED_SLOTS.type)


def _lacks_slots(rows: Sequence[pa.RecordBatch]) -> bool:
    """Whether rows say that their bundle is damaged."""
    place = rows[0].schema.get_field_index(DAMAGED_SLOTS.name)
    return place >= 0 and any(one.column(place).null_count < one.num_rows for one in rows)


def _own(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the columns that the bundle has.

    Those that only other bundles of the segment have are all null here; so are columns that were
    appended without a value, which mean the same as none.
    """
    kept = [
        name
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
        if name not in ENVELOPE_SCHEMA.names
        and name != DAMAGED_SLOTS.name
        and column.null_count < rows.num_rows
    ]
    return rows.select(kept)
