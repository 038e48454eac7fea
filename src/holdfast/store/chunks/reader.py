"""Reads ranges of chunks: each chunk once, ahead of time, and nothing that is not verified.

A range is never fetched alone. Chunks are small and mostly compressed, so the whole one is fetched,
checked against its address, kept for the next read, and the range cut out of it. A range that has a
hash of its own is checked against it, too: the chunk may be sound, and the reference wrong.

Chunks that were read lately are kept in memory, up to a number of bytes (`ChunkCache`).
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.errors import BadInput, Damaged, ObjectMissing
from holdfast.store.chunks.codec import decode
from holdfast.store.objects.objects import ChunkHash, ChunkKey, DataRef, Objects, hash_of

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from holdfast.store.gc.leases import CommitPin
    from holdfast.store.gc.references import References


class ChunkCache:
    """The plain bytes of chunks; the one that was not used for longest goes first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._chunks: OrderedDict[ChunkHash, bytes] = OrderedDict()
        self._size_bytes = 0
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        """Bytes that are held now."""
        return self._size_bytes

    def get(self, chunk: ChunkHash) -> bytes | None:
        """Return a chunk if it is here."""
        with self._lock:
            data = self._chunks.get(chunk)
            if data is not None:
                self._chunks.move_to_end(chunk)
            return data

    def put(self, chunk: ChunkHash, data: bytes) -> None:
        """Keep a chunk, if it fits at all."""
        with self._lock:
            if chunk in self._chunks or len(data) > self._limit_bytes:
                return
            self._chunks[chunk] = data
            self._size_bytes += len(data)
            while self._size_bytes > self._limit_bytes:
                _, dropped = self._chunks.popitem(last=False)
                self._size_bytes -= len(dropped)


# Chunks whose keys are asked for together, and keys that a reader remembers.
RESOLVE_BATCH = 1000
KEYS_MAX = 100_000


class _Ranges(NamedTuple):
    """What is wanted of one chunk, in order: pairs of start and end.

    `checks` are those that are wanted whole and have a hash of their own: start, end, hash.
    """

    hash: ChunkHash
    parts: list[tuple[int, int]]
    checks: list[tuple[int, int, bytes]]


class ChunkReader:
    """Reads chunks of a store. May be used by several threads."""

    def __init__(
        self,
        objects: Objects,
        references: References,
        keys: Mapping[ChunkHash, ChunkKey],
        cache: ChunkCache,
        threads: Callable[[], ThreadPoolExecutor],
        prefetch_chunks: int,
        pin: CommitPin | None = None,
    ) -> None:
        self._objects = objects
        self._references = references
        self._given = keys
        self._found: dict[ChunkHash, ChunkKey] = {}
        self._cache = cache
        self._threads = threads
        self._prefetch_chunks = prefetch_chunks
        self._pin = pin

    def read(
        self, refs: Iterable[DataRef], offset_bytes: int = 0, size_bytes: int | None = None
    ) -> Iterator[bytes]:
        """Yield the bytes that some references stand for, or a range of them."""
        if offset_bytes < 0 or (size_bytes is not None and size_bytes < 0):
            raise BadInput("a range begins or ends before the data", hint="use positive numbers")
        wanted = _coalesced(_clipped(refs, offset_bytes, size_bytes))
        return self._read(wanted)

    def expect(self, chunks: Iterable[ChunkHash]) -> None:
        """Find out together where some chunks are that will be read one by one."""
        self._resolve(chunk for chunk in chunks if self._known(chunk) is None)

    def keys(self, chunks: Iterable[ChunkHash]) -> list[ChunkKey]:
        """Return where some chunks are, for others who read them; not those that are missing."""
        wanted = list(chunks)
        self.expect(wanted)
        return [key for chunk in wanted if (key := self._known(chunk)) is not None]

    def missing(self, chunks: Iterable[ChunkHash]) -> set[ChunkHash]:
        """Return those of some chunks that the store does not hold now, by its database."""
        asked = set(chunks)
        return asked.difference(self._resolve(asked))

    def read_chunk(self, chunk: ChunkHash) -> bytes:
        """Return a whole chunk."""
        data = self._cache.get(chunk)
        return self._fetch(chunk) if data is None else data

    def _read(self, wanted: Iterator[_Ranges]) -> Iterator[bytes]:
        """Yield ranges, looking up where many chunks are with one query; one alone is just read."""
        for batch in _batches(wanted, RESOLVE_BATCH):
            if len(batch) == 1 or not self._prefetch_chunks:
                for ranges in batch:
                    yield from _parts(self.read_chunk(ranges.hash), ranges)
            else:
                yield from self._read_ahead(batch)

    def _read_ahead(self, batch: Sequence[_Ranges]) -> Iterator[bytes]:
        """Yield ranges in order, while threads fetch and verify the next ones.

        Whoever stops reading early closes the generator; what was not begun by then is cancelled.
        """
        self.expect(ranges.hash for ranges in batch)
        coming: deque[Future[bytes]] = deque()
        not_begun = iter(batch)
        try:
            for ranges in batch:
                # Topped up before each one is taken, so that as many as allowed are under way
                # while the caller uses the bytes at hand. Results are taken in order; a slow one
                # holds up those behind it, which are fetched meanwhile.
                for next_one in itertools.islice(not_begun, self._prefetch_chunks - len(coming)):
                    coming.append(self._threads().submit(self.read_chunk, next_one.hash))
                yield from _parts(coming.popleft().result(), ranges)
        finally:
            for future in coming:
                future.cancel()

    def _fetch(self, chunk: ChunkHash) -> bytes:
        """Read a chunk from the store; if it is gone, say first whether our own lease is, too."""
        try:
            return self._fetch_stored(chunk)
        except ObjectMissing:
            if self._pin is not None:
                self._pin.confirm()  # if it ended, nothing is wrong with the store
            raise

    def _fetch_stored(self, chunk: ChunkHash) -> bytes:
        """Read and verify a chunk, under a newer generation if the one we knew is gone."""
        key = self._key(chunk)
        try:
            data = decode(self._objects.get(key.object_key()), key)
        except ObjectMissing:
            # What we knew may be old: the chunk was collected, and stored anew since.
            newer = self._resolve([chunk]).get(chunk, key)
            if newer == key:
                raise
            data = decode(self._objects.get(newer.object_key()), newer)
        self._cache.put(chunk, data)
        return data

    def _key(self, chunk: ChunkHash) -> ChunkKey:
        """Return the stored generation of a chunk, from what is known or from the database."""
        key = self._known(chunk) or self._resolve([chunk]).get(chunk)
        if key is None:
            raise ObjectMissing(
                f"chunk {chunk.hex()} is not in the store",
                hint="run `holdfast store fsck` to see what else is missing, and for whom",
            )
        return key

    def _known(self, chunk: ChunkHash) -> ChunkKey | None:
        return self._found.get(chunk) or self._given.get(chunk)

    def _resolve(self, chunks: Iterable[ChunkHash]) -> Mapping[ChunkHash, ChunkKey]:
        """Ask for keys, and remember them for a while."""
        asked = list(dict.fromkeys(chunks))
        found = self._references.resolve(asked) if asked else {}
        if len(self._found) + len(found) > KEYS_MAX:
            # All at once and not the oldest: keys are looked up again in batches, and an order
            # would have to be kept for each read.
            self._found = {}
        self._found.update(found)
        return found


