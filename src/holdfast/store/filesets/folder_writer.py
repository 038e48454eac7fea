"""Stores a whole folder as one layer; files that look as they did in a parent commit are not read.

The folder comes in order of its paths, so nothing is buffered or sorted: small files go straight
into shared chunks, large ones into their own, and the index behind them. The layer takes away all
older files, and holds all of the folder's. Its entries that did not change are the bytes they were,
and so are the chunks of its index: one in which nothing changed is taken over as it is. Those whose
content the store has lost are read again (`previous_tree`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

from holdfast.seam.folders import FolderEntry
from holdfast.store.chunks.writer import ChunkWriter, NewChunks
from holdfast.store.filesets import algebra
from holdfast.store.filesets import fileset_pb2 as pb
from holdfast.store.filesets.algebra import Tombstones
from holdfast.store.filesets.entry import message_of
from holdfast.store.filesets.fileset import FileSet
from holdfast.store.filesets.folder_reader import (
    READ_THREADS,
    FolderReader,
    FoundFile,
    ReadFile,
    metadata_of,
)
from holdfast.store.filesets.folder_walk import FolderReport, FolderWalk, ForkedWalk
from holdfast.store.filesets.info import XATTRS_BYTES_MAX, Metadata, Xattrs
from holdfast.store.filesets.layer import Layer
from holdfast.store.filesets.layer_builder import Content, LayerBuilder
from holdfast.store.filesets.previous_tree import PreviousFile, PreviousTree, SeenWriter
from holdfast.store.filesets.ranges import RangeReader, told
from holdfast.store.filesets.selection import Selection
from holdfast.store.objects.objects import DataRef

if TYPE_CHECKING:
    from holdfast.seam.workers import WorkerPool
    from holdfast.store.gc.leases import Job
    from holdfast.store.store import Store

StoreProgress = Callable[[int, int], None]

_NOTHING = Metadata()


class StoredTree(NamedTuple):
    """A folder that was stored. `layer` and `seen` belong into one commit."""

    layer: Layer
    seen: tuple[DataRef, ...]
    files: int
    read_files: int
    read_bytes: int
    # What was left out, or changed while it was read.
    report: FolderReport
    # Files that look as in the parent, and were read because the store has lost their content.
    lost_files: int
    # What the store did not have before, its index included.
    new: NewChunks

    @property
    def size_bytes(self) -> int:
        """What all files have together."""
        return self.layer.index.size_bytes if self.layer.index is not None else 0


@dataclass
class _Counts:
    files: int = 0
    read_files: int = 0
    read_bytes: int = 0
    lost_files: int = 0


def put_tree(
    store: Store,
    job: Job,
    folder: PurePath | str | ForkedWalk,
    *,
    parent: FileSet | None = None,
    parent_seen: Sequence[DataRef] = (),
    selection: Selection | None = None,
    threads: int | WorkerPool = READ_THREADS,
    progress: StoreProgress = lambda files, read_bytes: None,
) -> StoredTree:
    """Store a folder. `parent` is a pinned file set, kept open until the new commit is made.

    Files are read by so many threads; or read and stored by workers, each with a `RangeStorer`. For
    a folder may stand a walk over it that was begun, with a selection of its own.
    `progress` is called, in this thread, with how many files were met and how
    many bytes were read.
    """
    with store.chunks.writer(job) as writer:
        before = PreviousTree(parent, parent_seen)
        chunking, skip = store.chunks.chunking, before.looks_same
        walk = folder if isinstance(folder, ForkedWalk) else FolderWalk(folder, selection)
        reader: FolderReader
        if isinstance(threads, int):
            reader = FolderReader(
                walk, small_bytes=chunking.small_file_bytes, skip=skip, threads=threads
            )
        else:
            threads.begin(told(store, job, walk.path))
            reader = RangeReader(walk, chunking=chunking, pool=threads, skip=skip)
        return _Tree(store, writer, reader, before).store(progress)


class TreePlan(NamedTuple):
    """What `put_tree` would meet and read now."""

    files: int
    size_bytes: int
    read_files: int
    read_bytes: int
    report: FolderReport


def plan_tree(
    folder: PurePath | str,
    *,
    parent: FileSet | None = None,
    parent_seen: Sequence[DataRef] = (),
    selection: Selection | None = None,
) -> TreePlan:
    """Look at a folder as `put_tree` does, and read no file; nothing is stored."""
    before = PreviousTree(parent, parent_seen)
    reader = FolderReader(FolderWalk(folder, selection), small_bytes=0, skip=before.looks_same)
    files = size_bytes = read_files = read_bytes = 0
    for found in reader.found():
        if found.entry.kind == "file":
            files += 1
            size_bytes += found.entry.size_bytes
            if not found.is_skipped and not found.is_again:
                read_files += 1
                read_bytes += found.entry.size_bytes
    return TreePlan(files, size_bytes, read_files, read_bytes, reader.report)


class _Tree:
    """One run of `put_tree`: each path is taken over, named again, or read."""

    def __init__(
        self, store: Store, writer: ChunkWriter, reader: FolderReader, before: PreviousTree
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._builder = LayerBuilder(store.chunks, writer)
        self._before = before
        self._unchanged = _Unchanged(self._builder)
        self._small_bytes = store.chunks.chunking.small_file_bytes
        self._seen = SeenWriter(store.references.seam.clock.wall_ns())
        self._xattrs_max_bytes = min(XATTRS_BYTES_MAX, store.chunks.chunking.max_bytes // 4)
        self._counts = _Counts()
        self._links = _HardLinks()
        # The lost chunk that the small files being read are to make again; None: a new one.
        self._lost_pack: bytes | None = None

    def store(self, progress: StoreProgress) -> StoredTree:
        """Store all, in order of the paths. The layer's tombstone removes everything older."""
        for found in self._reader.files():
            if found.entry.kind == "file":
                self._add_file(found)
                progress(self._counts.files, self._counts.read_bytes)
            else:
                self._add_other(found)
        self._unchanged.flush()
        # The layer replaces everything older: a file that is gone from the folder needs no entry
        # of its own.
        layer = self._builder.close(Tombstones([""]))
        seen = tuple(self._writer.put_stream(self._seen.data()))
        self._writer.barrier()
        counts = self._counts
        return StoredTree(
            layer,
            seen,
            counts.files,
            counts.read_files,
            counts.read_bytes,
            self._reader.report,
            counts.lost_files,
            self._reader.new.plus(self._writer.take_new()),
        )

    def _add_other(self, found: FoundFile) -> None:
        """Store a folder or a symbolic link."""
        entry = found.entry
        before = self._before.find(entry) if found.is_skipped else None
        if before is not None and before.message.metadata.HasField("uid"):
            self._unchanged.add(before)
            self._seen.keep(self._before.seen(entry))
        else:
            self._unchanged.flush()
            target = found.link_target
            if found.is_skipped and entry.kind == "link":
                target = self._reader.target(entry) if before is None else before.link_target
                if target is None:
                    return
            metadata = self._metadata(found, found.xattrs)._replace(link_target=target)
            self._builder.add(entry.path, algebra.append(b"", (), metadata.to_message()))
            self._seen.add(entry)
        self._counts.files += entry.kind == "link"

    def _add_file(self, found: FoundFile) -> None:
        """Take a file over from the parent, or store another name of it, or read it."""
        entry = found.entry
        before = self._before.find(entry) if found.is_skipped else None
        lost = self._before.lost_chunk(before.message) if before is not None else None
        if before is not None and lost is None:
            self._take_over(found, before)
            self._seen.keep(self._before.seen(entry))
        else:
            self._unchanged.flush()
            # From cheap to dear: taken over by reference, named again, read.
            if not self._add_again(found) and not self._read(found, lost):
                return
        self._counts.files += 1

    def _take_over(self, found: FoundFile, before: PreviousFile) -> None:
        """Store what the parent holds of a file, with what is known of it now."""
        entry, known = found.entry, before.message.metadata
        refs = tuple(before.message.data_op.data_ref) if entry.links > 1 else ()
        first = self._links.first(entry, refs) if entry.links > 1 else ""
        # The parent may be of a version that kept no owners, or the first name of the file may be
        # another one now. Then metadata is made again; content is taken over all the same.
        if not known.HasField("uid") or known.hard_link != first:
            kept = Metadata(sparse=known.sparse or None)
            metadata = self._metadata(found, self._reader.xattrs(entry), first, kept)
            renewed = pb.Index()
            renewed.CopyFrom(before.message)
            renewed.metadata.CopyFrom(metadata.to_message() or pb.Metadata())
            before = PreviousFile(entry.path, renewed)
        self._unchanged.add(before)

    def _add_again(self, found: FoundFile) -> bool:
        """Store another name of a file that was stored under one already; False: it was not."""
        entry = found.entry
        known = self._links.find(entry) if found.is_again else None
        if known is None:
            return False
        metadata = self._metadata(found, known.metadata.xattrs, known.path, known.metadata)
        self._builder.add(entry.path, algebra.append(b"", known.content, metadata.to_message()))
        self._seen.add(entry)
        return True

    def _read(self, found: FoundFile, lost: bytes | None) -> bool:
        """Store a file that is new, or whose chunk is lost; False if it cannot be read.

        Files of one lost pack are read together and cut off from their neighbours: then the pack
        gets the bytes, and the name, that it had, and all other commits that refer to it are whole
        again.
        """
        if lost != self._lost_pack:
            self._builder.cut_pack()
            self._lost_pack = lost
        entry = found.entry
        content, read = self._content(found)
        if content is None:
            return False
        holes = Metadata(sparse=read.has_holes or None)
        metadata = self._metadata(found, read.xattrs, "", holes)
        if entry.links > 1:
            metadata = metadata._replace(hard_link=self._links.first(entry, content, metadata))
        self._builder.add(entry.path, algebra.append(b"", content, metadata.to_message()))
        self._counts.lost_files += found.is_skipped
        self._counts.read_files += 1
        if read.has_changed:
            self._reader.report.has_changed(entry.path)
        else:
            self._seen.add(entry)
        return True

    def _metadata(
        self, found: FoundFile, xattrs: Xattrs, first: str = "", kept: Metadata = _NOTHING
    ) -> Metadata:
        """Return all that is kept of what was found; `first` is the first of a file's names."""
        entry = found.entry
        if sum(len(name) + len(value) for name, value in xattrs) > self._xattrs_max_bytes:
            self._reader.report.has_large_xattrs(entry.path)
            xattrs = ()
        known = metadata_of(entry, xattrs)
        return known._replace(hard_link=first or None, sparse=kept.sparse)

    def _content(self, found: FoundFile) -> tuple[tuple[Content, ...] | None, FoundFile | ReadFile]:
        """Store what is in a file, and say what was seen of it; None: it cannot be read.

        What was stored of a file before it failed is collected with the job.
        """
        entry = found.entry
        if found.stored is not None:
            self._counts.read_bytes += sum([ref.size_bytes for ref in found.stored])
            return tuple(map(message_of, found.stored)), found
        if found.small is not None:
            return self._small(entry, found.small), found
        file = self._reader.open(entry)
        if file is None:
            return None, found
        content: tuple[Content, ...]
        if entry.size_bytes <= self._small_bytes:
            data = b"".join(file.blocks())
            content = self._small(entry, data) if file.error is None else ()
        else:
            content = self._large(file.blocks())
        if file.error is not None:
            self._reader.report.failed(entry.path, file.error)
            return None, found
        return content, file

    def _small(self, entry: FolderEntry, data: bytes) -> tuple[Content, ...]:
        if len(data) > self._small_bytes:  # it has grown
            return self._large(iter((data,)))
        self._counts.read_bytes += len(data)
        return (self._builder.store_small(entry.path, data),)

    def _large(self, blocks: Iterator[bytes]) -> tuple[Content, ...]:
        refs = self._writer.put_stream(blocks)
        self._counts.read_bytes += sum(ref.size_bytes for ref in refs)
        return tuple(map(message_of, refs))


