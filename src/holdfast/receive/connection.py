"""One connection of a client: uvicorn's protocol with bounds on time, bytes and requests.

uvicorn parses (httptools), runs the app and writes its answer. It leaves some things open that a
server on a network cannot:

- how long a client may take to send its headers, and how large they may be;
- how much of a body is read whose request was answered already (413, 401, 503 …). It is read and
  forgotten up to a bound: closing at once would make the kernel send a reset, and the client would
  see a broken connection instead of its answer;
- how many requests may be sent ahead of their answers (pipelining);
- how long a client may leave its answers unread;
- what an unreadable request does to the answers still under way: they are given first.

Deadlines are plain numbers. The server looks at them now and then (`expire`), so that a request
costs no timer.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum, auto
from http import HTTPStatus
from typing import Any

import httptools
from pydantic import Field
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from holdfast.receive.answers import Answer, Reason, refusal
from holdfast.settings import DurationS, Settings, SizeBytes

_NEVER_S = math.inf
# Connections beyond the bound that are being told so; more of them are cut without a word.
REFUSED_AT_ONCE_MAX = 64

_COMPLAINTS = {
    Reason.MALFORMED: refusal(
        Reason.MALFORMED, "this is not a valid HTTP request", "speak HTTP/1.1; check the framing"
    ),
    Reason.HEADER_TOO_LARGE: refusal(
        Reason.HEADER_TOO_LARGE,
        "the request's headers are too large",
        "send fewer or smaller headers, or raise connections.max_header_bytes",
    ),
    Reason.BUSY: refusal(
        Reason.BUSY, "too many connections are open", "reuse connections, or try again later"
    ),
}


class ConnectionSettings(Settings):
    """Bounds of the connections of one listening port."""

    max_connections: int = Field(default=1024, ge=1)
    """Open connections; more are answered 503 and closed."""
    backlog: int = Field(default=1024, ge=1)
    """Connections that the kernel holds until they are taken."""
    header_timeout_s: DurationS = Field(default=10.0, gt=0)
    """From the first byte of a request (or the connection) to the end of its headers; also the
    longest TLS handshake."""
    keep_alive_s: DurationS = Field(default=65.0, gt=0)
    """How long a connection may be idle between two requests."""
    send_timeout_s: DurationS = Field(default=30.0, gt=0)
    """How long a client may leave answers unread before it is cut off."""
    max_header_bytes: SizeBytes = Field(default=64 * 1024, ge=1024)
    """All headers of one request."""
    max_pipelined_requests: int = Field(default=16, ge=1)
    """Requests sent ahead of their answers on one connection; then the rest is not read."""
    max_unread_bytes: SizeBytes = 64 * 1024 * 1024
    """How much of the body of a refused request is read (and forgotten) to keep its connection."""
    unread_timeout_s: DurationS = Field(default=5.0, gt=0)
    """How long that may take."""


@dataclass
class ConnectionCounts:
    """What the connections of one server have in common."""

    # Those beyond the bound, while they are told so.
    refused: set[BoundedConnection] = field(default_factory=set)
    # Requests that no app saw, by reason; a refused connection counts as one.
    rejected: Counter[str] = field(default_factory=Counter)
    # Bytes of bodies that nobody wanted any more.
    unread_bytes: int = 0


class _Phase(Enum):
    """Where in a request the next byte belongs."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()


class _HeadTooLarge(Exception):
    pass


class _TooManyPipelined(Exception):
    pass


