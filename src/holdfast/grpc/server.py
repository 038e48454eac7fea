"""The server's side of a connection: calls come in, methods answer them (`calls.py`).

Who may call, and how much may be under way, is the gate's business (`CallGate`), so that it is the
same for every protocol of a receiver.

A call that fails is answered whatever it is: what a client is told decides whether it keeps its
data. A method that raises anything unexpected ends as UNAVAILABLE, never as UNKNOWN or INTERNAL,
which clients take for a reason to drop what they sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

from holdfast.bodies import TURN_BYTES, TooMuch, Undecodable
from holdfast.grpc.calls import (
    NEVER_S,
    RESPONSE,
    CallGate,
    FastMethod,
    Method,
    ServerCall,
    ServerStream,
    StreamMethod,
)
from holdfast.grpc.engine import HeaderList
from holdfast.grpc.http2 import ErrorCodes, Http2
from holdfast.grpc.messages import (
    IDENTITY,
    Message,
    MessageLimits,
    MessageReader,
    framed,
    parse_timeout_s,
    read_encoding,
    too_large,
    unpacking,
)
from holdfast.grpc.settings import GrpcSettings
from holdfast.grpc.status import CallFailed, StatusCode, trailers_of
from holdfast.seam import Seam

_RETRY_AFTER_S = 1.0
_CONTENT_TYPE = b"application/grpc"
_OK = ((b"grpc-status", b"0"),)
# After this long without a sign that GOAWAY was read, no new call is waited for.
_LEAVE_GRACE_S = 1.0
# How much the age of connections differs: those that were opened together do not end together.
_AGE_SPREAD = 0.1


class ServerConnections:
    """What all connections of one server have in common."""

    def __init__(
        self,
        methods: Mapping[str, Method | StreamMethod],
        gate: CallGate,
        settings: GrpcSettings,
        limits: MessageLimits,
        seam: Seam,
    ) -> None:
        self.methods: dict[bytes, Method] = {}
        self.stream_methods: dict[bytes, StreamMethod] = {}
        for path, method in methods.items():
            if hasattr(method, "converse"):
                self.stream_methods[path.encode()] = cast("StreamMethod", method)
            else:
                self.methods[path.encode()] = method
        self.fast_methods = {
            path: method for path, method in self.methods.items() if isinstance(method, FastMethod)
        }
        self.gate = gate
        self.settings = settings
        self.limits = limits
        self.seam = seam
        self.open: set[ServerConnection] = set()
        # Methods that work on, though their call or their connection may be gone.
        self.tasks: set[asyncio.Task[None]] = set()
        self.calls = 0
        self.is_leaving = False

    def connection(self) -> Http2:
        """Return the protocol of a new connection."""
        side = ServerConnection(self)
        side.http2 = Http2(side, self.settings, self.seam.clock, is_client=False)
        return side.http2

    def leave(self) -> None:
        """Tell all clients to go away; calls under way are finished."""
        self.is_leaving = True
        for connection in list(self.open):
            connection.leave()

    def expire(self, now_s: float) -> None:
        """End what had its time."""
        for connection in list(self.open):
            connection.expire(now_s)

    def cut(self) -> None:
        """Close all connections at once, and stop their methods."""
        for connection in list(self.open):
            connection.http2.abort()
        for task in list(self.tasks):
            task.cancel()


class ServerConnection:
    """One connection, and its calls."""

    http2: Http2

    def __init__(self, server: ServerConnections) -> None:
        """Set all deadlines; `expire` looks at them.

        A connection has an end even if nothing is wrong: behind a balancer, clients that never
        reconnect would stay with the server that they first met, however many are added.
        """
        self._server = server
        self._settings = server.settings
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, ServerCall] = {}
        self._highest_stream_id = 0
        now_s = self._loop.time()
        spread = 1 + _AGE_SPREAD * (2 * server.seam.randomness.random() - 1)
        self._ages_s = now_s + server.settings.max_age_s * spread
        # Before the first call it has less time.
        self._idle_s = now_s + server.settings.header_timeout_s
        # When it was told to go away: first that it will be, then from which call on.
        self._left_s = NEVER_S
        self._takes_calls = True

    # ------------------------------------------------------------- the connection

    def opened(self) -> None:
        if len(self._server.open) >= self._settings.max_connections or self._server.is_leaving:
            self.http2.end(ErrorCodes.NO_ERROR, "too many connections are open")
            return
        self._server.open.add(self)

    def lost(self, error: Exception | None) -> None:
        self._server.open.discard(self)
        for call in list(self._calls.values()):
            self._abandon(call)
        self._calls.clear()

    def peer_leaves(self, last_stream_id: int, code: int) -> None:
        """Nothing: it closes when it has its answers."""

    def leave(self) -> None:
        """Tell the client to go away; its calls are finished.

        In two steps, as RFC 9113 says: first a GOAWAY that refuses nothing, and a ping behind it.
        When the ping is answered, the client has read both and begins no more calls; only then can
        the last one be named. Named at first, it would refuse calls that were on their way.
        """
        if self._left_s == NEVER_S:
            self._left_s = self._loop.time()
            self.http2.leave()
            self.http2.ping()

    def pinged_back(self) -> None:
        if self._left_s != NEVER_S and self._takes_calls:
            self._takes_calls = False
            self.http2.leave(self._highest_stream_id)
            for call in self._calls.values():
                if call.stream is not None:
                    call.stream.leave()
            self._end_if_done()

    def _end_if_done(self) -> None:
        if not self._takes_calls and not self._calls and not self.http2.is_sending:
            self.http2.end()

    def expire(self, now_s: float) -> None:
        """End the calls, and perhaps the connection, whose client had its time."""
        settings = self._settings
        # What is wrong with the connection comes first. A client that reads nothing cannot be told
        # so: it is cut. One whose headers never end can be told, but not which call it was.
        block_s, unread_s = self.http2.block_since_s, self.http2.unread_since_s
        if unread_s is not None and now_s >= unread_s + settings.send_timeout_s:
            self.http2.abort()
            return
        if block_s is not None and now_s >= block_s + settings.header_timeout_s:
            self.http2.end(ErrorCodes.ENHANCE_YOUR_CALM, "the headers came too slowly")
            return
        self.http2.expire(now_s - settings.send_timeout_s)
        for call in list(self._calls.values()):
            self._expire_call(call, now_s)
        self._end_if_done()
        if self._left_s == NEVER_S:
            if now_s >= self._ages_s or (not self._calls and now_s >= self._idle_s):
                self.leave()
        elif now_s >= self._left_s + settings.drain_timeout_s:
            self.http2.abort()
        elif now_s >= self._left_s + _LEAVE_GRACE_S:
            self.pinged_back()

    def _expire_call(self, call: ServerCall, now_s: float) -> None:
        limits = self._server.limits
        if now_s >= call.deadline_s:
            late = CallFailed(StatusCode.DEADLINE_EXCEEDED, "the deadline has passed")
            self._give_up(call, late)
        elif not call.has_begun or (call.stream is not None and call.stream.inbound.is_incomplete):
            slowest_s = call.started_s + call.came_bytes / limits.min_bytes_per_s
            if now_s >= min(call.seen_s, slowest_s) + limits.timeout_s:
                self._give_up(call, _unavailable("the message came too slowly"))

    # --------------------------------------------------------------- what comes

    def headers_came(self, stream_id: int, headers: HeaderList, *, ended: bool) -> None:
        call = self._calls.get(stream_id)
        if call is not None:  # trailers: nothing in them is for us
            self.stream_ended(stream_id)
            return
        if not self._takes_calls:
            self.http2.reset(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        self._highest_stream_id = stream_id
        self._server.calls += 1
        call = ServerCall(self, stream_id, headers, self._loop.time())
        self._calls[stream_id] = call
        try:
            status = self._examine(call)
        except Exception as error:
            self.failed(call, error)
            return
        if status is not None:
            # Not gRPC at all: it gets an answer that HTTP clients understand.
            self._respond(call, [(b":status", status)])
        elif ended:
            self.stream_ended(stream_id)

    def _examine(self, call: ServerCall) -> bytes | None:
        """Read the headers; return the HTTP status if it is no call, and raise if it is refused."""
        verb = content_type = b""
        encoding = IDENTITY
        for name, value in call.headers:
            if name == b":path":
                call.path = value
            elif name == b":method":
                verb = value
            elif name == b"content-type":
                content_type = value
            elif name == b"grpc-encoding":
                encoding = value
            elif name == b"grpc-timeout":
                call.deadline_s = call.started_s + parse_timeout_s(value)
        # In this order: what is not gRPC costs no place, and a method that is not here is said
        # before a token is asked for, as over HTTP.
        if verb != b"POST":
            return b"405"
        if not content_type.startswith(_CONTENT_TYPE):
            return b"415"
        call.method = self._server.methods.get(call.path)
        if call.method is None and call.path not in self._server.stream_methods:
            raise CallFailed(StatusCode.UNIMPLEMENTED, "there is no such method here")
        call.place = self._server.gate.enter(call.path, call.headers)
        call.encoding = read_encoding(encoding)
        if call.method is not None:
            call.reader = MessageReader(self._server.limits.max_bytes)
        else:
            self._begin_stream(call, self._server.stream_methods[call.path])
        return None

    def data_came(self, stream_id: int, data: bytes) -> bool:
        call = self._calls.get(stream_id)
        if call is not None and call.stream is not None:
            return self._streamed(call, call.stream, data)
        if call is None or call.reader is None or call.place is None or call.has_begun:
            return False
        call.came_bytes += len(data)
        call.seen_s = self._loop.time()
        # Counted in before the window is opened again: the peer can never have more under way than
        # was granted, so what all connections hold together stays within the bound.
        try:
            call.place.received(len(data))
            for message in call.reader.feed(data):
                if call.message is not None:
                    raise CallFailed(
                        StatusCode.INVALID_ARGUMENT, "this method takes one message, and more came"
                    )
                call.message = message
        except Exception as error:
            self.failed(call, error)
            return False
        self.http2.granted(stream_id, len(data))
        return True

    def stream_ended(self, stream_id: int) -> None:
        call = self._calls.get(stream_id)
        if call is not None and call.stream is not None:
            call.stream.inbound.end()
        if call is None or call.has_begun:
            return
        if call.message is None or call.reader is None or not call.reader.is_between:
            self.failed(
                call,
                CallFailed(StatusCode.INVALID_ARGUMENT, "the call ended before its message did"),
            )
            return
        call.has_begun = True
        self._begin(call, call.message)

    def stream_reset(self, stream_id: int, code: int) -> None:
        call = self._calls.pop(stream_id, None)
        if call is not None:
            self._abandon(call)
            self._end_if_done()

    # ------------------------------------------------------------------ streams

    def _begin_stream(self, call: ServerCall, method: StreamMethod) -> None:
        call.has_begun = True
        call.stream = stream = ServerStream(call, self, self._server.limits.max_bytes)
        call.task = self._loop.create_task(self._converse(stream, method))
        self._server.tasks.add(call.task)
        call.task.add_done_callback(partial(self._finish, call))

    def _streamed(self, call: ServerCall, stream: ServerStream, data: bytes) -> bool:
        """Take a piece of a stream: its window opens when the messages before it are taken."""
        if call.place is None:
            return False
        now_s = self._loop.time()
        if not stream.inbound.is_incomplete:
            # How fast a message comes counts from its first byte.
            call.started_s, call.came_bytes = now_s, 0
        call.came_bytes += len(data)
        call.seen_s = now_s
        try:
            call.place.received(len(data))
        except Exception as error:
            self._give_up(call, error)
            return False
        self.http2.admitted(len(data))
        stream.inbound.came(data)
        return True

    def all_sent(self, stream_id: int) -> None:
        call = self._calls.get(stream_id)
        if call is not None and call.stream is not None:
            call.stream.outbound.sent()

    async def _converse(self, stream: ServerStream, method: StreamMethod) -> None:
        call = stream.call
        try:
            await method.converse(stream)
            await stream.outbound.until_sent()
        except Exception as error:
            self.failed(call, error)
            return
        self._release(call)
        if not call.is_over:
            self._end_stream(call, _OK)

    def _end_stream(self, call: ServerCall, trailers: HeaderList) -> None:
        """Answer a call by its trailers, with headers before them if none were sent."""
        self._let_go(call)
        self._idle_s = self._loop.time() + self._settings.idle_timeout_s
        if call.stream is None or not call.stream.has_headers:
            self.http2.respond(call.stream_id, [*RESPONSE, *trailers])
        else:
            self.http2.send_body(call.stream_id, b"", trailers)
        self._end_if_done()

    # ------------------------------------------------------------------ answers

    def _begin(self, call: ServerCall, message: Message) -> None:
        """Give a message to its method: at once if it is ready, else by a task."""
        method = call.method
        assert method is not None, "BUG: a call without a method"
        fast = self._server.fast_methods.get(call.path)
        if fast is not None and not message.is_packed and message.pieces.size_bytes <= TURN_BYTES:
            try:
                if fast.offer(message.pieces.whole(), call):
                    return
            except Exception as error:
                self.failed(call, error)
                return
        call.task = self._loop.create_task(self._handle(call, message, method))
        self._server.tasks.add(call.task)
        call.task.add_done_callback(partial(self._finish, call))

    def _finish(self, call: ServerCall, task: asyncio.Task[None]) -> None:
        """Give back what a method held. Not in its task: that may be cancelled before it begins."""
        self._server.tasks.discard(task)
        self._release(call)

    async def _handle(self, call: ServerCall, message: Message, method: Method) -> None:
        try:
            if message.is_packed:
                assert call.place is not None, "BUG: a call without a place"
                body = await self.unpacked(call, message, call.place.hold)
            else:
                body = message.pieces.whole()
            # What came in pieces is gone before its method takes its time.
            call.message = None
            del message
            handling = method.handle(body, call)
            del body
            answer = await handling
        except Exception as error:
            self.failed(call, error)
        else:
            self.answered(call, answer)

    async def unpacked(
        self, call: ServerCall, message: Message, hold: Callable[[int], None]
    ) -> bytes:
        """Return what a compressed message stands for; raises `CallFailed`, or what `hold` does."""
        limit_bytes = self._server.limits.max_expanded_bytes
        try:
            return await message.pieces.unpacked(unpacking(call.encoding, limit_bytes), hold)
        except TooMuch:
            raise too_large(limit_bytes) from None
        except Undecodable as error:
            raise CallFailed(StatusCode.INVALID_ARGUMENT, str(error)) from None

    def answered(self, call: ServerCall, body: bytes) -> None:
        """End a call with its answer.

        What it held is given back also if its client is gone: the method had its place until now.
        """
        self._release(call)
        if not call.is_over:
            self._let_go(call)
            self._idle_s = self._loop.time() + self._settings.idle_timeout_s
            self.http2.answer(call.stream_id, RESPONSE, framed(body), _OK)
            self._end_if_done()

    def failed(self, call: ServerCall, error: BaseException) -> None:
        """End a call with a failure."""
        self._release(call)
        if not call.is_over:
            self._end_stream(call, trailers_of(self._server.gate.failure(error)))

    def _respond(self, call: ServerCall, headers: HeaderList) -> None:
        """Answer by headers alone."""
        self._let_go(call)
        self._idle_s = self._loop.time() + self._settings.idle_timeout_s
        self.http2.respond(call.stream_id, headers)
        self._end_if_done()

    def _give_up(self, call: ServerCall, failure: Exception) -> None:
        """Answer a call whose message takes too long, or has no room.

        Its method keeps its place until it has ended.
        """
        self._end_stream(call, trailers_of(self._server.gate.failure(failure)))
        if call.task is not None:
            call.task.cancel()
        elif not call.has_begun:
            self._release(call)

    def _abandon(self, call: ServerCall) -> None:
        """Let go of a call whose client is gone."""
        self._let_go(call)
        if call.task is not None:
            call.task.cancel()
        elif not call.has_begun:
            self._release(call)

    def _let_go(self, call: ServerCall) -> None:
        call.is_over = True
        self._calls.pop(call.stream_id, None)
        if call.stream is not None:
            # A task of the method may have something to say yet; nobody hears it.
            call.stream.outbound.end(CallFailed(StatusCode.CANCELLED, "the call is over"))

    def _release(self, call: ServerCall) -> None:
        place, call.place = call.place, None
        call.message = call.reader = None
        if place is not None:
            place.leave()


def _unavailable(message: str) -> CallFailed:
    return CallFailed(StatusCode.UNAVAILABLE, message, retry_after_s=_RETRY_AFTER_S)
