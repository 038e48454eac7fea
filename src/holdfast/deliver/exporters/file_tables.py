"""Requests of telemetry as Parquet files of their items, in folders by hour and service.

    spans/hour=2026-11-16T22/service=checkout/20261116T221500.000001Z-7b0a2c1e-17.0-42.3-9c1f0b2a.parquet

Readers of such folders (duckdb, polars, Spark) take `hour` and `service` from the paths, and leave
out the folders that a question is not about. The hour is that of the item, not of its arrival: that
is what is asked for.

Both come from clients, so neither may decide how many folders there are, nor where they lie. Names
are escaped as Hive does it, which those readers undo; a long one is cut, and a hash keeps it apart.
Of one journal `max_partitions` folders are written at once, one file in each; rows beyond them
share one folder without hour and service. In the file itself every row has its own
`service_name` and time, whatever its folder is called.

Everything follows from what the journal holds: a journal that is published again after a crash
makes the same files under the same names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import PurePath
from typing import NamedTuple
from urllib.parse import quote_from_bytes

import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_hexdigest

from holdfast.deliver.exporters.complete_file import TEMPORARY, CompleteFile, FilePlace, file_name
from holdfast.deliver.exporters.file_journal import JournalIdentity, JournalRecord
from holdfast.quiver import ItemTable
from holdfast.quiver.base.arrow import constant, numbers, texts
from holdfast.quiver.base.envelope import TIME_TYPE
from holdfast.quiver.read.scan import TimeRange
from holdfast.quiver.read.tables import table_schema, with_envelope
from holdfast.seam.disk import Disk

# Payloads of which rows are made at once.
PAYLOADS_BYTES_MAX = 8 * 2**20
# Rows that are held before they are written, all tables together: fewer and larger row groups.
ROWS_BYTES_MAX = 32 * 2**20
# Of the folder of a service, escaped. File systems take names of 255 bytes.
SERVICE_BYTES_MAX = 120
# How Hive writes that there is no value; all readers of such folders know it.
NOTHING = "__HIVE_DEFAULT_PARTITION__"
_HOUR_US = 3600 * 10**6
_QUIVER_ID = pa.field("_quiver_id", pa.string())
_IDENTITY = (_QUIVER_ID.name, "_seq", "_row")


class TablePartition(NamedTuple):
    """One folder: of a table, an hour since 1970, and a service. Without both: of all others."""

    table: str
    hour: int | None
    service: bytes

    @property
    def folder(self) -> PurePath:
        """Where its files are, below the directory of the exporter."""
        hour = NOTHING
        if self.hour is not None:
            hour = f"{datetime.fromtimestamp(self.hour * 3600, UTC):%Y-%m-%dT%H}"
        return PurePath(self.table, f"hour={hour}", f"service={_escaped(self.service)}")


def _escaped(service: bytes) -> str:
    if not service:
        return NOTHING
    escaped = quote_from_bytes(service, safe="")
    if len(escaped) <= SERVICE_BYTES_MAX:
        return escaped
    kept = escaped[:SERVICE_BYTES_MAX]
    # Not within an escape.
    cut = kept.rfind("%", SERVICE_BYTES_MAX - 2)
    return f"{kept[:cut] if cut >= 0 else kept}~{xxh3_64_hexdigest(service)}"


class TableFiles:
    """Writes the tables of one journal."""

    def __init__(
        self,
        disk: Disk,
        place: FilePlace,
        tables: dict[str, ItemTable],
        compression: str,
        max_partitions: int,
    ) -> None:
        self._disk = disk
        self._place = place
        self._tables = tables
        self._compression = compression
        self._max_partitions = max_partitions

    def write(self, records: Sequence[JournalRecord], scratch: PurePath) -> list[int]:
        """Write the items of all records; return the places of those that cannot be read."""
        with ExitStack() as stack:
            opened: dict[TablePartition, _PartitionFile] = {}
            unreadable: list[int] = []
            for partition, rows in _partitions(self._batches(records, unreadable)):
                if partition not in opened and len(opened) >= self._max_partitions:
                    partition = TablePartition(partition.table, None, b"")  # noqa: PLW2901
                if partition not in opened:
                    temporary = scratch / f"table-{len(opened)}{TEMPORARY}"
                    made = _PartitionFile(self._disk, temporary, rows.schema, self._compression)
                    stack.callback(made.let_go)
                    opened[partition] = made
                opened[partition].add(rows)
            for partition, file in opened.items():
                file.appear(self._place, partition.folder, partition.service)
        self._disk.sync_dir(scratch, "files.publish.sync_scratch")
        return unreadable

    def _batches(
        self, records: Sequence[JournalRecord], unreadable: list[int]
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the items of all records with their table; put aside what has none."""
        names = {table.raw_slot: name for name, table in self._tables.items()}
        for places in _groups(records):
            slots: dict[str, list[int]] = {}
            for place in places:
                slots.setdefault(records[place].slot, []).append(place)
            for slot, chosen in slots.items():
                if slot in names:
                    name = names[slot]
                    some = [records[place] for place in chosen]
                    missed: list[int] = []
                    for rows in _rows(self._tables[name], some, missed):
                        yield name, rows
                    unreadable += [chosen[place] for place in missed]
                else:
                    unreadable += chosen
        unreadable.sort()


