"""Reading a request body: bounded in bytes, in time, and in what it unpacks to."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from holdfast.receive.admission import Admitted
from holdfast.receive.encodings import (
    DECODERS,
    ENCODINGS_MAX,
    Decoding,
    TooMuch,
    Undecodable,
)
from holdfast.receive.responses import Disconnected, Reason, Receive, Refused

# After unpacking this much, others get their turn; what is larger is put together in a thread.
_TURN_BYTES = 1024 * 1024
# Smaller pieces than this are put together as they come: a million of one byte would take a lot.
_BLOCK_BYTES = 64 * 1024


@dataclass(frozen=True)
class BodyLimits:
    """What one body may be."""

    # As it is sent, and unpacked.
    max_body_bytes: int
    max_expanded_bytes: int
    # The longest pause between two pieces.
    timeout_s: float
    # The slowest pace, once `timeout_s` has gone by.
    min_bytes_per_s: float


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
    limits: BodyLimits,
    admitted: Admitted,
) -> bytes:
    """Return the whole body, unpacked. Raises `Refused` or `Disconnected`."""
    if announced_bytes > limits.max_body_bytes:
        raise _too_large(limits.max_body_bytes, "limits.max_body_bytes")
    decoding = Decoding(encodings, limits.max_expanded_bytes) if encodings else None
    try:
        async with asyncio.timeout(limits.timeout_s) as timer:
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
    receive: Receive, limits: BodyLimits, admitted: Admitted, timer: asyncio.Timeout
) -> bytes:
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
    limits: BodyLimits,
    admitted: Admitted,
    timer: asyncio.Timeout,
) -> bytes:
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

    So the longest time a body may take is `timeout_s` + `max_body_bytes` / `min_bytes_per_s`.
    """

    def __init__(self, limits: BodyLimits, timer: asyncio.Timeout) -> None:
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
            slowest_s = self._started_s + self._came_bytes / limits.min_bytes_per_s
            self._timer.reschedule(min(self._loop.time(), slowest_s) + limits.timeout_s)


def _too_large(limit_bytes: int, option: str) -> Refused:
    return Refused(
        Reason.TOO_LARGE,
        f"the body is larger than {limit_bytes} bytes",
        f"send smaller events or batches, or raise {option}",
    )
