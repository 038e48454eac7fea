"""Answers in any pieces, answers that are none, and connections that are kept, or not."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import os
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import closing
from typing import Any, cast

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from tests.deliver.exporters.backend import (
    Backend,
    Connection,
    Request,
    Step,
    answer,
    close_at_once,
    hang_before_headers,
    raw,
)
from tests.deliver.exporters.proxy import forward_proxy
from tests.patience import PATIENCE_S, until, until_async
from tests.support.certificates import Certificates

from holdfast import happy_eyeballs
from holdfast.deliver.exporters import http_connections
from holdfast.deliver.exporters.classify import failure_of_exception
from holdfast.deliver.exporters.http_connections import (
    ANSWER_HEAD_BYTES_MAX,
    PIECE_BYTES,
    HttpAnswer,
    HttpConnection,
    HttpConnections,
    HttpLimits,
    HttpProxy,
    HttpRoute,
)
from holdfast.deliver.exporters.http_failures import (
    HttpConnectionEnded,
    HttpConnectTimedOut,
    HttpFailed,
    HttpNotConnected,
    HttpProxyRefused,
    NotHttp,
)

LoopFactory = Callable[[], asyncio.AbstractEventLoop]
LOOPS: list[LoopFactory] = [asyncio.new_event_loop, uvloop.new_event_loop]

ANSWER_BYTES_MAX = 10_000
LIMITS = HttpLimits(
    connect_s=PATIENCE_S,
    silence_s=PATIENCE_S,
    total_s=PATIENCE_S,
    connections_max=2,
    answer_bytes_max=ANSWER_BYTES_MAX,
)
HEAD = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n"
# Each ends by itself, but the one whose end is that of the connection.
ANSWERS = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    CHUNKED + b"5\r\nhello\r\n3;x=y\r\n wo\r\n0\r\nT: u\r\n\r\n",
    INTERIM + b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nhi",
    b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 4\r\n\r\nbusy",
    b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi",
    b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end",
    b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    b"HTTP/1.1 200 OK\nContent-Length: 2\n\nhi",
    b"HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n" + b" " * 20_000,
]


class FakeTransport:
    """Takes everything, and remembers whether it was cut."""

    def __init__(self) -> None:
        self.is_cut = False
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(bytes(data))

    def abort(self) -> None:
        self.is_cut = True

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> None:
        return None


def feed(pieces: Sequence[bytes], *, needs_body: bool = True) -> tuple[Any, bool]:
    """Return what a connection makes of bytes and an end, and whether it was usable before that."""

    async def run() -> tuple[Any, bool]:
        connection, transport = HttpConnection(LIMITS), FakeTransport()
        connection.connection_made(cast(asyncio.Transport, transport))
        deadline_s = asyncio.get_running_loop().time() + PATIENCE_S
        found = connection.begin(HEAD % 0, b"", deadline_s=deadline_s, needs_body=needs_body)
        for piece in pieces:
            if transport.is_cut:
                break
            connection.data_received(piece)
        was_free = connection.is_free
        connection.eof_received()
        connection.connection_lost(None)
        assert found.done()
        failure = found.exception()
        assert failure is None or isinstance(failure, HttpFailed)
        return (type(failure) if failure else found.result()), was_free

    return asyncio.run(run())


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[first:end] for first, end in itertools.pairwise(edges)]


@given(st.sampled_from(ANSWERS), st.lists(st.integers(0, 30_000), max_size=12), st.booleans())
def test_how_the_network_cuts_an_answer_changes_nothing(
    data: bytes, places: list[int], needs_body: bool
) -> None:
    whole = feed([data], needs_body=needs_body)
    assert isinstance(whole[0], HttpAnswer)
    assert feed(cut(data, places), needs_body=needs_body) == whole


@pytest.mark.parametrize("data", ANSWERS[:-1])
def test_byte_by_byte(data: bytes) -> None:
    assert feed([bytes([byte]) for byte in data]) == feed([data])


def test_what_answers_say() -> None:
    found = [feed([data]) for data in ANSWERS]
    assert [(one.status, one.body) for one, _ in found] == [
        (200, b"hello"),
        (204, b""),
        (200, b"hello wo"),
        (201, b"hi"),
        (503, b"busy"),
        (200, b"hi"),
        (200, b"until the end"),
        (101, b""),
        (200, b"hi"),
        (200, None),
    ]
    assert [was_free for _, was_free in found] == [
        *[True] * 4,
        *[False] * 4,
        True,
        False,
    ]
    assert found[4][0].header(b"retry-after") == "7"
    # Nothing of a 1xx, nor of what comes behind the body.
    assert found[3][0].header(b"link") is None
    assert found[2][0].header(b"t") is None


@given(
    st.sampled_from(ANSWERS[:-1]),
    st.lists(st.tuples(st.integers(0, 200), st.binary(max_size=4)), min_size=1, max_size=4),
    st.lists(st.integers(0, 200), max_size=4),
    st.booleans(),
)
def test_a_changed_answer_has_a_verdict(
    data: bytes, changes: list[tuple[int, bytes]], places: list[int], needs_body: bool
) -> None:
    for place, put in changes:
        at = place % len(data)
        data = data[:at] + put + data[at + 1 :]
    feed(cut(data, places), needs_body=needs_body)


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=4))
def test_anything_has_a_verdict(data: bytes, places: list[int]) -> None:
    feed(cut(data, places))


@pytest.mark.parametrize(
    ("data", "failure"),
    [
        (b"", HttpConnectionEnded),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", HttpConnectionEnded),
        (CHUNKED + b"2\r\nhi\r\n", HttpConnectionEnded),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * (ANSWER_HEAD_BYTES_MAX + 1), NotHttp),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 2000, NotHttp),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * ANSWER_HEAD_BYTES_MAX, NotHttp),
        (CHUNKED + b"zz\r\n", NotHttp),
        (CHUNKED + b"0\r\n" + b"X: y\r\n" * ANSWER_HEAD_BYTES_MAX, NotHttp),
    ],
)
def test_what_is_no_answer(data: bytes, failure: type[HttpFailed]) -> None:
    assert feed([data]) == (failure, False)
    assert feed(cut(data, range(0, len(data), 1000))) == (failure, False)


@pytest.mark.parametrize("begins", [b"2;", b"0\r\nX: ", b"2\r\nhi\r\n0\r\nX"])
def test_a_line_behind_the_head_has_an_end_too(begins: bytes) -> None:
    """The parser keeps it till then."""
    endless = [b"x" * 1000] * (ANSWER_HEAD_BYTES_MAX // 1000 + 1)
    assert feed([CHUNKED + begins, *endless]) == (NotHttp, False)


@pytest.mark.parametrize("behind", [b"x", ANSWERS[0], b"\r\nHTTP"])
def test_what_comes_behind_an_answer_ends_the_connection(behind: bytes) -> None:
    found, was_free = feed([ANSWERS[0] + behind])
    assert found.body == b"hello"
    assert not was_free
    assert feed([ANSWERS[0], behind]) == (found, False)


# ------------------------------------------------------------------ over sockets


def route_to(backend: Backend) -> HttpRoute:
    return HttpRoute("127.0.0.1", backend.port)


def send_all(
    routes: Sequence[HttpRoute], limits: HttpLimits = LIMITS, body: bytes = b"{}"
) -> list[Any]:
    """Send one request after the other; return answers and failures."""

    async def run(connections: HttpConnections) -> list[Any]:
        found: list[Any] = []
        for route in routes:
            try:
                found.append(await connections.send(route, HEAD % len(body), body, needs_body=True))
            except HttpFailed as failure:
                found.append(failure)
        return found

    found: list[Any] = with_connections(run, limits)
    return found


def with_connections(
    run: Callable[[HttpConnections], Coroutine[Any, Any, Any]],
    limits: HttpLimits = LIMITS,
    loop_factory: LoopFactory = asyncio.new_event_loop,
) -> Any:
    async def around() -> Any:
        connections = HttpConnections(limits)
        try:
            return await run(connections)
        finally:
            await connections.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(around())


def test_a_connection_is_kept(backend: Backend) -> None:
    assert [one.status for one in send_all([route_to(backend)] * 3)] == [201] * 3
    assert backend.accepted == 1


def test_one_that_was_closed_while_idle_is_not_used(backend: Backend) -> None:
    backend.steps = [raw(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")]

    async def run(connections: HttpConnections) -> None:
        for count in (1, 2, 3):
            sent = connections.send(route_to(backend), HEAD % 0, b"", needs_body=True)
            assert (await sent).status == 200
            await asyncio.to_thread(until, lambda: backend.open_connections == 0)
            assert backend.accepted == count

    with_connections(run)


def test_a_request_that_may_have_been_taken_is_not_sent_again(backend: Backend) -> None:
    backend.steps = [answer(200), close_at_once, answer(200)]
    first, second, third = send_all([route_to(backend)] * 3)
    assert (first.status, third.status) == (200, 200)
    assert isinstance(second, HttpConnectionEnded)
    assert len(backend.requests) == 3


def test_one_that_was_idle_for_long_is_not_used(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connections, "IDLE_S", 0.0)
    assert [one.status for one in send_all([route_to(backend)] * 2)] == [201] * 2
    assert backend.accepted == 2


def test_those_kept_for_others_make_room() -> None:
    with Backend() as one, Backend() as two, Backend() as three:
        routes = [route_to(backend) for backend in (one, two, three)]

        async def run(connections: HttpConnections) -> None:
            for route in routes:
                await connections.send(route, HEAD % 0, b"", needs_body=True)
            await asyncio.to_thread(until, lambda: one.open_connections == 0)
            assert two.open_connections == three.open_connections == 1

        with_connections(run)


def test_connections_for_others_make_room_for_all_that_begin_at_once(backend: Backend) -> None:
    with Backend([hang_before_headers]) as other:

        async def run(connections: HttpConnections) -> None:
            sent = (
                connections.send(route_to(backend), HEAD % 0, b"", needs_body=True) for _ in "12"
            )
            await asyncio.gather(*sent)
            assert backend.open_connections == 2
            sending = [
                asyncio.create_task(
                    connections.send(route_to(other), HEAD % 0, b"", needs_body=True)
                )
                for _ in "12"
            ]
            await asyncio.to_thread(until, lambda: len(other.requests) == 2)
            assert len(connections._open) == LIMITS.connections_max
            await connections.close()
            await asyncio.wait(sending)
            assert all(isinstance(one.exception(), HttpConnectionEnded) for one in sending)

        with_connections(run)


@contextlib.contextmanager
def unreading_backend(tls: ssl.SSLContext | None = None) -> Iterator[HttpRoute]:
    """Answers as soon as there is a head, and reads no body before its client has hung up."""

    def serve() -> None:
        connected, _ = listener.accept()
        if tls is not None:
            connected = tls.wrap_socket(connected, server_side=True)
        with connected, contextlib.suppress(OSError):
            connected.recv(100)
            connected.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
            connected.settimeout(PATIENCE_S)
            hung_up.wait(PATIENCE_S)
            while connected.recv(2**20):
                pass

    hung_up = threading.Event()
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield HttpRoute("127.0.0.1", listener.getsockname()[1])
        finally:
            hung_up.set()
            thread.join()


def test_an_answer_counts_while_its_request_is_still_being_sent() -> None:
    with unreading_backend() as route:
        (found,) = send_all([route], body=b" " * 100_000_000)
    assert found.status == 413


def test_a_large_body_arrives_whole(backend: Backend) -> None:
    body = os.urandom(3_000_001)
    assert [one.status for one in send_all([route_to(backend)] * 2, body=body)] == [201] * 2
    assert backend.bodies == [body, body]
    assert backend.accepted == 1


@pytest.mark.parametrize("waits", [False, True])
def test_another_address_is_tried(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """The first one refuses, or says nothing at all."""
    silent = socket.socket()
    silent.bind(("127.0.0.1", 0))
    fillers: list[socket.socket] = []
    if waits:
        silent.listen(0)
        for _ in range(8):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(silent.getsockname())
            fillers.append(filler)

    def addresses(*_: object, **__: object) -> list[Any]:
        places = [silent.getsockname(), ("127.0.0.1", backend.port)]
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", place) for place in places]

    monkeypatch.setattr(socket, "getaddrinfo", addresses)
    open_before = len(os.listdir("/proc/self/fd"))
    with closing(silent):
        (found,) = send_all([HttpRoute("two.invalid", 1)])
        assert found.status == 201
        for filler in fillers:
            filler.close()
    assert len(os.listdir("/proc/self/fd")) <= open_before


def test_a_number_is_an_address_also_where_this_machine_has_no_other_of_its_kind(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As glibc does with `::1` where all other addresses are of IPv4, and the other way round."""

    def addresses(host: str, port: int, *, flags: int = 0, **__: object) -> list[Any]:
        if flags & socket.AI_ADDRCONFIG:
            raise socket.gaierror(socket.EAI_ADDRFAMILY, "no such family here")
        return asked(host, port, type=socket.SOCK_STREAM, flags=flags)

    asked = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", addresses)
    found, named = send_all(
        [HttpRoute("127.0.0.1", backend.port), HttpRoute("localhost", backend.port)]
    )
    assert found.status == 201
    assert isinstance(named, HttpNotConnected)


