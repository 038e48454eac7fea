"""Archives that are compressed: recognised by how they begin, and opened as they are read."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable
from typing import Any

import zstandard

from holdfast.errors import BadInput, Damaged
from holdfast.store.filesets.tar_reader import Readable

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

    def read(self, size: int, /) -> bytes:
        while True:
            packed = b""
            if self._stream.eof:
                packed, self._begun = self._stream.unused_data.lstrip(b"\0"), False
                self._stream = _new_xz()
            if not packed and self._stream.needs_input:
                packed = self._source.read(READ_BYTES)
                if not packed and self._begun:
                    raise EOFError("it ends too early")
                if not packed:
                    return b""
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
