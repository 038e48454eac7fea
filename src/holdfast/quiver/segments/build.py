"""Building a segment: from accepted bundles to durable Arrow files under a final name.

    1. make the temporary directory     4. sync the directory
    2. data files, each synced          5. rename to the final name
    3. bundle table, manifest, synced   6. sync the parent directory: only now is it sealed

Nothing in a bundle may stop a seal, or one strange batch would hold up everything behind it: what
Arrow will not write together, and schemas beyond `segment.max_files`, go into an opaque file.

A data file is a plain Arrow IPC file; what is needed to read it piece by piece is in the manifest.
A record batch is the block that damage costs: it is small, and has a checksum of its own.
Dictionaries stand before the first one; where there are any, all batches need them to be sound.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath

import pyarrow as pa
from xxhash import xxh3_64, xxh3_64_hexdigest, xxh3_128_hexdigest

from holdfast.quiver.base import compute as pc
from holdfast.quiver.base import names
from holdfast.quiver.base.arrow import numbers, slices_take_all, texts
from holdfast.quiver.base.bundle import RESERVED_METADATA
from holdfast.quiver.base.config import QuiverConfig
from holdfast.quiver.base.envelope import ITEM_TIMES
from holdfast.quiver.base.frame import NO_WATERMARK
from holdfast.quiver.base.held_bundle import HeldBundle
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.segments import ids, manifest
from holdfast.quiver.segments.bundle_table import BUNDLE_SCHEMA, PLACE_TYPE
from holdfast.quiver.segments.data_file import MAGIC, pack_schema, split_head
from holdfast.quiver.segments.manifest import (
    OPAQUE,
    BatchSummary,
    FileSummary,
    ProducerSummary,
    Summary,
)
from holdfast.quiver.segments.rows import Group, GroupTable, TableMaker
from holdfast.quiver.segments.segment import Segment
from holdfast.seam.disk import Disk, Handle, remove_tree, write_all, write_file

# What a record batch holds at most of what the bundles brought, with the envelope, unless a single
# row is larger: so much may be lost with one sector.
BLOCK_BYTES = 256_000
# The same before compression, where that is asked for. What a disk damages are stored bytes, and a
# block of so much takes about as many as one that is not compressed; in less, little repeats.
COMPRESSED_BLOCK_BYTES = 4 * BLOCK_BYTES
# Arrow takes 1, at which zstd sees no runs of one number: 38 kB of equal `_seq` are 2.8 kB then,
# and 47 bytes at its own default, which takes no longer.
_LEVELS = {"zstd": 3}
_SINK_CHUNK_BYTES = 1 << 20


class _HashingSink:
    """A file for Arrow to write to: passes bytes to the seam and hashes them by part."""

    closed = False

    def __init__(self, disk: Disk, handle: Handle) -> None:
        self.position = 0
        self._disk = disk
        self._handle = handle
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._frame = xxh3_64()
        self._batch: xxh3_64 | None = None
        self._batch_start = 0
        # What was written up to the end of the first batch.
        # Arrow writes schema, dictionaries and the first batch in one call. They are kept together
        # until it returns, and then taken apart: each has a checksum of its own.
        self._first: list[bytes] | None = []
        # What the first batch brought: the schema's message, and the checksum of the dictionaries.
        self.schema: memoryview | None = None
        self.dictionary_checksum = ""

    def write(self, data: bytes) -> int:
        if self._first is not None:
            self._first.append(data)
        else:
            (self._batch or self._frame).update(data)
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self.position += len(data)
        if self._waiting_bytes >= _SINK_CHUNK_BYTES:
            self.drain()
        return len(data)

    def drain(self) -> None:
        """Write what waits."""
        write_all(self._disk, self._handle, self._waiting, QuiverPoint.SEAL_DATA_WRITE)
        self._waiting = []
        self._waiting_bytes = 0

    def begin_batch(self) -> None:
        """What is written from now on belongs to a record batch."""
        self._batch, self._batch_start = xxh3_64(), self.position

    def end_batch(self) -> tuple[int, str]:
        """Return where the batch began, and its checksum."""
        assert self._batch is not None
        checksum, self._batch = self._batch.hexdigest(), None
        if self._first is None:
            return self._batch_start, checksum
        return self._end_first()

    def _end_first(self) -> tuple[int, str]:
        """Take apart what Arrow writes with the first batch: schema and dictionaries before it."""
        assert self._first is not None
        written, self._first = memoryview(b"".join(self._first)), None
        self.schema, dictionaries = split_head(written)
        if dictionaries:
            self.dictionary_checksum = xxh3_64_hexdigest(dictionaries)
        offset = len(MAGIC) + len(self.schema) + len(dictionaries)
        self._frame.update(written[:offset])
        return offset, xxh3_64_hexdigest(written[offset:])

    def frame_checksum(self) -> str:
        """Return the checksum of everything outside the record batches."""
        for data in self._first or ():  # there was no batch
            self._frame.update(data)
        return self._frame.hexdigest()

    def flush(self) -> None:
        """Arrow flushes after each batch; the seam is written in large pieces instead."""

    def close(self) -> None:
        """The descriptor is closed by whoever opened it."""


def write_data_file(disk: Disk, path: PurePath, made: GroupTable, compression: str) -> FileSummary:
    """Write and sync one file."""
    schema = _describing_schema(made)
    codec = None if compression == "none" else pa.Codec(compression, _LEVELS.get(compression))
    block_bytes = BLOCK_BYTES if codec is None else COMPRESSED_BLOCK_BYTES
    handle = disk.create(path, QuiverPoint.SEAL_DATA_CREATE)
    try:
        sink = _HashingSink(disk, handle)
        batches: list[BatchSummary] = []
        options = pa.ipc.IpcWriteOptions(compression=codec)
        with pa.ipc.new_file(pa.PythonFile(sink, "w"), schema, options=options) as writer:
            start = 0
            for batch in _blocks(made, block_bytes):
                sink.begin_batch()
                writer.write_batch(batch)
                offset, checksum = sink.end_batch()
                times = pc.min_max(made.event_us.slice(start, batch.num_rows)).as_py()
                items_us = _item_bounds(made, start, batch.num_rows)
                batches.append(
                    BatchSummary(
                        offset,
                        sink.position - offset,
                        batch.num_rows,
                        checksum,
                        times["min"],
                        times["max"],
                        *items_us,
                    )
                )
                start += batch.num_rows
        sink.drain()
        disk.sync(handle, QuiverPoint.SEAL_DATA_SYNC)
    finally:
        disk.close(handle)
    return FileSummary(
        name=path.name,
        slot=made.group.slot,
        kind=made.group.kind,
        schema_fingerprint=schema_fingerprint(list(schema)[-made.own_columns :]),
        rows=made.table.num_rows,
        own_columns=made.own_columns,
        size_bytes=sink.position,
        frame_checksum=sink.frame_checksum(),
        batches=tuple(batches),
        schema=pack_schema(sink.schema or memoryview(schema.serialize())),
        dictionary_checksum=sink.dictionary_checksum,
    )


def _item_bounds(made: GroupTable, start: int, rows: int) -> tuple[int | None, int | None]:
    """Return the earliest and the latest time of the items of some rows, as they were given.

    None if they may be of any time. One without a time counts with that of its ingestion, as a row
    does.
    """
    if made.items is None:
        return None, None
    lists = made.table.column(ITEM_TIMES).slice(start, rows)
    if lists.null_count:
        return None, None  # of rows for which an extractor failed nothing is known
    given = pc.list_flatten(lists)
    found = [pc.min_max(given)]
    if given.null_count:
        found.append(pc.min_max(made.table.column("_ingestion_time").slice(start, rows)))
    bounds = [one[name].value for one in found for name in ("min", "max") if one[name].is_valid]
    return min(bounds, default=None), max(bounds, default=None)


def _describing_schema(made: GroupTable) -> pa.Schema:
    """Return the schema of a file that says by itself what its manifest says of it."""
    ours = {
        "slot": made.group.slot.encode(),
        "kind": made.group.kind.encode(),
        "own_columns": str(made.own_columns).encode(),
    }
    metadata = {RESERVED_METADATA + key.encode(): value for key, value in ours.items()}
    return made.table.schema.with_metadata({**(made.table.schema.metadata or {}), **metadata})


def schema_fingerprint(columns: Iterable[pa.Field]) -> str:
    """Return what is equal for equal columns, whatever else the file holds or wrote it."""
    described = [(field.name, str(field.type), field.nullable) for field in columns]
    text = json.dumps(described, separators=(",", ":"), ensure_ascii=False)
    return xxh3_128_hexdigest(text.encode())


def _blocks(made: GroupTable, block_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows in record batches of `block_bytes` at most, or of a single row."""
    # For such types Arrow writes the whole column with each slice: blocks would multiply the file.
    if any(slices_take_all(kind) for kind in made.table.schema.types):
        yield from made.table.to_batches()
        return
    first = 0
    for end in _block_ends(made.group, block_bytes):
        yield from made.table.slice(first, end - first).to_batches()
        first = end


