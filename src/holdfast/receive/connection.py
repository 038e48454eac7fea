"""One connection of a client: HTTP/1.1 with bounds on time, bytes and requests.

httptools parses, and an ASGI app answers (`exchange.py`). What a server on a network has to bound:

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

A request with the same head as the last one that took the fast path is not even parsed
(`fast_path.py`). If it turns out to be special after all, the parser gets every byte of it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import urllib.parse
from collections import deque
from enum import Enum, auto

import httptools

from holdfast.quiver import Receipt
from holdfast.receive.exchange import FAILED, Exchange, Flow, response_bytes
from holdfast.receive.fast_path import FastRequest, KnownHead, head_in, known_head
from holdfast.receive.request_head import HeadTooLarge, RequestHead
from holdfast.receive.responses import Reason, Respond, Scope, refusal
from holdfast.receive.server_state import ServerState

_NEVER_S = math.inf
_VERSIONS = ("1.1", "1.0")
# Connections beyond the bound that are being told so; more of them are cut without a word.
REFUSED_CONNECTIONS_MAX = 64
# Of all bodies together that are held back for the fast path: no app has admitted them yet.
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


log = logging.getLogger("holdfast.receive")


class _Phase(Enum):
    """Where in a request the next byte belongs."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()


class _TooManyPipelined(Exception):
    pass


class _UnknownVersion(Exception):
    pass


