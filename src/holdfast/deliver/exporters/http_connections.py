"""HTTP/1.1 to a backend: connections that are kept, and one request at a time on each.

What a delivery needs of HTTP is little: a POST, its answer, and the certainty that both come to an
end. So this is a protocol of its own on top of httptools' parser, and not a general client: a
request is one write and one future, and no task, no stream and no timer of its own.

**An answer** is complete by its length, by its last chunk, or, if it has neither, by the end of the
connection, if its backend ended that, and over TLS said so: what is cut in between is not whole.
Answers of 1xx (but 101, which ends HTTP here) are passed over. The head is bounded, and so is the
body: one that is longer than wanted ends the connection, and counts as not read. What is not HTTP
fails the request wherever it comes, so that a verdict never depends on how the network cut the
bytes; what comes behind an answer belongs to nobody, and ends the connection.

**When the status is enough** (it is no success, or nobody needs the body), the rest has
`UNNEEDED_BODY_S` to come, so that the connection can be used again; a rest that breaks off changes
nothing. An answer may come while the body of its request is still being sent: then sending stops,
and the connection ends with the answer.

**Time.** A request has one deadline for all, and one that moves with every sign of life. A
connection has one timer, which looks when it rings whether anything is due: requests only move
numbers.

**Again.** A connection is used again for the same route and the same certificates, if all was sent
and read, the backend did not say otherwise, and it was not idle for longer than `IDLE_S`. One that
its backend closes meanwhile is forgotten when that is heard. A loop that was busy may not have
heard it, or an answer that nobody asked for; so the kernel is asked whether anything came before
the next request leaves. If it comes at the very moment in which a request leaves, the request fails
as `ConnectionEnded` and nothing is sent again here: a POST may have been taken, and whether it is
repeated is its caller's business.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import math
import os
import select
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import httptools

from holdfast.deliver.exporters.http_failures import (
    HttpConnectionEnded,
    HttpConnectTimedOut,
    HttpFailed,
    HttpNotConnected,
    HttpProxyRefused,
    HttpTimedOut,
    NotHttp,
)
from holdfast.happy_eyeballs import (
    NameLookup,
    connected_socket,
    refuse_if_no_name,
)

# How long the rest of an answer may take that nobody needs.
UNNEEDED_BODY_S = 1.0
# From this status on, a connection is not used again: behind a balancer it may lead to a replica
# that fails, and the next one to another.
FAILED_STATUS = 500
# No connection is used again that was idle for longer: what stands in between may have forgotten
# it without a word.
IDLE_S = 15.0
# Status lines, headers and trailers of one answer, with the 1xx before it.
ANSWER_HEAD_BYTES_MAX = 64 * 1024
# What a 1xx counts there, so that they end, too.
_INTERIM_BYTES = 64
# Larger bodies are handed over in pieces of this size, each when the one before is nearly gone.
PIECE_BYTES = 256 * 1024
# How long connections may take to be gone after they were cut.
CLOSE_S = 2.0

_SWITCHING_PROTOCOLS = 101
_NO_BODY_STATUSES = frozenset({204, 304})
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})


@dataclass(frozen=True)
class HttpLimits:
    """What a request may take."""

    # Name, TCP, proxy and TLS.
    connect_s: float
    # Without a sign of life.
    silence_s: float
    # Altogether.
    total_s: float
    # Open connections; more requests wait.
    connections_max: int
    # The longest body of an answer that is read.
    answer_bytes_max: int


class HttpProxy(NamedTuple):
    """What stands between, with the lines of a head that let us through."""

    host: str
    port: int
    lines: bytes


class HttpRoute(NamedTuple):
    """Whom a connection leads to, and how: it is used again for exactly the same."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    proxy: HttpProxy | None = None

    @property
    def authority(self) -> str:
        """The host and the port, as CONNECT has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class HttpAnswer(NamedTuple):
    """The status, the headers as they came, and the body if all of it was read."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes | None

    def header(self, name: bytes) -> str | None:
        """Return the first header of a name, which is given in lower case."""
        for one, value in self.headers:
            if one.lower() == name:
                return value.decode("latin-1")
        return None


