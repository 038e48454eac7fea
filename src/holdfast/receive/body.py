"""Reading a request body: bounded in bytes, in time, and in what it unpacks to.

A few bytes can stand for gigabytes, so every decoder gives its output in pieces, and their
reader can stop. zlib does that by itself. zstandard returns all that one call brings out; there
the *input* is cut small, because a block of four bytes can grow to 128 KiB and no further.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator
from typing import Protocol, Self

import zstandard
from pydantic import Field, model_validator

from holdfast.receive.admission import Admitted
from holdfast.receive.responses import Disconnected, Reason, Receive, Refused
from holdfast.settings import DurationS, FileSettings, SizeBytes

# What one piece of output holds at most (zlib).
PIECE_BYTES = 64 * 1024
# 256 bytes of input are at most 64 blocks of 128 KiB (zstandard).
ZSTD_INPUT_BYTES = 256
ZSTD_OUTPUT_STEP_BYTES = 16 * 1024
# RFC 9659: what a decoder of this content encoding has to support, and no more.
ZSTD_WINDOW_MAX_BYTES = 8 * 1024 * 1024
# Members of a gzip body, or frames of a zstd one. Each costs a decoder, also an empty one.
MEMBERS_MAX = 1024
# More than one is legal and unusual; each multiplies the work.
ENCODINGS_MAX = 3
# After unpacking this much, others get their turn; what is larger is put together in a thread.
_TURN_BYTES = 1024 * 1024
# Smaller pieces than this are put together as they come: a million of one byte would take a lot.
_BLOCK_BYTES = 64 * 1024
MB = 1024 * 1024


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


class RequestLimits(FileSettings):
    """Bounds of requests."""

    max_body_bytes: SizeBytes = Field(default=32 * MB, ge=1)
    """One body as it is sent; larger is 413."""
    max_expanded_bytes: SizeBytes = Field(default=32 * MB, ge=1)
    """One body unpacked; larger is 413."""
    max_batch_events: int = Field(default=10_000, ge=1)
    """Events in one batch; more is 413."""
    max_requests: int = Field(default=512, ge=1)
    """Requests under way at once; more are 503."""
    max_in_flight_bytes: SizeBytes = Field(default=128 * MB, ge=1)
    """Bodies under way at once, as sent and unpacked together; more is 503."""
    body_timeout_s: DurationS = Field(default=10.0, gt=0)
    """The longest pause of a client while it sends a body; longer is 503."""
    min_body_bytes_per_s: SizeBytes = Field(default=16 * 1024, ge=1)
    """The slowest pace of a body after `body_timeout`; slower is 503."""

    @model_validator(mode="after")
    def _one_body_fits(self) -> Self:
        if self.max_in_flight_bytes < self.max_body_bytes + self.max_expanded_bytes:
            raise ValueError(
                "max_in_flight_bytes must hold one body, as sent and unpacked "
                "(max_body_bytes + max_expanded_bytes)"
            )
        return self


def encodings_of(content_encoding: bytes) -> list[bytes]:
    """Return the encodings of a body in the order they were applied, without `identity`."""
    names = [name.strip().lower() for name in content_encoding.split(b",")]
    applied = [name for name in names if name not in (b"", b"identity")]
    if len(applied) > ENCODINGS_MAX or any(name not in DECODERS for name in applied):
        raise Refused(
            Reason.ENCODING,
            "the content encoding is not supported",
            "use gzip, deflate or zstd, or none",
            headers=((b"accept-encoding", b"gzip, deflate, zstd"),),
        )
    return applied


async def read_body(
    receive: Receive,
    announced_bytes: int,
    encodings: list[bytes],
    limits: RequestLimits,
    admitted: Admitted,
) -> bytes:
    """Return the whole body, unpacked. Raises `Refused` or `Disconnected`."""
    if announced_bytes > limits.max_body_bytes:
        raise _too_large(limits.max_body_bytes, "limits.max_body_bytes")
    decoding = Decoding(encodings, limits.max_expanded_bytes) if encodings else None
    try:
        async with asyncio.timeout(limits.body_timeout_s) as timer:
            if decoding is None:
                return await _read_plain(receive, limits, admitted, timer)
            return await _read_packed(receive, decoding, limits, admitted, timer)
    except TimeoutError:
        raise Refused(
            Reason.TIMEOUT,
            "the body came too slowly",
            "send it again; see limits.body_timeout_s and limits.min_body_bytes_per_s",
            headers=((b"connection", b"close"),),
        ) from None
    except TooMuch:
        raise _too_large(limits.max_expanded_bytes, "limits.max_expanded_bytes") from None
    except Undecodable as error:
        raise Refused(
            Reason.MALFORMED, str(error), "check Content-Encoding against what is sent"
        ) from None


async def _read_plain(
    receive: Receive, limits: RequestLimits, admitted: Admitted, timer: asyncio.Timeout
) -> bytes:
    """Read a body that is not compressed; one that came in one piece is not copied."""
    pace = _Pace(limits, timer)
    body, more = await _next_piece(receive, admitted, pace)
    if not more:
        return body
    pieces = _Pieces()
    pieces.add(body)
    while more:
        piece, more = await _next_piece(receive, admitted, pace)
        pieces.add(piece)
    return await pieces.joined()


async def _read_packed(
    receive: Receive,
    decoding: Decoding,
    limits: RequestLimits,
    admitted: Admitted,
    timer: asyncio.Timeout,
) -> bytes:
    """Read and unpack a body piece by piece, so that its bounds hold before it is all there."""
    pace = _Pace(limits, timer)
    pieces = _Pieces()
    turn_ends_bytes = _TURN_BYTES
    more = True
    while more:
        packed, more = await _next_piece(receive, admitted, pace)
        for piece in decoding.feed(packed):
            admitted.hold(len(piece))
            pieces.add(piece)
            if pieces.size_bytes >= turn_ends_bytes:
                turn_ends_bytes = pieces.size_bytes + _TURN_BYTES
                await asyncio.sleep(0)
    decoding.finish()
    return await pieces.joined()


class _Pieces:
    """What has come of a body."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._blocks: list[bytes] = []
        self._last = bytearray()

    def add(self, piece: bytes) -> None:
        self.size_bytes += len(piece)
        self._last += piece
        if len(self._last) >= _BLOCK_BYTES:
            self._blocks.append(bytes(self._last))
            self._last.clear()

    async def joined(self) -> bytes:
        """Return the whole. Copying much takes long, and needs no lock of the interpreter."""
        blocks = [*self._blocks, bytes(self._last)]
        if self.size_bytes <= _TURN_BYTES:
            return b"".join(blocks)
        return await asyncio.to_thread(b"".join, blocks)


