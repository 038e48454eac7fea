"""A store in memory, for tests of what layers mean: no objects, no threads, no database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from holdfast.store.chunks.settings import Chunking
from holdfast.store.chunks.writer import SmallFiles, cut
from holdfast.store.objects.objects import ChunkHash, DataRef, hash_of
from holdfast.store.store import Store

KB = 1024

# Small enough that a few files make many chunks.
CHUNKING = Chunking(
    min_bytes=1 * KB,
    average_bytes=2 * KB,
    max_bytes=16 * KB,
    small_file_bytes=512,
    pack_min_bytes=1 * KB,
    pack_spread_bytes=2 * KB,
)


class MemoryChunks:
    """Stands for a ChunkStore, its writer and its reader at once."""

    def __init__(self, chunking: Chunking = CHUNKING) -> None:
        self.chunking = chunking
        self.data: dict[ChunkHash, bytes] = {}
        self.children: dict[ChunkHash, tuple[ChunkHash, ...]] = {}
        self.reads: list[ChunkHash] = []

    def writer(self, job: object) -> MemoryChunks:
        return self

    def small_files(self, writer: Any) -> SmallFiles:
        return SmallFiles(writer, self.chunking)

    def reader(self, keys: Mapping[Any, Any] | None = None, pin: object = None) -> MemoryChunks:
        return self

    def __enter__(self) -> MemoryChunks:
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing to close."""

    def put(self, data: Any, children: Sequence[ChunkHash] = ()) -> ChunkHash:
        plain = bytes(data)
        assert 0 < len(plain) <= self.chunking.largest_bytes
        address = hash_of(plain)
        assert all(child in self.data for child in children)
        self.data[address] = plain
        self.children[address] = tuple(children)
        return address

    def put_stream(self, stream: Iterable[Any]) -> list[DataRef]:
        return [DataRef(self.put(view), 0, view.nbytes) for view in cut(stream, self.chunking)]

    def barrier(self) -> None:
        """All that was put is there."""

    close = barrier

    def read(
        self, refs: Iterable[DataRef], offset_bytes: int = 0, size_bytes: int | None = None
    ) -> Iterator[bytes]:
        whole = b"".join(
            self.data[ref.hash][ref.offset_bytes : ref.offset_bytes + ref.size_bytes]
            for ref in refs
        )
        end = None if size_bytes is None else offset_bytes + size_bytes
        yield whole[offset_bytes:end]

    def read_chunk(self, chunk: ChunkHash) -> bytes:
        self.reads.append(chunk)
        return self.data[chunk]


class MemoryStore:
    """Stands for a Store."""

    def __init__(self, chunking: Chunking = CHUNKING) -> None:
        self.chunks = MemoryChunks(chunking)


def memory_store(chunking: Chunking = CHUNKING) -> tuple[Store, MemoryChunks]:
    """Return a store in memory, and its chunks to look into."""
    store = MemoryStore(chunking)
    return cast("Store", store), store.chunks
