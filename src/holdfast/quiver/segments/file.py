"""One data file of a segment: an Arrow IPC file with a checksum for every record batch.

The file is plain Arrow; the checksums are in the manifest. One per batch, so that a damaged sector
costs the bundles of one batch, and one for everything else (schema, footer). Dictionaries are
written with the first batch, so where there are any, all batches need the first to be sound.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import PurePath

import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64, xxh3_128_hexdigest

from holdfast.quiver.bundle import RESERVED_METADATA
from holdfast.quiver.points import Point
from holdfast.quiver.segments.arrow_types import slices_take_all
from holdfast.quiver.segments.manifest import BatchSummary, FileSummary
from holdfast.quiver.segments.table import GroupTable
from holdfast.seam.disk import Disk, Handle, write_all

# A file has about this many record batches: enough to prune and to confine damage, few enough that
# the manifest stays small whatever the segment's size.
BATCHES_PER_FILE = 8
BATCH_BYTES_MIN = 1 << 20
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

    def write(self, data: bytes) -> int:
        (self._batch or self._frame).update(data)
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self.position += len(data)
        if self._waiting_bytes >= _SINK_CHUNK_BYTES:
            self.drain()
        return len(data)

    def drain(self) -> None:
        """Write what waits."""
        write_all(self._disk, self._handle, self._waiting, Point.SEAL_DATA_WRITE)
        self._waiting = []
        self._waiting_bytes = 0

    def begin_batch(self) -> int:
        self._batch = xxh3_64()
        return self.position

    def end_batch(self) -> str:
        assert self._batch is not None
        checksum, self._batch = self._batch.hexdigest(), None
        return checksum

    def frame_checksum(self) -> str:
        return self._frame.hexdigest()

    def flush(self) -> None:
        """Arrow flushes after each batch; the seam is written in large pieces instead."""

    def close(self) -> None:
        """The descriptor is closed by whoever opened it."""


def write_data_file(disk: Disk, path: PurePath, made: GroupTable, compression: str) -> FileSummary:
    """Write and sync one file."""
    schema, codec = _describing_schema(made), None if compression == "none" else compression
    handle = disk.create(path, Point.SEAL_DATA_CREATE)
    try:
        sink = _HashingSink(disk, handle)
        batches: list[BatchSummary] = []
        options = pa.ipc.IpcWriteOptions(compression=codec)
        with pa.ipc.new_file(pa.PythonFile(sink, "w"), schema, options=options) as writer:
            start = 0
            for batch in _large_batches(made):
                offset = sink.begin_batch()
                writer.write_batch(batch)
                checksum = sink.end_batch()
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
        disk.sync(handle, Point.SEAL_DATA_SYNC)
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


def _large_batches(made: GroupTable) -> Iterator[pa.RecordBatch]:
    # Not `table.nbytes`: it fails, and even crashes, on some of the types that IPC can hold.
    size_bytes = made.group.size_bytes
    count = min(BATCHES_PER_FILE, max(1, size_bytes // BATCH_BYTES_MIN))
    if any(slices_take_all(kind) for kind in made.table.schema.types):
        count = 1
    rows = max(1, -(-made.table.num_rows // count))
    for start in range(0, made.table.num_rows, rows):
        yield from made.table.slice(start, rows).to_batches()
