"""What a store asks of the storage for its objects, and how chunks are named there.

An object is written once, under a name that did not exist, and never changed. That is all the
atomicity the store needs: whoever may write a name twice must be ready to find it there. A request
to a remote store can time out and still land, so putting the same bytes under the same name again
is no conflict; it is how such a request is finished.

A chunk is named by its hash and a generation. The hash says what the bytes are; it is all that
references ever hold, so that equal data has equal references. The generation tells apart the
objects that were stored for one hash over time: a delete that was sent long ago, and lands only
now, names a generation that nothing uses any more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, NewType, Protocol, Self

from blake3 import blake3

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Addresses of stores that are no folders.
REMOTE_SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")


class StoredObject(NamedTuple):
    """One object as a listing shows it."""

    key: str
    size_bytes: int
    modified_s: float


class ObjectExists(Exception):
    """Another object has this name already."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


class Objects(Protocol):
    """Named, immutable bytes. Keys are relative paths with `/` between their parts."""

    def put(self, key: str, data: Sequence[Buffer]) -> None:
        """Store a new object, durable when this returns; `ObjectExists` if others' bytes are there.

        An object of the same name with the same bytes counts as put.
        """

    def put_many(self, items: Sequence[tuple[str, Sequence[Buffer]]]) -> None:
        """Store new objects, all durable when this returns; a name that exists is skipped.

        For names that stand for their content, so that whoever was first wrote the same.
        """

    def get(self, key: str, offset_bytes: int = 0, size_bytes: int | None = None) -> bytes:
        """Return an object, or a part of it (cut where it ends), or raise `ObjectMissing`."""

    def delete_many(self, keys: Sequence[str]) -> None:
        """Remove objects; one that is missing is removed already."""

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield all objects whose name begins with `prefix`, in no order."""

    def now_s(self) -> float:
        """Return the time by the clock that dates the objects."""

    def close(self) -> None:
        """End what works in the background; nothing is asked for any more."""


def joined(data: Sequence[Buffer]) -> bytes:
    """Return some buffers as one."""
    return b"".join(data)


HASH_BYTES = 32
CHUNK_PREFIX = "chunks/"

# 32 bytes: BLAKE3 of the chunk's plain bytes.
ChunkHash = NewType("ChunkHash", bytes)

_OBJECT_KEY = re.compile(r"chunks/([0-9a-f]{2})/(\1[0-9a-f]{62})\.([0-9a-f]{16})")


def hash_of(data: Buffer) -> ChunkHash:
    """Return the address of some bytes."""
    return ChunkHash(blake3(data).digest())


class ChunkKey(NamedTuple):
    """One stored object of a chunk."""

    hash: ChunkHash
    generation: int

    def object_key(self) -> str:
        """Return the object's name: `chunks/<2 hex>/<64 hex>.<generation, 16 hex>`."""
        name = self.hash.hex()
        return f"{CHUNK_PREFIX}{name[:2]}/{name}.{self.generation:016x}"

    @classmethod
    def parse(cls, object_key: str) -> Self | None:
        """Return the chunk that an object's name stands for, or None if it is no chunk's name."""
        found = _OBJECT_KEY.fullmatch(object_key)
        if found is None:
            return None
        return cls(ChunkHash(bytes.fromhex(found[2])), int(found[3], 16))


class DataRef(NamedTuple):
    """A range of a chunk's plain bytes; `content_hash` is the range's own, if it is not the whole.

    It never holds a generation: that is looked up when the bytes are read.
    """

    hash: ChunkHash
    offset_bytes: int
    size_bytes: int
    content_hash: bytes = b""
