"""Clients that do what they should not: each is stopped at a bound, and others feel nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from h2.errors import ErrorCodes
from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hypothesis import given
from hypothesis import strategies as st
from tests.grpc.harness import (
    ECHO,
    FAST,
    SLOW,
    TALK,
    Echo,
    RawPeer,
    Served,
    ask,
    channel_to,
    headers_of,
    served,
)
from tests.patience import PATIENCE_S, SCALE, until, until_async

from holdfast.grpc.http2 import PREFACE, Http2
from holdfast.grpc.messages import MessageLimits, framed
from holdfast.grpc.outgoing import TURN_BYTES
from holdfast.grpc.server import ServerConnections
from holdfast.grpc.settings import GrpcSettings
from holdfast.grpc.status import CallFailed, StatusCode
from holdfast.receive.body import RequestLimits
from holdfast.seam import Seam

KB = 1024
MB = 1024 * 1024
CALM = ErrorCodes.ENHANCE_YOUR_CALM
SMALL = GrpcSettings(
    max_control_frames_per_s=1,
    control_frames_burst=100,
    max_resets_per_s=1,
    resets_burst=20,
    max_streams=8,
    max_unread_bytes=256 * KB,
    window_bytes=64 * KB,
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("small"), SMALL) as one:
        yield one


@pytest.fixture
def others(small: Served) -> Iterator[None]:
    """A client of good manners, before and after, on one connection."""
    with channel_to(small.address) as channel:
        assert ask(channel, ECHO, b"before") == b"before"
        yield
        assert ask(channel, ECHO, b"after") == b"after"
    small.until_empty()


def extension(number: int) -> bytes:
    return b"\0\0\1\xfa\0\0\0\0\0x"


FLOODS: dict[str, Callable[[int], bytes]] = {
    "ping": lambda _: PingFrame(0, b"12345678").serialize(),
    "ping-ack": lambda _: PingFrame(0, b"12345678", flags=["ACK"]).serialize(),
    "settings": lambda number: SettingsFrame(0, settings={4: 70_000 + number}).serialize(),
    "settings-ack": lambda _: SettingsFrame(0, flags=["ACK"]).serialize(),
    "priority": lambda _: PriorityFrame(1, stream_weight=7).serialize(),
    "window-update": lambda _: WindowUpdateFrame(0, window_increment=1).serialize(),
    "empty-data": lambda _: DataFrame(1, b"").serialize(),
    "padding": lambda _: DataFrame(1, b"", pad_length=200, flags=["PADDED"]).serialize(),
    "unknown": extension,
    "resets-of-nothing": lambda _: RstStreamFrame(1, error_code=8).serialize(),
}


@pytest.mark.parametrize("kind", FLOODS)
@pytest.mark.usefixtures("others")
def test_a_flood_of_frames_without_data_ends_the_connection(small: Served, kind: str) -> None:
    with RawPeer(small.address) as peer:
        peer.send(peer.begin(1))
        if kind == "resets-of-nothing":
            peer.send(peer.reset(1))
        try:
            for number in range(1000):
                peer.send_bytes(FLOODS[kind](number))
        except ConnectionError:
            pass
        assert peer.until_gone() in (CALM, None)
    # Whether the client saw the reason depends on what it had not read; the server does not.
    small.until_empty()


@pytest.mark.usefixtures("others")
def test_calls_that_are_taken_back_at_once_end_the_connection(small: Served) -> None:
    begun = small.slow.begun
    with RawPeer(small.address) as peer:
        data = b""
        for number in range(200):
            stream_id = 2 * number + 1
            call = peer.begin(stream_id, headers_of(SLOW))
            body = DataFrame(stream_id, framed(b"x"), flags=["END_STREAM"])
            data += call.serialize() + body.serialize() + peer.reset(stream_id).serialize()
        peer.send_bytes(data)
        assert peer.until_gone() == CALM
    assert small.slow.begun - begun <= SMALL.resets_burst + 1


@pytest.mark.usefixtures("others")
@pytest.mark.parametrize("piece", [b"", b"x" * 1000], ids=["empty", "full"])
def test_headers_that_never_end_end_the_connection(small: Served, piece: bytes) -> None:
    with RawPeer(small.address) as peer:
        peer.send(HeadersFrame(1, b""))
        data = ContinuationFrame(1, piece).serialize() * 200
        # The server may end it before all of that is sent; its reason has come by then.
        with contextlib.suppress(ConnectionError):
            peer.send_bytes(data)
        assert peer.until_gone() in (CALM, ErrorCodes.PROTOCOL_ERROR)


@pytest.mark.usefixtures("others")
def test_headers_that_unpack_to_much_end_the_connection(small: Served) -> None:
    encoder = Encoder()
    first = encoder.encode([*headers_of(), ("x-large", "y" * 3000)])
    again = encoder.encode([("x-large", "y" * 3000)])
    assert len(again) == 1
    with RawPeer(small.address) as peer:
        peer.send(HeadersFrame(1, first, flags=["END_HEADERS"]))
        block = encoder.encode(headers_of()) + again * 4000
        peer.send(HeadersFrame(3, block, flags=["END_HEADERS"]))
        assert peer.until_gone() == CALM


BROKEN: dict[str, tuple[Callable[[RawPeer], list[Frame]], ErrorCodes]] = {
    "data on a stream that was never opened": (
        lambda peer: [DataFrame(5, b"x")],
        ErrorCodes.PROTOCOL_ERROR,
    ),
    "data on no stream": (
        lambda peer: [peer.begin(1), _raw(b"\0\0\1\0\0\0\0\0\0x")],
        ErrorCodes.PROTOCOL_ERROR,
    ),
    "data within headers": (
        lambda peer: [HeadersFrame(1, b""), DataFrame(1, b"x")],
        ErrorCodes.PROTOCOL_ERROR,
    ),
    "an even stream": (lambda peer: [peer.begin(2)], ErrorCodes.PROTOCOL_ERROR),
    "a stream that is behind": (
        lambda peer: [peer.begin(5), peer.begin(3)],
        ErrorCodes.PROTOCOL_ERROR,
    ),
    "too many streams": (
        lambda peer: [peer.begin(2 * number + 1) for number in range(9)],
        ErrorCodes.PROTOCOL_ERROR,
    ),
    "a frame larger than was said": (
        lambda peer: [peer.begin(1), _raw(b"\x20\0\0\0\0\0\0\0\1")],
        ErrorCodes.FRAME_SIZE_ERROR,
    ),
    "large settings": (lambda peer: [_raw(b"\x01\0\0\4\0\0\0\0\0")], ErrorCodes.FRAME_SIZE_ERROR),
    "more than the window": (
        lambda peer: [peer.begin(1), DataFrame(1, b"\0\0\2\0\0" + bytes(70_000))],
        ErrorCodes.FLOW_CONTROL_ERROR,
    ),
    "all padding": (
        lambda peer: [peer.begin(1), _raw(b"\0\0\2\0\x08\0\0\0\1\xffx")],
        ErrorCodes.PROTOCOL_ERROR,
    ),
    "a short goaway": (lambda peer: [_raw(b"\0\0\4\7\0\0\0\0\0abcd")], ErrorCodes.FRAME_SIZE_ERROR),
    "a window that overflows": (
        lambda peer: [peer.window(0, 2**31 - 1)],
        ErrorCodes.FLOW_CONTROL_ERROR,
    ),
    "a push": (lambda peer: [_raw(b"\0\0\4\5\4\0\0\0\1\0\0\0\2")], ErrorCodes.PROTOCOL_ERROR),
    "no header compression": (
        lambda peer: [HeadersFrame(1, b"\xff\xff\xff\xff\xff", flags=["END_HEADERS"])],
        ErrorCodes.PROTOCOL_ERROR,
    ),
}


class _Raw:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def serialize(self) -> bytes:
        return self._data


def _raw(data: bytes) -> Any:
    return _Raw(data)


@pytest.mark.usefixtures("others")
@pytest.mark.parametrize("kind", BROKEN)
def test_broken_frames_end_the_connection(small: Served, kind: str) -> None:
    frames, code = BROKEN[kind]
    with RawPeer(small.address) as peer:
        peer.send(*frames(peer))
        assert peer.until_gone() == code


@pytest.mark.usefixtures("others")
def test_an_answer_to_a_connection_that_was_ended_finds_nobody(small: Served) -> None:
    troubles: list[object] = []
    small.loop.call_soon_threadsafe(
        small.loop.set_exception_handler, lambda loop, context: troubles.append(context)
    )
    for path in (FAST, ECHO, TALK):
        with RawPeer(small.address) as peer:
            # In one piece: the answer is under way when the connection ends by the frame behind.
            call = peer.begin(1, headers_of(path)).serialize()
            call += DataFrame(1, framed(b"a"), flags=["END_STREAM"]).serialize()
            peer.send_bytes(call + b"\0\0\1\4\0\0\0\0\0\0")
            assert peer.until_gone() == ErrorCodes.FRAME_SIZE_ERROR
    small.until_empty()
    assert not small.rejected, "a method was kept from answering by an error"
    # A task tells that it failed when it goes.
    gc.collect()
    assert troubles == []


def test_what_is_wrong_with_streams_that_are_over_is_told(small: Served) -> None:
    codes = ErrorCodes
    reset, update = b"\x03\0\0\0\0\1", b"\x08\0\0\0\0\1"
    for frame, code in (
        (b"\0\0\3" + reset + bytes(3), codes.FRAME_SIZE_ERROR),
        (b"\0\0\5" + update + bytes(5), codes.FRAME_SIZE_ERROR),
        (b"\0\0\4" + update + bytes(4), codes.PROTOCOL_ERROR),
        (b"\0\0\x08\x07\0\0\0\0\1" + bytes(8), codes.PROTOCOL_ERROR),
    ):
        with RawPeer(small.address) as peer:
            peer.call(1)
            peer.until_answered(1)
            peer.send_bytes(frame)
            assert peer.until_gone() == code
    # One that the peer has ended, and that is not answered yet.
    with RawPeer(small.address) as peer:
        peer.call(1, path=SLOW)
        peer.send(DataFrame(1, b"more"))
        assert peer.until_gone() == codes.STREAM_CLOSED
    small.until_empty()


def test_what_is_sent_to_calls_that_are_over_is_read_up_to_a_bound(small: Served) -> None:
    with RawPeer(small.address) as peer:
        peer.send(peer.begin(1, headers_of("/no/Method")))
        assert peer.status_of(1) == grpc.StatusCode.UNIMPLEMENTED
        try:
            for _ in range(100):
                peer.send(DataFrame(1, bytes(16_000)))
        except ConnectionError:
            pass
        assert peer.until_gone() in (CALM, None)


@pytest.mark.usefixtures("others")
def test_late_frames_of_calls_that_are_over_do_no_harm(small: Served) -> None:
    with RawPeer(small.address) as peer:
        peer.call(1)
        assert peer.status_of(1) == grpc.StatusCode.OK
        peer.send(peer.window(1, 100), peer.reset(1), DataFrame(1, b"late"))
        peer.call(3)
        assert peer.status_of(3) == grpc.StatusCode.OK


@pytest.mark.parametrize(
    "message",
    [b"", b"\0\0", b"\0\0\0\0\x09half"],
    ids=["nothing", "half a head", "half a message"],
)
@pytest.mark.usefixtures("others")
def test_a_call_that_ends_too_early_is_invalid(small: Served, message: bytes) -> None:
    with RawPeer(small.address) as peer:
        peer.send(peer.begin(1), DataFrame(1, message, flags=["END_STREAM"]))
        assert peer.status_of(1) == grpc.StatusCode.INVALID_ARGUMENT
        peer.send(peer.begin(3), DataFrame(3, framed(b"a") * 2, flags=["END_STREAM"]))
        assert peer.status_of(3) == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.usefixtures("others")
def test_an_end_that_comes_twice_begins_a_call_once(small: Served) -> None:
    begun = small.slow.begun
    with RawPeer(small.address) as peer:
        peer.call(1, path=SLOW)
        until(lambda: small.slow.begun == begun + 1, "it began")
        trailers = peer.encoder.encode([("x", "y")])
        peer.send(HeadersFrame(1, trailers, flags=["END_HEADERS", "END_STREAM"]))
        peer.call(3)
        assert peer.status_of(3) == grpc.StatusCode.OK
    assert small.slow.begun == begun + 1


# What takes too long.


IMPATIENT = GrpcSettings(
    header_timeout_s=0.4 * SCALE, idle_timeout_s=0.4 * SCALE, send_timeout_s=0.3 * SCALE
)


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    limits = RequestLimits(body_timeout_s=0.3 * SCALE, min_body_bytes_per_s=MB)
    with served(tmp_path_factory.mktemp("impatient"), IMPATIENT, limits) as one:
        yield one
        one.until_empty()


def test_a_peer_that_says_nothing_is_cut(impatient: Served) -> None:
    with RawPeer(impatient.address, greets=False) as peer:
        assert peer.until_gone() == 0


def test_headers_that_come_too_slowly_end_the_connection(impatient: Served) -> None:
    with RawPeer(impatient.address) as peer:
        peer.send(HeadersFrame(1, b""))
        assert peer.until_gone() == CALM


def test_an_idle_connection_is_told_to_go(impatient: Served) -> None:
    with RawPeer(impatient.address) as peer:
        peer.call(1)
        peer.until_answered(1)
        assert peer.until_gone() == 0


def test_a_message_that_comes_too_slowly_is_asked_for_again(impatient: Served) -> None:
    with RawPeer(impatient.address) as peer:
        peer.send(peer.begin(1), DataFrame(1, b"\0\0\0\0\x09half"))
        assert peer.status_of(1) == grpc.StatusCode.UNAVAILABLE
    assert impatient.rejected["unavailable"] >= 1


def test_an_answer_that_is_not_wanted_is_given_up(impatient: Served) -> None:
    with RawPeer(impatient.address, greets=False) as peer:
        peer.send_bytes(PREFACE)
        peer.send(SettingsFrame(0, settings={4: 10}))  # ten bytes of an answer, and no more
        peer.call(1, b"a longer answer than that")
        reset = peer.until_frame(RstStreamFrame, 1)
        assert reset.error_code == ErrorCodes.CANCEL


def test_a_peer_that_reads_nothing_is_cut(impatient: Served) -> None:
    with RawPeer(impatient.address, greets=False) as peer:
        peer.send_bytes(PREFACE)
        peer.send(SettingsFrame(0, settings={4: 2**30}), peer.window(0, 2**30))
        message, stream_id = framed(bytes(MB)), 1
        try:
            while True:
                peer.send(peer.begin(stream_id))
                for start in range(0, len(message), 16_000):
                    ends = ["END_STREAM"] if start + 16_000 >= len(message) else []
                    peer.send(DataFrame(stream_id, message[start : start + 16_000], flags=ends))
                stream_id += 2
                assert stream_id < 2000, "the server reads on though nobody reads its answers"
        except ConnectionError:
            pass
    impatient.until_empty()


def test_connections_beyond_the_bound_are_told_to_go(tmp_path: Path) -> None:
    with (
        served(tmp_path, GrpcSettings(max_connections=1)) as server,
        RawPeer(server.address) as first,
        # Bytes that the server does not read would make a reset of its last words.
        RawPeer(server.address, greets=False) as second,
    ):
        goaway: GoAwayFrame = second.until_frame(GoAwayFrame)
        assert b"connections" in goaway.additional_data
        first.call(1)
        assert first.status_of(1) == grpc.StatusCode.OK


# Without a socket: what one turn may hold, and whatever bytes come.


class _Transport(asyncio.Transport):
    """Remembers what was written, and whether it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.reads = True
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.written += bytes(data)

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close