class HttpConnection(asyncio.Protocol):
    """One connection, and the request that is under way on it."""

    def __init__(
        self, limits: HttpLimits, on_lost: Callable[[HttpConnection], None] | None = None
    ) -> None:
        self.transport: asyncio.Transport | None = None
        # What is below TLS.
        self._tcp: asyncio.Transport | None = None
        # Done when the socket is closed.
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.idle_since_s = 0.0
        self._limits = limits
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = math.inf
        self._is_write_paused = False
        # The peer said that nothing more comes.
        self._has_peer_ended = False
        # Another request may be sent on it.
        self._is_sound = True
        # It was told to close.
        self.is_cut = False
        self._parser = self._new_parser()
        # Of the request under way; None: none is.
        self._answer: asyncio.Future[HttpAnswer] | None = None
        self._unsent = memoryview(b"")
        self._needs_body = False
        self._opens_tunnel = False
        self._deadline_s = 0.0
        self._heard_s = 0.0
        # Of its answer.
        self._status = 0
        self._has_head = False
        self._head_bytes = 0
        # Since the parser showed something of it.
        self._unshown_bytes = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._body_bytes = 0

    @property
    def is_free(self) -> bool:
        """Whether the next request may be sent on it."""
        return self._is_sound and self._answer is None

    def has_unread(self) -> bool:
        """Whether bytes or an end came that the loop has not read yet."""
        assert self.transport is not None, "BUG: not connected"
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def begin(
        self,
        head: bytes,
        body: bytes,
        *,
        deadline_s: float,
        needs_body: bool = False,
        opens_tunnel: bool = False,
    ) -> asyncio.Future[HttpAnswer]:
        """Send a request; the future has its answer, or an `HttpFailed`.

        `opens_tunnel`: after a success there is no HTTP any more.
        """
        assert self.transport is not None, "BUG: not connected"
        assert self.is_free, "BUG: a request on a connection that is not free"
        answer = self._answer = self._loop.create_future()
        self._needs_body, self._opens_tunnel = needs_body, opens_tunnel
        self._deadline_s, self._heard_s = deadline_s, self._loop.time()
        self._status, self._has_head, self._head_bytes, self._unshown_bytes = 0, False, 0, 0
        self._headers, self._body, self._body_bytes = [], [], 0
        if len(body) <= PIECE_BYTES:
            self.transport.write(head + body)
        else:
            self.transport.write(head)
            self._unsent = memoryview(body)
            self._send_more()
        self._watch()
        return answer

    async def secure(self, tls: ssl.SSLContext, host: str) -> None:
        """Go on with TLS."""
        assert self.transport is not None, "BUG: not connected"
        # An address may end with a dot, a certificate's name does not.
        name = host.rstrip(".")
        refuse_if_no_name(name)
        try:
            secured = await self._loop.start_tls(self.transport, self, tls, server_hostname=name)
        except BaseException as error:
            # Until the handshake is done, nobody tells us of the end.
            self.transport.abort()
            self.connection_lost(error if isinstance(error, Exception) else None)
            raise
        # The peer was gone as soon as it was there.
        if secured is None or not self._is_sound:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        self.transport = secured
        # What led here through a proxy is not part of what follows.
        self._parser = self._new_parser()

    def abort(self) -> None:
        """Close at once; whoever waits for an answer hears of it."""
        self._is_sound, self.is_cut = False, True
        if self.transport is not None:
            self.transport.abort()
        else:
            self.connection_lost(None)  # nobody else will say so

    # ------------------------------------------------------------ the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's own are no subclass of it.
        self.transport = self._tcp = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_sound = False
        if self.gone.done():
            return
        self.gone.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
        if self._answer is not None:
            if self._has_peer_ended and self._ends_with_connection():
                self._finish(b"".join(self._body))
            else:
                self._fail(HttpConnectionEnded(exc))
        if self._on_lost is not None:
            self._on_lost(self)

    def eof_received(self) -> None:
        assert self.transport is not None, "BUG: not connected"
        tls: ssl.SSLObject | None = self.transport.get_extra_info("ssl_object")
        self._has_peer_ended = tls is None or _has_said_goodbye(tls)
        # At once: a close that lets the rest of a request go first may wait for ever.
        self.abort()

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.abort()  # nothing was asked
            return
        self._heard_s = self._loop.time()
        # Before it is parsed: what is shown of it begins the count again.
        self._unshown_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._finish_here(b"")
        except httptools.HttpParserError:
            self._fail(NotHttp())
        # The parser shows a line only once it is complete, and keeps it till then.
        if not self._has_head:
            self._head_bytes += len(data)
        if max(self._head_bytes, self._unshown_bytes) > ANSWER_HEAD_BYTES_MAX:
            self._fail(NotHttp())
        self._watch()

    def pause_writing(self) -> None:
        self._is_write_paused = True

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._heard_s = self._loop.time()
        self._send_more()

    def _send_more(self) -> None:
        assert self.transport is not None, "BUG: not connected"
        while self._unsent and not self._is_write_paused and not self.transport.is_closing():
            self.transport.write(self._unsent[:PIECE_BYTES])
            self._unsent = self._unsent[PIECE_BYTES:]

    # --------------------------------------------------------------- the parser

    def _new_parser(self) -> httptools.HttpResponseParser:
        parser = httptools.HttpResponseParser(self)
        # Servers are forgiven what browsers forgive them; none of it moves the end of an answer.
        parser.set_dangerous_leniencies(
            lenient_headers=True,
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
        )
        return parser

    def on_message_begin(self) -> None:
        if self._answer is None:
            self._is_sound = False  # behind an answer, and nobody's

    def on_status(self, reason: bytes) -> None:
        self._count_head(len(reason))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value))
        if not self._has_head:
            self._headers.append((name, value))

    def on_chunk_header(self) -> None:
        self._unshown_bytes = 0

    def _count_head(self, size_bytes: int) -> None:
        self._unshown_bytes = 0
        self._head_bytes += size_bytes
        if self._head_bytes > ANSWER_HEAD_BYTES_MAX and self._answer is not None:
            self._fail(NotHttp())

    def on_headers_complete(self) -> None:
        if self._answer is None:
            return
        self._status = self._parser.get_status_code()
        if self._is_interim():
            self._headers.clear()
            self._count_head(_INTERIM_BYTES)
            return
        self._has_head = True
        if self._opens_tunnel and _is_success(self._status):
            self._finish(b"")
        elif self._is_status_enough():
            self._deadline_s = min(self._deadline_s, self._heard_s + UNNEEDED_BODY_S)

    def on_body(self, body: bytes) -> None:
        if self._answer is None:
            return
        self._unshown_bytes = 0
        self._body.append(body)
        self._body_bytes += len(body)
        if self._body_bytes > self._limits.answer_bytes_max:
            self._finish_here(None)

    def on_message_complete(self) -> None:
        if self._answer is None or not self._has_head:
            return
        if self._status >= FAILED_STATUS or not self._parser.should_keep_alive():
            self._is_sound = False
        if not self._is_all_sent() or self._announces_what_cannot_be():
            self._is_sound = False
        self._finish(b"".join(self._body))

    def _announces_what_cannot_be(self) -> bool:
        """Whether an answer without a body speaks of one: whoever means that sends it, too."""
        return self._status in _NO_BODY_STATUSES and any(
            name.lower() in _FRAMING and value != b"0" for name, value in self._headers
        )

    def _is_all_sent(self) -> bool:
        """Whether the kernel has all of the request: what it has not would come before the next."""
        assert self.transport is not None, "BUG: not connected"
        assert self._tcp is not None, "BUG: not connected"
        return not (
            self._unsent
            or self.transport.get_write_buffer_size()
            or self._tcp.get_write_buffer_size()
        )

    def _is_interim(self) -> bool:
        return 100 <= self._status < 200 and self._status != _SWITCHING_PROTOCOLS  # noqa: PLR2004

    def _is_status_enough(self) -> bool:
        return self._has_head and not (self._needs_body and _is_success(self._status))

    def _ends_with_connection(self) -> bool:
        """Whether the end of the connection is the end of the answer."""
        if not self._has_head or self._status in _NO_BODY_STATUSES:
            return False
        names = {name.lower() for name, _ in self._headers}
        # What was coded in another way than in chunks ends with the connection, too; the parser
        # refuses such answers.
        return not names & _FRAMING

    # --------------------------------------------------------------- the answer

    def _finish(self, body: bytes | None) -> None:
        answer, self._answer = self._answer, None
        self._unsent, self.idle_since_s = memoryview(b""), self._heard_s
        if answer is not None and not answer.done():
            answer.set_result(HttpAnswer(self._status, self._headers, body))

    def _finish_here(self, body: bytes | None) -> None:
        """Read no further."""
        self._finish(body)
        self.abort()

    def _fail(self, failure: HttpFailed) -> None:
        """End what is under way without the rest of its answer, which may not matter."""
        self.abort()
        if self._is_status_enough() and not isinstance(failure, NotHttp):
            self._finish(None)
            return
        answer, self._answer = self._answer, None
        self._unsent = memoryview(b"")
        if answer is not None and not answer.done():
            answer.set_exception(failure)

    # --------------------------------------------------------------------- time

    def _due_s(self) -> float:
        """Return when nothing more is waited for."""
        if self._answer is None:
            return self.idle_since_s + IDLE_S
        return min(self._deadline_s, self._heard_s + self._limits.silence_s)

    def _watch(self) -> None:
        """Let the timer ring in time. It may ring early: then it looks, and goes on."""
        due_s = self._due_s()
        if due_s < self._timer_at_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(due_s, self._look)
            self._timer_at_s = due_s

    def _look(self) -> None:
        self._timer, self._timer_at_s = None, math.inf
        if self._loop.time() < self._due_s():
            self._watch()
            return
        self._fail(HttpTimedOut())


