"""What is known of a file: its metadata as it is given, and its entry as it is found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from blake3 import blake3

from holdfast.errors import BadInput
from holdfast.store.filesets import fileset_pb2 as pb

FILE_MODE = 0o644
FOLDER_MODE = 0o755
LINK_MODE = 0o777

# Bytes of all extended attributes of one file that are kept.
XATTRS_BYTES_MAX = 64 * 1024

# Names and values of extended attributes.
Xattrs = tuple[tuple[bytes, bytes], ...]

# Numbers as tags sort as they count: eight bytes, the sign turned over.
_SIGN = 1 << 63
_NUMBER_BYTES = 8


def tag_of(tag: bytes | int) -> bytes:
    """Return a tag as it is stored; a number becomes eight bytes that sort as it does."""
    return tag if isinstance(tag, bytes) else (tag + _SIGN).to_bytes(_NUMBER_BYTES, "big")


def shown_tag(tag: bytes) -> str:
    """Return a tag as people read and type it: text, #NUMBER, or 0xHEX for any other bytes."""
    try:
        text = tag.decode()
    except UnicodeDecodeError:
        if len(tag) == _NUMBER_BYTES:
            return f"#{int.from_bytes(tag, 'big') - _SIGN}"
        return f"0x{tag.hex()}"
    if text.isprintable() and not text.startswith(("#", "0x")):
        return text
    return f"0x{tag.hex()}"


class Metadata(NamedTuple):
    """What may be kept of a file besides its content; None: not known."""

    mode: int | None = None
    mtime_ns: int | None = None
    link_target: str | None = None
    uid: int | None = None
    gid: int | None = None
    user: str | None = None
    group: str | None = None
    hard_link: str | None = None
    sparse: bool | None = None
    xattrs: Xattrs = ()

    def to_message(self) -> pb.Metadata | None:
        """Return it as it is stored; None if nothing is known."""
        values = zip(_SINGLE, self, strict=False)
        known: dict[str, Any] = {key: value for key, value in values if value is not None}
        if self.xattrs:
            pairs = sorted(self.xattrs)
            known["xattrs"] = [pb.Xattr(name=name, value=value) for name, value in pairs]
        return pb.Metadata(**known) if known else None


# The fields of metadata that have one value.
_SINGLE = Metadata._fields[:-1]


class FileInfo:
    """One file, folder or link of a file set."""

    __slots__ = ("_index", "path", "size_bytes")

    def __init__(self, path: str, index: pb.Index | None = None) -> None:
        self.path = path
        self.size_bytes = index.size_bytes if index else 0
        # None: a folder that is there because something stands in it.
        self._index = index

    def __repr__(self) -> str:
        return f"FileInfo({self.path!r}, {self.size_bytes} bytes)"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, FileInfo)
            and self.path == other.path
            and self.content_id == other.content_id
            and self.metadata == other.metadata
        )

    def __hash__(self) -> int:
        return hash(self.path)

    def to_bytes(self, refs: Sequence[pb.DataRef]) -> bytes:
        """Return the entry of a file, with these references to its content, for another process."""
        assert self._index is not None, "BUG: a folder without an entry"
        if refs is self._index.data_op.data_ref:
            return self._index.SerializeToString()
        entry = pb.Index()
        entry.CopyFrom(self._index)
        del entry.data_op.data_ref[:]
        entry.data_op.data_ref.extend(refs)
        return entry.SerializeToString()

    @property
    def is_folder(self) -> bool:
        return self.path.endswith("/")

    @property
    def is_link(self) -> bool:
        return self.link_target is not None

    @property
    def mode(self) -> int:
        """The permissions; the usual ones if none were kept."""
        if self._index is not None and self._index.metadata.HasField("mode"):
            return self._index.metadata.mode
        return FOLDER_MODE if self.is_folder else LINK_MODE if self.is_link else FILE_MODE

    @property
    def mtime_ns(self) -> int | None:
        return self.metadata.mtime_ns

    @property
    def link_target(self) -> str | None:
        """Where a symbolic link leads; None for anything else."""
        known = self._index.metadata if self._index is not None else None
        return known.link_target if known is not None and known.HasField("link_target") else None

    @property
    def hard_link(self) -> str | None:
        """What all names of one file have in common; None for a file with one name."""
        return (self._index.metadata.hard_link or None) if self._index is not None else None

    @property
    def is_sparse(self) -> bool:
        """Whether the file had holes."""
        return self._index is not None and self._index.metadata.sparse

    @property
    def metadata(self) -> Metadata:
        """All that was kept of the file."""
        if self._index is None or not self._index.HasField("metadata"):
            return Metadata()
        message = self._index.metadata
        known = {key: getattr(message, key) for key in _SINGLE if message.HasField(key)}
        xattrs = tuple((one.name, one.value) for one in message.xattrs)
        return Metadata(**known, xattrs=xattrs)

    @property
    def tags(self) -> list[tuple[bytes, int]]:
        """The tags that the content consists of, in order, and the bytes of each."""
        if self._index is None:
            return []
        tags = self._index.data_op.tags
        return [(tag.id, tag.size_bytes) for tag in tags if not tag.deleted]

    def tag_range(self, tag: bytes | int) -> tuple[int, int]:
        """Return where the content under a tag begins, and how many bytes it has."""
        wanted, begins_bytes = tag_of(tag), 0
        for known, size_bytes in self.tags:
            if known == wanted:
                return begins_bytes, size_bytes
            begins_bytes += size_bytes
        raise BadInput(
            f"{self.path!r} has no tag '{shown_tag(wanted)}'",
            hint="`holdfast files tags` and `FileInfo.tags` list those that it has.",
        )

    @property
    def refs(self) -> Sequence[pb.DataRef]:
        """Where the content lies, as the index says it."""
        return self._index.data_op.data_ref if self._index is not None else ()

    @property
    def content_id(self) -> bytes:
        """A hash of the content, as it is stored: the same for files that were stored the same way.

        It does not depend on which other files share their chunks, nor on the store. Equal content
        that was appended in other pieces may have another one.
        """
        digest = blake3()
        for ref in self.refs:
            digest.update(ref.hash or ref.chunk.hash)
            digest.update(ref.size_bytes.to_bytes(8, "big"))
        return digest.digest()
