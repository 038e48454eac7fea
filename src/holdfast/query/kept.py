"""Tables of sealed segments, kept as Parquet files for the next question.

Making a row of each span takes far longer than most questions about it. A sealed segment never
changes, so neither does its table: the first query that needs it writes it down, and later ones
read the file, which is columns and has bounds. It is a copy of what is stored, in a folder that its
user names and may empty at any time; nobody but queries ever looks at it.

A file has its name when it is whole. Its name says of which quiver, segment and columns it is, so
that one made by a program with other columns is never taken for it. All files together are bounded:
the ones used longest ago go, and what one query needs beyond the bound is made and not kept.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
from xxhash import xxh3_64_hexdigest

from holdfast.errors import StorageFailed
from holdfast.quiver.base.config import ItemTable
from holdfast.quiver.read.scan import EVERYTHING, TimeRange
from holdfast.quiver.read.tables import StoredParts, scan_table, table_schema
from holdfast.quiver.segments.segment import Segment

KEPT_BYTES = 10 * 1024**3
# Rows of a group: duckdb reads groups side by side, and leaves out those whose bounds say so.
_GROUP_ROWS = 100_000
_SUFFIX = ".parquet"
# Of a quiver, a segment, a table and its columns. Whatever else is in the folder is somebody's own.
_OURS = re.compile(r"[0-9a-f-]{32,36}-.+-\w+-[0-9a-f]{8}\.parquet")
# One that is being written; a process that was killed leaves it, and nobody writes for so long.
_BEGUN = re.compile(r"[0-9a-f-]{32,36}-.+-\w+-[0-9a-f]{8}\.\d+\.new")
_ABANDONED_S = 24 * 3600.0


class KeptFiles(NamedTuple):
    """What is kept of a table, and the segments of which nothing is."""

    paths: list[Path]
    others: list[Segment]


class KeptTables:
    """A folder of such files."""

    def __init__(self, folder: Path, max_bytes: int = KEPT_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        # Of this process: they are being read, and do not go.
        self._used: dict[Path, int] = {}

    def of(self, name: str, table: ItemTable, segments: Sequence[Segment]) -> KeptFiles:
        """Return the files of some segments; what is missing is made, as long as there is room."""
        found = KeptFiles([], [])
        columns = xxh3_64_hexdigest(table_schema(table).to_string().encode())[:8]
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for segment in segments:
                summary = segment.summary
                stem = f"{summary.quiver_id}-{segment.path.name}-{name}-{columns}"
                path = self._folder / (stem + _SUFFIX)
                if self._keep(path, table, segment):
                    found.paths.append(path)
                else:
                    found.others.append(segment)
            self._remove_oldest()
        except OSError as error:
            raise StorageFailed(
                f"tables cannot be kept: {error.strerror}",
                hint="name another folder with --keep, or none",
                path=str(self._folder),
            ) from error
        return found

    def _keep(self, path: Path, table: ItemTable, segment: Segment) -> bool:
        if sum(self._used.values()) >= self._max_bytes:
            return False
        if not path.exists():
            fresh = path.with_suffix(f".{os.getpid()}.new")
            try:
                rows = scan_table(
                    table, StoredParts([(segment, EVERYTHING)], []), None, TimeRange()
                )
                with pq.ParquetWriter(fresh, rows.schema, compression="zstd") as writer:
                    for batch in rows:
                        writer.write_batch(batch, row_group_size=_GROUP_ROWS)
                # Or a power cut could leave the name without the rows, for every query to come.
                with fresh.open("rb") as written:
                    os.fsync(written.fileno())
                fresh.rename(path)
            finally:
                fresh.unlink(missing_ok=True)
        os.utime(path)
        self._used[path] = path.stat().st_size
        return True

    def _remove_oldest(self) -> None:
        """Remove files until the rest is within the bound; those in use stay."""
        now_s = time.time()
        files = []
        for one in self._folder.iterdir():
            if _OURS.fullmatch(one.name):
                files.append((one.stat(), one))
            elif _BEGUN.fullmatch(one.name) and one.stat().st_mtime < now_s - _ABANDONED_S:
                one.unlink(missing_ok=True)
        total_bytes = sum(stat.st_size for stat, _ in files)
        for stat, path in sorted(files, key=lambda file: file[0].st_mtime_ns):
            if total_bytes <= self._max_bytes:
                return
            if path not in self._used:
                path.unlink(missing_ok=True)
                total_bytes -= stat.st_size
