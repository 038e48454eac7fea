"""Folders that belong to the user: what is stored from them, and what is restored into them.

Names below a folder are reached from the folder's own descriptor, part by part, and no symbolic
link is ever followed on the way. So nothing that stands in a folder, or is put there meanwhile, can
lead out of it. Nothing is synced: what is restored is still in the store.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import PurePath
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from holdfast.seam.names import disk_name, stored_name

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Folders that are kept open for the next file in them.
OPEN_FOLDERS_MAX = 64
READ_BLOCK_BYTES = 16 * 1024 * 1024
# Zeros that stand for a hole, at a time; and how much must be zero to be left out as one.
HOLE_BLOCK_BYTES = 1024 * 1024
HOLE_BYTES = 4096

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# How it shows that a name went, or became something else, while we looked.
GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

EntryKind = Literal["file", "folder", "link", "socket", "pipe", "device"]


class FolderEntry(NamedTuple):
    """One name below a folder. A folder's path ends with a slash.

    The path is the text that stands for the name (`seam.names`).
    """

    path: str
    kind: EntryKind
    size_bytes: int
    mode: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int
    links: int
    uid: int
    gid: int


class Dress(NamedTuple):
    """What a file or folder gets besides its content; None: as it comes.

    Given last: a file that is not to be read by others must not be, while it is written.
    """

    mode: int
    mtime_ns: int | None = None
    owner: tuple[int, int] | None = None
    xattrs: tuple[tuple[bytes, bytes], ...] = ()


# What could not be given to a file.
Undone = Literal["owner", "xattrs", "time"]


class OpenedFile:
    """A file of a folder, opened to be read once."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            os.close(descriptor)
            raise FileNotFoundError(errno.ENOENT, "it is no longer a file")
        self._size_bytes = info.st_size
        self.has_holes = info.st_blocks * 512 < info.st_size and _has_holes(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def blocks(self) -> Iterator[bytes]:
        """Yield the file's bytes, piece by piece."""
        if self.has_holes:
            yield from self._blocks_and_holes()
            return
        size, total_bytes = min(READ_BLOCK_BYTES, self._size_bytes + 1), 0
        while block := os.read(self._descriptor, size):
            yield block
            total_bytes += len(block)
            if len(block) < size and total_bytes >= self._size_bytes:
                return  # the end: spares a question for each of very many small files

    def _blocks_and_holes(self) -> Iterator[bytes]:
        """Yield the file's bytes; holes are not read."""
        at_bytes, zeros = 0, bytes(HOLE_BLOCK_BYTES)
        while at_bytes < self._size_bytes:
            data_bytes = _seek(self._descriptor, at_bytes, os.SEEK_DATA, self._size_bytes)
            while at_bytes < data_bytes:
                hole = zeros[: min(len(zeros), data_bytes - at_bytes)]
                yield hole
                at_bytes += len(hole)
            end_bytes = _seek(self._descriptor, at_bytes, os.SEEK_HOLE, self._size_bytes)
            while at_bytes < end_bytes:
                size = min(READ_BLOCK_BYTES, end_bytes - at_bytes)
                block = os.pread(self._descriptor, size, at_bytes)
                if not block:
                    return  # it was cut meanwhile
                yield block
                at_bytes += len(block)

    def xattrs(self) -> tuple[tuple[bytes, bytes], ...]:
        """Return the extended attributes that can be read, sorted by name."""
        return _xattrs(self._descriptor)

    def is_begun(self, since_ns: int, blocks: Iterable[Buffer]) -> bool:
        """Whether the file came since then, and all that it holds is how this content begins."""
        before = os.fstat(self._descriptor)
        if before.st_ctime_ns < since_ns:
            return False
        for block in blocks:
            wanted = memoryview(block).cast("B")
            while wanted.nbytes:
                found = os.read(self._descriptor, wanted.nbytes)
                if not found:
                    break
                if wanted[: len(found)] != found:
                    return False
                wanted = wanted[len(found) :]
        is_read = not os.read(self._descriptor, 1)
        # Compared again: somebody may have written to it while it was read.
        return is_read and os.fstat(self._descriptor).st_ctime_ns == before.st_ctime_ns

    def looks_like(self, entry: FolderEntry) -> bool:
        """Whether the content is still the one that was found: asked after it was read."""
        info = os.fstat(self._descriptor)
        return (info.st_size, info.st_mtime_ns) == (entry.size_bytes, entry.mtime_ns)


class Folder:
    """A folder of the user's disk. For one thread; others open their own."""

    def __init__(self, path: PurePath | str) -> None:
        self.path = path
        self._root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._open: OrderedDict[str, int] = OrderedDict()

    def close(self) -> None:
        """Close all descriptors."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Reading.

    def walk(
        self,
        enters: Callable[[FolderEntry], bool] = lambda folder: True,
        failed: Callable[[str, OSError], None] | None = None,
    ) -> Iterator[FolderEntry]:
        """Yield everything below, sorted by path; a folder stands before what is in it.

        `enters` is asked about each folder, after it was yielded. What cannot be looked at is told
        to `failed`, and passed over; without it, and for the folder itself, it is an error.
        """
        # A stack of folders, not a recursion: a tree of any depth is walked. Only the folders on
        # the way down are held, each with its names sorted.
        waiting = [iter(self._scan("", None))]
        while waiting:
            entry = next(waiting[-1], None)
            if entry is None:
                waiting.pop()
                continue
            yield entry
            if entry.kind == "folder" and enters(entry):
                waiting.append(iter(self._scan(entry.path, failed)))

    def _scan(self, below: str, failed: Callable[[str, OSError], None] | None) -> list[FolderEntry]:
        found: list[FolderEntry] = []
        try:
            with os.scandir(self._folder(below)) as scan:
                found += [entry for item in scan if (entry := _entry(below, item))]
        except OSError as error:
            if error.errno in GONE:
                return []  # it went while we looked
            if failed is None:
                raise
            failed(below, error)
        return sorted(found)

    def open_file(self, path: str) -> OpenedFile:
        """Open a file to be read; what is no file any more is a FileNotFoundError."""
        folder, name = self._split(path)
        return OpenedFile(os.open(name, _READ_FLAGS, dir_fd=self._folder(folder)))

    def read(self, path: str) -> bytes:
        """Return a file's bytes."""
        with self.open_file(path) as file:
            return b"".join(file.blocks())

    def xattrs(self, folder: str) -> tuple[tuple[bytes, bytes], ...]:
        """Return the extended attributes of a folder that can be read, sorted by name."""
        return _xattrs(self._folder(folder))

    def read_link(self, path: str) -> str:
        """Return where a symbolic link leads, as the text that stands for it."""
        folder, name = self._split(path)
        return stored_name(os.readlink(name, dir_fd=self._folder(folder)))

    # Writing.

    def make_folder(self, path: str) -> None:
        """Make a folder, and those above it; they may be there."""
        self._folder(path, make=True)

    def write(
        self, path: str, blocks: Iterable[Buffer], dress: Dress, *, holes: bool = False
    ) -> list[Undone]:
        """Make a file with this content, which must not be there; return what it did not get.

        It has its name once all of it is there: what comes in several blocks is written under
        another name first, and what fails is removed. With `holes`, zeros take no room.
        """
        folder, name = self._split(path)
        parent = self._folder(folder, make=True)
        # Most files are one block. Those are written in one step under their own name, which saves
        # a rename for each of a million files; a crash leaves at most one of each thread short.
        coming = iter(blocks)
        first = next(coming, b"")
        second = next(coming, None)
        if second is None:
            return self._write_as(parent, name, (first,), dress, holes)
        if _exists(parent, name):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        partial = f"{partial_prefix(os.getpid())}{os.urandom(8).hex()}.partial"
        undone = self._write_as(
            parent, partial, itertools.chain((first, second), coming), dress, holes
        )
        os.rename(partial, name, src_dir_fd=parent, dst_dir_fd=parent)
        return undone

    def _write_as(
        self, parent: int, name: str, blocks: Iterable[Buffer], dress: Dress, holes: bool
    ) -> list[Undone]:
        descriptor = os.open(name, _WRITE_FLAGS, 0o600, dir_fd=parent)
        try:
            if holes:
                _write_around_holes(descriptor, blocks)
            else:
                for block in blocks:
                    _write_all(descriptor, block)
            return _dress(descriptor, dress)
        except BaseException:
            os.unlink(name, dir_fd=parent)
            raise
        finally:
            os.close(descriptor)

    def link(self, path: str, target: str, dress: Dress) -> list[Undone]:
        """Make a symbolic link, which must not be there; return what it did not get."""
        folder, name = self._split(path)
        parent = self._folder(folder, make=True)
        os.symlink(disk_name(target), name, dir_fd=parent)
        undone: list[Undone] = []
        try:
            if dress.owner is not None:
                os.chown(name, *dress.owner, dir_fd=parent, follow_symlinks=False)
        except OSError:
            undone.append("owner")
        try:
            if dress.mtime_ns is not None:
                times = (dress.mtime_ns, dress.mtime_ns)
                os.utime(name, ns=times, dir_fd=parent, follow_symlinks=False)
        except OSError:
            undone.append("time")
        return undone

    def hard_link(self, source: str, path: str) -> None:
        """Give a file that is there another name, which must not be there."""
        source_folder, source_name = self._split(source)
        folder, name = self._split(path)
        os.link(
            source_name,
            name,
            src_dir_fd=self._folder(source_folder),
            dst_dir_fd=self._folder(folder, make=True),
            follow_symlinks=False,
        )

    def remove(self, path: str) -> None:
        """Remove a file or a link, if it is there."""
        folder, name = self._split(path)
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._folder(folder))

    def remove_begun(self, path: str, since_ns: int, blocks: Iterable[Buffer]) -> None:
        """Remove a file that came since then and holds the beginning of this content, or all of it.

        That is what somebody leaves who died while writing it. A file of which any byte would be
        lost stays, however new it is; so does what cannot be read.
        """
        folder, name = self._split(path)
        with suppress(OSError), self.open_file(path) as file:
            if file.is_begun(since_ns, blocks):
                os.unlink(name, dir_fd=self._folder(folder))

    def dress(self, path: str, dress: Dress) -> list[Undone]:
        """Give a folder that is there its mode, time and all else; return what it did not get."""
        return _dress(self._folder(path), dress)

    def _split(self, path: str) -> tuple[str, str]:
        """Return a path's folder, and its name as the disk has it."""
        folder, slash, name = path.rpartition("/")
        return folder + slash, disk_name(name)

    def _folder(self, path: str, *, make: bool = False) -> int:
        """Return the descriptor of a folder below, from the nearest one that is open."""
        if not path:
            return self._root
        known = self._open.get(path)
        if known is not None:
            self._open.move_to_end(path)
            return known
        above, name = self._split(path[:-1])
        parent = self._folder(above, make=make)
        try:
            descriptor = os.open(name, _FOLDER_FLAGS, dir_fd=parent)
        except FileNotFoundError:
            if not make:
                raise
            with suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=parent)
            descriptor = os.open(name, _FOLDER_FLAGS, dir_fd=parent)
        self._open[path] = descriptor
        while len(self._open) > OPEN_FOLDERS_MAX:
            _, oldest = self._open.popitem(last=False)
            os.close(oldest)
        return descriptor


