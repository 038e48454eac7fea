"""Reads a file set: one layer or several as one tree of files, merged while it is read.

`cut_shards` cuts it into ranges of paths of about equal work, by what its indexes say of
themselves: all layers count, not just the first, and only ranges that are too large for a shard are
opened. `StoredFile` is a file of it, opened: seekable, reading ahead as long as it is read in
order.
"""

from __future__ import annotations

import heapq
import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

from holdfast.errors import BadInput, UnknownPath
from holdfast.store.chunks.reader import ChunkReader
from holdfast.store.filesets import fileset_pb2 as pb
from holdfast.store.filesets.cursor import IndexCursor, IndexNodes
from holdfast.store.filesets.info import FileInfo
from holdfast.store.filesets.layer import Layer
from holdfast.store.filesets.merge import (
    Diff,
    Difference,
    Merge,
    Source,
    files_of,
    find,
    merged_file,
    open_layers,
    open_nodes,
    read_content,
)
from holdfast.store.filesets.paths import (
    Collisions,
    after_folder,
    check_folder,
    collision,
    compile_glob,
    folders_above,
    literal_prefix,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Buffer

    from holdfast.store.gc.leases import CommitPin
    from holdfast.store.objects.objects import ChunkHash, ChunkKey
    from holdfast.store.store import Store

# What a buffered file asks for at once.
BUFFER_BYTES = 256 * 1024


class StoredFile(io.RawIOBase):
    """The bytes of a file, read where they are asked for. Wrap it in `io.BufferedReader`."""

    def __init__(self, reader: ChunkReader, refs: Sequence[pb.DataRef], size_bytes: int) -> None:
        super().__init__()
        self._reader = reader
        self._refs = refs
        self.size_bytes = size_bytes
        self._at_bytes = 0
        # What was begun to be read in order, and the part of it that was not given out yet.
        self._stream: Iterator[bytes] | None = None
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at_bytes

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        bases = {io.SEEK_SET: 0, io.SEEK_CUR: self._at_bytes, io.SEEK_END: self.size_bytes}
        at_bytes = bases[whence] + offset
        if at_bytes < 0:
            raise BadInput("a file has nothing before its beginning", hint="Seek to 0 or behind.")
        # A seek to where it is already (as buffered readers do) keeps what was fetched ahead.
        if at_bytes != self._at_bytes:
            self._stream, self._rest = None, memoryview(b"")
            self._at_bytes = at_bytes
        return at_bytes

    def readinto(self, buffer: Buffer, /) -> int:
        target = memoryview(buffer).cast("B")
        if self._at_bytes >= self.size_bytes or not target.nbytes:
            return 0
        if self._stream is None:
            self._stream = read_content(self._reader, self._refs, self._at_bytes, None)
        while not self._rest.nbytes:
            self._rest = memoryview(next(self._stream))
        taken = self._rest[: target.nbytes]
        target[: taken.nbytes] = taken
        self._rest = self._rest[taken.nbytes :]
        self._at_bytes += taken.nbytes
        return taken.nbytes

    def close(self) -> None:
        self._stream, self._rest = None, memoryview(b"")
        super().close()


# A range that is larger than this part of a shard is opened.
_PART = 4


class PathRange(NamedTuple):
    """Paths from `lo` on and before `hi`; None: to the end. The counts are estimates: a file that
    several layers change counts several times."""

    lo: str
    hi: str | None
    files: int = 0
    size_bytes: int = 0


def cut_shards(
    nodes: IndexNodes, sources: Sequence[Source], *, max_files: int, max_bytes: int
) -> list[PathRange]:
    """Return neighbouring ranges that hold everything, each within the bounds, about."""
    if max_files < 1 or max_bytes < 1:
        raise BadInput("a shard must hold something", hint="Give bounds of at least 1.")
    cursors = [IndexCursor(nodes, source.root) for source in sources if source.root is not None]
    heap = [(cursor.path, number) for number, cursor in enumerate(cursors) if cursor.path]
    heapq.heapify(heap)
    shards: list[PathRange] = []
    lo, files, size_bytes = "", 0, 0
    while heap:
        path, number = heap[0]
        cursor = cursors[number]
        index = cursor.index
        count = index.range.num_files if cursor.is_range else int(index.present)
        # Opened until ranges are small against a shard: then cutting at the border of a range
        # misses the bounds by a quarter at most, and chunks of the lowest level are hardly ever
        # opened.
        if cursor.is_range and (count * _PART > max_files or index.size_bytes * _PART > max_bytes):
            cursor.descend()
        else:
            full = files + count > max_files or size_bytes + index.size_bytes > max_bytes
            if full and files and path > lo:
                shards.append(PathRange(lo, path, files, size_bytes))
                lo, files, size_bytes = path, 0, 0
            files += count
            size_bytes += index.size_bytes
            cursor.advance()
        if cursor.path is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (cursor.path, number))
    return [*shards, PathRange(lo, None, files, size_bytes)]


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
        self.store = store
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

    def __exit__(self, *exception: object) -> None:
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
            # Folders are mostly not stored but implied by paths. Each is yielded when the first
            # path below it comes, which sorted order makes the only time.
            for above in folders_above(file.path):
                if not before.startswith(above) and above != file.path:
                    yield FileInfo(above)
            if file.path != folder:
                yield file
            before = file.path

    def ls(self, folder: str = "", *, after: str = "") -> Iterator[FileInfo]:
        """Yield what stands in a folder itself, in order; what is below that is not opened.

        With `after`, the path of one of its entries, only what comes behind that.
        """
        folder = check_folder(folder)
        begin: str | None = folder
        if after:
            if not after.startswith(folder) or after == folder:
                raise BadInput(
                    f"{after!r} does not stand in {folder!r}", hint="Name a path in the folder."
                )
            begin = after_folder(after) if after.endswith("/") else after + "\0"
        merge = Merge(self.nodes, self.sources, begin or "", after_folder(folder))
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
            # A folder with a million files is listed by one of them: the merge goes on behind the
            # folder.
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
        # A worker that checks a range of paths does not see what came before it. Files that are
        # folders of the range's first path are the only ones that could matter, and are looked up.
        above = [folder[:-1] for folder in folders_above(lo + "-")] if lo else []
        collisions = Collisions([path for path in above if self._is_file(path)])
        for file in self.files(lo, hi):
            collisions.check(file.path)

    def check_added(self, first: int) -> None:
        """Raise `BadInput` if what the layers from `first` on hold collides with anything.

        For a few changes on top of many files: it looks at their paths alone.

        A change collides in two ways only: a folder above its path is a file, or the path itself
        is a file and something stands below it. Both are looked up by path, so the cost is that of
        the changes.
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
