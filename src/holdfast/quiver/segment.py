"""A sealed segment: its summary, and reads that map the files and check what they touch.

Opening a segment reads nothing but the summary. A data file is mapped when it is first read; every
record batch is checked against its checksum the first time it is touched, and never again. Batches
point into the map, which lives as long as they do, also after the segment was deleted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cached_property
from pathlib import PurePath
from typing import NamedTuple

import pyarrow as pa
from xxhash import xxh3_64, xxh3_64_hexdigest

from holdfast.errors import Damaged
from holdfast.quiver import names
from holdfast.quiver.arrow_types import has_dictionary
from holdfast.quiver.buffer import Held
from holdfast.quiver.bundle import decode_arrow, one_batch, read_stream, without_reserved
from holdfast.quiver.frame import NO_WATERMARK, Kind
from holdfast.quiver.manifest import FileSummary, Summary
from holdfast.quiver.segment_rows import ARROW, OPAQUE, group_bundles, group_table
from holdfast.seam.disk import Disk

# All numbers are signed: Spark has no others.
PLACE_TYPE = pa.struct([("file", pa.int32()), ("first_row", pa.int32()), ("rows", pa.int32())])
BUNDLE_SCHEMA = pa.schema(
    [
        ("seq", pa.int64()),
        ("kind", pa.int8()),
        ("ingestion_ns", pa.int64()),
        ("watermark_ns", pa.int64()),
        ("producer", pa.string()),
        ("epoch", pa.int64()),
        ("events", pa.int32()),
        ("payload_bytes", pa.int64()),
        ("places", pa.list_(PLACE_TYPE)),
    ]
)


class Bundle(NamedTuple):
    """One bundle as it was appended: its record batches by slot, raw slots as payload rows."""

    seq: int
    kind: Kind
    ingestion_ns: int
    watermark_ns: int | None
    producer: str | None
    epoch: int
    slots: dict[str, pa.RecordBatch]


class DataFile:
    """One mapped data file."""

    def __init__(self, disk: Disk, path: PurePath, summary: FileSummary) -> None:
        self.summary = summary
        self._disk = disk
        self._path = path
        self._lock = threading.Lock()
        self._sound: set[int] = set()

    @cached_property
    def _view(self) -> memoryview:
        try:
            view = self._disk.map(self._path)
        except OSError as error:
            raise self._damaged(f"cannot be read: {error.strerror}") from error
        if len(view) != self.summary.size_bytes:
            raise self._damaged(f"has {len(view)} bytes, not {self.summary.size_bytes}")
        return view

    @cached_property
    def _reader(self) -> pa.ipc.RecordBatchFileReader:
        """The Arrow reader, once everything outside the batches is known to be sound."""
        hasher = xxh3_64()
        position = 0
        for batch in self.summary.batches:
            hasher.update(self._view[position : batch.offset])
            position = batch.offset + batch.length
        hasher.update(self._view[position:])
        if hasher.hexdigest() != self.summary.frame_checksum:
            raise self._damaged("has a damaged schema or footer")
        return pa.ipc.open_file(pa.py_buffer(self._view))

    @cached_property
    def schema(self) -> pa.Schema:
        """The file's schema, envelope included, with the metadata that its user gave."""
        return without_reserved(self._reader.schema)

    def batch(self, index: int) -> pa.RecordBatch:
        """Return a record batch; raise `Damaged` if its bytes are not what was written."""
        needed = {0, index} if self._has_dictionaries else {index}
        with self._lock:
            for place in sorted(needed - self._sound):
                self._check(place)
                self._sound.add(place)
            # Inside the lock: the first read also reads the dictionaries, and only once.
            batch = self._reader.get_batch(index)
        return batch.replace_schema_metadata(self.schema.metadata)

    def rows(self, first: int, count: int) -> pa.Table:
        """Return a range of rows."""
        batches, position = [], 0
        for index, batch in enumerate(self.summary.batches):
            low, high = max(first, position), min(first + count, position + batch.rows)
            if low < high:
                batches.append(self.batch(index).slice(low - position, high - low))
            position += batch.rows
        return pa.Table.from_batches(batches, self.schema)

    @cached_property
    def _has_dictionaries(self) -> bool:
        return any(has_dictionary(field.type) for field in self.schema)

    def _check(self, index: int) -> None:
        place = self.summary.batches[index]
        content = self._view[place.offset : place.offset + place.length]
        if xxh3_64_hexdigest(content) != place.checksum:
            raise self._damaged(f"is damaged in record batch {index}")

    def _damaged(self, what: str) -> Damaged:
        return Damaged(
            f"a segment file {what}",
            hint="the other record batches are still served; restore this one from a copy",
            path=str(self._path),
        )


