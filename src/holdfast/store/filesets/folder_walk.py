"""Walks a folder for the store: what is to be stored, in order of the paths, and what is left out.

Nothing odd in a folder stops the rest of it from being stored: what cannot be stored, or read, is
left out, and the report says how much of it there was, and names the first of it.

A command walks its folder in a process of its own (`ForkedWalk`), forked before the command has
loaded what it needs: by the time that the parent is ready to compare and to store, most of the walk
is done. It says nothing that a walk in the parent would not: if the process dies, the parent walks
the folder itself, and goes on behind what it was told.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from holdfast.errors import StoreError
from holdfast.seam.folders import GONE, Folder, FolderEntry
from holdfast.seam.workers import fork_workers
from holdfast.store.filesets.paths import path_trouble
from holdfast.store.filesets.selection import CACHE_SIGNATURE, CACHE_TAG, Selection

if TYPE_CHECKING:
    from holdfast.seam.workers import Alive, Finish, WorkerPool

# Paths that a report names; it counts all.
REPORTED_PATHS_MAX = 100

# Why something is not in the commit. Those of `MISSED` are files that should be.
SkipReason = Literal[
    "excluded", "socket", "pipe", "device", "outside_link", "vanished", "name", "unreadable"
]
MISSED: tuple[SkipReason, ...] = ("name", "unreadable")


class ReportedPath(NamedTuple):
    """One path of a report: what became of it, and why."""

    path: str
    what: str
    why: str


class FolderReport:
    """What of a folder was not stored as it stands. Several threads may report to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left_out: Counter[SkipReason] = Counter()
        self.changed_files = 0
        self.large_xattrs = 0
        self.first: list[ReportedPath] = []

    @property
    def left_out(self) -> dict[SkipReason, int]:
        """How many names were left out, by reason."""
        with self._lock:
            return dict(sorted(self._left_out.items()))

    @property
    def missed(self) -> int:
        """How many files should have been stored, and could not be."""
        return sum(count for reason, count in self.left_out.items() if reason in MISSED)

    def leave_out(self, path: str, reason: SkipReason, why: str = "") -> None:
        """Note what is not stored."""
        with self._lock:
            self._left_out[reason] += 1
            if reason != "excluded":
                self._name(ReportedPath(path, reason, why))

    def has_changed(self, path: str) -> None:
        """Note a file that was written to while it was read."""
        with self._lock:
            self.changed_files += 1
            self._name(ReportedPath(path, "changed", "it was written to while it was read"))

    def has_large_xattrs(self, path: str) -> None:
        """Note a file or folder whose extended attributes are too large to be kept."""
        with self._lock:
            self.large_xattrs += 1
            self._name(ReportedPath(path, "without its xattrs", "they are too large"))

    def failed(self, path: str, error: OSError) -> None:
        """Note what went, or cannot be read."""
        self.leave_out(*LeftOut.failed(path, error))

    def _name(self, reported: ReportedPath) -> None:
        if len(self.first) < REPORTED_PATHS_MAX:
            self.first.append(reported)


class LeftOut(NamedTuple):
    """A name that is not stored."""

    path: str
    reason: SkipReason
    why: str = ""

    @classmethod
    def failed(cls, path: str, error: OSError) -> Self:
        """Return what is said of a name that went, or cannot be read."""
        if error.errno in GONE:
            return cls(path, "vanished")
        return cls(path, "unreadable", error.strerror or str(error))


