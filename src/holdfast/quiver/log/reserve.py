"""The reserve: blocks on the disk that are ours already, so that a full one can be freed.

A full disk is left by delivering what is on it: outcomes are written, what is in the log is sealed,
segments go. Each of these needs a little room itself, and so does a start. That room is kept as
files of random bytes, written and synced (no holes, nothing to be compressed away), in two shares:

    headers   one WAL file's header, two ledger files with their checkpoints and some lines
    segment   one seal: as large as the largest buffer that was ever open, not as it may become

Whoever meets a full disk gives up the share that he needs, and uses the freed blocks at once. Until
the reserve is whole again nothing is appended (retention.py), so nobody else of this quiver takes
them. It is made whole as soon as there is room. What a kill leaves of it is found by its names and
sizes at the next start; the bytes mean nothing. docs/format/README.md

An append waits while the reserve grows, and in a new quiver it grows with every append, by more
bytes than are appended. To write them there and then halved the speed of a burst. So what is large
is done in two steps. Its blocks are allocated and that is synced before the append goes on: from
then on the file system counts them as the file's own, and to give them up frees them like any
others. The random bytes are written over them by the keeper, some at a time. A file system that
cannot allocate, or does not count what it allocated, gets them at once, as does what is small.

Where there are no headers to give up, as in a directory of a version that kept no reserve, the
second copies of the segments' summaries go instead, some at a time: the first ones, which were
found sound, say the same. Six of them are the room of a ledger file or a WAL file. Where even they
are gone, an outcome may come before the keeper has freed what the last ones resolved. It is then
refused (`StorageFailed`), nothing is recorded, and the same call succeeds once there is room. It
does not wait for the keeper, because it holds the ledger's lock, which the keeper needs. If another
program takes all that is freed meanwhile, such outcomes may leave no room for the line that says a
segment is deleted: ARCHITECTURE.md has what follows, and why.
"""

from __future__ import annotations

import contextlib
import errno
import math
import threading
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import cache
from pathlib import PurePath
from typing import TypeVar

from holdfast.quiver.base import names
from holdfast.quiver.base.config import KB, MB
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.log.wal import BLOCK_BYTES
from holdfast.quiver.segments import manifest
from holdfast.quiver.segments.segment import Catalog
from holdfast.seam import Seam
from holdfast.seam.disk import DISK_IS_FULL, entries_of, write_all
from holdfast.seam.randomness import seeded_randomness

# What a file system may take for a new file beside its bytes: an inode, a name, a last block.
FILE_COST_BYTES = 16 * KB
# While the disk is full a ledger file gets so many bytes of lines; then the next one begins, and
# the one before goes.
LEDGER_LINES_BYTES = 32 * KB
# And so many where there was no reserve: then a third file must fit in the room of a few blocks.
TIGHT_LINES_BYTES = 4 * KB
# So much of second copies goes at once: a WAL file's or a ledger file's beginning, with its inode.
COPIES_BYTES = 24 * KB
# A segment takes an eighth more than its bundles in memory, and that much for its small files.
SEGMENT_OVERHEAD_BYTES = 128 * KB
# Shares grow in steps: the first, then twice as much, so that growing is rare.
STEP_BYTES_MIN = 256 * KB
# What is smaller is written at once, without being allocated first.
ALLOCATED_BYTES_MIN = MB
# What is only allocated is written in such pieces, not more often than that.
WRITE_OUT_BYTES = 8 * MB
WRITE_OUT_S = 5.0
# A file of which so many bytes at its end are zero is not written yet. They are written in order.
_TAIL_BYTES = 64
# Appends leave so much free on the disk beside the reserve: another quiver on the same disk that
# gives up its headers finds them free when it writes.
FREE_BYTES_MIN = MB
# A quota is used up although the disk has room: then a try costs as much as the reserve does.
RETRY_S = 0.5
# Random bytes are written in pieces. To make all of them anew took longer than writing them: each
# piece is the first, read from another offset on, so that no two blocks are equal (below 4 GB) and
# nothing comes again within the 1 MB that a file system compresses in one go. The first pieces of
# two files are one random megabyte with its byte values exchanged, by another table for each path.
_PIECE_BYTES = MB
_SHIFT_BYTES = 521

Result = TypeVar("Result")


class ReserveShare(StrEnum):
    """What a part of the reserve is kept for."""

    HEADERS = "headers"
    SEGMENT = "segment"


