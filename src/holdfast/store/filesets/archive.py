"""File sets as tar archives: written for stock tools, and read from any of them.

An export holds what is stored, in order of the paths, with headers that depend on it alone. So an
export that is imported and exported again is the same bytes, and so is a sorted archive by GNU tar.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from holdfast.errors import BadInput
from holdfast.seam.names import name_bytes
from holdfast.store.filesets import header as tar
from holdfast.store.filesets.cursor import IndexCursor
from holdfast.store.filesets.fileset import FileSet
from holdfast.store.filesets.header import Header
from holdfast.store.filesets.info import (
    FILE_MODE,
    FOLDER_MODE,
    LINK_MODE,
    XATTRS_BYTES_MAX,
    FileInfo,
    Metadata,
    Xattrs,
)
from holdfast.store.filesets.paths import after_folder, check_folder, check_path, decode_path
from holdfast.store.filesets.tar_reader import (
    READ_BLOCK_BYTES,
    Member,
    Readable,
    TarReader,
    unpacked,
)
from holdfast.store.filesets.writer import FileSetWriter
from holdfast.store.objects.objects import ChunkHash

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Archives are filled up to a multiple of this, as tar does since it wrote to tapes.
RECORD_BYTES = 20 * tar.BLOCK_BYTES
_END_BYTES = 2 * tar.BLOCK_BYTES
_NS_PER_S = 1_000_000_000
# PAX records: extended attributes, as GNU tar, star and bsdtar write them, and one of our own.
_XATTR = "SCHILY.xattr."
_SPARSE = "HOLDFAST.sparse"


class Writable(Protocol):
    """Where an archive goes."""

    def write(self, data: Buffer, /) -> object: ...


class Moved(NamedTuple):
    """What went into or came out of an archive."""

    files: int
    size_bytes: int
    # False: an archive without an end. It may be all there is of it, or the beginning of a longer
    # one that was cut off between two entries: nothing in it tells.
    has_end: bool = True


def export_tar(files: FileSet, target: Writable, *, folder: str = "") -> Moved:
    """Write everything below a folder as a tar archive."""
    below = check_folder(folder)
    count, size_bytes, written_bytes = 0, 0, 0
    # The first names of files that have several.
    first_names: dict[tuple[str, bytes], str] = {}
    for file in files.files(below, after_folder(below)):
        header, body_bytes = _header(file), file.size_bytes
        if file.hard_link is not None:
            # The first name that is met within this export, which may not be the first of the
            # commit: an archive of one folder must not refer to a path outside of it.
            first = first_names.setdefault((file.hard_link, file.content_id), file.path)
            if first != file.path:
                target_name = name_bytes(first)
                header = header._replace(type=tar.HARD_LINK, link_target=target_name, size_bytes=0)
                body_bytes = 0
        head = tar.pack(header, _records(file))
        target.write(head)
        for block in files.content(file) if body_bytes else ():
            target.write(block)
        tail = tar.padding(body_bytes)
        target.write(tail)
        count += 1
        size_bytes += body_bytes
        written_bytes += len(head) + body_bytes + len(tail)
    target.write(_end(written_bytes))
    return Moved(count, size_bytes)


def export_index(files: FileSet, target: Writable) -> None:
    """Write the stored index entries themselves, layer after layer: the raw streams, as a tar."""
    written_bytes = 0
    for source in files.sources:
        cursor = IndexCursor(files.nodes, source.root) if source.root is not None else None
        while cursor is not None and cursor.path is not None:
            if cursor.index.range.level > 1:
                cursor.descend()
                continue
            chunk = ChunkHash(cursor.index.data_op.data_ref[0].chunk.hash)
            data = files.reader.read_chunk(chunk)
            target.write(data)
            written_bytes += len(data)
            cursor.advance()
    target.write(_end(written_bytes))


def import_tar(
    writer: FileSetWriter, source: Readable, *, into: str = "", keep_outside_links: bool = False
) -> Moved:
    """Put everything from a tar archive into a layer, below a folder if one is given.

    It may be compressed (gzip, bzip2, xz, zstd). An archive may come from anybody, so what cannot
    be stored is refused: paths that lead out, devices, pipes, and links that lead out unless they
    are to be kept.
    """
    below = check_folder(into)
    count, size_bytes = 0, 0
    plain = unpacked(source)
    reader = TarReader(plain)
    for member in reader.members():
        name = _inner(decode_path(member.header.name))
        if name in ("", "/"):
            continue  # the archive's own root
        _put(writer, below, name, member, keep_outside_links)
        count += 1
        size_bytes += member.header.size_bytes if member.header.type == tar.FILE else 0
    # Two blocks of zeros end the archive, but the compressed stream goes on to its checksum.
    # Without this a truncated download would pass.
    while plain.read(READ_BLOCK_BYTES):
        pass  # to the end of a compressed stream, where its checksum is
    return Moved(count, size_bytes, reader.has_end)


def _put(
    writer: FileSetWriter, below: str, name: str, member: Member, keep_outside_links: bool
) -> None:
    header = member.header
    path = below + check_path(name)
    if header.type == tar.FOLDER or (header.type == tar.FILE and name.endswith("/")):
        writer.make_folder(path, metadata=_metadata(member, FOLDER_MODE))
    elif header.type == tar.FILE:
        writer.put(path, member.body, metadata=_metadata(member, FILE_MODE))
    elif header.type == tar.LINK:
        target = decode_path(header.link_target)
        # Judged within the archive, so that `into` gives it no more room.
        known = _metadata(member, LINK_MODE)
        writer.link(path, target, metadata=known, root=below, may_lead_out=keep_outside_links)
    elif header.type == tar.HARD_LINK:
        writer.hard_link(below + _inner(decode_path(header.link_target)), path)
    else:
        raise BadInput(
            f"{name!r} is neither a file, a folder nor a link (type {header.type!r})",
            hint="Make the archive without devices and pipes.",
        )


def _inner(name: str) -> str:
    """Return a name without the './' that many archives begin all names with."""
    while name.startswith("./"):
        name = name[2:].lstrip("/")
    return "" if name == "." else name


def _header(file: FileInfo) -> Header:
    known = file.metadata
    kind = tar.FOLDER if file.is_folder else tar.LINK if file.is_link else tar.FILE
    return Header(
        name=name_bytes(file.path),
        type=kind,
        size_bytes=file.size_bytes,
        mode=file.mode,
        mtime_s=(known.mtime_ns or 0) // _NS_PER_S,
        uid=known.uid or 0,
        gid=known.gid or 0,
        link_target=name_bytes(known.link_target or ""),
        user=(known.user or "").encode(),
        group=(known.group or "").encode(),
    )


def _records(file: FileInfo) -> dict[str, bytes]:
    """Return what is known of a file and has no place in a header."""
    known = file.metadata
    records = {
        _XATTR + name.decode("utf-8", "surrogateescape"): value for name, value in known.xattrs
    }
    if known.mtime_ns is not None and known.mtime_ns % _NS_PER_S:
        sign, (seconds, rest) = "-" * (known.mtime_ns < 0), divmod(abs(known.mtime_ns), _NS_PER_S)
        records["mtime"] = f"{sign}{seconds}.{rest:09}".rstrip("0").encode()
    if known.sparse:
        records[_SPARSE] = b"1"
    return records


def _metadata(member: Member, usual_mode: int) -> Metadata:
    """Return what is worth keeping: what an export would not say by itself."""
    header = member.header
    return Metadata(
        mode=header.mode if header.mode != usual_mode else None,
        mtime_ns=member.mtime_ns or None,
        uid=header.uid or None,
        gid=header.gid or None,
        user=header.user.decode("utf-8", "replace") or None,
        group=header.group.decode("utf-8", "replace") or None,
        sparse=True if _SPARSE in member.records else None,
        xattrs=_xattrs(member),
    )


def _xattrs(member: Member) -> Xattrs:
    found = tuple(
        (key.removeprefix(_XATTR).encode("utf-8", "surrogateescape"), value)
        for key, value in sorted(member.records.items())
        if key.startswith(_XATTR)
    )
    if sum(len(name) + len(value) for name, value in found) > XATTRS_BYTES_MAX:
        raise BadInput(
            f"{member.header.name!r} has more than {XATTRS_BYTES_MAX} bytes of attributes",
            hint="Make the archive without them.",
        )
    return found


def _end(written_bytes: int) -> bytes:
    return b"\0" * (_END_BYTES + -(written_bytes + _END_BYTES) % RECORD_BYTES)