class _OpenGate:
    """Lets everybody in, and counts what is held."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self.inside = 0

    def enter(self, path: bytes, headers: object) -> _OpenGate:
        self.inside += 1
        return self

    def received(self, size_bytes: int) -> None:
        self.held_bytes += size_bytes

    hold = received

    def give_back(self, size_bytes: int) -> None:
        self.held_bytes -= size_bytes

    def leave(self) -> None:
        self.inside -= 1

    def failure(self, error: BaseException) -> CallFailed:
        return CallFailed(StatusCode.UNAVAILABLE, str(error))


def connected(settings: GrpcSettings | None = None) -> tuple[Http2, _Transport, _OpenGate]:
    gate = _OpenGate()
    limits = MessageLimits(32 * MB, 32 * MB, 10.0, 1)
    settings = settings or GrpcSettings()
    connections = ServerConnections({ECHO: Echo()}, gate, settings, limits, Seam())
    transport = _Transport()
    http2 = connections.connection()
    http2.connection_made(transport)
    return http2, transport, gate


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(coroutine)


def greeting() -> bytes:
    return PREFACE + SettingsFrame(0).serialize()


def test_a_turn_ends_after_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine it would end by its time.
    monkeypatch.setattr("holdfast.grpc.http2.TURN_S", PATIENCE_S)

    async def feed() -> None:
        http2, transport, gate = connected()
        encoder = Encoder()
        call = HeadersFrame(1, encoder.encode(headers_of()), flags=["END_HEADERS"]).serialize()
        http2.data_received(greeting() + call + b"\x10\0\0\0\0\0\0\0\1" + b"\0\0\x10\0\0")
        for _ in range(2):
            before = gate.held_bytes
            http2.data_received(bytes(MB // 2 - 5))
            assert gate.held_bytes - before == TURN_BYTES
            assert not transport.reads
            await until_async(lambda: transport.reads)
            assert gate.held_bytes - before == MB // 2 - 5

    run(feed())


def test_a_turn_ends_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # However fast the machine, one frame takes longer than that.
    monkeypatch.setattr("holdfast.grpc.http2.TURN_S", 1e-9)

    async def feed() -> None:
        settings = GrpcSettings(control_frames_burst=10**6)
        http2, transport, _ = connected(settings)
        http2.data_received(greeting() + PingFrame(0, b"12345678").serialize() * 100)
        assert not transport.reads
        assert transport.written.count(b"12345678") == 0
        await until_async(lambda: transport.reads)
        assert transport.written.count(b"12345678") == 100

    run(feed())


def test_bytes_one_by_one_mean_the_same() -> None:
    async def feed() -> None:
        http2, transport, gate = connected()
        encoder = Encoder()
        data = greeting()
        for stream_id in (1, 3):
            block = encoder.encode(headers_of())
            data += HeadersFrame(stream_id, block, flags=["END_HEADERS"]).serialize()
            flags = ["END_STREAM", "PADDED"]
            body = DataFrame(stream_id, framed(b"abc"), pad_length=3, flags=flags)
            data += body.serialize()
        for byte in data:
            http2.data_received(bytes([byte]))
        await until_async(lambda: transport.written.count(framed(b"abc")) == 2)
        assert not gate.inside

    run(feed())


@given(st.data())
def test_no_bytes_make_it_fail(data: st.DataObject) -> None:
    """Valid frames, cut, repeated and changed at random: answered, or ended; never an exception."""
    encoder = Encoder()
    frames = [
        SettingsFrame(0, settings={4: 100_000}).serialize(),
        HeadersFrame(1, encoder.encode(headers_of()), flags=["END_HEADERS"]).serialize(),
        DataFrame(1, framed(b"abc"), flags=["END_STREAM"]).serialize(),
        HeadersFrame(3, encoder.encode(headers_of()), flags=["END_HEADERS"]).serialize(),
        DataFrame(3, framed(b"abc"), pad_length=3, flags=["PADDED"]).serialize(),
        RstStreamFrame(3, error_code=8).serialize(),
        PingFrame(0, b"12345678").serialize(),
        WindowUpdateFrame(1, window_increment=10).serialize(),
        HeadersFrame(5, encoder.encode(headers_of())[:5]).serialize(),
        ContinuationFrame(5, b"rest", flags=["END_HEADERS"]).serialize(),
        GoAwayFrame(0, last_stream_id=0, error_code=0).serialize(),
        PriorityFrame(7, depends_on=7).serialize(),
    ]
    chosen = data.draw(st.lists(st.sampled_from(frames), min_size=1, max_size=12))
    stream = bytearray(b"".join(chosen))
    for _ in range(data.draw(st.integers(0, 6))):
        at = data.draw(st.integers(0, len(stream) - 1))
        stream[at] = data.draw(st.integers(0, 255))

    async def feed() -> None:
        http2, _, gate = connected()
        http2.data_received(greeting() + bytes(stream))
        for _ in range(10):
            await asyncio.sleep(0)
        http2.data_received(PingFrame(0, b"still on").serialize())
        await asyncio.sleep(0)
        http2.connection_lost(None)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not gate.inside

    run(feed())
