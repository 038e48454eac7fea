"""Walks the index of one layer in order of the paths, and opens only what it must.

`index_chunks` and `entries_of` show an index as it is stored, for `holdfast files index show`.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from holdfast.errors import Damaged, ObjectMissing
from holdfast.store.filesets import bloom
from holdfast.store.filesets import fileset_pb2 as pb
from holdfast.store.filesets.entry import IndexNode, parse_node
from holdfast.store.filesets.layer import Layer
from holdfast.store.filesets.paths import after_folder
from holdfast.store.objects.objects import ChunkHash

# Index chunks that a reader keeps parsed: about a quarter of a megabyte each.
CACHED_NODES = 256


class LostRange(NamedTuple):
    """A range of paths whose index cannot be read; `last_path` is None if it has no known end."""

    first_path: str
    last_path: str | None
    why: str


class IndexLeaf(NamedTuple):
    """A chunk of 'i' entries, and the 'r' entry that stands for it.

    `is_plain`: all entries are plain ones (`entry.is_plain`).
    """

    span: pb.Index
    node: IndexNode
    is_plain: bool


class IndexNodes:
    """Index chunks, parsed; the last `max_nodes` of them are kept. Safe to share among threads."""

    def __init__(
        self, read_chunk: Callable[[ChunkHash], bytes], *, max_nodes: int = CACHED_NODES
    ) -> None:
        self._read_chunk = read_chunk
        self._max_nodes = max_nodes
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, IndexNode] = OrderedDict()
        self.opened = 0

    def get(self, index: pb.Index) -> IndexNode:
        """Return the entries that an 'r' entry stands for."""
        address = index.data_op.data_ref[0].chunk.hash
        with self._lock:
            node = self._kept.get(address)
            if node is not None:
                self._kept.move_to_end(address)
                return node
        # Without the lock: two threads may parse the same chunk, and neither waits for the other's
        # fetch.
        node = self.parse(ChunkHash(address))
        with self._lock:
            self._kept[address] = node
            while len(self._kept) > self._max_nodes:
                self._kept.popitem(last=False)
        return node

    def parse(self, address: ChunkHash) -> IndexNode:
        """Return the entries of a chunk, without keeping them."""
        self.opened += 1
        return parse_node(self._read_chunk(address), f"chunk {address.hex()}")


def lookup(nodes: IndexNodes, root: pb.Index, path: str) -> pb.Index | None:
    """Return the entry of one path; filters spare most chunks that do not hold it."""
    index = root
    while True:
        span = index.range
        # The filter is in the entry above, so most chunks that do not hold the path are never
        # fetched. With many layers that is what keeps a lookup from costing one chunk per layer.
        if not index.path <= path <= span.last_path or not bloom.may_hold(span.bloom, path):
            return None
        node = nodes.get(index)
        at = bisect_right(node.paths, path) - 1
        if at < 0:
            return None
        index = node.indexes[at]
        if node.is_leaf:
            return index if node.paths[at] == path else None


class IndexCursor:
    """A place in the index of a layer: at an entry, or at a range that is not opened yet.

    Only entries with lo ≤ path < hi are met; ranges that reach beyond are opened by themselves.
    `path` is None at the end.
    """

    def __init__(
        self, nodes: IndexNodes, root: pb.Index, lo: str = "", hi: str | None = None
    ) -> None:
        self._nodes = nodes
        self._lo = lo
        self._hi = hi
        # Opened chunks, outermost first, and the place in each.
        self._stack: list[tuple[IndexNode, int]] = [(IndexNode(False, [root.path], [root]), 0)]
        self.path: str | None = None
        self.index = root
        self.is_range = True
        self._settle()

    @property
    def last(self) -> str:
        """The last path of the range, or the entry's own."""
        return self.index.range.last_path if self.is_range else self.index.path

    def advance(self) -> None:
        """Go behind the entry or the range."""
        self._step()
        self._settle()

    def descend(self) -> None:
        """Open the range, and go to its first entry."""
        self._open()
        self._settle()

    def seek(self, path: str) -> None:
        """Move to the first entry that is not before `path`."""
        if path > self._lo:
            self._lo = path
            self._settle()

    def leaf_runs(
        self, lost: Callable[[LostRange], None] | None = None
    ) -> Iterator[tuple[list[str], list[pb.Index]]]:
        """Yield all that is left, as runs of paths and entries: the quick way through a layer.

        A range that cannot be opened is an error, or is given to `lost` and passed over.
        """
        for leaf, at, end in self.leaves(lost):
            yield leaf.node.paths[at:end], leaf.node.indexes[at:end]

    def leaves(
        self, lost: Callable[[LostRange], None] | None = None
    ) -> Iterator[tuple[IndexLeaf, int, int]]:
        """Yield the chunks of 'i' entries that are left, and which entries of each."""
        while self.path is not None:
            if self.is_range:
                try:
                    self.descend()
                except (Damaged, ObjectMissing) as error:
                    if lost is None:
                        raise
                    lost(LostRange(self.index.path, self.last, str(error)))
                    self.advance()
                continue
            node, at = self._stack[-1]
            end = len(node.paths) if self._hi is None else bisect_left(node.paths, self._hi)
            above, behind = self._stack[-2]
            span = above.indexes[behind - 1]
            yield IndexLeaf(span, node, span.range.plain), at, end
            self._stack[-1] = (node, len(node.paths))
            self._settle()

    def _step(self) -> None:
        node, at = self._stack[-1]
        self._stack[-1] = (node, at + 1)

    def _open(self) -> None:
        node, at = self._stack[-1]
        inner = self._nodes.get(node.indexes[at])
        # Moved on before the inner one is pushed: when that is done, the walk continues behind the
        # range.
        self._stack[-1] = (node, at + 1)
        self._stack.append((inner, 0))

    def _settle(self) -> None:
        """Find the next place that may be met."""
        lo, hi = self._lo, self._hi
        while self._stack:
            node, at = self._stack[-1]
            if at >= len(node.paths):
                self._stack.pop()
                continue
            path = node.paths[at]
            if hi is not None and path >= hi:
                self._stack.clear()
                break
            if node.is_leaf and path < lo:
                self._stack[-1] = (node, bisect_left(node.paths, lo, at))
                continue
            index = node.indexes[at]
            if not node.is_leaf:
                last = index.range.last_path
                if last < lo:
                    self._stack[-1] = (node, max(at + 1, bisect_right(node.paths, lo, at) - 1))
                    continue
                # A range that only partly lies within the bounds must be opened; one that lies
                # inside as a whole is met as a range, and its user decides.
                if path < lo or (hi is not None and last >= hi):
                    self._open()
                    continue
            self.path, self.index, self.is_range = path, index, not node.is_leaf
            return
        self.path = None


