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

A task, its scope, its events and its two messages cost a small request more than all that is done
about it. So an app may have a fast path (`FastPath`): a small request to one of its targets is held
back until it is complete, and then handed over by a call. What the fast path does not accept takes
the slow one, as do requests that are large, slow, broken off, sent ahead, or special in any way.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Protocol, cast

import httptools
from pydantic import Field
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from holdfast.quiver import Receipt
from holdfast.receive.responses import (
    OnStored,
    Reason,
    Respond,
    Response,
    content_length,
    refusal,
)
from holdfast.settings import DurationS, FileSettings, SizeBytes

_NEVER_S = math.inf
# Connections beyond the bound that are being told so; more of them are cut without a word.
REFUSED_CONNECTIONS_MAX = 64
# The most of a body that is held back for the fast path, until the server next looks at deadlines,
# unless the app says otherwise. No app has admitted these bytes yet, so that there is a bound for
# all connections together, too.
HELD_BYTES_MAX = 64 * 1024
HELD_BYTES_MAX_TOGETHER = 16 * 1024 * 1024
# In so many pieces at most: each of them takes memory besides, and a body in more is special.
_HELD_PIECES_MAX = 256

_COMPLAINTS = {
    Reason.MALFORMED: refusal(
        Reason.MALFORMED, "this is not a valid HTTP request", "speak HTTP/1.1; check the framing"
    ),
    Reason.HEADER_TOO_LARGE: refusal(
        Reason.HEADER_TOO_LARGE,
        "the request's headers are too large",
        "send fewer or smaller headers, or raise connections.max_header_size",
    ),
    Reason.BUSY: refusal(
        Reason.BUSY, "too many connections are open", "reuse connections, or try again later"
    ),
}


class ConnectionSettings(FileSettings):
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

    # Those beyond the bound, until they have been refused.
    refused: set[BoundedConnection] = field(default_factory=set)
    # Requests that no app saw, by reason; a refused connection counts as one.
    rejected: Counter[str] = field(default_factory=Counter)
    # Bytes of bodies that nobody wanted any more.
    unread_bytes: int = 0
    # Bytes of bodies that are held back for the fast path now.
    held_bytes: int = 0


