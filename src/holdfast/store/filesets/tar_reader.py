"""Reads a tar archive of any maker as a stream: UStar, PAX, and GNU's long names and numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import NamedTuple, Protocol

from holdfast.errors import BadInput
from holdfast.store.filesets import header as tar
from holdfast.store.filesets.header import Header

READ_BLOCK_BYTES = 1024 * 1024
# What an archive may say about one entry before the entry: paths are much shorter.
EXTENSION_BYTES_MAX = 1024 * 1024

_ZEROS = b"\0" * tar.BLOCK_BYTES
_GNU_NAME = b"L"
_GNU_LINK = b"K"
_NS_PER_S = 1_000_000_000


class Readable(Protocol):
    """Where an archive comes from."""

    def read(self, size: int, /) -> bytes: ...


class Member(NamedTuple):
    """One entry. Its body must be read, as far as it is wanted, before the next one is."""

    header: Header
    mtime_ns: int
    body: Iterator[bytes]
    records: Mapping[str, bytes]


class TarReader:
    """The entries of an archive, in its order."""

    def __init__(self, source: Readable, where: str = "the archive") -> None:
        self._source = source
        self._where = where
        self._at_bytes = 0
        self._global: dict[str, bytes] = {}

    def members(self) -> Iterator[Member]:
        """Yield all entries; a damaged header or a missing end of an entry is an error."""
        extensions: dict[str, bytes] = {}
        while (header := self._header()) is not None:
            if header.type in (tar.PAX, tar.PAX_GLOBAL, _GNU_NAME, _GNU_LINK):
                self._extend(header, extensions)
                continue
            member = self._member(header, {**self._global, **extensions})
            extensions = {}
            yield member
            for _ in member.body:
                pass

    def _header(self) -> Header | None:
        block = self._read(tar.BLOCK_BYTES)
        if not block or block == _ZEROS:
            return None  # two blocks of zeros end an archive; what follows belongs to nobody
        return tar.parse(block, self._place())

    def _extend(self, header: Header, extensions: dict[str, bytes]) -> None:
        if header.size_bytes > EXTENSION_BYTES_MAX:
            raise tar.damaged(f"an entry is described by {header.size_bytes} bytes", self._place())
        body = b"".join(self._body(header.size_bytes))
        if header.type == _GNU_NAME:
            extensions["path"] = body.rstrip(b"\0")
        elif header.type == _GNU_LINK:
            extensions["linkpath"] = body.rstrip(b"\0")
        else:
            records = tar.parse_pax(body, self._place())
            (self._global if header.type == tar.PAX_GLOBAL else extensions).update(records)

    def _member(self, header: Header, records: dict[str, bytes]) -> Member:
        if header.type == b"S" or any(key.startswith("GNU.sparse") for key in records):
            raise BadInput(
                f"{header.name!r} is stored with holes, in a way of GNU tar's own",
                hint="Make the archive without --sparse.",
            )
        mtime_ns = header.mtime_s * _NS_PER_S
        if "mtime" in records:
            mtime_ns = self._time_ns(records["mtime"])
        header = header._replace(
            name=records.get("path", header.name),
            link_target=records.get("linkpath", header.link_target),
            size_bytes=self._number(records, "size", header.size_bytes),
            uid=self._number(records, "uid", header.uid),
            gid=self._number(records, "gid", header.gid),
            user=records.get("uname", header.user),
            group=records.get("gname", header.group),
        )
        size_bytes = header.size_bytes if header.type == tar.FILE else 0
        return Member(header, mtime_ns, self._body(size_bytes), records)

    def _number(self, records: dict[str, bytes], key: str, otherwise: int) -> int:
        if key not in records:
            return otherwise
        if not records[key].isdigit():
            raise tar.damaged(f"{records[key]!r} is not a {key}", self._place())
        return int(records[key])

    def _time_ns(self, value: bytes) -> int:
        try:
            return int(Decimal(value.decode("ascii")) * _NS_PER_S)
        except (InvalidOperation, ValueError, OverflowError):
            raise tar.damaged(f"{value!r} is not a time", self._place()) from None

    def _body(self, size_bytes: int) -> Iterator[bytes]:
        left_bytes = size_bytes
        while left_bytes > 0:
            block = self._read(min(left_bytes, READ_BLOCK_BYTES))
            if not block:
                raise tar.damaged("the archive ends within an entry", self._place())
            left_bytes -= len(block)
            yield block
        padding_bytes = -size_bytes % tar.BLOCK_BYTES
        if len(self._read(padding_bytes)) != padding_bytes:
            raise tar.damaged("the archive ends within an entry", self._place())

    def _read(self, size_bytes: int) -> bytes:
        """Return so many bytes, or fewer at the end."""
        pieces = []
        while size_bytes > 0 and (piece := self._source.read(size_bytes)):
            pieces.append(piece)
            size_bytes -= len(piece)
            self._at_bytes += len(piece)
        return b"".join(pieces)

    def _place(self) -> str:
        return f"{self._where}, before byte {self._at_bytes}"