class _Unchanged:
    """Entries that are taken over from the parent, in runs that begin with a chunk of its index.

    Where a run comes to be all of the chunk, the chunk is taken over as it is: its entries are not
    packed, hashed and stored again. Whoever adds anything else to the layer calls `flush` first.
    """

    def __init__(self, builder: LayerBuilder) -> None:
        self._builder = builder
        self._run: list[PreviousFile] = []

    def add(self, file: PreviousFile) -> None:
        """Take the next path, as the parent has it."""
        run, leaf = self._run, file.leaf
        if run and (leaf is not run[0].leaf or file.number != len(run)):
            self.flush()
        begins = file.number == 0 and leaf is not None and self._builder.would_take_over(leaf.span)
        if leaf is None or not (run or begins):
            self._builder.add_again(file.message, file.data)
            return
        run.append(file)
        if len(run) == len(leaf.node.paths) and self._builder.takes_over(leaf.span):
            run.clear()

    def flush(self) -> None:
        """Add what was met of a chunk one by one: something else stands in it now."""
        for file in self._run:
            self._builder.add_again(file.message, file.data)
        self._run.clear()


class _LinkName(NamedTuple):
    """The first name of a file that has several, and what was stored under it."""

    path: str
    content: tuple[Content, ...]
    metadata: Metadata


class _HardLinks:
    """Files that have several names, until the last of them was met.

    By device and inode, and only until all names were met: `links` says how many there are. A
    folder with millions of files keeps none of them here, unless they have several names.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[int, int], _LinkName] = {}
        self._left: dict[tuple[int, int], int] = {}

    def find(self, entry: FolderEntry) -> _LinkName | None:
        """Return what was stored under another name of a file."""
        number = (entry.device, entry.inode)
        known = self._names.get(number)
        if known is not None:
            self._count(number)
        return known

    def first(
        self, entry: FolderEntry, content: tuple[Content, ...], metadata: Metadata = _NOTHING
    ) -> str:
        """Note a file that was stored; return the first of its names, which may be this one."""
        number = (entry.device, entry.inode)
        if number not in self._names:
            self._names[number] = _LinkName(entry.path, content, metadata)
            self._left[number] = entry.links
        path = self._names[number].path
        self._count(number)
        return path

    def _count(self, number: tuple[int, int]) -> None:
        self._left[number] -= 1
        if self._left[number] <= 0:
            del self._names[number], self._left[number]
