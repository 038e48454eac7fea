"""The door to the chunks of a store: writers for jobs, and readers that share a cache."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from holdfast.store.chunks.reader import ChunkCache, ChunkReader
from holdfast.store.chunks.settings import Chunking, StoreSettings
from holdfast.store.chunks.small_files import SmallFiles
from holdfast.store.chunks.writer import ChunkWriter
from holdfast.store.objects import Objects
from holdfast.store.objects.address import ChunkHash, ChunkKey

if TYPE_CHECKING:
    from holdfast.store.gc.leases import CommitPin, Job
    from holdfast.store.gc.references import References


class ChunkStore:
    """Chunks over objects and their references."""

    def __init__(
        self, objects: Objects, references: References, chunking: Chunking, settings: StoreSettings
    ) -> None:
        self.chunking = chunking
        self._objects = objects
        self._references = references
        self._settings = settings
        self._cache = ChunkCache(settings.cache_bytes)
        self._lock = threading.Lock()
        self._read_threads: ThreadPoolExecutor | None = None

    def writer(self, job: Job) -> ChunkWriter:
        """Return a writer of chunks under a job's lease."""
        return ChunkWriter(self._objects, self._references, job, self.chunking, self._settings)

    def small_files(self, writer: ChunkWriter) -> SmallFiles:
        """Return what packs small files for a writer."""
        return SmallFiles(writer, self.chunking)

    def reader(
        self, keys: Mapping[ChunkHash, ChunkKey] | None = None, pin: CommitPin | None = None
    ) -> ChunkReader:
        """Return a reader; it looks up the keys it is not given. A pin keeps what it reads."""
        prefetch_chunks = max(2, self._settings.prefetch_bytes // self.chunking.max_bytes)
        return ChunkReader(
            self._objects,
            self._references,
            keys or {},
            self._cache,
            self._threads,
            prefetch_chunks,
            pin,
        )

    def close(self) -> None:
        """End the threads that read ahead."""
        with self._lock:
            threads, self._read_threads = self._read_threads, None
        if threads is not None:
            threads.shutdown(cancel_futures=True)

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._read_threads is None:
                self._read_threads = ThreadPoolExecutor(
                    self._settings.reader_threads, thread_name_prefix="read-ahead"
                )
            return self._read_threads
