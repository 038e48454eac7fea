"""What files are made of a journal, and which are removed again when there are too many."""

from __future__ import annotations

import base64
import logging
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

import orjson
import pyarrow as pa

from holdfast.deliver.exporters.complete_file import (
    TEMPORARY,
    CompleteFile,
    FilePlace,
    file_name,
    received_at,
)
from holdfast.deliver.exporters.dialects import one_line
from holdfast.deliver.exporters.file_journal import JournalRecord
from holdfast.deliver.exporters.file_tables import TableFiles
from holdfast.seam.disk import Disk
from holdfast.signals.registry import tables as known_tables

# Payload bytes of one Parquet row group: what is in memory at once.
ROW_GROUP_BYTES = 8 * 2**20
# Below the directory: requests of which no rows could be made.
UNREADABLE = "unreadable"

Partitions = Literal["none", "day", "hour"]

log = logging.getLogger("holdfast.deliver")


@dataclass(frozen=True)
class FileFormat:
    """How files are to look."""

    format: Literal["ndjson", "parquet"]
    content: Literal["payload", "record"]
    compression: Literal["zstd", "snappy", "none"]
    partition_by: Partitions
    # Rows of these tables instead of the events, in at most so many folders at once.
    tables: tuple[str, ...] = ()
    max_partitions: int = 1


class Publisher:
    """Writes complete files into one place."""

    def __init__(
        self, disk: Disk, place: FilePlace, file_format: FileFormat, max_total_bytes: int | None
    ) -> None:
        self._disk = disk
        self._place = place
        self._format = file_format
        self._max_total_bytes = max_total_bytes
        self._tables = None
        if file_format.tables:
            self._tables = TableFiles(
                disk,
                place,
                {name: known_tables()[name] for name in file_format.tables},
                file_format.compression,
                file_format.max_partitions,
            )

    def check(self) -> None:
        """Fail if nothing can be written."""
        self._place.check()

    def publish(self, records: Sequence[JournalRecord], scratch: PurePath) -> None:
        """Write the files that hold these events; a second time changes nothing.

        They are put together in the folder `scratch`, on the disk of a place that is a folder.
        """
        if self._tables is not None:
            self._write_tables(self._tables, records, scratch)
            return
        # Places and not records: a journal may be larger than memory, and its records are made
        # when they are written.
        places: dict[PurePath, array[int]] = {}
        for place, record in enumerate(records):
            folder = _partition(record, self._format.partition_by)
            places.setdefault(folder, array("Q")).append(place)
        for folder, chosen in places.items():
            name = _name(records[chosen[0]], records[chosen[-1]], self._format.format)
            self._write(folder / name, scratch, (records[place] for place in chosen))

    def _write_tables(
        self, tables: TableFiles, records: Sequence[JournalRecord], scratch: PurePath
    ) -> None:
        """Write rows, and as they came the events of which none can be made.

        A receiver refuses those. But they have been answered for: a journal may be from before the
        exporter was told to write tables, and then holds something else.
        """
        left = tables.write(records, scratch)
        if left:
            log.warning("%d requests cannot be read, and are in %s", len(left), UNREADABLE)
            name = _name(records[left[0]], records[left[-1]], "parquet")
            chosen = (records[place] for place in left)
            self._write(PurePath(UNREADABLE, name), scratch, chosen)

    def remove_oldest(self) -> list[PurePath]:
        """Remove files until the rest is within `max_total_size`; the newest one stays."""
        if self._max_total_bytes is None:
            return []
        below = {*self._format.tables, UNREADABLE} if self._format.tables else set()
        return self._place.remove_oldest(self._max_total_bytes, below)

    def _write(self, path: PurePath, scratch: PurePath, records: Iterable[JournalRecord]) -> None:
        file = CompleteFile(self._disk, scratch / f"{path.name}{TEMPORARY}")
        try:
            if path.suffix == ".ndjson":
                self._write_lines(file, records)
            else:
                self._write_parquet(file, records)
            file.appear(self._place, path)
        finally:
            file.let_go()
        self._disk.sync_dir(scratch, "files.publish.sync_scratch")

    def _write_lines(self, file: CompleteFile, records: Iterable[JournalRecord]) -> None:
        for record in records:
            line = _record_line(record) if self._format.content == "record" else record.payload
            file.write(one_line(bytes(line)) + b"\n")

    def _write_parquet(self, file: CompleteFile, records: Iterable[JournalRecord]) -> None:
        """Row group by row group, each a few megabytes of payload: a file may be large, memory is
        not.
        """
        import pyarrow.parquet as pq

        sink = pa.PythonFile(file, mode="w")
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
        "received": received_at(record.ingestion_ns).isoformat(),
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


def _partition(record: JournalRecord, partition_by: Partitions) -> PurePath:
    if partition_by == "none":
        return PurePath()
    received = received_at(record.ingestion_ns)
    day = PurePath(f"date={received:%Y-%m-%d}")
    return day if partition_by == "day" else day / f"hour={received:%H}"


def _name(first: JournalRecord, last: JournalRecord, ending: str) -> str:
    return file_name(first.identity, first.ingestion_ns, last.identity, ending)
