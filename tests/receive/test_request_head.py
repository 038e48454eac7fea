"""The head of a request: its bound, however the network cut it, and what is none of it."""

from __future__ import annotations

import itertools
import math
import threading
from pathlib import Path
from typing import Any

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.patience import PATIENCE_S, until
from tests.receive.harness import (
    Running,
    event_bytes,
    is_closed,
    read_reply,
    request_bytes,
    running,
    send_until_refused,
)
from tests.receive.test_connections import config, hold_appends, idle

from holdfast.receive.admission import TokenSettings
from holdfast.receive.connection import BoundedConnection
from holdfast.receive.exchange import Exchange
from holdfast.receive.fast_path import KNOWN_HEAD_BYTES_MAX, FastRequest, known_head
from holdfast.receive.request_head import RequestHead
from holdfast.settings import Secret

BOUND = 4096


def chunked(body: bytes, trailers: bytes = b"", **headers: str) -> bytes:
    head = request_bytes(b"", transfer_encoding="chunked", content_length="-", **headers)
    return head + b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(body), body, trailers)


def _only(server: Running) -> BoundedConnection:
    (connection,) = server.receiver.server._state.connections
    assert isinstance(connection, BoundedConnection)
    return connection


async def _cut(connection: BoundedConnection) -> None:
    connection.transport.abort()


# The bound.


class Parsing:
    """A parser that tells a head, piece by piece."""

    def __init__(self, bound: int) -> None:
        self.head = RequestHead(bound)
        self.on_url, self.on_header = self.head.on_url, self.head.on_header
        self._parser = httptools.HttpRequestParser(self)

    def is_refused(self, pieces: list[bytes]) -> bool:
        for piece in pieces:
            self.head.came(len(piece))
            try:
                self._parser.feed_data(piece)
            except httptools.HttpParserCallbackError:
                return True
            if self.head.is_too_large:
                return True
        return False


@given(
    fields=st.lists(st.integers(0, 300), max_size=30),
    cuts=st.lists(st.integers(0, 5000), max_size=12),
    bound=st.integers(1024, 6000),
)
def test_a_head_is_refused_by_its_size_and_not_by_how_it_was_cut(
    fields: list[int], cuts: list[int], bound: int
) -> None:
    lines = b"".join(b"x-%d: %b\r\n" % (n, b"v" * size) for n, size in enumerate(fields))
    head = b"POST /path HTTP/1.1\r\nhost: a\r\n" + lines + b"\r\n"
    places = sorted({0, len(head), *(cut for cut in cuts if cut < len(head))})
    pieces = [head[a:b] for a, b in itertools.pairwise(places)]
    # The line of the request, but for the path, and the empty line are not counted.
    assert Parsing(bound).is_refused(pieces) == (len(head) > bound + len(b"POST  HTTP/1.1\r\n\r\n"))


@pytest.mark.parametrize("piece_bytes", [1, 100, 1460])
def test_a_head_below_the_bound_is_taken_in_pieces_too(tmp_path: Path, piece_bytes: int) -> None:
    request = request_bytes(event_bytes(), **{f"x-{n}": "y" * 200 for n in range(17)})
    settings = config({"max_header_bytes": BOUND})
    with running(tmp_path, settings) as server, server.connect() as client:
        for start in range(0, len(request), piece_bytes):
            client.sendall(request[start : start + piece_bytes])
        assert read_reply(client).status == 200


def test_many_short_fields_count_as_what_they_take(tmp_path: Path) -> None:
    request = request_bytes(event_bytes()).replace(b"\r\n\r\n", b"\r\n" + b"a:\r\n" * 900 + b"\r\n")
    settings = config({"max_header_bytes": BOUND})
    with running(tmp_path, settings) as server, server.connect() as client:
        client.sendall(request)
        assert read_reply(client).status == 431


