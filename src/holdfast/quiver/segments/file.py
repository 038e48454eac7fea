"""One data file of a segment: an Arrow IPC file with a checksum for every record batch.

The file is plain Arrow; what is needed to read it piece by piece is in the manifest. A record batch
is the block that damage costs: it is small, and has a checksum of its own. Dictionaries stand
before the first one; where there are any, all batches need them to be sound.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import PurePath

import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64, xxh3_64_hexdigest, xxh3_128_hexdigest

from holdfast.quiver.base.arrow_types import slices_take_all
from holdfast.quiver.base.bundle import RESERVED_METADATA
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.segments.data_file import MAGIC, pack_schema, split_head
from holdfast.quiver.segments.manifest import BatchSummary, FileSummary
from holdfast.quiver.segments.rows import Group
from holdfast.quiver.segments.table import GroupTable
from holdfast.seam.disk import Disk, Handle, write_all

# What a record batch holds at most of what the bundles brought, with the envelope, unless a single
# row is larger: so much may be lost with one sector.
BLOCK_BYTES = 256_000
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
    schema, codec = _describing_schema(made), None if compression == "none" else compression
    handle = disk.create(path, QuiverPoint.SEAL_DATA_CREATE)
    try:
        sink = _HashingSink(disk, handle)
        batches: list[BatchSummary] = []
        options = pa.ipc.IpcWriteOptions(compression=codec)
        with pa.ipc.new_file(pa.PythonFile(sink, "w"), schema, options=options) as writer:
            start = 0
            for batch in _blocks(made):
                sink.begin_batch()
                writer.write_batch(batch)
                offset, checksum = sink.end_batch()
                times = pc.min_max(made.event_us.slice(start, batch.num_rows)).as_py()
                batches.append(
                    BatchSummary(
                        offset,
                        sink.position - offset,
                        batch.num_rows,
                        checksum,
                        times["min"],
                        times["max"],
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
    told = [(field.name, str(field.type), field.nullable) for field in columns]
    text = json.dumps(told, separators=(",", ":"), ensure_ascii=False)
    return xxh3_128_hexdigest(text.encode())


def _blocks(made: GroupTable) -> Iterator[pa.RecordBatch]:
    """Yield the rows in record batches of `BLOCK_BYTES` at most, or of a single row."""
    if any(slices_take_all(kind) for kind in made.table.schema.types):
        yield from made.table.to_batches()
        return
    first = 0
    for end in _block_ends(made.group):
        yield from made.table.slice(first, end - first).to_batches()
        first = end


def _block_ends(group: Group) -> Iterator[int]:
    """Yield the rows before which the next block begins, and their number.

    They are between two bundles wherever one fits into a block: a bundle that lies in two is put
    together whenever it is read, and lost with either.
    """
    # Not by `table.nbytes`: it fails, and even crashes, on some of the types that IPC can hold.
    first = row = size_bytes = 0
    for row_bytes in group.row_bytes():
        bundle_bytes = sum(row_bytes)
        if row > first and size_bytes + bundle_bytes > BLOCK_BYTES:
            yield row
            first, size_bytes = row, 0
        if bundle_bytes <= BLOCK_BYTES:
            row, size_bytes = row + len(row_bytes), size_bytes + bundle_bytes
            continue
        for one_bytes in row_bytes:
            if row > first and size_bytes + one_bytes > BLOCK_BYTES:
                yield row
                first, size_bytes = row, 0
            row, size_bytes = row + 1, size_bytes + one_bytes
    if row > first:
        yield row
