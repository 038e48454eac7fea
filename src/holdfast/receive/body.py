"""Reading a request body: bounded in bytes, in time, and in what it unpacks to.

A client decides how much it sends and how slowly. Each of these bounds is checked while the body
comes in, because afterwards the memory is taken: the announced length first, then what really
came, then what it unpacks to. A body that stalls is ended by its pace, so that a few hundred idle
connections cannot hold all the places for requests.
"""

from __future__ import annotations

import asyncio
from typing import Self

from pydantic import Field, model_validator

from holdfast.bodies import DECODERS, Decoding, Pieces, TooMuch, Undecodable
from holdfast.receive.admission import Admitted
from holdfast.receive.responses import Disconnected, Reason, Receive, Refused
from holdfast.settings import DurationS, FileSettings, SizeBytes

MB = 1024 * 1024
# More than one is legal and unusual; each multiplies the work.
ENCODINGS_MAX = 3


class BodyLimits(FileSettings):
    """Bounds of requests, whatever they carry."""

    max_body_bytes: SizeBytes = Field(default=32 * MB, ge=1)
    """One body as it is sent; larger is 413."""
    max_expanded_bytes: SizeBytes = Field(default=32 * MB, ge=1)
    """One body unpacked; larger is 413."""
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
                "max_in_flight_size must hold one body, as sent and unpacked "
                "(max_body_size + max_expanded_size)"
            )
        return self


class RequestLimits(BodyLimits):
    """Bounds of requests."""

    max_batch_events: int = Field(default=10_000, ge=1)
    """Events in one batch; more is 413."""


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
        raise _too_large(limits.max_body_bytes, "limits.max_body_size")
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
            "send it again; see limits.body_timeout and limits.min_body_bytes_per_s",
            headers=((b"connection", b"close"),),
        ) from None
    except TooMuch:
        raise _too_large(limits.max_expanded_bytes, "limits.max_expanded_size") from None
    except Undecodable as error:
        raise Refused(
            Reason.MALFORMED, str(error), "check Content-Encoding against what is sent"
        ) from None


async def _read_plain(
    receive: Receive, limits: BodyLimits, admitted: Admitted, timer: asyncio.Timeout
) -> bytes:
    """Read a body that is not compressed; one that came in one piece is not copied."""
    pace = _Pace(limits, timer)
    body, more = await _next_piece(receive, admitted, pace)
    # Nearly all events are that small, and copying is most of what reading would cost.
    if not more:
        return body
    pieces = Pieces()
    pieces.add(body)
    while more:
        piece, more = await _next_piece(receive, admitted, pace)
        pieces.add(piece)
    return pieces.whole()


async def _read_packed(
    receive: Receive,
    decoding: Decoding,
    limits: BodyLimits,
    admitted: Admitted,
    timer: asyncio.Timeout,
) -> bytes:
    """Read and unpack a body piece by piece, so that its bounds hold before it is all there."""
    pace = _Pace(limits, timer)
    pieces = Pieces()
    more = True
    while more:
        packed, more = await _next_piece(receive, admitted, pace)
        await pieces.unpack(decoding, packed, admitted.hold)
    # A stream that was cut off unpacks without complaint up to where it ends; only its trailer
    # shows it.
    decoding.finish()
    return pieces.whole()


async def _next_piece(receive: Receive, admitted: Admitted, pace: _Pace) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] != "http.request":
        raise Disconnected
    piece: bytes = message.get("body", b"")
    more: bool = message.get("more_body", False)
    # Before the bytes are counted as held: a body over its own bound is 413, not a reason to
    # answer 503 to everybody.
    pace.came(len(piece), more=more)
    admitted.received(len(piece))
    return piece, more


class _Pace:
    """Moves the deadline of the next piece: one pause from now, but never behind the slowest pace.

    So the longest that a body may take is
    `body_timeout_s` + `max_body_bytes` / `min_body_bytes_per_s`.
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
            raise _too_large(limits.max_body_bytes, "limits.max_body_size")
        if more:
            # The pace alone would give a large body hours at its beginning; a pause alone would let
            # a client send a byte every few seconds for ever. Each bounds the other.
            slowest_s = self._started_s + self._came_bytes / limits.min_body_bytes_per_s
            self._timer.reschedule(min(self._loop.time(), slowest_s) + limits.body_timeout_s)


def _too_large(limit_bytes: int, option: str) -> Refused:
    return Refused(
        Reason.TOO_LARGE,
        f"the body is larger than {limit_bytes} bytes",
        f"send smaller events or batches, or raise {option}",
    )
