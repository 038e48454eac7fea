"""What the tests of gRPC share: a server, its methods, and a peer that may do anything."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, cast

import grpc
import uvloop
from hpack import Decoder, Encoder
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from tests.patience import PATIENCE_S, until

from holdfast.dead_letters.queue import DeadLetterQueue
from holdfast.grpc.calls import Method, ServerCall, ServerStream, StreamMethod
from holdfast.grpc.http2 import PREFACE
from holdfast.grpc.messages import framed
from holdfast.grpc.settings import GrpcSettings
from holdfast.grpc.status import CallFailed, StatusCode
from holdfast.quiver import Quiver
from holdfast.receive.admission import Admission, Tokens, TokenSettings
from holdfast.receive.body import RequestLimits
from holdfast.receive.grpc_server import GrpcServer, ReceiverGate, client_of
from holdfast.receive.http_app import RequestCounts
from holdfast.receive.listening import ListenerTls
from holdfast.receive.receiver import ReceiverContext
from holdfast.seam import Seam

ECHO = "/test.Service/Echo"
FAST = "/test.Service/Fast"
SLOW = "/test.Service/Slow"
FAIL = "/test.Service/Fail"
CALLER = "/test.Service/Caller"
TALK = "/test.Service/Talk"


class Echo:
    """Answers with what came."""

    async def handle(self, body: bytes, call: ServerCall) -> bytes:
        return body


class Fast(Echo):
    """The same, without waiting; `offer` leaves one kind of message to `handle`."""

    def offer(self, body: bytes, call: ServerCall) -> bool:
        if body == b"not now":
            return False
        asyncio.get_running_loop().call_soon(call.answer, b"fast " + body)
        return True


class Slow:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.begun = 0
        self.cancelled = 0
        self.go = asyncio.Event()

    async def handle(self, body: bytes, call: ServerCall) -> bytes:
        self.begun += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return body


class Fail:
    """Fails as its message says."""

    async def handle(self, body: bytes, call: ServerCall) -> bytes:
        if body == b"bug":
            raise RuntimeError("secret details")
        raise CallFailed(StatusCode.UNAVAILABLE, "später, 100 %", retry_after_s=2.5)


class Caller:
    """Says who calls."""

    async def handle(self, body: bytes, call: ServerCall) -> bytes:
        return client_of(call).name.encode()


class Talk:
    """Answers each message of a stream; the first word may say that something else is wanted."""

    def __init__(self) -> None:
        self.received = 0
        self.ended = 0
        self.cancelled = 0
        # Cleared: it reads nothing more.
        self.reads = asyncio.Event()
        self.reads.set()

    async def converse(self, stream: ServerStream) -> None:
        try:
            while (body := await stream.receive()) is not None:
                self.received += 1
                if body == b"fail":
                    raise CallFailed(StatusCode.ABORTED, "as asked")
                if body == b"many":
                    for _ in range(1000):
                        await stream.send(bytes(65536))
                if body:
                    await stream.send(b"got " + body)
                await self.reads.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.ended += 1


class Served:
    """A gRPC server in a thread."""

    def __init__(
        self,
        folder: Path,
        settings: GrpcSettings | None = None,
        limits: RequestLimits | None = None,
        tokens: tuple[TokenSettings, ...] = (),
        tls: ListenerTls | None = None,
    ) -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        limits = limits or RequestLimits()
        seam = Seam()
        # The server never looks at either: what is stored is its methods' business.
        context = ReceiverContext(
            "in", cast(Quiver, None), cast(DeadLetterQueue, None), seam, folder
        )
        self.counts = RequestCounts()
        self.admission = Admission(limits.max_requests, limits.max_in_flight_bytes)
        self.gate = ReceiverGate(context, self.counts, Tokens(tokens, seam), self.admission)
        self.slow = Slow()
        self.talk = Talk()
        methods: dict[str, Method | StreamMethod] = {
            TALK: self.talk,
            ECHO: Echo(),
            FAST: Fast(),
            SLOW: self.slow,
            FAIL: Fail(),
            CALLER: Caller(),
        }
        self.server = GrpcServer(
            context,
            self.gate,
            methods,
            "127.0.0.1:0",
            limits=limits,
            tls=tls,
            settings=settings,
        )
        self.run(self.server.start())
        self.address = self.server.addresses[0].partition("://")[2]

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE_S)

    def release(self) -> None:
        self.loop.call_soon_threadsafe(self.slow.go.set)

    @property
    def rejected(self) -> Counter[str]:
        return self.counts.rejected

    def until_empty(self) -> None:
        until(
            lambda: not self.admission.in_flight_bytes and not self.admission.in_flight_requests,
            "everything was given back",
        )

    def stop(self, drain_s: float = 5.0) -> None:
        self.run(self.server.stop(drain_s))

    def close(self) -> None:
        self.stop(0.0)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.loop.close()


@contextlib.contextmanager
def served(folder: Path, *args: Any, **more: Any) -> Iterator[Served]:
    one = Served(folder, *args, **more)
    try:
        yield one
    finally:
        one.close()


def channel_to(address: str, **options: Any) -> grpc.Channel:
    return grpc.insecure_channel(
        address,
        options=[
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
        ],
        **options,
    )


def method_of(channel: grpc.Channel, path: str) -> Any:
    """Return a method of bytes to bytes, which the stubs of grpcio do not know."""
    method: Any = channel.unary_unary(path)
    return method


def ask(channel: grpc.Channel, path: str, body: bytes = b"", **options: Any) -> bytes:
    """Call a method with bytes."""
    method = method_of(channel, path)
    options.setdefault("timeout", PATIENCE_S)
    answer: bytes = method(body, **options)
    return answer


def refused(channel: grpc.Channel, path: str, body: bytes = b"", **options: Any) -> grpc.RpcError:
    """Call a method that does not answer, and return why."""
    try:
        answer = ask(channel, path, body, **options)
    except grpc.RpcError as error:
        return error
    raise AssertionError(f"answered {answer[:100]!r}")


def headers_of(path: str = ECHO, **more: str) -> list[tuple[str, str]]:
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "test"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        *((name.replace("_", "-"), value) for name, value in more.items()),
    ]


class RawPeer:
    """A client on a socket that sends whatever it is told to."""

    def __init__(self, address: str, *, greets: bool = True) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), PATIENCE_S)
        self.socket.settimeout(PATIENCE_S)
        self.encoder = Encoder()
        self.decoder = Decoder()
        self._buffer = b""
        self.frames: list[Frame] = []
        if greets:
            self.send_bytes(PREFACE)
            self.send(SettingsFrame(0))

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, *frames: Frame) -> None:
        self.send_bytes(b"".join(frame.serialize() for frame in frames))

    def begin(self, stream_id: int, headers: list[tuple[str, str]] | None = None) -> HeadersFrame:
        block = self.encoder.encode(headers if headers is not None else headers_of())
        return HeadersFrame(stream_id, block, flags=["END_HEADERS"])

    def call(self, stream_id: int, body: bytes = b"hello", path: str = ECHO) -> None:
        """Send a whole call."""
        self.send(
            self.begin(stream_id, headers_of(path)),
            DataFrame(stream_id, framed(body), flags=["END_STREAM"]),
        )

    def next_frame(self) -> Frame | None:
        """Return the next frame; None when the server has closed the connection."""
        while True:
            if len(self._buffer) >= 9:
                frame, length = Frame.parse_frame_header(memoryview(self._buffer[:9]))
                if len(self._buffer) >= 9 + length:
                    frame.parse_body(memoryview(self._buffer[9 : 9 + length]))
                    self._buffer = self._buffer[9 + length :]
                    self.frames.append(frame)
                    return frame
            try:
                more = self.socket.recv(65536)
            except ConnectionError:
                more = b""
            if not more:
                return None
            self._buffer += more

    def until_frame(self, kind: type[Frame], stream_id: int | None = None) -> Any:
        """Read until a frame of a kind comes, and return it."""
        while (frame := self.next_frame()) is not None:
            if isinstance(frame, kind) and stream_id in (None, frame.stream_id):
                return frame
        raise AssertionError(f"no {kind.__name__}; came: {self.frames}")

    def status_of(self, stream_id: int) -> grpc.StatusCode:
        """Read until the trailers of a stream, and return its status."""
        while True:
            frame = self.until_frame(HeadersFrame)
            fields = self.fields_of(frame)
            if frame.stream_id == stream_id and "grpc-status" in fields:
                number = int(fields["grpc-status"])
                return next(code for code in grpc.StatusCode if code.value[0] == number)

    def fields_of(self, frame: HeadersFrame) -> dict[str, str]:
        """Return the headers of a frame; each is to be asked for once, and in order."""
        found: Any = self.decoder.decode(frame.data)
        return dict(found)

    def until_answered(self, stream_id: int) -> None:
        """Read until a stream ends with trailers."""
        while (frame := self.next_frame()) is not None:
            if frame.stream_id == stream_id and "END_STREAM" in frame.flags:
                return
        raise AssertionError(f"stream {stream_id} was not answered; came: {self.frames}")

    def until_gone(self) -> int | None:
        """Read until the connection is closed; return the code of the last GOAWAY."""
        while self.next_frame() is not None:
            pass
        codes = [frame.error_code for frame in self.frames if isinstance(frame, GoAwayFrame)]
        return codes[-1] if codes else None

    def reset(self, stream_id: int) -> RstStreamFrame:
        return RstStreamFrame(stream_id, error_code=8)

    def window(self, stream_id: int, size_bytes: int) -> WindowUpdateFrame:
        return WindowUpdateFrame(stream_id, window_increment=size_bytes)

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
