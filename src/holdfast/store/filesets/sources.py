"""The layers of a file set as they are read: their indexes, tombstones and content."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from google.protobuf.message import DecodeError

from holdfast.store.chunks import ChunkReader
from holdfast.store.filesets import fileset_pb2 as pb
from holdfast.store.filesets.algebra import Tombstones
from holdfast.store.filesets.cursor import IndexNodes
from holdfast.store.filesets.entry import parse_node, ref_of
from holdfast.store.filesets.header import damaged
from holdfast.store.filesets.layer import Layer
from holdfast.store.filesets.merge import Source
from holdfast.store.objects.address import ChunkHash, DataRef


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
