"""What an index consists of: its chunks, from the root down, and what layers say of one path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from holdfast.errors import Damaged, ObjectMissing
from holdfast.store.filesets import fileset_pb2 as pb
from holdfast.store.filesets.cursor import IndexNodes, lookup
from holdfast.store.filesets.layer import Layer
from holdfast.store.filesets.paths import after_folder
from holdfast.store.objects.address import ChunkHash


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
