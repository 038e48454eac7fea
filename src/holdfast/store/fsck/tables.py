"""What a check compares, as Arrow tables that can be split by the first byte of a hash.

All facts about a store are rows of one wide table, `FACTS`: which table a fact belongs to, which
prefix it is compared in, and the columns of that table. So facts can be collected from anywhere, in
any order, by any number of processes; whoever brings all facts of one prefix together can compare
them (compare.py) without knowing the rest of the store.

    table       compared where            says
    reached     prefix of the chunk       commits lead to `hash`, used as `kind`
    expected    prefix of the source      `source` must refer to `hash`, by its own bytes
    walked      prefix of the chunk       all that this index chunk refers to is among `expected`
    row         prefix of the chunk       a row of the database
    edge_to     prefix of the chunk       a reference in the database, by what it refers to
    edge_from   prefix of the source      the same reference, by who refers
    object      prefix of the chunk       an object that was listed
    source      prefix of the source      a commit, job or pin exists; `walked`: its record was read

A source that is a chunk has the prefix of its hash, any other the last byte of its number.

`Spill` keeps facts by parts of the hashes: in memory while they fit, then in files of a scratch
folder. `FsckSettings` has every bound of check, scrub and repair.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.seam.disk import Disk, write_all
from holdfast.store.base.bounds import BoundedSettings, count, size_bytes
from holdfast.store.gc.references_sql import CHUNK_KIND

# The prefix of a fact is one byte.
PREFIXES = 256


class FactTable(StrEnum):
    """Which table a fact belongs to."""

    REACHED = "reached"
    EXPECTED = "expected"
    WALKED = "walked"
    ROW = "row"
    EDGE_TO = "edge_to"
    EDGE_FROM = "edge_from"
    OBJECT = "object"
    SOURCE = "source"


_SOURCE = ("source_kind", "source_id", "source_generation")
COLUMNS: Mapping[FactTable, tuple[str, ...]] = {
    FactTable.REACHED: ("hash", "commit", "kind"),
    FactTable.EXPECTED: ("hash", "commit", *_SOURCE),
    FactTable.WALKED: ("hash", "generation"),
    FactTable.ROW: ("hash", "generation", "refcount", "holds", "uploaded", "state", "stored_bytes"),
    FactTable.EDGE_TO: ("hash", "generation", *_SOURCE),
    FactTable.EDGE_FROM: ("hash", "generation", *_SOURCE),
    FactTable.OBJECT: ("hash", "generation", "size_bytes", "modified_s"),
    FactTable.SOURCE: ("source_kind", "source_id", "walked"),
}

FACTS = pa.schema(
    [
        ("table", pa.string()),
        ("prefix", pa.int32()),
        ("hash", pa.binary()),
        ("generation", pa.int64()),
        ("commit", pa.int64()),
        ("kind", pa.string()),
        ("source_kind", pa.string()),
        ("source_id", pa.binary()),
        ("source_generation", pa.int64()),
        ("refcount", pa.int64()),
        ("holds", pa.int64()),
        ("uploaded", pa.bool_()),
        ("state", pa.string()),
        ("size_bytes", pa.int64()),
        ("stored_bytes", pa.int64()),
        ("modified_s", pa.float64()),
        ("walked", pa.bool_()),
    ]
)

FINDINGS = pa.schema(
    [
        ("kind", pa.string()),
        ("hash", pa.binary()),
        ("generation", pa.int64()),
        ("commit", pa.string()),
        ("path", pa.string()),
        ("detail", pa.string()),
        ("source", pa.string()),
    ]
)


class Partition(NamedTuple):
    """All facts of some prefixes, one Arrow table each."""

    reached: Any
    expected: Any
    walked: Any
    row: Any
    edge_to: Any
    edge_from: Any
    object: Any
    source: Any


def facts(
    table: FactTable, prefixes: Sequence[int], columns: Mapping[str, Sequence[Any]]
) -> pa.RecordBatch:
    """Return facts of one table, each with its prefix, as rows of `FACTS`."""
    count = len(prefixes)
    arrays = []
    for field in FACTS:
        if field.name == "table":
            arrays.append(pa.array([table.value] * count, field.type))
        elif field.name == "prefix":
            arrays.append(pa.array(prefixes, field.type))
        elif field.name in columns:
            arrays.append(pa.array(columns[field.name], field.type))
        else:
            arrays.append(pa.nulls(count, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=FACTS)


def partition_of(batches: Iterable[pa.RecordBatch]) -> Partition:
    """Return the tables that some facts make up, in whatever order they came."""
    import pyarrow.compute as pc

    whole = pa.Table.from_batches(batches, schema=FACTS)
    return Partition(
        *(
            whole.filter(pc.equal(whole["table"], name.value)).select(list(columns))
            for name, columns in COLUMNS.items()
        )
    )


def source_prefix(kind: str, source_id: bytes) -> int:
    """Return in which prefix the references of a source are compared."""
    if not source_id:
        return 0
    return source_id[0] if kind == CHUNK_KIND else source_id[-1]


@dataclass(frozen=True)
class FsckSettings(BoundedSettings):
    """How much a check holds in memory, and how fast a scrub reads."""

    partitions: int = count(16, least=1, most=PREFIXES)
    """Parts of the hashes that are compared one after another; more need less memory."""
    batch_rows: int = count(10_000, least=1, most=1_000_000)
    """Facts that are collected at once; rows that one query returns."""
    memory_rows: int = count(1_000_000, least=1)
    """Facts that wait in memory, about 100 bytes each; more are written to the scratch folder."""
    visited_max: int = count(1_000_000)
    """Index chunks that are remembered as read; behind it, those that commits share are reread."""
    findings_max: int = count(100_000, least=1)
    """Findings that a report holds; more are only counted."""
    paths_per_chunk_max: int = count(20, least=1)
    """Files that a report names for one chunk that is missing or damaged; more are counted."""
    repair_rounds: int = count(6, least=1, most=100)
    """How often a repair is followed by a check, and that by a repair of what it found."""
    scrub_bytes_per_s: int | None = size_bytes(None, least=1)
    """Stored bytes that a scrub reads in a second, at most; none: no limit."""
    scrub_save_objects: int = count(1000, least=1)
    """A scrub notes where it is after so many objects; so many are read again after a crash."""


# Small batches are joined, so many at once: each costs a few kilobytes, however few rows it has.
SMALL_BATCHES_MAX = 256
SPILL_CREATE = "fsck.spill_create"
SPILL_WRITE = "fsck.spill_write"
SPILL_REMOVE = "fsck.spill_remove"


class Spill:
    """Takes facts in any order; gives them back part by part."""

    def __init__(self, disk: Disk, folder: PurePath, settings: FsckSettings) -> None:
        self._disk = disk
        self._folder = folder
        self._parts = settings.partitions
        self._memory_rows = settings.memory_rows
        self._small: list[pa.RecordBatch] = []
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._files: list[list[PurePath]] = [[] for _ in range(self._parts)]
        self.spilled_rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take some facts."""
        self._small.append(batch)
        self._waiting_rows += batch.num_rows
        if len(self._small) >= SMALL_BATCHES_MAX:
            self._waiting += pa.Table.from_batches(self._small).combine_chunks().to_batches()
            self._small = []
        if self._waiting_rows > self._memory_rows:
            self._spill()

    def close(self) -> None:
        """Remove the files."""
        for path in (path for paths in self._files for path in paths):
            self._disk.unlink(path, SPILL_REMOVE)
        self._files = [[] for _ in range(self._parts)]

    def part(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yield all facts of a part."""
        for path in self._files[number]:
            with pa.ipc.open_stream(self._disk.read(path)) as stream:
                yield from stream
        yield from self._chosen(number).to_batches()

    def _chosen(self, number: int) -> pa.Table:
        """Return what waits of a part."""
        whole = pa.Table.from_batches([*self._waiting, *self._small], schema=FACTS)
        low, high = number * PREFIXES, (number + 1) * PREFIXES
        # `prefix * parts // 256` without the division: the same cut as `prefixes_of`, for a whole
        # column.
        scaled = pc.multiply(whole["prefix"], self._parts)
        inside = pc.and_(pc.greater_equal(scaled, low), pc.less(scaled, high))
        return whole.filter(inside)

    def _spill(self) -> None:
        for number in range(self._parts):
            rows = self._chosen(number)
            if rows.num_rows:
                self._write(number, rows)
        self.spilled_rows += self._waiting_rows
        self._small, self._waiting, self._waiting_rows = [], [], 0

    def _write(self, number: int, rows: pa.Table) -> None:
        # Made in memory and written in one go: it is a part of what waited there, so it fits. Not
        # synced: a check that is killed begins again.
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, FACTS) as writer:
            writer.write_table(rows)
        path = self._folder / f"{number:03}.{len(self._files[number]):06}.facts"
        handle = self._disk.create(path, SPILL_CREATE)
        try:
            write_all(self._disk, handle, [sink.getvalue()], SPILL_WRITE)
        finally:
            self._disk.close(handle)
        self._files[number].append(path)


def prefixes_of(number: int, parts: int) -> range:
    """Return the prefixes that belong to a part."""
    return range(-(-number * PREFIXES // parts), -(-(number + 1) * PREFIXES // parts))