@pytest.mark.parametrize("endless", [b"X-A: ", b"X-A: y\r\nX-B: ", b"a:\r\n", b"5;ext="], ids=repr)
def test_what_stands_behind_a_chunked_body_has_a_bound(tmp_path: Path, endless: bytes) -> None:
    with running(tmp_path, config({"max_header_bytes": BOUND})) as server:
        with server.connect() as client:
            body = chunked(event_bytes(), endless)[:-2]
            client.sendall(body if endless[:1] != b"5" else body.replace(b"\r\n0\r\n", b"\r\n"))
            piece = b"a:\r\n" * 100 if endless[:1] == b"a" else b"y" * 1000
            assert isinstance(send_until_refused(client, piece), ConnectionError)
        until(lambda: server.receiver.statistics().connections == 0)
        assert server.receiver.statistics().rejected["header_too_large"] == 1
        assert server.place.stored() == []


def test_what_is_idle_keeps_no_head(tmp_path: Path) -> None:
    many = {f"x-{n}": "y" * 20 for n in range(300)}
    with running(tmp_path, config()) as server, server.connect() as client:
        client.sendall(request_bytes(event_bytes(), **many))
        assert read_reply(client).status == 200
        connection = _only(server)
        assert (connection._head.fields, connection._known) == ([], None)
        client.sendall(request_bytes(event_bytes(), **many, expect="100-continue"))
        buffer = bytearray()
        assert [read_reply(client, buffer).status for _ in range(2)] == [100, 200]
        exchange = connection._newest
        assert isinstance(exchange, Exchange)
        until(lambda: not exchange._scope)
        assert connection._head.fields == []


def test_a_long_head_is_not_remembered() -> None:
    def remembered(padding: int) -> bool:
        fields = [(b"content-length", b"2"), (b"x", b"y" * padding)]
        head = b"POST /a HTTP/1.1\r\n" + b"".join(b"%b: %b\r\n" % field for field in fields)
        lane: Any = object()
        return known_head(head + b"\r\n{}", b"/a", fields, lane) is not None

    assert remembered(KNOWN_HEAD_BYTES_MAX - 100)
    assert not remembered(KNOWN_HEAD_BYTES_MAX)


# What is none of it.


TOKENS = tuple(TokenSettings(name=name, token=Secret(name)) for name in ("low", "high"))


@pytest.mark.parametrize("special", [{}, {"expect": "100-continue"}], ids=["fast", "slow"])
def test_a_trailer_is_no_header(tmp_path: Path, special: dict[str, str]) -> None:
    settings = config().model_copy(update={"tokens": TOKENS})
    trailers = (
        b"Authorization: Bearer high\r\nContent-Type: text/plain\r\nContent-Encoding: gzip\r\n"
    )
    with running(tmp_path, settings) as server:
        with server.connect() as client:
            client.sendall(chunked(event_bytes(), trailers, **special))
            assert read_reply(client).status == 401
        with server.connect() as client:
            low = {"authorization": "Bearer low", **special}
            client.sendall(chunked(event_bytes(), trailers, **low))
            buffer = bytearray()
            statuses = [read_reply(client, buffer).status for _ in range(1 + len(special))]
        assert statuses[-1] == 200
        assert [one["client"] for one in server.place.stored_headers()] == ["low"]


@pytest.mark.parametrize(
    "request_",
    [
        request_bytes(b"{}").replace(b"HTTP/1.1", b"HTTP/2.0"),
        request_bytes(b"{}").replace(b"HTTP/1.1", b"HTTP/0.9"),
        request_bytes(b"0\r\n\r\n", transfer_encoding="gzip, chunked", content_length="-"),
    ],
)
def test_a_version_or_a_coding_that_we_do_not_speak_is_a_400(
    tmp_path: Path, request_: bytes
) -> None:
    with running(tmp_path, config()) as server, server.connect() as client:
        client.sendall(request_)
        assert read_reply(client).status == 400
        assert is_closed(client)


@pytest.mark.parametrize("coding", ["chunked ", "CHUNKED  "])
def test_blanks_behind_a_value_are_no_part_of_it(tmp_path: Path, coding: str) -> None:
    request = chunked(event_bytes(), expect="100-continue ")
    with running(tmp_path, config()) as server, server.connect() as client:
        client.sendall(request.replace(b"chunked", coding.encode(), 1))
        buffer = bytearray()
        assert [read_reply(client, buffer).status for _ in range(2)] == [100, 200]


def test_an_old_client_is_not_told_to_continue(tmp_path: Path) -> None:
    request = request_bytes(event_bytes(), expect="100-continue").replace(b"HTTP/1.1", b"HTTP/1.0")
    with running(tmp_path, config()) as server, server.connect() as client:
        client.sendall(request)
        assert read_reply(client).status == 200