def _groups(records: Sequence[JournalRecord]) -> Iterator[list[int]]:
    """Yield the places of records that are made rows of at once."""
    group: list[int] = []
    size_bytes = 0
    for place, record in enumerate(records):
        if group and size_bytes + len(record.payload) > PAYLOADS_BYTES_MAX:
            yield group
            group, size_bytes = [], 0
        group.append(place)
        size_bytes += len(record.payload)
    if group:
        yield group


def _rows(
    table: ItemTable, records: Sequence[JournalRecord], missed: list[int]
) -> Iterator[pa.RecordBatch]:
    """Yield the items of some records, with their positions."""
    received = numbers([record.ingestion_ns // 1000 for record in records], pa.int64())
    stored = pa.RecordBatch.from_arrays(
        [
            numbers([record.identity.seq for record in records], pa.int64()),
            numbers([record.identity.row for record in records], pa.int32()),
            received.cast(TIME_TYPE),
        ],
        ["_seq", "_row", "_ingestion_time"],
    )
    made = table.of_payloads([bytes(record.payload) for record in records], missed)
    # A journal is of one quiver.
    quiver = texts([records[0].identity.quiver_id])
    for rows in with_envelope(made, stored, table_schema(table), TimeRange()):
        quivers = quiver.take(numbers([0] * rows.num_rows, pa.int32()))
        yield rows.add_column(0, _QUIVER_ID, quivers)


def _partitions(
    batches: Iterable[tuple[str, pa.RecordBatch]],
) -> Iterator[tuple[TablePartition, pa.RecordBatch]]:
    """Yield the rows of each folder, of as many batches at once as may be held."""
    held: dict[str, list[pa.RecordBatch]] = {}
    held_bytes = 0
    for name, batch in batches:
        held.setdefault(name, []).append(batch)
        held_bytes += batch.nbytes
        if held_bytes >= ROWS_BYTES_MAX:
            yield from _divided(held)
            held, held_bytes = {}, 0
    yield from _divided(held)


def _divided(
    held: dict[str, list[pa.RecordBatch]],
) -> Iterator[tuple[TablePartition, pa.RecordBatch]]:
    for table, batches in held.items():
        rows = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        times_us = rows.column("_event_time").cast(pa.int64())
        hours = pc.divide(times_us, constant(_HOUR_US, pa.int64()))
        by_hour = hours.dictionary_encode()
        # As bytes: nobody has checked that a name is text. None is as good as an empty one.
        names = pc.coalesce(rows.column("service_name"), texts([""])[0]).cast(pa.binary())
        services = names.dictionary_encode()
        count = constant(len(services.dictionary), pa.int64())
        codes = pc.add(
            pc.multiply(by_hour.indices.cast(pa.int64()), count), services.indices.cast(pa.int64())
        )
        # Stable: within a folder, items stay in their order.
        order = pc.sort_indices(codes)
        runs = pc.run_end_encode(codes.take(order), run_end_type=pa.int32())
        start = 0
        for end in runs.run_ends.to_pylist():
            first = order[start].as_py()
            chosen = rows.take(order.slice(start, end - start))
            yield TablePartition(table, hours[first].as_py(), names[first].as_py()), chosen
            start = end


class _PartitionFile:
    """The file of one folder, while its rows come."""

    def __init__(
        self, disk: Disk, temporary: PurePath, schema: pa.Schema, compression: str
    ) -> None:
        import pyarrow.parquet as pq

        self._file = CompleteFile(disk, temporary)
        sink = pa.PythonFile(self._file, mode="w")
        self._writer = pq.ParquetWriter(sink, schema, compression=compression)
        self._first: tuple[JournalIdentity, int] | None = None
        self._last: JournalIdentity | None = None

    def add(self, rows: pa.RecordBatch) -> None:
        """Write rows as a group of the file."""
        if self._first is None:
            received_ns = rows.column("_ingestion_time").cast(pa.int64())[0].as_py() * 1000
            self._first = _identity(rows, 0), received_ns
        self._last = _identity(rows, rows.num_rows - 1)
        self._writer.write_batch(rows)

    def appear(self, place: FilePlace, folder: PurePath, service: bytes) -> None:
        """Complete it."""
        assert self._first is not None, "BUG: a file without rows"
        assert self._last is not None, "BUG: a file without rows"
        self._writer.close()
        # Where upper and lower case are one, two services may share a folder.
        which = f"-{xxh3_64_hexdigest(service)[:8]}"
        name = file_name(*self._first, self._last, "parquet", which)
        self._file.appear(place, folder / name)

    def let_go(self) -> None:
        """Close it, complete or not."""
        self._file.let_go()


def _identity(rows: pa.RecordBatch, place: int) -> JournalIdentity:
    quiver_id, seq, row = (rows.column(name)[place].as_py() for name in _IDENTITY)
    return JournalIdentity(quiver_id, seq, row)
