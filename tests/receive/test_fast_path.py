"""The fast path of a request: taken when nothing is special; its answers are the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.patience import until
from tests.receive.harness import (
    PATH,
    Reply,
    Running,
    event_bytes,
    read_reply,
    reply_while_stopping,
    request_bytes,
    running,
)

from holdfast.quiver import Intake
from holdfast.receive import connection
from holdfast.receive.admission import TokenSettings
from holdfast.receive.fast_path import HELD_BYTES_MAX
from holdfast.receive.http_app import EndpointLane, HttpApp
from holdfast.receive.openlineage import Config
from holdfast.receive.responses import Respond
from holdfast.settings import Secret


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return, for each request that was offered the fast path, whether it was taken."""
    seen: list[bool] = []
    find, take = HttpApp.fast_lane, EndpointLane.accept

    def watched_find(app: HttpApp, *args: Any) -> EndpointLane | None:
        lane = find(app, *args)
        if lane is None:
            seen.append(False)
        return lane

    def watched_take(lane: EndpointLane, *args: Any) -> Respond | None:
        respond = take(lane, *args)
        seen.append(respond is not None)
        return respond

    monkeypatch.setattr(HttpApp, "fast_lane", watched_find)
    monkeypatch.setattr(EndpointLane, "accept", watched_take)
    return seen


def ask(server: Running, *pieces: bytes) -> Reply:
    with server.connect() as client:
        for piece in pieces:
            client.sendall(piece)
        return read_reply(client)


def settings(**more: Any) -> Config:
    return Config(listen="127.0.0.1:0", **more)


def test_both_paths_give_the_same_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = event_bytes()
    with running(tmp_path, settings()) as server:
        by_fast = ask(server, request_bytes(body))
        monkeypatch.setattr(HttpApp, "fast_lane", lambda *_: None)
        by_slow = ask(server, request_bytes(body))
        assert by_fast.status == by_slow.status == 200
        assert sorted(by_fast.headers) == sorted(by_slow.headers)
        assert by_fast.headers["content-type"] == by_slow.headers["content-type"]
        told = [{**one.document, "position": None} for one in (by_fast, by_slow)]
        assert told[0] == told[1]
        assert by_fast.document["position"].endswith("/0/0")
        assert server.place.stored() == [body, body]
        statistics = server.receiver.statistics()
        assert (statistics.accepted, statistics.requests) == (2, 2)
        assert statistics.received_bytes == statistics.accepted_bytes == 2 * len(body)
        assert statistics.in_flight_requests == statistics.in_flight_bytes == 0


def test_a_request_in_pieces_takes_the_fast_path(tmp_path: Path, fast: list[bool]) -> None:
    """Many clients send the head and the body by themselves."""
    body = event_bytes()
    head = request_bytes(body)[: -len(body)]
    with running(tmp_path, settings(connections={"header_timeout_s": 60})) as server:
        assert ask(server, head, body[:100], body[100:]).status == 200
        assert server.place.stored() == [body]
    assert fast in ([True], []), "the server may look at it while it waits for the rest"


@pytest.mark.parametrize(
    ("make", "status"),
    [
        (lambda body: request_bytes(b"{}"), 400),
        (lambda body: request_bytes(b"not json"), 400),
        (lambda body: request_bytes(body, content_type="text/plain"), 415),
        (lambda body: request_bytes(body, content_encoding="br"), 415),
        (lambda body: request_bytes(body, path=f"{PATH}?a=b"), 200),
        (lambda body: request_bytes(body, path=PATH + "/validate"), 200),
        (lambda body: request_bytes(body, path="/elsewhere"), 404),
        (lambda body: request_bytes(body, method="PUT"), 405),
        (lambda body: request_bytes(body, expect="100-continue"), 100),
        (lambda body: request_bytes(body).replace(b"HTTP/1.1", b"HTTP/1.0"), 200),
    ],
)
def test_what_is_special_goes_the_long_way(
    tmp_path: Path, fast: list[bool], make: Callable[[bytes], bytes], status: int
) -> None:
    with running(tmp_path, settings()) as server, server.connect() as client:
        client.sendall(make(event_bytes()))
        came = bytearray()
        if status == 100:
            # The answer may have come with it: the server has the body already.
            assert read_reply(client, came).status == 100
            status = 200
        assert read_reply(client, came).status == status
    assert not any(fast)


def test_warnings_are_told_by_the_long_way(tmp_path: Path, fast: list[bool]) -> None:
    body = event_bytes().replace(b"RunEvent", b"JobEvent")
    with running(tmp_path, settings()) as server:
        reply = ask(server, request_bytes(body))
    assert reply.status == 200
    assert reply.document["warnings"]
    assert fast == [False]


def test_tokens_hold_on_the_fast_path(tmp_path: Path, fast: list[bool]) -> None:
    tokens = (
        TokenSettings(name="plain", token=Secret("a" * 20)),
        TokenSettings(name="narrow", token=Secret("b" * 20), namespaces=("other",)),
        TokenSettings(name="rated", token=Secret("c" * 20), events_per_s=0.001, burst_events=1),
    )
    with running(tmp_path, settings(tokens=tokens)) as server:

        def status(letter: str) -> int:
            request = request_bytes(event_bytes(), authorization=f"Bearer {letter * 20}")
            return ask(server, request).status

        assert [status(letter) for letter in "abccx"] == [200, 403, 200, 503, 401]
        assert server.place.stored_headers() == [{"client": "plain"}, {"client": "rated"}]
    assert fast == [True, False, False, False, False]


