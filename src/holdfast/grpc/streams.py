"""Calls whose messages come and go one by one, either side of them.

Nothing is read ahead without bound. While the side that reads has not taken a message, what follows
it stays as bytes, no more than a window of them: the window of the stream opens when the message is
taken. So a peer that sends faster than it is read waits, and holds a message and a window at most;
all of it is counted in by whoever admits bytes. The window of the connection opens at once, for one
stream that waits must not stop the others. In the other direction a message is taken when the last
one is with the operating system.

A peer may send very many messages of no bytes at all: after a few of them without a pause, others
have their turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.grpc.messages import PREFIX_BYTES, Message, MessageReader
from holdfast.grpc.status import CallFailed, StatusCode

# Messages that one reader takes before others have their turn.
IN_A_ROW_MAX = 32
# How much is looked at for messages at once: it may be hundreds of them.
_PARSED_BYTES = 4096


class InboundMessages:
    """The messages that come on one stream."""

    def __init__(self, max_bytes: int, grant: Callable[[int], None]) -> None:
        """`grant` lets the peer send as much again."""
        self._reader = MessageReader(max_bytes)
        self._grant = grant
        self._loop = asyncio.get_running_loop()
        # What came behind a message that nobody has taken yet.
        self._unread = bytearray()
        self._messages: list[Message] = []
        self._ungranted_bytes = 0
        self._has_ended = False
        self._failure: CallFailed | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._in_a_row = 0

    @property
    def is_incomplete(self) -> bool:
        """Whether a message has begun, and its reader waits for the rest."""
        return not self._messages and not self._unread and not self._reader.is_between

    @property
    def waiting_bytes(self) -> int:
        """What came and the peer may not send again yet."""
        return self._ungranted_bytes

    def came(self, data: bytes) -> None:
        """Take bytes that were admitted."""
        self._ungranted_bytes += len(data)
        if not self._messages and not self._unread and len(data) <= self._reader.missing_bytes:
            # The middle of a large message, as most data is.
            self._parse(data)
        else:
            self._unread += data
        self._look_for_message()

    def end(self, failure: CallFailed | None = None) -> None:
        """Know that nothing more comes; what came is read first, unless it failed."""
        self._has_ended = True
        self._failure = self._failure or failure
        self._wake()

    async def next(self) -> Message | None:
        """Return the next message, None behind the last; raises `CallFailed`."""
        self._in_a_row += 1
        if self._in_a_row >= IN_A_ROW_MAX:
            self._in_a_row = 0
            await asyncio.sleep(0)
        while not self._messages:
            if self._failure is not None:
                raise self._failure
            if self._has_ended:
                if not self._reader.is_between:
                    raise CallFailed(
                        StatusCode.INVALID_ARGUMENT, "the stream ended within a message"
                    )
                return None
            self._waiting = self._loop.create_future()
            await self._waiting
        message = self._messages.pop(0)
        self._look_for_message()
        return message

    def _look_for_message(self) -> None:
        """Go through what is unread up to the next message; without one, let the peer send more."""
        while self._unread and not self._messages and self._failure is None:
            data = bytes(self._unread[:_PARSED_BYTES])
            del self._unread[:_PARSED_BYTES]
            self._parse(data)
        if self._messages or self._failure is not None:
            self._wake()
        elif self._ungranted_bytes:
            granted_bytes, self._ungranted_bytes = self._ungranted_bytes, 0
            self._grant(granted_bytes)

    def _parse(self, data: bytes) -> None:
        try:
            self._messages += self._reader.feed(data)
        except CallFailed as failure:
            self._failure = failure

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class OutboundMessages:
    """The messages that are sent on one stream."""

    def __init__(self, send_piece: Callable[[bytes], None]) -> None:
        self._send_piece = send_piece
        self._loop = asyncio.get_running_loop()
        self._is_busy = False
        self._waiting: list[asyncio.Future[None]] = []
        self._failure: CallFailed | None = None

    async def send(self, piece: bytes) -> None:
        """Send a message, when the last one is gone; raises `CallFailed`."""
        await self.until_sent()
        self._is_busy = True
        self._send_piece(piece)

    async def until_sent(self) -> None:
        """Wait until nothing is on its way; raises `CallFailed`."""
        while self._is_busy and self._failure is None:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(waiter)
            await waiter
        if self._failure is not None:
            raise self._failure

    def sent(self) -> None:
        """Know that the last message is gone."""
        self._is_busy = False
        self._wake()

    def end(self, failure: CallFailed) -> None:
        """Know that nothing can be sent any more."""
        self._failure = failure
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


def wire_bytes(message: Message) -> int:
    """Return how many bytes a message came with."""
    return message.pieces.size_bytes + PREFIX_BYTES
