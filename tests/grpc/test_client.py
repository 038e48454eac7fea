"""The gRPC client: against our own server, against grpcio's, and against peers that break off."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from hpack import Encoder
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    RstStreamFrame,
    SettingsFrame,
)
from tests.grpc.harness import ECHO, FAIL, SLOW, Served, served
from tests.patience import PATIENCE_S, until_async
from tests.support.certificates import identity

from holdfast.grpc.client import ConnectTimedOut, GrpcClient, GrpcTarget
from holdfast.grpc.messages import framed
from holdfast.grpc.settings import GrpcSettings
from holdfast.grpc.status import CallFailed, StatusCode
from holdfast.receive.listening import ListenerTls
from holdfast.seam import Seam

MB = 1024 * 1024


def target_of(address: str, tls: ssl.SSLContext | None = None, **more: Any) -> GrpcTarget:
    host, _, port = address.rpartition(":")
    options: dict[str, Any] = {
        "connect_timeout_s": PATIENCE_S,
        "max_response_bytes": 64 * MB,
        "user_agent": "test",
        **more,
    }
    return GrpcTarget(host, int(port), None if tls is None else lambda: tls, **options)


@contextlib.asynccontextmanager
async def client_of(address: str, **more: Any) -> AsyncIterator[GrpcClient]:
    client = GrpcClient(target_of(address, **more), Seam().clock)
    try:
        yield client
    finally:
        await client.close()


async def call(client: GrpcClient, path: str = ECHO, body: bytes = b"", **more: Any) -> bytes:
    more.setdefault("timeout_s", PATIENCE_S)
    return await client.call(path, body, **more)


async def failed(client: GrpcClient, *args: Any, **more: Any) -> CallFailed:
    with pytest.raises(CallFailed) as caught:
        await call(client, *args, **more)
    return caught.value


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("ours")) as one:
        yield one


class _Generic(grpc.GenericRpcHandler):
    """grpcio's server: answers with what came."""

    def service(self, details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self.answer)

    def answer(self, body: bytes, context: grpc.ServicerContext) -> bytes:
        if body == b"fail":
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "voll: 100 %")
        return body


@pytest.fixture(scope="module")
def theirs() -> Iterator[str]:
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(futures.ThreadPoolExecutor(4), [_Generic()], options=options)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.fixture(params=["ours", "theirs"])
def address(request: pytest.FixtureRequest, ours: Served, theirs: str) -> str:
    return ours.address if request.param == "ours" else theirs


def test_calls_of_any_size_share_one_connection(address: str) -> None:
    async def run() -> None:
        async with client_of(address) as client:
            bodies = [b"x" * size for size in (0, 1, 70_000, 3 * MB, *range(150))]
            answers = await asyncio.gather(*(call(client, ECHO, body) for body in bodies))
            assert answers == bodies
            assert len(client._connections) == 1

    asyncio.run(run())


@pytest.mark.parametrize("encoding", [b"gzip", b"zstd"])
def test_messages_can_be_compressed(ours: Served, theirs: str, encoding: bytes) -> None:
    async def run() -> None:
        # grpcio does not know zstd.
        async with client_of(theirs if encoding == b"gzip" else ours.address) as client:
            body = b"compressible" * 10_000
            assert await call(client, ECHO, body, encoding=encoding) == body

    asyncio.run(run())


def test_a_status_is_read_with_its_wait(ours: Served, theirs: str) -> None:
    async def run() -> None:
        async with client_of(ours.address) as client:
            failure = await failed(client, FAIL)
            assert (failure.code, failure.retry_after_s) == (StatusCode.UNAVAILABLE, 2.5)
            assert failure.message == "später, 100 %"
            assert (await failed(client, "/no/Method")).code is StatusCode.UNIMPLEMENTED
        async with client_of(theirs) as client:
            failure = await failed(client, ECHO, b"fail")
            assert (failure.code, failure.retry_after_s) == (StatusCode.RESOURCE_EXHAUSTED, None)
            assert failure.message == "voll: 100 %"
            assert await call(client, ECHO, b"on") == b"on"

    asyncio.run(run())


def test_a_call_out_of_time_is_taken_back(ours: Served) -> None:
    async def run() -> None:
        begun, cancelled = ours.slow.begun, ours.slow.cancelled
        async with client_of(ours.address) as client:
            assert await call(client, ECHO, b"x") == b"x"
            failure = await failed(client, SLOW, timeout_s=0.05)
            assert (failure.code, failure.maybe_done) == (StatusCode.DEADLINE_EXCEEDED, True)
            await until_async(lambda: ours.slow.cancelled - cancelled == ours.slow.begun - begun)

    asyncio.run(run())


