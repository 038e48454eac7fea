"""Calls with any number of messages: both ways, held back by who reads, and bounded."""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import h2.exceptions
import pytest
from hyperframe.frame import DataFrame, RstStreamFrame, WindowUpdateFrame
from tests.grpc.harness import ECHO, TALK, RawPeer, Served, ask, channel_to, headers_of, served
from tests.grpc.test_client import client_of
from tests.patience import PATIENCE_S, until

from holdfast.grpc.calls import ServerStream
from holdfast.grpc.health import WATCH_PATH
from holdfast.grpc.messages import framed
from holdfast.grpc.settings import GrpcSettings
from holdfast.grpc.status import CallFailed, StatusCode
from holdfast.receive.body import RequestLimits

KB, MB = 1024, 1024 * 1024
Code = grpc.StatusCode


def talk(channel: grpc.Channel, messages: Iterator[bytes], **options: Any) -> Any:
    method: Any = channel.stream_stream(TALK)
    return method(messages, timeout=PATIENCE_S, **options)


def code_of(answers: Any) -> grpc.StatusCode:
    try:
        for _ in answers:
            pass
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return Code.OK


@pytest.mark.parametrize("compression", list(grpc.Compression)[:3:2])
def test_messages_come_and_go_one_by_one(tmp_path: Path, compression: grpc.Compression) -> None:
    bodies = [b"x" * size for size in (1, 100, 3 * MB, 64 * KB, 1)]
    with served(tmp_path) as server, channel_to(server.address) as channel:
        waiting: queue.Queue[bytes | None] = queue.Queue()
        answers = talk(channel, iter(waiting.get, None), compression=compression)
        for body in bodies:
            # Each is answered before the next is sent.
            waiting.put(body)
            assert next(answers) == b"got " + body
        waiting.put(None)
        assert code_of(answers) is Code.OK
        server.until_empty()
        assert (server.talk.received, server.talk.ended) == (5, 1)


def test_a_stream_ends_as_its_method_or_its_messages_say(tmp_path: Path) -> None:
    limits = RequestLimits(max_body_bytes=MB, max_expanded_bytes=MB)
    with served(tmp_path, limits=limits) as server, channel_to(server.address) as channel:
        assert code_of(talk(channel, iter([]))) is Code.OK
        assert code_of(talk(channel, iter([b"fail"]))) is Code.ABORTED
        assert code_of(talk(channel, iter([b"a", b"fail"]))) is Code.ABORTED
        assert code_of(talk(channel, iter([b"a", bytes(2 * MB)]))) is Code.RESOURCE_EXHAUSTED
        with RawPeer(server.address) as peer:
            peer.send(
                peer.begin(1, headers_of(TALK)),
                DataFrame(1, framed(b"whole") + framed(b"cut")[:-1], flags=["END_STREAM"]),
            )
            assert peer.status_of(1) is Code.INVALID_ARGUMENT
            peer.send(peer.begin(3, headers_of(TALK)), DataFrame(3, b"\x07"))
            peer.send(DataFrame(3, bytes(4)))
            assert peer.status_of(3) is Code.INVALID_ARGUMENT
        server.until_empty()


def test_a_method_that_does_not_read_holds_its_client_back(tmp_path: Path) -> None:
    body, sent = bytes(200 * KB), []

    def messages() -> Iterator[bytes]:
        for number in range(100):
            sent.append(number)
            yield body

    with served(tmp_path) as server, channel_to(server.address) as channel:
        server.talk.reads.clear()
        answers = talk(channel, messages())
        next(answers)
        # It holds the message it has, the next one, and a window.
        bound_bytes = 2 * len(body) + 2 * MB
        until(lambda: server.admission.in_flight_bytes > len(body), "bytes wait")
        for _ in range(20):
            assert ask(channel, ECHO, b"others go on") == b"others go on"
            assert server.admission.in_flight_bytes < bound_bytes
        assert len(sent) < 100
        server.loop.call_soon_threadsafe(server.talk.reads.set)
        assert code_of(answers) is Code.OK
        assert server.talk.received == 100
        server.until_empty()