class HttpConnections:
    """Sends requests, each on a connection of its own while it is under way."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._lookup = NameLookup()
        # Waiting for a free connection is not a slow connect, so it happens before the clocks run.
        self._free = asyncio.Semaphore(limits.connections_max)
        self._open: set[HttpConnection] = set()
        # Those that are kept, by route; the one that was used last is the last.
        self._kept: dict[HttpRoute, list[HttpConnection]] = {}

    async def send(
        self, route: HttpRoute, head: bytes, body: bytes, *, needs_body: bool
    ) -> HttpAnswer:
        """Send one request, once, and return its answer whatever its status; or raise `HttpFailed`.

        `needs_body`: a success counts only with its whole body. Of other answers the status is
        enough.
        """
        async with self._free:
            now_s = asyncio.get_running_loop().time()
            deadline_s = now_s + self._limits.total_s
            connection = self._take(route, now_s - IDLE_S)
            if connection is None:
                connection = await self._connect(route, deadline_s)
            try:
                return await connection.begin(
                    head, body, deadline_s=deadline_s, needs_body=needs_body
                )
            finally:
                # Also one whose sender was cancelled: an answer that still comes would be taken
                # for the next one's.
                if connection.is_free:
                    self._kept.setdefault(route, []).append(connection)
                else:
                    connection.abort()

    async def close(self) -> None:
        """Close all connections."""
        gone = [connection.gone for connection in self._open]
        for connection in list(self._open):
            connection.abort()
        if gone:
            await asyncio.wait(gone, timeout=CLOSE_S)

    def _take(self, route: HttpRoute, oldest_s: float) -> HttpConnection | None:
        """Return a kept connection that was used since `oldest_s`; None if there is none."""
        kept = self._kept.get(route)
        while kept:
            connection = kept.pop()
            is_young = connection.is_free and connection.idle_since_s > oldest_s
            if is_young and not connection.has_unread():
                return connection
            connection.abort()
        return None

    def _lost(self, connection: HttpConnection) -> None:
        self._open.discard(connection)
        for route, kept in list(self._kept.items()):
            if connection in kept:
                kept.remove(connection)
            if not kept:
                del self._kept[route]

    async def _connect(self, route: HttpRoute, deadline_s: float) -> HttpConnection:
        # Those kept for other routes make room: of those in use there are fewer than allowed.
        connection = HttpConnection(self._limits, self._lost)
        self._open.add(connection)
        kept = [one for one in itertools.chain(*self._kept.values()) if one.is_free]
        surplus = sum(not one.is_cut for one in self._open) - self._limits.connections_max
        for one in kept[: max(0, surplus)]:
            one.abort()
        try:
            async with asyncio.timeout(self._limits.connect_s):
                await self._establish(connection, route, deadline_s)
        except BaseException as error:
            connection.abort()
            # A timeout of the kernel's own has a number.
            if isinstance(error, TimeoutError) and error.errno is None:
                raise HttpConnectTimedOut(error) from None
            raise
        return connection

    async def _establish(
        self, connection: HttpConnection, route: HttpRoute, deadline_s: float
    ) -> None:
        to_proxy = route.proxy is not None
        host, port = route[:2] if route.proxy is None else route.proxy[:2]
        loop = asyncio.get_running_loop()
        try:
            connected = await connected_socket(self._lookup, host, port, self._limits.total_s)
            try:
                await loop.create_connection(lambda: connection, sock=connected)
            except BaseException:
                if connection.transport is None:
                    connected.close()
                # uvloop says it to nobody if this is cancelled.
                connection.connection_lost(None)
                raise
            if connection.is_cut:
                raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            if route.proxy is not None and route.tls is not None:
                await _open_tunnel(connection, route, route.proxy, deadline_s)
                to_proxy = False
            if route.tls is not None:
                await connection.secure(route.tls, route.host)
        except OSError as error:
            if isinstance(error, TimeoutError) and error.errno is None:
                raise
            raise HttpNotConnected(error, to_proxy=to_proxy) from None


async def _open_tunnel(
    connection: HttpConnection, route: HttpRoute, proxy: HttpProxy, deadline_s: float
) -> None:
    """Let a proxy lead a connection to where it goes. Until then nothing reaches the backend."""
    name = route.authority.encode()
    head = b"CONNECT %s HTTP/1.1\r\nHost: %s\r\n%s\r\n" % (name, name, proxy.lines)
    try:
        answer = await connection.begin(head, b"", deadline_s=deadline_s, opens_tunnel=True)
    except HttpTimedOut as error:
        raise HttpConnectTimedOut(error) from None
    except HttpFailed as error:
        raise HttpNotConnected(error.cause, to_proxy=True) from None
    if not _is_success(answer.status):
        raise HttpProxyRefused(answer.status)


def _has_said_goodbye(tls: ssl.SSLObject) -> bool:
    """Whether the peer ended TLS before the connection ended; asyncio makes no difference."""
    try:
        return not tls.read(1)
    except ssl.SSLError:  # it waits for more
        return False


def _is_success(status: int) -> bool:
    return 200 <= status < 300  # noqa: PLR2004
