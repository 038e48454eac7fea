"""Objects as files in a folder, synced before they are reported as stored.

A put goes through five steps: write under a temporary name, sync the bytes, link to the real name
(which fails if it exists), sync the folder, remove the temporary name. A name is therefore never
seen with half of its bytes, not even after a power cut. `put_many` takes each step for all objects
before the next one, and syncs in several threads: a disk that is asked to sync ten files at once
needs hardly longer than for one of them, because one flush serves all.

A process that is killed leaves temporary files behind. They cost room. Their names begin with a
mark of the process, and a lock of that name is held while it lives: `remove_leftovers` takes the
files of those whose lock is free. Where files cannot be locked, and of versions that had no locks,
it takes those that are older than any put could be.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from holdfast.errors import BadInput, Damaged, DiskFull, ObjectMissing, StorageFailed, Stored
from holdfast.seam import Seam
from holdfast.seam.disk import (
    DISK_IS_FULL,
    DirEntry,
    Handle,
    LockHeld,
    disk_error,
    write_all,
)
from holdfast.seam.points import FaultPoint
from holdfast.store.objects.objects import ObjectExists, StoredObject, joined

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from typing_extensions import Buffer

Item = TypeVar("Item")

TEMPORARY_DIR = "tmp"
# Far longer than a put can take.
LEFTOVER_AGE_S = 24 * 3600.0
# Open files while many objects are put.
OPEN_FILES_MAX = 128
LOCK_SUFFIX = ".lock"
# Files or folders that are synced, or files that are removed, at once. Each of these waits for the
# disk, and many at once wait together (10 to 20 times faster).
SYNC_THREADS = 8


_OWN_NAME = re.compile(r"(put-[0-9a-f]{16})\.(?:[0-9]+|lock)")


class Leftovers(NamedTuple):
    """Temporary files of other processes: those that were removed, and those that were not."""

    removed: int = 0
    removed_bytes: int = 0
    kept: int = 0
    kept_bytes: int = 0


class ObjectPoint(FaultPoint):
    """The steps of putting and deleting objects, as fault injection names them."""

    MAKE_DIR = "objects.make_dir", "make a folder for objects"
    PARENT_SYNC = "objects.parent_sync", "make a folder's name durable"
    CREATE = "objects.create", "create an object under a temporary name"
    WRITE = "objects.write", "write an object"
    SYNC = "objects.sync", "sync an object"
    LINK = "objects.link", "give an object its name"
    DIR_SYNC = "objects.dir_sync", "make an object's name durable"
    TIDY = "objects.tidy", "remove a temporary name"
    DELETE = "objects.delete", "delete an object"
    DELETE_SYNC = "objects.delete_sync", "make deletions durable"


class LocalObjects:
    """Objects below a folder of this machine."""

    def __init__(self, root: PurePath, seam: Seam) -> None:
        self._root = root
        self._disk = seam.disk
        self._clock = seam.clock
        self._randomness = seam.randomness
        # Folders whose own names this process has synced.
        self._known_dirs: set[PurePath] = set()
        self._lock = threading.Lock()
        # What our temporary files are called, and the lock that says that we live.
        self._mark = ""
        self._mark_lock: Handle | None = None
        self._numbers = itertools.count()
        # Made when there is something to sync: most who open a store only read.
        self._threads: ThreadPoolExecutor | None = None

    def close(self) -> None:
        """End the threads that sync, and give back our name for temporary files."""
        if self._threads is not None:
            self._threads.shutdown()
        if self._mark_lock is not None:
            with contextlib.suppress(OSError):
                # The name before the lock: unlocked first, it would for a moment look like that of
                # a dead process.
                self._disk.unlink(self._lock_path(self._mark), ObjectPoint.TIDY)
            self._disk.unlock(self._mark_lock)
            self._mark_lock = None

    def make_root(self) -> None:
        """Make the folder, and those above it that are missing."""
        above = itertools.takewhile(
            lambda path: not self._disk.exists(path), (self._root, *self._root.parents)
        )
        try:
            for path in reversed(list(above)):
                self._disk.make_dir(path, ObjectPoint.MAKE_DIR)
                self._disk.sync_dir(path.parent, ObjectPoint.PARENT_SYNC)
        except OSError as error:
            raise _failed("cannot take a new folder", self._root, error) from error

    def put(self, key: str, data: Sequence[Buffer]) -> None:
        existing = self._put([(key, data)])
        if existing and self.get(key) != joined(data):
            raise ObjectExists(key)

    def put_many(self, items: Sequence[tuple[str, Sequence[Buffer]]]) -> None:
        for start in range(0, len(items), OPEN_FILES_MAX):
            self._put(items[start : start + OPEN_FILES_MAX])

    def get(self, key: str, offset_bytes: int = 0, size_bytes: int | None = None) -> bytes:
        path = self._path(key)
        try:
            if size_bytes is None:
                whole = self._disk.read(path)
                return whole[offset_bytes:] if offset_bytes else whole
            return self._disk.read_range(path, offset_bytes, size_bytes)
        except FileNotFoundError:
            raise ObjectMissing(
                "an object is missing",
                hint="run `holdfast store fsck` to see what else is, and what it belongs to",
                path=str(path),
            ) from None
        except OSError as error:
            if error.errno != errno.EIO:
                raise _failed("cannot be read", path, error) from error
            raise Damaged(
                f"the disk cannot read an object: {error.strerror}",
                hint="see what else is damaged, and what it belongs to: "
                "`holdfast store fsck --scrub`; --repair brings back what is stored twice",
                path=str(path),
            ) from error

    def delete_many(self, keys: Sequence[str]) -> None:
        paths = [self._path(key) for key in keys]
        try:
            self._run_concurrently(self._unlink, paths)
            self._run_concurrently(self._sync_deletes, _parents(paths))
        except OSError as error:
            raise _failed("cannot be changed", self._root, error) from error

    def list(self, prefix: str) -> Iterator[StoredObject]:
        start = PurePath(*prefix.split("/")[:-1])
        yield from self._list(self._root / start, "/".join([*start.parts, ""]), prefix)

    def now_s(self) -> float:
        return self._clock.wall_ns() / 1e9

    def remove_leftovers(self) -> Leftovers:
        """Remove temporary files that killed processes left; say what was found."""
        directory = self._root / TEMPORARY_DIR
        oldest_ns = self._clock.wall_ns() - int(LEFTOVER_AGE_S * 1e9)
        removed: list[DirEntry] = []
        kept: list[DirEntry] = []
        # Whatever is wrong with a leftover is no reason not to work.
        with contextlib.suppress(OSError):
            by_mark: dict[str, list[DirEntry]] = {}
            for entry in self._disk.list(directory):
                named = _OWN_NAME.fullmatch(entry.name)
                by_mark.setdefault(named[1] if named else "", []).append(entry)
            for mark, entries in by_mark.items():
                files = [one for one in entries if not one.name.endswith(LOCK_SUFFIX)]
                # A lock alone may be just about to be taken.
                dead = bool(mark and files) and self._remove_of(mark, files)
                for entry in files if dead else entries:
                    old = dead or entry.modified_ns < oldest_ns
                    (removed if old else kept).append(entry)
                    if old and not dead:
                        self._disk.unlink(directory / entry.name, ObjectPoint.TIDY)
        locks = [one for one in kept if one.name.endswith(LOCK_SUFFIX)]
        return Leftovers(
            len(removed),
            sum(entry.size_bytes for entry in removed),
            len(kept) - len(locks),
            sum(entry.size_bytes for entry in kept),
        )

    def _remove_of(self, mark: str, files: Sequence[DirEntry]) -> bool:
        """Remove the files of a process that is dead; False if it is not."""
        if mark == self._mark:
            return False
        try:
            # Taking the lock is the test: it succeeds only if the process that held it is dead,
            # whatever its number is now.
            handle = self._disk.lock(self._lock_path(mark), "")
        except LockHeld:
            return False
        try:
            for entry in files:
                self._disk.unlink(self._root / TEMPORARY_DIR / entry.name, ObjectPoint.TIDY)
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(self._lock_path(mark), ObjectPoint.TIDY)
        finally:
            self._disk.unlock(handle)
        return True

    def _lock_path(self, mark: str) -> PurePath:
        return self._root / TEMPORARY_DIR / f"{mark}{LOCK_SUFFIX}"

    def _own_mark(self) -> str:
        """Return what our temporary files are called; the first time, say that we live."""
        with self._lock:
            while self._mark_lock is None:
                self._mark = f"put-{self._randomness.getrandbits(64):016x}"
                try:
                    self._mark_lock = self._disk.lock(self._lock_path(self._mark), "")
                except LockHeld:
                    continue  # somebody looks whether it is a leftover
                except OSError as error:
                    if error.errno in DISK_IS_FULL:
                        raise
                    # Nothing can be locked here: our files are recognised by their age.
                    return self._mark.removeprefix("put-")
            return self._mark

    def _unlink(self, path: PurePath) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(path, ObjectPoint.DELETE)

    def _sync_deletes(self, directory: PurePath) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._disk.sync_dir(directory, ObjectPoint.DELETE_SYNC)

    # ---------------------------------------------------------------- putting

    def _put(self, items: Sequence[tuple[str, Sequence[Buffer]]]) -> Sequence[str]:
        """Store objects; return the keys that existed."""
        targets = [self._path(key) for key, _ in items]
        folder = self._root / TEMPORARY_DIR
        try:
            self._make_dirs({*_parents(targets), folder})
            mark = self._own_mark()
            temporaries = [folder / f"{mark}.{next(self._numbers)}" for _ in items]
            try:
                self._write(temporaries, [data for _, data in items])
                # Only after every sync: a name that exists is a promise that the bytes behind it
                # are durable, and other writers rely on it without looking.
                existing = self._link(temporaries, targets)
                self._run_concurrently(
                    lambda path: self._disk.sync_dir(path, ObjectPoint.DIR_SYNC), _parents(targets)
                )
            finally:
                self._tidy(temporaries)
        except OSError as error:
            raise _failed("did not take an object", self._root, error) from error
        return [items[number][0] for number in existing]

    def _write(self, paths: Sequence[PurePath], contents: Sequence[Sequence[Buffer]]) -> None:
        """Write temporary files, then sync all of them, so that the syncs overlap."""
        handles: list[Handle] = []
        try:
            for path, buffers in zip(paths, contents, strict=True):
                handles.append(self._disk.create(path, ObjectPoint.CREATE))
                write_all(self._disk, handles[-1], buffers, ObjectPoint.WRITE)
            self._run_concurrently(
                lambda handle: self._disk.sync(handle, ObjectPoint.SYNC), handles
            )
        finally:
            for handle in handles:
                self._disk.close(handle)

    def _link(self, sources: Sequence[PurePath], targets: Sequence[PurePath]) -> Sequence[int]:
        """Give files their names; return the numbers of those whose name is taken.

        A hard link, unlike a rename, never replaces what is there.
        """
        existing = []
        for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
            try:
                self._disk.link(source, target, ObjectPoint.LINK)
            except FileExistsError:
                # Its bytes were synced before it got the name; the name is synced with ours.
                existing.append(number)
        return existing

    def _tidy(self, paths: Sequence[PurePath]) -> None:
        for path in paths:
            with contextlib.suppress(OSError):  # a leftover costs room and nothing else
                self._disk.unlink(path, ObjectPoint.TIDY)

    def _make_dirs(self, wanted: Iterable[PurePath]) -> None:
        """Make folders and sync their parents, once in the life of this process."""
        with self._lock:
            new = {
                path
                for directory in wanted
                for path in (directory, *directory.parents)
                if path not in self._known_dirs and path.is_relative_to(self._root)
            } - {self._root}
            # One that exists may have been made by a process that was killed before it synced.
            for directory in sorted(new, key=lambda path: len(path.parts)):
                self._disk.make_dir(directory, ObjectPoint.MAKE_DIR)
            for parent in _parents(new):
                self._disk.sync_dir(parent, ObjectPoint.PARENT_SYNC)
            # After the syncs: if one fails, the next put makes and syncs them again.
            self._known_dirs |= new

    def _run_concurrently(self, call: Callable[[Item], None], items: Sequence[Item]) -> None:
        """Call for each item, in threads; return, or raise, when all have come to an end."""
        # Whichever thread is free takes the next; taking one is atomic.
        left = iter(items)

        def work() -> None:
            for item in left:
                call(item)

        if len(items) == 1:
            work()
            return
        # One task for each thread and not for each item: handing thousands of small items to a
        # pool costs more than the calls themselves.
        from concurrent.futures import ThreadPoolExecutor, wait

        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(SYNC_THREADS, thread_name_prefix="sync")
        futures = [self._threads.submit(work) for _ in range(min(SYNC_THREADS, len(items)))]
        wait(futures)
        for future in futures:
            future.result()

    # ---------------------------------------------------------------- reading

    def _list(self, directory: PurePath, above: str, prefix: str) -> Iterator[StoredObject]:
        """Yield objects below a folder, entering only folders that may hold the prefix."""
        try:
            entries = self._disk.list(directory)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _failed("cannot be listed", directory, error) from error
        for entry in entries:
            key = above + entry.name
            if entry.is_dir:
                below = key + "/"
                if key != TEMPORARY_DIR and (below.startswith(prefix) or prefix.startswith(below)):
                    yield from self._list(directory / entry.name, below, prefix)
            elif key.startswith(prefix):
                yield StoredObject(key, entry.size_bytes, entry.modified_ns / 1e9)

    def _path(self, key: str) -> PurePath:
        parts = key.split("/")
        if any(part in ("", ".", "..") or "\0" in part for part in parts):
            raise BadInput(f"{key!r} is no object's name", hint="use a relative path")
        return self._root / key


def _parents(paths: Iterable[PurePath]) -> list[PurePath]:
    """Return the folders of some paths, each once."""
    return list(dict.fromkeys(path.parent for path in paths))


def _failed(what: str, path: PurePath, error: OSError) -> DiskFull | StorageFailed:
    """Return the error of a disk: full, or failed, and then nothing is known of what it stored."""
    again = "then run it again: what is stored already is not sent twice"
    stored: Stored = "no" if error.errno in DISK_IS_FULL else "maybe"
    return disk_error(error, f"the disk of the store {what}", path, then=again, stored=stored)
