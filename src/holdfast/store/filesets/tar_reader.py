"""Reads a tar archive of any maker as a stream: UStar, PAX, and GNU's long names and numbers.

Compressed archives are recognised by their first bytes, and decompressed as they are read.

Archives come from anybody, so everything that one could ask for is bounded: what describes an
entry, the memory that unpacking may take, how much a few packed bytes may become at once. Bodies
are streamed and never held.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, NamedTuple, Protocol

import zstandard

from holdfast.errors import BadInput, Damaged
from holdfast.store.filesets import header as tar
from holdfast.store.filesets.header import Header

READ_BLOCK_BYTES = 1024 * 1024
# What an archive may say about one entry before the entry: paths are much shorter.
EXTENSION_BYTES_MAX = 1024 * 1024

_ZEROS = b"\0" * tar.BLOCK_BYTES
_GNU_NAME = b"L"
_GNU_LINK = b"K"
_NS_PER_S = 1_000_000_000
# What 64 bits of nanoseconds and of a size can say; a record may hold any number of digits.
_TIME_S_MAX = 2**63 // _NS_PER_S
_DIGITS_MAX = 20


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
        # Whether zeros ended it. Without them it may have been cut off between two entries.
        self.has_end = False
        self._global: dict[str, bytes] = {}

    def members(self) -> Iterator[Member]:
        """Yield all entries; a damaged header or a missing end of an entry is an error.

        A missing end of the archive is none, because there are makers that write none. `has_end`
        says so afterwards.
        """
        extensions: dict[str, bytes] = {}
        while (header := self._header()) is not None:
            if header.type in (tar.PAX, tar.PAX_GLOBAL, _GNU_NAME, _GNU_LINK):
                self._extend(header, extensions)
                continue
            # What describes one entry wins over what describes all that follow, and counts for
            # that entry alone.
            member = self._member(header, {**self._global, **extensions})
            extensions = {}
            yield member
            # Whatever the caller did not read is passed over, or the next header would be looked
            # for in the middle of a body.
            for _ in member.body:
                pass
        if extensions:
            raise tar.damaged("the archive ends before an entry that it describes", self._place())

    def _header(self) -> Header | None:
        block = self._read(tar.BLOCK_BYTES)
        if block == _ZEROS:
            # Two of them end an archive, and what follows belongs to nobody. One is enough to know
            # that no entry is missing.
            self.has_end = True
            return None
        return tar.parse(block, self._place()) if block else None

    def _extend(self, header: Header, extensions: dict[str, bytes]) -> None:
        # Before it is read: a number in a header must not decide how much memory is taken.
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
        # PAX has fractions, the header has whole seconds; the record was written because they
        # differ.
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
        # Nothing else has a body, though some makers write the size of the file into the header of
        # a hard link.
        size_bytes = header.size_bytes if header.type == tar.FILE else 0
        return Member(header, mtime_ns, self._body(size_bytes), records)

    def _number(self, records: dict[str, bytes], key: str, otherwise: int) -> int:
        if key not in records:
            return otherwise
        if not records[key].isdigit() or len(records[key]) > _DIGITS_MAX:
            raise tar.damaged(f"{records[key]!r} is not a {key}", self._place())
        return int(records[key])

    def _time_ns(self, value: bytes) -> int:
        try:
            time_s = Decimal(value.decode("ascii"))
            # A few characters can name a number that takes minutes to write out.
            if not abs(time_s) < _TIME_S_MAX:
                raise ValueError(value)
            return int(time_s * _NS_PER_S)
        except (ArithmeticError, ValueError):
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


# What is read at a time.
READ_BYTES = 256 * 1024
# Memory that an archive may ask for to be unpacked: as much as `xz -9` and `zstd --long` need.
XZ_MEMORY_BYTES = 128 * 1024 * 1024
ZSTD_WINDOW_BYTES = 128 * 1024 * 1024
# What is unpacked of zstd at once: each 4 bytes become 128 kB at most, so all of it 64 MB.
ZSTD_STEP_BYTES = 2048

_HEAD_BYTES = 6


class _Xz:
    """What `lzma.LZMAFile` does, within bounds of memory."""

    def __init__(self, source: Readable) -> None:
        self._source = source
        self._stream = _new_xz()
        self._begun = False
        # Whether a stream came before: zeros may stand before this one then.
        self._follows = False

    def read(self, size: int, /) -> bytes:
        while True:
            packed = b""
            if self._stream.eof:
                # Streams may follow each other, with zeros between them; each is unpacked by a
                # decompressor of its own.
                packed, self._begun = self._stream.unused_data.lstrip(b"\0"), False
                self._stream, self._follows = _new_xz(), True
            if not packed and self._stream.needs_input:
                packed = self._source.read(READ_BYTES)
                if not packed and self._begun:
                    raise EOFError("it ends too early")
                if not packed:
                    return b""
                if self._follows and not self._begun:
                    packed = packed.lstrip(b"\0")
                    if not packed:
                        continue
            self._begun = True
            if data := self._stream.decompress(packed, size):
                return data


def _new_xz() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(memlimit=XZ_MEMORY_BYTES)


class _Zstd:
    """A stream of zstd frames. The library's own reader takes one that is cut off for its end."""

    def __init__(self, source: Readable) -> None:
        self._source = source
        self._unpacker = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES)
        self._frame = self._unpacker.decompressobj()
        self._begun = False
        self._packed = b""
        self._plain = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        while not self._plain.nbytes:
            if self._frame.eof:
                self._packed = self._frame.unused_data + self._packed
                self._frame, self._begun = self._unpacker.decompressobj(), False
            self._packed = self._packed or self._source.read(READ_BYTES)
            if not self._packed and self._begun:
                raise EOFError("it ends too early")
            if not self._packed:
                return b""
            # Little at a time, because there is no bound to what it becomes.
            some, self._packed = self._packed[:ZSTD_STEP_BYTES], self._packed[ZSTD_STEP_BYTES:]
            self._begun = True
            self._plain = memoryview(self._frame.decompress(some))
        data, self._plain = bytes(self._plain[:size]), self._plain[size:]
        return data


