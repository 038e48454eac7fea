"""Complete files: how they are named, written, and removed again when there are too many.

A file appears under its name only when all of it is on stable storage. The name is made from what
is in it, so the same events give the same name, and writing them again replaces the file:

    20250615T150640.000001Z-7b0a2c1e-17.0-42.3.parquet
    └ first event received  └ quiver └ first to last position
"""

from __future__ import annotations

import base64
import contextlib
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any, Literal

import orjson
import pyarrow as pa

from holdfast.deliver.exporters.dialects import one_line
from holdfast.deliver.exporters.file_journal import JournalRecord
from holdfast.seam.disk import Disk, Handle, write_all

# Payload bytes of one Parquet row group: what is in memory at once.
ROW_GROUP_BYTES = 8 * 2**20
TEMPORARY = ".part"

_NAME = re.compile(r"\d{8}T\d{6}\.\d{6}Z-[\w-]+-\d+\.\d+-\d+\.\d+\.(ndjson|parquet)")
_PARTITION = re.compile(r"(date|hour)=[\d-]+")

Partitions = Literal["none", "day", "hour"]


@dataclass(frozen=True)
class FileFormat:
    """How files are to look."""

    format: Literal["ndjson", "parquet"]
    content: Literal["payload", "record"]
    compression: Literal["zstd", "snappy", "none"]
    partition_by: Partitions


