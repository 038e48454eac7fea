"""What the parent commit of a folder holds, and how the folder's files looked when it was made.

The parent (`PreviousTree`) is walked beside the folder. It may have lost chunks since it was made,
and what refers to one of them must not be taken over: so the chunks of many entries together are
looked up in the database, and files of lost ones are read again, which brings the chunks back.
Where the index itself, or the table of how files looked, is lost, the files it described are read.

`SeenFiles` says what files looked like on disk when they were stored. It is a table beside the
commit's index, not in it: it says nothing about the files' content, and equal folders on two disks
must have equal indexes. For each file two numbers of 64 bits, little-endian: xxh3-64 of its path,
and of its size, time of change of content, time of change of anything, and inode (four numbers of
64 bits). The rows are sorted by the first. A file that was changed less than `RACY_NS` before the
folder was read is left out: another change may have the same time.
"""

from __future__ import annotations

import itertools
import operator
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from holdfast.errors import Damaged, ObjectMissing
from holdfast.seam.folders import FolderEntry
from holdfast.store.chunks.reader import ChunkReader
from holdfast.store.filesets import algebra
from holdfast.store.filesets import fileset_pb2 as pb
from holdfast.store.filesets.cursor import IndexCursor, IndexLeaf
from holdfast.store.filesets.entry import change_of, index_of, is_plain_index
from holdfast.store.filesets.fileset import FileSet
from holdfast.store.filesets.merge import direct, readable_files
from holdfast.store.objects.objects import ChunkHash, DataRef

RACY_NS = 1_000_000_000

# The numbers of a path and of a look.
SeenRow = tuple[int, int]

_ROW = struct.Struct("<QQ")
_LOOK = struct.Struct("<QqqQ")


def path_number(path: str) -> int:
    """Return the number that stands for a path."""
    return xxh3_64_intdigest(path.encode())


def look_number(entry: FolderEntry) -> int:
    """Return the number that stands for how a file looked."""
    look = (entry.size_bytes, entry.mtime_ns, entry.ctime_ns, entry.inode)
    return xxh3_64_intdigest(_LOOK.pack(*look))


class SeenFiles:
    """The table of a commit."""

    def __init__(self, data: bytes = b"") -> None:
        if len(data) % _ROW.size:
            raise Damaged(
                "the table of files seen on disk is cut off",
                hint="Store the folder without the parent commit; `holdfast store fsck` says more.",
            )
        self._looks: dict[int, int] = dict(_ROW.iter_unpack(data))

    def is_same(self, entry: FolderEntry) -> bool:
        """Whether a file looks as it did when it was stored."""
        return self._looks.get(path_number(entry.path)) == look_number(entry)

    def row(self, entry: FolderEntry) -> SeenRow:
        """Return the row of a file that is the same."""
        number = path_number(entry.path)
        return number, self._looks[number]


class SeenWriter:
    """Collects the table while files are stored: 16 bytes for each."""

    def __init__(self, began_ns: int) -> None:
        self._began_ns = began_ns
        self._rows: list[SeenRow] = []

    def add(self, entry: FolderEntry) -> None:
        """Note a file as it looked before it was read."""
        # A file changed in the second before we looked may change once more within the same tick
        # of the filesystem's clock, and look the same. git calls such files racy.
        if self._began_ns - max(entry.mtime_ns, entry.ctime_ns) > RACY_NS:
            self._rows.append((path_number(entry.path), look_number(entry)))

    def keep(self, row: SeenRow) -> None:
        """Note a file that looks as another table says, in which it was not too young."""
        self._rows.append(row)

    def data(self) -> Iterator[bytes]:
        """Yield the bytes of the table."""
        self._rows.sort(key=operator.itemgetter(0))
        yield b"".join(itertools.starmap(_ROW.pack, self._rows))


# Entries whose chunks are looked up together.
LOOKED_UP_ENTRIES = 4096


class PreviousFile(NamedTuple):
    """What the parent holds of a path; and where in a chunk of its index, if it stands there so."""

    path: str
    message: pb.Index
    leaf: IndexLeaf | None = None
    number: int = 0

    @property
    def link_target(self) -> str:
        """Where a symbolic link leads."""
        return self.message.metadata.link_target

    @property
    def data(self) -> bytes:
        """The entry as it stands in the parent's index; nothing if it does not."""
        return self.leaf.node.entry(self.number) if self.leaf is not None else b""


