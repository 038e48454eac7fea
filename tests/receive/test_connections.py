"""Clients that are slow, large, rude or gone, on real sockets: bounded, answered, nothing left."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_S, until, until_async
from tests.receive.harness import (
    PATH,
    Place,
    Running,
    event_bytes,
    is_closed,
    read_reply,
    request_bytes,
    running,
    send_until_refused,
)

from holdfast.quiver import Intake, Receipt
from holdfast.receive.body import RequestLimits
from holdfast.receive.connection import BoundedConnection
from holdfast.receive.openlineage import Config
from holdfast.receive.server_state import ConnectionSettings, ServerState

MB = 1024 * 1024
LONG_S = 3600.0


def config(
    connections: dict[str, Any] | None = None, limits: dict[str, Any] | None = None
) -> Config:
    """Return a configuration in which nothing times out that the test does not want to."""
    patient = {
        "header_timeout_s": LONG_S,
        "keep_alive_s": LONG_S,
        "send_timeout_s": LONG_S,
        "unread_timeout_s": LONG_S,
    }
    return Config(
        listen="127.0.0.1:0",
        connections=ConnectionSettings(**{**patient, **(connections or {})}),
        limits=RequestLimits(**{"body_timeout_s": LONG_S, **(limits or {})}),
    )


def idle(server: Running) -> bool:
    statistics = server.receiver.statistics()
    return statistics.in_flight_requests == 0 and statistics.in_flight_bytes == 0


def hold_appends(server: Running, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let no append through until the event is set."""
    gate = threading.Event()
    append, offer = server.place.quiver.append_raw_async, Intake.offer

    async def slow_append(*args: Any, **options: Any) -> Receipt:
        await asyncio.to_thread(gate.wait, PATIENCE_S)
        return await append(*args, **options)

    def slow_offer(*args: Any) -> bool:
        loop = asyncio.get_running_loop()

        def offer_later() -> None:
            gate.wait(PATIENCE_S)
            loop.call_soon_threadsafe(offer, *args)

        loop.run_in_executor(None, offer_later)
        return True

    monkeypatch.setattr(server.place.quiver, "append_raw_async", slow_append)
    monkeypatch.setattr(Intake, "offer", slow_offer)
    return gate


# ---------------------------------------------------------------- plain clients


def test_a_connection_is_used_again(tmp_path: Path) -> None:
    with running(tmp_path, config()) as server, server.connect() as client:
        for number in range(3):
            client.sendall(request_bytes(event_bytes(number)))
            reply = read_reply(client)
            assert reply.status == 200
            assert "date" in reply.headers
            assert "server" not in reply.headers
        assert server.receiver.statistics().connections == 1
    assert server.place.quiver.statistics().accepted_events == 3


def test_a_chunked_body_is_read(tmp_path: Path) -> None:
    body = event_bytes()
    head = request_bytes(b"", transfer_encoding="chunked", content_length="-")
    with running(tmp_path, config()) as server, server.connect() as client:
        client.sendall(head)
        for start in range(0, len(body), 50):
            piece = body[start : start + 50]
            client.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        client.sendall(b"0\r\n\r\n")
        assert read_reply(client).status == 200
        assert server.place.stored() == [body]


def test_pipelined_requests_are_answered_in_order(tmp_path: Path) -> None:
    with running(tmp_path, config()) as server, server.connect() as client:
        bodies = [event_bytes(number) for number in range(10)]
        bodies[4] = b"{}"
        client.sendall(b"".join(request_bytes(body) for body in bodies))
        buffer = bytearray()
        statuses = [read_reply(client, buffer).status for _ in bodies]
        assert statuses == [200] * 4 + [400] + [200] * 5
        assert server.place.stored() == bodies[:4] + bodies[5:]


def test_query_string_and_trailing_slash_change_nothing(tmp_path: Path) -> None:
    with running(tmp_path, config()) as server, server.connect() as client:
        for path in (
            f"{PATH}?a=b&c=%00",
            f"{PATH}/?",
            "//api/v1/lineage",
            "/api/v1/%6cineage",
            f"http://gateway{PATH}",
        ):
            client.sendall(request_bytes(event_bytes(), path))
            assert read_reply(client).status == 200