def partial_prefix(pid: int) -> str:
    """Return how the names of unfinished files of a process begin."""
    return f".holdfast-{pid}-"


@contextmanager
def new_folder(path: PurePath | str) -> Iterator[Folder]:
    """Open a folder, made if it is not there; those above it must be."""
    with suppress(FileExistsError):
        os.mkdir(path, 0o755)
    with Folder(path) as folder:
        yield folder


def _entry(below: str, item: os.DirEntry[str]) -> FolderEntry | None:
    try:
        info = item.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None  # it went while we looked
    kind = _kind(info.st_mode)
    path = below + stored_name(item.name)
    return FolderEntry(
        path + "/" if kind == "folder" else path,
        kind,
        info.st_size,
        stat.S_IMODE(info.st_mode),
        info.st_mtime_ns,
        info.st_ctime_ns,
        info.st_ino,
        info.st_dev,
        info.st_nlink,
        info.st_uid,
        info.st_gid,
    )


def _kind(mode: int) -> EntryKind:
    if stat.S_ISREG(mode):
        return "file"
    return _KINDS.get(stat.S_IFMT(mode), "device")


_KINDS: dict[int, EntryKind] = {
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFSOCK: "socket",
    stat.S_IFIFO: "pipe",
}


def _write_all(descriptor: int, block: Buffer) -> None:
    view = memoryview(block).cast("B")
    while view.nbytes:
        view = view[os.write(descriptor, view) :]


