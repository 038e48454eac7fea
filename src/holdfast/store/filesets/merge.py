"""Several layers as one: a lazy merge in order of the paths, in one pass, opening what overlaps.

`Diff` says what differs between two file sets. Both sides' layers are walked together. Where each
side has the same index chunks, in the same order, and nothing newer takes anything away from them,
they are passed over unopened. Indexes are cut by content, so two commits that differ in a few files
share all chunks but a few, and the work grows with the difference and not with the file sets.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from google.protobuf.message import DecodeError

from holdfast.errors import Damaged, ObjectMissing
from holdfast.store.chunks.reader import ChunkReader
from holdfast.store.filesets import fileset_pb2 as pb
from holdfast.store.filesets.algebra import Tombstones, compose, over_nothing
from holdfast.store.filesets.cursor import IndexCursor, IndexNodes, LostRange, lookup
from holdfast.store.filesets.entry import FileChange, change_of, index_of, parse_node, ref_of
from holdfast.store.filesets.header import damaged
from holdfast.store.filesets.info import FileInfo
from holdfast.store.filesets.layer import Layer
from holdfast.store.objects.objects import ChunkHash, DataRef


class Source(NamedTuple):
    """One layer to merge: its index, and what it takes away from those before it."""

    root: pb.Index | None
    tombstones: Tombstones


# Asked about a range that one layer alone has something in; True: it was taken as a whole.
TakeRange = Callable[[pb.Index], bool]


def newer_tombstones(sources: Sequence[Source]) -> list[Tombstones]:
    """Return for each layer what all newer ones take away from it.

    Gathered from the newest down, so each layer is met by the union of all that came after it, and
    never by its own: a layer may remove a folder and write into it.
    """
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
        """Move to the first path that is not before `path`.

        Cursors only move forward; a path that was passed cannot be sought again.
        """
        for cursor in self._cursors:
            cursor.seek(path)
        self._heap = [
            (cursor.path, number)
            for number, cursor in enumerate(self._cursors)
            if cursor.path is not None
        ]
        heapq.heapify(self._heap)

    def _pass_or_open(self, number: int, take_range: TakeRange | None) -> None:
        """Pass over a range as a whole, or open it one level.

        It is passed over if newer layers take all of it away, or if no other layer has a path in
        it, none takes anything away, and the caller can use it unopened. The smallest path of the
        rest is among the next two of the heap, so only they are asked.
        """
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
        # By the number of the layer, which is its age. The heap orders by path first and gives no
        # promise about equal ones once ranges were opened in between.
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
            # Newest first: anything but an append replaces the content, so what older layers say
            # is not needed. An append needs what it appends to.
            if index.data_op.op != pb.APPEND:
                break
        if source.tombstones.covers(path):
            break
    return merged_file(path, met[::-1], where) if met else None


def open_layers(reader: ChunkReader, layers: Sequence[Layer]) -> list[Source]:
    """Return the layers with their tombstones read."""
    return [Source(layer.index, _read_tombstones(reader, layer)) for layer in layers]


def open_nodes(reader: ChunkReader) -> IndexNodes:
    """Return the index chunks that a reader finds."""
    return IndexNodes(reader.read_chunk)


def _read_tombstones(reader: ChunkReader, layer: Layer) -> Tombstones:
    if not layer.tombstones:
        return Tombstones()
    where = f"chunk {layer.tombstones[0].hash.hex()}"
    node = parse_node(b"".join(reader.read(layer.tombstones)), where)
    if len(node.paths) != layer.num_tombstones:
        raise damaged("a layer's tombstones are not all there", where)
    return Tombstones("" if path == "./" else path for path in node.paths)


def direct(
    reader: ChunkReader,
    refs: Iterable[pb.DataRef],
    offset_bytes: int = 0,
    limit_bytes: int | None = None,
) -> Iterator[tuple[int, DataRef]]:
    """Yield the references to content in a range, each with where its content begins.

    Lists of references that lie outside of the range are not opened.
    """
    at_bytes = 0
    for ref in refs:
        if limit_bytes is not None and at_bytes >= limit_bytes:
            return
        end_bytes = at_bytes + ref.size_bytes
        if end_bytes > offset_bytes and not ref.indirect:
            yield at_bytes, ref_of(ref)
        elif end_bytes > offset_bytes:
            listed = _listed(reader, ref)
            limit = None if limit_bytes is None else limit_bytes - at_bytes
            for inner_bytes, inner in direct(reader, listed, offset_bytes - at_bytes, limit):
                yield at_bytes + inner_bytes, inner
        at_bytes = end_bytes


def _listed(reader: ChunkReader, ref: pb.DataRef) -> Sequence[pb.DataRef]:
    where = f"chunk {ref.chunk.hash.hex()}"
    try:
        listed = pb.DataRefs.FromString(reader.read_chunk(ChunkHash(ref.chunk.hash))).data_ref
    except DecodeError:
        raise damaged("a list of references cannot be read", where) from None
    # Where everything behind the list begins is computed from its size: a wrong sum would give
    # other bytes, each of them sound by its own checksum.
    if sum([inner.size_bytes for inner in listed]) != ref.size_bytes:
        raise damaged("a list of references does not add up", where)
    return listed


def read_content(
    reader: ChunkReader, refs: Iterable[pb.DataRef], offset_bytes: int, size_bytes: int | None
) -> Iterator[bytes]:
    """Yield the bytes of a file, or a range of them."""
    limit_bytes = None if size_bytes is None else offset_bytes + size_bytes
    wanted = direct(reader, refs, offset_bytes, limit_bytes)
    first = next(wanted, None)
    if first is None:
        return iter(())
    begins_bytes, ref = first
    rest = (inner for _, inner in wanted)
    return reader.read(_chained(ref, rest), offset_bytes - begins_bytes, size_bytes)


def _chained(first: DataRef, rest: Iterator[DataRef]) -> Iterator[DataRef]:
    yield first
    yield from rest


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
            # Linear in the number of layers, of which there are few.
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
        # Some stand at a file, others at a range that begins with it: these cannot be equal as a
        # whole.
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
        # Another layer has something inside the range: equal chunks are then not the whole story.
        if any(other != path and other <= last for other, _ in self._heap):
            return False
        for number in ranges:
            self._cursors[number].cursor.advance()
        self._settle(ranges)
        return True

    def _compare(self, path: str, numbers: list[int]) -> Difference | None:
        """Merge what each side holds of one path, and compare the results."""
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
    """Say how a path differs; a change of content hides one of metadata."""
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
