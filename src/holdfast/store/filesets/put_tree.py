"""Stores a whole folder as one layer; files that look as they did in a parent commit are not read.

The folder comes in order of its paths, so nothing is buffered or sorted: small files go straight
into shared chunks, large ones into their own, and the index behind them. The layer takes away all
older files, and holds all of the folder's. Its entries that did not change are the bytes they were,
and so are the chunks of its index. Those whose content the store has lost are read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

from holdfast.seam.folders import FolderEntry
from holdfast.store.address import DataRef
from holdfast.store.chunks import ChunkWriter
from holdfast.store.filesets import algebra
from holdfast.store.filesets.algebra import Tombstones
from holdfast.store.filesets.before import Before
from holdfast.store.filesets.entry import message_of
from holdfast.store.filesets.fileset import FileSet
from holdfast.store.filesets.folder_reader import (
    READ_THREADS,
    FolderReader,
    FoundFile,
    OutsideLinks,
)
from holdfast.store.filesets.info import FOLDER_MODE, Metadata
from holdfast.store.filesets.layer import Layer
from holdfast.store.filesets.layer_builder import Content, LayerBuilder
from holdfast.store.filesets.seen import SeenWriter

if TYPE_CHECKING:
    from holdfast.store.gc.leases import Job
    from holdfast.store.store import Store

Progress = Callable[[int, int], None]


class StoredTree(NamedTuple):
    """A folder that was stored. `layer` and `seen` belong into one commit."""

    layer: Layer
    seen: tuple[DataRef, ...]
    files: int
    read_files: int
    read_bytes: int
    skipped_links: int
    # Files that look as in the parent, and were read because the store has lost their content.
    lost_files: int


@dataclass
class _Counts:
    files: int = 0
    read_files: int = 0
    read_bytes: int = 0
    lost_files: int = 0


def put_tree(
    store: Store,
    job: Job,
    folder: PurePath | str,
    *,
    parent: FileSet | None = None,
    parent_seen: Sequence[DataRef] = (),
    outside_links: OutsideLinks = "refuse",
    threads: int = READ_THREADS,
    progress: Progress = lambda files, read_bytes: None,
) -> StoredTree:
    """Store a folder. `parent` is a pinned file set, kept open until the new commit is made.

    `progress` is told, in this thread, how many files were met and how many bytes were read.
    """
    with store.chunks.writer(job) as writer:
        tree = _Tree(store, writer, folder, parent, parent_seen)
        return tree.store(outside_links, threads, progress)


class _Tree:
    def __init__(
        self,
        store: Store,
        writer: ChunkWriter,
        folder: PurePath | str,
        parent: FileSet | None,
        parent_seen: Sequence[DataRef],
    ) -> None:
        self._writer = writer
        self._folder = folder
        self._builder = LayerBuilder(store.chunks, writer)
        self._before = Before(parent, parent_seen)
        self._small_bytes = store.chunks.chunking.small_file_bytes
        self._seen = SeenWriter(store.references.seam.clock.wall_ns())
        self._counts = _Counts()
        # The lost chunk that the small files being read are to make again; None: a new one.
        self._lost_pack: bytes | None = None

    def store(self, outside_links: OutsideLinks, threads: int, progress: Progress) -> StoredTree:
        reader = FolderReader(
            self._folder,
            small_bytes=self._small_bytes,
            skip=self._before.looks_same,
            outside_links=outside_links,
            threads=threads,
        )
        empty: FolderEntry | None = None
        for found in reader.files():
            if empty is not None and not found.entry.path.startswith(empty.path):
                self._add_folder(empty)
            empty = None
            if found.entry.kind == "folder":
                empty = self._folder_or_empty(found.entry)
            else:
                self._add_file(reader, found)
                progress(self._counts.files, self._counts.read_bytes)
        if empty is not None:
            self._add_folder(empty)
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
            reader.skipped_links,
            counts.lost_files,
        )

    def _folder_or_empty(self, entry: FolderEntry) -> FolderEntry | None:
        """Store a folder whose mode is unusual; return any other, which may be an empty one."""
        if entry.mode == FOLDER_MODE:
            return entry
        self._add_folder(entry)
        return None

    def _add_folder(self, entry: FolderEntry) -> None:
        metadata = Metadata(mode=entry.mode).to_message()
        self._builder.add(entry.path, algebra.append(b"", (), metadata))

    def _add_file(self, reader: FolderReader, found: FoundFile) -> None:
        entry = found.entry
        if found.link_target is not None:
            self._counts.files += 1
            metadata = Metadata(link_target=found.link_target).to_message()
            self._builder.add(entry.path, algebra.append(b"", (), metadata))
            return
        before = self._before.find(entry) if found.is_skipped else None
        lost = self._before.lost_chunk(before) if before is not None else None
        if before is not None and lost is None:
            self._builder.add_again(before)
        else:
            self._counts.lost_files += found.is_skipped
            if lost != self._lost_pack:
                self._builder.cut_pack()
                self._lost_pack = lost
            content = self._content(reader, found)
            if content is None:
                return  # it went while we looked
            metadata = Metadata(mode=entry.mode, mtime_ns=entry.mtime_ns).to_message()
            self._builder.add(entry.path, algebra.append(b"", content, metadata))
        self._counts.files += 1
        self._seen.add(entry)

    def _content(self, reader: FolderReader, found: FoundFile) -> tuple[Content, ...] | None:
        """Store what is in a file; None if it is not there any more."""
        if found.small is not None:
            return self._small(found, found.small)
        blocks = reader.blocks(found.entry)
        if blocks is None:
            return None
        if found.entry.size_bytes <= self._small_bytes:
            data = b"".join(blocks)
            if len(data) <= self._small_bytes:
                return self._small(found, data)
            blocks = iter((data,))  # it has grown
        refs = self._writer.put_stream(blocks)
        self._counts.read_files += 1
        self._counts.read_bytes += sum(ref.size_bytes for ref in refs)
        return tuple(map(message_of, refs))

    def _small(self, found: FoundFile, data: bytes) -> tuple[Content, ...]:
        self._counts.read_files += 1
        self._counts.read_bytes += len(data)
        return (self._builder.store_small(found.entry.path, data),)
