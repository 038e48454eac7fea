"""Scan: everything stored in one slot, sealed or not, as one stream of Arrow batches.

The result is a `pyarrow.RecordBatchReader`, which polars, duckdb and pandas read directly. Batches
of sealed segments are read one at a time, and pruned by the event times in the summaries. Where the
schema drifted, the stream has all columns; rows that lack one have nulls there.

A scan reads the files of its slot and no others. So it does not see that the rows beside them, to
which its own refer, are damaged; with `on_damage="flag"` it looks, which means reading whole
segments, and says in the column `_damaged_slots` what the bundle of a row lacks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial, reduce
from itertools import groupby
from typing import Literal

import pyarrow as pa

from holdfast.errors import BadInput, Damaged
from holdfast.quiver.base import compute as pc
from holdfast.quiver.base.arrow import can_be_filtered, has_dictionary, plain_type
from holdfast.quiver.base.bundle import noted_damage, one_batch, read_slot, without_reserved
from holdfast.quiver.base.envelope import TIME_TYPE
from holdfast.quiver.ledger.subscriber import Position
from holdfast.quiver.read.damaged_slots import DAMAGED_SLOTS, SegmentDamage, SlotsOf, flagged
from holdfast.quiver.segments.data_file import DataFile
from holdfast.quiver.segments.manifest import ARROW, OPAQUE, BatchSummary
from holdfast.quiver.segments.rows import RAW_FIELDS, GroupTable
from holdfast.quiver.segments.segment import Segment

# Raise, leave damaged batches out, or leave them out and flag what is left of their bundles.
OnDamage = Literal["fail", "skip", "flag"]
# Whether a segment that cannot be read was removed, by whoever keeps them.
WasRemoved = Callable[[Segment], bool]
# Whether damage just found is to be passed over.
Forgive = Callable[[], bool]

ENVELOPE_SCHEMA = pa.schema(
    [
        ("_seq", pa.int64()),
        ("_row", pa.int32()),
        ("_ingestion_time", TIME_TYPE),
        ("_event_time", TIME_TYPE),
        ("_event_time_flag", pa.int8()),
    ]
)


@dataclass(frozen=True)
class TimeRange:
    """Event times from `since` up to, not including, `until`, in µs; None is open."""

    since_us: int | None = None
    until_us: int | None = None

    @classmethod
    def of(cls, since: datetime | None, until: datetime | None) -> TimeRange:
        """Return the range between two moments."""
        return cls(_as_us(since), _as_us(until))

    def may_overlap(self, min_us: int, max_us: int) -> bool:
        """Whether times between the two bounds (inclusive) can be in the range."""
        before = self.until_us is not None and min_us >= self.until_us
        after = self.since_us is not None and max_us < self.since_us
        return not before and not after

    def may_hold(self, batch: BatchSummary) -> bool:
        """Whether rows of a block may be in the range."""
        return self.may_overlap(batch.min_event_us, batch.max_event_us)

    def mask(self, times: pa.Array) -> pa.Array | None:
        """Return which of the times are within the range; None means all."""
        masks = []
        if self.since_us is not None:
            masks.append(pc.greater_equal(times, pa.scalar(self.since_us, TIME_TYPE)))
        if self.until_us is not None:
            masks.append(pc.less(times, pa.scalar(self.until_us, TIME_TYPE)))
        return reduce(pc.and_, masks) if masks else None


def _as_us(moment: datetime | None) -> int | None:
    if moment is None:
        return None
    if getattr(moment, "tzinfo", None) is None:
        raise BadInput(
            f"{moment!r} has no time zone",
            hint="use a datetime with one, like datetime(2026, 1, 31, tzinfo=timezone.utc)",
        )
    return int(pa.scalar(moment, TIME_TYPE).value)


@dataclass(frozen=True)
class Span:
    """Positions from `start` up to, not including, `end`; None is open."""

    start: Position | None = None
    end: Position | None = None

    def covers(self, first_seq: int, last_seq: int) -> bool:
        """Whether all bundles between the two (inclusive) are in it as a whole."""
        begins = self.start is None or self.start <= Position(first_seq)
        return begins and (self.end is None or Position(last_seq + 1) <= self.end)

    def overlaps(self, first_seq: int, last_seq: int) -> bool:
        """Whether bundles between the two (inclusive) may have rows in it."""
        begins = self.start is None or self.start.seq <= last_seq
        return begins and (self.end is None or Position(first_seq) < self.end)

    def cut(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch that are in it; rows are stored in order."""
        seqs, rows = batch.column("_seq"), batch.column("_row")

        def position(place: int) -> Position:
            return Position(seqs[place].as_py(), rows[place].as_py())

        places = range(batch.num_rows)
        # Bisection turns a handful of cells into Python objects; comparing two columns would touch
        # every row of a batch of which the span usually keeps all or nothing.
        first = 0 if self.start is None else bisect_left(places, self.start, key=position)
        end = batch.num_rows if self.end is None else bisect_left(places, self.end, key=position)
        return batch.slice(first, max(0, end - first))

    def kept(self, segment: Segment) -> dict[int, tuple[int, int]] | None:
        """Return, by file, the first row and the end of what is in it; None: everything.

        Rows of one file are in the order of seqs, so what a span keeps of a file is one run of
        rows. The bundle table says where each bundle lies; the minimum and maximum per file are
        that run. It may hold rows of no interest at its ends (a span that ends inside a bundle),
        which `cut` removes.
        """
        summary = segment.summary
        if self.covers(summary.first_seq, summary.last_seq):
            return None
        table = segment.bundle_table
        seqs, masks = table.column("seq"), []
        if self.start is not None:
            masks.append(pc.greater_equal(seqs, self.start.seq))
        if self.end is not None:
            masks.append(pc.less(seqs, self.end.seq + (self.end.row > 0)))
        places = table.column("places").filter(reduce(pc.and_, masks)).flatten()
        files, first_rows, counts = places.flatten()
        found = pa.table({"file": files, "first": first_rows, "end": pc.add(first_rows, counts)})
        found = found.group_by("file").aggregate([("first", "min"), ("end", "max")])
        rows = found.select(["file", "first_min", "end_max"]).to_pylist()
        return {row["file"]: (row["first_min"], row["end_max"]) for row in rows}


