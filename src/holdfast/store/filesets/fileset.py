"""Reads a file set: one layer or several as one tree of files, merged while it is read."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from holdfast.errors import BadInput, UnknownPath
from holdfast.store.filesets.diff import Diff, Difference
from holdfast.store.filesets.file import BUFFER_BYTES, StoredFile
from holdfast.store.filesets.glob import compile_glob, literal_prefix
from holdfast.store.filesets.info import FileInfo
from holdfast.store.filesets.layer import Layer
from holdfast.store.filesets.merge import Merge, files_of, find, merged_file
from holdfast.store.filesets.path_ranges import PathRange, cut_shards
from holdfast.store.filesets.paths import (
    Collisions,
    after_folder,
    check_folder,
    collision,
    folders_above,
)
from holdfast.store.filesets.sources import open_layers, open_nodes, read_content

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.store.address import ChunkHash, ChunkKey
    from holdfast.store.gc.leases import CommitPin
    from holdfast.store.store import Store

SHARD_FILES = 1_000_000
SHARD_BYTES = 1024 * 1024 * 1024


class FileSet:
    """The files of some layers, oldest first. Safe to use from several threads.

    While it holds a pin, nothing that it reads can be collected; close it to let go.
    """

    def __init__(
        self,
        store: Store,
        layers: Sequence[Layer],
        *,
        pin: CommitPin | None = None,
        keys: Mapping[ChunkHash, ChunkKey] | None = None,
    ) -> None:
        self.layers = tuple(layers)
        self.pin = pin
        self.reader = store.chunks.reader(keys, pin)
        self.nodes = open_nodes(self.reader)
        self.sources = open_layers(self.reader, layers)

    def close(self) -> None:
        """Let go of the commit."""
        if self.pin is not None:
            self.pin.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # What is there.

    def files(self, lo: str = "", hi: str | None = None) -> Iterator[FileInfo]:
        """Yield all that is stored with lo ≤ path < hi, in order: files, links, stored folders."""
        for path, index in files_of(self.nodes, self.sources, lo, hi):
            yield FileInfo(path, index)

    def walk(self, folder: str = "") -> Iterator[FileInfo]:
        """Yield everything below a folder, in order, with every folder before what stands in it."""
        folder = check_folder(folder)
        before = folder
        for file in self.files(folder, after_folder(folder)):
            for above in folders_above(file.path):
                if not before.startswith(above) and above != file.path:
                    yield FileInfo(above)
            if file.path != folder:
                yield file
            before = file.path

    def ls(self, folder: str = "") -> Iterator[FileInfo]:
        """Yield what stands in a folder itself, in order; what is below that is not opened."""
        folder = check_folder(folder)
        merge = Merge(self.nodes, self.sources, folder, after_folder(folder))
        for path, indexes in merge.entries():
            merged = merged_file(path, indexes, path)
            if merged is None or path == folder:
                continue
            slash = path.find("/", len(folder))
            if slash < 0:
                yield FileInfo(path, merged)
                continue
            inner = path[: slash + 1]
            yield FileInfo(inner, merged if inner == path else None)
            end = after_folder(inner)
            assert end is not None, "BUG: a folder in a folder has a name"
            merge.seek(end)

    def glob(self, pattern: str) -> Iterator[FileInfo]:
        """Yield the files, links and stored folders whose path matches."""
        matches = compile_glob(pattern).fullmatch
        prefix = literal_prefix(pattern)
        for file in self.files(prefix, _after_prefix(prefix)):
            if matches(file.path):
                yield file

    def stat(self, path: str) -> FileInfo:
        """Return what is known of a file, or of a folder that has something in it."""
        index = find(self.nodes, self.sources, path, path)
        if index is not None:
            return FileInfo(path, index)
        folder = path if path.endswith("/") else path + "/"
        first = next(self.files(folder, after_folder(folder)), None)
        if first is None:
            raise UnknownPath(
                f"there is no {path!r} in the file set",
                hint="List the folder to see what there is.",
            )
        return first if first.path == folder else FileInfo(folder)

    def exists(self, path: str) -> bool:
        """Whether a file, a link or a folder has this path."""
        try:
            self.stat(path)
        except UnknownPath:
            return False
        return True

    # What is in it.

    def open(self, path: str) -> io.BufferedReader:
        """Open a file for reading; it can be sought in."""
        file = self._content(path)
        return io.BufferedReader(
            StoredFile(self.reader, file.refs, file.size_bytes), buffer_size=BUFFER_BYTES
        )

    def stream(
        self,
        path: str,
        offset_bytes: int = 0,
        size_bytes: int | None = None,
        *,
        tag: bytes | int | None = None,
    ) -> Iterator[bytes]:
        """Yield the bytes of a file, or of one of its tags, or a range of them, piece by piece."""
        file = self._content(path)
        if tag is not None:
            begins_bytes, tag_bytes = file.tag_range(tag)
            skipped_bytes = min(offset_bytes, tag_bytes)
            left_bytes = tag_bytes - skipped_bytes
            size_bytes = left_bytes if size_bytes is None else min(size_bytes, left_bytes)
            offset_bytes = begins_bytes + skipped_bytes
        return read_content(self.reader, file.refs, offset_bytes, size_bytes)

    def read(self, path: str, offset_bytes: int = 0, size_bytes: int | None = None) -> bytes:
        """Return the bytes of a file, or a range of them."""
        return b"".join(self.stream(path, offset_bytes, size_bytes))

    def content(self, file: FileInfo) -> Iterator[bytes]:
        """Yield the bytes of a file that was listed."""
        return read_content(self.reader, file.refs, 0, None)

    # All of it.

    def shards(
        self, *, max_files: int = SHARD_FILES, max_bytes: int = SHARD_BYTES
    ) -> list[PathRange]:
        """Return ranges of paths that hold everything, for as many workers as there are."""
        return cut_shards(self.nodes, self.sources, max_files=max_files, max_bytes=max_bytes)

    def diff(self, newer: FileSet, lo: str = "", hi: str | None = None) -> Iterator[Difference]:
        """Yield what differs in a newer file set of the same store."""
        return Diff(self.nodes, (self.sources, newer.sources), lo, hi).differences()

    def check_collisions(self, lo: str = "", hi: str | None = None) -> None:
        """Raise `BadInput` if a path is both a file and a folder."""
        above = [folder[:-1] for folder in folders_above(lo + "-")] if lo else []
        collisions = Collisions([path for path in above if self._is_file(path)])
        for file in self.files(lo, hi):
            collisions.check(file.path)

    def check_added(self, first: int) -> None:
        """Raise `BadInput` if what the layers from `first` on hold collides with anything.

        For a few changes on top of many files: it looks at their paths alone.
        """
        checked: set[str] = set()
        for path, _ in files_of(self.nodes, self.sources[first:]):
            for folder in folders_above(path):
                if folder not in checked:
                    checked.add(folder)
                    if self._is_file(folder[:-1]):
                        raise collision(folder[:-1])
            if not path.endswith("/") and self._is_file(path):
                folder = path + "/"
                if next(self.files(folder, after_folder(folder)), None) is not None:
                    raise collision(path)

    def _is_file(self, path: str) -> bool:
        return find(self.nodes, self.sources, path, path) is not None

    def _content(self, path: str) -> FileInfo:
        file = self.stat(path)
        if file.is_folder or file.is_link:
            what = f"a link to {file.link_target!r}" if file.is_link else "a folder"
            raise BadInput(f"{path!r} is {what}, not a file", hint="Name a file.")
        return file


def _after_prefix(prefix: str) -> str | None:
    """Return the first string behind all that begin with `prefix`; None: there is none."""
    while prefix and prefix[-1] == "\U0010ffff":
        prefix = prefix[:-1]
    if not prefix:
        return None
    following = ord(prefix[-1]) + 1
    # Surrogates are no characters.
    return prefix[:-1] + chr(0xE000 if following == 0xD800 else following)  # noqa: PLR2004