async def _next_piece(receive: Receive, admitted: Admitted, pace: _Pace) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] != "http.request":
        raise Disconnected
    piece: bytes = message.get("body", b"")
    more: bool = message.get("more_body", False)
    pace.came(len(piece), more=more)
    admitted.received(len(piece))
    return piece, more


class _Pace:
    """Moves the deadline of the next piece: one pause from now, but never behind the slowest pace.

    So the longest that a body may take is
    `body_timeout_s` + `max_body_bytes` / `min_body_bytes_per_s`.
    """

    def __init__(self, limits: RequestLimits, timer: asyncio.Timeout) -> None:
        self._limits = limits
        self._timer = timer
        self._loop = asyncio.get_running_loop()
        self._started_s = self._loop.time()
        self._came_bytes = 0

    def came(self, size_bytes: int, *, more: bool) -> None:
        limits = self._limits
        self._came_bytes += size_bytes
        if self._came_bytes > limits.max_body_bytes:
            raise _too_large(limits.max_body_bytes, "limits.max_body_bytes")
        if more:
            slowest_s = self._started_s + self._came_bytes / limits.min_body_bytes_per_s
            self._timer.reschedule(min(self._loop.time(), slowest_s) + limits.body_timeout_s)


def _too_large(limit_bytes: int, option: str) -> Refused:
    return Refused(
        Reason.TOO_LARGE,
        f"the body is larger than {limit_bytes} bytes",
        f"send smaller events or batches, or raise {option}",
    )