class PreviousTree:
    """What the parent holds, and which of it is still stored; None: there is no parent."""

    def __init__(self, parent: FileSet | None, seen: Sequence[DataRef]) -> None:
        self._table = SeenFiles()
        self._files: Iterator[PreviousFile] = iter(())
        self._lost: set[bytes] = set()
        if parent is not None and seen:
            self._table = _table(parent.reader, seen)
            self._files = self._looked_up(parent)
        self._next = next(self._files, None)

    def looks_same(self, entry: FolderEntry) -> bool:
        """Whether a file looks as when the parent was made."""
        return self._table.is_same(entry)

    def seen(self, entry: FolderEntry) -> SeenRow:
        """Return what the parent's table says of a file that looks the same."""
        return self._table.row(entry)

    def find(self, entry: FolderEntry) -> PreviousFile | None:
        """Return what the parent holds of a file that looks the same; asked in order of paths."""
        # A merge of two sorted walks: the folder's and the parent's. Neither is held in memory.
        while self._next is not None and self._next.path < entry.path:
            self._next = next(self._files, None)
        found = self._next
        if found is None or found.path != entry.path or not _is_same(found.message, entry):
            return None
        if (found.leaf is not None and found.leaf.is_plain) or is_plain_index(found.message):
            return found
        change = algebra.over_nothing(change_of(found.message, entry.path))
        return PreviousFile(entry.path, index_of(entry.path, change)) if change else None

    def lost_chunk(self, index: pb.Index) -> bytes | None:
        """Return the first chunk of what was found that is lost; None: it is all there."""
        if not self._lost:
            return None
        chunks = (ref.chunk.hash for ref in index.data_op.data_ref)
        return next((chunk for chunk in chunks if chunk in self._lost), None)

    def _looked_up(self, parent: FileSet) -> Iterator[PreviousFile]:
        """Yield the parent's entries, after looking up the chunks of many of them in one query.

        The lookup runs ahead of the walk: when `lost_chunk` is asked about an entry, it knows.
        """
        entries = _entries_of(parent)
        asked: set[ChunkHash] = set()
        while some := list(itertools.islice(entries, LOOKED_UP_ENTRIES)):
            refs = [ref for one in some for ref in one.message.data_op.data_ref]
            chunks = {ChunkHash(ref.chunk.hash) for ref in refs}
            self._lost |= parent.reader.missing(chunks - asked)
            lists = [ref for ref in refs if ref.indirect and ref.chunk.hash not in self._lost]
            self._lost |= _incomplete(parent.reader, lists)
            asked = chunks
            yield from some


def _entries_of(parent: FileSet) -> Iterator[PreviousFile]:
    """Yield what the parent holds, as far as its index can be read."""
    if len(parent.sources) != 1 or parent.sources[0].root is None:
        for path, index in readable_files(parent.nodes, parent.sources, lambda lost: None):
            yield PreviousFile(path, index)
        return
    cursor = IndexCursor(parent.nodes, parent.sources[0].root)
    for leaf, at, end in cursor.leaves(lambda lost: None):
        paths, indexes = leaf.node.paths, leaf.node.indexes
        for number in range(at, end):
            if indexes[number].present:
                yield PreviousFile(paths[number], indexes[number], leaf, number)


def _is_same(index: pb.Index, entry: FolderEntry) -> bool:
    """Say whether an entry is still of the kind, mode and size that the parent holds."""
    known = index.metadata
    if entry.kind == "link":
        return known.HasField("link_target")
    if known.mode != entry.mode or known.HasField("link_target"):
        return False
    return entry.kind == "folder" or index.size_bytes == entry.size_bytes


def _table(reader: ChunkReader, seen: Sequence[DataRef]) -> SeenFiles:
    try:
        return SeenFiles(b"".join(reader.read(seen)))
    except (Damaged, ObjectMissing):
        return SeenFiles()  # then every file is read


def _incomplete(reader: ChunkReader, lists: Iterable[pb.DataRef]) -> set[bytes]:
    """Return the lists of references that cannot be read, or name a chunk that is lost."""
    found: set[bytes] = set()
    for ref in lists:
        try:
            inner = {one.hash for _, one in direct(reader, [ref])}
        except (Damaged, ObjectMissing):
            found.add(ref.chunk.hash)
            continue
        if reader.missing(inner):
            found.add(ref.chunk.hash)
    return found
