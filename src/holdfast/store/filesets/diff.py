"""What differs between two file sets, without looking at what is the same.

Both sides' layers are walked together. Where each side has the same index chunks, in the same
order, and nothing newer takes anything away from them, they are passed over unopened. Indexes are
cut by content, so two commits that differ in a few files share all chunks but a few, and the work
grows with the difference and not with the file sets.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from holdfast.store.filesets import fileset_pb2 as pb
from holdfast.store.filesets.algebra import Tombstones
from holdfast.store.filesets.cursor import IndexCursor, IndexNodes
from holdfast.store.filesets.info import FileInfo
from holdfast.store.filesets.merge import Source, merged_file, newer_tombstones

DifferenceKind = Literal["added", "removed", "content", "metadata"]


class Difference(NamedTuple):
    """One file that is not the same on both sides."""

    path: str
    kind: DifferenceKind
    old: FileInfo | None
    new: FileInfo | None


class _DiffCursor(NamedTuple):
    """A cursor of one side, and what newer layers of that side take away from it."""

    side: int
    cursor: IndexCursor
    gone: Tombstones


class Diff:
    """The walk over both sides, within lo ≤ path < hi."""

    def __init__(
        self,
        nodes: IndexNodes,
        sides: tuple[Sequence[Source], Sequence[Source]],
        lo: str = "",
        hi: str | None = None,
    ) -> None:
        self._cursors: list[_DiffCursor] = []
        for side, sources in enumerate(sides):
            for source, gone in zip(sources, newer_tombstones(sources), strict=True):
                if source.root is not None:
                    self._cursors.append(
                        _DiffCursor(side, IndexCursor(nodes, source.root, lo, hi), gone)
                    )
        self._heap = [
            (side.cursor.path, number)
            for number, side in enumerate(self._cursors)
            if side.cursor.path is not None
        ]
        heapq.heapify(self._heap)

    def differences(self) -> Iterator[Difference]:
        """Yield what differs, in order of the paths."""
        while self._heap:
            path = self._heap[0][0]
            numbers = sorted(number for waiting, number in self._heap if waiting == path)
            ranges = [number for number in numbers if self._cursors[number].cursor.is_range]
            if not ranges:
                found = self._compare(path, numbers)
                if found is not None:
                    yield found
            elif not self._pass_equal(path, numbers, ranges):
                # The one that reaches farthest holds what the others may be equal to.
                widest = max(ranges, key=lambda number: self._cursors[number].cursor.last)
                self._cursors[widest].cursor.descend()
                self._settle([widest])

    def _pass_equal(self, path: str, numbers: list[int], ranges: list[int]) -> bool:
        """Go behind ranges that are the same on both sides."""
        if len(ranges) != len(numbers):
            return False
        last = self._cursors[ranges[0]].cursor.last
        sides: tuple[list[bytes], list[bytes]] = ([], [])
        for number in ranges:
            side, cursor, gone = self._cursors[number]
            if cursor.last != last or gone.touch(path, last):
                return False
            sides[side].append(cursor.index.data_op.data_ref[0].chunk.hash)
        if sides[0] != sides[1]:
            return False
        if any(other != path and other <= last for other, _ in self._heap):
            return False
        for number in ranges:
            self._cursors[number].cursor.advance()
        self._settle(ranges)
        return True

    def _compare(self, path: str, numbers: list[int]) -> Difference | None:
        met: tuple[list[pb.Index], list[pb.Index]] = ([], [])
        for number in numbers:
            side, cursor, gone = self._cursors[number]
            if not gone.covers(path):
                met[side].append(cursor.index)
            cursor.advance()
        self._settle(numbers)
        old, new = (merged_file(path, side, path) if side else None for side in met)
        if old == new:
            return None
        return _difference(path, old, new)

    def _settle(self, moved: list[int]) -> None:
        """Bring the heap in order after some cursors were moved."""
        gone = set(moved)
        self._heap = [(path, number) for path, number in self._heap if number not in gone]
        for number in moved:
            path = self._cursors[number].cursor.path
            if path is not None:
                self._heap.append((path, number))
        heapq.heapify(self._heap)


def _difference(path: str, old: pb.Index | None, new: pb.Index | None) -> Difference | None:
    before = FileInfo(path, old) if old else None
    after = FileInfo(path, new) if new else None
    if before is None or after is None:
        return Difference(path, "added" if before is None else "removed", before, after)
    same_content = (
        before.size_bytes == after.size_bytes
        and before.content_id == after.content_id
        and before.link_target == after.link_target
    )
    if not same_content:
        return Difference(path, "content", before, after)
    if before.metadata != after.metadata or before.tags != after.tags:
        return Difference(path, "metadata", before, after)
    return None
