"""The disk as Holdfast sees it: an interface, the real one, and the rule for short writes.

Every call that changes something carries `at`, the name of the step it performs ("wal.sync"). The
real disk ignores it; `FaultyDisk` uses it to fail or to kill exactly there. A step that has no name
cannot be tested, so there is no default.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple, NewType, Protocol

from holdfast.errors import DiskFull, StorageFailed, Stored
from holdfast.seam.usage import used_bytes

if TYPE_CHECKING:
    from typing_extensions import Buffer

Handle = NewType("Handle", int)

# Descriptors of this process by which it writes, or owns a directory. A forked child has copies of
# them, which keep files that the parent removes, and its locks after its end.
_held: set[int] = set()

# What the disk says when there is no room: no space, or a quota.
DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT)

# What the disk says of a block that it cannot read: a dead sector, or a wrong checksum.
_CODES = (getattr(errno, name, None) for name in ("EIO", "ENODATA", "EBADMSG", "EUCLEAN"))
CANNOT_BE_READ = frozenset(code for code in _CODES if code is not None)

# What is tried on its own once more around a block that cannot be read. Disks lose no less at once.
PAGE_BYTES = 4096
_PIECE_BYTES = 1 << 20

# POSIX guarantees 16, Linux and macOS take 1024.
VECTOR_BUFFERS_MAX = 1024


def disk_error(
    error: OSError,
    what: str,
    path: PurePath,
    *,
    then: str,
    stored: Stored = "no",
    retry_after_s: float | None = None,
) -> DiskFull | StorageFailed:
    """Return the error for a disk that refused bytes: because it is full, or because it fails.

    `what` could not be done; `then` is what to do afterwards, and what is not affected.
    """
    full = error.errno in DISK_IS_FULL
    kind, act = (DiskFull, "free space on the disk") if full else (StorageFailed, "check the disk")
    return kind(
        f"{what}: {error.strerror or error}",
        hint=f"{act}; {then}",
        path=str(path),
        stored=stored,
        retry_after_s=retry_after_s,
    )


class DirEntry(NamedTuple):
    """One name in a directory."""

    name: str
    is_dir: bool
    size_bytes: int
    modified_ns: int = 0


class LockHeld(Exception):
    """Another process holds the lock; `owner` is what it wrote about itself."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.owner = owner


class ReadableDisk(Protocol):
    """What reading stored data needs of a disk. All errors are OSError."""

    def read(self, path: PurePath) -> bytes:
        """Return a whole file."""

    def read_range(self, path: PurePath, offset_bytes: int, size_bytes: int) -> bytes:
        """Return a part of a file; less than asked for where the file ends."""

    def map(self, path: PurePath) -> memoryview:
        """Return a whole file as read-only memory that outlives its name.

        Touching a block that cannot be read, or that was cut off meanwhile, ends the process with a
        signal: only for whoever asked for it.
        """

    def file_bytes(self, path: PurePath) -> int:
        """Return the length of a file."""

    def exists(self, path: PurePath) -> bool:
        """Whether anything has this name."""


