"""A disk that fails where it is told to: a wrapper of any other disk.

A fault names a step (`at`), which call of that step (`nth`), and what happens:

    kill_before   the process dies before the call takes effect
    kill_midway   a write puts half of its bytes down, then the process dies
    kill_after    the process dies right after the call took effect
    enospc, eio   the call fails and changes nothing
    short_write   the write puts half of its bytes down and returns; the next call fails with ENOSPC
    bad_block     after the call, the page that was written last cannot be read any more: only on a
                  disk that can lose one (`SimulatedDisk.spoil_last_write`)
    stays_full    every free block is taken before the call, and none comes back until something is
                  unlinked: only on a disk that can be filled (`SimulatedDisk.fill`)
    failed_sync   the sync fails, and what was dirty may never reach the disk (fsyncgate)

What "dies" means is given by `die`: a real SIGKILL in `holdfast prove`, `SimulatedCrash` in tests.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath
from typing import TYPE_CHECKING, NoReturn

from holdfast.seam.disk import DirEntry, Disk, Handle

if TYPE_CHECKING:
    from typing_extensions import Buffer


class FaultKind(StrEnum):
    """What happens when a fault strikes."""

    KILL_BEFORE = "kill_before"
    KILL_MIDWAY = "kill_midway"
    KILL_AFTER = "kill_after"
    ENOSPC = "enospc"
    EIO = "eio"
    SHORT_WRITE = "short_write"
    BAD_BLOCK = "bad_block"
    STAYS_FULL = "stays_full"
    FAILED_SYNC = "failed_sync"


@dataclass(frozen=True)
class Fault:
    """Strike the `nth` call of the step `at` (from 1), and the `times - 1` calls after it."""

    at: str
    kind: FaultKind
    nth: int = 1
    times: int = 1

    def strikes(self, call: int) -> bool:
        """Whether the call with this number (from 1) is struck."""
        return self.nth <= call < self.nth + self.times


def die_for_real() -> NoReturn:
    """End this process as `kill -9` does: no handlers, no flushing."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("BUG: survived SIGKILL")


