"""Chunks that were read lately, within a bound of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict

from holdfast.store.address import ChunkHash


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
