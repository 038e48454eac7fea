"""Bodies in pieces: put together, and unpacked, within bounds.

A few bytes can stand for gigabytes, so every decoder gives its output in pieces, and their
reader can stop. zlib does that by itself. zstandard returns all that one call brings out; there
the *input* is cut small, because a block of four bytes can grow to 128 KiB and no further.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Protocol

import zstandard

# What one piece of output holds at most (zlib).
PIECE_BYTES = 64 * 1024
# 256 bytes of input are at most 64 blocks of 128 KiB (zstandard).
ZSTD_INPUT_BYTES = 256
ZSTD_OUTPUT_STEP_BYTES = 16 * 1024
# RFC 9659: what a decoder of this content encoding has to support, and no more.
ZSTD_WINDOW_MAX_BYTES = 8 * 1024 * 1024
# Members of a gzip body, or frames of a zstd one. Each costs a decoder, also an empty one.
MEMBERS_MAX = 1024
# After unpacking this much, others get their turn; what is larger grows in one block.
TURN_BYTES = 1024 * 1024
# Pieces below the first are put together as they come, to blocks of the second: a million of one
# byte would take a lot.
_SMALL_BYTES = 8 * 1024
_BLOCK_BYTES = 64 * 1024


class Undecodable(Exception):
    """The bytes are not what their encoding says. The message is for the sender."""


class Decoder(Protocol):
    """One encoding of one body."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield what the next bytes stand for, in bounded pieces."""

    def finish(self) -> None:
        """Raise `Undecodable` if the body ended too early."""


class GzipDecoder:
    """gzip: one or more members, perhaps with zeros behind the last."""

    def __init__(self) -> None:
        self._member: zlib._Decompress | None = None
        self._members = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._member is None:
                data = data.lstrip(b"\0") if self._members else data
                if not data:
                    return
                self._members = _one_more(self._members)
                self._member = zlib.decompressobj(wbits=31)
            yield from _inflate(self._member, data)
            if not self._member.eof:
                return
            data = self._member.unused_data
            self._member = None

    def finish(self) -> None:
        if self._member is not None or not self._members:
            raise Undecodable("the gzip body ends too early")


class DeflateDecoder:
    """deflate: zlib's format as the standard says, or bare as some clients send it."""

    def __init__(self) -> None:
        self._head = b""
        self._stream: zlib._Decompress | None = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._stream is None:
            data = self._head + data
            if len(data) < 2:  # noqa: PLR2004
                self._head = data
                return
            has_zlib_header = data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0  # noqa: PLR2004
            self._stream = zlib.decompressobj(wbits=15 if has_zlib_header else -15)
        if self._stream.eof and data:
            raise Undecodable("bytes follow the end of the deflate body")
        yield from _inflate(self._stream, data)
        if self._stream.unused_data:
            raise Undecodable("bytes follow the end of the deflate body")

    def finish(self) -> None:
        if self._stream is None or not self._stream.eof:
            raise Undecodable("the deflate body ends too early")


class ZstdDecoder:
    """zstd: one or more frames."""

    def __init__(self) -> None:
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_MAX_BYTES)
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._frames = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), ZSTD_INPUT_BYTES):
            rest = data[start : start + ZSTD_INPUT_BYTES]
            while rest:
                if self._frame is None:
                    self._frames = _one_more(self._frames)
                    self._frame = self._decompressor.decompressobj(ZSTD_OUTPUT_STEP_BYTES)
                try:
                    yield self._frame.decompress(rest)
                except zstandard.ZstdError as error:
                    raise Undecodable("the body is not valid zstd") from error
                if not self._frame.eof:
                    break
                rest = self._frame.unused_data
                self._frame = None

    def finish(self) -> None:
        if self._frame is not None or not self._frames:
            raise Undecodable("the zstd body ends too early")


DECODERS: dict[bytes, type[GzipDecoder | DeflateDecoder | ZstdDecoder]] = {
    b"gzip": GzipDecoder,
    b"x-gzip": GzipDecoder,
    b"deflate": DeflateDecoder,
    b"zstd": ZstdDecoder,
}


