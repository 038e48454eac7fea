"""What a task needs in order to read a part of a file set without the database.

The driver looks up under which key each chunk is stored that the task will meet: those of the
index, and those of the content if that is wanted. A key is 40 bytes: a few kilobytes for 64 MB.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from holdfast.store.filesets import FileInfo, FileSet, Layer
from holdfast.store.filesets import fileset_pb2 as pb
from holdfast.store.objects.objects import HASH_BYTES, ChunkHash, ChunkKey

if TYPE_CHECKING:
    from holdfast.store.gc.references import References

_GENERATION_BYTES = 8
_KEY_BYTES = HASH_BYTES + _GENERATION_BYTES

Wanted = Callable[[FileInfo], bool]


@dataclass
class ShippedPart(InputPartition):
    """A range of the paths of a file set, and the keys of all chunks that reading it needs."""

    layers: tuple[Layer, ...]
    lo: str
    hi: str | None
    keys: bytes

    def found_keys(self) -> dict[ChunkHash, ChunkKey]:
        """Return the keys."""
        return unpack_keys(self.keys)


class Shipper:
    """Makes parts of a file set that the driver has open."""

    def __init__(self, files: FileSet, references: References) -> None:
        self._files = files
        self._references = references

    def parts(
        self, *, max_files: int, max_bytes: int, content_of: Wanted | None = None
    ) -> Iterator[ShippedPart]:
        """Yield neighbouring parts that hold everything; `content_of` says whose content is read.

        Without it the index alone is read, and the driver does not open its leaves.
        """
        for shard in self._files.shards(max_files=max_files, max_bytes=max_bytes):
            needed = {ref.hash: None for one in self._files.layers for ref in one.tombstones}
            for source in self._files.sources:
                if source.root is not None:
                    needed |= dict.fromkeys(self._index_of(source.root, shard.lo, shard.hi))
            if content_of is not None:
                is_empty = True
                for file in self._files.files(shard.lo, shard.hi):
                    if content_of(file):
                        is_empty = False
                        needed |= dict.fromkeys(self._chunks_of(file.refs))
                if is_empty:
                    continue
            keys = self._references.resolve(list(needed))
            yield ShippedPart(self._files.layers, shard.lo, shard.hi, pack_keys(keys.values()))

    def _index_of(self, index: pb.Index, lo: str, hi: str | None) -> Iterator[ChunkHash]:
        """Yield the index chunks that may hold something of a range."""
        if index.range.last_path < lo or (hi is not None and index.path >= hi):
            return
        yield ChunkHash(index.data_op.data_ref[0].chunk.hash)
        if index.range.level > 1:
            for child in self._files.nodes.get(index).indexes:
                yield from self._index_of(child, lo, hi)

    def _chunks_of(self, refs: Iterable[pb.DataRef]) -> Iterator[ChunkHash]:
        """Yield the chunks that some references name, and those that lists of them name."""
        for ref in refs:
            address = ChunkHash(ref.chunk.hash)
            yield address
            if ref.indirect:
                listed = pb.DataRefs.FromString(self._files.reader.read_chunk(address))
                yield from self._chunks_of(listed.data_ref)


def absolute(url: str) -> str:
    """Return where a store is, for processes that work in another folder."""
    return url if "://" in url else os.path.abspath(url)


def pack_keys(keys: Iterable[ChunkKey]) -> bytes:
    """Return keys as bytes, to be sent to a task."""
    return b"".join([key.hash + key.generation.to_bytes(_GENERATION_BYTES, "big") for key in keys])


def unpack_keys(packed: bytes) -> dict[ChunkHash, ChunkKey]:
    """Return keys that were sent."""
    found: dict[ChunkHash, ChunkKey] = {}
    for at in range(0, len(packed), _KEY_BYTES):
        hash_ = ChunkHash(packed[at : at + HASH_BYTES])
        generation = int.from_bytes(packed[at + HASH_BYTES : at + _KEY_BYTES], "big")
        found[hash_] = ChunkKey(hash_, generation)
    return found