class BoundedConnection(asyncio.Protocol):
    """A connection that ends when its client is too slow, too large or unreadable."""

    transport: asyncio.Transport
    _flow: Flow

    def __init__(self, server: ServerState) -> None:
        self._server = server
        self._settings = server.settings
        self._counts = server.counts
        self._fast_path = server.fast_path
        self._loop = asyncio.get_running_loop()
        # Of the request whose head comes, or came last. The parser tells it by itself.
        self._head = RequestHead(server.settings.max_header_bytes)
        self.on_url, self.on_header = self._head.on_url, self._head.on_header
        self._parser = httptools.HttpRequestParser(self)
        # A client that says `Connection: close` and sends on gets its answer all the same.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        # The newest request; the one that an app answers now, or did last; and those that wait for
        # their turn.
        self._newest: Exchange | FastRequest | None = None
        self._running: Exchange | FastRequest | None = None
        self._waiting: deque[Exchange] = deque()
        # What came of a body that may take the fast path, once its headers are complete.
        self._held: list[bytes] | None = None
        self._held_bytes = 0
        # The bytes that the head of that request came in.
        self._held_head = b""
        # The head of the last request that took the fast path, and whether it came again.
        self._known: KnownHead | None = None
        self._is_repeated = True
        # A request with the known head, or the beginning of one. The parser has not seen it.
        self._unparsed = b""
        # Where its body begins if it is complete: it is handed over at the end of this turn.
        self._body_begin: int | None = None
        self._phase = _Phase.IDLE
        self._deadline_s = _NEVER_S
        self._write_deadline_s = _NEVER_S
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
        if len(self._server.connections) >= self._settings.max_connections:
            self._refuse(transport)
            return
        self._server.connections.add(self)
        self.transport = transport
        self._flow = Flow(transport)
        self._deadline_s = self._loop.time() + self._settings.header_timeout_s
        connection: socket.socket | None = transport.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            # So that the kernel finds out about clients that vanished without a word.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._refused:
            self._counts.refused.discard(self)
            return
        self._hold_nothing_back()
        self._server.connections.discard(self)
        for one in (self._newest, self._running):
            if one is not None and not one.response_complete:
                one.disconnect()
        self._waiting.clear()
        self._flow.resume_writing()
        del self._parser  # it holds this connection

    def data_received(self, data: bytes) -> None:
        if self._body_begin is not None:
            self.hand_over()
        if self._known is not None:
            data = self._take_known(self._known, data)
        if data and not self._deaf:
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        if self._phase is _Phase.IDLE:
            self._held_head = data
        self._head.came(len(data))
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._pass_over(data[offer.args[0] :])
        except httptools.HttpParserError as error:
            self._break_off(_complaint(error))
        else:
            if self._phase is not _Phase.IDLE and self._head.is_too_large:
                self._break_off(Reason.HEADER_TOO_LARGE)
            elif self._held is not None and self._holds_too_much():
                self._take_slow_path()
        if self._held is None:
            self._held_head = b""
        elif self._held_head is data:
            self._held_head = head_in(data)

    def eof_received(self) -> bool:
        """Stay open for the answers that are due: some clients close their side early.

        One that has begun and goes on is a stream (the console's figures): its page is closed.
        """
        if self._refused:
            return False
        self.hand_over()
        if self.transport.get_extra_info("sslcontext") is not None:
            return False
        if not self._deaf:
            self._break_off(None)
        newest = self._newest
        return newest is not None and not newest.response_started

    def pause_writing(self) -> None:
        # The client reads more slowly than it is answered. Its answers stay in memory until then,
        # so it has this long, whatever else it does.
        self._write_deadline_s = self._loop.time() + self._settings.send_timeout_s
        self._flow.pause_writing()

    def resume_writing(self) -> None:
        self._write_deadline_s = _NEVER_S
        self._flow.resume_writing()

    # --------------------------------------------------------------- the parser

    def on_message_begin(self) -> None:
        self._phase = _Phase.HEAD
        self._deadline_s = self._loop.time() + self._settings.header_timeout_s
        self._head.begin()

    def on_headers_complete(self) -> None:
        if len(self._waiting) >= self._settings.max_pipelined_requests:
            raise _TooManyPipelined
        if self._parser.get_http_version() not in _VERSIONS:
            raise _UnknownVersion
        self._head.is_complete = True
        if self._may_take_fast_path():
            self._held = []
        else:
            self._begin(b"")
        # From here on the app has the time in its hands.
        self._phase = _Phase.BODY
        self._deadline_s = _NEVER_S

    def on_chunk_header(self) -> None:
        self._head.went_on()

    def on_body(self, body: bytes) -> None:
        self._head.went_on()
        if self._held is not None:
            self._held.append(body)
            self._held_bytes += len(body)
            self._counts.held_bytes += len(body)
            return
        if self._newest_exchange.response_complete:
            self._counts.unread_bytes += len(body)
            self._unread_bytes += len(body)
            if self._unread_bytes > self._settings.max_unread_bytes:
                self._deaf = True
                self.transport.abort()
            return
        self._newest_exchange.feed(body)

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade():
            return  # the parser takes what follows for another protocol: see `_pass_over`
        self._phase = _Phase.IDLE
        if self._held is None or not self._takes_fast_path(self._let_go()):
            newest = self._newest_exchange
            if newest.response_complete:
                self._deadline_s = self._loop.time() + self._settings.keep_alive_s
            newest.end_body()
        # The connection may be idle for long.
        self._head.begin()

    # ------------------------------------------------------------------ answers

    def on_response_complete(self) -> None:
        """Go on with what was sent ahead, or wait for what comes, until a deadline."""
        self._server.requests += 1
        if self.transport.is_closing():
            self._deadline_s = self._loop.time() + self._settings.send_timeout_s
        elif self._waiting:
            self._flow.resume_reading()
            self._run(self._waiting.popleft())
        elif self._deaf:
            self._close()
        else:
            if self._flow.is_read_paused:
                self._flow.resume_reading()
            if self._phase is _Phase.BODY:
                self._unread_bytes = 0
                self._deadline_s = self._loop.time() + self._settings.unread_timeout_s
            elif self._phase is _Phase.IDLE:
                self._deadline_s = self._loop.time() + self._settings.keep_alive_s

    def answer(self, request: FastRequest, outcome: Receipt | BaseException) -> None:
        """Answer a request of the fast path, unless the client has gone away."""
        server = self._server
        server.under_way.discard(request)
        assert request.respond is not None, "BUG: stored, and not taken"
        try:
            response = request.respond(outcome)
        except Exception:
            log.exception("BUG: a request that has an outcome was not answered")
            request.keep_alive, response = False, FAILED
        if request.is_disconnected:
            return
        request.response_complete = True
        closes = not request.keep_alive
        self.transport.write(response_bytes(response, server.headers, closes=closes))
        if closes:
            self.transport.close()
        self.on_response_complete()

    def expire(self, now_s: float) -> None:
        """Close the connection if its client had its time."""
        # What came partly: an app knows how long the rest may take.
        self._hold_nothing_back()
        if now_s < min(self._deadline_s, self._write_deadline_s):
            return
        if self._phase is _Phase.HEAD and self._flow.is_read_paused:
            # The rest of it may have come: it is we who do not read.
            self._deadline_s = now_s + self._settings.header_timeout_s
            if now_s < self._write_deadline_s:
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
        """Close the connection, once what is under way is answered."""
        self._hold_nothing_back()
        if self._newest is None or self._newest.response_complete:
            self.transport.close()
        else:
            self._newest.keep_alive = False

    # ------------------------------------------------------------ the fast path

    def _may_take_fast_path(self) -> bool:
        """Whether nothing about a request is special: known by its head, before its body came."""
        return (
            self._fast_path is not None
            and self._head.url in self._fast_path.fast_targets
            and self._parser.get_method() == b"POST"
            and self._parser.get_http_version() == "1.1"
            and not self._head.expects_continue
            and not self._parser.should_upgrade()
            and not self._flow.is_write_paused
            and not self._is_answering()
            and self._head.announced_bytes <= self._fast_path.held_bytes_max
        )

    def _takes_fast_path(self, body: bytes) -> bool:
        """Hand over a request that was parsed; begin it if it is special after all."""
        assert self._fast_path is not None
        lane = self._fast_path.fast_lane(self._head.url, self._head.fields)
        if lane is None:
            self._begin(body)
            return False
        keep_alive = self._parser.should_keep_alive()
        request = FastRequest(self, keep_alive=keep_alive)
        if not self._is_under_way(request, lane.accept(body, request.stored)):
            self._begin(body)
            return False
        # Where the last head did not come again, the next one is not worth remembering.
        if keep_alive and self._is_repeated:
            self._known = known_head(self._held_head, self._head.url, self._head.fields, lane)
            self._is_repeated = False
        return True

    def _take_known(self, known: KnownHead, data: bytes) -> bytes:
        """Hand over a request that has the known head; return what is left for the parser."""
        in_pieces = bool(self._unparsed)
        if in_pieces:
            data = self._let_go_unparsed() + data
        elif (
            self._phase is not _Phase.IDLE
            or self._deaf
            or self._flow.is_write_paused
            or self._is_answering()
        ):
            return data
        announced = known.announced(data)
        if announced is None:
            return data
        self._is_repeated = True
        is_whole = len(data) == announced.end
        # Many clients send the head and the body by themselves. What comes in more than two pieces
        # is special: joining it again and again would cost more than parsing it.
        may_wait = is_whole or (len(data) < announced.end and not in_pieces)
        if not may_wait or not self._may_wait_unparsed(data):
            return data
        self._unparsed = data
        self._counts.held_bytes += len(data)
        if is_whole:
            self._body_begin = announced.begin
            self._server.turn.add(self)
        return b""

    def hand_over(self) -> None:
        """Hand over the request that was taken unparsed in this turn, unless that is done."""
        begin, self._body_begin = self._body_begin, None
        if begin is None:
            return
        assert self._known is not None
        data = self._let_go_unparsed()
        request = FastRequest(self, keep_alive=True)
        respond = self._known.lane.accept(data[begin:], request.stored)
        if not self._is_under_way(request, respond):
            self._parse(data)

    def _may_wait_unparsed(self, data: bytes) -> bool:
        assert self._fast_path is not None
        together = self._counts.held_bytes + len(data)
        return len(data) <= self._fast_path.held_bytes_max and together <= HELD_BYTES_MAX_TOGETHER

    def _is_under_way(self, request: FastRequest, respond: Respond | None) -> bool:
        """Answer a request with `respond` when it is stored; return whether it was taken."""
        if respond is None:
            return False
        request.respond = respond
        self._newest = self._running = request
        # The server waits for it as it waits for the tasks of the others.
        self._server.under_way.add(request)
        self._deadline_s = _NEVER_S
        return True

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

    def _let_go_unparsed(self) -> bytes:
        """Keep nothing from the parser any more; return what it has not seen."""
        unparsed, self._unparsed = self._unparsed, b""
        self._counts.held_bytes -= len(unparsed)
        return unparsed

    def _hold_nothing_back(self) -> None:
        """Hand over what came of a request that is not complete."""
        self.hand_over()
        if self._unparsed:
            self._parse(self._let_go_unparsed())
        if self._held is not None:
            self._take_slow_path()

    def _take_slow_path(self) -> None:
        """Hand over a request that was held back."""
        self._begin(self._let_go())

    def _begin(self, came: bytes) -> None:
        """Begin a request, with what came of its body."""
        http_version = self._parser.get_http_version()
        exchange = Exchange(
            self._scope(http_version),
            self.transport,
            self._flow,
            self._server.headers,
            self.on_response_complete,
            keep_alive=http_version != "1.0" and self._parser.should_keep_alive(),
            expects_continue=http_version != "1.0" and self._head.expects_continue,
        )
        must_wait = self._is_answering()
        self._newest = exchange
        if must_wait:
            self._flow.pause_reading()
            self._waiting.append(exchange)
        else:
            self._run(exchange)
        if came:
            exchange.feed(came)

    def _scope(self, http_version: str) -> Scope:
        parts = httptools.parse_url(self._head.url)
        return {
            "type": "http",
            "http_version": http_version,
            "method": self._parser.get_method().decode("ascii"),
            "path": urllib.parse.unquote(parts.path.decode("ascii")),
            "query_string": parts.query or b"",
            "headers": self._head.fields,
        }

    def _run(self, exchange: Exchange) -> None:
        self._running = exchange
        task = self._loop.create_task(exchange.run(self._server.app))
        self._server.under_way.add(task)
        task.add_done_callback(self._server.under_way.discard)

    # ----------------------------------------------------------------- in here

    def _is_answering(self) -> bool:
        return self._newest is not None and not self._newest.response_complete

    @property
    def _newest_exchange(self) -> Exchange:
        """The request whose body the parser reads."""
        assert isinstance(self._newest, Exchange), "BUG: a body without a request"
        return self._newest

    def _break_off(self, complaint: Reason | None) -> None:
        """Read nothing more; give the answers that are due, complain, and close."""
        if self._held is not None:
            self._take_slow_path()
        self._deaf, self._deadline_s = True, _NEVER_S
        is_answered = self._phase is _Phase.BODY and not self._is_answering()
        if complaint is not None and not is_answered:
            self._counts.rejected[complaint] += 1
            self._last_words = response_bytes(_COMPLAINTS[complaint])
        if self._phase is _Phase.BODY and self._is_answering():
            if not self._waiting:
                # The app waits for the rest of this very request; closing tells it.
                if self._newest_exchange.response_started:
                    self._last_words = b""
                self._close()
                return
            self._waiting.pop()  # the newest; it will never be complete
        elif not self._is_answering():
            self._close()

    def _pass_over(self, rest: bytes) -> None:
        """Read the body of a request that offers another protocol, as if it did not.

        Java's own HTTP client offers HTTP/2 with the first POST it sends. An offer may be passed
        over; the event in that request may not.
        """
        self._newest_exchange.keep_alive = False
        self._parser = httptools.HttpRequestParser(_BodyOnly(self))
        self._parse(b"".join([b"POST / HTTP/1.1\r\n", *self._head.framing(), b"\r\n", rest]))

    def end_of_body_only(self) -> None:
        """Take the body as complete, and nothing behind it."""
        self.on_message_complete()
        self._deaf = True

    def _close(self) -> None:
        """Say the last words and close, as soon as the client has read them."""
        if self._last_words:
            self.transport.write(self._last_words)
        self.transport.close()
        self._deadline_s = self._loop.time() + self._settings.send_timeout_s

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
        self._loop.call_later(self._settings.unread_timeout_s, transport.abort)


def _complaint(error: httptools.HttpParserError) -> Reason | None:
    """Return what to say about a request that the parser, or a bound in here, stopped at."""
    if isinstance(error.__context__, _TooManyPipelined):
        return None
    if isinstance(error.__context__, HeadTooLarge):
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