def _write_around_holes(descriptor: int, blocks: Iterable[Buffer]) -> None:
    """Write blocks, and leave out what is zero; the file has its length all the same."""
    at_bytes = 0
    rest = b""
    for block in blocks:
        data = rest + bytes(block)
        whole = len(data) - len(data) % HOLE_BYTES
        _write_data(descriptor, data[:whole], at_bytes)
        at_bytes += whole
        rest = data[whole:]
    _write_data(descriptor, rest, at_bytes)
    os.ftruncate(descriptor, at_bytes + len(rest))


def _write_data(descriptor: int, data: bytes, at_bytes: int) -> None:
    zeros = bytes(HOLE_BYTES)
    is_hole = [
        data[start : start + HOLE_BYTES] == zeros[: len(data) - start]
        for start in range(0, len(data), HOLE_BYTES)
    ]
    start = 0
    for hole, run in itertools.groupby(is_hole):
        end = min(len(data), start + HOLE_BYTES * sum(1 for _ in run))
        if not hole:
            os.lseek(descriptor, at_bytes + start, os.SEEK_SET)
            _write_all(descriptor, memoryview(data)[start:end])
        start = end


def _has_holes(descriptor: int) -> bool:
    try:
        found = os.lseek(descriptor, 0, os.SEEK_HOLE) < os.lseek(descriptor, 0, os.SEEK_END)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except OSError:
        return False  # the disk cannot say: all of it is data
    return found