class Decoding:
    """A whole chain of encodings, undone from the last applied to the first."""

    def __init__(self, applied: list[bytes], max_bytes: int) -> None:
        """Make the decoders of known encodings, named in the order in which they were applied."""
        self._decoders: list[Decoder] = [DECODERS[name]() for name in reversed(applied)]
        # Also what lies between two encodings is bounded: no piece of it is kept, but it is work.
        self._left_bytes = [max_bytes] * len(applied)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield what the next bytes stand for; raises `TooMuch` at the bound."""
        return self._through(0, data)

    def _through(self, stage: int, data: bytes) -> Iterator[bytes]:
        if stage == len(self._decoders):
            yield data
            return
        for piece in self._decoders[stage].feed(data):
            self._left_bytes[stage] -= len(piece)
            if self._left_bytes[stage] < 0:
                raise TooMuch
            yield from self._through(stage + 1, piece)

    def finish(self) -> None:
        """Raise `Undecodable` if the body ended too early."""
        for decoder in self._decoders:
            decoder.finish()


class TooMuch(Exception):
    """The decoded body is over its bound."""


def _inflate(stream: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    """Yield all that zlib has for these bytes."""
    while True:
        try:
            piece = stream.decompress(data, PIECE_BYTES)
        except zlib.error as error:
            raise Undecodable("the compressed body is damaged") from error
        yield piece
        data = stream.unconsumed_tail
        # A full piece may leave output inside zlib though all input is consumed.
        if stream.eof or (not data and len(piece) < PIECE_BYTES):
            return


def _one_more(members: int) -> int:
    if members >= MEMBERS_MAX:
        raise Undecodable(f"the compressed body has more than {MEMBERS_MAX} members")
    return members + 1


class Pieces:
    """What has come of a body; never twice in memory.

    From `TURN_BYTES` on it grows in one block, which the C library enlarges by moving pages and not
    bytes, and which is the whole in the end. Pieces that are joined when all are there take as much
    again, for every body under way; and as they are small they come from the heap, which keeps its
    size ever after.
    """

    __slots__ = ("_blocks", "_grown", "_last", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = 0
        self._blocks: list[bytes] = []
        self._last = bytearray()
        # Takes the place of the others.
        self._grown: BytesIO | None = None

    def add(self, piece: bytes) -> None:
        """Take the next piece."""
        self.size_bytes += len(piece)
        if self._grown is not None:
            self._grown.write(piece)
            return
        if len(piece) < _SMALL_BYTES:
            self._last += piece
            if len(self._last) < _BLOCK_BYTES:
                return
            piece = b""
        if self._last:
            self._blocks.append(bytes(self._last))
            self._last.clear()
        if piece:
            self._blocks.append(piece)
        # One large piece stays as it is, for as long as it is alone.
        if self.size_bytes > TURN_BYTES and len(self._blocks) > 1:
            self._grown = BytesIO()
            self._grown.write(b"".join(self._blocks))
            self._blocks.clear()

    def whole(self) -> bytes:
        """Return all of it. One piece, or much of it, is not copied; no more can be added then."""
        if self._grown is not None:
            return self._grown.getvalue()
        return b"".join([*self._blocks, bytes(self._last)] if self._last else self._blocks)

    async def unpacked(self, decoding: Decoding, hold: Callable[[int], None]) -> bytes:
        """Return what all of it stands for; `hold` is told of every piece, and may raise."""
        out = Pieces()
        for block in self._packed_blocks():
            await out.unpack(decoding, block, hold)
        decoding.finish()
        return out.whole()

    def _packed_blocks(self) -> Iterator[bytes]:
        """Yield all of it in pieces that a decoder may copy again and again."""
        if self._grown is None:
            yield from self._blocks
            yield bytes(self._last)
            return
        with self._grown.getbuffer() as grown:
            for first in range(0, self.size_bytes, _BLOCK_BYTES):
                yield bytes(grown[first : first + _BLOCK_BYTES])

    async def unpack(self, decoding: Decoding, packed: bytes, hold: Callable[[int], None]) -> None:
        """Take what the next packed bytes stand for; others get their turn in between."""
        turn_ends_bytes = self.size_bytes + TURN_BYTES
        for piece in decoding.feed(packed):
            hold(len(piece))
            self.add(piece)
            if self.size_bytes >= turn_ends_bytes:
                turn_ends_bytes = self.size_bytes + TURN_BYTES
                await asyncio.sleep(0)
