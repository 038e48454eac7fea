"""Cuts a file set into ranges of paths of about equal work, by what its indexes say of themselves.

All layers count, not just the first; and only ranges that are too large for a shard are opened.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.errors import BadInput
from holdfast.store.filesets.cursor import IndexCursor, IndexNodes
from holdfast.store.filesets.merge import Source

# A range that is larger than this part of a shard is opened.
_PART = 4


class PathRange(NamedTuple):
    """Paths from `lo` on and before `hi`; None: to the end. The counts are estimates: a file that
    several layers change counts several times."""

    lo: str
    hi: str | None
    files: int = 0
    size_bytes: int = 0


def cut_shards(
    nodes: IndexNodes, sources: Sequence[Source], *, max_files: int, max_bytes: int
) -> list[PathRange]:
    """Return neighbouring ranges that hold everything, each within the bounds, about."""
    if max_files < 1 or max_bytes < 1:
        raise BadInput("a shard must hold something", hint="Give bounds of at least 1.")
    cursors = [IndexCursor(nodes, source.root) for source in sources if source.root is not None]
    heap = [(cursor.path, number) for number, cursor in enumerate(cursors) if cursor.path]
    heapq.heapify(heap)
    shards: list[PathRange] = []
    lo, files, size_bytes = "", 0, 0
    while heap:
        path, number = heap[0]
        cursor = cursors[number]
        index = cursor.index
        count = index.range.num_files if cursor.is_range else int(index.present)
        if cursor.is_range and (count * _PART > max_files or index.size_bytes * _PART > max_bytes):
            cursor.descend()
        else:
            full = files + count > max_files or size_bytes + index.size_bytes > max_bytes
            if full and files and path > lo:
                shards.append(PathRange(lo, path, files, size_bytes))
                lo, files, size_bytes = path, 0, 0
            files += count
            size_bytes += index.size_bytes
            cursor.advance()
        if cursor.path is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (cursor.path, number))
    return [*shards, PathRange(lo, None, files, size_bytes)]
