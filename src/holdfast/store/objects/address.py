"""How a chunk is named: by what it holds, and, as an object, by which time it was stored.

The hash says what the bytes are; it is all that references ever hold, so that equal data has equal
references. The generation tells apart the objects that were stored for one hash over time. A delete
that was sent off long ago, and lands only now, names a generation that nobody uses any more.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, NewType, Self

from blake3 import blake3

if TYPE_CHECKING:
    from typing_extensions import Buffer

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
