"""Stores a folder by several processes: the parent plans ranges of files, workers store them.

A range is a run of neighbouring files. It ends where a pack of small files does: where packs end
depends on paths and sizes alone (`PackBorders`), so the parent knows it without reading a file, and
the chunks are the same as if one process had read everything. A file whose size has changed by the
time it is read makes a pack different from what was planned, and nothing else.

The worker reads, cuts, hashes, compresses and stores, under the parent's lease and with a
connection of its own; its answer comes when all of it is durable. The parent walks the folder,
compares it with the parent commit, and builds the index from what the answers say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.seam.folders import Folder, FolderEntry
from holdfast.seam.workers import Alive, Finish, WorkerPool
from holdfast.store.chunks.settings import StoreSettings
from holdfast.store.chunks.writer import (
    ChunkWriter,
    NewChunks,
    PackBorders,
    PackedFile,
    SmallFiles,
)
from holdfast.store.filesets.folder_reader import FolderReader, FoundFile, ReadFile
from holdfast.store.objects.objects import ChunkHash, DataRef
from holdfast.store.store import Store

if TYPE_CHECKING:
    from holdfast.store.chunks.settings import Chunking
    from holdfast.store.filesets.folder_walk import FolderWalk, ForkedWalk
    from holdfast.store.gc.leases import Job

# What one worker takes at a time; and where a range ends though a pack does not.
RANGE_BYTES = 16 * 1024 * 1024
RANGE_BYTES_MAX = 256 * 1024 * 1024
RANGE_ENTRIES = 4096
RANGE_ENTRIES_MAX = 65_536
# So many files are worth beginning with a worker, as is one range's worth of bytes.
LITTLE_FILES = 512
# Ranges that are planned behind the one that is waited for, for each that the workers take at once:
# they are not equally long, and a worker that is done with its own takes another.
RANGES_AHEAD = 4
# Threads of each of a worker's two writers: while one waits for the disk, the other compresses.
STORE_THREADS = 2
# Plain bytes that each writer holds: the batches that its threads store, and the next. With more,
# large files take memory that is new each time, and new memory is cleared first.
IN_FLIGHT_BYTES = 48 * 1024 * 1024


class RangeReader(FolderReader):
    """One pass over a folder, whose files are read and stored by workers.

    What comes out is what `FolderReader` yields, in the same order; but of files that were stored
    it says where (`stored`), and not what is in them.
    """

    def __init__(
        self,
        walk: FolderWalk | ForkedWalk,
        *,
        chunking: Chunking,
        pool: WorkerPool,
        skip: Callable[[FolderEntry], bool],
    ) -> None:
        super().__init__(walk, small_bytes=chunking.small_file_bytes, skip=skip)
        self._chunking = chunking
        self._pool = pool

    def files(self) -> Iterator[FoundFile]:
        """Yield everything below that is to be stored, in order."""
        ahead: deque[tuple[list[FoundFile], int | None]] = deque()
        met_files = met_bytes = 0
        try:
            for group, to_read in self._ranges():
                # Little to do is done here, sooner than anybody else could begin with it.
                met_files += len(to_read)
                met_bytes += sum(entry.size_bytes for entry in to_read)
                is_little = met_files < LITTLE_FILES and met_bytes < RANGE_BYTES
                by_worker = bool(to_read) and not is_little
                ticket = self._pool.submit([tuple(e) for e in to_read]) if by_worker else None
                ahead.append((group, ticket))
                if len(ahead) > RANGES_AHEAD * self._pool.ahead:
                    yield from self._done(*ahead.popleft())
            while ahead:
                yield from self._done(*ahead.popleft())
        finally:
            for folder in self._folders:
                folder.close()

    def _ranges(self) -> Iterator[tuple[list[FoundFile], list[FolderEntry]]]:
        """Yield what stands in the folder, and which files of it are to be read."""
        group: list[FoundFile] = []
        to_read: list[FolderEntry] = []
        read_bytes = 0
        borders = PackBorders(self._chunking)
        for found in self.found():
            entry = found.entry
            group.append(found)
            if entry.kind == "file" and not found.is_skipped and not found.is_again:
                to_read.append(entry)
                read_bytes += entry.size_bytes
                if entry.size_bytes <= self._small_bytes:
                    borders.add(entry.path.encode(), entry.size_bytes)
            is_large = read_bytes >= RANGE_BYTES or len(group) >= RANGE_ENTRIES
            is_largest = read_bytes >= RANGE_BYTES_MAX or len(group) >= RANGE_ENTRIES_MAX
            if is_largest or (is_large and borders.is_border):
                yield group, to_read
                group, to_read, read_bytes, borders = [], [], 0, PackBorders(self._chunking)
        if group:
            yield group, to_read

    def _done(self, group: list[FoundFile], ticket: int | None) -> Iterator[FoundFile]:
        """Yield a range once it is stored; what nobody stored is read here."""
        if ticket is None:
            yield from self._read_group(group)
            return
        new, stored_files = self._pool.result(ticket)
        self.new = self.new.plus(NewChunks(*new))
        answers = iter(stored_files)
        for found in group:
            entry = found.entry
            if found.is_skipped or found.is_again:
                yield found
            elif entry.kind != "file":
                yield from self._read(entry)
            else:
                refs, error, has_changed, has_holes, xattrs = next(answers)
                if error is not None:
                    self.report.failed(entry.path, OSError(*error))
                    continue
                stored = tuple([DataRef(ChunkHash(h), at, n, own) for h, at, n, own in refs])
                yield FoundFile(
                    entry,
                    has_changed=has_changed,
                    has_holes=has_holes,
                    xattrs=xattrs,
                    stored=stored,
                )


# ------------------------------------------------------------------- the worker's side


class _RangeFile(NamedTuple):
    """A file that a worker has read: where its content is, and what was seen of it."""

    content: PackedFile | tuple[DataRef, ...]
    error: tuple[int | None, str] | None
    has_changed: bool = False
    has_holes: bool = False
    xattrs: tuple[tuple[bytes, bytes], ...] = ()

    def answer(self) -> tuple[Any, ...]:
        refs = self.content.refs if isinstance(self.content, PackedFile) else self.content
        return tuple(map(tuple, refs)), *self[1:]


def told(store: Store, job: Job, folder: PurePath | str) -> tuple[Any, ...]:
    """Return what workers are told to begin with."""
    return store.url, store.references.database.address.url, job.id, job.name, str(folder)


class RangeStorer:
    """What a worker does of a `put`: it stores ranges, two at a time.

    While the disk syncs one, the next is read: so there are two writers, which take turns.
    """

    def __init__(self, given: tuple[Any, ...]) -> None:
        url, database, job_id, job_name, folder = given
        settings = replace(
            StoreSettings(), writer_threads=STORE_THREADS, max_in_flight_bytes=IN_FLIGHT_BYTES
        )
        self._store = Store.open(url, database=database, settings=settings)
        self._small_bytes = self._store.chunks.chunking.small_file_bytes
        self._folder = Folder(folder)
        job = self._store.references.join_job(job_id, job_name)
        self._writers = deque(self._store.chunks.writer(job) for _ in range(2))

    def close(self) -> None:
        """End what this process has opened."""
        for writer in self._writers:
            writer.close()
        self._folder.close()
        self._store.close()

    def take(self, task: Any, alive: Alive, *, again: bool) -> Finish:
        """Read a range and begin to store it. Again: what is stored already is found so."""
        writer = self._writers[0]
        self._writers.rotate()
        small = self._store.chunks.small_files(writer)
        stored: list[_RangeFile] = []
        for fields in task:
            alive()
            stored.append(self._read(FolderEntry(*fields), writer, small, alive))
        small.flush()
        writer.submit()

        def finish() -> tuple[tuple[int, ...], list[tuple[Any, ...]]]:
            # Answered when it is durable, and can be referred to.
            writer.barrier()
            return tuple(writer.take_new()), [one.answer() for one in stored]

        return finish

    def _read(
        self, entry: FolderEntry, writer: ChunkWriter, small: SmallFiles, alive: Alive
    ) -> _RangeFile:
        """Read a file and put it into chunks; as small or large as it turns out to be."""
        try:
            file = ReadFile(entry, self._folder.open_file(entry.path))
        except OSError as error:
            return _RangeFile((), (error.errno, error.strerror or str(error)))
        content: PackedFile | tuple[DataRef, ...]
        if entry.size_bytes <= self._small_bytes:
            data = b"".join(file.blocks())
            if len(data) > self._small_bytes:  # it has grown
                content = tuple(writer.put_stream([data]))
            else:
                content = small.add(entry.path.encode(), data) if file.error is None else ()
        else:
            content = tuple(writer.put_stream(_living(file.blocks(), alive)))
        if file.error is not None:
            why = file.error.strerror or str(file.error)
            return _RangeFile((), (file.error.errno, why))
        return _RangeFile(content, None, file.has_changed, file.has_holes, file.xattrs)


def _living(blocks: Iterator[bytes], alive: Alive) -> Iterator[bytes]:
    for block in blocks:
        alive()
        yield block