_KINDS: tuple[tuple[str, bytes, Callable[[Any], Readable]], ...] = (
    ("gzip", b"\x1f\x8b", lambda source: gzip.GzipFile(fileobj=source)),
    ("bzip2", b"BZh", bz2.BZ2File),
    ("xz", b"\xfd7zXZ\0", _Xz),
    ("zstd", b"\x28\xb5\x2f\xfd", _Zstd),
)
# Beginnings of what is often taken for a tar archive, and is none.
_OTHERS = ((b"PK", "a zip archive"), (b"7z\xbc\xaf", "a 7z archive"), (b"Rar!", "a rar archive"))


def unpacked(source: Readable) -> Readable:
    """Return the plain bytes of an archive, however it is compressed."""
    head = _head(source)
    for start, what in _OTHERS:
        if head.startswith(start):
            raise BadInput(
                f"it is {what}, not a tar archive", hint="Unpack it, and store the folder."
            )
    for name, start, opened in _KINDS:
        if head.startswith(start):
            return _Unpacked(name, opened(_Joined(head, source)))
    return _Joined(head, source)


def _head(source: Readable) -> bytes:
    head = b""
    while len(head) < _HEAD_BYTES and (more := source.read(_HEAD_BYTES - len(head))):
        head += more
    return head


class _Joined:
    """Bytes that were read already, and the rest."""

    def __init__(self, head: bytes, rest: Readable) -> None:
        self._head = head
        self._rest = rest

    def read(self, size: int, /) -> bytes:
        if not self._head:
            return self._rest.read(size)
        data, self._head = self._head[:size], self._head[size:]
        return data


class _Unpacked:
    """Plain bytes, whose errors say what they are about."""

    def __init__(self, name: str, stream: Readable) -> None:
        self._name = name
        self._stream = stream

    def read(self, size: int, /) -> bytes:
        try:
            return self._stream.read(size)
        except (EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError, OSError) as error:
            raise Damaged(
                f"the archive is compressed with {self._name}, and cannot be unpacked: {error}",
                hint="Take another copy of it, or unpack it by itself to see how far it is sound.",
            ) from error