def test_an_answer_over_the_bound_is_not_read(ours: Served) -> None:
    async def run() -> None:
        async with client_of(ours.address, max_response_bytes=1000) as client:
            failure = await failed(client, ECHO, bytes(2000))
            assert (failure.code, failure.maybe_done) == (StatusCode.RESOURCE_EXHAUSTED, True)
            assert await call(client, ECHO, b"on") == b"on"

    asyncio.run(run())


def test_a_server_that_goes_away_loses_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long this process is stopped, the server waits until the client knows.
    monkeypatch.setattr("holdfast.grpc.server._LEAVE_GRACE_S", PATIENCE_S)

    async def run(address: str) -> None:
        async with client_of(address) as client:
            for number in range(30):
                assert await call(client, ECHO, b"%d" % number) == b"%d" % number
                await asyncio.sleep(0.01)

    with served(tmp_path, GrpcSettings(max_age_s=0.05)) as server:
        asyncio.run(run(server.address))


def test_a_server_without_connection_or_tls_is_an_error_of_the_system(
    ours: Served, tmp_path: Path
) -> None:
    async def run() -> None:
        async with client_of("127.0.0.1:1") as client:
            with pytest.raises(ConnectionRefusedError):
                await call(client)
        async with client_of(ours.address, tls=ssl.create_default_context()) as client:
            with pytest.raises(OSError, match=r"(?i)ssl|reset|closed|eof"):
                await call(client)

    asyncio.run(run())


def test_mutual_tls(tmp_path: Path) -> None:
    authority = identity("authority")
    authority.write(tmp_path, "ca")
    for name in ("localhost", "client"):
        identity(name, authority).write(tmp_path, name)
    tls = ListenerTls(cert_file="localhost.pem", key_file="localhost.key", client_ca_file="ca.pem")

    async def run(address: str) -> None:
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        context.set_alpn_protocols(["h2"])
        async with client_of(address, tls=context) as client:
            with pytest.raises((OSError, CallFailed)):
                await call(client)
        context.load_cert_chain(tmp_path / "client.pem", tmp_path / "client.key")
        async with client_of(address, tls=context) as client:
            assert await call(client, ECHO, b"safe") == b"safe"

    with served(tmp_path, tls=tls) as server:
        asyncio.run(run(server.address))