EVERYTHING = Span()


def _never(_: Segment) -> bool:
    return False


def _no_slots(_: int) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True)
class StoredRows:
    """Some stored rows of the slot: their schema, and how to read them.

    A function and not an iterator: what is not asked for is never opened, however many parts there
    are.
    """

    schema: pa.Schema
    read: Callable[[], Iterator[pa.RecordBatch]]
    # What all their bundles lack since a salvage.
    noted: tuple[str, ...] = ()
    # What single bundles lack, if that is asked for.
    slots_of: SlotsOf = _no_slots
    span: Span = EVERYTHING

    def lacks(self, seq: int) -> tuple[str, ...]:
        """Return the slots of a bundle that cannot be read."""
        return tuple(dict.fromkeys((*self.noted, *self.slots_of(seq))))


def scan(  # noqa: PLR0913  (what to read, and what to do where it cannot be)
    segments: Sequence[Segment],
    tail: Sequence[GroupTable],
    slot: str | None,
    columns: Sequence[str] | None,
    times: TimeRange,
    on_damage: OnDamage,
    span: Span = EVERYTHING,
    *,
    nulls_for_unknown: bool = False,
    was_removed: WasRemoved = _never,
) -> pa.RecordBatchReader:
    """Return a reader over the slot's rows in `segments` and in the unsealed `tail`.

    With `nulls_for_unknown` a column that no row has is not an error. A segment that `was_removed`
    while it was read ends there.
    """
    return scan_pieces(
        [(segment, span) for segment in segments],
        [(made, span) for made in tail],
        slot,
        columns,
        times,
        on_damage,
        nulls_for_unknown=nulls_for_unknown,
        was_removed=was_removed,
    )