@pytest.mark.parametrize("factory", LOOPS)
def test_a_name_server_that_hangs_holds_up_nobody_else(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, factory: LoopFactory
) -> None:
    """Nor does it get a thread for each request that gave it up."""

    def addresses(host: str, *rest: Any, **more: Any) -> list[Any]:
        if host == "hangs.invalid":
            questions.append(host)
            go_on.wait(PATIENCE_S)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return asked(host, *rest, **more)

    asked, go_on, questions = socket.getaddrinfo, threading.Event(), list[str]()
    monkeypatch.setattr(socket, "getaddrinfo", addresses)
    hasty = dataclasses.replace(LIMITS, connect_s=0.01)

    async def run(connections: HttpConnections) -> None:
        away = HttpConnections(hasty)
        for _ in range(50):
            with pytest.raises(HttpConnectTimedOut):
                await away.send(HttpRoute("hangs.invalid", 1), HEAD % 0, b"", needs_body=True)
        for name in ("127.0.0.1", "localhost"):
            route = HttpRoute(name, backend.port)
            assert (await connections.send(route, HEAD % 0, b"", needs_body=True)).status == 201
        assert await asyncio.to_thread(len, questions) == 1
        go_on.set()
        with pytest.raises((HttpNotConnected, HttpConnectTimedOut)):
            await away.send(HttpRoute("hangs.invalid", 1), HEAD % 0, b"", needs_body=True)
        await away.close()

    with_connections(run, loop_factory=factory)