def test_a_stream_that_there_is_no_room_for_is_to_be_sent_again(tmp_path: Path) -> None:
    sizes = {"max_body_bytes": MB, "max_expanded_bytes": MB, "max_in_flight_bytes": 2 * MB}
    limits = RequestLimits(**sizes)
    with served(tmp_path, limits=limits) as server, channel_to(server.address) as channel:
        server.talk.reads.clear()
        # The answer to the first may be on its way when the third comes, and end with the stream.
        answers = talk(channel, iter([bytes(MB - KB)] * 3))
        assert code_of(answers) is Code.UNAVAILABLE
        until(lambda: server.talk.cancelled == 1, "the method was told")
        server.until_empty()


def test_a_flood_of_empty_messages_holds_nobody_up(tmp_path: Path) -> None:
    count = 30_000
    with served(tmp_path) as server, RawPeer(server.address) as peer:
        server.talk.reads.clear()
        peer.send(peer.begin(1, headers_of(TALK)))
        # What the window lets through at once, in frames of a kilobyte.
        flood = bytes(5 * count)
        for at in range(0, len(flood), 1000):
            peer.send(DataFrame(1, flood[at : at + 1000]))
        until(lambda: server.admission.in_flight_bytes > 100 * KB, "they wait")
        server.loop.call_soon_threadsafe(server.talk.reads.set)
        with channel_to(server.address) as channel:
            while server.talk.received < count:
                assert ask(channel, ECHO, b"others") == b"others"
        peer.send(DataFrame(1, b"", flags=["END_STREAM"]))
        assert peer.status_of(1) is Code.OK
        server.until_empty()


def test_a_client_that_goes_takes_its_stream_along(tmp_path: Path) -> None:
    with served(tmp_path) as server, channel_to(server.address) as channel:
        waiting: queue.Queue[bytes | None] = queue.Queue()
        answers = talk(channel, iter(waiting.get, None))
        waiting.put(b"a")
        next(answers)
        answers.cancel()
        until(lambda: server.talk.cancelled == 1, "the method was told")
        server.until_empty()
        waiting.put(None)
        # A deadline, most likely behind the headers of the answer.
        with RawPeer(server.address) as peer:
            begin = peer.begin(1, headers_of(TALK, grpc_timeout="500m"))
            peer.send(begin, DataFrame(1, framed(b"a")))
            assert peer.status_of(1) is Code.DEADLINE_EXCEEDED
        server.until_empty()


def test_what_is_said_after_the_end_of_a_stream_costs_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path) as server, RawPeer(server.address) as peer:
        ended: list[ServerStream] = []

        async def converse(stream: ServerStream) -> None:
            ended.append(stream)
            await stream.send(b"the first")
            raise CallFailed(StatusCode.ABORTED, "as asked")

        monkeypatch.setattr(server.talk, "converse", converse)
        peer.send(peer.begin(1, headers_of(TALK)), DataFrame(1, framed(b"a")))
        assert peer.status_of(1) is Code.ABORTED
        with pytest.raises(CallFailed, match="the call is over"):
            server.run(ended[0].send(b"the last"))
        with pytest.raises(h2.exceptions.StreamClosedError):
            server.run(sent_below(ended[0]))
        peer.send(WindowUpdateFrame(0, window_increment=1))
        peer.call(3)
        assert peer.status_of(3) is Code.OK


async def sent_below(stream: ServerStream) -> None:
    stream._connection.http2.send_piece(stream.call.stream_id, b"the last")


def test_answers_that_nobody_reads_are_given_up(tmp_path: Path) -> None:
    settings = GrpcSettings(send_timeout_s=0.3)
    with served(tmp_path, settings) as server, RawPeer(server.address) as peer:
        peer.send(peer.begin(1, headers_of(TALK)), DataFrame(1, framed(b"many")))
        # Its window is never opened.
        assert peer.until_frame(RstStreamFrame, 1).error_code == 8
        until(lambda: server.talk.cancelled == 1, "the method was told")
        server.until_empty()


def test_a_message_that_comes_too_slowly_ends_the_stream_and_a_pause_does_not(
    tmp_path: Path,
) -> None:
    limits = RequestLimits(body_timeout_s=0.3)
    with served(tmp_path, limits=limits) as server, RawPeer(server.address) as peer:
        for number in (1, 3):
            peer.send(peer.begin(number, headers_of(TALK)), DataFrame(number, framed(b"a")))
        # Half of the next message; the other stream says nothing.
        peer.send(DataFrame(3, framed(b"slow")[:6]))
        assert peer.status_of(3) is Code.UNAVAILABLE
        peer.send(DataFrame(1, framed(b"b"), flags=["END_STREAM"]))
        assert peer.status_of(1) is Code.OK
        server.until_empty()