def _block_ends(group: Group, block_bytes: int) -> Iterator[int]:
    """Yield the rows before which the next block begins, and their number.

    They are between two bundles wherever one fits into a block: a bundle that lies in two is put
    together whenever it is read, and lost with either.
    """
    # Not by `table.nbytes`: it fails, and even crashes, on some of the types that IPC can hold.
    first = row = size_bytes = 0
    for row_bytes in group.row_bytes():
        bundle_bytes = sum(row_bytes)
        if row > first and size_bytes + bundle_bytes > block_bytes:
            yield row
            first, size_bytes = row, 0
        if bundle_bytes <= block_bytes:
            row, size_bytes = row + len(row_bytes), size_bytes + bundle_bytes
            continue
        for one_bytes in row_bytes:
            if row > first and size_bytes + one_bytes > block_bytes:
                yield row
                first, size_bytes = row, 0
            row, size_bytes = row + 1, size_bytes + one_bytes
    if row > first:
        yield row


# (seq, slot index, file, first row, rows).
RowPlaces = list[tuple[int, int, int, int, int]]


class SegmentBuilder:
    """Writes segments. One thread at a time."""

    def __init__(
        self, disk: Disk, segments_dir: PurePath, quiver_id: str, config: QuiverConfig
    ) -> None:
        self.table_maker = TableMaker(config)
        self._disk = disk
        self._segments_dir = segments_dir
        self._quiver_id = quiver_id
        self._config = config
        self._attempts = itertools.count(1)

    def build(self, bundles: Sequence[HeldBundle], segment_seq: int) -> Segment:
        """Seal `bundles`; on an error nothing is visible, and the temporary files are removed."""
        building = self._segments_dir / names.building_dir(segment_seq, next(self._attempts))
        name = names.SegmentName(
            segment_seq,
            bundles[0].seq,
            bundles[-1].seq,
            len(bundles),
            sum(held.events for held in bundles),
        )
        final = self._segments_dir / names.segment_dir(name)
        try:
            self._disk.make_dir(building, QuiverPoint.SEAL_MAKE_DIR)
            summary = self._write_files(building, bundles, segment_seq)
            self._disk.sync_dir(building, QuiverPoint.SEAL_SYNC_DIR)
            # The directory's own entries are synced before it gets its name: a name that survives
            # a power cut must not lead to files that did not.
            self._disk.rename(building, final, QuiverPoint.SEAL_RENAME)
            self._disk.sync_dir(self._segments_dir, QuiverPoint.SEAL_SYNC_PARENT)
        except OSError:
            self._take_back(final, building)
            raise
        return Segment(self._disk, final, summary)

    def _take_back(self, final: PurePath, building: PurePath) -> None:
        """Remove a failed attempt, so that the next one does not store the bundles twice.

        What cannot be removed now is swept at the next start, which also drops a segment that has
        the same range as another.
        """
        try:
            # The sync of the parent failed: the name is there, and may or may not be durable.
            # Renamed back, so that the next attempt (under another number) is the only one with
            # these seqs.
            if self._disk.exists(final):
                self._disk.rename(final, building, QuiverPoint.SEAL_RENAME)
            if self._disk.exists(building):
                remove_tree(self._disk, building, QuiverPoint.RECOVER_SWEEP)
        except OSError:
            return

    def _write_files(
        self, building: PurePath, bundles: Sequence[HeldBundle], segment_seq: int
    ) -> Summary:
        """Write data files with their filters, bundle table and manifest, in this order.

        The manifest vouches for the rest.
        """
        places: RowPlaces = []
        files: list[FileSummary] = []
        clamped: list[pa.Array] = []
        ids_bytes = 0
        for made in self.table_maker.tables(bundles):
            path = building / names.data_file(len(files), made.group.slot or OPAQUE)
            _note_places(places, made.group, len(files))
            compression = self._config.segment.compression
            written = write_data_file(self._disk, path, made, compression)
            written = written._replace(signal=self._signal_of(made.group))
            if made.ids is not None:
                found = ids.build(made.ids)
                ids_bytes += found.size
                written = written._replace(ids_checksum=xxh3_64_hexdigest(found))
                if found.size:
                    beside = path.with_name(names.ids_file(path.name))
                    write_file(self._disk, beside, [found], "seal.data")
            files.append(written)
            if self._config.is_timed(made.group.slot):
                clamped.append(made.clamped_us if made.items is None else made.items.times_us)
        table = _bundle_table(bundles, places)
        write_file(self._disk, building / names.BUNDLES, [table], "seal.bundles")
        times = pc.min_max(pa.chunked_array(clamped, pa.int64())).as_py()
        summary = self._summarize(bundles, segment_seq, files, table, times)
        summary = summary._replace(size_bytes=summary.size_bytes + ids_bytes)
        encoded = manifest.encode(summary)
        write_file(self._disk, building / names.MANIFEST, [encoded], "seal.manifest")
        return summary

    def _signal_of(self, group: Group) -> str:
        """Return what the extractor of a slot says that its content means."""
        if group.kind == OPAQUE:
            return ""
        return getattr(self._config.extractors.get(group.slot), "signal", "")

    def _summarize(
        self,
        bundles: Sequence[HeldBundle],
        segment_seq: int,
        files: Sequence[FileSummary],
        bundle_table: pa.Buffer,
        clamped_us: dict[str, int | None],
    ) -> Summary:
        return Summary(
            version=manifest.VERSION,
            quiver_id=self._quiver_id,
            segment_seq=segment_seq,
            first_seq=bundles[0].seq,
            last_seq=bundles[-1].seq,
            bundles=len(bundles),
            events=sum(held.events for held in bundles),
            payload_bytes=sum(len(held.payload) for held in bundles),
            size_bytes=sum(file.size_bytes for file in files) + bundle_table.size,
            min_ingestion_ns=min(held.ingestion_ns for held in bundles),
            max_ingestion_ns=max(held.ingestion_ns for held in bundles),
            clamped_min_event_us=clamped_us["min"],
            clamped_max_event_us=clamped_us["max"],
            files=tuple(files),
            bundle_table_checksum=xxh3_64_hexdigest(bundle_table),
            producers=_newest(_producers(bundles), self._config.producers.max_count),
        )