def test_families_of_addresses_take_turns() -> None:
    six = [(socket.AF_INET6, 1, 0, "", n) for n in range(3)]
    four = [(socket.AF_INET, 1, 0, "", n) for n in range(2)]
    found = happy_eyeballs._by_turns([*six, *four])
    assert found == [six[0], four[0], six[1], four[1], six[2]]


def test_a_name_that_is_none() -> None:
    (found,) = send_all([HttpRoute("x" * 64 + ".invalid", 1)])
    assert isinstance(found, HttpNotConnected)
    assert isinstance(found.cause, socket.gaierror)


@pytest.mark.parametrize(
    ("step", "failure"),
    [
        (close_at_once, HttpNotConnected),
        (raw(b"no HTTP\r\n\r\n"), HttpNotConnected),
        (hang_before_headers, HttpConnectTimedOut),
        (raw(b"HTTP/1.1 403 No\r\n\r\n"), HttpProxyRefused),
    ],
)
def test_a_proxy_that_leads_nowhere(
    certificates: Certificates, step: Step, failure: type[HttpFailed]
) -> None:
    """Nothing was sent to the backend, so nothing may have been delivered."""
    with Backend(steps=[step]) as proxy:
        context = ssl.create_default_context(cafile=certificates.ca)
        route = HttpRoute("h", 443, context, HttpProxy("127.0.0.1", proxy.port, b""))
        (found,) = send_all([route], dataclasses.replace(LIMITS, silence_s=0.1))
    assert type(found) is failure
    assert getattr(found, "to_proxy", True)
    assert not failure_of_exception(found).maybe_delivered