class FolderWalk:
    """One walk over a folder."""

    def __init__(self, path: PurePath | str, selection: Selection | None) -> None:
        self.path = path
        self.outside_links = selection.outside_links if selection is not None else "keep"
        self._selection = selection if selection is not None and selection.chooses else None

    def items(self) -> Iterator[FolderEntry | LeftOut]:
        """Yield everything below, in order of the paths: what is stored, and what is left out."""
        unread: list[LeftOut] = []
        try:
            with Folder(self.path) as folder:
                walk = folder.walk(
                    partial(self._enters, folder),
                    lambda path, error: unread.append(LeftOut.failed(path, error)),
                )
                for entry in walk:
                    yield from unread
                    unread.clear()
                    yield self._left_out(entry) or entry
                yield from unread
        except OSError as error:
            raise StoreError(
                f"the folder cannot be read: {error.strerror or error}",
                hint="Make it readable; nothing was committed.",
                path=str(self.path),
            ) from error

    def _left_out(self, entry: FolderEntry) -> LeftOut | None:
        """Say why an entry is not stored; None: it is."""
        if self._selection is not None and not self._selection.wants(entry):
            return LeftOut(entry.path, "excluded")
        if entry.kind in ("socket", "pipe", "device"):
            return LeftOut(entry.path, entry.kind)
        trouble = path_trouble(entry.path)
        return LeftOut(entry.path, "name", trouble) if trouble is not None else None

    def _enters(self, folder: Folder, entry: FolderEntry) -> bool:
        """Say whether to look into a folder: not if it is excluded, a cache, or has a bad name."""
        # Names that could not be stored are not looked into: everything below would have to be
        # left out, too.
        if path_trouble(entry.path) is not None:
            return False
        selection = self._selection
        if selection is None:
            return True
        return selection.enters(entry) and not (
            selection.exclude_caches and _is_cache(folder, entry.path)
        )


def _is_cache(folder: Folder, path: str) -> bool:
    try:
        with folder.open_file(path + CACHE_TAG) as tag:
            return next(tag.blocks(), b"").startswith(CACHE_SIGNATURE)
    except OSError:
        return False


# Entries that the process of a walk tells at a time. It walks two times as many before anybody
# listens.
TOLD_ENTRIES = 2048


class ForkedWalk:
    """The walk of a process that was forked for it, as the parent is told of it."""

    def __init__(self, path: PurePath | str, selection: Selection | None, pool: WorkerPool) -> None:
        # In case that the process dies.
        self._walk = FolderWalk(path, selection)
        self.path, self.outside_links = path, self._walk.outside_links
        self._pool = pool
        pool.begin(None)
        self._tickets = deque(pool.submit(TOLD_ENTRIES) for _ in range(pool.ahead))

    @classmethod
    def begin(cls, path: PurePath | str, selection: Selection | None) -> Self | None:
        """Fork a process that walks a folder; None: where that cannot be."""
        pool = fork_workers(lambda _: _Walker(path, selection), 1)
        return cls(path, selection, pool) if pool is not None else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.close()

    def items(self) -> Iterator[FolderEntry | LeftOut]:
        """Yield what a `FolderWalk` does."""
        last = ""
        while told := self._told():
            for fields in told:
                yield FolderEntry._make(fields) if len(fields) > _LEFT_OUT else LeftOut(*fields)
            last = told[-1][0]
        if self._pool.lost_pids:
            yield from (item for item in self._walk.items() if item.path > last)

    def _told(self) -> list[tuple[Any, ...]]:
        """Return what comes next; nothing at the end, or if the process has died."""
        if not self._tickets:
            return []
        try:
            told: list[tuple[Any, ...]] = self._pool.result(self._tickets.popleft())
        except StoreError:
            if not self._pool.lost_pids:
                raise  # it said so
            return []
        if told:
            self._tickets.append(self._pool.submit(TOLD_ENTRIES))
        return told or self._told()


_LEFT_OUT = len(LeftOut._fields)


class _Walker:
    """The side of the process that walks."""

    def __init__(self, path: PurePath | str, selection: Selection | None) -> None:
        self._items = FolderWalk(path, selection).items()
        self._next: list[FolderEntry | LeftOut] = []

    def take(self, task: int, alive: Alive, *, again: bool) -> Finish:
        """Walk so far that `task` entries can be told, and all that there is to say of the last."""
        told = [tuple(item) for item in self._next]
        self._next = []
        for item in self._items:
            alive()
            if len(told) >= task and item.path != told[-1][0]:
                self._next = [item]
                break
            told.append(tuple(item))
        return lambda: told

    def close(self) -> None:
        """End the walk."""