class Publisher:
    """Writes complete files into one directory."""

    def __init__(
        self, disk: Disk, directory: PurePath, file_format: FileFormat, max_total_bytes: int | None
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._format = file_format
        self._max_total_bytes = max_total_bytes

    def publish(self, records: Sequence[JournalRecord], scratch: PurePath) -> None:
        """Write the files that hold these events; a second time changes nothing.

        They are put together in the folder `scratch`, which must be on the same disk.
        """
        # Places and not records: a journal may be larger than memory, and its records are made
        # when they are written.
        places: dict[PurePath, array[int]] = {}
        for place, record in enumerate(records):
            folder = self._directory / _partition(record, self._format.partition_by)
            places.setdefault(folder, array("Q")).append(place)
        for folder, chosen in places.items():
            name = _name(records[chosen[0]], records[chosen[-1]], self._format.format)
            self._write(folder / name, scratch, (records[place] for place in chosen))

    def remove_oldest(self) -> list[PurePath]:
        """Remove files until the rest is within `max_total_size`; the newest one stays."""
        if self._max_total_bytes is None:
            return []
        removed = []
        files = sorted(_published(self._disk, self._directory), key=lambda file: file[0].name)
        total_bytes = sum(size_bytes for _, size_bytes in files)
        # Never the newest: a limit below the size of one file would otherwise leave nothing at
        # all.
        for path, size_bytes in files[:-1]:
            if total_bytes <= self._max_total_bytes:
                break
            self._disk.unlink(path, "files.remove.unlink")
            total_bytes -= size_bytes
            removed.append(path)
        for folder in {path.parent for path in removed} - {self._directory}:
            self._remove_empty(folder)
        return removed

    def _remove_empty(self, folder: PurePath) -> None:
        while folder != self._directory and not self._disk.list(folder):
            with contextlib.suppress(OSError):
                self._disk.remove_dir(folder, "files.remove.dir")
            folder = folder.parent

    def _write(self, path: PurePath, scratch: PurePath, records: Iterable[JournalRecord]) -> None:
        make_dirs(self._disk, path.parent)
        temporary = scratch / f"{path.name}{TEMPORARY}"
        # Of a process that was killed while it wrote: never continued, always written anew.
        if self._disk.exists(temporary):
            self._disk.unlink(temporary, "files.publish.unlink")
        handle = self._disk.create(temporary, "files.publish.create")
        try:
            if self._format.format == "ndjson":
                self._write_lines(handle, records)
            else:
                self._write_parquet(handle, records)
            self._disk.sync(handle, "files.publish.sync")
        finally:
            self._disk.close(handle)
        # Synced before, named after: a reader that lists the folder finds whole files or none.
        self._disk.rename(temporary, path, "files.publish.rename")
        self._disk.sync_dir(path.parent, "files.publish.sync_dir")
        self._disk.sync_dir(scratch, "files.publish.sync_scratch")

    def _write_lines(self, handle: Handle, records: Iterable[JournalRecord]) -> None:
        for record in records:
            line = _record_line(record) if self._format.content == "record" else record.payload
            write_all(self._disk, handle, [one_line(bytes(line)), b"\n"], "files.publish.write")

    def _write_parquet(self, handle: Handle, records: Iterable[JournalRecord]) -> None:
        """Row group by row group, each a few megabytes of payload: a file may be large, memory is
        not.
        """
        import pyarrow.parquet as pq

        sink = pa.PythonFile(_Sink(self._disk, handle), mode="w")
        with pq.ParquetWriter(sink, SCHEMA, compression=self._format.compression) as writer:
            for group in _row_groups(records):
                writer.write_batch(_batch(group))


SCHEMA = pa.schema(
    [
        pa.field("quiver_id", pa.string(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("row", pa.int32(), nullable=False),
        pa.field("received", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("slot", pa.string(), nullable=False),
        pa.field("headers", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)


class _Sink:
    """A file that Arrow writes to, on the other side of which is the seam."""

    closed = False

    def __init__(self, disk: Disk, handle: Handle) -> None:
        self._disk = disk
        self._handle = handle
        self._written_bytes = 0

    def write(self, data: Any) -> int:
        written = write_all(self._disk, self._handle, [data], "files.publish.write")
        self._written_bytes += written
        return written

    def tell(self) -> int:
        return self._written_bytes

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Whoever opened the file closes it."""


def _batch(records: Sequence[JournalRecord]) -> pa.RecordBatch:
    columns = [
        [record.identity.quiver_id for record in records],
        [record.identity.seq for record in records],
        [record.identity.row for record in records],
        [record.ingestion_ns // 1000 for record in records],
        [record.slot for record in records],
        [list(record.headers.items()) for record in records],
        [bytes(record.payload) for record in records],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=SCHEMA)


def _row_groups(records: Iterable[JournalRecord]) -> Iterator[Sequence[JournalRecord]]:
    group: list[JournalRecord] = []
    size_bytes = 0
    for record in records:
        if group and size_bytes + len(record.payload) > ROW_GROUP_BYTES:
            yield group
            group, size_bytes = [], 0
        group.append(record)
        size_bytes += len(record.payload)
    if group:
        yield group


def _record_line(record: JournalRecord) -> bytes:
    """Return one event with where and when it was received; the event itself as it came."""
    fields = {
        "quiver_id": record.identity.quiver_id,
        "seq": record.identity.seq,
        "row": record.identity.row,
        "received": _received(record).isoformat(),
        "slot": record.slot,
        "headers": record.headers,
    }
    # Parsed only to see whether it can stand in a line of JSON. What is written are the bytes that
    # came: written anew, numbers and the order of keys might change.
    try:
        orjson.loads(record.payload)
    except orjson.JSONDecodeError:
        fields["payload_base64"] = base64.b64encode(record.payload).decode("ascii")
        return orjson.dumps(fields)
    return b"".join([orjson.dumps(fields)[:-1], b',"event":', record.payload, b"}"])


def make_dirs(disk: Disk, path: PurePath) -> None:
    """Create a directory and what is missing above it, durably."""
    if disk.exists(path):
        return
    make_dirs(disk, path.parent)
    disk.make_dir(path, "files.make_dir")
    disk.sync_dir(path.parent, "files.make_dir.sync")


def _received(record: JournalRecord) -> datetime:
    return datetime.fromtimestamp(record.ingestion_ns // 1000 / 1e6, UTC)


def _partition(record: JournalRecord, partition_by: Partitions) -> PurePath:
    if partition_by == "none":
        return PurePath()
    received = _received(record)
    day = PurePath(f"date={received:%Y-%m-%d}")
    return day if partition_by == "day" else day / f"hour={received:%H}"


def _name(first: JournalRecord, last: JournalRecord, ending: str) -> str:
    quiver = re.sub(r"\W", "_", first.identity.quiver_id)[:8]
    start, end = first.identity, last.identity
    return (
        f"{_received(first):%Y%m%dT%H%M%S.%fZ}-{quiver}"
        f"-{start.seq}.{start.row}-{end.seq}.{end.row}.{ending}"
    )


def _published(disk: Disk, directory: PurePath) -> Iterator[tuple[PurePath, int]]:
    """Yield the files that bear our names, with their sizes, also in partitions.

    Nothing else is ever counted or removed: the directory belongs to the user.
    """
    for entry in disk.list(directory):
        if entry.is_dir and _PARTITION.fullmatch(entry.name):
            yield from _published(disk, directory / entry.name)
        elif not entry.is_dir and _NAME.fullmatch(entry.name):
            yield directory / entry.name, entry.size_bytes