@pytest.mark.parametrize("name", ["x" * 64 + ".invalid", ".h", ".", "h..h"])
def test_a_name_behind_a_proxy_that_is_none(certificates: Certificates, name: str) -> None:
    with Backend(steps=[raw(b"HTTP/1.1 200 OK\r\n\r\n")]) as proxy:
        context = ssl.create_default_context(cafile=certificates.ca)
        route = HttpRoute(name, 443, context, HttpProxy("127.0.0.1", proxy.port, b""))
        (found,) = send_all([route])
    assert isinstance(found, HttpNotConnected)


def until_hung_up(connection: Connection, request: Request) -> bool:
    with contextlib.suppress(OSError):
        connection.socket.recv(1)
    return False


@pytest.mark.parametrize("factory", LOOPS)
@pytest.mark.parametrize("kind", ["plain", "tls", "proxy"])
def test_a_request_that_is_cancelled_at_any_step_leaves_nothing(
    certificates: Certificates, factory: LoopFactory, kind: str
) -> None:
    tls = None if kind == "plain" else certificates.server_context()
    with Backend([until_hung_up], tls=tls) as backend, forward_proxy() as proxy:
        context = None if kind == "plain" else ssl.create_default_context(cafile=certificates.ca)
        through = HttpProxy("127.0.0.1", proxy.port, b"") if kind == "proxy" else None
        route = HttpRoute("127.0.0.1", backend.port, context, through)

        async def cancel_after(steps: int) -> bool:
            connections = HttpConnections(LIMITS)
            sending = asyncio.create_task(connections.send(route, HEAD % 2, b"{}", needs_body=True))
            for _ in range(steps):
                await asyncio.sleep(0)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            # Before `close`, which would hide one that was forgotten.
            for connection in list(connections._open):
                await asyncio.wait_for(connection.gone, PATIENCE_S)
            assert not connections._open
            await connections.close()
            return not connections._kept

        with closing(factory()) as loop:
            loop.run_until_complete(loop.getaddrinfo("127.0.0.1", 1))
            for steps in [*range(10), 15, 20, 30, 50, 100, 200]:
                assert loop.run_until_complete(cancel_after(steps))
            until(lambda: backend.open_connections == 0)


