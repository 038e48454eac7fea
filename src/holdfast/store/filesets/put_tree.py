"""Stores a whole folder as one layer; files that look as they did in a parent commit are not read.

The folder comes in order of its paths, so nothing is buffered or sorted: small files go straight
into shared chunks, large ones into their own, and the index behind them. The layer takes away all
older files, and holds all of the folder's. Its entries that did not change are the bytes they were,
and so are the chunks of its index. Those whose content the store has lost are read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
    FolderReport,
    FoundFile,
)
from holdfast.store.filesets.info import FOLDER_MODE, Metadata
from holdfast.store.filesets.layer import Layer
from holdfast.store.filesets.layer_builder import Content, LayerBuilder
from holdfast.store.filesets.seen import SeenWriter
from holdfast.store.filesets.selection import Selection

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
    # What was left out, or changed while it was read.
    report: FolderReport
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
    selection: Selection | None = None,
    threads: int = READ_THREADS,
    progress: Progress = lambda files, read_bytes: None,
) -> StoredTree:
    """Store a folder. `parent` is a pinned file set, kept open until the new commit is made.

    `progress` is told, in this thread, how many files were met and how many bytes were read.
    """
    with store.chunks.writer(job) as writer:
        before = Before(parent, parent_seen)
        reader = FolderReader(
            folder,
            small_bytes=store.chunks.chunking.small_file_bytes,
            skip=before.looks_same,
            selection=selection,
            threads=threads,
        )
        return _Tree(store, writer, reader, before).store(progress)


class _Tree:
    def __init__(
        self, store: Store, writer: ChunkWriter, reader: FolderReader, before: Before
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._builder = LayerBuilder(store.chunks, writer)
        self._before = before
        self._small_bytes = store.chunks.chunking.small_file_bytes
        self._seen = SeenWriter(store.references.seam.clock.wall_ns())
        self._counts = _Counts()
        # The lost chunk that the small files being read are to make again; None: a new one.
        self._lost_pack: bytes | None = None

    def store(self, progress: Progress) -> StoredTree:
        empty: FolderEntry | None = None
        for found in self._reader.files():
            if empty is not None and not found.entry.path.startswith(empty.path):
                self._add_folder(empty)
            empty = None
            if found.entry.kind == "folder":
                empty = self._folder_or_empty(found.entry)
            else:
                self._add_file(found)
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
            self._reader.report,
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

    def _add_file(self, found: FoundFile) -> None:
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
            self._seen.add(entry)
        elif not self._read(found, lost):
            return
        self._counts.files += 1

    def _read(self, found: FoundFile, lost: bytes | None) -> bool:
        """Store a file that is new, or whose chunk is lost; False if it cannot be read."""
        if lost != self._lost_pack:
            self._builder.cut_pack()
            self._lost_pack = lost
        entry = found.entry
        content, has_changed = self._content(found)
        if content is None:
            return False
        metadata = Metadata(mode=entry.mode, mtime_ns=entry.mtime_ns).to_message()
        self._builder.add(entry.path, algebra.append(b"", content, metadata))
        self._counts.lost_files += found.is_skipped
        self._counts.read_files += 1
        if has_changed:
            self._reader.report.has_changed(entry.path)
        else:
            self._seen.add(entry)
        return True

    def _content(self, found: FoundFile) -> tuple[tuple[Content, ...] | None, bool]:
        """Store what is in a file, and say whether it changed meanwhile; None: it cannot be read.

        What was stored of a file before it failed is collected with the job.
        """
        entry = found.entry
        if found.small is not None:
            return self._small(entry, found.small), found.has_changed
        file = self._reader.open(entry)
        if file is None:
            return None, False
        content: tuple[Content, ...]
        if entry.size_bytes <= self._small_bytes:
            data = b"".join(file.blocks())
            content = self._small(entry, data) if file.error is None else ()
        else:
            content = self._large(file.blocks())
        if file.error is not None:
            self._reader.report.failed(entry.path, file.error)
            return None, False
        return content, file.has_changed

    def _small(self, entry: FolderEntry, data: bytes) -> tuple[Content, ...]:
        if len(data) > self._small_bytes:  # it has grown
            return self._large(iter((data,)))
        self._counts.read_bytes += len(data)
        return (self._builder.store_small(entry.path, data),)

    def _large(self, blocks: Iterator[bytes]) -> tuple[Content, ...]:
        refs = self._writer.put_stream(blocks)
        self._counts.read_bytes += sum(ref.size_bytes for ref in refs)
        return tuple(map(message_of, refs))
