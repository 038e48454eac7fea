"""What was read of segments last, in bounded memory.

Bundles are read one by one, and one block of a file holds many: without this, every bundle would
cost the reading of its whole block.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

import pyarrow as pa

# Of one quiver, whatever the number of its readers. The block read last is kept in any case.
READ_CACHE_BYTES = 8 * 1024 * 1024

CacheKey = tuple[object, int]


class BatchCache:
    """Record batches by file and number, the ones used last. Safe to use from many threads."""

    def __init__(self, max_bytes: int = READ_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._size_bytes = 0
        self._found: OrderedDict[CacheKey, tuple[pa.RecordBatch, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: CacheKey) -> pa.RecordBatch | None:
        """Return a batch that was put here, if it still is."""
        with self._lock:
            found = self._found.get(key)
            if found is None:
                return None
            self._found.move_to_end(key)
            return found[0]

    def drop(self, key: CacheKey) -> None:
        """Forget a batch."""
        with self._lock:
            _, size_bytes = self._found.pop(key, (None, 0))
            self._size_bytes -= size_bytes

    def put(self, key: CacheKey, batch: pa.RecordBatch, size_bytes: int) -> None:
        """Keep a batch of so many bytes, and forget those that were not used for longest."""
        with self._lock:
            if key in self._found:
                return
            self._found[key] = batch, size_bytes
            self._size_bytes += size_bytes
            while self._size_bytes > self._max_bytes and len(self._found) > 1:
                _, (_, freed_bytes) = self._found.popitem(last=False)
                self._size_bytes -= freed_bytes
