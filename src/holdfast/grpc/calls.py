"""Calls as methods see them.

A method is an async function from a message to a message (`Method`); one that answers most calls
without waiting can take them by a plain call (`FastMethod`), and one whose messages come and go one
by one talks to a `ServerStream` (`StreamMethod`). None sees frames or windows.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import Protocol, runtime_checkable

from holdfast.grpc.engine import HeaderList
from holdfast.grpc.http2 import Http2
from holdfast.grpc.messages import ACCEPT_ENCODING, IDENTITY, Message, MessageReader, framed
from holdfast.grpc.status import CallFailed
from holdfast.grpc.streams import InboundMessages, OutboundMessages, wire_bytes

NEVER_S = math.inf
RESPONSE = (
    (b":status", b"200"),
    (b"content-type", b"application/grpc"),
    (b"grpc-accept-encoding", ACCEPT_ENCODING),
)


class CallPlace(Protocol):
    """What one call holds of the bounds that all share."""

    def received(self, size_bytes: int) -> None:
        """Count bytes as they came, and hold them, or raise."""

    def hold(self, size_bytes: int) -> None:
        """Hold some more, or raise."""

    def give_back(self, size_bytes: int) -> None:
        """Give back some of what is held."""

    def leave(self) -> None:
        """Give everything back; called once."""


class CallGate(Protocol):
    """Who may call, and how much may be under way."""

    def enter(self, path: bytes, headers: HeaderList) -> CallPlace:
        """Return the place of a call, or raise."""

    def failure(self, error: BaseException) -> CallFailed:
        """Count a call that failed, and return what its client is told."""


class CallConnection(Protocol):
    """The connection of a call."""

    http2: Http2

    def answered(self, call: ServerCall, body: bytes) -> None:
        """End a call with its answer."""

    def failed(self, call: ServerCall, error: BaseException) -> None:
        """End a call with a failure."""

    async def unpacked(
        self, call: ServerCall, message: Message, hold: Callable[[int], None]
    ) -> bytes:
        """Return what a compressed message stands for."""


class Method(Protocol):
    """What is done with the calls of one path."""

    async def handle(self, body: bytes, call: ServerCall) -> bytes:
        """Return the answer to a message, or raise."""


@runtime_checkable
class FastMethod(Method, Protocol):
    """One that takes ordinary calls without waiting."""

    def offer(self, body: bytes, call: ServerCall) -> bool:
        """Take a call, and `answer` or `fail` it later, once; or return False, nothing done."""


class StreamMethod(Protocol):
    """What is done with the calls of one path that have any number of messages."""

    async def converse(self, stream: ServerStream) -> None:
        """Receive and send until it returns, which ends the call well, or raises."""


class ServerCall:
    """One call, until it is answered."""

    __slots__ = (
        "_connection",
        "came_bytes",
        "deadline_s",
        "encoding",
        "has_begun",
        "headers",
        "is_over",
        "message",
        "method",
        "path",
        "place",
        "reader",
        "seen_s",
        "started_s",
        "stream",
        "stream_id",
        "task",
    )

    def __init__(
        self, connection: CallConnection, stream_id: int, headers: HeaderList, now_s: float
    ) -> None:
        self._connection = connection
        self.stream_id = stream_id
        self.headers = headers
        self.path = b""
        self.encoding = IDENTITY
        # When the client gives up, by the loop's clock.
        self.deadline_s = NEVER_S
        self.started_s = self.seen_s = now_s
        self.came_bytes = 0
        self.method: Method | None = None
        self.place: CallPlace | None = None
        self.reader: MessageReader | None = None
        self.message: Message | None = None
        # Its message is complete, and its method has it.
        self.has_begun = False
        # Nobody waits for its answer any more.
        self.is_over = False
        self.task: asyncio.Task[None] | None = None
        # Of a method that takes any number of messages.
        self.stream: ServerStream | None = None

    def header(self, name: bytes) -> bytes:
        """Return the value of a header; the last one if there are several, empty if none."""
        return next((value for key, value in reversed(self.headers) if key == name), b"")

    def answer(self, body: bytes) -> None:
        """Send the answer, and end the call."""
        self._connection.answered(self, body)

    def fail(self, error: BaseException) -> None:
        """End the call with a failure."""
        self._connection.failed(self, error)


class ServerStream:
    """The messages of one call, as its method sees them."""

    def __init__(self, call: ServerCall, connection: CallConnection, max_bytes: int) -> None:
        self.call = call
        self._connection = connection
        http2, stream_id = connection.http2, call.stream_id
        self.inbound = InboundMessages(max_bytes, partial(http2.granted_stream, stream_id))
        self.outbound = OutboundMessages(partial(http2.send_piece, stream_id))
        self.has_headers = False
        # The client was told to go away: nothing more is waited for.
        self.is_leaving = asyncio.Event()
        # What the message at hand holds.
        self._held_bytes = 0

    async def receive(self) -> bytes | None:
        """Return the next message; None if there is none, or the connection is to end.

        The one before is done with, and gives back what it held.
        """
        place = self.call.place
        assert place is not None, "BUG: a call without a place"
        place.give_back(self._held_bytes)
        self._held_bytes = 0
        message = await self.inbound.next()
        if message is None:
            return None
        self._held_bytes = wire_bytes(message)
        if not message.is_packed:
            return message.pieces.whole()
        return await self._connection.unpacked(self.call, message, self._hold)

    def _hold(self, size_bytes: int) -> None:
        assert self.call.place is not None, "BUG: a call without a place"
        self.call.place.hold(size_bytes)
        self._held_bytes += size_bytes

    async def send(self, body: bytes) -> None:
        """Send a message, as soon as the one before is gone; raises `CallFailed`."""
        await self.outbound.until_sent()
        if not self.has_headers:
            self.has_headers = True
            self._connection.http2.send_headers(self.call.stream_id, RESPONSE)
        await self.outbound.send(framed(body))

    def leave(self) -> None:
        """Wait for no more messages."""
        self.is_leaving.set()
        self.inbound.end()
