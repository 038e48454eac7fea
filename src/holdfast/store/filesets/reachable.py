"""Which chunks a chunk leads to: the children of each one that refers to others, walked downwards.

A chunk does not say itself what it is. It is an index, a list of references, or content, because of
what refers to it; the same bytes may be used as two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from google.protobuf.message import DecodeError

from holdfast.store.filesets import fileset_pb2 as pb
from holdfast.store.filesets.entry import parse_node
from holdfast.store.filesets.header import damaged
from holdfast.store.objects.objects import ChunkHash


class Use(StrEnum):
    """What a chunk is used as. Those of the first two refer to others."""

    INDEX = "index"
    REFS = "references"
    CONTENT = "content"
    TOMBSTONES = "tombstones"
    SEEN = "seen"

    @property
    def refers(self) -> bool:
        """Whether such a chunk refers to others."""
        return self in (Use.INDEX, Use.REFS)


class Reached(NamedTuple):
    """A chunk as its parent refers to it, and the paths that it serves: one, or a range."""

    hash: ChunkHash
    use: Use
    path: str = ""
    last_path: str = ""


def children_of(parent: Reached, data: bytes) -> list[Reached]:
    """Return the chunks that an index, or a list of references, refers to; `Damaged` if it is none.

    One chunk is there several times if it serves several paths.
    """
    where = f"chunk {parent.hash.hex()}"
    if parent.use is Use.REFS:
        try:
            listed = pb.DataRefs.FromString(data).data_ref
        except DecodeError:
            raise damaged("a list of references cannot be read", where) from None
        return list(dict.fromkeys(_refs(listed, parent.path)))
    node = parse_node(data, where)
    if not node.is_leaf:
        return [index_range(index) for index in node.indexes]
    return list(
        dict.fromkeys(
            child for index in node.indexes for child in _refs(index.data_op.data_ref, index.path)
        )
    )


def walk_below(
    tops: Iterable[Reached],
    look_into: Callable[[Reached], list[Reached] | None],
    is_known: Callable[[Reached], bool] | None = None,
) -> Iterator[tuple[Reached, list[Reached] | None]]:
    """Yield every chunk that refers to others, from `tops` down, with its children.

    What `look_into` returns are the children of a chunk; None if it cannot be read. Those that
    `is_known` are passed over, with all below them; by default each chunk is met once.
    """
    met: set[tuple[ChunkHash, Use]] = set()

    def passed(one: Reached) -> bool:
        if is_known is not None:
            return is_known(one)
        known = (one.hash, one.use) in met
        met.add((one.hash, one.use))
        return known

    waiting = list(reversed(list(tops)))
    while waiting:
        parent = waiting.pop()
        if passed(parent):
            continue
        children = look_into(parent)
        yield parent, children
        waiting += reversed([child for child in children or () if child.use.refers])


def index_range(index: pb.Index) -> Reached:
    """Return the chunk that a range of an index refers to."""
    address = ChunkHash(index.data_op.data_ref[0].chunk.hash)
    return Reached(address, Use.INDEX, index.path, index.range.last_path)


def _refs(refs: Iterable[pb.DataRef], path: str) -> Iterator[Reached]:
    for ref in refs:
        use = Use.REFS if ref.indirect else Use.CONTENT
        yield Reached(ChunkHash(ref.chunk.hash), use, path, path)
