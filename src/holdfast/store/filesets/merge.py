"""Several layers as one: a lazy merge in order of the paths, in one pass, opening what overlaps."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from holdfast.errors import Damaged, ObjectMissing
from holdfast.store.filesets import fileset_pb2 as pb
from holdfast.store.filesets.algebra import Tombstones, compose, over_nothing
from holdfast.store.filesets.cursor import IndexCursor, IndexNodes, LostRange, lookup
from holdfast.store.filesets.entry import FileChange, change_of, index_of


class Source(NamedTuple):
    """One layer to merge: its index, and what it takes away from those before it."""

    root: pb.Index | None
    tombstones: Tombstones


# Asked about a range that one layer alone has something in; True: it was taken as a whole.
TakeRange = Callable[[pb.Index], bool]


def newer_tombstones(sources: Sequence[Source]) -> list[Tombstones]:
    """Return for each layer what all newer ones take away from it."""
    found: list[Tombstones] = []
    gone = Tombstones()
    for source in reversed(sources):
        found.append(gone)
        gone |= source.tombstones
    return found[::-1]


class Merge:
    """A merge of layers, oldest first, within lo ≤ path < hi."""

    def __init__(
        self, nodes: IndexNodes, sources: Sequence[Source], lo: str = "", hi: str | None = None
    ) -> None:
        self._gone: list[Tombstones] = []
        self._cursors: list[IndexCursor] = []
        for source, gone in zip(sources, newer_tombstones(sources), strict=True):
            if source.root is not None:
                self._cursors.append(IndexCursor(nodes, source.root, lo, hi))
                self._gone.append(gone)
        self._heap = [
            (cursor.path, number)
            for number, cursor in enumerate(self._cursors)
            if cursor.path is not None
        ]
        heapq.heapify(self._heap)

    def entries(self, take_range: TakeRange | None = None) -> Iterator[tuple[str, list[pb.Index]]]:
        """Yield each path with its entries, older first, without those that newer layers took away.

        `take_range` is asked about every range that stands alone, and is as no other layer changes.
        """
        while self._heap:
            path, number = self._heap[0]
            if self._cursors[number].is_range:
                self._pass_or_open(number, take_range)
                continue
            met = self._at(path)
            if met:
                yield path, met

    def seek(self, path: str) -> None:
        """Go on to the first path that is not before `path`."""
        for cursor in self._cursors:
            cursor.seek(path)
        self._heap = [
            (cursor.path, number)
            for number, cursor in enumerate(self._cursors)
            if cursor.path is not None
        ]
        heapq.heapify(self._heap)

    def _pass_or_open(self, number: int, take_range: TakeRange | None) -> None:
        cursor = self._cursors[number]
        gone, first, last = self._gone[number], cursor.index.path, cursor.last
        if gone.covers_all(first, last) or (
            take_range is not None
            and not any(path <= last for path, _ in self._heap[1:3])
            and not gone.touch(first, last)
            and take_range(cursor.index)
        ):
            cursor.advance()
        else:
            cursor.descend()
        self._replace_top(cursor, number)

    def _at(self, path: str) -> list[pb.Index]:
        """Take all entries of one path from the heap."""
        met = []
        while self._heap and self._heap[0][0] == path:
            number = self._heap[0][1]
            cursor = self._cursors[number]
            if cursor.is_range:
                cursor.descend()
            else:
                if not self._gone[number].covers(path):
                    met.append((number, cursor.index))
                cursor.advance()
            self._replace_top(cursor, number)
        met.sort()
        return [index for _, index in met]

    def _replace_top(self, cursor: IndexCursor, number: int) -> None:
        if cursor.path is None:
            heapq.heappop(self._heap)
        else:
            heapq.heapreplace(self._heap, (cursor.path, number))


def merged_change(indexes: Sequence[pb.Index], where: str) -> FileChange:
    """Return the one change that some entries of one path, older first, add up to."""
    change = change_of(indexes[0], where)
    for index in indexes[1:]:
        change = compose(change_of(index, where), change)
    return change


def merged_file(path: str, indexes: Sequence[pb.Index], where: str) -> pb.Index | None:
    """Return the entry of the file that some entries of one path make; None if they make none."""
    if len(indexes) == 1:
        return indexes[0] if indexes[0].present else None
    change = over_nothing(merged_change(indexes, where))
    return index_of(path, change) if change else None


def files_of(
    nodes: IndexNodes, sources: Sequence[Source], lo: str = "", hi: str | None = None
) -> Iterator[tuple[str, pb.Index]]:
    """Yield path and entry of every file that some layers make, with lo ≤ path < hi."""
    if len(sources) == 1:
        # Nothing to merge: the entries are taken by the chunk.
        root = sources[0].root
        runs = IndexCursor(nodes, root, lo, hi).leaf_runs() if root is not None else iter(())
        for paths, indexes in runs:
            for path, index in zip(paths, indexes, strict=True):
                if index.present:
                    yield path, index
        return
    for path, met in Merge(nodes, sources, lo, hi).entries():
        merged = merged_file(path, met, path)
        if merged is not None:
            yield path, merged


def readable_files(
    nodes: IndexNodes, sources: Sequence[Source], lost: Callable[[LostRange], None]
) -> Iterator[tuple[str, pb.Index]]:
    """Yield what `files_of` does, as far as the index can be read; `lost` gets the rest."""
    if len(sources) == 1 and sources[0].root is not None:
        for paths, indexes in IndexCursor(nodes, sources[0].root).leaf_runs(lost):
            yield from (pair for pair in zip(paths, indexes, strict=True) if pair[1].present)
        return
    path = ""
    try:
        for path, index in files_of(nodes, sources):
            yield path, index
    except (Damaged, ObjectMissing) as error:
        lost(LostRange(path, None, str(error)))  # several layers have no end of what is lost


def find(nodes: IndexNodes, sources: Sequence[Source], path: str, where: str) -> pb.Index | None:
    """Return the entry of one file in the merge of some layers, or None."""
    met: list[pb.Index] = []
    for source in reversed(sources):
        index = lookup(nodes, source.root, path) if source.root else None
        if index is not None:
            met.append(index)
            if index.data_op.op != pb.APPEND:
                break
        if source.tombstones.covers(path):
            break
    return merged_file(path, met[::-1], where) if met else None