class IndexChunk(NamedTuple):
    """One chunk of an index, as the entry above it says, and what was found when it was opened.

    `kind` is that of its entries: 'i' at level 1, 'r' above. `entries` is how many it holds itself;
    None if it could not be opened, as `fault` says. Files and `content_bytes` are all below it.
    """

    layer_seq: int
    level: int
    kind: str
    entries: int | None
    files: int
    size_bytes: int
    content_bytes: int
    first_path: str
    last_path: str
    hash: ChunkHash
    fault: str = ""


class LayerEntry(NamedTuple):
    """What one layer says of a path; None if that cannot be read, as `fault` says."""

    layer_seq: int
    message: pb.Index | None
    fault: str = ""


def index_chunks(
    nodes: IndexNodes, layers: Sequence[Layer], path: str = "", *, lowest_level: int = 1
) -> Iterator[IndexChunk]:
    """Yield the chunks whose range may hold a path or what is below it, each before those in it.

    Chunks of level 1 are not opened, and none below `lowest_level` is met. One that cannot be read
    is yielded with its fault, and the walk goes on behind it.
    """
    for layer in layers:
        waiting = [layer.index] if layer.index is not None else []
        while waiting:
            index = waiting.pop()
            if not _may_hold(index, path) or index.range.level < lowest_level:
                continue
            found, inner = _open(nodes, layer.seq, index)
            yield found
            waiting += reversed(inner)


def entries_of(nodes: IndexNodes, layers: Sequence[Layer], path: str) -> Iterator[LayerEntry]:
    """Yield the 'i' entry of a path in each layer that has one, oldest first."""
    for layer in layers:
        if layer.index is None:
            continue
        try:
            index = lookup(nodes, layer.index, path)
        except (Damaged, ObjectMissing) as error:
            yield LayerEntry(layer.seq, None, str(error))
            continue
        if index is not None:
            yield LayerEntry(layer.seq, index)


def _may_hold(index: pb.Index, path: str) -> bool:
    end = after_folder(path if path.endswith("/") or not path else path + "/")
    return path <= index.range.last_path and (end is None or index.path < end)


def _open(nodes: IndexNodes, seq: int, index: pb.Index) -> tuple[IndexChunk, list[pb.Index]]:
    span, ref = index.range, index.data_op.data_ref[0]
    inner: list[pb.Index] = []
    entries: int | None = span.num_entries
    fault = ""
    if span.level > 1:
        try:
            inner = nodes.get(index).indexes
            entries = len(inner)
        except (Damaged, ObjectMissing) as error:
            entries, fault = None, str(error)
    return IndexChunk(
        layer_seq=seq,
        level=span.level,
        kind="i" if span.level == 1 else "r",
        entries=entries,
        files=span.num_files,
        size_bytes=ref.size_bytes,
        content_bytes=index.size_bytes,
        first_path=index.path,
        last_path=span.last_path,
        hash=ChunkHash(ref.chunk.hash),
        fault=fault,
    ), inner
