"""A small store for tests of chunks: tiny chunks, a real database, objects in a folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from blake3 import blake3

from holdfast.store.chunks.settings import Chunking, StoreSettings
from holdfast.store.gc.settings import GcSettings
from holdfast.store.objects.objects import Objects
from holdfast.store.store import ChunkStore, Store

TINY = Chunking(
    min_bytes=256,
    average_bytes=1024,
    max_bytes=4096,
    small_file_bytes=512,
    pack_min_bytes=512,
    pack_spread_bytes=512,
)
# Nobody cuts the power in these tests.
SETTINGS = StoreSettings(chunking=TINY, gc=GcSettings(synchronous="off", reserve_bytes=0))


def noise(size_bytes: int, seed: bytes = b"") -> bytes:
    """Return bytes that look random, the same on every machine and in every version."""
    return blake3(seed).digest(size_bytes)


@contextlib.contextmanager
def new_store(folder: Path, **settings: Any) -> Iterator[Store]:
    """Create a store in a folder that does not exist."""
    store = Store.create(str(folder), settings=replace(SETTINGS, **settings))
    try:
        yield store
    finally:
        store.close()


def over(store: Store, objects: Objects) -> ChunkStore:
    """Return the chunks of a store as they are seen through other objects."""
    return ChunkStore(objects, store.references, store.chunks.chunking, store.settings)
