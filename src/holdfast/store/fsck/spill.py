"""Facts by parts of the hashes: in memory while they fit, then in files of a scratch folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.seam.disk import Disk, write_all
from holdfast.store.fsck.settings import FsckSettings
from holdfast.store.fsck.tables import FACTS, PREFIXES

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
