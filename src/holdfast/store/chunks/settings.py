"""Every bound and choice of a store, with its unit, its default, and what it costs.

`Chunking` is part of the format: it is written into `store.json` when a store is created and never
changes, because other cuts would store all data a second time. `StoreSettings` is how one process
works with a store, and may differ each time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.store.base.bounds import BoundedSettings, count, duration_s, size_bytes
from holdfast.store.gc.settings import GcSettings

KB = 1024
MB = 1024 * KB

# What the cutting library can do.
CHUNK_MIN_BYTES_MAX = 1 * MB
CHUNK_AVERAGE_BYTES_MAX = 4 * MB
CHUNK_BYTES_MAX = 16 * MB

# What a chunk of an index may hold in any store, however small its chunks are: two ranges of the
# longest paths, without which a level of an index would be no smaller than the one below it.
INDEX_ROOM_BYTES = 128 * KB


@dataclass(frozen=True)
class Chunking(BoundedSettings):
    """Where streams and packs of small files are cut; part of the format."""

    min_bytes: int = size_bytes(256 * KB, least=256, most=CHUNK_MIN_BYTES_MAX)
    """No chunk of a stream is smaller, except the last one."""
    average_bytes: int = size_bytes(1 * MB, least=1024, most=CHUNK_AVERAGE_BYTES_MAX)
    """The size that chunks of a stream tend to."""
    max_bytes: int = size_bytes(4 * MB, least=1024, most=CHUNK_BYTES_MAX)
    """No chunk of content is larger."""
    small_file_bytes: int = size_bytes(256 * KB)
    """Files up to this size are packed with their neighbours."""
    pack_min_bytes: int = size_bytes(64 * KB)
    """A pack is not cut before it holds so much, whatever the paths say."""
    pack_spread_bytes: int = size_bytes(64 * KB, least=1)
    """Then it is cut behind one file in so many bytes of files, chosen by the hash of its path."""
    pack_files_max: int = count(16384, least=1)
    """A pack holds no more files, however small they are."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.min_bytes < self.average_bytes < self.max_bytes:
            raise ValueError("min_bytes, average_bytes and max_bytes must grow in this order")
        if max(self.small_file_bytes, self.pack_min_bytes) > self.max_bytes:
            raise ValueError("small_file_bytes and pack_min_bytes must not be over max_bytes")

    @property
    def largest_bytes(self) -> int:
        """No chunk of any kind is larger."""
        return max(self.max_bytes, INDEX_ROOM_BYTES)


@dataclass(frozen=True)
class StoreSettings(BoundedSettings):
    """How one process works with a store."""

    chunking: Chunking = field(default_factory=Chunking)
    """Used when a store is created; an existing store keeps its own."""
    zstd_level: int = count(2, least=1, most=19)
    """How hard chunks are compressed. Level 3 makes a Python environment 3 % smaller, for 30 % more
    of the time that compressing takes."""
    writer_threads: int = count(2, least=1, most=64)
    """Threads of one writer that compress and store."""
    max_in_flight_bytes: int = size_bytes(64 * MB)
    """Plain bytes that one writer holds and has not stored yet; more waits."""
    batch_chunks: int = count(128, least=1, most=1000)
    """Chunks that are reserved, stored, synced and marked together, at most."""
    batch_bytes: int = size_bytes(16 * MB)
    """Plain bytes of such a batch, about."""
    prefetch_bytes: int = size_bytes(16 * MB)
    """Plain bytes that a reader fetches ahead of what was asked for; 0: none."""
    reader_threads: int = count(2, least=1, most=64)
    """Threads of one reader that fetch, unpack and verify."""
    cache_bytes: int = size_bytes(64 * MB)
    """Plain bytes of chunks that a reader keeps for the next read."""
    request_timeout_s: float = duration_s(30.0)
    """How long one request to a remote store may take, connecting included."""
    retries: int = count(4, most=20)
    """How often a request to a remote store is sent again."""
    retry_timeout_s: float = duration_s(120.0)
    """How long a request to a remote store is retried, all in all."""
    connections: int = count(8, least=1, most=256)
    """Objects that are sent to a remote store at once."""
    gc: GcSettings = field(default_factory=GcSettings)
    """Of the database of references, and of collectors."""
