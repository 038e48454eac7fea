"""Stores chunks for one job: reserve, compress, put, mark, in batches and in threads.

    put ──hash──▶ open batch ──full──▶ worker: reserve ▶ compress ▶ put_many ▶ mark uploaded
    caller's thread                    one batch at a time each

A chunk is *marked* once its object is durable, and then holds its children. So children are marked
before their parents, though they may be stored in any order: what is stored and has an unmarked
child waits (`_stored`) until a worker has marked that child.

Memory is bounded by plain bytes that are not stored yet: `put` waits when there are too many. The
first error, or the loss of the job's lease, ends the writer: what is queued is dropped, and every
later call raises it.

Streams are cut where their bytes say so (`cut`; FastCDC, 2020). The same bytes are cut in the same
way wherever they occur, so an insertion changes the chunks around it and no others. Where exactly
is part of the format: the golden vectors of the tests hold the library to it.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from blake3 import blake3

from holdfast.errors import BadInput
from holdfast.seam.process import bind_to_process
from holdfast.store.chunks.codec import encode
from holdfast.store.chunks.settings import Chunking, StoreSettings
from holdfast.store.objects.objects import ChunkHash, ChunkKey, DataRef, Objects, hash_of

if TYPE_CHECKING:
    from pyfastcdc import FastCDC
    from typing_extensions import Buffer

    from holdfast.store.gc.leases import Job
    from holdfast.store.gc.references import References

# Bytes that are looked at together, in largest chunks: less, and the rest of one look is copied
# into the next more often; more, and memory holds more than it must.
WINDOW_CHUNKS = 4


def cut(stream: Iterable[Buffer], chunking: Chunking) -> Iterator[memoryview]:
    """Yield the chunks of a stream that comes in any pieces.

    A chunk is a view of a buffer that is not changed any more, but may be as large as a window.
    """
    window_bytes = WINDOW_CHUNKS * chunking.max_bytes
    cutter: FastCDC | None = None
    rest = memoryview(b"")
    pieces: list[memoryview] = []
    held_bytes = 0
    for buffer in stream:
        # Before anything refers to it: workers hash and compress in other threads, long after the
        # caller may have filled its buffer with something else.
        whole = unchanging(buffer)
        for start in range(0, whole.nbytes, window_bytes):
            pieces.append(whole[start : start + window_bytes])
            held_bytes += pieces[-1].nbytes
            if held_bytes >= window_bytes:
                # What is left of a window is carried into the next: its last cut is not final
                # until more bytes are known, and the same stream must be cut alike however it
                # arrives.
                cutter = cutter or _cutter(chunking)
                rest = yield from _cut_behind(cutter, rest, _joined(pieces), chunking.max_bytes)
                pieces, held_bytes = [], rest.nbytes
    last = _joined(pieces)
    if rest.nbytes + last.nbytes > chunking.min_bytes:
        rest = yield from _cut_behind(cutter or _cutter(chunking), rest, last, chunking.max_bytes)
    else:
        rest = _joined([rest, last])  # so little is one chunk, and need not be looked at
    if rest.nbytes:
        yield rest


def _cutter(chunking: Chunking) -> FastCDC:
    from pyfastcdc import FastCDC  # needed by those who store, not by all who open a store

    return FastCDC(chunking.average_bytes, min_size=chunking.min_bytes, max_size=chunking.max_bytes)


def unchanging(buffer: Buffer) -> memoryview:
    """Return the bytes of a buffer as they are now, copied if somebody may change them."""
    view = memoryview(buffer).cast("B")
    return view if view.readonly else memoryview(bytes(view))


def _cut_behind(
    cutter: FastCDC, rest: memoryview, window: memoryview, max_bytes: int
) -> Generator[memoryview, None, memoryview]:
    """Yield the chunks that end inside of a window, behind what the last one left; return the rest.

    What was left is joined with as much of the window as makes one chunk, and not with all of it:
    large files come in pieces as large as windows.
    """
    # So many bytes hold a whole chunk, whatever comes behind them.
    while rest.nbytes and rest.nbytes + window.nbytes >= max_bytes:
        both = _joined([rest, window[: max(0, max_bytes - rest.nbytes)]])
        size_bytes = next(iter(cutter.cut_buf(both))).length
        yield both[:size_bytes]
        window = window[max(0, size_bytes - rest.nbytes) :]
        rest = rest[size_bytes:]
    return (yield from _cut_window(cutter, _joined([rest, window]) if rest.nbytes else window))


def _cut_window(cutter: FastCDC, window: memoryview) -> Generator[memoryview, None, memoryview]:
    """Yield the chunks that end inside of a window; return the rest.

    A cut depends on the bytes before it alone. So the last chunk, which ends where the window does,
    is the only one that more bytes could change.
    """
    start = 0
    if window.nbytes:
        for chunk in cutter.cut_buf(window):
            if chunk.offset + chunk.length == window.nbytes:
                break
            start = chunk.offset + chunk.length
            yield window[chunk.offset : start]
    return window[start:]


def _joined(pieces: list[memoryview]) -> memoryview:
    found = [piece for piece in pieces if piece.nbytes]
    return found[0] if len(found) == 1 else memoryview(b"".join(found))


# Chunks that are worth a batch of their own, where another thread is free to store them.
DIVIDED_CHUNKS_MIN = 8
# Hashes that a writer remembers to have stored, so as not to ask the database again.
RECENT_HASHES_MAX = 65_536


class _Chunk(NamedTuple):
    hash: ChunkHash
    data: memoryview
    children: tuple[ChunkHash, ...]


class _StoredChunk(NamedTuple):
    key: ChunkKey
    children: tuple[ChunkHash, ...]
    plain_bytes: int
    stored_bytes: int | None


class NewChunks(NamedTuple):
    """What was stored, and was not there before.

    `plain_bytes` are those of content, which refers to nothing; `stored_bytes` are those of all
    objects, an index included.
    """

    chunks: int = 0
    plain_bytes: int = 0
    stored_bytes: int = 0

    def plus(self, other: NewChunks) -> NewChunks:
        """Add up two counts."""
        return NewChunks(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


@dataclass
class _ChunkBatch:
    """Chunks that are reserved, stored, synced and marked together: each step costs a wait."""

    chunks: list[_Chunk] = field(default_factory=list)
    size_bytes: int = 0


class ChunkWriter:
    """Stores chunks under a job's lease. May be used by several threads."""

    def __init__(
        self,
        objects: Objects,
        references: References,
        job: Job,
        chunking: Chunking,
        settings: StoreSettings,
    ) -> None:
        self._objects = objects
        self._references = references
        self._job = job
        self._chunking = chunking
        self._settings = settings
        from concurrent.futures import ThreadPoolExecutor

        self._threads = ThreadPoolExecutor(settings.writer_threads, thread_name_prefix="chunks")
        # Guards everything below; notified whenever a batch is done.
        self._changed = threading.Condition()
        self._open = _ChunkBatch()
        self._in_flight_bytes = 0
        self._batches_in_flight = 0
        # Hashes that were put and are not marked yet, and those that were marked lately.
        self._unmarked: set[ChunkHash] = set()
        self._recent: OrderedDict[ChunkHash, None] = OrderedDict()
        self._stored: list[_StoredChunk] = []
        self._new = NewChunks()
        self._failure: BaseException | None = None
        self._marking = threading.Lock()
        bind_to_process(self)
        # Wakes callers that wait here. Weakly, because a job may outlive many writers.
        this = weakref.ref(self)
        job.on_lost(lambda: _cancel(this()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.barrier()
        finally:
            self.close()

    def put(self, data: Buffer, children: Sequence[ChunkHash] = ()) -> ChunkHash:
        """Store one whole chunk, soon; return its address."""
        view = unchanging(data)
        if view.nbytes > self._chunking.largest_bytes:
            raise BadInput(
                f"a chunk of {view.nbytes} bytes is too large",
                hint=f"chunks of this store have at most {self._chunking.largest_bytes} bytes",
            )
        chunk = _Chunk(hash_of(view), view, tuple(children))
        with self._changed:
            self._check()
            # Looked up under the lock, hashed before it: hashing is most of the work, and needs
            # none.
            if not self._is_known(chunk):
                self._wait_for_room(view.nbytes)
                self._add(chunk)
        return chunk.hash

    def put_stream(self, stream: Iterable[Buffer]) -> list[DataRef]:
        """Store a stream, cut where its content says; return what it consists of."""
        return [DataRef(self.put(view), 0, view.nbytes) for view in cut(stream, self._chunking)]

    def submit(self) -> None:
        """Begin to store all that was put, and do not wait for it."""
        with self._changed:
            self._check()
            self._submit()

    def take_new(self) -> NewChunks:
        """Return what was stored since this was last asked, and was not there before."""
        with self._changed:
            new, self._new = self._new, NewChunks()
        return new

    def barrier(self) -> None:
        """Return once everything put so far is durable and marked."""
        with self._changed:
            self._submit_divided()
            self._changed.wait_for(lambda: self._failure or not self._batches_in_flight)
            self._check()
            assert not self._stored, "BUG: a chunk waits for a child that nobody stores"

    def close(self) -> None:
        """Drop what is queued and end the threads; `barrier` first if it is wanted."""
        with self._changed:
            self._fail(ValueError("the writer is closed"))
        self._threads.shutdown()

    # ------------------------------------------------------- the caller's side

    def _is_known(self, chunk: _Chunk) -> bool:
        """Say whether this writer has stored a chunk, or is about to.

        Repeated content (copies of files, runs of zeros) would otherwise ask the database each
        time.
        """
        if chunk.children:
            return False  # it may be known as a file with the same bytes, which holds no children
        if chunk.hash in self._recent:
            self._recent.move_to_end(chunk.hash)
            return True
        return chunk.hash in self._unmarked

    def _wait_for_room(self, size_bytes: int) -> None:
        """Wait until the chunk fits into `max_in_flight_bytes`, or nothing else is in flight.

        What the caller waits for may be in the open batch, which nobody has submitted: so it is
        submitted first. A chunk that is larger than the whole limit still gets through alone.
        """
        limit_bytes = self._settings.max_in_flight_bytes

        def has_room() -> bool:
            return self._in_flight_bytes == 0 or self._in_flight_bytes + size_bytes <= limit_bytes

        while not has_room():
            self._submit()
            self._changed.wait()
            self._check()

    def _add(self, chunk: _Chunk) -> None:
        """Put a chunk into the open batch; the caller holds the lock."""
        if self._is_known(chunk):  # by another thread, while this one waited for room
            return
        self._unmarked.add(chunk.hash)
        self._in_flight_bytes += chunk.data.nbytes
        self._open.chunks.append(chunk)
        self._open.size_bytes += chunk.data.nbytes
        is_full = (
            self._open.size_bytes >= self._settings.batch_bytes
            or len(self._open.chunks) >= self._settings.batch_chunks
        )
        if is_full:
            self._submit()

    def _submit(self) -> None:
        if self._open.chunks and self._failure is None:
            batch, self._open = self._open, _ChunkBatch()
            self._batches_in_flight += 1
            # The queue of the pool is not bounded by itself. `_wait_for_room` bounds it, by the
            # plain bytes of everything that was put and is not stored.
            self._threads.submit(self._work, batch)

    def _submit_divided(self) -> None:
        """Hand the open batch to all threads: whoever waits for it puts nothing beside it."""
        chunks, threads = self._open.chunks, self._settings.writer_threads
        if len(chunks) < threads * DIVIDED_CHUNKS_MIN:
            threads = 1
        for number in range(threads):
            part = chunks[number::threads]
            self._open = _ChunkBatch(part, sum([chunk.data.nbytes for chunk in part]))
            self._submit()

    def _check(self) -> None:
        """Raise what ended this writer, or that the lease is lost.

        The first failure is kept and raised to every caller: chunks that others put into the same
        batch failed with it.
        """
        if self._failure is None:
            try:
                self._job.check()
            except Exception as error:
                self._fail(error)
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
        self._open = _ChunkBatch()
        self._changed.notify_all()

    # ------------------------------------------------------- the workers' side

    def _work(self, batch: _ChunkBatch) -> None:
        """Store one batch; runs in a thread of the pool.

        An error cannot be raised to anybody here. It is kept for the next caller of `put` or
        `barrier`.
        """
        try:
            if self._failure is None:
                self._mark(batch, self._store(batch))
        except BaseException as error:
            with self._changed:
                self._fail(error)
        finally:
            with self._changed:
                self._batches_in_flight -= 1
                self._in_flight_bytes -= batch.size_bytes
                self._changed.notify_all()

    def _store(self, batch: _ChunkBatch) -> list[_StoredChunk]:
        """Store what nobody has stored yet."""
        # Before the reservation as well as before the put: both cost a round trip that is wasted
        # once the lease is gone.
        self._job.check()
        reservations = self._references.reserve_chunks(
            self._job, [(chunk.hash, chunk.data.nbytes) for chunk in batch.chunks]
        )
        stored, items = [], []
        for chunk, (key, needs_upload) in zip(batch.chunks, reservations, strict=True):
            stored_bytes: int | None = None
            if needs_upload:
                header, body = encode(chunk.data, self._settings.zstd_level)
                items.append((key.object_key(), (header, body)))
                stored_bytes = len(header) + memoryview(body).nbytes
            # One that is there already may be a file with the bytes of this index, which holds no
            # children yet.
            # Nothing to do for one that is stored and refers to nothing: reserving it was enough
            # to hold it.
            if needs_upload or chunk.children:
                size_bytes = chunk.data.nbytes
                stored.append(_StoredChunk(key, chunk.children, size_bytes, stored_bytes))
        # An object that is put now, when the lease is gone, only has to be collected again.
        self._job.check()
        if items:
            self._objects.put_many(items)
        return stored

    def _mark(self, batch: _ChunkBatch, stored: list[_StoredChunk]) -> None:
        """Mark what was stored, and whatever waited for it; the rest waits for others."""
        new = {chunk.key.hash for chunk in stored}
        with self._changed:
            self._stored += stored
            self._are_marked([chunk.hash for chunk in batch.chunks if chunk.hash not in new])
        with self._marking:
            while ready := self._take_ready():
                self._references.mark_uploaded(
                    self._job,
                    [(chunk.key, chunk.children) for chunk in ready],
                    {one.key: one.stored_bytes for one in ready if one.stored_bytes is not None},
                )
                with self._changed:
                    self._are_marked([chunk.key.hash for chunk in ready])
                    for one in ready:
                        if one.stored_bytes is not None:
                            content_bytes = 0 if one.children else one.plain_bytes
                            counted = NewChunks(1, content_bytes, one.stored_bytes)
                            self._new = self._new.plus(counted)

    def _take_ready(self) -> list[_StoredChunk]:
        """Take the chunks that can be marked: without an unmarked child, or after it in the list.

        A mark refers to the children in the same transaction, and a reference needs a row that is
        stored. Batches of several threads end in any order, so a parent may be stored before its
        child.
        """
        ready: list[_StoredChunk] = []
        waiting: list[_StoredChunk] = []
        with self._changed:
            # The copy is only made where there are parents; data chunks, by far the most, have no
            # children.
            unmarked = set(self._unmarked) if any(c.children for c in self._stored) else set()
            for chunk in self._stored:
                if unmarked.isdisjoint(chunk.children):
                    ready.append(chunk)
                    # Within one call of `mark_uploaded` a child may come before its parent, so for
                    # those behind it in the list it counts as marked.
                    unmarked.discard(chunk.key.hash)
                else:
                    waiting.append(chunk)
            self._stored = waiting
        return ready

    def _are_marked(self, chunks: Iterable[ChunkHash]) -> None:
        """Remember that chunks need not be stored again; the caller holds the lock."""
        for chunk in chunks:
            self._unmarked.discard(chunk)
            self._recent[chunk] = None
        while len(self._recent) > RECENT_HASHES_MAX:
            self._recent.popitem(last=False)


def _cancel(writer: ChunkWriter | None) -> None:
    if writer is not None:
        with writer._changed:
            writer._fail(writer._job.lapsed())


_FRACTION_BYTES = 8


class PackedFile:
    """A file that was added; its references are known once its pack is cut."""

    __slots__ = ("_refs", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._refs: tuple[DataRef, ...] | None = () if size_bytes == 0 else None

    @property
    def is_cut(self) -> bool:
        """Whether the references are known."""
        return self._refs is not None

    @property
    def refs(self) -> tuple[DataRef, ...]:
        """One reference, or none if the file is empty."""
        assert self._refs is not None, "BUG: the pack of this file is not cut yet"
        return self._refs

    def _is_stored(self, ref: DataRef) -> None:
        self._refs = (ref,)


class PackBorders:
    """Where packs of small files are cut, by the paths and sizes of the files alone.

    A pack is cut behind a file that its own path chooses: the hash of the path, as a fraction, is
    less than the file's share of `pack_spread_bytes`. The chance is in proportion to the size, so
    packs have the same size whatever their files have. Neighbouring packs stay as they are when a
    file between them changes, is added or removed; cutting by size alone would move every border
    behind it.
    """

    def __init__(self, chunking: Chunking) -> None:
        self._chunking = chunking
        self._files = 0
        self._size_bytes = 0

    @property
    def is_border(self) -> bool:
        """Whether no pack is begun."""
        return self._files == 0

    def is_too_full(self, size_bytes: int) -> bool:
        """Whether a pack is to be cut before a file of this size."""
        return self._size_bytes + size_bytes > self._chunking.max_bytes

    def add(self, path: bytes, size_bytes: int) -> bool:
        """Take the next file; return whether a pack is to be cut behind it. Empty ones are in none.

        One that was too full before it was cut there.
        """
        if size_bytes == 0:
            return False
        if self.is_too_full(size_bytes):
            self.cut()
        self._files += 1
        self._size_bytes += size_bytes
        if self._is_complete(path, size_bytes):
            self.cut()
            return True
        return False

    def cut(self) -> None:
        """Let a pack end here, whatever the paths say."""
        self._files, self._size_bytes = 0, 0

    def _is_complete(self, path: bytes, size_bytes: int) -> bool:
        """Say whether the pack ends behind this file: it is full, or the path decides so."""
        if self._files >= self._chunking.pack_files_max:
            return True
        if self._size_bytes < self._chunking.pack_min_bytes:
            return False
        # The path decides, not the content: a file that changes then keeps its pack's borders, and
        # only the one pack that holds it is stored anew.
        fraction = int.from_bytes(blake3(path).digest(_FRACTION_BYTES), "little")
        return fraction * self._chunking.pack_spread_bytes < size_bytes << (8 * _FRACTION_BYTES)


class SmallFiles:
    """Packs whole files into chunks, in the order in which they are added.

    One object for each small file would cost more than its bytes.
    """

    def __init__(self, writer: ChunkWriter, chunking: Chunking) -> None:
        self._writer = writer
        self._chunking = chunking
        self._files: list[PackedFile] = []
        self._contents: list[bytes] = []
        self._borders = PackBorders(chunking)

    def add(self, path: bytes, data: bytes) -> PackedFile:
        """Take a file of at most `small_file_bytes`; it is stored when its pack is cut."""
        if len(data) > self._chunking.small_file_bytes:
            raise BadInput(
                f"a file of {len(data)} bytes is not a small one",
                hint=f"small files have at most {self._chunking.small_file_bytes} bytes",
                path=path.decode("utf-8", "replace"),
            )
        file = PackedFile(len(data))
        if not data:
            return file
        if self._borders.is_too_full(len(data)):
            self.flush()
        self._files.append(file)
        self._contents.append(data)
        if self._borders.add(path, len(data)):
            self.flush()
        return file

    def flush(self) -> None:
        """Cut the pack here, whatever the paths say."""
        if not self._files:
            return
        chunk = self._writer.put(b"".join(self._contents))
        whole = len(self._files) == 1
        offset_bytes = 0
        for file, data in zip(self._files, self._contents, strict=True):
            content_hash = b"" if whole else hash_of(data)
            file._is_stored(DataRef(chunk, offset_bytes, len(data), content_hash))
            offset_bytes += len(data)
        self._files, self._contents = [], []
        self._borders.cut()