def _note_places(places: RowPlaces, group: Group, file: int) -> None:
    """Note in which rows of a file each bundle is, for the bundle table."""
    row = 0
    for seq, _, index, _, count in group.shares:
        if group.kind == OPAQUE and places and places[-1][:3] == (seq, index, file):
            # One raw event after the other, as opaque rows.
            _, _, _, first_row, rows = places[-1]
            places[-1] = (seq, index, file, first_row, rows + count)
        else:
            places.append((seq, index, file, row, count))
        row += count


def _bundle_table(bundles: Sequence[HeldBundle], places: RowPlaces) -> pa.Buffer:
    """Return the bundle table as the bytes of an Arrow file."""
    places.sort()
    columns = [[place[number] for place in places] for number in (2, 3, 4)]
    values = pa.StructArray.from_arrays(
        [numbers(column, kind.type) for column, kind in zip(columns, PLACE_TYPE, strict=True)],
        fields=list(PLACE_TYPE),
    )
    counts = Counter([place[0] for place in places])
    offsets = itertools.accumulate([counts[held.seq] for held in bundles], initial=0)
    batch = pa.record_batch(
        [
            numbers([held.seq for held in bundles], pa.int64()),
            numbers([held.kind for held in bundles], pa.int8()),
            numbers([held.ingestion_ns for held in bundles], pa.int64()),
            numbers([_watermark(held) for held in bundles], pa.int64()),
            texts([held.producer for held in bundles]),
            numbers([held.epoch for held in bundles], pa.int64()),
            numbers([held.events for held in bundles], pa.int32()),
            numbers([len(held.payload) for held in bundles], pa.int64()),
            pa.ListArray.from_arrays(numbers(list(offsets), pa.int32()), values),
        ],
        schema=BUNDLE_SCHEMA,
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, BUNDLE_SCHEMA) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _watermark(held: HeldBundle) -> int | None:
    return None if held.watermark_ns == NO_WATERMARK else held.watermark_ns


def _producers(bundles: Sequence[HeldBundle]) -> dict[str, ProducerSummary]:
    """Return the newest append of each producer.

    By these, repeats are recognised after a restart.
    """
    newest: dict[str, ProducerSummary] = {}
    for held in bundles:
        if held.producer is None:
            continue
        known = newest.get(held.producer)
        given = [_watermark(held), known.watermark_ns if known else None]
        watermark_ns = max((each for each in given if each is not None), default=None)
        if known is not None and known.epoch >= held.epoch:
            same = known.epoch == held.epoch
            newest[held.producer] = known._replace(
                bundles=known.bundles + same,
                events=known.events + held.events * same,
                watermark_ns=watermark_ns,
            )
        else:
            newest[held.producer] = ProducerSummary(
                held.epoch, held.seq, 1, held.events, held.ingestion_ns, watermark_ns
            )
    return newest


def _newest(producers: dict[str, ProducerSummary], max_count: int) -> dict[str, ProducerSummary]:
    by_age = sorted(producers.items(), key=lambda item: (item[1].time_ns, item[1].seq))
    # The newest `max_count`, newest first, in one slice.
    return dict(by_age[: -max_count - 1 : -1])