@pytest.mark.parametrize("factory", LOOPS)
@pytest.mark.parametrize("over_tls", [False, True])
def test_a_connection_is_not_kept_while_it_still_holds_a_part_of_a_request(
    certificates: Certificates,
    factory: LoopFactory,
    over_tls: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever answers early, and then takes the rest of the body for a request, would answer it."""

    async def narrow_socket(*where: Any) -> socket.socket:
        connected = await happy_eyeballs.connected_socket(*where)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return connected

    monkeypatch.setattr(http_connections, "connected_socket", narrow_socket)
    server = certificates.server_context() if over_tls else None

    async def run(connections: HttpConnections) -> int:
        answer = await connections.send(route, HEAD % PIECE_BYTES, body, needs_body=True)
        assert not any(connections._kept.values())
        return answer.status

    body = b" " * PIECE_BYTES
    tls = ssl.create_default_context(cafile=certificates.ca) if over_tls else None
    with unreading_backend(server) as plain:
        route = plain._replace(tls=tls)
        assert with_connections(run, loop_factory=factory) == 413


# ------------------------------------------------- answers that end with the connection


@pytest.mark.parametrize("factory", LOOPS)
@pytest.mark.parametrize("says_so", [True, False])
def test_over_tls_an_end_that_nobody_spoke_of_completes_no_answer(
    certificates: Certificates, factory: LoopFactory, says_so: bool
) -> None:
    """Whoever sits in between can end a connection, and an empty answer to a batch is a yes."""

    def step(connection: Connection, request: Request) -> bool:
        connection.send(b"HTTP/1.1 200 OK\r\n\r\n")
        if says_so:
            assert isinstance(connection.socket, ssl.SSLSocket)
            with contextlib.suppress(OSError):
                connection.socket.unwrap()
        return False

    async def run(connections: HttpConnections) -> Any:
        try:
            return (await connections.send(route, HEAD % 0, b"", needs_body=True)).body
        except HttpFailed as failure:
            return type(failure)

    with Backend([step], tls=certificates.server_context()) as backend:
        tls = ssl.create_default_context(cafile=certificates.ca)
        route = HttpRoute("127.0.0.1", backend.port, tls)
        found = with_connections(run, loop_factory=factory)
    assert found == (b"" if says_so else HttpConnectionEnded)


@pytest.mark.parametrize("factory", LOOPS)
def test_an_end_of_our_own_completes_no_answer(backend: Backend, factory: LoopFactory) -> None:
    def step(connection: Connection, request: Request) -> bool:
        connection.send(b"HTTP/1.1 200 OK\r\n\r\n")
        connection.hang()
        return False

    backend.steps = [step]

    async def run(connections: HttpConnections) -> None:
        sent = connections.send(route_to(backend), HEAD % 0, b"", needs_body=True)
        sending = asyncio.create_task(sent)
        await until_async(lambda: any(one._has_head for one in connections._open))
        await connections.close()
        with pytest.raises(HttpConnectionEnded):
            await sending

    with_connections(run, loop_factory=factory)


# ------------------------------------------------------- what belongs to no request


@pytest.mark.parametrize("factory", LOOPS)
@pytest.mark.parametrize("over_tls", [False, True])
@pytest.mark.parametrize(
    "behind", [b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n", b"x", b""]
)
def test_what_came_while_the_loop_was_busy_is_not_the_next_request_s(
    certificates: Certificates, factory: LoopFactory, over_tls: bool, behind: bytes
) -> None:
    """Behind an answer comes another one, something else, or the end; nobody has read it when the
    next request leaves.
    """
    go_on, arrived = threading.Event(), threading.Event()

    def first(connection: Connection, request: Request) -> bool:
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        go_on.wait(PATIENCE_S)
        if behind:
            connection.send(behind)
        else:
            connection.socket.shutdown(socket.SHUT_RDWR)
        arrived.set()
        return True

    async def run(connections: HttpConnections) -> list[int]:
        found = []
        for _ in range(2):
            sent = await connections.send(route, HEAD % 0, b"", needs_body=False)
            found.append(sent.status)
            go_on.set()
            assert arrived.wait(PATIENCE_S)  # and the loop reads nothing
        return found

    server = certificates.server_context() if over_tls else None
    with Backend([first, answer(503)], tls=server) as backend:
        tls = ssl.create_default_context(cafile=certificates.ca) if over_tls else None
        route = HttpRoute("127.0.0.1", backend.port, tls)
        assert with_connections(run, loop_factory=factory) == [200, 503]


@pytest.mark.parametrize("status", [204, 304])
@pytest.mark.parametrize("framing", [b"Content-Length: 5", b"Transfer-Encoding: chunked"])
def test_a_body_that_must_not_be_there_is_not_waited_for_and_not_left_to_the_next(
    status: int, framing: bytes
) -> None:
    found, was_free = feed([b"HTTP/1.1 %d X\r\n%s\r\n\r\n" % (status, framing)])
    assert (found.status, found.body, was_free) == (status, b"", False)


def test_a_backend_that_hangs_up_with_its_handshake(certificates: Certificates) -> None:
    """Its last word of TLS 1.2 and its end come together: nothing was sent, and nothing hangs."""
    context = certificates.server_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    def serve() -> None:
        connected, _ = listener.accept()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_side=True)
        with connected:
            is_open = True
            while is_open:
                with contextlib.suppress(ssl.SSLWantReadError):
                    tls.do_handshake()
                    is_open = False
                    tls.unwrap()
                connected.sendall(outgoing.read())
                if is_open:
                    incoming.write(connected.recv(2**16))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=serve)
        serving.start()
        tls = ssl.create_default_context(cafile=certificates.ca)
        (found,) = send_all([HttpRoute("127.0.0.1", listener.getsockname()[1], tls)])
        serving.join()
    assert isinstance(found, HttpNotConnected)
    assert not failure_of_exception(found).maybe_delivered


@pytest.mark.parametrize("factory", LOOPS)
def test_closing_ends_those_that_are_connecting(
    monkeypatch: pytest.MonkeyPatch, backend: Backend, factory: LoopFactory
) -> None:
    go_on = asyncio.Event()

    async def slowly(*where: Any) -> socket.socket:
        await go_on.wait()
        return await happy_eyeballs.connected_socket(*where)

    monkeypatch.setattr(http_connections, "connected_socket", slowly)

    async def run(connections: HttpConnections) -> None:
        sent = connections.send(route_to(backend), HEAD % 0, b"", needs_body=True)
        sending = asyncio.create_task(sent)
        await asyncio.sleep(0)
        await connections.close()
        go_on.set()
        with pytest.raises(HttpNotConnected):
            await sending
        assert not connections._open

    with_connections(run, loop_factory=factory)
    until(lambda: not backend.open_connections)
    assert not backend.requests


@pytest.mark.parametrize("factory", LOOPS)
def test_no_more_of_a_body_is_written_once_a_write_has_failed(
    caplog: pytest.LogCaptureFixture, factory: LoopFactory
) -> None:
    """asyncio warns of each write behind that, and a large body has many pieces."""

    def serve() -> None:
        for _ in range(10):
            connected, _ = listener.accept()
            with connected:
                connected.recv(100)

    body = b" " * (20 * PIECE_BYTES)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=serve)
        serving.start()
        route = HttpRoute("127.0.0.1", listener.getsockname()[1])

        async def run(connections: HttpConnections) -> None:
            for _ in range(10):
                with pytest.raises(HttpConnectionEnded):
                    await connections.send(route, HEAD % len(body), body, needs_body=True)

        with_connections(run, loop_factory=factory)
        serving.join()
    assert "socket.send() raised" not in caplog.text
