"""Builds one layer from changes that come in order of their paths.

Small content shares chunks with its neighbours (`SmallFiles`), so its reference is known only once
the shared chunk is cut. Until then the changes behind it wait here, `WAITING_MAX` of them at most.
A file of very many chunks does not put all of them into the index: long lists of references become
chunks of their own, which one indirect reference stands for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from holdfast.store.address import ChunkHash, DataRef
from holdfast.store.chunks import ChunkWriter, PackedFile
from holdfast.store.chunks.chunk_store import ChunkStore
from holdfast.store.filesets import fileset_pb2 as pb
from holdfast.store.filesets.algebra import Change, TagChange, Tombstones
from holdfast.store.filesets.entry import (
    IndexEntry,
    file_entry,
    index_of,
    is_plain,
    message_of,
    tombstone_entries,
)
from holdfast.store.filesets.index_writer import CutRule, IndexWriter
from holdfast.store.filesets.layer import Layer
from holdfast.store.filesets.paths import Collisions

# Changes that wait for a chunk of small content to be cut; one more, and it is cut.
WAITING_MAX = 16_384
# References that an index entry holds itself, and those that one chunk of references holds.
INLINE_REFS_MAX = 256
LISTED_REFS_MAX = 4096
# What a reference takes in a chunk of references, at most.
_REF_BYTES = 128

# Content that is stored, or waits for its chunk to be cut.
Content = pb.DataRef | PackedFile


class LayerBuilder:
    """Takes changes in order of their paths; `close` returns the layer."""

    def __init__(
        self, chunks: ChunkStore, writer: ChunkWriter, *, check_collisions: bool = True
    ) -> None:
        self._writer = writer
        self._max_bytes = chunks.chunking.max_bytes
        self._small_bytes = chunks.chunking.small_file_bytes
        self._small = chunks.small_files(writer)
        self._index = IndexWriter(writer.put, CutRule(self._max_bytes))
        self._waiting: deque[tuple[str, Change[Content] | pb.Index]] = deque()
        self._collisions = Collisions() if check_collisions else None

    def store_small(self, path: str, data: bytes) -> PackedFile:
        """Pack content with its neighbours; it must be added as part of `path` next."""
        return self._small.add(path.encode(), data)

    def cut_pack(self) -> None:
        """Let small content that follows share no chunk with what came before."""
        self._small.flush()

    def add(self, path: str, change: Change[Content]) -> None:
        """Take the next path."""
        if self._collisions and change.present:
            self._collisions.check(path)
        self._wait(path, change)

    def add_again(self, index: pb.Index) -> None:
        """Take the next path as another layer has it: a plain entry, whose content is stored."""
        if self._collisions:
            self._collisions.check(index.path)
        self._wait(index.path, index)

    def takes_over(self, index: pb.Index) -> bool:
        """Take a range as it is, if that makes the same index as its entries would."""
        if self._waiting or not self._index.takes_over(index):
            return False
        self._index.take_over(index)
        return True

    def close(self, tombstones: Tombstones = Tombstones()) -> Layer:  # noqa: B008 - immutable
        """Store what waits; the layer is durable after the writer's next barrier."""
        self._small.flush()
        self._drain()
        root = self._index.close()
        refs = [self._put_whole(data) for data in self._tombstone_chunks(tombstones)]
        return Layer(root, tuple(refs), len(tombstones))

    def _wait(self, path: str, change: Change[Content] | pb.Index) -> None:
        self._waiting.append((path, change))
        if len(self._waiting) > WAITING_MAX:
            self._small.flush()
        self._drain()

    def _drain(self) -> None:
        waiting = self._waiting
        while waiting:
            path, change = waiting[0]
            if isinstance(change, pb.Index):
                self._index.add(file_entry(change, plain=True))
            elif _is_stored(change):
                self._index.add(self._entry(path, change))
            else:
                return
            waiting.popleft()

    def _entry(self, path: str, change: Change[Content]) -> IndexEntry:
        parts = {
            tag: TagChange(part.set, self._stored(part.refs)) for tag, part in change.parts.items()
        }
        stored = Change(change.reset, parts, change.metadata)
        return file_entry(index_of(path, stored), plain=is_plain(stored))

    def _stored(self, content: Sequence[Content] | None) -> tuple[pb.DataRef, ...] | None:
        if content is None:
            return None
        refs: list[pb.DataRef] = []
        for item in content:
            if isinstance(item, pb.DataRef):
                refs.append(item)
            else:
                refs.extend(map(message_of, item.refs))
        while len(refs) > INLINE_REFS_MAX:
            refs = self._listed(refs)
        return tuple(refs)

    def _listed(self, refs: list[pb.DataRef]) -> list[pb.DataRef]:
        """Store a long list of references; return the few that stand for them."""
        step = max(2, min(LISTED_REFS_MAX, self._max_bytes // _REF_BYTES))
        found = []
        for start in range(0, len(refs), step):
            some = refs[start : start + step]
            data = pb.DataRefs(data_ref=some).SerializeToString(deterministic=True)
            children = dict.fromkeys(ChunkHash(ref.chunk.hash) for ref in some)
            chunk = pb.Chunk(hash=self._writer.put(data, list(children)))
            size_bytes = sum([ref.size_bytes for ref in some])
            found.append(pb.DataRef(chunk=chunk, size_bytes=size_bytes, indirect=True))
        return found

    def _tombstone_chunks(self, tombstones: Tombstones) -> list[bytes]:
        data = tombstone_entries(tombstones.folders)
        return [
            data[start : start + self._max_bytes] for start in range(0, len(data), self._max_bytes)
        ]

    def _put_whole(self, data: bytes) -> DataRef:
        return DataRef(self._writer.put(data), 0, len(data))


def _is_stored(change: Change[Content]) -> bool:
    return all(
        isinstance(item, pb.DataRef) or item.is_cut
        for part in change.parts.values()
        for item in part.refs or ()
    )