def scan_pieces(
    pieces: Sequence[tuple[Segment, Span]],
    tail: Sequence[tuple[GroupTable, Span]],
    slot: str | None,
    columns: Sequence[str] | None,
    times: TimeRange,
    on_damage: OnDamage,
    *,
    nulls_for_unknown: bool = False,
    was_removed: WasRemoved = _never,
) -> pa.RecordBatchReader:
    """Return what `scan` does, of each segment only some of its bundles."""
    pieces = [
        (s, span) for s, span in pieces if span.overlaps(s.summary.first_seq, s.summary.last_seq)
    ]
    # The schema must be known before the first batch is yielded: Arrow readers announce it up
    # front. That is why parts are listed first, with their schemas, and read lazily afterwards.
    made_tables = [made for made, _ in tail]
    slot = slot or only_slot([segment for segment, _ in pieces], made_tables, on_damage)
    flags = on_damage == "flag"
    parts: list[StoredRows] = []
    for segment, span in pieces:
        forgive = _forgiving(segment, on_damage, was_removed)
        found = _segment_parts(segment, slot, times, forgive, span)
        if flags:
            slots_of = SegmentDamage(segment, was_removed).slots_of
            found = map(partial(replace, slots_of=slots_of), found)
        parts += [replace(part, span=span) for part in found]
    for made, span in tail:
        parts += [replace(part, span=span) for part in _tail_parts(made, slot)]
    known = [part.schema for part in parts]
    if flags and columns is not None and DAMAGED_SLOTS.name not in columns:
        columns = [*columns, DAMAGED_SLOTS.name]
    schema = _common_schema(known, columns, flags=flags, nulls_for_unknown=nulls_for_unknown)
    batches = _batches(parts, schema, times, flags=flags)
    return pa.RecordBatchReader.from_batches(schema, batches)


def _batches(
    parts: Sequence[StoredRows], schema: pa.Schema, times: TimeRange, *, flags: bool
) -> Iterator[pa.RecordBatch]:
    # The mask is made before columns are dropped: the event time may not be among those asked for.
    for part in parts:
        for batch in part.read():
            rows = batch if part.span == EVERYTHING else part.span.cut(batch)
            if rows.num_rows:
                mask = times.mask(rows.column("_event_time"))
                rows = flagged(rows, part.lacks) if flags else rows
                yield from _keep(_fit(rows, schema), mask)