def headers_bytes(checkpoint_bytes: int) -> int:
    """Return how large the first share is, given the ledger's last checkpoint."""
    # A checkpoint may have grown by the time it is written.
    ledger_file = BLOCK_BYTES + 2 * checkpoint_bytes + LEDGER_LINES_BYTES + FILE_COST_BYTES
    needed = BLOCK_BYTES + FILE_COST_BYTES + 2 * ledger_file
    return -(-needed // (64 * KB)) * (64 * KB)


def segment_bytes(buffer_bytes: int, full_bytes: int) -> int:
    """Return how large the second share is, given a buffer, and the size of a full one."""
    step = STEP_BYTES_MIN
    while step < _sealed(buffer_bytes):
        step *= 2
    return max(_sealed(buffer_bytes), min(step, _sealed(full_bytes)))


def _sealed(buffer_bytes: int) -> int:
    return buffer_bytes + buffer_bytes // 8 + SEGMENT_OVERHEAD_BYTES


class DiskReserve:
    """The files of the reserve. Safe to use from many threads."""

    def __init__(self, seam: Seam, root: PurePath, catalog: Catalog | None = None) -> None:
        self._disk = seam.disk
        self._root = root
        # Whose summaries have second copies.
        self._catalog = catalog or Catalog()
        # The segments that have none any more, as far as they were looked at.
        self._single: set[PurePath] = set()
        # While there is no reserve a ledger file gets so many bytes of lines.
        self.lines_bytes = LEDGER_LINES_BYTES
        self._folder = root / names.RESERVE_DIR
        self._lock = threading.Lock()
        # Held while a file is written that is only allocated so far, and taken before the other: to
        # remove one that is open would not free its blocks. Nobody who grows the reserve needs it.
        self._writing_out = threading.Lock()
        self._files: dict[ReserveShare, dict[PurePath, int]] = {share: {} for share in ReserveShare}
        # What of them is only allocated.
        self._unwritten: dict[PurePath, range] = {}
        self._clock = seam.clock
        self._retry_s = -math.inf
        self._written_out_s = seam.clock.monotonic_s()
        # Removes what goes before any share: the spare files of the log.
        self.on_full: Callable[[], bool] = lambda: False

    def find(self) -> None:
        """Take over what the last process left."""
        with self._lock:
            for entry in entries_of(self._disk, self._folder):
                share = names.parse_reserve_file(entry.name)
                if share in set(ReserveShare) and not entry.is_dir:
                    path = self._folder / entry.name
                    self._files[ReserveShare(share)][path] = entry.size_bytes
                    if not self._is_written(path, entry.size_bytes):
                        self._unwritten[path] = range(entry.size_bytes)

    def _is_written(self, path: PurePath, size_bytes: int) -> bool:
        if size_bytes < ALLOCATED_BYTES_MIN:
            return True
        try:
            return any(self._disk.read_range(path, size_bytes - _TAIL_BYTES, _TAIL_BYTES))
        except OSError:
            return True  # its blocks are all that counts

    @property
    def held_bytes(self) -> int:
        """Bytes of all its files."""
        return sum(sum(files.values()) for files in self._files.values())

    def holds(self, share: ReserveShare) -> int:
        """Return the bytes of one share."""
        return sum(self._files[share].values())

    def is_short(self, share: ReserveShare) -> bool:
        """Whether a share was given up, and is not there again."""
        return not self._files[share]

    def missing_bytes(self, wanted: dict[ReserveShare, int]) -> int:
        """Return how many bytes are missing for shares of these sizes."""
        return sum(max(0, size - self.holds(share)) for share, size in wanted.items())

    def make(self, wanted: dict[ReserveShare, int]) -> None:
        """Make the shares as large as wanted; an OSError if there is no room, or no disk.

        Nothing is written unless all of it fits: a disk that is nearly full is not filled.
        """
        with self._lock:
            missing = self.missing_bytes(wanted)
            if not missing:
                return
            free_bytes = self._disk.free_bytes(self._root)
            if free_bytes < missing + FREE_BYTES_MIN and self.give_up_spares():
                free_bytes = self._disk.free_bytes(self._root)
            now_s = self._clock.monotonic_s()
            # `free_bytes` knows nothing of a quota. Under one, each attempt would write megabytes
            # and fail; so attempts are spaced out until one succeeds or something is removed
            # (`freed`).
            if free_bytes < missing + FREE_BYTES_MIN or now_s < self._retry_s:
                raise OSError(errno.ENOSPC, "no room for the reserve", str(self._folder))
            self._retry_s = now_s + RETRY_S
            if not self._disk.exists(self._folder):
                self._disk.make_dir(self._folder, QuiverPoint.RESERVE_MAKE_DIR)
                self._disk.sync_dir(self._root, QuiverPoint.RESERVE_SYNC_DIR)
            for share, size in wanted.items():
                if self.holds(share) < size:
                    self._grow(share, size - self.holds(share))
            self._disk.sync_dir(self._folder, QuiverPoint.RESERVE_SYNC_DIR)
            # It worked: the next growth need not wait.
            self._retry_s = -math.inf
            self.lines_bytes = LEDGER_LINES_BYTES

    def can_grow(self, size_bytes: int) -> bool:
        """Whether the disk takes so much: it is written as a part of a share, which goes again."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            if now_s < self._retry_s:
                return False
            self._retry_s = now_s + RETRY_S
            try:
                path = self._grow(ReserveShare.SEGMENT, size_bytes)
                self._remove(ReserveShare.SEGMENT, path)
            except OSError:
                return False
            self._retry_s = -math.inf
            return True

    def freed(self) -> None:
        """Something went: the next try may be made at once."""
        self._retry_s = -math.inf

    def write_out(self) -> None:
        """Write some of what is only allocated so far, if it is time; an OSError if that fails."""
        with self._writing_out:
            with self._lock:
                path, left = next(iter(self._unwritten.items()), (None, range(0)))
            now_s = self._clock.monotonic_s()
            if path is None or now_s < self._written_out_s + WRITE_OUT_S:
                return
            # To write what is allocated may take a block or two, which a full disk does not have.
            if self._disk.free_bytes(self._root) < FREE_BYTES_MIN:
                return
            self._written_out_s = now_s
            end = min(left.start + WRITE_OUT_BYTES, left.stop)
            content = b"".join(_noise(path, end, left.start))
            self._disk.rewrite(path, content, QuiverPoint.RESERVE_WRITE, left.start)
            with self._lock:
                self._unwritten[path] = range(end, left.stop)
                if end == left.stop:
                    del self._unwritten[path]

    def _grow(self, share: ReserveShare, size_bytes: int) -> PurePath:
        """Add one file to a share, synced: only then are the blocks certainly ours."""
        taken = {path.name for path in self._files[share]}
        number = next(n for n in range(1, len(taken) + 2) if _name(share, n) not in taken)
        path = self._folder / _name(share, number)
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(
                path, QuiverPoint.RESERVE_UNLINK
            )  # what could not be taken back before
        handle = self._disk.create(path, QuiverPoint.RESERVE_CREATE)
        try:
            allocated = size_bytes >= ALLOCATED_BYTES_MIN and self._disk.allocate(
                handle, size_bytes, QuiverPoint.RESERVE_WRITE
            )
            for piece in () if allocated else _noise(path, size_bytes):
                write_all(self._disk, handle, [piece], QuiverPoint.RESERVE_WRITE)
            self._disk.sync(handle, QuiverPoint.RESERVE_SYNC)
        except OSError:
            with contextlib.suppress(OSError):
                self._disk.unlink(path, QuiverPoint.RESERVE_UNLINK)
            raise
        finally:
            self._disk.close(handle)
        self._files[share][path] = size_bytes
        if allocated:
            self._unwritten[path] = range(size_bytes)
        return path

    def _remove(self, share: ReserveShare, path: PurePath) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(path, QuiverPoint.RESERVE_UNLINK)
        del self._files[share][path]
        self._unwritten.pop(path, None)

    def give_up_spares(self) -> bool:
        """Remove the spare files of the log; return whether there were any."""
        if not self.on_full():
            return False
        self.freed()
        return True

    def give_up(self, share: ReserveShare) -> bool:
        """Free the blocks of the spares, or else of a share; return whether there were any."""
        if self.give_up_spares():
            return True
        with self._writing_out, self._lock:
            freed = False
            for path in list(self._files[share]):
                self._remove(share, path)
                freed = True
            return freed or (share is ReserveShare.HEADERS and self._give_up_copies())

    def _give_up_copies(self) -> bool:
        """Cut some summaries' second copies off; return whether there were any."""
        freed_bytes = 0
        for segment in self._catalog.snapshot():
            if freed_bytes >= COPIES_BYTES:
                break
            if segment.path not in self._single:
                self._single.add(segment.path)
                with contextlib.suppress(OSError):  # it may be on its way into the trash
                    freed_bytes += manifest.cut_copy(
                        self._disk,
                        segment.path,
                        QuiverPoint.RESERVE_UNLINK,
                        QuiverPoint.RESERVE_SYNC,
                    )
        if freed_bytes:
            self.lines_bytes = TIGHT_LINES_BYTES
        return freed_bytes > 0

    def lend(self, share: ReserveShare, step: Callable[[], Result]) -> Result:
        """Do a step; while the disk is full, give up what there is of a share and do it again.

        Each round gives something up for good, so this ends: with success, or with the disk's own
        error when nothing is left to give.
        """
        while True:
            try:
                return step()
            except OSError as error:
                if error.errno not in DISK_IS_FULL or not self.give_up(share):
                    raise


def _noise(path: PurePath, size_bytes: int, start_bytes: int = 0) -> Iterator[memoryview]:
    """Yield bytes of no meaning, unlike those of any other file: a disk may store equal ones once.

    They are the same for the same path. `start_bytes`, where they begin, is a multiple of a piece.
    """
    randomness = seeded_randomness(int.from_bytes(str(path).encode()))
    table = bytes(randomness.sample(range(256), 256))
    first = _random_piece()[:size_bytes].translate(table)
    twice = memoryview(first + first)
    for start in range(start_bytes, size_bytes, _PIECE_BYTES):
        shift = start // _PIECE_BYTES * _SHIFT_BYTES % _PIECE_BYTES
        yield twice[shift : shift + min(_PIECE_BYTES, size_bytes - start)]


@cache
def _random_piece() -> bytes:
    return seeded_randomness(_PIECE_BYTES).randbytes(_PIECE_BYTES)


def _name(share: ReserveShare, number: int) -> str:
    return names.reserve_file(share, number)