class _Phase(Enum):
    """Where in a request the next byte belongs."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()


class _HeadTooLarge(Exception):
    pass


class _TooManyPipelined(Exception):
    pass


class FastPath(Protocol):
    """The fast path of an app."""

    @property
    def fast_targets(self) -> Container[bytes]:
        """Request targets (path and query, as sent) of POSTs that may take the fast path."""

    @property
    def held_bytes_max(self) -> int:
        """The largest body that may take it."""

    def accept_fast(
        self,
        target: bytes,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
        on_stored: OnStored,
    ) -> Respond | None:
        """Take a whole request, and call `on_stored` later, once; None: nothing was done.

        Returns what makes the response of that outcome; to be called exactly once, also if the
        client has gone away, because it counts.
        """


class BoundedConnection(HttpToolsProtocol):
    """A connection that ends when its client is too slow, too large or unreadable."""

    def __init__(
        self,
        settings: ConnectionSettings,
        counts: ConnectionCounts,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        fast_path: FastPath | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._settings = settings
        self._counts = counts
        self._fast_path = fast_path
        # What came of a body that may take the fast path, once its headers are complete.
        self._held: list[bytes] | None = None
        self._held_bytes = 0
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
        # Told so, and not left in the kernel's queue: a client that waits there learns nothing and
        # cannot go elsewhere.
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
        if self._held is not None:
            self._take_slow_path()
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
            elif self._held is not None and self._holds_too_much():
                self._take_slow_path()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Stay open for an answer that is due: some clients close their side early.

        One that has begun and goes on is a stream (the console's figures): its page is closed.
        """
        if self._refused:
            return False
        is_due = self._is_answering() and not self.cycle.response_started
        wants_answer = is_due and self._phase is _Phase.IDLE
        if not wants_answer or self.scheme == "https":
            return False
        self._deaf = True
        return True

    def pause_writing(self) -> None:
        # The client reads more slowly than it is answered. Its answers stay in memory until then,
        # so it has this long, whatever else it does.
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
        self._head_bytes += len(url)
        if self._head_bytes > self._settings.max_header_bytes:
            raise _HeadTooLarge
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > self._settings.max_header_bytes:
            raise _HeadTooLarge
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= self._settings.max_pipelined_requests:
            raise _TooManyPipelined
        self._phase = _Phase.BODY
        self._deadline_s = _NEVER_S
        if self._may_take_fast_path():
            self._held = []
        else:
            # From here on the app has the time in its hands.
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._held is not None:
            self._held.append(body)
            self._held_bytes += len(body)
            self._counts.held_bytes += len(body)
            return
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
        if self._held is not None:
            assert self._fast_path is not None
            request = _FastRequest(self, keep_alive=self.parser.should_keep_alive())
            body = self._let_go()
            request.respond = self._fast_path.accept_fast(
                self.url, self.headers, body, request.stored
            )
            if request.respond is not None:
                self.cycle = cast(RequestResponseCycle, request)
                # While it is under way the server counts it as it counts the tasks of the others.
                self.tasks.add(cast("asyncio.Task[None]", request))
                return
            self._begin(body)
        if self.cycle.response_complete:
            self._deadline_s = self.loop.time() + self._settings.keep_alive_s
        super().on_message_complete()

    # ------------------------------------------------------------------ answers

    def on_response_complete(self) -> None:
        """Go on with what was sent ahead, or wait for what comes, until a deadline.

        In place of uvicorn's, which sets a timer for every answer, and has no bound for a body that
        still comes after it was refused.
        """
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
        if self._held is not None:
            # It came partly, and an app knows how long the rest may take.
            self._take_slow_path()
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

    def shutdown(self) -> None:
        if self._held is not None:
            self._take_slow_path()
        super().shutdown()

    # ------------------------------------------------------------ the fast path

    def _may_take_fast_path(self) -> bool:
        """Whether nothing about a request is special: known by its head, before its body came."""
        return (
            self._fast_path is not None
            and self.url in self._fast_path.fast_targets
            and self.parser.get_method() == b"POST"
            and self.parser.get_http_version() == "1.1"
            and not self.expect_100_continue
            and not self.parser.should_upgrade()
            and not self.flow.write_paused
            and not self._is_answering()
            and self._announced_bytes() <= self._fast_path.held_bytes_max
        )

    def _announced_bytes(self) -> int:
        """Return how long a request says that its body is; 0 if it does not."""
        lengths = [value for name, value in self.headers if name == b"content-length"]
        return content_length(lengths[0]) if lengths else 0

    def _holds_too_much(self) -> bool:
        assert self._held is not None
        assert self._fast_path is not None
        return (
            self._held_bytes > self._fast_path.held_bytes_max
            or self._counts.held_bytes > HELD_BYTES_MAX_TOGETHER
            or len(self._held) > _HELD_PIECES_MAX
        )

    def _let_go(self) -> bytes:
        """Hold nothing back any more; return what came of the body."""
        assert self._held is not None
        held, self._held = self._held, None
        self._counts.held_bytes -= self._held_bytes
        self._held_bytes = 0
        return b"".join(held)

    def _take_slow_path(self) -> None:
        """Hand over a request that was held back."""
        self._begin(self._let_go())

    def _begin(self, came: bytes) -> None:
        """Begin a request, with what came of its body."""
        super().on_headers_complete()
        if came:
            super().on_body(came)

    # ----------------------------------------------------------------- in here

    def _is_answering(self) -> bool:
        # uvicorn says that it is never None; before the first request it is.
        return self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]

    def _break_off(self, complaint: Reason | None) -> None:
        """Read nothing more; give the answers that are due, complain, and close."""
        if self._held is not None:
            self._take_slow_path()
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
        if len(self._counts.refused) > REFUSED_CONNECTIONS_MAX:
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


class _FastRequest:
    """A request on the fast path: what uvicorn's protocol asks of a request's cycle."""

    __slots__ = ("_connection", "disconnected", "keep_alive", "respond", "response_complete")

    def __init__(self, connection: BoundedConnection, *, keep_alive: bool) -> None:
        self._connection = connection
        self.keep_alive = keep_alive
        self.disconnected = False
        self.response_complete = False
        # None until the app has taken it.
        self.respond: Respond | None = None

    @property
    def response_started(self) -> bool:
        return self.response_complete

    @property
    def message_event(self) -> _FastRequest:
        return self

    def set(self) -> None:
        """Nobody waits for news of the client: its request is complete."""

    def cancel(self) -> None:
        """Its answer comes, and in time; there is nothing to cancel."""

    def stored(self, outcome: Receipt | BaseException) -> None:
        """Send the response to what became of the append, unless the client has gone away.

        The writer calls this, and not the app: there is no task that could wait for it.
        """
        connection = self._connection
        connection.tasks.discard(cast("asyncio.Task[None]", self))
        assert self.respond is not None, "BUG: stored, and not taken"
        response = self.respond(outcome)
        if self.disconnected:
            return
        self.response_complete = True
        headers = connection.server_state.default_headers
        connection.transport.write(response_bytes(response, headers, closes=not self.keep_alive))
        if not self.keep_alive:
            connection.transport.close()
        connection.on_response_complete()


def response_bytes(
    response: Response, headers: Sequence[tuple[bytes, bytes]] = (), *, closes: bool = True
) -> bytes:
    """Return a response as it is written where uvicorn does not write it."""
    parts = [STATUS_LINE[response.status]]
    for name, value in (*headers, *response.headers):
        parts += (name, b": ", value, b"\r\n")
    if closes:
        parts.append(b"connection: close\r\n")
    about = (response.content_type, len(response.body))
    parts.append(b"content-type: %s\r\ncontent-length: %d\r\n\r\n" % about)
    parts.append(response.body)
    return b"".join(parts)
