"""A file that appears under its name only when all of it is on stable storage.

The name is made from what is in it, so the same events give the same name, and writing them again
replaces the file:

    20250615T150640.000001Z-7b0a2c1e-17.0-42.3.parquet
    └ first event received  └ quiver └ first to last position
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any, Protocol

from holdfast.deliver.exporters.file_journal import JournalIdentity
from holdfast.seam.disk import Disk, write_all

TEMPORARY = ".part"
# Behind the positions: which of several files of the same events it is.
NAME = re.compile(r"\d{8}T\d{6}\.\d{6}Z-[\w-]+-\d+\.\d+-\d+\.\d+(-[0-9a-f]{8})?\.(ndjson|parquet)")


class FilePlace(Protocol):
    """Takes complete files. All calls block, and may raise OSError or HoldfastError."""

    # Whether what is taken has to be on stable storage before.
    wants_synced: bool

    def check(self) -> None:
        """Fail if nothing can be written there."""

    def take(self, file: PurePath, name: PurePath) -> None:
        """Let a file appear under a name, durably; the file is gone afterwards."""

    def remove_oldest(self, max_bytes: int, below: Collection[str]) -> list[PurePath]:
        """Remove files until the rest is within a size; the newest one stays."""


class CompleteFile:
    """A file that is being written, which Arrow may do; all calls go through the seam."""

    closed = False

    def __init__(self, disk: Disk, temporary: PurePath) -> None:
        # Of a process that was killed while it wrote: never continued, always written anew.
        if disk.exists(temporary):
            disk.unlink(temporary, "files.publish.unlink")
        self._disk = disk
        self._temporary = temporary
        self._handle = disk.create(temporary, "files.publish.create")
        self._is_open = True
        self._written_bytes = 0

    def appear(self, place: FilePlace, name: PurePath) -> None:
        """Complete it. Synced before, named after: who lists a folder finds whole files or none."""
        try:
            if place.wants_synced:
                self._disk.sync(self._handle, "files.publish.sync")
        finally:
            self.let_go()
        place.take(self._temporary, name)

    def let_go(self) -> None:
        """Close it, complete or not; what is not never appears."""
        if self._is_open:
            self._is_open = False
            self._disk.close(self._handle)

    # ------------------------------------------------- what Arrow asks of a file

    def write(self, data: Any) -> int:
        """Write all of it; nothing once it was let go, when Arrow still wants to end its format."""
        if not self._is_open:
            return len(data)
        written = write_all(self._disk, self._handle, [data], "files.publish.write")
        self._written_bytes += written
        return written

    def tell(self) -> int:
        """Return how much was written."""
        return self._written_bytes

    def writable(self) -> bool:
        """Whether it can be written."""
        return True

    def readable(self) -> bool:
        """Whether it can be read."""
        return False

    def seekable(self) -> bool:
        """Whether it can be written anywhere but at its end."""
        return False

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Whoever opened the file closes it."""


def file_name(
    first: JournalIdentity, received_ns: int, last: JournalIdentity, ending: str, which: str = ""
) -> str:
    """Return the name of a file by its first and last event, and when the first was received."""
    quiver = re.sub(r"\W", "_", first.quiver_id)[:8]
    return (
        f"{received_at(received_ns):%Y%m%dT%H%M%S.%fZ}-{quiver}"
        f"-{first.seq}.{first.row}-{last.seq}.{last.row}{which}.{ending}"
    )


def received_at(ingestion_ns: int) -> datetime:
    """Return when an event was received."""
    return datetime.fromtimestamp(ingestion_ns // 1000 / 1e6, UTC)


def make_dirs(disk: Disk, path: PurePath) -> None:
    """Create a directory and what is missing above it, durably."""
    if disk.exists(path):
        return
    make_dirs(disk, path.parent)
    disk.make_dir(path, "files.make_dir")
    disk.sync_dir(path.parent, "files.make_dir.sync")
