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
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

import pyarrow as pa
from xxhash import xxh3_64, xxh3_64_hexdigest, xxh3_128_hexdigest

from holdfast.quiver.base import compute as pc
from holdfast.quiver.base import names
from holdfast.quiver.base.arrow import numbers, slices_take_all, texts
from holdfast.quiver.base.bundle import RESERVED_METADATA, one_batch
from holdfast.quiver.base.config import QuiverConfig
from holdfast.quiver.base.envelope import ITEM_TIMES
from holdfast.quiver.base.frame import NO_WATERMARK, hashed
from holdfast.quiver.base.held_bundle import HeldBundle
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.segments import ids, manifest
from holdfast.quiver.segments.arrow_file import MAGIC, MessageWriter, Placed, file_end
from holdfast.quiver.segments.bundle_table import BUNDLE_SCHEMA, PLACE_TYPE
from holdfast.quiver.segments.data_file import pack_schema
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

if TYPE_CHECKING:
    from typing_extensions import Buffer

# What a record batch holds at most of what the bundles brought, with the envelope, unless a single
# row is larger: so much may be lost with one sector.
BLOCK_BYTES = 256_000
# The same before compression, where that is asked for. What a disk damages are stored bytes, and a
# block of so much takes about as many as one that is not compressed; in less, little repeats.
COMPRESSED_BLOCK_BYTES = 4 * BLOCK_BYTES
# Arrow takes 1, at which zstd sees no runs of one number: 38 kB of equal `_seq` are 2.8 kB then,
# and 47 bytes at its own default, which takes no longer.
_LEVELS = {"zstd": 3}
# What is written in one call.
_WRITE_BYTES = 1 << 20


class _FileWriter:
    """Writes a data file in large pieces, and hashes it by part."""

    def __init__(self, disk: Disk, handle: Handle) -> None:
        self.position = 0
        self.batches = Placed()
        self._disk = disk
        self._handle = handle
        self._waiting: list[Buffer] = []
        self._waiting_bytes = 0
        # Of everything outside the record batches.
        self._frame = xxh3_64()

    def put_frame(self, data: Buffer) -> None:
        """Write what is no record batch."""
        self._frame.update(data)
        self._put(data)

    def put_batch(self, message: pa.Buffer) -> tuple[int, str]:
        """Write a record batch; return where it begins, and its checksum."""
        offset = self.position
        self.batches.add(offset, message)
        self._put(message)
        return offset, hashed(message).hexdigest()

    def _put(self, data: Buffer) -> None:
        self._waiting.append(data)
        size_bytes = len(data)  # type: ignore[arg-type]
        self._waiting_bytes += size_bytes
        self.position += size_bytes
        if self._waiting_bytes >= _WRITE_BYTES:
            self.drain()

    def drain(self) -> None:
        """Write what waits."""
        write_all(self._disk, self._handle, self._waiting, QuiverPoint.SEAL_DATA_WRITE)
        self._waiting = []
        self._waiting_bytes = 0

    def frame_checksum(self) -> str:
        """Return the checksum of everything outside the record batches."""
        return self._frame.hexdigest()


def write_data_file(disk: Disk, path: PurePath, made: GroupTable, compression: str) -> FileSummary:
    """Write and sync one file."""
    schema = _describing_schema(made)
    codec = None if compression == "none" else pa.Codec(compression, _LEVELS.get(compression))
    block_bytes = BLOCK_BYTES if codec is None else COMPRESSED_BLOCK_BYTES
    messages = MessageWriter(schema, codec)
    rows = one_batch(made.table)
    described, *dictionaries = messages.head(rows)
    placed = Placed()
    batches: list[BatchSummary] = []
    handle = disk.create(path, QuiverPoint.SEAL_DATA_CREATE)
    try:
        file = _FileWriter(disk, handle)
        file.put_frame(MAGIC)
        file.put_frame(described)
        for message in dictionaries:
            placed.add(file.position, message)
            file.put_frame(message)
        start = 0
        for block in _blocks(made, rows, block_bytes):
            message = messages.batch(block)
            offset, checksum = file.put_batch(message)
            batches.append(
                BatchSummary(
                    offset,
                    len(message),
                    block.num_rows,
                    checksum,
                    *_bounds(made.event_us.slice(start, block.num_rows)),
                    *_item_bounds(made, start, block.num_rows),
                )
            )
            start += block.num_rows
        file.put_frame(file_end(described, placed, file.batches))
        file.drain()
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
        size_bytes=file.position,
        frame_checksum=file.frame_checksum(),
        batches=tuple(batches),
        schema=pack_schema(described),
        dictionary_checksum=xxh3_64_hexdigest(b"".join(dictionaries)) if dictionaries else "",
    )


def _bounds(times_us: pa.Array) -> tuple[int, int]:
    """Return the earliest and the latest of the times of some rows."""
    found = pc.min_max(times_us)
    return found["min"].as_py(), found["max"].as_py()


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


def _blocks(made: GroupTable, rows: pa.RecordBatch, block_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows in record batches of `block_bytes` at most, or of a single row."""
    # For such types Arrow writes the whole column with each slice: blocks would multiply the file.
    if any(slices_take_all(kind) for kind in rows.schema.types):
        if rows.num_rows:
            yield rows
        return
    first = 0
    for end in _block_ends(made.group, block_bytes):
        yield rows.slice(first, end - first)
        first = end


def _block_ends(group: Group, block_bytes: int) -> Iterator[int]:
    """Yield the rows before which the next block begins, and their number.

    They are between two bundles wherever one fits into a block: a bundle that lies in two is put
    together whenever it is read, and lost with either.
    """
    # Not by `table.nbytes`: it fails, and even crashes, on some of the types that IPC can hold.
    # Bytes and rows through each bundle: a block of small ones is found by bisection.
    byte_ends = list(itertools.accumulate(group.share_bytes()))
    row_ends = list(itertools.accumulate([share.rows for share in group.shares]))
    share = first = row = placed_bytes = size_bytes = 0
    while share < len(byte_ends):
        fitting = bisect_right(byte_ends, placed_bytes + block_bytes - size_bytes, lo=share)
        if fitting > share:
            size_bytes += byte_ends[fitting - 1] - placed_bytes
            share, row, placed_bytes = fitting, row_ends[fitting - 1], byte_ends[fitting - 1]
        elif row > first:
            yield row
            first, size_bytes = row, 0
        else:
            for one_bytes in group.row_bytes(share, row):
                if row > first and size_bytes + one_bytes > block_bytes:
                    yield row
                    first, size_bytes = row, 0
                row, size_bytes = row + 1, size_bytes + one_bytes
            share, placed_bytes = share + 1, byte_ends[share]
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
            sum([held.events for held in bundles]),
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
            events=sum([held.events for held in bundles]),
            payload_bytes=sum([len(held.payload) for held in bundles]),
            size_bytes=sum(file.size_bytes for file in files) + bundle_table.size,
            min_ingestion_ns=min([held.ingestion_ns for held in bundles]),
            max_ingestion_ns=max([held.ingestion_ns for held in bundles]),
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
    offsets = list(itertools.accumulate([counts[held.seq] for held in bundles], initial=0))
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
            pa.ListArray.from_arrays(numbers(offsets, pa.int32()), values),
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