# A server that does what it is told to.


Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def scripted(*scripts: Script) -> AsyncIterator[str]:
    """Run a server whose connections follow one script after the other."""
    left = list(scripts)
    tasks: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        this = asyncio.current_task()
        assert this is not None
        tasks.add(this)
        try:
            writer.write(SettingsFrame(0).serialize())
            await left.pop(0)(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


def saying(*frames: Frame, then: Script | None = None) -> Script:
    """Return a script that waits for a call, and says something."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = b""
        while framed(b"ask") not in data:
            more = await reader.read(65536)
            if not more:
                return
            data += more
        writer.write(b"".join(frame.serialize() for frame in frames))
        if then is not None:
            await then(reader, writer)

    return script


async def until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(65536):
        pass


def answer_frames(stream_id: int = 1, body: bytes = b"answer") -> list[Frame]:
    encoder = Encoder()
    head = encoder.encode([(":status", "200"), ("content-type", "application/grpc")])
    tail = encoder.encode([("grpc-status", "0")])
    return [
        HeadersFrame(stream_id, head, flags=["END_HEADERS"]),
        DataFrame(stream_id, framed(body)),
        HeadersFrame(stream_id, tail, flags=["END_HEADERS", "END_STREAM"]),
    ]


def http_frames(status: str) -> list[Frame]:
    block = Encoder().encode([(":status", status)])
    return [HeadersFrame(1, block, flags=["END_HEADERS", "END_STREAM"])]


BROKEN_OFF: dict[str, tuple[Script, StatusCode, bool]] = {
    "closed in the middle": (saying(), StatusCode.UNAVAILABLE, True),
    "refused stream": (
        saying(RstStreamFrame(1, error_code=7), then=until_closed),
        StatusCode.UNAVAILABLE,
        False,
    ),
    "reset": (
        saying(RstStreamFrame(1, error_code=2), then=until_closed),
        StatusCode.INTERNAL,
        True,
    ),
    "gone before it saw the call": (
        saying(GoAwayFrame(0, last_stream_id=0, error_code=0), then=until_closed),
        StatusCode.UNAVAILABLE,
        False,
    ),
    "no status": (
        saying(
            answer_frames()[0],
            DataFrame(1, framed(b"x"), flags=["END_STREAM"]),
            then=until_closed,
        ),
        StatusCode.INTERNAL,
        True,
    ),
    "a proxy's 503": (
        saying(*http_frames("503"), then=until_closed),
        StatusCode.UNAVAILABLE,
        False,
    ),
    "a proxy's 401": (
        saying(*http_frames("401"), then=until_closed),
        StatusCode.UNAUTHENTICATED,
        False,
    ),
    "two messages": (
        saying(answer_frames()[0], DataFrame(1, framed(b"x") * 2), then=until_closed),
        StatusCode.INTERNAL,
        True,
    ),
    "not HTTP/2": (saying(DataFrame(7, b"x"), then=until_closed), StatusCode.UNAVAILABLE, True),
}


@pytest.mark.parametrize("kind", BROKEN_OFF)
def test_what_breaks_off_is_told_and_the_next_call_connects_again(kind: str) -> None:
    script, code, maybe_done = BROKEN_OFF[kind]

    async def run() -> None:
        async with (
            scripted(script, saying(*answer_frames(), then=until_closed)) as address,
            client_of(address) as client,
        ):
            failure = await failed(client, ECHO, b"ask")
            assert (failure.code, failure.maybe_done) == (code, maybe_done)
            for connection in list(client._connections):
                connection.takes_calls = False  # so that the next script is asked
            assert await call(client, ECHO, b"ask") == b"answer"
            for connection in list(client._connections):
                connection.http2.abort()

    asyncio.run(run())


def test_calls_below_the_last_are_finished_beside_a_new_connection() -> None:
    async def run() -> None:
        again = asyncio.Event()

        async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await again.wait()
            writer.write(b"".join(frame.serialize() for frame in answer_frames(body=b"old")))
            await until_closed(reader, writer)

        goaway = GoAwayFrame(0, last_stream_id=1, error_code=0)
        other = saying(*answer_frames(body=b"new"), then=until_closed)
        async with (
            scripted(saying(goaway, then=late), other) as address,
            client_of(address) as client,
        ):
            first = asyncio.create_task(call(client, ECHO, b"ask"))
            await until_async(lambda: any(not one.takes_calls for one in client._connections))
            assert await call(client, ECHO, b"ask") == b"new"
            again.set()
            assert await first == b"old"

    asyncio.run(run())


def test_a_silent_connection_is_not_used_again() -> None:
    async def run() -> None:
        once = saying(*answer_frames(), then=until_closed)
        async with scripted(once, once) as address, client_of(address) as client:
            assert await call(client, ECHO, b"ask") == b"answer"
            failure = await failed(client, ECHO, b"ask", timeout_s=0.1)
            assert (failure.code, failure.maybe_done) == (StatusCode.DEADLINE_EXCEEDED, True)
            assert await call(client, ECHO, b"ask") == b"answer"

    asyncio.run(run())


def test_connecting_has_its_own_time() -> None:
    async def run() -> None:
        # A port that takes no more connections: the backlog is full, and nobody accepts.
        async with client_of("192.0.2.1:9", connect_timeout_s=0.05) as client:
            with pytest.raises((ConnectTimedOut, OSError)):
                await call(client)

    asyncio.run(run())


def test_a_name_server_that_hangs_holds_up_no_other_client(
    ours: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def addresses(host: str, *rest: Any, **more: Any) -> list[Any]:
        if host == "hangs.invalid":
            questions.append(host)
            go_on.wait(PATIENCE_S)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return asked(host, *rest, **more)

    asked, go_on, questions = socket.getaddrinfo, threading.Event(), list[str]()
    monkeypatch.setattr(socket, "getaddrinfo", addresses)

    async def run() -> None:
        async with client_of("hangs.invalid:1", connect_timeout_s=0.01) as away:
            for _ in range(50):
                with pytest.raises(ConnectTimedOut):
                    await call(away)
        async with client_of(ours.address.replace("127.0.0.1", "localhost")) as client:
            assert await call(client, body=b"there") == b"there"
        assert len(questions) == 1

    try:
        asyncio.run(run())
    finally:
        go_on.set()