def test_head_has_no_body(tmp_path: Path) -> None:
    with running(tmp_path, config()) as server, server.connect() as client:
        client.sendall(request_bytes(method="HEAD", connection="close"))
        answer = b"".join(iter(lambda: client.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 405 ")
        assert b"allow: POST" in answer
        assert answer.endswith(b"\r\n\r\n")


def test_100_continue_is_said_only_for_a_wanted_body(tmp_path: Path) -> None:
    body = event_bytes()
    wanted = request_bytes(b"", expect="100-continue", content_length=str(len(body)))
    unwanted = request_bytes(b"", expect="100-continue", content_length=str(100 * MB))
    with running(tmp_path, config()) as server:
        with server.connect() as client:
            client.sendall(wanted)
            assert client.recv(65536).startswith(b"HTTP/1.1 100 ")
            client.sendall(body)
            assert read_reply(client).status == 200
        with server.connect() as client:
            client.sendall(unwanted)
            assert read_reply(client).status == 413


def test_a_client_may_close_its_side_first(tmp_path: Path) -> None:
    with running(tmp_path, config()) as server, server.connect() as client:
        client.sendall(request_bytes(event_bytes()))
        client.shutdown(socket.SHUT_WR)
        assert read_reply(client).status == 200
        assert is_closed(client)


def test_an_offer_of_http2_is_passed_over(tmp_path: Path) -> None:
    offer = request_bytes(
        event_bytes(), connection="Upgrade, HTTP2-Settings", upgrade="h2c", http2_settings="AAM"
    )
    with running(tmp_path, config()) as server, server.connect() as client:
        client.sendall(offer)
        assert read_reply(client).status == 200
        assert is_closed(client)
        assert server.place.stored() == [event_bytes()]


# ----------------------------------------------------------------- slow clients


@pytest.mark.parametrize("start", [b"", b"POST ", request_bytes()[:-2]])
def test_a_client_that_does_not_finish_its_headers_is_closed(tmp_path: Path, start: bytes) -> None:
    with running(tmp_path, config({"header_timeout_s": 0.1})) as server:
        with server.connect() as client:
            client.sendall(start)
            assert is_closed(client)
        until(lambda: server.receiver.statistics().connections == 0)


def test_a_slowloris_is_closed_though_it_keeps_sending(tmp_path: Path) -> None:
    with running(tmp_path, config({"header_timeout_s": 0.2})) as server, server.connect() as client:
        client.sendall(b"POST / HTTP/1.1\r\n")
        error = send_until_refused(client, b"x-a: b\r\n", pause_s=0.01)
        assert isinstance(error, ConnectionError)
        assert server.receiver.statistics().rejected == {"timeout": 1}


@pytest.mark.parametrize("body", [b"", event_bytes()[:10]])
def test_a_client_that_does_not_finish_its_body_is_told(tmp_path: Path, body: bytes) -> None:
    head = request_bytes(b"", content_length=str(len(event_bytes())))
    with running(tmp_path, config(limits={"body_timeout_s": 0.1})) as server:
        with server.connect() as client:
            client.sendall(head + body)
            reply = read_reply(client)
            assert (reply.status, reply.document["reason"]) == (503, "timeout")
            assert is_closed(client)
        assert server.receiver.statistics().rejected == {"timeout": 1}
        until(lambda: idle(server))


def test_an_idle_connection_is_closed(tmp_path: Path) -> None:
    with running(tmp_path, config({"keep_alive_s": 0.1})) as server, server.connect() as client:
        client.sendall(request_bytes(event_bytes()))
        assert read_reply(client).status == 200
        assert is_closed(client)


def test_a_client_that_reads_no_answers_is_cut_off(tmp_path: Path) -> None:
    """Its answers fill the buffers of both sides; then it has its time."""
    with running(tmp_path, config({"send_timeout_s": 0.2})) as server:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(0.5)
        client.connect(("127.0.0.1", server.port))
        request = request_bytes(method="GET", path="/openapi.json", content_length="-")
        send_until_refused(client, request * 10)
        until(lambda: server.receiver.statistics().connections == 0)
        client.close()


def test_a_close_that_waits_for_its_client_ends(tmp_path: Path) -> None:
    """A client has not read its last answer: too little to pause writing, too much to send."""

    class StuckTransport(asyncio.Transport):
        closing = aborted = False

        def write(self, data: bytes) -> None:  # type: ignore[override]
            pass

        def is_closing(self) -> bool:
            return self.closing

        def close(self) -> None:
            self.closing = True

        def abort(self) -> None:
            self.aborted = True

        def get_extra_info(self, name: str, default: object = None) -> Any:
            return None

    async def scenario(request: bytes, app: Any) -> None:
        settings = ConnectionSettings()
        transport = StuckTransport()
        connection = BoundedConnection(ServerState(app, settings))
        connection.connection_made(transport)
        connection.data_received(request)
        await until_async(transport.is_closing)
        now_s = asyncio.get_running_loop().time()
        connection.expire(now_s)
        assert not transport.aborted
        connection.expire(now_s + settings.send_timeout_s)
        assert transport.aborted

    place = Place(tmp_path)
    for request in (request_bytes(event_bytes(), connection="close"), b"garbage\r\n\r\n"):
        asyncio.run(scenario(request, place.app()))
    place.close()


def test_a_client_gone_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    head = request_bytes(b"", content_length="1000")
    with running(tmp_path, config()) as server:
        for linger in (False, True):
            client = server.connect()
            client.sendall(head + b"x" * 500)
            until(lambda: server.receiver.statistics().in_flight_bytes == 500)
            if linger:  # a reset instead of an orderly end
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            until(lambda: idle(server))
        assert server.receiver.statistics().rejected == {"disconnected": 2}
        assert server.place.stored() == []


# ---------------------------------------------------------------- large clients


@pytest.mark.parametrize("at_once", [True, False])
def test_headers_have_a_bound(tmp_path: Path, at_once: bool) -> None:
    settings = config({"max_header_bytes": 4096})
    with running(tmp_path, settings) as server, server.connect() as client:
        large = request_bytes(event_bytes(), x_large="y" * 5000)
        client.sendall(large if at_once else large[:4900])
        if not at_once:
            until(lambda: server.receiver.statistics().connections == 1)
            client.sendall(large[4900:])
        reply = read_reply(client)
        assert (reply.status, reply.document["reason"]) == (431, "header_too_large")
        assert is_closed(client)
        assert server.receiver.statistics().rejected == {"header_too_large": 1}
        assert server.place.stored() == []


def test_a_header_without_an_end_has_a_bound(tmp_path: Path) -> None:
    with running(tmp_path, config({"max_header_bytes": 4096})) as server:
        client = server.connect()
        client.sendall(b"POST / HTTP/1.1\r\nx-large: ")
        assert isinstance(send_until_refused(client, b"y" * 10_000), ConnectionError)
        client.close()
        until(lambda: server.receiver.statistics().connections == 0)


def test_a_body_of_100_mb_is_not_read_into_memory(tmp_path: Path) -> None:
    """Announced it is not read at all, chunked only to its bound; the rest is forgotten."""
    with running(tmp_path, config(limits={"max_body_bytes": MB})) as server:
        piece = b"x" * (256 * 1024)
        for chunked in (False, True):
            head = request_bytes(b"", content_length=str(100 * MB))
            if chunked:
                head = request_bytes(b"", transfer_encoding="chunked", content_length="-")
            with server.connect() as client:
                client.sendall(head)
                try:
                    for _ in range(100 * MB // len(piece)):
                        client.sendall(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
                except ConnectionError:
                    pass  # cut off at max_unread_bytes, with the answer on its way
                reply = read_reply(client)
                assert (reply.status, reply.document["reason"]) == (413, "too_large")
                assert is_closed(client)
        statistics = server.receiver.statistics()
        assert statistics.received_bytes <= 2 * MB
        assert statistics.rejected == {"too_large": 2}
        until(lambda: idle(server))


def test_a_refused_body_is_forgotten_and_the_connection_kept(tmp_path: Path) -> None:
    with running(tmp_path, config(limits={"max_body_bytes": MB})) as server:
        with server.connect() as client:
            client.sendall(request_bytes(b"x" * (2 * MB)))
            assert read_reply(client).status == 413
            client.sendall(request_bytes(event_bytes()))
            assert read_reply(client).status == 200
        # All but what had come before the answer.
        assert 0 < server.receiver.server.counts.unread_bytes <= 2 * MB


@pytest.mark.parametrize(
    "bound", [{"max_unread_bytes": MB}, {"unread_timeout_s": 0.1}], ids=["bytes", "time"]
)
def test_what_is_read_of_a_refused_body_has_a_bound(tmp_path: Path, bound: dict[str, Any]) -> None:
    settings = config(bound, {"max_body_bytes": 1000})
    with running(tmp_path, settings) as server:
        client = server.connect()
        client.sendall(request_bytes(b"", content_length=str(1000 * MB)))
        assert read_reply(client).status == 413
        assert isinstance(send_until_refused(client, b"x" * 10_000, 0.001), ConnectionError)
        client.close()
        until(lambda: server.receiver.statistics().connections == 0)
        assert server.receiver.server.counts.unread_bytes <= 3 * MB or "unread_timeout_s" in bound


# ----------------------------------------------------------------- many clients


def test_connections_have_a_bound(tmp_path: Path) -> None:
    with running(tmp_path, config({"max_connections": 2})) as server:
        held = [server.connect() for _ in range(2)]
        until(lambda: server.receiver.statistics().connections == 2)
        with server.connect() as third:
            third.sendall(request_bytes(event_bytes()))
            reply = read_reply(third)
            assert (reply.status, reply.document["reason"]) == (503, "busy")
            assert reply.headers["retry-after"] == "1"
            assert reply.headers["connection"] == "close"
        held.pop().close()
        until(lambda: server.receiver.statistics().connections == 1)
        with server.connect() as again:
            again.sendall(request_bytes(event_bytes()))
            assert read_reply(again).status == 200
        held.pop().close()
        assert server.receiver.statistics().rejected == {"busy": 1}


def test_refused_connections_have_a_bound_too(tmp_path: Path) -> None:
    with running(tmp_path, config({"max_connections": 1})) as server:
        first = server.connect()
        until(lambda: server.receiver.statistics().connections == 1)
        crowd = [server.connect() for _ in range(100)]
        until(lambda: server.receiver.statistics().rejected == {"busy": 100})
        until(lambda: len(server.receiver.server.counts.refused) <= 64)
        for client in [first, *crowd]:
            client.close()


def test_requests_sent_ahead_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was taken is answered; the rest is not read, and the connection is closed."""
    with running(tmp_path, config({"max_pipelined_requests": 3})) as server:
        gate = hold_appends(server, monkeypatch)
        with server.connect() as client:
            client.sendall(b"".join(request_bytes(event_bytes(n)) for n in range(50)))
            until(lambda: server.receiver.statistics().in_flight_requests == 1)
            gate.set()
            buffer = bytearray()
            assert [read_reply(client, buffer).status for _ in range(4)] == [200] * 4
            assert is_closed(client)
            assert not buffer
        assert server.place.stored() == [event_bytes(n) for n in range(4)]


# --------------------------------------------------------------- broken clients


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GARBAGE\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT example.org:80 HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_not_http_is_a_400(tmp_path: Path, garbage: bytes) -> None:
    with running(tmp_path, config()) as server, server.connect() as client:
        client.sendall(garbage)
        reply = read_reply(client)
        assert (reply.status, reply.document["reason"]) == (400, "malformed")
        assert is_closed(client)


def test_a_broken_chunk_is_a_400(tmp_path: Path) -> None:
    head = request_bytes(b"", transfer_encoding="chunked", content_length="-")
    with running(tmp_path, config()) as server, server.connect() as client:
        client.sendall(head + b"5\r\nhello\r\nnonsense\r\n")
        assert read_reply(client).status == 400
        assert is_closed(client)
        until(lambda: idle(server))
        assert server.place.stored() == []


def test_garbage_behind_a_request_does_not_cost_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, config()) as server:
        gate = hold_appends(server, monkeypatch)
        with server.connect() as client:
            client.sendall(request_bytes(event_bytes(1)) + request_bytes(event_bytes(2)) + b"\0\0")
            until(lambda: server.receiver.statistics().in_flight_requests == 1)
            gate.set()
            buffer = bytearray()
            assert [read_reply(client, buffer).status for _ in range(3)] == [200, 200, 400]
            assert is_closed(client)


# -------------------------------------------------------------------- stopping


def test_stopping_finishes_what_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, config()) as server:
        gate = hold_appends(server, monkeypatch)
        idle_client, client = server.connect(), server.connect()
        client.sendall(request_bytes(event_bytes()))
        until(lambda: server.receiver.statistics().in_flight_requests == 1)
        port = server.port
        stopping = threading.Thread(target=lambda: server.run(server.receiver.stop(PATIENCE_S)))
        stopping.start()
        assert is_closed(idle_client)
        with pytest.raises(ConnectionError):
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        gate.set()
        assert read_reply(client).status == 200
        assert is_closed(client)
        stopping.join()
        idle_client.close()
        client.close()


def test_stopping_cuts_off_what_takes_too_long(tmp_path: Path) -> None:
    with running(tmp_path, config()) as server:
        client = server.connect()
        client.sendall(request_bytes(b"", content_length="1000"))
        until(lambda: server.receiver.statistics().in_flight_requests == 1)
        server.run(server.receiver.stop(0.05))
        assert is_closed(client)
        until(lambda: idle(server))
        client.close()