def test_what_the_quiver_has_no_room_for_waits_on_the_long_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: list[bool]
) -> None:
    monkeypatch.setattr(Intake, "offer", lambda *_: None)
    with running(tmp_path, settings()) as server:
        assert ask(server, request_bytes(event_bytes())).status == 200
        assert len(server.place.stored()) == 1
        assert server.receiver.statistics().in_flight_requests == 0
    assert fast == [False]


def test_what_fails_on_the_fast_path_goes_the_long_way_and_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def fails(*_: object) -> bool:
        raise RuntimeError("a fault")

    body = event_bytes()
    with running(tmp_path, settings()) as server:
        monkeypatch.setattr(Intake, "offer", fails)
        assert ask(server, request_bytes(body)).status == 200
        assert server.place.stored() == [body]
        assert server.receiver.statistics().in_flight_requests == 0


def test_requests_over_the_bounds_are_refused_as_ever(tmp_path: Path, fast: list[bool]) -> None:
    body = event_bytes()
    limits = {"max_body_bytes": len(body) - 1}
    with running(tmp_path, settings(limits=limits)) as server:
        assert ask(server, request_bytes(body)).status == 413
    assert not any(fast)


@pytest.mark.parametrize("announced", [True, False])
def test_a_large_body_is_not_held_back(tmp_path: Path, fast: list[bool], announced: bool) -> None:
    text = "s" * (4 * HELD_BYTES_MAX)
    facet = {"_producer": "urn:x", "_schemaURL": "https://example.org/x.json", "text": text}
    event = {**json.loads(event_bytes()), "producer": "https://example.org/"}
    event["run"]["facets"] = {"custom": facet}
    body = json.dumps(event).encode()
    request = request_bytes(body)
    if not announced:
        head = request_bytes(transfer_encoding="chunked", content_length="-")
        request = head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    with running(tmp_path, settings()) as server, server.connect() as client:
        client.sendall(request[: 2 * HELD_BYTES_MAX])
        until(lambda: server.receiver.statistics().in_flight_requests == 1)
        client.sendall(request[2 * HELD_BYTES_MAX :])
        assert read_reply(client).status == 200
        assert server.place.stored() == [body]
    assert fast == []


def test_all_connections_together_hold_back_a_bounded_amount(
    tmp_path: Path, fast: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = event_bytes()
    monkeypatch.setattr(connection, "HELD_BYTES_MAX_TOGETHER", 2 * len(body) - 15)
    never = {"header_timeout_s": 3600, "keep_alive_s": 3600, "send_timeout_s": 3600}
    config = settings(connections={**never, "unread_timeout_s": 3600})
    with running(tmp_path, config) as server:
        counts = server.receiver.server.counts
        with server.connect() as first, server.connect() as second:
            first.sendall(request_bytes(body)[:-5])
            until(lambda: counts.held_bytes == len(body) - 5)
            second.sendall(request_bytes(body)[:-5])
            until(lambda: server.receiver.statistics().in_flight_requests == 1)
            assert counts.held_bytes == len(body) - 5
            for client in (first, second):
                client.sendall(body[-5:])
                assert read_reply(client).status == 200
        assert counts.held_bytes == 0
        with server.connect() as gone:
            gone.sendall(request_bytes(body)[:-5])
            until(lambda: counts.held_bytes == len(body) - 5)
        until(lambda: counts.held_bytes == 0)
    assert fast == [True]


def test_a_slow_body_is_handed_to_the_app_which_times_it_out(tmp_path: Path) -> None:
    config = settings(limits={"body_timeout_s": 0.1}, connections={"header_timeout_s": 0.2})
    with running(tmp_path, config) as server:
        assert ask(server, request_bytes(event_bytes())[:-5]).status == 503


def test_a_client_that_leaves_in_the_middle_is_counted(tmp_path: Path) -> None:
    with running(tmp_path, settings()) as server:
        with server.connect() as client:
            client.sendall(request_bytes(event_bytes())[:-5])
        until(lambda: server.receiver.statistics().rejected == {"disconnected": 1})
        assert server.receiver.statistics().in_flight_requests == 0


def test_the_connection_closes_if_the_client_asks_for_it(tmp_path: Path, fast: list[bool]) -> None:
    with running(tmp_path, settings()) as server, server.connect() as client:
        client.sendall(request_bytes(event_bytes(), connection="close"))
        reply = read_reply(client)
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        assert client.recv(1) == b""
    assert fast == [True]


def test_a_stopping_gateway_refuses_what_is_held_back(tmp_path: Path) -> None:
    never = {"header_timeout_s": 3600, "keep_alive_s": 3600, "send_timeout_s": 3600}
    config = settings(connections={**never, "unread_timeout_s": 3600})
    with running(tmp_path, config) as server, server.connect() as client:
        client.sendall(request_bytes(event_bytes())[:-5])
        connections: Any = server.receiver.server._state.connections
        until(lambda: any(one._held for one in list(connections)))
        reply = reply_while_stopping(server, client)
    assert (reply.status, reply.document["reason"]) == (503, "stopping")
