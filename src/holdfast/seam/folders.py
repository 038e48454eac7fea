"""Folders that belong to the user: what is stored from them, and what is restored into them.

Names below a folder are reached from the folder's own descriptor, part by part, and no symbolic
link is ever followed on the way. So nothing that stands in a folder, or is put there meanwhile, can
lead out of it. Nothing is synced: what is restored is still in the store.
"""

from __future__ import annotations

import errno
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

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# How it shows that a name went, or became something else, while we looked.
GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

Kind = Literal["file", "folder", "link", "socket", "pipe", "device"]


class FolderEntry(NamedTuple):
    """One name below a folder. A folder's path ends with a slash.

    The path is the text that stands for the name (`seam.names`).
    """

    path: str
    kind: Kind
    size_bytes: int
    mode: int
    mtime_ns: int
    ctime_ns: int
    inode: int


class OpenedFile:
    """A file of a folder, opened to be read once."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            os.close(descriptor)
            raise FileNotFoundError(errno.ENOENT, "it is no longer a file")
        self._size_bytes = info.st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def blocks(self) -> Iterator[bytes]:
        """Yield the file's bytes, piece by piece."""
        size, total_bytes = min(READ_BLOCK_BYTES, self._size_bytes + 1), 0
        while block := os.read(self._descriptor, size):
            yield block
            total_bytes += len(block)
            if len(block) < size and total_bytes >= self._size_bytes:
                return  # the end: spares a question for each of very many small files

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

    def read_link(self, path: str) -> str:
        """Return where a symbolic link leads, as the text that stands for it."""
        folder, name = self._split(path)
        return stored_name(os.readlink(name, dir_fd=self._folder(folder)))

    # Writing.

    def make_folder(self, path: str) -> None:
        """Make a folder, and those above it; they may be there."""
        self._folder(path, make=True)

    def write(self, path: str, blocks: Iterable[Buffer], mode: int, mtime_ns: int | None) -> None:
        """Make a file with this content; it must not be there."""
        folder, name = self._split(path)
        descriptor = os.open(name, _WRITE_FLAGS, mode, dir_fd=self._folder(folder, make=True))
        try:
            for block in blocks:
                _write_all(descriptor, block)
            os.fchmod(descriptor, mode)
            if mtime_ns is not None:
                os.utime(descriptor, ns=(mtime_ns, mtime_ns))
        finally:
            os.close(descriptor)

    def link(self, path: str, target: str) -> None:
        """Make a symbolic link; it must not be there."""
        folder, name = self._split(path)
        os.symlink(disk_name(target), name, dir_fd=self._folder(folder, make=True))

    def remove(self, path: str) -> None:
        """Remove a file or a link, if it is there."""
        folder, name = self._split(path)
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._folder(folder))

    def dress(self, path: str, mode: int, mtime_ns: int | None) -> None:
        """Set mode and time of a folder that is there."""
        descriptor = self._folder(path)
        os.fchmod(descriptor, mode)
        if mtime_ns is not None:
            os.utime(descriptor, ns=(mtime_ns, mtime_ns))

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
        if make:
            with suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=parent)
        descriptor = os.open(name, _FOLDER_FLAGS, dir_fd=parent)
        self._open[path] = descriptor
        while len(self._open) > OPEN_FOLDERS_MAX:
            _, oldest = self._open.popitem(last=False)
            os.close(oldest)
        return descriptor


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
    )


def _kind(mode: int) -> Kind:
    if stat.S_ISREG(mode):
        return "file"
    return _KINDS.get(stat.S_IFMT(mode), "device")


_KINDS: dict[int, Kind] = {
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFSOCK: "socket",
    stat.S_IFIFO: "pipe",
}


def _write_all(descriptor: int, block: Buffer) -> None:
    view = memoryview(block).cast("B")
    while view.nbytes:
        view = view[os.write(descriptor, view) :]
