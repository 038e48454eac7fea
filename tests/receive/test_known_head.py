"""Requests with a head that is known: taken without the parser, and never another request by it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import httptools
import pytest
from tests.patience import until
from tests.receive.harness import (
    PATH,
    Reply,
    Running,
    event_bytes,
    is_closed,
    read_reply,
    reply_while_stopping,
    request_bytes,
    running,
)

from holdfast.receive.admission import Tokens, TokenSettings
from holdfast.receive.connection import BoundedConnection
from holdfast.receive.fast_path import FastLane, KnownHead, known_head
from holdfast.receive.http_app import EndpointLane
from holdfast.receive.openlineage import Config
from holdfast.receive.responses import Respond
from holdfast.receive.server_state import LoopTurn
from holdfast.seam import Seam
from holdfast.settings import Secret

LANE = cast(FastLane, object())
NEVER = {"header_timeout_s": 3600, "keep_alive_s": 3600, "send_timeout_s": 3600}


# ------------------------------------------------------------------------ the bytes of a head


class Parsed:
    """What httptools finds in a request."""

    def __init__(self, request: bytes) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        httptools.HttpRequestParser(self).feed_data(request)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body += body


def remember(request: bytes) -> KnownHead | None:
    return known_head(request, PATH.encode(), Parsed(request).headers, LANE)


def head(*lines: str) -> bytes:
    return "\r\n".join([f"POST {PATH} HTTP/1.1", *lines, "", ""]).encode()


@pytest.mark.parametrize(
    "lines",
    [
        ("Host: x", "Content-Length: 5", "Content-Type: application/json"),
        ("content-length:5",),
        ("Host: 5", "CONTENT-LENGTH: \t 5"),
        ("X: a:b: 5", "Content-Length: 5", "X-Empty:"),
    ],
)
def test_a_head_is_known_again_with_another_length(lines: tuple[str, ...]) -> None:
    first = head(*lines)
    known = remember(first + b"12345")
    assert known is not None
    for body in (b"12345", b"", b"x" * 1234):
        length = str(len(body)).encode()
        place = first.lower().index(b"content-length")
        other = first[:place] + first[place:].replace(b"5", length, 1) + body
        announced = known.announced(other)
        assert announced is not None
        assert announced.end == len(other)
        assert other[announced.begin :] == body == Parsed(other).body


@pytest.mark.parametrize(
    "request_",
    [
        head("Host: x"),
        head("Host: x", "Content-Length: 5 ") + b"12345",
        head("Host: x", "Transfer-Encoding: chunked") + b"0\r\n\r\n",
        b"\r\n" + head("Host: x", "Content-Length: 5") + b"12345",
    ],
)
def test_a_head_that_is_not_plain_is_not_remembered(request_: bytes) -> None:
    assert remember(request_) is None


def test_a_head_that_the_parser_read_otherwise_is_not_remembered() -> None:
    request = head("Host: x", "Content-Length: 5") + b"12345"
    found = Parsed(request).headers
    assert known_head(request, PATH.encode(), found, LANE) is not None
    for headers in (found[:1], [*found, (b"x", b"y")], found[::-1], [(b"host", b"y"), found[1]]):
        assert known_head(request, PATH.encode(), headers, LANE) is None
    assert known_head(request, b"/other", found, LANE) is None
    # Its end came later.
    assert known_head(request[:30], PATH.encode(), found, LANE) is None


def test_two_lengths_are_not_remembered() -> None:
    twice = [(b"content-length", b"5"), (b"content-length", b"5")]
    request = head("Content-Length: 5", "Content-Length: 5") + b"12345"
    assert known_head(request, PATH.encode(), twice, LANE) is None


@pytest.mark.parametrize(
    "length", ["", " 5", "+5", "-5", "5 ", "5 5", "0x5", "5,5", "5\n", "\u0665", "5" * 13]
)
def test_what_is_no_plain_length_is_left_to_the_parser(length: str) -> None:
    known = remember(head("Content-Length: 5", "Host: x") + b"12345")
    assert known is not None
    assert known.announced(head(f"Content-Length: {length}", "Host: x") + b"12345") is None


@pytest.mark.parametrize(
    "other",
    [
        head("Content-Length: 5", "Host: y"),
        head("Content-length: 5", "Host: x"),
        head("Content-Length: 5", "Host: x", "Transfer-Encoding: chunked"),
        head("Content-Length: 5", "Content-Length: 6", "Host: x"),
        head("Content-Length: 5", "Host: x")[:-1],
        head("Content-Length: 5", "Host: x")[:60],
        b"",
    ],
)
def test_another_head_is_left_to_the_parser(other: bytes) -> None:
    known = remember(head("Content-Length: 5", "Host: x") + b"12345")
    assert known is not None
    assert known.announced(other) is None


# ------------------------------------------------------------------------- on a connection


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return what the parser is given."""
    seen: list[bytes] = []
    parse = BoundedConnection._parse

    def watched(connection: BoundedConnection, data: bytes) -> None:
        seen.append(data)
        parse(connection, data)

    monkeypatch.setattr(BoundedConnection, "_parse", watched)
    return seen


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return, for each request that came to a lane, whether it was taken."""
    seen: list[bool] = []
    accept = EndpointLane.accept

    def watched(lane: EndpointLane, *args: Any) -> Respond | None:
        respond = accept(lane, *args)
        seen.append(respond is not None)
        return respond

    monkeypatch.setattr(EndpointLane, "accept", watched)
    return seen


def settings(**more: Any) -> Config:
    return Config(listen="127.0.0.1:0", **{"connections": NEVER, **more})


def ask(client: Any, *pieces: bytes) -> Reply:
    for piece in pieces:
        client.sendall(piece)
    return read_reply(client)


FIRST, LONGER = event_bytes(1), event_bytes(2, producer="https://example.org/" + "p" * 1000)


def test_a_request_with_a_known_head_is_not_parsed(
    tmp_path: Path, parsed: list[bytes], taken: list[bool]
) -> None:
    with running(tmp_path, settings()) as server, server.connect() as client:
        first = ask(client, request_bytes(FIRST))
        second = ask(client, request_bytes(LONGER))
        assert server.place.stored() == [FIRST, LONGER]
        statistics = server.receiver.statistics()
        assert (statistics.accepted, statistics.requests) == (2, 2)
        assert statistics.received_bytes == len(FIRST) + len(LONGER)
        assert statistics.in_flight_requests == statistics.in_flight_bytes == 0
        assert server.receiver.server.requests == 2
    assert (first.status, second.status) == (200, 200)
    assert list(first.headers) == list(second.headers)
    assert parsed == [request_bytes(FIRST)]
    assert taken == [True, True]


def test_head_and_body_may_come_by_themselves(tmp_path: Path, parsed: list[bytes]) -> None:
    request = request_bytes(LONGER)
    begin = len(request) - len(LONGER)
    with running(tmp_path, settings()) as server, server.connect() as client:
        counts = server.receiver.server.counts
        ask(client, request_bytes(FIRST))
        client.sendall(request[:begin])
        until(lambda: counts.held_bytes == begin)
        assert ask(client, request[begin:]).status == 200
        assert server.place.stored() == [FIRST, LONGER]
        assert counts.held_bytes == 0
    assert len(parsed) == 1


def test_what_comes_in_more_pieces_is_parsed(
    tmp_path: Path, parsed: list[bytes], taken: list[bool]
) -> None:
    request = request_bytes(LONGER)
    with running(tmp_path, settings()) as server, server.connect() as client:
        counts = server.receiver.server.counts
        ask(client, request_bytes(FIRST))
        client.sendall(request[:-20])
        until(lambda: counts.held_bytes == len(request) - 20)
        client.sendall(request[-20:-10])
        until(lambda: counts.held_bytes == len(LONGER) - 10)
        assert ask(client, request[-10:]).status == 200
        assert server.place.stored() == [FIRST, LONGER]
        assert counts.held_bytes == 0
    assert b"".join(parsed[1:]) == request
    assert taken == [True, True]


def test_requests_sent_ahead_are_answered_in_order(tmp_path: Path) -> None:
    bodies = [event_bytes(number) for number in range(1, 8)]
    with running(tmp_path, settings()) as server, server.connect() as client:
        ask(client, request_bytes(FIRST))
        client.sendall(b"".join(map(request_bytes, bodies)))
        came = bytearray()
        positions = [read_reply(client, came).document["position"] for _ in bodies]
        assert server.place.stored() == [FIRST, *bodies]
    assert positions == sorted(positions, key=lambda text: int(text.split("/")[1]))


@pytest.mark.parametrize(
    ("make", "status"),
    [
        (lambda: request_bytes(b"not json"), 400),
        (lambda: request_bytes(b""), 400),
        (lambda: request_bytes(LONGER, content_type="text/plain"), 415),
        (lambda: request_bytes(LONGER, path="/elsewhere"), 404),
        (lambda: request_bytes(LONGER, content_length="5x"), 400),
    ],
)
def test_what_is_special_after_all_is_answered_as_ever(
    tmp_path: Path, make: Callable[[], bytes], status: int
) -> None:
    with running(tmp_path, settings()) as server, server.connect() as client:
        assert ask(client, request_bytes(FIRST)).status == 200
        assert ask(client, request_bytes(LONGER)).status == 200
        assert ask(client, make()).status == status
        assert server.place.stored() == [FIRST, LONGER]


def test_after_a_bad_event_the_head_is_still_known(tmp_path: Path, parsed: list[bytes]) -> None:
    with running(tmp_path, settings()) as server, server.connect() as client:
        statuses = [
            ask(client, request_bytes(body)).status for body in (FIRST, b"{}", LONGER, FIRST)
        ]
        assert server.place.stored() == [FIRST, LONGER, FIRST]
    assert statuses == [200, 400, 200, 200]
    assert parsed == [request_bytes(FIRST), request_bytes(b"{}")]


def test_heads_that_never_come_again_are_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered: list[object] = []

    def watched(*args: Any) -> KnownHead | None:
        remembered.append(None)
        return known_head(*args)

    monkeypatch.setattr("holdfast.receive.connection.known_head", watched)
    with running(tmp_path, settings()) as server, server.connect() as client:
        for number in range(5):
            assert ask(client, request_bytes(FIRST, x_trace=str(number))).status == 200
        assert len(remembered) == 1
        # The first one comes again, and then another twice.
        for number in (0, 7, 7, 7):
            assert ask(client, request_bytes(FIRST, x_trace=str(number))).status == 200
        assert len(server.place.stored()) == 9
    assert len(remembered) == 2


def test_a_token_that_is_taken_back_opens_nothing(tmp_path: Path) -> None:
    def tokens(letter: str) -> tuple[TokenSettings, ...]:
        return (TokenSettings(name="one", token=Secret(letter * 20)),)

    request = request_bytes(FIRST, authorization=f"Bearer {'a' * 20}")
    with running(tmp_path, settings(tokens=tokens("a"))) as server, server.connect() as client:
        assert [ask(client, request).status for _ in range(2)] == [200, 200]
        server.receiver.app.use_tokens(Tokens(tokens("b"), Seam()))
        assert ask(client, request).status == 401
        server.receiver.app.use_tokens(Tokens(tokens("a"), Seam()))
        assert [ask(client, request).status for _ in range(2)] == [200, 200]
        assert server.place.stored_headers() == [{"client": "one"}] * 4


def test_bounds_hold_for_what_is_not_parsed(tmp_path: Path, taken: list[bool]) -> None:
    limits = {"max_body_bytes": len(FIRST)}
    with running(tmp_path, settings(limits=limits)) as server, server.connect() as client:
        assert ask(client, request_bytes(FIRST)).status == 200
        assert ask(client, request_bytes(LONGER)).status == 413
        app = server.receiver.app
        app.admission._max_requests = 0
        refused = ask(client, request_bytes(FIRST))
        assert (refused.status, refused.document["reason"]) == (503, "busy")
        assert app.admission.in_flight_requests == app.admission.in_flight_bytes == 0
    # The first was taken; each of the others was refused unparsed, and again once it was parsed.
    assert taken == [True, False, False, False, False]


def test_all_connections_together_keep_a_bounded_amount_from_the_parser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parsed: list[bytes]
) -> None:
    request = request_bytes(FIRST)
    with running(tmp_path, settings()) as server, server.connect() as client:
        ask(client, request)
        monkeypatch.setattr("holdfast.receive.connection.HELD_BYTES_MAX_TOGETHER", 10)
        assert ask(client, request).status == 200
    assert parsed == [request, request]


def test_a_client_may_close_its_side_behind_a_request_that_is_not_parsed(tmp_path: Path) -> None:
    with running(tmp_path, settings()) as server, server.connect() as client:
        ask(client, request_bytes(FIRST))
        client.sendall(request_bytes(LONGER))
        client.shutdown(1)
        assert read_reply(client).status == 200
        assert is_closed(client)


def test_a_client_that_leaves_in_the_middle_is_counted(tmp_path: Path) -> None:
    with running(tmp_path, settings()) as server:
        with server.connect() as client:
            ask(client, request_bytes(FIRST))
            client.sendall(request_bytes(LONGER)[:-5])
        until(lambda: server.receiver.statistics().rejected == {"disconnected": 1})
        assert server.receiver.statistics().in_flight_requests == 0
        assert server.receiver.server.counts.held_bytes == 0
        assert server.place.stored() == [FIRST]


def test_a_slow_body_is_handed_to_the_app_which_times_it_out(tmp_path: Path) -> None:
    config = settings(limits={"body_timeout_s": 0.1}, connections={"header_timeout_s": 0.2})
    with running(tmp_path, config) as server, server.connect() as client:
        ask(client, request_bytes(FIRST))
        assert ask(client, request_bytes(LONGER)[:-5]).status == 503


def test_a_stopping_gateway_refuses_what_is_not_parsed_yet(tmp_path: Path) -> None:
    with running(tmp_path, settings()) as server, server.connect() as client:
        ask(client, request_bytes(FIRST))
        client.sendall(request_bytes(LONGER)[:-5])
        until(lambda: server.receiver.server.counts.held_bytes > 0)
        reply = reply_while_stopping(server, client)
    assert (reply.status, reply.document["reason"]) == (503, "stopping")


# --------------------------------------------------------------------------- in one turn


class FakeConnection:
    """Notes when it is asked."""

    def __init__(self, name: str, asked: list[str]) -> None:
        self.loop = asyncio.get_running_loop()
        self._name = name
        self._asked = asked

    def hand_over(self) -> None:
        self._asked.append(self._name)


def test_requests_of_one_turn_are_handed_over_together() -> None:
    asked: list[str] = []

    async def play() -> None:
        turn = LoopTurn()
        for round_ in ("a", "b"):
            for number in range(3):
                turn.add(cast(BoundedConnection, FakeConnection(f"{round_}{number}", asked)))
            asked.append("others")
            await asyncio.sleep(0)

    asyncio.run(play())
    assert asked == ["others", "a0", "a1", "a2", "others", "b0", "b1", "b2"]


def test_a_request_is_handed_over_before_what_comes_behind_it(tmp_path: Path) -> None:
    """What a connection receives in the same turn finds the first request under way."""
    with running(tmp_path, settings()) as server, server.connect() as client:
        ask(client, request_bytes(FIRST))
        _receive(server, request_bytes(LONGER), request_bytes(FIRST))
        assert [read_reply(client, came).status for came in [bytearray()] * 2] == [200, 200]
        assert server.place.stored() == [FIRST, LONGER, FIRST]


def _receive(server: Running, *pieces: bytes) -> None:
    """Give the only connection some bytes within one turn."""

    async def give() -> None:
        (one,) = server.receiver.server._state.connections
        for piece in pieces:
            cast(BoundedConnection, one).data_received(piece)

    server.run(give())
