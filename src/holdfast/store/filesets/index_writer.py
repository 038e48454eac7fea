"""Builds the index of a layer: sorted entries in, one root out.

Entries are packed into chunks; each chunk is an 'r' entry of the level above, until one is left.
Where a chunk ends depends on the path alone: behind an entry whose path hashes to a multiple of
`CUT_DIVISOR`, once the chunk has `INDEX_MIN_BYTES`. So an index that differs in one file differs in
one chunk of each level, and whoever compares two of them, or writes one anew, meets equal chunks
elsewhere. (At higher levels it is the range's first path that is hashed, with the level as seed:
the last one was chosen by the cut below, and would cut everywhere.)

A chunk of ranges has at least two of them, whatever their size, unless it is the last of its level:
so each level is half of the one below at most, and an index ends however long its paths are.

A chunk of another layer's index may be taken over by reference where writing it anew would make the
same chunk: `takes_over`. That is so if no entry waits in front of it, and if it ends where the rule
ends it, not because its layer ended there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from xxhash import xxh3_64_intdigest

from holdfast.errors import BadInput
from holdfast.store.address import ChunkHash
from holdfast.store.filesets import bloom
from holdfast.store.filesets import fileset_pb2 as pb
from holdfast.store.filesets.entry import IndexEntry, range_entry
from holdfast.store.settings import INDEX_ROOM_BYTES

INDEX_MIN_BYTES = 64 * 1024
INDEX_MAX_BYTES = 1024 * 1024
CUT_DIVISOR = 128
RANGES_MIN = 2


class PutChunk(Protocol):
    """Stores one chunk that refers to others."""

    def __call__(self, data: bytes, children: Sequence[ChunkHash]) -> ChunkHash: ...


class CutRule:
    """Where index chunks end. Stores with smaller chunks have smaller index chunks, too."""

    def __init__(self, chunk_max_bytes: int) -> None:
        self.max_bytes = min(INDEX_MAX_BYTES, chunk_max_bytes)
        self.entry_max_bytes = max(self.max_bytes, INDEX_ROOM_BYTES)
        self.min_bytes = min(INDEX_MIN_BYTES, self.max_bytes // 8)
        self._divisor = max(2, min(CUT_DIVISOR, self.max_bytes // 4096))

    def cuts(self, level: int, path: str) -> bool:
        """Whether a chunk that is large enough ends behind an entry with this path."""
        digest = bloom.path_hash(path) if level == 1 else xxh3_64_intdigest(path.encode(), level)
        return digest % self._divisor == 0


class _PendingLevel:
    """The entries of one level that are not stored yet."""

    def __init__(self) -> None:
        self.entries: list[IndexEntry] = []
        self.hashes: list[int] = []
        self.size_bytes = 0
        self.last: pb.Index | None = None


class IndexWriter:
    """Takes entries in order of their paths; `close` returns the root, or None without any."""

    def __init__(self, put: PutChunk, rule: CutRule) -> None:
        self._put = put
        self._rule = rule
        self._levels: list[_PendingLevel] = [_PendingLevel()]

    def add(self, entry: IndexEntry) -> None:
        """Take the next 'i' entry."""
        if len(entry.data) > self._rule.entry_max_bytes:
            raise BadInput(
                f"{entry.path!r} has too many tags: its index entry would take "
                f"{len(entry.data)} bytes, and {self._rule.entry_max_bytes} are the most",
                hint="Merge tags that need not be told apart.",
            )
        self._add(1, entry)

    def takes_over(self, index: pb.Index) -> bool:
        """Whether a range of level 1 can be taken as it is."""
        return (
            index.range.level == 1
            and not self._levels[0].entries
            and index.data_op.data_ref[0].size_bytes >= self._rule.min_bytes
            and self._rule.cuts(1, index.range.last_path)
        )

    def take_over(self, index: pb.Index) -> None:
        """Take a range that is stored already, after `takes_over` agreed."""
        self._add_range(2, index)

    def close(self) -> pb.Index | None:
        """Store what is left, and return the 'r' entry of all."""
        level = 1
        while True:
            waiting = self._levels[level - 1]
            is_top = level == len(self._levels)
            if is_top and level > 1 and len(waiting.entries) == 1:
                return waiting.last
            if is_top and not waiting.entries:
                return None
            if waiting.entries:
                self._cut(level)
            level += 1

    def _add_range(self, level: int, index: pb.Index) -> None:
        if len(self._levels) < level:
            self._levels.append(_PendingLevel())
        self._add(level, range_entry(index), index)

    def _add(self, level: int, entry: IndexEntry, index: pb.Index | None = None) -> None:
        least = 1 if level == 1 else RANGES_MIN
        waiting = self._levels[level - 1]
        is_full = waiting.size_bytes + len(entry.data) > self._rule.max_bytes
        if is_full and len(waiting.entries) >= least:
            self._cut(level)
            waiting = self._levels[level - 1]
        waiting.last = index
        waiting.entries.append(entry)
        waiting.size_bytes += len(entry.data)
        if level == 1:
            waiting.hashes.append(bloom.path_hash(entry.path))
        may_end = waiting.size_bytes >= self._rule.min_bytes and len(waiting.entries) >= least
        if may_end and self._rule.cuts(level, entry.path):
            self._cut(level)

    def _cut(self, level: int) -> None:
        """Store the waiting entries of a level as one chunk."""
        waiting = self._levels[level - 1]
        self._levels[level - 1] = _PendingLevel()
        data = b"".join([entry.data for entry in waiting.entries])
        children = dict.fromkeys(child for entry in waiting.entries for child in entry.children)
        address = self._put(data, list(children))
        self._add_range(level + 1, _range_of(waiting, level, pb.Chunk(hash=address), len(data)))


def _range_of(waiting: _PendingLevel, level: int, chunk: pb.Chunk, size_bytes: int) -> pb.Index:
    entries = waiting.entries
    return pb.Index(
        path=entries[0].path,
        range=pb.Range(
            last_path=entries[-1].last_path,
            num_files=sum([entry.files for entry in entries]),
            num_entries=sum([entry.entries for entry in entries]),
            level=level,
            bloom=bloom.build(waiting.hashes) if level == 1 else b"",
            plain=all(entry.plain for entry in entries),
        ),
        data_op=pb.DataOp(data_ref=[pb.DataRef(chunk=chunk, size_bytes=size_bytes)]),
        size_bytes=sum([entry.size_bytes for entry in entries]),
    )
