"""Spare WAL files: old ones that are written over by new ones.

To sync bytes behind the end of a file the file system allocates blocks and writes its journal. To
sync bytes that are written over others it does neither, which halves the cost. So a file whose
bundles are all in segments is renamed to a spare instead of unlinked, and the next file begins with
it (wal.py).

Nobody may see bytes change under them. So only a file that this process made and wrote is kept,
without any failure, and it is written over only if it has no second name: a copy of the directory
may be made of links. Bundles that a start found in a WAL file are read from there later, but that
file was another process's. Tools that look from outside notice that the name is gone (replay.py).

A spare is worth nothing. It goes before anything else that is kept when the disk or a bound is
full, at a clean end, and at a start that finds one.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import PurePath

from holdfast.quiver.base import names
from holdfast.quiver.base.config import MB
from holdfast.quiver.base.points import QuiverPoint
from holdfast.seam.disk import Disk

# A disk that would have less free space without a file keeps it as no spare.
FREE_BYTES_MIN = MB
# What is written over a spare counts with the spare's length from its beginning. More than this
# share of a bound is not spent so: an empty file could be at the bound by itself, for ever.
BOUND_SHARE = 4


class SpareWalFiles:
    """The spares of one log, at most `limit`, of a quiver that may hold so many bytes.

    Safe to use from many threads.
    """

    def __init__(self, disk: Disk, directory: PurePath, limit: int, bound_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._limit = limit
        self._file_bytes_max = bound_bytes // BOUND_SHARE
        self._lock = threading.Lock()
        # The newest last: its pages are the likeliest to be in memory.
        self._files: list[tuple[PurePath, int]] = []

    @property
    def size_bytes(self) -> int:
        """Bytes of all spares."""
        with self._lock:
            return sum(size_bytes for _, size_bytes in self._files)

    def __len__(self) -> int:
        return len(self._files)

    def keep(self, path: PurePath, size_bytes: int, beside: int) -> PurePath | None:
        """Rename a file that is not needed any more; None if it is to be unlinked instead.

        So many others were renamed just before. It is a spare only once the directory was synced,
        and `add` was called: a file that is written over must not come back under its old name.
        """
        if len(self._files) + beside >= self._limit or size_bytes > self._file_bytes_max:
            return None
        spare = path.with_name(names.spare_wal_file(path.name))
        try:
            if self._disk.free_bytes(self._directory) < size_bytes + FREE_BYTES_MIN:
                return None
            self._disk.rename(path, spare, QuiverPoint.TRUNCATE_KEEP)
        except OSError:
            return None
        return spare

    def add(self, path: PurePath, size_bytes: int) -> None:
        """Take a file that was renamed durably."""
        with self._lock:
            self._files.append((path, size_bytes))
        if not self._limit:
            self.give_up()

    def take(self) -> PurePath | None:
        """Give a spare away, if there is one: whoever has it writes over it, or removes it.

        One with a second name is removed instead. That is looked at here, because it may have been
        given while the file still had its first.
        """
        with self._lock:
            while self._files:
                path, _ = self._files.pop()
                with contextlib.suppress(OSError):
                    if self._disk.link_count(path) == 1:
                        return path
                    self._disk.unlink(path, QuiverPoint.SPARE_UNLINK)
            return None

    def give_up(self) -> bool:
        """Remove all spares; return whether there were any."""
        with self._lock:
            files, self._files = self._files, []
            for path, _ in files:
                with contextlib.suppress(OSError):  # the next start removes it
                    self._disk.unlink(path, QuiverPoint.SPARE_UNLINK)
            return bool(files)

    def end(self) -> None:
        """Remove all spares and keep none from now on."""
        self._limit = 0
        self.give_up()
