"""The client's side: one connection to a server, many calls on it, a new one when it ends.

A call is sent once; whether it is sent again is its caller's decision, by the code and by
`maybe_done`. What the server said it has not looked at (a call above the last one of its GOAWAY, a
stream that it refused) is never `maybe_done`; what was cut in the middle is.

A connection that is told to go away takes no new calls; those under way are finished on it, beside
the next one. One on which a call ran out of time while nothing came at all is not used again: its
peer may have vanished without a word.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from holdfast.bodies import TooMuch, Undecodable
from holdfast.grpc.engine import HeaderList
from holdfast.grpc.http2 import ErrorCodes, Http2
from holdfast.grpc.messages import (
    ACCEPT_ENCODING,
    IDENTITY,
    Message,
    MessageReader,
    check_encoding,
    framed,
    too_large,
    unpacking,
    written_timeout,
)
from holdfast.grpc.settings import GrpcSettings
from holdfast.grpc.status import CallFailed, StatusCode, failure_of
from holdfast.grpc.streams import InboundMessages, OutboundMessages
from holdfast.happy_eyeballs import NameLookup, connected_socket, refuse_if_no_name
from holdfast.seam.clock import Clock

# What a server sends without data depends on what it is sent, and it was chosen by whoever wrote
# the configuration: bounded, and far above what an upload needs.
CLIENT_SETTINGS = GrpcSettings(
    max_control_frames_per_s=100_000.0,
    control_frames_burst=100_000,
    max_resets_per_s=10_000.0,
    resets_burst=10_000,
)
# Calls under way at once, whatever the server allows.
CALLS_MAX = 100
# Numbers of streams are never used again, and HTTP/2 has 2**31 of them. Behind half of them the
# next call opens another connection, long before this one would be at its end.
_STREAM_ID_MAX = 2**30
_HTTP_OK = b"200"
# How long cut connections may take to be gone.
_CLOSE_S = 2.0
# How long sent bytes may be unconfirmed, in times that connecting may take. Without it, the kernel
# goes on for a quarter of an hour after a peer that lost its power.
_UNTAKEN_PER_CONNECT = 5

# What an answer without a gRPC status means (doc/http-grpc-status-mapping of gRPC).
_CODE_OF_HTTP = {
    b"400": StatusCode.INTERNAL,
    b"401": StatusCode.UNAUTHENTICATED,
    b"403": StatusCode.PERMISSION_DENIED,
    b"404": StatusCode.UNIMPLEMENTED,
    b"429": StatusCode.UNAVAILABLE,
    b"502": StatusCode.UNAVAILABLE,
    b"503": StatusCode.UNAVAILABLE,
    b"504": StatusCode.UNAVAILABLE,
}
_CODE_OF_RESET = {
    ErrorCodes.REFUSED_STREAM: StatusCode.UNAVAILABLE,
    ErrorCodes.CANCEL: StatusCode.CANCELLED,
    ErrorCodes.ENHANCE_YOUR_CALM: StatusCode.RESOURCE_EXHAUSTED,
    ErrorCodes.INADEQUATE_SECURITY: StatusCode.PERMISSION_DENIED,
}


@dataclass(frozen=True)
class GrpcTarget:
    """Where a server is, and how to speak to it."""

    host: str
    port: int
    # What gives the context of the next connection; connections of an older one take no more
    # calls. None: no TLS.
    tls: Callable[[], ssl.SSLContext] | None
    connect_timeout_s: float
    max_response_bytes: int
    user_agent: str


class ConnectTimedOut(ConnectionError):
    """A connection took too long."""


class _ClientCall:
    """One call, until it has its answer."""

    __slots__ = ("answer", "encoding", "message", "reader", "status", "stream")

    def __init__(self, loop: asyncio.AbstractEventLoop, max_response_bytes: int) -> None:
        self.answer: asyncio.Future[Message] = loop.create_future()
        self.reader = MessageReader(max_response_bytes)
        self.message: Message | None = None
        self.encoding = IDENTITY
        self.status = b""
        # Of a call with any number of messages; it has no `answer` then.
        self.stream: ClientStream | None = None


class ClientStream:
    """A call whose messages come and go one by one."""

    def __init__(
        self,
        client: GrpcClient,
        connection: _ClientConnection,
        headers: HeaderList,
        encoding: bytes,
    ) -> None:
        self._client = client
        self._connection = connection
        self._encoding = encoding
        self.has_finished = False
        stream_id, self._call = connection.open(headers)
        self._call.stream = self
        self._stream_id = stream_id
        http2 = connection.http2
        self.inbound = InboundMessages(
            client.max_response_bytes, partial(http2.granted_stream, stream_id)
        )
        self.outbound = OutboundMessages(partial(http2.send_piece, stream_id))

    async def send(self, body: bytes) -> None:
        """Send a message, as soon as the one before is gone; raises `CallFailed`."""
        await self.outbound.send(framed(body, self._encoding))

    async def receive(self) -> bytes | None:
        """Return the next message, None if the server has ended the call well; else `CallFailed`.

        What the server was sent and has not answered may be done all the same.
        """
        message = await self.inbound.next()
        if message is None:
            return None
        return await self._client.unpacked(message, self._call.encoding)

    async def finish(self) -> None:
        """Send no more messages; what the server still sends can be received."""
        await self.outbound.until_sent()
        if not self.has_finished:
            self.has_finished = True
            self._connection.http2.send_body(self._stream_id, b"")

    def cancel(self) -> None:
        """Take the call back, if it is not over."""
        self._connection.give_up(self._stream_id)
        self.ended(CallFailed(StatusCode.CANCELLED, "the call was taken back", maybe_done=True))

    def ended(self, failure: CallFailed | None) -> None:
        """Know that the server has ended the call."""
        self.inbound.end(failure)
        over = CallFailed(StatusCode.CANCELLED, "the server has ended the call", maybe_done=True)
        self.outbound.end(failure or over)


class _ClientConnection:
    """One connection, and the calls on it."""

    http2: Http2

    def __init__(
        self,
        target: GrpcTarget,
        connections: set[_ClientConnection],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._target = target
        self.tls = tls
        # All of its client, until they are lost.
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self.calls: dict[int, _ClientCall] = {}
        self.takes_calls = True
        # When anything last came, and who waits for a call to end.
        self.heard_s = self._loop.time()
        self._waiting: list[asyncio.Future[None]] = []
        self.gone: asyncio.Future[None] = self._loop.create_future()

    @property
    def has_room(self) -> bool:
        return len(self.calls) < min(self.http2.max_streams, CALLS_MAX)

    async def until_room(self) -> None:
        """Wait until a call may begin, or the connection takes none."""
        while self.takes_calls and not self.has_room:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(waiter)
            await waiter

    def begin(self, headers: HeaderList, body: bytes) -> tuple[int, _ClientCall]:
        """Send a call.

        It is known before its body is sent: a server may refuse it while that is under way, and the
        answer must find it.
        """
        stream_id, call = self.open(headers)
        self.http2.send_body(stream_id, body)
        return stream_id, call

    def open(self, headers: HeaderList) -> tuple[int, _ClientCall]:
        """Begin a call that has sent nothing but its headers."""
        call = _ClientCall(self._loop, self._target.max_response_bytes)
        stream_id = self.http2.open_stream(headers)
        self.calls[stream_id] = call
        if stream_id > _STREAM_ID_MAX:
            self.takes_calls = False
        return stream_id, call

    def give_up(self, stream_id: int) -> None:
        """Take a call back."""
        if self._remove(stream_id) is not None and self.http2.is_open:
            self.http2.reset(stream_id, ErrorCodes.CANCEL)

    def _remove(self, stream_id: int) -> _ClientCall | None:
        call = self.calls.pop(stream_id, None)
        self._wake()
        # The last one to leave closes it: nobody else looks after a connection that takes no calls.
        if not self.takes_calls and not self.calls:
            self.http2.end()
        return call

    def _wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()

    def _finish(self, stream_id: int, outcome: Message | CallFailed) -> None:
        call = self._remove(stream_id)
        if call is not None and call.stream is not None:
            call.stream.ended(outcome if isinstance(outcome, CallFailed) else None)
            return
        if call is None or call.answer.done():
            return
        if isinstance(outcome, CallFailed):
            call.answer.set_exception(outcome)
        else:
            call.answer.set_result(outcome)

    # --------------------------------------------------------------- what comes

    def opened(self) -> None:
        self._connections.add(self)

    def headers_came(self, stream_id: int, headers: HeaderList, *, ended: bool) -> None:
        self.heard_s = self._loop.time()
        call = self.calls.get(stream_id)
        if call is None:
            return
        # A response has headers twice, before its message and behind it as trailers; a refusal has
        # both in one. So what is in them decides, not how many came before.
        fields = dict(headers)
        status = fields.get(b":status")
        if status is not None:
            call.status = status
            call.encoding = fields.get(b"grpc-encoding", IDENTITY)
        if b"grpc-status" in fields:
            failure = failure_of(
                fields[b"grpc-status"],
                fields.get(b"grpc-message", b""),
                fields.get(b"grpc-status-details-bin", b""),
            )
            self._settle(stream_id, call, failure)
        elif ended or call.status != _HTTP_OK:
            code = _CODE_OF_HTTP.get(call.status, StatusCode.UNKNOWN)
            said = call.status.decode("ascii", "replace")
            self._settle(
                stream_id, call, CallFailed(code, f"the answer is not gRPC: HTTP status {said}")
            )

    def _settle(self, stream_id: int, call: _ClientCall, failure: CallFailed | None) -> None:
        """End a call by its trailers."""
        if call.stream is not None:
            self._settle_stream(stream_id, call.stream, failure)
            return
        self.http2.end_stream(stream_id)
        # OK without a whole message: the server did it, and the answer was lost on the way.
        if failure is None and (call.message is None or not call.reader.is_between):
            failure = CallFailed(StatusCode.INTERNAL, "the answer has no message", maybe_done=True)
        if failure is not None:
            self._finish(stream_id, failure)
        elif call.message is not None:
            self._finish(stream_id, call.message)

    def _settle_stream(
        self, stream_id: int, stream: ClientStream, failure: CallFailed | None
    ) -> None:
        if stream.has_finished:
            self.http2.end_stream(stream_id)
        else:
            self.http2.reset(stream_id, ErrorCodes.NO_ERROR)
        self._remove(stream_id)
        stream.ended(failure)

    def data_came(self, stream_id: int, data: bytes) -> bool:
        self.heard_s = self._loop.time()
        call = self.calls.get(stream_id)
        if call is None:
            return False
        if call.stream is not None:
            self.http2.admitted(len(data))
            call.stream.inbound.came(data)
            return True
        try:
            for message in call.reader.feed(data):
                if call.message is not None:
                    raise CallFailed(
                        StatusCode.INTERNAL, "the answer has two messages", maybe_done=True
                    )
                call.message = message
        except CallFailed as failure:
            failure.maybe_done = True
            self.http2.reset(stream_id, ErrorCodes.CANCEL)
            self._finish(stream_id, failure)
            return False
        self.http2.granted(stream_id, len(data))
        return True

    def stream_ended(self, stream_id: int) -> None:
        call = self.calls.get(stream_id)
        if call is not None:
            self._settle(
                stream_id,
                call,
                CallFailed(StatusCode.INTERNAL, "the answer has no status", maybe_done=True),
            )

    def stream_reset(self, stream_id: int, code: int) -> None:
        refused = code == ErrorCodes.REFUSED_STREAM
        status = next((to for one, to in _CODE_OF_RESET.items() if one == code), None)
        failure = CallFailed(
            status or StatusCode.INTERNAL,
            f"the server reset the call (HTTP/2 error {code})",
            maybe_done=not refused,
        )
        self._finish(stream_id, failure)

    def retire(self) -> None:
        """Take no more calls; those under way are finished."""
        self.takes_calls = False
        self._wake()
        if not self.calls:
            self.http2.end()

    def all_sent(self, stream_id: int) -> None:
        call = self.calls.get(stream_id)
        if call is not None and call.stream is not None:
            call.stream.outbound.sent()

    def peer_leaves(self, last_stream_id: int, code: int) -> None:
        self.takes_calls = False
        for stream_id in [one for one in self.calls if one > last_stream_id]:
            self._finish(stream_id, _unavailable_call("the server left before it saw the call"))
        self.retire()

    def pinged_back(self) -> None:
        """Nothing: no ping is sent."""

    def lost(self, error: Exception | None) -> None:
        self._connections.discard(self)
        self.takes_calls = False
        for stream_id in list(self.calls):
            self._finish(stream_id, _unavailable_call("the connection ended", maybe_done=True))
        self._wake()
        self.gone.set_result(None)


class GrpcClient:
    """Calls the methods of one server."""

    def __init__(
        self, target: GrpcTarget, clock: Clock, settings: GrpcSettings = CLIENT_SETTINGS
    ) -> None:
        """Connect to nobody yet."""
        self._target = target
        self._clock = clock
        self._settings = settings
        self._connection: _ClientConnection | None = None
        self._connecting = asyncio.Lock()
        self._lookup = NameLookup()
        self._connections: set[_ClientConnection] = set()
        scheme = b"https" if target.tls is not None else b"http"
        host = f"[{target.host}]" if ":" in target.host else target.host
        self._head = [
            (b":method", b"POST"),
            (b":scheme", scheme),
            (b":authority", f"{host}:{target.port}".encode()),
        ]
        self._tail = [
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"user-agent", target.user_agent.encode()),
            (b"grpc-accept-encoding", ACCEPT_ENCODING),
        ]

    async def call(
        self,
        path: str,
        body: bytes,
        *,
        timeout_s: float,
        metadata: Sequence[tuple[bytes, bytes]] = (),
        encoding: bytes = IDENTITY,
    ) -> bytes:
        """Return the answer. Raises `CallFailed`; `OSError` if there is no connection."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + timeout_s
        connection = await self._with_room(timeout_s)
        timeout = (b"grpc-timeout", written_timeout(max(ends_s - loop.time(), 0.0)))
        headers = self._headers(path, [timeout, *metadata], encoding)
        began_s = loop.time()
        stream_id, call = connection.begin(headers, framed(body, encoding))
        try:
            async with asyncio.timeout_at(ends_s):
                message = await call.answer
        except TimeoutError:
            # A slow server answers other calls meanwhile; if nothing at all came since, it may be
            # gone, and the next call would wait just as long on the same connection.
            if connection.heard_s < began_s:
                connection.takes_calls = False
                connection.http2.abort()
            raise _late(maybe_done=True) from None
        finally:
            connection.give_up(stream_id)
        return await self.unpacked(message, call.encoding)

    @asynccontextmanager
    async def stream(
        self,
        path: str,
        *,
        timeout_s: float,
        metadata: Sequence[tuple[bytes, bytes]] = (),
        encoding: bytes = IDENTITY,
    ) -> AsyncIterator[ClientStream]:
        """Yield a call with any number of messages, which is taken back at the end if it is open.

        `timeout_s` is for a connection that has room; the call itself may take as long as it likes.
        Raises as `call` does.
        """
        connection = await self._with_room(timeout_s)
        headers = self._headers(path, metadata, encoding)
        stream = ClientStream(self, connection, headers, encoding)
        try:
            yield stream
        finally:
            stream.cancel()

    def _headers(
        self, path: str, metadata: Sequence[tuple[bytes, bytes]], encoding: bytes
    ) -> HeaderList:
        packing = () if encoding == IDENTITY else ((b"grpc-encoding", encoding),)
        return [*self._head, (b":path", path.encode()), *self._tail, *packing, *metadata]

    @property
    def max_response_bytes(self) -> int:
        """How large a message of the server may be, as it comes and unpacked."""
        return self._target.max_response_bytes

    async def close(self) -> None:
        """End all connections; calls under way fail."""
        self._connection = None
        gone = [connection.gone for connection in self._connections]
        for connection in list(self._connections):
            connection.takes_calls = False
            connection.http2.abort()
        if gone:
            await asyncio.wait(gone, timeout=_CLOSE_S)

    async def unpacked(self, message: Message, encoding: bytes) -> bytes:
        """Return a message as the server meant it; raises `CallFailed`."""
        if not message.is_packed:
            return message.pieces.whole()
        try:
            check_encoding(encoding)
            decoding = unpacking(encoding, self._target.max_response_bytes)
            return await message.pieces.unpacked(decoding, _held)
        except TooMuch:
            failure = too_large(self._target.max_response_bytes)
        except Undecodable as error:
            failure = CallFailed(StatusCode.INTERNAL, str(error))
        except CallFailed as error:
            failure = error
        failure.maybe_done = True
        raise failure

    async def _with_room(self, timeout_s: float) -> _ClientConnection:
        """Return a connection that takes a call now.

        Looked at again after each wait: while a call waits for room, the server may say that it
        goes away, and the call belongs on the next connection then.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    # One connects, the others wait for it: a hundred calls after a restart of the
                    # server must not open a hundred connections.
                    async with self._connecting:
                        connection = self._connection
                        tls = None if self._target.tls is None else self._target.tls()
                        if connection is not None and connection.tls is not tls:
                            connection.retire()
                        if connection is None or not connection.takes_calls:
                            connection = self._connection = await self._connect(tls)
                    await connection.until_room()
                    if connection.takes_calls and connection.http2.is_open:
                        return connection
                    connection.takes_calls = False
        except TimeoutError:
            raise _late() from None

    async def _connect(self, tls: ssl.SSLContext | None) -> _ClientConnection:
        target = self._target
        side = _ClientConnection(target, self._connections, tls)
        side.http2 = Http2(side, self._settings, self._clock, is_client=True)
        try:
            async with asyncio.timeout(target.connect_timeout_s):
                await self._establish(side.http2, tls)
        except TimeoutError:
            raise ConnectTimedOut(errno.ETIMEDOUT, "no connection in time") from None
        return side

    async def _establish(self, http2: Http2, tls: ssl.SSLContext | None) -> None:
        host, port = self._target.host, self._target.port
        # An address may end with a dot, a certificate's name does not.
        name = None if tls is None else host.rstrip(".")
        if name is not None:
            refuse_if_no_name(name)
        untaken_s = self._target.connect_timeout_s * _UNTAKEN_PER_CONNECT
        connected = await connected_socket(self._lookup, host, port, untaken_s)
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: http2, sock=connected, ssl=tls, server_hostname=name
            )
        except BaseException:
            connected.close()
            raise


def _unavailable_call(message: str, *, maybe_done: bool = False) -> CallFailed:
    return CallFailed(StatusCode.UNAVAILABLE, message, maybe_done=maybe_done)


def _late(*, maybe_done: bool = False) -> CallFailed:
    return CallFailed(StatusCode.DEADLINE_EXCEEDED, "no answer in time", maybe_done=maybe_done)


def _held(_: int) -> None:
    """Nothing: an answer has a bound of its own."""