def test_a_server_that_leaves_ends_its_streams_well(tmp_path: Path) -> None:
    with served(tmp_path) as server, channel_to(server.address) as channel:
        waiting: queue.Queue[bytes | None] = queue.Queue()
        answers = talk(channel, iter(waiting.get, None))
        waiting.put(b"a")
        assert next(answers) == b"got a"
        server.stop(PATIENCE_S / 2)
        assert code_of(answers) is Code.OK
        assert server.talk.ended == 1
        waiting.put(None)


def test_health_is_watched_until_the_server_stops(tmp_path: Path) -> None:
    with served(tmp_path) as server, channel_to(server.address) as channel:
        watch: Any = channel.unary_stream(WATCH_PATH)
        whole, service = watch(b""), watch(b"\x0a\x0ctest.Service")
        unknown = watch(b"\x0a\x01x")
        assert [next(whole), next(service), next(unknown)] == [
            b"\x08\x01",
            b"\x08\x01",
            b"\x08\x03",
        ]
        assert code_of(watch(b"\xff")) is Code.INVALID_ARGUMENT
        # It takes no place of calls that bring something.
        assert server.admission.in_flight_requests == 0
        server.stop(PATIENCE_S / 2)
        assert [list(whole), list(service), list(unknown)] == [[b"\x08\x02"], [b"\x08\x02"], []]


# The client.


async def echoed(server: Served, count: int, body: bytes, **options: Any) -> list[bytes | None]:
    async with (
        client_of(server.address) as client,
        client.stream(TALK, timeout_s=PATIENCE_S, **options) as stream,
    ):
        answers = []
        for _ in range(count):
            await stream.send(body)
            answers.append(await stream.receive())
        await stream.finish()
        return [*answers, await stream.receive()]


@pytest.mark.parametrize("encoding", [b"identity", b"gzip", b"zstd"])
def test_our_client_talks_to_our_server(tmp_path: Path, encoding: bytes) -> None:
    body = bytes(3 * MB)
    with served(tmp_path) as server:
        answers = asyncio.run(echoed(server, 3, body, encoding=encoding))
        assert answers == [b"got " + body] * 3 + [None]
        server.until_empty()


def test_our_client_hears_how_a_stream_failed_and_takes_one_back(tmp_path: Path) -> None:
    async def use(server: Served) -> None:
        async with client_of(server.address) as client:
            async with client.stream(TALK, timeout_s=PATIENCE_S) as stream:
                await stream.send(b"fail")
                with pytest.raises(CallFailed) as failed:
                    await stream.receive()
                assert failed.value.code is StatusCode.ABORTED
                with pytest.raises(CallFailed):
                    await stream.send(b"more")
            async with client.stream("/no/Such", timeout_s=PATIENCE_S) as stream:
                with pytest.raises(CallFailed) as failed:
                    await stream.receive()
                assert failed.value.code is StatusCode.UNIMPLEMENTED
            async with client.stream(TALK, timeout_s=PATIENCE_S) as stream:
                await stream.send(b"a")
                assert await stream.receive() == b"got a"
            # The connection is as good as before.
            assert await client.call(ECHO, b"after", timeout_s=PATIENCE_S) == b"after"

    with served(tmp_path) as server:
        asyncio.run(use(server))
        until(lambda: server.talk.cancelled == 1, "the method was told")
        server.until_empty()


def test_our_client_reads_as_fast_as_it_is_asked_and_notices_a_lost_server(tmp_path: Path) -> None:
    async def use(server: Served) -> None:
        async with (
            client_of(server.address) as client,
            client.stream(TALK, timeout_s=PATIENCE_S) as stream,
        ):
            await stream.send(b"many")
            answers = 0
            while await stream.receive() != b"got many":
                answers += 1
                # A window, and no more: the server waits for it.
                assert stream.inbound.waiting_bytes <= 2 * MB
            assert answers == 1000
            # It is cut off, or told to end before that.
            await asyncio.to_thread(server.stop, 0.0)
            with contextlib.suppress(CallFailed):
                assert await stream.receive() is None
            with pytest.raises(CallFailed):
                await stream.send(b"after the end")

    with served(tmp_path) as server:
        asyncio.run(use(server))
