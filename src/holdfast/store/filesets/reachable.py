"""Which chunks a commit leads to: its roots, and the children of each chunk that refers to others.

A chunk does not say itself what it is. It is an index, a list of references, or content, because of
what refers to it; the same bytes may be used as two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from google.protobuf.message import DecodeError

from holdfast.errors import Damaged, ObjectMissing
from holdfast.store.chunks.codec import decode
from holdfast.store.filesets import fileset_pb2 as pb
from holdfast.store.filesets.commits import Commit, parse_record
from holdfast.store.filesets.entry import parse_node
from holdfast.store.filesets.header import damaged
from holdfast.store.gc.rebuild import Resolve, Walk, WalkedChunk
from holdfast.store.objects.address import ChunkHash, ChunkKey
from holdfast.store.objects.objects import Objects


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


def roots_of(commit: Commit) -> list[Reached]:
    """Return the chunks that a commit refers to itself."""
    found: list[Reached] = []
    for layer in commit.layers:
        if layer.index is not None:
            found.append(_range(layer.index))
        found += [Reached(ref.hash, Use.TOMBSTONES) for ref in layer.tombstones]
    found += [Reached(ref.hash, Use.SEEN) for ref in commit.seen]
    return list(dict.fromkeys(found))


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
        return [_range(index) for index in node.indexes]
    return list(
        dict.fromkeys(
            child for index in node.indexes for child in _refs(index.data_op.data_ref, index.path)
        )
    )


def walk_record(objects: Objects) -> Walk:
    """Return how a rebuild walks commits: every chunk once that is a root, or refers to others."""

    def walk(record: bytes, resolve: Resolve) -> Iterator[WalkedChunk]:
        commit = parse_record(record, 0)
        roots = roots_of(commit)
        yield from (WalkedChunk(root.hash, root=True) for root in roots if not root.use.refers)
        own = {root.hash for root in roots}
        trouble: list[Exception] = []

        def look_into(one: Reached) -> list[Reached] | None:
            try:
                return children_of(one, _read(objects, one.hash, resolve([one.hash])))
            except (Damaged, ObjectMissing) as error:
                trouble.append(error)
                return None

        for parent, children in walk_below([r for r in roots if r.use.refers], look_into):
            below = list(dict.fromkeys(child.hash for child in children or ()))
            yield WalkedChunk(parent.hash, below, root=parent.hash in own)
        if trouble:
            raise trouble[0]  # all that could be read was yielded

    return walk


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


def _read(objects: Objects, hash_: ChunkHash, keys: Mapping[ChunkHash, ChunkKey]) -> bytes:
    key = keys.get(hash_)
    if key is None:
        raise ObjectMissing(
            f"chunk {hash_.hex()} is not in the store",
            hint="run `holdfast store fsck` to see which files it belongs to",
        )
    return decode(objects.get(key.object_key()), key)


def _range(index: pb.Index) -> Reached:
    address = ChunkHash(index.data_op.data_ref[0].chunk.hash)
    return Reached(address, Use.INDEX, index.path, index.range.last_path)


def _refs(refs: Iterable[pb.DataRef], path: str) -> Iterator[Reached]:
    for ref in refs:
        use = Use.REFS if ref.indirect else Use.CONTENT
        yield Reached(ChunkHash(ref.chunk.hash), use, path, path)
