"""How an answer is framed, and what becomes of one that its app does not finish."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.patience import PATIENCE_S

from holdfast.receive.http_server import HttpServer
from holdfast.receive.responses import AsgiApp, Receive, Scope, Send

LENGTH = (b"content-length", b"5")


@contextlib.asynccontextmanager
async def connected(
    app: AsgiApp,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    server = HttpServer(app, "127.0.0.1:0")
    await server.start()
    port = int(server.addresses[0].rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        await server.stop(5.0)


def ask(app: AsgiApp, request: bytes) -> tuple[list[bytes], bytes]:
    """Send a request that ends its connection; return the head's lines and what came behind it."""

    async def play() -> bytes:
        async with connected(app) as (reader, writer):
            writer.write(request)
            return await asyncio.wait_for(reader.read(), PATIENCE_S)

    head, _, rest = asyncio.run(play()).partition(b"\r\n\r\n")
    return head.lower().split(b"\r\n"), rest


def request(method: str = "GET", version: str = "1.1", connection: str = "close") -> bytes:
    return f"{method} / HTTP/{version}\r\nhost: x\r\nconnection: {connection}\r\n\r\n".encode()


def answering(*parts: bytes, status: int = 200, headers: Any = ()) -> AsgiApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})

    return app


def test_an_answer_with_a_length_is_sent_as_it_is() -> None:
    head, body = ask(answering(b"he", b"llo", headers=[LENGTH]), request())
    assert head[0] == b"http/1.1 200 ok"
    assert {b"content-length: 5", b"connection: close"} <= set(head)
    assert any(line.startswith(b"date: ") for line in head)
    assert not any(line.startswith(b"transfer-encoding") for line in head)
    assert body == b"hello"


def test_an_answer_without_a_length_is_sent_in_chunks() -> None:
    head, body = ask(answering(b"hello", b"", b"x" * 17), request())
    assert b"transfer-encoding: chunked" in head
    assert body == b"5\r\nhello\r\n11\r\n" + b"x" * 17 + b"\r\n0\r\n\r\n"


def test_to_an_old_client_the_end_of_the_connection_is_the_end() -> None:
    head, body = ask(answering(b"hello", b"!"), request(version="1.0", connection="keep-alive"))
    assert not any(line.startswith(b"transfer-encoding") for line in head)
    assert b"connection: close" in head
    assert body == b"hello!"


@pytest.mark.parametrize("headers", [(), (LENGTH,)])
def test_head_is_answered_without_a_body(headers: Any) -> None:
    head, body = ask(answering(b"hello", headers=headers), request("HEAD"))
    assert (b"content-length: 5" in head) == bool(headers)
    assert body == b""


@pytest.mark.parametrize("status", [204, 304])
def test_some_answers_have_no_body(status: int) -> None:
    head, body = ask(answering(status=status), request())
    assert not any(line.startswith((b"transfer-encoding", b"content-length")) for line in head)
    assert body == b""


def test_an_app_may_close_the_connection() -> None:
    app = answering(b"hello", headers=[LENGTH, (b"connection", b"close")])
    head, body = ask(app, request(connection="keep-alive"))
    assert head.count(b"connection: close") == 1
    assert body == b"hello"


@pytest.mark.parametrize("name_and_value", [(b"x", b"a\r\nb: c"), (b"a\nb", b"c"), (b"x", b"\0")])
def test_a_header_cannot_begin_another(name_and_value: tuple[bytes, bytes]) -> None:
    head, body = ask(answering(headers=[name_and_value]), request(connection="keep-alive"))
    assert head[0] == b"http/1.1 500 internal server error"
    assert b"connection: close" in head
    assert body == b"Internal Server Error"


async def _fails(scope: Scope, receive: Receive, send: Send) -> None:
    raise RuntimeError("a fault")


async def _says_nothing(scope: Scope, receive: Receive, send: Send) -> None:
    pass


@pytest.mark.parametrize("app", [_fails, _says_nothing])
def test_an_app_that_does_not_begin_is_answered_for(app: AsgiApp) -> None:
    head, body = ask(app, request(connection="keep-alive"))
    assert head[0] == b"http/1.1 500 internal server error"
    assert body == b"Internal Server Error"


@pytest.mark.parametrize(
    ("parts", "sent"), [((b"hel",), b"hel"), ((b"hello", b"!"), b"hello")], ids=["short", "long"]
)
def test_half_an_answer_is_never_taken_for_a_whole_one(
    parts: tuple[bytes, ...], sent: bytes
) -> None:
    head, body = ask(answering(*parts, headers=[LENGTH]), request(connection="keep-alive"))
    assert b"content-length: 5" in head
    assert body == sent


def test_an_app_hears_of_a_client_that_leaves_while_another_request_waits() -> None:
    """As the page of the console that shows figures as they change."""
    heard = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"began", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        heard.set()

    async def play() -> None:
        async with connected(app) as (reader, writer):
            writer.write(request(connection="keep-alive") * 2)
            await reader.readuntil(b"began")
            # With a reset: at a mere end of what it sends, the second answer would be due.
            at_once = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
            writer.transport.abort()
            await asyncio.wait_for(heard.wait(), PATIENCE_S)

    asyncio.run(play())