class Segment:
    """A sealed segment. Safe to use from many threads."""

    def __init__(self, disk: Disk, path: PurePath, summary: Summary) -> None:
        self.path = path
        self.summary = summary
        self._disk = disk
        self.files = tuple(DataFile(disk, path / file.name, file) for file in summary.files)

    @cached_property
    def bundle_table(self) -> pa.RecordBatch:
        """One row per bundle; loaded when first asked for."""
        path = self.path / names.BUNDLES
        try:
            data = self._disk.map(path)
        except OSError as error:
            raise _damaged_table(path) from error
        if xxh3_64_hexdigest(data) != self.summary.bundle_table_checksum:
            raise _damaged_table(path)
        return pa.ipc.open_file(pa.py_buffer(data)).get_batch(0)

    def bundle(self, seq: int) -> Bundle | None:
        """Return one bundle, or None if no bundle has this seq."""
        table = self.bundle_table
        place = table.column("seq").index(pa.scalar(seq, pa.int64())).as_py()
        return None if place < 0 else self._bundle_at(place)

    def bundles(self) -> Iterator[Bundle]:
        """Yield all bundles in order."""
        for place in range(self.bundle_table.num_rows):
            yield self._bundle_at(place)

    def _bundle_at(self, place: int) -> Bundle:
        row = {name: self.bundle_table.column(name)[place].as_py() for name in BUNDLE_SCHEMA.names}
        slots: dict[str, pa.RecordBatch] = {}
        for where in row["places"]:
            file = self.files[where["file"]]
            rows = file.rows(where["first_row"], where["rows"])
            slots |= _slots(file.summary, rows)
        return Bundle(
            row["seq"],
            Kind(row["kind"]),
            row["ingestion_ns"],
            row["watermark_ns"],
            row["producer"],
            row["epoch"],
            slots,
        )


def held_bundle(held: Held) -> Bundle:
    """Return a bundle that is not sealed yet."""
    slots: dict[str, pa.RecordBatch] = {}
    if held.kind == Kind.ARROW:
        for name, stream, _ in decode_arrow(memoryview(held.payload)):
            slots[name] = read_stream(stream)
    elif held.kind == Kind.RAW:
        (group,) = group_bundles([held], 1)
        slots[group.slot] = one_batch(group_table(group))
    watermark_ns = None if held.watermark_ns == NO_WATERMARK else held.watermark_ns
    return Bundle(
        held.seq, held.kind, held.ingestion_ns, watermark_ns, held.producer, held.epoch, slots
    )


def _slots(file: FileSummary, rows: pa.Table) -> dict[str, pa.RecordBatch]:
    """Return the slots that stored rows hold, without the envelope."""
    if file.kind == OPAQUE:
        return _opaque_slots(rows)
    return {file.slot: one_batch(rows.select(rows.schema.names[-file.own_columns :]))}


def _opaque_slots(rows: pa.Table) -> dict[str, pa.RecordBatch]:
    slots: dict[str, list[pa.RecordBatch]] = {}
    for place in range(rows.num_rows):
        row = rows.slice(place, 1)
        if row.column("slot_kind")[0].as_py() == ARROW:
            batch = read_stream(row.column("payload")[0].as_buffer())
        else:
            batch = one_batch(row.select(["payload", "headers"]))
        slots.setdefault(row.column("slot")[0].as_py(), []).append(batch)
    return {slot: one_batch(pa.Table.from_batches(batches)) for slot, batches in slots.items()}


def _damaged_table(path: PurePath) -> Damaged:
    return Damaged(
        "a segment's bundle table is damaged",
        hint="its rows can still be scanned; restore the segment from a copy",
        path=str(path),
    )