def _clipped(
    refs: Iterable[DataRef], offset_bytes: int, size_bytes: int | None
) -> Iterator[tuple[ChunkHash, int, int, bytes]]:
    """Yield chunk, start and end of what lies in the range, and its hash if it has its own."""
    left_bytes = size_bytes
    for ref in refs:
        if left_bytes is not None and left_bytes <= 0:
            return
        if ref.offset_bytes < 0 or ref.size_bytes < 0:
            raise _wrong_reference(ref.hash, f"{ref.size_bytes} bytes from {ref.offset_bytes} on")
        skipped_bytes = min(offset_bytes, ref.size_bytes)
        offset_bytes -= skipped_bytes
        start, end = ref.offset_bytes + skipped_bytes, ref.offset_bytes + ref.size_bytes
        if left_bytes is not None:
            end = min(end, start + left_bytes)
            left_bytes -= end - start
        if end > start:
            is_whole = end - start == ref.size_bytes
            # A part of a range has no hash to compare with; the chunk's own still covers it.
            yield ref.hash, start, end, ref.content_hash if is_whole else b""


def _coalesced(parts: Iterable[tuple[ChunkHash, int, int, bytes]]) -> Iterator[_Ranges]:
    """Yield each run of parts of one chunk together, with what is adjacent joined."""
    for chunk, run in itertools.groupby(parts, key=lambda part: part[0]):
        ranges = _Ranges(chunk, [], [])
        for _, start, end, content_hash in run:
            if content_hash:
                ranges.checks.append((start, end, content_hash))
            if ranges.parts and ranges.parts[-1][1] == start:
                ranges.parts[-1] = (ranges.parts[-1][0], end)
            else:
                ranges.parts.append((start, end))
        yield ranges


def _parts(data: bytes, ranges: _Ranges) -> Iterator[bytes]:
    """Yield the wanted ranges of a chunk.

    The chunk has its hash already. A range's own hash is compared too: the reference may be wrong.
    """
    for start, end, content_hash in ranges.checks:
        if end <= len(data) and hash_of(memoryview(data)[start:end]) != content_hash:
            raise _wrong_reference(ranges.hash, f"bytes {start} to {end}, which are others")
    for start, end in ranges.parts:
        if end > len(data):
            raise _wrong_reference(
                ranges.hash, f"bytes {start} to {end} of a chunk that has {len(data)}"
            )
        yield data[start:end]  # the whole chunk is not copied


def _wrong_reference(chunk: ChunkHash, what: str) -> Damaged:
    return Damaged(
        f"a reference asks for {what}",
        hint="what holds the reference is damaged; `holdfast store fsck` says what it is",
        path=chunk.hex(),
    )


def _batches(items: Iterator[_Ranges], size: int) -> Iterator[list[_Ranges]]:
    while batch := list(itertools.islice(items, size)):
        yield batch
