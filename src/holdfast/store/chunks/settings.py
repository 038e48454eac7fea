"""Every bound and choice of a store, with its unit, its default, and what it costs.

`Chunking` is part of the format: it is written into `store.json` when a store is created and never
changes, because other cuts would store all data a second time. `StoreSettings` is how one process
works with a store, and may differ each time.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from holdfast.settings import DurationS, Settings, SizeBytes
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


class Chunking(Settings):
    """Where streams and packs of small files are cut; part of the format."""

    min_bytes: Annotated[SizeBytes, Field(ge=256, le=CHUNK_MIN_BYTES_MAX)] = 256 * KB
    """No chunk of a stream is smaller, except the last one."""
    average_bytes: Annotated[SizeBytes, Field(ge=1024, le=CHUNK_AVERAGE_BYTES_MAX)] = 1 * MB
    """The size that chunks of a stream tend to."""
    max_bytes: Annotated[SizeBytes, Field(ge=1024, le=CHUNK_BYTES_MAX)] = 4 * MB
    """No chunk of content is larger."""
    small_file_bytes: SizeBytes = 256 * KB
    """Files up to this size are packed with their neighbours."""
    pack_min_bytes: SizeBytes = 64 * KB
    """A pack is not cut before it holds so much, whatever the paths say."""
    pack_spread_bytes: Annotated[SizeBytes, Field(ge=1)] = 64 * KB
    """Then it is cut behind one file in so many bytes of files, chosen by the hash of its path."""
    pack_files_max: Annotated[int, Field(ge=1)] = 16384
    """A pack holds no more files, however small they are."""

    @model_validator(mode="after")
    def _sizes_are_in_order(self) -> Self:
        if not self.min_bytes < self.average_bytes < self.max_bytes:
            raise ValueError("min_bytes, average_bytes and max_bytes must grow in this order")
        if max(self.small_file_bytes, self.pack_min_bytes) > self.max_bytes:
            raise ValueError("small_file_bytes and pack_min_bytes must not be over max_bytes")
        return self

    @property
    def largest_bytes(self) -> int:
        """No chunk of any kind is larger."""
        return max(self.max_bytes, INDEX_ROOM_BYTES)


class StoreSettings(Settings):
    """How one process works with a store."""

    chunking: Chunking = Chunking()
    """Used when a store is created; an existing store keeps its own."""
    zstd_level: Annotated[int, Field(ge=1, le=19)] = 2
    """How hard chunks are compressed. Level 3 makes a Python environment 3 % smaller, for 30 % more
    of the time that compressing takes."""
    writer_threads: Annotated[int, Field(ge=1, le=64)] = 2
    """Threads of one writer that compress and store."""
    max_in_flight_bytes: SizeBytes = 64 * MB
    """Plain bytes that one writer holds and has not stored yet; more waits."""
    batch_chunks: Annotated[int, Field(ge=1, le=1000)] = 128
    """Chunks that are reserved, stored, synced and marked together, at most."""
    batch_bytes: SizeBytes = 16 * MB
    """Plain bytes of such a batch, about."""
    prefetch_bytes: SizeBytes = 16 * MB
    """Plain bytes that a reader fetches ahead of what was asked for."""
    reader_threads: Annotated[int, Field(ge=1, le=64)] = 2
    """Threads of one reader that fetch, unpack and verify."""
    cache_bytes: SizeBytes = 64 * MB
    """Plain bytes of chunks that a reader keeps for the next read."""
    request_timeout_s: DurationS = 30.0
    """How long one request to a remote store may take, connecting included."""
    retries: Annotated[int, Field(ge=0, le=20)] = 4
    """How often a request to a remote store is sent again."""
    retry_timeout_s: DurationS = 120.0
    """How long a request to a remote store is retried, all in all."""
    connections: Annotated[int, Field(ge=1, le=256)] = 8
    """Objects that are sent to a remote store at once."""
    gc: GcSettings = GcSettings()
    """Of the database of references, and of collectors."""