class Disk(ReadableDisk, Protocol):
    """What durable code may ask of a disk. All errors are OSError."""

    @property
    def is_shared(self) -> bool:
        """Whether other processes see the same files."""

    def create(self, path: PurePath, at: str) -> Handle:
        """Create a file that must not exist, open for appending."""

    def reopen(self, path: PurePath, at: str) -> Handle:
        """Open a file that exists for appending."""

    def reuse(self, path: PurePath, at: str, offset_bytes: int = 0) -> Handle:
        """Open a file that exists to write over what it holds, from a place on, and behind it."""

    def write(self, handle: Handle, buffers: Sequence[Buffer], at: str) -> int:
        """Append some of the buffers' bytes, or write them over what comes next; return how many.

        It may be fewer than given.
        """

    def allocate(self, handle: Handle, size_bytes: int, at: str) -> bool:
        """Take the blocks of a new file before its bytes are written; until then they are zeros.

        False, and nothing has changed, if the file system does not count them as the file's own.
        """

    def sync(self, handle: Handle, at: str) -> None:
        """Put the file's bytes and its size on stable storage."""

    def sync_path(self, path: PurePath, at: str) -> None:
        """Sync a file that another process wrote and may not have synced."""

    def rewrite(self, path: PurePath, content: Buffer, at: str, offset_bytes: int = 0) -> None:
        """Write over bytes that a file has, by default its first ones, and sync them.

        A sync alone proves nothing if one of another process failed: then what is read from memory
        counts as written, and is not on the disk.
        """

    def truncate(self, handle: Handle, size_bytes: int, at: str) -> None:
        """Cut an open file back to `size_bytes`; the next write goes there."""

    def written_through(self, handle: Handle) -> int:
        """Return where the last write to an open file ended; before any, where it goes."""

    def open_size_bytes(self, handle: Handle) -> int:
        """Return the size of an open file, whoever wrote it."""

    def close(self, handle: Handle) -> None:
        """Close a file; syncs nothing."""

    def make_dir(self, path: PurePath, at: str) -> None:
        """Create one directory; an existing one is fine."""

    def rename(self, source: PurePath, target: PurePath, at: str) -> None:
        """Rename a file or a directory; an existing target file is replaced."""

    def link(self, source: PurePath, target: PurePath, at: str) -> None:
        """Give a file a second name, which must not exist."""

    def unlink(self, path: PurePath, at: str) -> None:
        """Remove one file."""

    def remove_dir(self, path: PurePath, at: str) -> None:
        """Remove one empty directory."""

    def sync_dir(self, path: PurePath, at: str) -> None:
        """Put a directory's names on stable storage."""

    def open_read(self, path: PurePath) -> Handle:
        """Open a file for reading; it can be read until it is closed, also without its name."""

    def read_into(self, handle: Handle, offset_bytes: int, buffer: memoryview) -> int:
        """Fill a buffer from a part of an open file; less than asked for where the file ends."""

    def files_bytes(self, folder: PurePath, names: Sequence[str]) -> list[int]:
        """Return the lengths of some files of a folder; one that is missing is an error.

        As `file_bytes` of each, at half the price: a data node asks this of 100,000 folders.
        """

    def link_count(self, path: PurePath) -> int:
        """Return how many names a file has."""

    def list(self, path: PurePath) -> list[DirEntry]:
        """Return the names in a directory, sorted; a missing directory is an error."""

    def used_bytes(self, path: PurePath) -> int:
        """Return the bytes that a file or a whole tree really occupies."""

    def free_bytes(self, path: PurePath) -> int:
        """Return the bytes that may still be written to the filesystem of `path`."""

    def lock(self, path: PurePath, owner: str) -> Handle:
        """Take an exclusive lock that dies with the process, or raise `LockHeld`."""

    def unlock(self, handle: Handle) -> None:
        """Release a lock."""


def entries_of(disk: Disk, path: PurePath) -> list[DirEntry]:
    """Return the names in a directory; none if it was never made, or goes while we look."""
    try:
        return disk.list(path)
    except FileNotFoundError:
        return []


class Pages(NamedTuple):
    """The bytes of a file, with zeros for what cannot be read."""

    view: memoryview
    # Start and end of what cannot be read, in order.
    unreadable: tuple[tuple[int, int], ...]

    def lacks(self, start: int, end: int) -> bool:
        """Whether anything between the two cannot be read."""
        return any(first < end and start < last for first, last in self.unreadable)


def read_pages(disk: ReadableDisk, path: PurePath, limit_bytes: int | None = None) -> Pages:
    """Return a file, or its beginning; page by page where the disk cannot read all of it."""
    try:
        found = disk.read(path) if limit_bytes is None else disk.read_range(path, 0, limit_bytes)
        return Pages(memoryview(found), ())
    except OSError as error:
        if error.errno not in CANNOT_BE_READ:
            raise
    size_bytes = disk.file_bytes(path)
    if limit_bytes is not None:
        size_bytes = min(size_bytes, limit_bytes)
    content = bytearray(size_bytes)
    unreadable: list[tuple[int, int]] = []
    for start in range(0, size_bytes, _PIECE_BYTES):
        end = min(start + _PIECE_BYTES, size_bytes)
        for first, last in _read_into(content, disk, path, start, end):
            if unreadable and unreadable[-1][1] == first:
                first = unreadable.pop()[0]  # noqa: PLW2901
            unreadable.append((first, last))
    return Pages(memoryview(content).toreadonly(), tuple(unreadable))


