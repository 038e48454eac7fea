"""Index entries: a change of one path, or a range of entries, as header and protobuf message.

Equal entries are equal bytes: messages are serialised deterministically, headers have no field
that depends on when or where they were made. That is what lets two commits share the chunks of
their indexes, and two machines that store the same folder arrive at the same hash.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast
from zlib import adler32

from google.protobuf.message import DecodeError

from holdfast.store.filesets import fileset_pb2 as pb
from holdfast.store.filesets import header as tar
from holdfast.store.filesets.algebra import Change, TagChange
from holdfast.store.objects.objects import ChunkHash, DataRef

FileChange = Change[pb.DataRef]

_BLOCK = tar.BLOCK_BYTES
_BLANK_SUM = 8 * ord(" ")
_ADLER_LOW = 0xFFFF
_ADLER_MODULUS = 65521
_TYPES = (tar.INDEX[0], tar.RANGE[0])


class IndexEntry(NamedTuple):
    """An entry as it stands in a stream, with what the index above it must know."""

    path: str
    last_path: str
    data: bytes
    files: int
    entries: int
    size_bytes: int
    children: Sequence[ChunkHash]
    plain: bool


class IndexNode(NamedTuple):
    """The entries of one index chunk. `is_leaf`: they are 'i' entries.

    `data` is the chunk, and `ends` says where each entry ends in it.
    """

    is_leaf: bool
    paths: list[str]
    indexes: list[pb.Index]
    data: bytes = b""
    ends: Sequence[int] = ()

    def entry(self, number: int) -> bytes:
        """Return an entry as it stands in the chunk."""
        return self.data[self.ends[number - 1] if number else 0 : self.ends[number]]


def message_of(ref: DataRef) -> pb.DataRef:
    """Return a reference as it is stored."""
    return pb.DataRef(
        chunk=pb.Chunk(hash=ref.hash),
        hash=ref.content_hash,
        offset_bytes=ref.offset_bytes,
        size_bytes=ref.size_bytes,
    )


def ref_of(message: pb.DataRef) -> DataRef:
    """Return a stored reference to content."""
    return DataRef(
        ChunkHash(message.chunk.hash), message.offset_bytes, message.size_bytes, message.hash
    )


def is_plain(change: FileChange) -> bool:
    """Whether a change makes a file where nothing older is, and says no more than that.

    Where layers are merged down to the ground, only ranges of such entries are taken over as they
    are: every other entry means something about older ones that are no longer there.
    """
    return (
        not change.reset
        and bool(change.parts)
        and not any(part.set or part.refs is None for part in change.parts.values())
    )


def index_of(path: str, change: FileChange) -> pb.Index:
    """Return the message for one path."""
    index = pb.Index(path=path)
    operation = index.data_op
    present = False
    total_bytes = 0
    for tag in sorted(change.parts):
        part = change.parts[tag]
        size_bytes = 0
        if part.refs is not None:
            present = True
            operation.data_ref.extend(part.refs)
            size_bytes = sum([ref.size_bytes for ref in part.refs])
        operation.tags.add(id=tag, size_bytes=size_bytes, set=part.set, deleted=part.refs is None)
        total_bytes += size_bytes
    if change.reset:
        operation.op = pb.OVERWRITE if change.parts else pb.DELETE
    index.size_bytes = total_bytes
    index.present = present
    if change.metadata is not None:
        index.metadata.CopyFrom(change.metadata)
    return index


def change_of(index: pb.Index, where: str) -> FileChange:
    """Return what an index entry says about its path."""
    operation = index.data_op
    refs = list(operation.data_ref)
    parts = {}
    at = 0
    for tag in operation.tags:
        start, left_bytes = at, tag.size_bytes
        # References carry no tag; each tag owns the next so many bytes of them. The sums must come
        # out even, or the entry is damaged.
        while left_bytes > 0 and at < len(refs):
            left_bytes -= refs[at].size_bytes
            at += 1
        if left_bytes != 0 or (tag.deleted and at != start):
            raise tar.damaged(f"the tags of {index.path!r} do not match its data", where)
        parts[tag.id] = TagChange(tag.set, None if tag.deleted else tuple(refs[start:at]))
    if at != len(refs) or len(parts) != len(operation.tags):
        raise tar.damaged(f"the tags of {index.path!r} do not match its data", where)
    metadata = index.metadata if index.HasField("metadata") else None
    return Change(operation.op != pb.APPEND, parts, metadata)


def pack_entry(index: pb.Index, kind: bytes) -> bytes:
    """Return an entry of a stream: header, message, and zeros to the end of the block."""
    body = index.SerializeToString(deterministic=True)
    front = tar.pack_plain(index.path.encode(), kind, len(body))
    return b"".join((front, body, tar.padding(len(body))))


def is_plain_index(index: pb.Index) -> bool:
    """Whether an entry says what `is_plain` asks of a change."""
    operation = index.data_op
    return (
        index.present
        and operation.op == pb.APPEND
        and not any(tag.set or tag.deleted for tag in operation.tags)
    )


def file_entry(index: pb.Index, *, plain: bool, data: bytes = b"") -> IndexEntry:
    """Return the 'i' entry for what a layer does to a path; `data` is it, if that is known."""
    path, refs = index.path, index.data_op.data_ref
    # Most files lie in one chunk, or are empty.
    children = [ref.chunk.hash for ref in refs]
    if len(children) > 1:
        children = list(dict.fromkeys(children))
    return IndexEntry(
        path=path,
        last_path=path,
        data=data or pack_entry(index, tar.INDEX),
        files=1 if index.present else 0,
        entries=1,
        size_bytes=index.size_bytes,
        children=cast("list[ChunkHash]", children),
        plain=plain,
    )


def range_entry(index: pb.Index) -> IndexEntry:
    """Return the 'r' entry for a range."""
    return IndexEntry(
        path=index.path,
        last_path=index.range.last_path,
        data=pack_entry(index, tar.RANGE),
        files=index.range.num_files,
        entries=index.range.num_entries,
        size_bytes=index.size_bytes,
        children=[ChunkHash(index.data_op.data_ref[0].chunk.hash)],
        plain=index.range.plain,
    )


def tombstone_entries(folders: Iterable[str]) -> bytes:
    """Return the stream of 'i' entries for folders that are taken away; '' is named './'."""
    return b"".join(
        pack_entry(pb.Index(path=folder or "./", data_op=pb.DataOp(op=pb.DELETE)), tar.INDEX)
        for folder in folders
    )


def parse_node(data: bytes, where: str) -> IndexNode:
    """Return the entries of an index chunk, after checking headers, order and messages."""
    kinds, bodies, ends = _split(data, where)
    kind = kinds.pop()
    if kinds or kind not in _TYPES:
        raise tar.damaged("index entries of several kinds are mixed", where)
    decode = pb.Index.FromString
    try:
        indexes = [decode(body) for body in bodies]
    except DecodeError:
        raise tar.damaged("an index entry is not a valid message", where) from None
    paths = [index.path for index in indexes]
    # Sorted and without repeats: bisection relies on it, and a merge of layers would go in
    # circles.
    if not all(map(operator.lt, paths, paths[1:])):
        raise tar.damaged("index entries are not sorted", where)
    return IndexNode(kind == tar.INDEX[0], paths, indexes, data, ends)


def _split(data: bytes, where: str) -> tuple[set[int], list[bytes], list[int]]:
    """Return the types that occur in a stream, and the bodies and ends of its index entries."""
    size_bytes = len(data)
    if not size_bytes or size_bytes % _BLOCK:
        raise tar.damaged(f"an index of {size_bytes} bytes is cut off", where)
    bodies: list[bytes] = []
    ends: list[int] = []
    kinds: set[int] = set()
    at = 0
    try:
        while at < size_bytes:
            header = data[at : at + _BLOCK]
            if not _matches_checksum(header):
                raise tar.damaged("the header of an index entry does not match its checksum", where)
            body_bytes, kind = int(header[124:135], 8), header[156]
            body = at + _BLOCK
            at = body + body_bytes + (-body_bytes % _BLOCK)
            if kind != tar.PAX[0]:  # the message holds the whole path, too
                kinds.add(kind)
                bodies.append(data[body : body + body_bytes])
                ends.append(at)
    except ValueError:
        raise tar.damaged("an index entry has a number that is none", where) from None
    if at != size_bytes or not bodies:
        raise tar.damaged("the last index entry is cut off", where)
    return kinds, bodies, ends


def _matches_checksum(header: bytes) -> bool:
    """Whether a header has the sum of bytes it says, counting its own field as blanks.

    Adler-32 has the sum of all bytes, plus one, in its lower half, modulo 65521: enough to see what
    went wrong, and far quicker than adding them up here.
    """
    field = header[148:156]
    blank_sum = int(field[:6], 8) - _BLANK_SUM + (adler32(field) & _ADLER_LOW)
    return (adler32(header) & _ADLER_LOW) == blank_sum % _ADLER_MODULUS
