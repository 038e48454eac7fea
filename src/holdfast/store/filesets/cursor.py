"""Walks the index of one layer in order of the paths, and opens only what it must."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from holdfast.errors import Damaged, ObjectMissing
from holdfast.store.filesets import bloom
from holdfast.store.filesets import fileset_pb2 as pb
from holdfast.store.filesets.entry import IndexNode, parse_node
from holdfast.store.objects.address import ChunkHash

# Index chunks that a reader keeps parsed: about a quarter of a megabyte each.
CACHED_NODES = 256


class LostRange(NamedTuple):
    """A range of paths whose index cannot be read; `last_path` is None if it has no known end."""

    first_path: str
    last_path: str | None
    why: str


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
        """Go on to the first entry that is not before `path`."""
        if path > self._lo:
            self._lo = path
            self._settle()

    def leaf_runs(
        self, lost: Callable[[LostRange], None] | None = None
    ) -> Iterator[tuple[list[str], list[pb.Index]]]:
        """Yield all that is left, as runs of paths and entries: the quick way through a layer.

        A range that cannot be opened is an error, or is given to `lost` and passed over.
        """
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
            yield node.paths[at:end], node.indexes[at:end]
            self._stack[-1] = (node, len(node.paths))
            self._settle()

    def _step(self) -> None:
        node, at = self._stack[-1]
        self._stack[-1] = (node, at + 1)

    def _open(self) -> None:
        node, at = self._stack[-1]
        inner = self._nodes.get(node.indexes[at])
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
                if path < lo or (hi is not None and last >= hi):
                    self._open()
                    continue
            self.path, self.index, self.is_range = path, index, not node.is_leaf
            return
        self.path = None
