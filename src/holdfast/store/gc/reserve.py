"""Blocks on the disk of a SQLite database that are ours already, so that a full disk can be freed.

What frees a disk, deleting commits and collecting what nothing refers to, needs room itself: every
transaction is written into SQLite's log before objects can go, and so is the lease of a reader.
That room is kept as a file beside the database, of random bytes, written and synced: no hole, and
nothing that a file system could make smaller. Whoever meets a full disk removes the file, and tries
again in the blocks that this frees. Writers do not: they fail, and none begins before the file is
there again, so that they do not take what was freed for others. docs/format/gc.md
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import PurePath

from holdfast.errors import DiskFull
from holdfast.seam import Seam
from holdfast.seam.disk import DISK_IS_FULL, write_all
from holdfast.seam.points import FaultPoint

SUFFIX = ".reserve"
# Random bytes are made and written in pieces.
PIECE_BYTES = 1_000_000
# What a database needs when it is opened: its log, and the memory that all who use it share.
OPEN_BYTES = 1_000_000
# What a file may cost beside its bytes.
MARGIN_BYTES = 64_000


class ReservePoint(FaultPoint):
    """The steps of keeping room, as fault injection names them."""

    CREATE = "reserve.create", "create the reserve under a temporary name"
    WRITE = "reserve.write", "write its bytes"
    SYNC = "reserve.sync", "sync them, so that the blocks are taken"
    RENAME = "reserve.rename", "give the reserve its name"
    DIR_SYNC = "reserve.dir_sync", "make its name durable"
    SPEND = "reserve.spend", "give the reserve up, because the disk is full"


class DatabaseReserve:
    """The file beside one database. Safe to use from many threads and processes."""

    def __init__(self, database: PurePath, seam: Seam, size_bytes: int) -> None:
        self.path = database.with_name(database.name + SUFFIX)
        self.size_bytes = size_bytes
        self._disk = seam.disk
        self._randomness = seam.randomness
        self._lock = threading.Lock()
        # Whether this process gave it away, and has not made it whole again.
        self._is_spent = False

    def spend(self) -> bool:
        """Give the blocks to whoever needs them now; False if there are none."""
        with self._lock:
            try:
                self._disk.unlink(self.path, ReservePoint.SPEND)
            except OSError:
                return False
            self._is_spent = True
            return True

    def spend_to_open(self) -> None:
        """Make room for opening the database, if there is none."""
        if self.is_disk_full():
            self.spend()

    def is_disk_full(self) -> bool:
        """Whether there is not even room to open the database."""
        try:
            return self._disk.free_bytes(self.path.parent) < OPEN_BYTES
        except OSError:
            return False

    def need(self) -> None:
        """Be there, whole, or raise DiskFull: for those who are about to fill the disk."""
        try:
            self._make(self.size_bytes)
        except OSError as error:
            if error.errno not in DISK_IS_FULL:
                return  # a database that cannot be written to says so itself
            self.restore()
            raise DiskFull(
                f"the disk is full: there are no {self.size_bytes:,} bytes for the store's reserve",
                hint="delete commits (`holdfast files rm`), then collect (`holdfast gc run`), "
                "which work on a full disk; or make room otherwise",
                path=str(self.path),
            ) from error

    def restore(self) -> None:
        """Be there again, if we gave it away: as large as there is room, lest others take it."""
        if not self._is_spent:
            return
        with contextlib.suppress(OSError):
            free_bytes = self._disk.free_bytes(self.path.parent) - MARGIN_BYTES
            self._make(min(self.size_bytes, max(0, free_bytes)))

    def _make(self, size_bytes: int) -> None:
        with self._lock:
            # Looked at on disk and not remembered: other processes spend and restore the same
            # file.
            if self._held_bytes() >= size_bytes:
                return
            unfinished = self.path.with_name(f"{self.path.name}.new")
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(unfinished, ReservePoint.SPEND)  # of one who was killed
            with contextlib.suppress(FileNotFoundError):
                # Too small to keep, and in the way of a larger one.
                self._disk.unlink(self.path, ReservePoint.SPEND)
            # Until the rename: if writing fails now, `restore` knows that there is something to
            # put back.
            self._is_spent = True
            try:
                self._write(unfinished, size_bytes)
                self._disk.rename(unfinished, self.path, ReservePoint.RENAME)
            except OSError:
                with contextlib.suppress(OSError):
                    self._disk.unlink(unfinished, ReservePoint.SPEND)
                raise
            self._disk.sync_dir(self.path.parent, ReservePoint.DIR_SYNC)
            self._is_spent = size_bytes < self.size_bytes

    def _held_bytes(self) -> int:
        try:
            return self._disk.used_bytes(self.path)
        except FileNotFoundError:
            return 0

    def _write(self, path: PurePath, size_bytes: int) -> None:
        handle = self._disk.create(path, ReservePoint.CREATE)
        try:
            for start in range(0, size_bytes, PIECE_BYTES):
                piece = self._randomness.randbytes(min(PIECE_BYTES, size_bytes - start))
                write_all(self._disk, handle, [piece], ReservePoint.WRITE)
            self._disk.sync(handle, ReservePoint.SYNC)
        finally:
            self._disk.close(handle)