def test_a_request_that_was_refused_is_complained_of_once(tmp_path: Path) -> None:
    with running(tmp_path, config()) as server, server.connect() as client:
        head = request_bytes(b"", "/nowhere", transfer_encoding="chunked", content_length="-")
        client.sendall(head + b"5\r\nhello\r\n")
        buffer = bytearray()
        assert read_reply(client, buffer).status == 404
        client.sendall(b"nonsense\r\n")
        with pytest.raises(EOFError):
            read_reply(client, buffer)
        assert server.receiver.statistics().rejected == {"not_found": 1}


def test_what_comes_behind_a_last_request_is_not_complained_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config({"max_header_bytes": BOUND})
    with running(tmp_path, settings) as server, server.connect() as client:
        gate = hold_appends(server, monkeypatch)
        client.sendall(request_bytes(event_bytes(), connection="close"))
        until(lambda: server.receiver.statistics().in_flight_requests == 1)
        head = _only(server)._head
        client.sendall(b"x" * 3 * BOUND)
        until(lambda: head._unshown_bytes == 3 * BOUND)
        gate.set()
        assert read_reply(client).status == 200
        assert is_closed(client)
        assert server.receiver.statistics().rejected == {}


# Answers that are due.


@pytest.mark.parametrize(
    "behind", [b"garbage\r\n\r\n", request_bytes()[:20], request_bytes(b"{}")[:-1]]
)
def test_what_a_client_sends_before_it_ends_costs_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: bytes
) -> None:
    settings = config({"header_timeout_s": 0.1})
    with running(tmp_path, settings) as server, server.connect() as client:
        gate = hold_appends(server, monkeypatch)
        client.sendall(request_bytes(event_bytes()) + behind)
        client.shutdown(1)
        until(lambda: server.receiver.statistics().in_flight_requests == 1)
        connection = _only(server)
        # A request behind the first is not read on, so nobody sees its client's end.
        until(lambda: connection._deaf or connection._flow.is_read_paused)
        assert connection._deadline_s == math.inf
        gate.set()
        assert read_reply(client).status == 200
        assert is_closed(client)


def test_a_head_that_we_do_not_read_is_given_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, config({"header_timeout_s": 0.2})) as server:
        gate = hold_appends(server, monkeypatch)
        with server.connect() as client:
            first, second, third = (request_bytes(event_bytes(number)) for number in range(3))
            client.sendall(first + second + third[:30])
            until(lambda: server.receiver.statistics().in_flight_requests == 1)
            client.sendall(third[30:])
            connection = _only(server)
            until(lambda: connection._flow.is_read_paused)
            deadline_s = connection._deadline_s
            until(lambda: connection._deadline_s > deadline_s)  # its time was over once
            gate.set()
            buffer = bytearray()
            assert [read_reply(client, buffer).status for _ in range(3)] == [200] * 3
        assert server.receiver.statistics().rejected == {}


def test_a_request_that_is_stored_after_its_client_left_disturbs_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path, config()) as server:
        gate = hold_appends(server, monkeypatch)
        with server.connect() as client:
            client.sendall(request_bytes(event_bytes(1)))
            until(lambda: server.receiver.statistics().in_flight_requests == 1)
            client.sendall(request_bytes(event_bytes(2)))  # waits behind it
            connection = _only(server)
            until(lambda: connection._waiting)
            server.run(_cut(connection))
            until(lambda: server.receiver.statistics().connections == 0)
            gate.set()
            until(lambda: server.place.stored() and idle(server))
    assert "not taken" not in caplog.text


def test_an_answer_that_we_fail_to_make_is_a_500(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failed = FastRequest.stored, threading.Event()

    def stored(self: FastRequest, outcome: Any) -> None:
        def respond(_: Any) -> Any:
            failed.set()
            raise ZeroDivisionError

        self.respond = respond
        real(self, outcome)

    monkeypatch.setattr(FastRequest, "stored", stored)
    with running(tmp_path, config()) as server, server.connect() as client:
        client.sendall(request_bytes(event_bytes()))
        assert read_reply(client).status == 500
        assert failed.wait(PATIENCE_S)
        assert is_closed(client)