def _keep(batch: pa.RecordBatch, mask: pa.Array | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows that the mask keeps, if there are any."""
    if mask is None or pc.all(mask).as_py():
        kept = [batch]
    elif all(can_be_filtered(kind) for kind in batch.schema.types):
        kept = [batch.filter(mask)]
    else:
        # Arrow has no filter kernel for some types (`can_be_filtered`); slices need none.
        kept = list(_kept_slices(batch, mask))
    yield from (part for part in kept if part.num_rows)


def _kept_slices(batch: pa.RecordBatch, mask: pa.Array) -> Iterator[pa.RecordBatch]:
    """Yield the wanted rows as slices: for types that Arrow cannot filter."""
    start = 0
    for keep, run in groupby(mask.to_pylist()):
        length = len(list(run))
        if keep:
            yield batch.slice(start, length)
        start += length


# ------------------------------------------------------------------------ parts


def only_slot(segments: Sequence[Segment], tail: Sequence[GroupTable], on_damage: OnDamage) -> str:
    """Return the one slot that there is. In opaque files it is in the rows, so they are read."""
    slots: set[str] = set()
    for segment in segments:
        for file in segment.files:
            if file.summary.kind != OPAQUE:
                slots.add(file.summary.slot)
                continue
            forgive = _forgiving(segment, on_damage, _never)
            for batch in _read(file, range(len(file.summary.batches)), forgive):
                slots |= set(pc.unique(batch.column("slot")).to_pylist())
    for made in tail:
        slots |= set(made.group.slots) if made.group.kind == OPAQUE else {made.group.slot}
    if len(slots) > 1:
        raise BadInput(
            "the quiver has several slots", hint=f"name one: slot={' or '.join(sorted(slots))}"
        )
    return slots.pop() if slots else ""


def _segment_parts(
    segment: Segment, slot: str, times: TimeRange, forgive: Forgive, span: Span
) -> Iterator[StoredRows]:
    """Yield the rows of one slot in a segment: by summaries first, so that few blocks are read."""
    rows = span.kept(segment)
    for number, file in enumerate(segment.files):
        summary = file.summary
        if summary.kind != OPAQUE and summary.slot != slot:
            continue
        wanted = (0, summary.rows) if rows is None else rows.get(number, (0, 0))
        kept = [
            place
            for place, (batch, first) in enumerate(zip(summary.batches, _firsts(file), strict=True))
            if first < wanted[1] and wanted[0] < first + batch.rows and times.may_hold(batch)
        ]
        try:
            # Rows whose schema is their own: each carries an Arrow stream in a cell. They have to
            # be unpacked to learn the schema, so they are the one kind that is read while listing.
            if summary.kind == OPAQUE:
                for batch in _read(file, kept, forgive):
                    yield from _opaque_parts(batch, slot)
            elif kept:
                read = partial(_read, file, kept, forgive)
                yield StoredRows(file.schema, read, file.noted_damage)
        except Damaged:
            if not forgive():
                raise


def _firsts(file: DataFile) -> Iterator[int]:
    """Yield the number of the first row of each batch."""
    first = 0
    for batch in file.summary.batches:
        yield first
        first += batch.rows


def _forgiving(segment: Segment, on_damage: OnDamage, was_removed: WasRemoved) -> Forgive:
    """Return what says whether damage in a segment is to be passed over."""
    return lambda: was_removed(segment) or on_damage != "fail"


def _read(file: DataFile, places: Sequence[int], forgive: Forgive) -> Iterator[pa.RecordBatch]:
    for place in places:
        try:
            batch = file.batch(place)
        except Damaged:
            if not forgive():
                raise
        else:
            yield batch


def _tail_parts(made: GroupTable, slot: str) -> Iterator[StoredRows]:
    if made.group.kind == OPAQUE:
        yield from _opaque_parts(one_batch(made.table), slot)
    elif made.group.slot == slot:
        batch = one_batch(made.table)
        yield _rows_at_hand(batch, noted_damage(batch.schema))


def _opaque_parts(batch: pa.RecordBatch, slot: str) -> Iterator[StoredRows]:
    rows = pa.Table.from_batches([batch.filter(pc.equal(batch.column("slot"), slot))])
    for place in range(rows.num_rows):
        yield _unwrap(rows.slice(place, 1))


def _rows_at_hand(batch: pa.RecordBatch, noted: tuple[str, ...] = ()) -> StoredRows:
    plain = batch.replace_schema_metadata(without_reserved(batch.schema).metadata)
    return StoredRows(plain.schema, lambda: iter([plain]), noted)


def _unwrap(row: pa.Table) -> StoredRows:
    """Return the rows that an opaque row holds, with its envelope beside each."""
    if row.column("slot_kind")[0].as_py() != ARROW:
        names = [*ENVELOPE_SCHEMA.names, *(f.name for f in RAW_FIELDS)]
        return _rows_at_hand(one_batch(row.select(names)))
    own, noted = read_slot(row.column("payload")[0].as_buffer())
    envelope = [pa.repeat(row.column(f.name)[0], own.num_rows) for f in ENVELOPE_SCHEMA]
    first_row = row.column("_row")[0].as_py()
    # The opaque row stands for several rows of the bundle; each gets the number it would have had
    # in a file of its own, so that positions mean the same in both kinds.
    envelope[1] = pa.array(range(first_row, first_row + own.num_rows), pa.int32())
    schema = pa.schema([*ENVELOPE_SCHEMA, *own.schema], own.schema.metadata)
    batch = pa.RecordBatch.from_arrays([*envelope, *own.columns], schema=schema)
    return _rows_at_hand(batch, noted)


# ---------------------------------------------------------------------- schemas


def _common_schema(
    schemas: Sequence[pa.Schema],
    columns: Sequence[str] | None,
    *,
    flags: bool,
    nulls_for_unknown: bool,
) -> pa.Schema:
    """Return a schema that rows of all these schemas fit; a column that some lack is null there."""
    added = [*ENVELOPE_SCHEMA, DAMAGED_SLOTS] if flags else ENVELOPE_SCHEMA
    fields: dict[str, pa.Field] = {field.name: field for field in added}
    # Thousands of parts share a few schemas; each of those is unified once.
    distinct: dict[str, pa.Schema] = {s.to_string(show_schema_metadata=False): s for s in schemas}
    for schema in distinct.values():
        for field in schema:
            if columns is None or field.name in columns:
                fields[field.name] = _common_field(fields.get(field.name), field)
    if columns is None:
        return pa.schema(list(fields.values()), _common_metadata(schemas))
    unknown = [name for name in columns if name not in fields]
    if unknown and schemas and not nulls_for_unknown:
        known = sorted({name for schema in distinct.values() for name in schema.names})
        raise BadInput(
            f"no column {', '.join(unknown)} in this slot", hint=f"it has {', '.join(known)}"
        )
    wanted = [fields.get(name, pa.field(name, pa.null())) for name in columns]
    return pa.schema(wanted, _common_metadata(schemas))


def _common_metadata(schemas: Sequence[pa.Schema]) -> dict[bytes, bytes] | None:
    """Return the metadata that the users gave, if all gave the same."""
    given = {frozenset((schema.metadata or {}).items()) for schema in schemas}
    return schemas[0].metadata if len(given) == 1 else None


def _common_field(first: pa.Field | None, second: pa.Field) -> pa.Field:
    if first is None or first.type == second.type:
        return second.with_nullable(True)
    try:
        # Dictionary columns of two files have two dictionaries; their common type is that of the
        # values.
        one, two = (
            f.with_type(plain_type(f.type)) if has_dictionary(f.type) else f
            for f in (first, second)
        )
        return pa.unify_schemas(
            [pa.schema([one]), pa.schema([two])], promote_options="permissive"
        ).field(0)
    except pa.ArrowException as error:
        raise BadInput(
            f"column {second.name!r} is {first.type} in one place and {second.type} in another",
            hint="leave it out with columns=…, or scan a time range that has one of the two",
        ) from error


def _fit(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with exactly the columns of `schema`."""
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    arrays = []
    for field in schema:
        place = batch.schema.get_field_index(field.name)
        if place < 0:
            arrays.append(_nulls(batch.num_rows, field))
        else:
            arrays.append(_cast(batch.column(place), field))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _nulls(count: int, field: pa.Field) -> pa.Array:
    try:
        nulls = pa.nulls(count, field.type)
        nulls.validate()
    except pa.ArrowException as error:
        raise BadInput(
            f"column {field.name!r} is missing in one place, and {field.type} has no nulls",
            hint="leave it out with columns=…",
        ) from error
    return nulls


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type == field.type:
        return column
    if pa.types.is_null(column.type):
        return _nulls(len(column), field)
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise BadInput(
            f"column {field.name!r} is {column.type} in one place and cannot become {field.type}, "
            f"which all of them would fit: {error}",
            hint="leave it out with columns=…, or scan a time range that has one of the two",
        ) from error