def _read_into(
    content: bytearray, disk: ReadableDisk, path: PurePath, start: int, end: int
) -> Iterator[tuple[int, int]]:
    """Read a part of a file, and yield what of it cannot be read."""
    try:
        found = disk.read_range(path, start, end - start)
        content[start : start + len(found)] = found
    except OSError as error:
        if error.errno not in CANNOT_BE_READ:
            raise
        if end - start <= PAGE_BYTES:
            yield start, end
            return
        for page in range(start, end, PAGE_BYTES):
            yield from _read_into(content, disk, path, page, min(page + PAGE_BYTES, end))


def pieces(disk: Disk, path: PurePath) -> Iterator[bytes]:
    """Yield a file in pieces that fit into memory, however large it is."""
    position = 0
    while piece := disk.read_range(path, position, _PIECE_BYTES):
        yield piece
        position += len(piece)


def write_all(disk: Disk, handle: Handle, buffers: Sequence[Buffer], at: str) -> int:
    """Append all bytes of the buffers, however short the single writes are; return their number."""
    total_bytes = 0
    for start in range(0, len(buffers), VECTOR_BUFFERS_MAX):
        views = [memoryview(buffer) for buffer in buffers[start : start + VECTOR_BUFFERS_MAX]]
        total_bytes += _write_vector(disk, handle, [view for view in views if view.nbytes], at)
    return total_bytes


class WrittenByOthers(OSError):
    """A file that only its owner may write holds more than the owner wrote."""

    def __init__(self, surplus_bytes: int) -> None:
        super().__init__(errno.EIO, f"{surplus_bytes} bytes in it were written by another process")


def write_behind(disk: Disk, handle: Handle, end: int, buffers: Sequence[Buffer], at: str) -> int:
    """As `write_all`, to a file of which only this caller writes; return its new end.

    What is read back by its place would be lost if others had moved it.
    """
    end += write_all(disk, handle, buffers, at)
    if (through := disk.written_through(handle)) != end:
        raise WrittenByOthers(through - end)
    return end


def _write_vector(disk: Disk, handle: Handle, views: list[memoryview], at: str) -> int:
    total_bytes = sum([view.nbytes for view in views])
    left_bytes = total_bytes
    while left_bytes > 0:
        written = disk.write(handle, views, at)
        if written <= 0:
            raise OSError(errno.EIO, f"the disk took no bytes at {at}")
        left_bytes -= written
        if left_bytes > 0:
            views = _after(views, written)
    return total_bytes


def _after(views: Sequence[memoryview], written: int) -> list[memoryview]:
    """Return what is left to write of some views."""
    left = []
    for view in views:
        if written < view.nbytes:
            left.append(view.cast("B")[written:])
        written = max(0, written - view.nbytes)
    return left


def write_file(disk: Disk, path: PurePath, buffers: Sequence[Buffer], at: str) -> None:
    """Create a file with this content and sync it; the caller syncs the directory.

    The step is named by three points: `at` + ".create", ".write", ".sync".
    """
    handle = disk.create(path, f"{at}.create")
    try:
        write_all(disk, handle, buffers, f"{at}.write")
        disk.sync(handle, f"{at}.sync")
    finally:
        disk.close(handle)


def remove_tree(disk: Disk, path: PurePath, at: str) -> None:
    """Remove a directory and everything below it."""
    for entry in disk.list(path):
        if entry.is_dir:
            remove_tree(disk, path / entry.name, at)
        else:
            disk.unlink(path / entry.name, at)
    disk.remove_dir(path, at)