class BoundedConnection(HttpToolsProtocol):
    """A connection that ends when its client is too slow, too large or unreadable."""

    def __init__(
        self,
        settings: ConnectionSettings,
        counts: ConnectionCounts,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._settings = settings
        self._counts = counts
        self._phase = _Phase.IDLE
        self._deadline_s = _NEVER_S
        self._write_deadline_s = _NEVER_S
        self._head_bytes = 0
        self._unread_bytes = 0
        # Nothing more is parsed: the client is unreadable, or gone for sending, or one too many.
        self._deaf = False
        self._refused = False
        # What is said before the connection is closed, once all answers are given.
        self._last_words = b""

    # ------------------------------------------------------------ the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self._settings.max_connections:
            self._refuse(transport)
            return
        super().connection_made(transport)
        self._deadline_s = self.loop.time() + self._settings.header_timeout_s
        connection: socket.socket | None = transport.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            # So that the kernel finds out about clients that vanished without a word.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._refused:
            self._counts.refused.discard(self)
            return
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        was_in_head = self._phase is _Phase.HEAD
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._pass_over(data[offer.args[0] :])
        except httptools.HttpParserError as error:
            self._break_off(_complaint(error))
        else:
            # The parser shows a header only once it is complete.
            if was_in_head and self._phase is _Phase.HEAD:
                self._head_bytes += len(data)
                if self._head_bytes > self._settings.max_header_bytes:
                    self._break_off(Reason.HEADER_TOO_LARGE)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Stay open for an answer that is under way: some clients close their side early."""
        if self._refused:
            return False
        wants_answer = self._is_answering() and self._phase is _Phase.IDLE
        if not wants_answer or self.scheme == "https":
            return False
        self._deaf = True
        return True

    def pause_writing(self) -> None:
        self._write_deadline_s = self.loop.time() + self._settings.send_timeout_s
        super().pause_writing()

    def resume_writing(self) -> None:
        self._write_deadline_s = _NEVER_S
        super().resume_writing()

    # --------------------------------------------------------------- the parser

    def on_message_begin(self) -> None:
        self._phase = _Phase.HEAD
        self._head_bytes = 0
        self._deadline_s = self.loop.time() + self._settings.header_timeout_s
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= self._settings.max_pipelined_requests:
            raise _TooManyPipelined
        super().on_headers_complete()
        # From here on the app has the time in its hands.
        self._phase = _Phase.BODY
        self._deadline_s = _NEVER_S

    def on_body(self, body: bytes) -> None:
        if self.cycle.response_complete:
            self._counts.unread_bytes += len(body)
            self._unread_bytes += len(body)
            if self._unread_bytes > self._settings.max_unread_bytes:
                self._deaf = True
                self.transport.abort()
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # the parser takes what follows for another protocol: see `_pass_over`
        self._phase = _Phase.IDLE
        if self.cycle.response_complete:
            self._deadline_s = self.loop.time() + self._settings.keep_alive_s
        super().on_message_complete()

    # ------------------------------------------------------------------ answers

    def on_response_complete(self) -> None:
        """Go on with what was sent ahead, or wait for what comes, until a deadline."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            self._deadline_s = self.loop.time() + self._settings.send_timeout_s
        elif self.pipeline:
            self.flow.resume_reading()
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        elif self._deaf:
            self._close()
        else:
            self.flow.resume_reading()
            if self._phase is _Phase.BODY:
                self._unread_bytes = 0
                self._deadline_s = self.loop.time() + self._settings.unread_timeout_s
            elif self._phase is _Phase.IDLE:
                self._deadline_s = self.loop.time() + self._settings.keep_alive_s

    def expire(self, now_s: float) -> None:
        """Close the connection if its client had its time."""
        if now_s < min(self._deadline_s, self._write_deadline_s):
            return
        if now_s >= self._write_deadline_s or self.transport.is_closing():
            # It reads nothing; a close that waits for it to do so would wait for ever.
            self.transport.abort()
        else:
            self._deadline_s = _NEVER_S
            if self._phase is _Phase.HEAD:
                self._counts.rejected[Reason.TIMEOUT] += 1
            self._break_off(None)

    # ----------------------------------------------------------------- in here

    def _count_head(self, size_bytes: int) -> None:
        self._head_bytes += size_bytes
        if self._head_bytes > self._settings.max_header_bytes:
            raise _HeadTooLarge

    def _is_answering(self) -> bool:
        # uvicorn says that it is never None; before the first request it is.
        return self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]

    def _break_off(self, complaint: Reason | None) -> None:
        """Read nothing more; give the answers that are due, complain, and close."""
        self._deaf = True
        if complaint is not None:
            self._counts.rejected[complaint] += 1
            self._last_words = response_bytes(_COMPLAINTS[complaint])
        if self._phase is _Phase.BODY and self._is_answering():
            if not self.pipeline:
                # The app waits for the rest of this very request; closing tells it.
                if self.cycle.response_started:
                    self._last_words = b""
                self._close()
                return
            self.pipeline.popleft()  # the newest; it will never be complete
        elif not self._is_answering():
            self._close()

    def _pass_over(self, rest: bytes) -> None:
        """Read the body of a request that offers another protocol, as if it did not.

        Java's own HTTP client offers HTTP/2 with the first POST it sends. An offer may be passed
        over; the event in that request may not.
        """
        framing = [
            name + b": " + value + b"\r\n"
            for name, value in self.headers
            if name in (b"content-length", b"transfer-encoding")
        ]
        self.cycle.keep_alive = False
        self.parser = httptools.HttpRequestParser(_BodyOnly(self))
        self.data_received(b"".join([b"POST / HTTP/1.1\r\n", *framing, b"\r\n", rest]))

    def end_of_body_only(self) -> None:
        """Take the body as complete, and nothing behind it."""
        self.on_message_complete()
        self._deaf = True

    def _close(self) -> None:
        """Say the last words and close, as soon as the client has read them."""
        if self._last_words:
            self.transport.write(self._last_words)
        self.transport.close()
        self._deadline_s = self.loop.time() + self._settings.send_timeout_s

    def _refuse(self, transport: asyncio.Transport) -> None:
        """Tell a client that there is no room; it is not one of the connections."""
        self._refused = self._deaf = True
        self.transport = transport
        self._counts.refused.add(self)
        self._counts.rejected[Reason.BUSY] += 1
        if len(self._counts.refused) > REFUSED_AT_ONCE_MAX:
            transport.abort()
            return
        transport.write(response_bytes(_COMPLAINTS[Reason.BUSY]))
        # What the client sends meanwhile is forgotten; a close with unread bytes would be a reset.
        self.loop.call_later(self._settings.unread_timeout_s, transport.abort)


def _complaint(error: httptools.HttpParserError) -> Reason | None:
    """Return what to say about a request that the parser, or a bound in here, stopped at."""
    if isinstance(error.__context__, _TooManyPipelined):
        return None
    if isinstance(error.__context__, _HeadTooLarge):
        return Reason.HEADER_TOO_LARGE
    return Reason.MALFORMED


class _BodyOnly:
    """What a parser tells of a request whose head is known already: its body, once."""

    def __init__(self, connection: BoundedConnection) -> None:
        self._connection: BoundedConnection | None = connection

    def on_body(self, body: bytes) -> None:
        if self._connection is not None:
            self._connection.on_body(body)

    def on_message_complete(self) -> None:
        if self._connection is not None:
            self._connection.end_of_body_only()
            self._connection = None


def response_bytes(answer: Answer) -> bytes:
    """Return an answer as it is written where there is no request to answer; closes."""
    lines = [
        b"HTTP/1.1 %d %s" % (answer.status, HTTPStatus(answer.status).phrase.encode()),
        b"content-type: application/json",
        b"content-length: %d" % len(answer.body),
        *(name + b": " + value for name, value in answer.headers),
        b"connection: close",
        b"",
        answer.body,
    ]
    return b"\r\n".join(lines)