class FaultyDisk:
    """Passes every call on to `inner`, except where a fault strikes."""

    def __init__(self, inner: Disk, faults: Iterable[Fault], die: Callable[[], NoReturn]) -> None:
        self._inner = inner
        self._faults = list(faults)
        self._die = die
        self._calls: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._full = threading.Event()

    @property
    def is_shared(self) -> bool:
        return self._inner.is_shared

    def calls(self) -> dict[str, int]:
        """Return how often each step was reached."""
        with self._lock:
            return dict(self._calls)

    def heal(self) -> None:
        """Forget all faults that have not struck yet."""
        with self._lock:
            self._faults.clear()

    def _enter(self, at: str) -> FaultKind | None:
        """Count a call, and do what a fault does before it; return what is left to do.

        Calls are counted by step, not altogether: the third sync of the log is the same moment in
        every run, however many files other threads have made meanwhile.
        """
        with self._lock:
            self._calls[at] += 1
            call = self._calls[at]
            kind = next((f.kind for f in self._faults if f.at == at and f.strikes(call)), None)
        if kind is FaultKind.KILL_BEFORE:
            self._die()
        if kind is FaultKind.ENOSPC:
            raise OSError(errno.ENOSPC, f"injected: no space left on device at {at}")
        if kind is FaultKind.EIO:
            raise OSError(errno.EIO, f"injected: input/output error at {at}")
        if kind is FaultKind.STAYS_FULL:
            self._fill()
        return kind

    def _fill(self) -> None:
        fill = getattr(self._inner, "fill", None)
        if fill is None:
            raise TypeError(f"{type(self._inner).__name__} cannot be filled")
        fill()

    def _leave(self, kind: FaultKind | None) -> None:
        if kind in (FaultKind.KILL_AFTER, FaultKind.KILL_MIDWAY):
            self._die()
        if kind is FaultKind.BAD_BLOCK:
            spoil = getattr(self._inner, "spoil_last_write", None)
            if spoil is None:
                raise TypeError(f"{type(self._inner).__name__} cannot lose a block")
            spoil()

    def create(self, path: PurePath, at: str) -> Handle:
        kind = self._enter(at)
        handle = self._inner.create(path, at)
        self._leave(kind)
        return handle

    def reopen(self, path: PurePath, at: str) -> Handle:
        kind = self._enter(at)
        handle = self._inner.reopen(path, at)
        self._leave(kind)
        return handle

    def reuse(self, path: PurePath, at: str, offset_bytes: int = 0) -> Handle:
        kind = self._enter(at)
        handle = self._inner.reuse(path, at, offset_bytes)
        self._leave(kind)
        return handle

    def write(self, handle: Handle, buffers: Sequence[Buffer], at: str) -> int:
        # The second half of a short write: POSIX lets a disk that fills up take some bytes, and
        # says so only to whoever writes the rest.
        if self._full.is_set():
            self._full.clear()
            raise OSError(errno.ENOSPC, f"injected: no space left on device at {at}")
        kind = self._enter(at)
        if kind in (FaultKind.KILL_MIDWAY, FaultKind.SHORT_WRITE):
            whole = b"".join(bytes(buffer) for buffer in buffers)
            buffers = [whole[: max(1, len(whole) // 2)]]
        written = self._inner.write(handle, buffers, at)
        self._leave(kind)
        if kind is FaultKind.SHORT_WRITE:
            self._full.set()
        return written

    def allocate(self, handle: Handle, size_bytes: int, at: str) -> bool:
        kind = self._enter(at)
        taken = self._inner.allocate(handle, size_bytes, at)
        self._leave(kind)
        return taken

    def sync(self, handle: Handle, at: str) -> None:
        kind = self._enter(at)
        if kind is FaultKind.FAILED_SYNC:
            lose_dirty = getattr(self._inner, "lose_dirty", None)
            if lose_dirty is not None:
                lose_dirty(handle)
            raise OSError(errno.EIO, f"injected: sync failed at {at}")
        self._inner.sync(handle, at)
        self._leave(kind)

    def sync_path(self, path: PurePath, at: str) -> None:
        kind = self._enter(at)
        if kind is FaultKind.FAILED_SYNC:
            raise OSError(errno.EIO, f"injected: sync failed at {at}")
        self._inner.sync_path(path, at)
        self._leave(kind)

    def rewrite(self, path: PurePath, content: Buffer, at: str, offset_bytes: int = 0) -> None:
        kind = self._enter(at)
        if kind is FaultKind.FAILED_SYNC:
            raise OSError(errno.EIO, f"injected: sync failed at {at}")
        self._inner.rewrite(path, content, at, offset_bytes)
        self._leave(kind)

    def truncate(self, handle: Handle, size_bytes: int, at: str) -> None:
        kind = self._enter(at)
        self._inner.truncate(handle, size_bytes, at)
        self._leave(kind)

    def written_through(self, handle: Handle) -> int:
        return self._inner.written_through(handle)

    def open_size_bytes(self, handle: Handle) -> int:
        return self._inner.open_size_bytes(handle)

    def close(self, handle: Handle) -> None:
        self._inner.close(handle)

    def make_dir(self, path: PurePath, at: str) -> None:
        kind = self._enter(at)
        self._inner.make_dir(path, at)
        self._leave(kind)

    def rename(self, source: PurePath, target: PurePath, at: str) -> None:
        kind = self._enter(at)
        self._inner.rename(source, target, at)
        self._leave(kind)

    def link(self, source: PurePath, target: PurePath, at: str) -> None:
        kind = self._enter(at)
        self._inner.link(source, target, at)
        self._leave(kind)

    def unlink(self, path: PurePath, at: str) -> None:
        kind = self._enter(at)
        self._inner.unlink(path, at)
        self._leave(kind)

    def remove_dir(self, path: PurePath, at: str) -> None:
        kind = self._enter(at)
        self._inner.remove_dir(path, at)
        self._leave(kind)

    def sync_dir(self, path: PurePath, at: str) -> None:
        kind = self._enter(at)
        if kind is FaultKind.FAILED_SYNC:
            raise OSError(errno.EIO, f"injected: sync failed at {at}")
        self._inner.sync_dir(path, at)
        self._leave(kind)

    def read(self, path: PurePath) -> bytes:
        return self._inner.read(path)

    def read_range(self, path: PurePath, offset_bytes: int, size_bytes: int) -> bytes:
        return self._inner.read_range(path, offset_bytes, size_bytes)

    def open_read(self, path: PurePath) -> Handle:
        return self._inner.open_read(path)

    def read_into(self, handle: Handle, offset_bytes: int, buffer: memoryview) -> int:
        return self._inner.read_into(handle, offset_bytes, buffer)

    def map(self, path: PurePath) -> memoryview:
        return self._inner.map(path)

    def file_bytes(self, path: PurePath) -> int:
        return self._inner.file_bytes(path)

    def files_bytes(self, folder: PurePath, names: Sequence[str]) -> list[int]:
        return self._inner.files_bytes(folder, names)

    def list(self, path: PurePath) -> list[DirEntry]:
        return self._inner.list(path)

    def exists(self, path: PurePath) -> bool:
        return self._inner.exists(path)

    def link_count(self, path: PurePath) -> int:
        return self._inner.link_count(path)

    def used_bytes(self, path: PurePath) -> int:
        return self._inner.used_bytes(path)

    def free_bytes(self, path: PurePath) -> int:
        return self._inner.free_bytes(path)

    def lock(self, path: PurePath, owner: str) -> Handle:
        return self._inner.lock(path, owner)

    def unlock(self, handle: Handle) -> None:
        self._inner.unlock(handle)