def _seek(descriptor: int, at_bytes: int, whence: int, end_bytes: int) -> int:
    """Return where data, or a hole, begins; the end if none does."""
    try:
        return min(end_bytes, os.lseek(descriptor, at_bytes, whence))
    except OSError as error:
        if error.errno == errno.ENXIO:
            return end_bytes
        raise


def _xattrs(descriptor: int) -> tuple[tuple[bytes, bytes], ...]:
    try:
        names = os.listxattr(descriptor)
    except OSError:
        return ()  # the disk has none
    found = []
    for name in sorted(names):
        with suppress(OSError):  # it went, or is not for us
            found.append((os.fsencode(name), os.getxattr(descriptor, name)))
    return tuple(found)


def _dress(descriptor: int, dress: Dress) -> list[Undone]:
    """Give an open file what it is to have. Whoever owns it decides what its mode may be."""
    undone: list[Undone] = []
    mode = dress.mode
    if dress.owner is not None:
        try:
            os.fchown(descriptor, *dress.owner)
        except OSError:
            undone.append("owner")
            mode &= ~(stat.S_ISUID | stat.S_ISGID)
    os.fchmod(descriptor, mode)
    for name, value in dress.xattrs:
        try:
            os.setxattr(descriptor, name, value)
        except OSError:
            undone.append("xattrs")
    if dress.mtime_ns is not None:
        os.utime(descriptor, ns=(dress.mtime_ns, dress.mtime_ns))
    return undone


def _exists(parent: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