def _open_to_write(path: PurePath, flags: int) -> Handle:
    flags |= os.O_WRONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    fd = os.open(path, flags, 0o640)
    _held.add(fd)
    return Handle(fd)


def _read_at(handle: Handle, offset_bytes: int, size_bytes: int) -> bytes:
    """Return what one read gives, which may be less."""
    if hasattr(os, "pread"):
        return os.pread(handle, size_bytes, offset_bytes)
    # Windows; whoever shares a handle there has to take turns
    os.lseek(handle, offset_bytes, os.SEEK_SET)
    return os.read(handle, size_bytes)


class RealDisk:
    """The machine's own disk. Linux is the reference; what differs elsewhere is said here."""

    is_shared = True

    def create(self, path: PurePath, at: str) -> Handle:
        return _open_to_write(path, os.O_CREAT | os.O_EXCL | os.O_APPEND)

    def reopen(self, path: PurePath, at: str) -> Handle:
        handle = _open_to_write(path, os.O_APPEND)
        os.lseek(handle, 0, os.SEEK_END)
        return handle

    def reuse(self, path: PurePath, at: str, offset_bytes: int = 0) -> Handle:
        # What was put in its place may name a file of somebody else.
        handle = _open_to_write(path, getattr(os, "O_NOFOLLOW", 0))
        os.lseek(handle, offset_bytes, os.SEEK_SET)
        return handle

    def write(self, handle: Handle, buffers: Sequence[Buffer], at: str) -> int:
        if hasattr(os, "writev"):
            return os.writev(handle, buffers)
        return os.write(handle, buffers[0])  # Windows has no vectored write

    def allocate(self, handle: Handle, size_bytes: int, at: str) -> bool:
        if not hasattr(os, "posix_fallocate"):
            return False  # macOS, Windows
        try:
            os.posix_fallocate(handle, 0, size_bytes)
            # Not every file system that says yes keeps the blocks (ZFS does not).
            taken = os.fstat(handle).st_blocks * 512 >= size_bytes
        except OSError as error:
            if error.errno in DISK_IS_FULL:
                raise
            taken = False  # it cannot; if the disk fails, writing says so
        if not taken:
            os.ftruncate(handle, 0)
        return taken

    def sync(self, handle: Handle, at: str) -> None:
        if sys.platform == "darwin":
            import fcntl

            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)  # fsync alone stops at the drive's cache
        elif hasattr(os, "fdatasync"):
            os.fdatasync(handle)
        else:
            os.fsync(handle)

    def sync_path(self, path: PurePath, at: str) -> None:
        # Windows syncs only what is open for writing.
        flags = os.O_RDWR if sys.platform == "win32" else os.O_RDONLY | os.O_CLOEXEC
        handle = Handle(os.open(path, flags))
        try:
            self.sync(handle, at)
        finally:
            os.close(handle)

    def rewrite(self, path: PurePath, content: Buffer, at: str, offset_bytes: int = 0) -> None:
        with open(path, "r+b", buffering=0) as file:
            file.seek(offset_bytes)
            view, written = memoryview(content), 0
            while written < len(view):
                written += file.write(view[written:]) or 0
            self.sync(Handle(file.fileno()), at)

    def truncate(self, handle: Handle, size_bytes: int, at: str) -> None:
        os.ftruncate(handle, size_bytes)
        os.lseek(handle, size_bytes, os.SEEK_SET)

    def written_through(self, handle: Handle) -> int:
        return os.lseek(handle, 0, os.SEEK_CUR)

    def open_size_bytes(self, handle: Handle) -> int:
        return os.fstat(handle).st_size

    def close(self, handle: Handle) -> None:
        _held.discard(handle)  # first: the number may be another file's as soon as it is closed
        os.close(handle)

    def make_dir(self, path: PurePath, at: str) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o750)

    def rename(self, source: PurePath, target: PurePath, at: str) -> None:
        os.replace(source, target)

    def link(self, source: PurePath, target: PurePath, at: str) -> None:
        os.link(source, target)

    def unlink(self, path: PurePath, at: str) -> None:
        os.unlink(path)

    def remove_dir(self, path: PurePath, at: str) -> None:
        os.rmdir(path)

    def sync_dir(self, path: PurePath, at: str) -> None:
        if sys.platform == "win32":
            return  # Windows has no directory sync; NTFS journals the names
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def read(self, path: PurePath) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def read_range(self, path: PurePath, offset_bytes: int, size_bytes: int) -> bytes:
        handle = self.open_read(path)
        try:
            found = _read_at(handle, offset_bytes, size_bytes)
            # A disk may give less at once.
            while len(found) < size_bytes:
                end_bytes, missing_bytes = offset_bytes + len(found), size_bytes - len(found)
                if not (more := _read_at(handle, end_bytes, missing_bytes)):
                    break
                found += more
            return found
        finally:
            self.close(handle)

    def open_read(self, path: PurePath) -> Handle:
        flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
        return Handle(os.open(path, flags))

    def read_into(self, handle: Handle, offset_bytes: int, buffer: memoryview) -> int:
        filled = 0
        while filled < len(buffer):
            if hasattr(os, "preadv"):
                count = os.preadv(handle, [buffer[filled:]], offset_bytes + filled)
            else:
                found = _read_at(handle, offset_bytes + filled, len(buffer) - filled)
                count = len(found)
                buffer[filled : filled + count] = found
            if count == 0:
                break
            filled += count
        return filled

    def map(self, path: PurePath) -> memoryview:
        # Only the quiver maps files; a command that works with a store starts faster without it.
        import pyarrow as pa

        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return memoryview(b"")
            # Not by `mmap`, which keeps a descriptor for as long as the memory is used: a backlog
            # of a thousand small segments would need more of them than a process may have.
            with pa.memory_map(os.fsencode(path)) as mapped:
                return memoryview(mapped.read_buffer()).cast("B")

    def file_bytes(self, path: PurePath) -> int:
        return os.stat(path).st_size

    def files_bytes(self, folder: PurePath, names: Sequence[str]) -> list[int]:
        place = f"{folder}{os.sep}"
        return [os.stat(place + name).st_size for name in names]

    def list(self, path: PurePath) -> list[DirEntry]:
        entries = []
        with os.scandir(path) as scan:
            for item in scan:
                if item.is_dir(follow_symlinks=False):
                    entries.append(DirEntry(item.name, True, 0))
                    continue
                # A name that goes while we look is not there.
                with contextlib.suppress(FileNotFoundError):
                    info = item.stat(follow_symlinks=False)
                    entries.append(DirEntry(item.name, False, info.st_size, info.st_mtime_ns))
        return sorted(entries)

    def exists(self, path: PurePath) -> bool:
        return os.path.lexists(path)

    def link_count(self, path: PurePath) -> int:
        return os.stat(path).st_nlink

    def used_bytes(self, path: PurePath) -> int:
        return used_bytes(os.fspath(path))

    def free_bytes(self, path: PurePath) -> int:
        if sys.platform == "win32":
            import shutil

            return shutil.disk_usage(path).free
        info = os.statvfs(path)
        return info.f_bavail * info.f_frsize

    def lock(self, path: PurePath, owner: str) -> Handle:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o640)
        try:
            _lock_descriptor(fd)
        except OSError as error:
            holder = os.pread(fd, 200, 0).decode("utf-8", "replace") if hasattr(os, "pread") else ""
            os.close(fd)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise LockHeld(holder.strip()) from None
            raise
        os.ftruncate(fd, 0)
        os.write(fd, owner.encode())
        _held.add(fd)
        return Handle(fd)

    def unlock(self, handle: Handle) -> None:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_UN)  # a child of another program may hold a copy
        self.close(handle)


def _lock_descriptor(fd: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _let_go_in_child() -> None:
    for fd in _held:
        with contextlib.suppress(OSError):
            os.close(fd)  # without unlocking: that would be the parent's lock too
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)
