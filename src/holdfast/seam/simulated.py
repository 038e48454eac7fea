"""A disk in memory that knows what a power cut would leave.

The model is the pessimistic reading of POSIX. A file's bytes survive only up to what `sync` put
down; a name (created, renamed, unlinked) survives only once *every* directory it touches was synced
afterwards. `kill()` is kill -9: the page cache stays, descriptors and locks go. `power_loss()`
forgets everything unsynced; given randomness it instead keeps some of it, as real disks do: a
prefix of the unsynced renames, and unsynced bytes sector by sector, in no order: a part that was
written over is then a mix of old and new. A failed sync (`lose_dirty`) marks bytes clean that never
arrived, and no later sync brings them back: that is what Linux does, and why a descriptor whose
sync failed must never be trusted again.

A block may become unreadable (`spoil`) and a file be cut from outside (`cut`). Whoever reads such a
block gets EIO. Whoever has it mapped, or maps it, is dead (`SimulatedBusError`): a process that has
a map may touch it at any time. With `windows` a file that is open or mapped can be neither renamed,
nor renamed over, nor unlinked, and no directory that holds one can be renamed.

With a capacity it can be full, and it stays full until something goes. It is as unkind about that
as any file system is: bytes cost whole blocks, a file and a directory cost one besides (an inode),
a directory more for many names, which it keeps; every new name needs a free block for the moment
(two with a new inode), also that of a rename; and a file that is removed while it is open costs its
blocks until it is closed. A write takes what fits, then fails. Only `unlink`, `remove_dir`,
`truncate` and `close` need no block.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import itertools
import random
import threading
import weakref
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, NoReturn

from holdfast.seam.clock import Clock, RealClock
from holdfast.seam.disk import PAGE_BYTES, DirEntry, Handle, LockHeld
from holdfast.seam.simulated_files import (
    BLOCK_BYTES,
    NameChange,
    SimulatedDir,
    SimulatedFile,
    blocks_bytes,
    dirs_below,
    entry_of,
    files_below,
    surviving_names,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer


class SimulatedCrash(BaseException):
    """The simulated process is dead; nothing may catch this as an ordinary error."""


class SimulatedBusError(SimulatedCrash):
    """A mapped block could not be read, or was cut off: SIGBUS ended the simulated process."""


class _Map(bytearray):
    """The memory of a map: alive as long as anything points into it."""


class SimulatedDisk:
    """Files and directories in memory, with their durable state beside them."""

    is_shared = False

    def __init__(self, capacity_bytes: int | None = None, clock: Clock | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        # What it says when it is full: no space, or a quota (EDQUOT).
        self.full_errno = errno.ENOSPC
        self._clock = clock or RealClock()
        self.read_only = False
        self._root = SimulatedDir()
        self._changes: list[NameChange] = []
        self._open: dict[Handle, SimulatedFile] = {}
        # Where the next write goes to a file that is written over; behind its end to any other.
        self._places: dict[Handle, int] = {}
        # Where the last write ended, as of the others.
        self._written_through: dict[Handle, int] = {}
        self._reading: dict[Handle, SimulatedFile] = {}
        self._locks: dict[Handle, PurePath] = {}
        self._lock_owners: dict[PurePath, str] = {}
        self._handles = itertools.count(3)
        self._mutex = threading.RLock()
        self._dead = False
        self._death: type[SimulatedCrash] = SimulatedCrash
        # Whether open files are protected as on Windows.
        self.windows = False
        self._maps: list[tuple[SimulatedFile, weakref.ref[_Map]]] = []
        # The file that was written to last, and where.
        self._last_write: tuple[SimulatedFile, int] | None = None

    # ------------------------------------------------------------------ dying

    def die(self) -> NoReturn:
        """Be dead from now on; what survives is taken by `kill` or `power_loss`."""
        self._dead = True
        raise SimulatedCrash

    def kill(self) -> SimulatedDisk:
        """Return the disk as the next process finds it after kill -9."""
        with self._mutex:
            self._dead = True
            return self.snapshot()

    def snapshot(self) -> SimulatedDisk:
        """Return the disk as kill -9 at this moment would leave it; this one lives on."""
        with self._mutex:
            disk = self._successor()
            # One copy of both, so that the pending changes still point into the copied tree.
            disk._root, disk._changes = copy.deepcopy((self._root, self._changes))
            return disk

    def power_loss(self, randomness: random.Random | None = None) -> SimulatedDisk:
        """Return the disk as it comes back after a power cut."""
        with self._mutex:
            self._dead = True
            root, changes = copy.deepcopy((self._root, self._changes))
        # File systems that journal put changes of names down in their order: some of the newest may
        # be missing, but none from the middle. Bytes have no such order.
        kept = 0 if randomness is None else randomness.randint(0, len(changes))
        for position, change in enumerate(changes):
            if not change.waits_for or position < kept:
                change.put_down()
        disk = self._successor()
        disk._root = surviving_names(root, randomness, {})
        return disk

    def _successor(self) -> SimulatedDisk:
        disk = SimulatedDisk(self.capacity_bytes, self._clock)
        disk.windows = self.windows
        disk.full_errno = self.full_errno
        return disk

    # ------------------------------------------------------------------- room

    def fill(self) -> None:
        """Let somebody else take every free block; what is removed from now on is free again."""
        with self._mutex:
            self.capacity_bytes = self._occupied()

    def _occupied(self) -> int:
        """Return the bytes of all blocks in use, also of files without a name."""
        return blocks_bytes(
            files_below(self._root) | set(self._open.values()), dirs_below(self._root)
        )

    def _room(self) -> int:
        return 1 << 50 if self.capacity_bytes is None else self.capacity_bytes - self._occupied()

    def _need_blocks(self, blocks: int) -> None:
        if self.capacity_bytes is not None and self._room() < blocks * BLOCK_BYTES:
            raise self._full()

    def _full(self) -> OSError:
        says = {errno.EDQUOT: "disk quota exceeded"}
        return OSError(self.full_errno, says.get(self.full_errno, "no space left on device"))

    # ------------------------------------------------------------------ files

    def create(self, path: PurePath, at: str) -> Handle:
        with self._writing():
            parent = self._dir(path.parent)
            if path.name in parent.names:
                raise FileExistsError(errno.EEXIST, "exists", str(path))
            self._need_blocks(2)  # the inode, and perhaps one for the name
            file = SimulatedFile(modified_ns=self._clock.wall_ns())
            self._change(None, (parent, path.name, file))
            handle = Handle(next(self._handles))
            self._open[handle] = file
            return handle

    def reopen(self, path: PurePath, at: str) -> Handle:
        with self._writing():
            handle, file = Handle(next(self._handles)), self._file(path)
            self._open[handle] = file
            self._written_through[handle] = len(file.cached)
            return handle

    def reuse(self, path: PurePath, at: str, offset_bytes: int = 0) -> Handle:
        with self._writing():
            handle = self.reopen(path, at)
            self._places[handle] = self._written_through[handle] = offset_bytes
            return handle

    def write(self, handle: Handle, buffers: Sequence[Buffer], at: str) -> int:
        with self._writing():
            file = self._open[handle]
            data = b"".join(bytes(buffer) for buffer in buffers)
            start = self._places.get(handle, len(file.cached))
            if self.capacity_bytes is not None:
                # What the last block of the file has left is its own, also on a full disk. What is
                # written over may need new blocks: some file systems never write in place.
                in_last_block = -start % BLOCK_BYTES
                room = in_last_block + max(0, self._room()) // BLOCK_BYTES * BLOCK_BYTES
                if room == 0 and data:
                    raise self._full()
                data = data[:room]
            end = start + len(data)
            file.cached[start:end] = data
            file.dirty.append((start, end))
            if handle in self._places:
                self._places[handle] = end
            self._written_through[handle] = end
            self._last_write = file, start
            file.modified_ns = self._clock.wall_ns()
            return len(data)

    def allocate(self, handle: Handle, size_bytes: int, at: str) -> bool:
        with self._writing():
            return False

    def sync(self, handle: Handle, at: str) -> None:
        with self._writing():
            self._open[handle].sync()

    def sync_path(self, path: PurePath, at: str) -> None:
        with self._writing():
            self._file(path).sync()

    def rewrite(self, path: PurePath, content: Buffer, at: str, offset_bytes: int = 0) -> None:
        with self._writing():
            file, end = self._file(path), offset_bytes + len(bytes(content))
            file.cached[offset_bytes:end] = bytes(content)
            file.dirty.append((offset_bytes, end))
            file.sync()

    def lose_dirty(self, handle: Handle) -> None:
        """Mark all unsynced bytes of a file as clean without putting them down."""
        with self._writing():
            self._open[handle].dirty.clear()

    def truncate(self, handle: Handle, size_bytes: int, at: str) -> None:
        with self._writing():
            file = self._open[handle]
            self._doom_maps(file)
            # The bytes go from sight at once and from the disk with the next sync (`cut`).
            del file.cached[size_bytes:]
            file.dirty = [(s, min(e, size_bytes)) for s, e in file.dirty if s < size_bytes]
            file.cut = True
            if handle in self._places:
                self._places[handle] = size_bytes

    def written_through(self, handle: Handle) -> int:
        with self._alive():
            return self._written_through.get(handle, 0)

    def open_size_bytes(self, handle: Handle) -> int:
        with self._alive():
            return len(self._open[handle].cached)

    def close(self, handle: Handle) -> None:
        # What is read may be closed by whoever outlives the process: nothing is said of the dead.
        if self._reading.pop(handle, None) is not None:
            return
        with self._alive():
            del self._open[handle]
            self._places.pop(handle, None)
            self._written_through.pop(handle, None)

    # ------------------------------------------------------------------ names

    def make_dir(self, path: PurePath, at: str) -> None:
        with self._writing():
            parent = self._dir(path.parent)
            if path.name not in parent.names:
                self._need_blocks(2)
                self._change(None, (parent, path.name, SimulatedDir()))

    def rename(self, source: PurePath, target: PurePath, at: str) -> None:
        with self._writing():
            old, new = self._dir(source.parent), self._dir(target.parent)
            if source.name not in old.names:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(source))
            present, node = new.names.get(target.name), old.names[source.name]
            if isinstance(present, SimulatedDir) and not isinstance(node, SimulatedDir):
                raise IsADirectoryError(errno.EISDIR, "is a directory", str(target))
            if isinstance(present, SimulatedFile) and not isinstance(node, SimulatedFile):
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", str(target))
            if isinstance(present, SimulatedDir) and present.names:
                raise OSError(errno.ENOTEMPTY, "directory not empty", str(target))
            self._check_unused(source, node)
            if present is not None:
                self._check_unused(target, present)
            self._need_blocks(1)
            self._change((old, source.name), (new, target.name, node))

    def link(self, source: PurePath, target: PurePath, at: str) -> None:
        with self._writing():
            file, parent = self._file(source), self._dir(target.parent)
            if target.name in parent.names:
                raise FileExistsError(errno.EEXIST, "exists", str(target))
            self._need_blocks(1)
            self._change(None, (parent, target.name, file))

    def unlink(self, path: PurePath, at: str) -> None:
        with self._writing():
            if not isinstance(self._node(path), SimulatedFile):
                raise IsADirectoryError(errno.EISDIR, "is a directory", str(path))
            self._check_unused(path, self._node(path))
            self._change((self._dir(path.parent), path.name), None)

    def remove_dir(self, path: PurePath, at: str) -> None:
        with self._writing():
            if self._dir(path).names:
                raise OSError(errno.ENOTEMPTY, "directory not empty", str(path))
            self._change((self._dir(path.parent), path.name), None)

    def sync_dir(self, path: PurePath, at: str) -> None:
        with self._writing():
            directory = self._dir(path)
            for change in self._changes:
                change.waits_for = [d for d in change.waits_for if d is not directory]
            while self._changes and not self._changes[0].waits_for:
                self._changes.pop(0).put_down()

    # ---------------------------------------------------------------- reading

    def read(self, path: PurePath) -> bytes:
        with self._alive():
            file = self._file(path)
            file.check_readable(0, len(file.cached))
            return bytes(file.cached)

    def read_range(self, path: PurePath, offset_bytes: int, size_bytes: int) -> bytes:
        with self._alive():
            file = self._file(path)
            file.check_readable(offset_bytes, offset_bytes + size_bytes)
            return bytes(file.cached[offset_bytes : offset_bytes + size_bytes])

    def open_read(self, path: PurePath) -> Handle:
        with self._alive():
            handle = Handle(next(self._handles))
            self._reading[handle] = self._file(path)
            return handle

    def read_into(self, handle: Handle, offset_bytes: int, buffer: memoryview) -> int:
        with self._alive():
            file, end = self._reading[handle], offset_bytes + len(buffer)
            file.check_readable(offset_bytes, end)
            found = file.cached[offset_bytes:end]
            buffer[: len(found)] = found
            return len(found)

    def map(self, path: PurePath) -> memoryview:
        with self._alive():
            file, memory = self._file(path), _Map(self._file(path).cached)
            self._maps.append((file, weakref.ref(memory)))
            if file.unreadable:
                self._doom_maps(file)
                self._alive()
            return memoryview(memory).toreadonly()

    def file_bytes(self, path: PurePath) -> int:
        with self._alive():
            return len(self._file(path).cached)

    def files_bytes(self, folder: PurePath, names: Sequence[str]) -> list[int]:
        return [self.file_bytes(folder / name) for name in names]

    def list(self, path: PurePath) -> list[DirEntry]:
        with self._alive():
            return sorted(entry_of(name, node) for name, node in self._dir(path).names.items())

    def exists(self, path: PurePath) -> bool:
        with self._alive(), contextlib.suppress(OSError):
            return bool(self._node(path))
        return False

    def link_count(self, path: PurePath) -> int:
        with self._alive():
            file = self._file(path)
            return sum(
                node is file for folder in dirs_below(self._root) for node in folder.names.values()
            )

    def used_bytes(self, path: PurePath) -> int:
        with self._alive():
            node = self._node(path)
            return blocks_bytes(files_below(node), dirs_below(node))

    def free_bytes(self, path: PurePath) -> int:
        with self._alive():
            # Of a quota a file system says nothing.
            return 1 << 50 if self.full_errno == errno.EDQUOT else max(0, self._room())

    def lock(self, path: PurePath, owner: str) -> Handle:
        with self._writing():
            self._dir(path.parent)
            if path in self._lock_owners:
                raise LockHeld(self._lock_owners[path])
            self._lock_owners[path] = owner
            handle = Handle(next(self._handles))
            self._locks[handle] = path
            return handle

    def unlock(self, handle: Handle) -> None:
        with self._alive():
            del self._lock_owners[self._locks.pop(handle)]

    # ---------------------------------------------------------- for the tests

    def overwrite(self, path: PurePath, offset: int, data: bytes) -> None:
        """Damage a file: put bytes into it, cached and durable alike."""
        with self._mutex:
            file = self._file(path)
            file.cached[offset : offset + len(data)] = data
            file.durable[offset : offset + len(data)] = data

    def put(self, path: PurePath, data: bytes) -> None:
        """Place a whole file, durable at once, whatever stood there."""
        with self._mutex:
            parent = self._dir(path.parent)
            file = SimulatedFile(bytearray(data), bytearray(data))
            parent.names[path.name] = parent.durable[path.name] = file

    def spoil(self, path: PurePath, start: int, end: int) -> None:
        """Let a part of a file be unreadable from now on, also after kill and power loss."""
        with self._mutex:
            file = self._file(path)
            file.unreadable.append((start, end))
            self._doom_maps(file)

    def spoil_last_write(self) -> None:
        """Let the page be unreadable in which the last write began."""
        with self._mutex:
            if self._last_write is not None:
                file, start = self._last_write
                page = start - start % PAGE_BYTES
                file.unreadable.append((page, page + PAGE_BYTES))
                self._doom_maps(file)

    def unreadable(self, path: PurePath) -> Sequence[tuple[int, int]]:
        """Return what of a file cannot be read."""
        with self._mutex:
            return tuple(self._file(path).unreadable)

    def peek(self, path: PurePath) -> bytes:
        """Return the bytes of a file, also those that cannot be read."""
        with self._mutex:
            return bytes(self._file(path).cached)

    def cut(self, path: PurePath, size_bytes: int) -> None:
        """Cut a file from outside, whoever has it open."""
        with self._mutex:
            file = self._file(path)
            del file.cached[size_bytes:], file.durable[size_bytes:]
            file.dirty = [(s, min(e, size_bytes)) for s, e in file.dirty if s < size_bytes]
            self._doom_maps(file)

    # ---------------------------------------------------------------- insides

    def _is_mapped(self, file: SimulatedFile) -> bool:
        self._maps = [one for one in self._maps if one[1]() is not None]
        return any(mapped is file for mapped, _ in self._maps)

    def _doom_maps(self, file: SimulatedFile) -> None:
        """Let the process be dead if it could touch what is no longer there."""
        if self._is_mapped(file):
            self._dead, self._death = True, SimulatedBusError

    def _check_unused(self, path: PurePath, node: SimulatedFile | SimulatedDir) -> None:
        if not self.windows:
            return
        opened = {*self._open.values(), *self._reading.values()}
        if any(file in opened or self._is_mapped(file) for file in files_below(node)):
            raise PermissionError(errno.EACCES, "used by a process", str(path))

    def _alive(self) -> threading.RLock:
        if self._dead:
            raise self._death
        return self._mutex

    def _writing(self) -> threading.RLock:
        mutex = self._alive()
        if self.read_only:
            raise OSError(errno.EROFS, "read-only file system")
        return mutex

    def _change(
        self,
        removed: tuple[SimulatedDir, str] | None,
        added: tuple[SimulatedDir, str, SimulatedFile | SimulatedDir] | None,
    ) -> None:
        touched = [part[0] for part in (removed, added) if part is not None]
        if removed is not None:
            removed[0].names.pop(removed[1])
        if added is not None:
            added[0].names[added[1]] = added[2]
            added[0].names_max = max(added[0].names_max, len(added[0].names))
        self._changes.append(NameChange(removed, added, touched))

    def _node(self, path: PurePath) -> SimulatedFile | SimulatedDir:
        node: SimulatedFile | SimulatedDir = self._root
        for part in path.parts:
            if part == path.anchor:
                continue
            if not isinstance(node, SimulatedDir) or part not in node.names:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            node = node.names[part]
        return node

    def _dir(self, path: PurePath) -> SimulatedDir:
        node = self._node(path)
        if not isinstance(node, SimulatedDir):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", str(path))
        return node

    def _file(self, path: PurePath) -> SimulatedFile:
        node = self._node(path)
        if not isinstance(node, SimulatedFile):
            raise IsADirectoryError(errno.EISDIR, "is a directory", str(path))
        return node
