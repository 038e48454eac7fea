"""What a task needs in order to read a part of a file set without the database.

The driver walks the index of the part, as the task will, and looks up under which key each chunk on
the way is stored: those of the index, and those of the content if that is wanted. A key is 40
bytes, so a part of 64 MB takes a few kilobytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from holdfast.store.address import HASH_BYTES, ChunkHash, ChunkKey
from holdfast.store.filesets import FileInfo, FileSet, Layer
from holdfast.store.filesets import fileset_pb2 as pb
from holdfast.store.filesets.cursor import Nodes
from holdfast.store.filesets.entry import Node

if TYPE_CHECKING:
    from holdfast.store.gc.references import References

_GENERATION_BYTES = 8
_KEY_BYTES = HASH_BYTES + _GENERATION_BYTES

Wanted = Callable[[FileInfo], bool]


@dataclass
class Part(InputPartition):
    """A range of the paths of a file set, and the keys of all chunks that reading it needs."""

    layers: tuple[Layer, ...]
    lo: str
    hi: str | None
    keys: bytes

    def found_keys(self) -> dict[ChunkHash, ChunkKey]:
        """Return the keys."""
        return unpack_keys(self.keys)


class NotedNodes(Nodes):
    """Index chunks that are read through here are noted."""

    def __init__(self, read_chunk: Callable[[ChunkHash], bytes]) -> None:
        super().__init__(read_chunk)
        self.noted: dict[ChunkHash, None] = {}

    def get(self, index: pb.Index) -> Node:
        """See `Nodes`."""
        self.noted[ChunkHash(index.data_op.data_ref[0].chunk.hash)] = None
        return super().get(index)


class Shipper:
    """Makes parts of a file set that the driver has open."""

    def __init__(self, files: FileSet, references: References) -> None:
        self._files = files
        self._references = references
        self._nodes = NotedNodes(files.reader.read_chunk)
        files.nodes = self._nodes

    def parts(
        self, *, max_files: int, max_bytes: int, is_wanted: Wanted, content: bool
    ) -> Iterator[Part]:
        """Yield the parts that have a wanted file in them."""
        for shard in self._files.shards(max_files=max_files, max_bytes=max_bytes):
            self._nodes.noted.clear()
            content_chunks: dict[ChunkHash, None] = {}
            is_empty = True
            for file in self._files.files(shard.lo, shard.hi):
                if is_wanted(file):
                    is_empty = False
                    if content:
                        content_chunks |= dict.fromkeys(self._chunks_of(file.refs))
            if not is_empty:
                tombstones = [ref.hash for one in self._files.layers for ref in one.tombstones]
                needed = {**self._nodes.noted, **dict.fromkeys(tombstones), **content_chunks}
                keys = self._references.resolve(list(needed))
                yield Part(self._files.layers, shard.lo, shard.hi, pack_keys(keys.values()))

    def _chunks_of(self, refs: Iterable[pb.DataRef]) -> Iterator[ChunkHash]:
        """Yield the chunks that some references name, and those that lists of them name."""
        for ref in refs:
            address = ChunkHash(ref.chunk.hash)
            yield address
            if ref.indirect:
                listed = pb.DataRefs.FromString(self._files.reader.read_chunk(address))
                yield from self._chunks_of(listed.data_ref)


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
