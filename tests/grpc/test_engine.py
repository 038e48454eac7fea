"""The short way of ordinary calls: headers mean what they would mean to `h2`, both ways."""

from __future__ import annotations

import asyncio
from typing import Any

from hpack import Decoder, Encoder
from hyperframe.frame import DataFrame, Frame, HeadersFrame, SettingsFrame
from hypothesis import given
from hypothesis import strategies as st
from tests.grpc.harness import headers_of
from tests.grpc.test_abuse import _Transport

from holdfast.grpc.engine import KNOWN_BLOCKS_MAX, FixedHeaders, HeaderList
from holdfast.grpc.http2 import PREFACE, Http2
from holdfast.grpc.settings import GrpcSettings
from holdfast.seam.clock import RealClock

HEADER_TABLE_SIZE = 1
INITIAL_WINDOW_SIZE = 4
RESPONSES: tuple[FixedHeaders, ...] = (
    ((b":status", b"200"), (b"content-type", b"application/grpc")),
    ((b":status", b"200"), (b"x-rare", b"r" * 40)),
)
TRAILERS: FixedHeaders = ((b"grpc-status", b"0"),)


class _Answering:
    """Keeps the headers of calls, and answers each as soon as it ended."""

    http2: Http2

    def __init__(self) -> None:
        self.headers: list[list[tuple[bytes, bytes]]] = []
        self.response = RESPONSES[0]
        self.body = b""

    def headers_came(self, stream_id: int, headers: HeaderList, *, ended: bool) -> None:
        self.headers.append([(name, value) for name, value in headers])

    def data_came(self, stream_id: int, data: bytes) -> bool:
        return True

    def stream_ended(self, stream_id: int) -> None:
        self.http2.answer(stream_id, self.response, self.body, TRAILERS)

    def opened(self) -> None: ...
    def stream_reset(self, stream_id: int, code: int) -> None: ...
    def peer_leaves(self, last_stream_id: int, code: int) -> None: ...
    def pinged_back(self) -> None: ...
    def all_sent(self, stream_id: int) -> None: ...
    def lost(self, error: Exception | None) -> None: ...


class _Peer:
    """A client, with tables of its own."""

    def __init__(self) -> None:
        self.side = _Answering()
        self.transport = _Transport()
        settings = GrpcSettings(control_frames_burst=10**6)
        self.side.http2 = Http2(self.side, settings, RealClock(), is_client=False)
        self.side.http2.connection_made(self.transport)
        self.encoder, self.decoder = Encoder(), Decoder()
        self.stream_id = -1
        self.feed(PREFACE + SettingsFrame(0).serialize())

    def feed(self, data: bytes) -> None:
        self.side.http2.data_received(data)

    def settings(self, code: int, value: int) -> None:
        if code == HEADER_TABLE_SIZE:
            self.decoder.max_allowed_table_size = value
        self.feed(SettingsFrame(0, settings={code: value}).serialize())

    def call(self, headers: list[tuple[str, str]]) -> None:
        self.stream_id += 2
        block = self.encoder.encode(headers)
        head = HeadersFrame(self.stream_id, block, flags=["END_HEADERS"])
        end = DataFrame(self.stream_id, b"", flags=["END_STREAM"])
        self.feed(head.serialize() + end.serialize())

    async def answer(self) -> tuple[list[list[tuple[bytes, bytes]]], bytes]:
        """Return the header lists and the data that came since it was last asked."""
        await asyncio.sleep(0)
        written, self.transport.written = self.transport.written, b""
        lists: list[list[tuple[bytes, bytes]]] = []
        data = b""
        while written:
            frame, length = Frame.parse_frame_header(memoryview(written[:9]))
            frame.parse_body(memoryview(written[9 : 9 + length]))
            written = written[9 + length :]
            if isinstance(frame, HeadersFrame):
                found: Any = self.decoder.decode(frame.data, raw=True)
                lists.append([(name, value) for name, value in found])
            elif isinstance(frame, DataFrame):
                data += frame.data
        return lists, data


VALUES = ["a", "b", "c" * 60]
EVENTS = st.one_of(
    st.tuples(st.just("call"), st.lists(st.sampled_from(VALUES), max_size=2)),
    st.tuples(st.just("repeat"), st.integers(1, 4)),
    st.tuples(st.just("our table"), st.sampled_from([0, 60, 200, 4096])),
    st.tuples(st.just("their table"), st.sampled_from([0, 60, 200, 4096])),
    st.tuples(st.just("response"), st.sampled_from(RESPONSES)),
)


@given(st.lists(EVENTS, max_size=30))
def test_headers_arrive_as_they_were_sent(events: list[tuple[str, Any]]) -> None:
    """Whatever the tables went through: by known blocks and unknown ones, in both directions."""

    async def run() -> None:
        peer = _Peer()
        await peer.answer()
        headers = headers_of()
        for kind, what in events:
            # Each change of a table is followed by a call: `hpack` mixes up several at once.
            if kind == "our table":
                peer.encoder.header_table_size = what
            elif kind == "their table":
                peer.settings(HEADER_TABLE_SIZE, what)
            elif kind == "response":
                peer.side.response = what
            elif kind == "call":
                headers = [*headers_of(), *((f"x-{n}", v) for n, v in enumerate(what))]
            for _ in range(what if kind == "repeat" else 1):
                peer.call(headers)
                expected = [(name.encode(), value.encode()) for name, value in headers]
                assert peer.side.headers[-1] == expected
                lists, _ = await peer.answer()
                assert lists == [list(peer.side.response), list(TRAILERS)]
        assert peer.side.http2.is_open

    asyncio.run(run())


def test_an_answer_waits_for_its_window() -> None:
    async def run() -> None:
        peer = _Peer()
        for _ in range(3):
            peer.call(headers_of())
        await peer.answer()
        peer.settings(INITIAL_WINDOW_SIZE, 3)
        peer.side.body = b"abcdef"
        peer.call(headers_of())
        assert (await peer.answer())[1] == b"abc"
        peer.feed(b"\0\0\4\x08\0" + peer.stream_id.to_bytes(4, "big") + b"\0\0\0\x09")
        lists, data = await peer.answer()
        assert (data, lists) == (b"def", [list(TRAILERS)])
        assert not peer.side.http2.is_sending

    asyncio.run(run())


def test_few_blocks_are_remembered() -> None:
    async def run() -> None:
        peer = _Peer()
        peer.encoder.header_table_size = 0  # every block is of literals, and could be remembered
        for number in range(5 * KNOWN_BLOCKS_MAX):
            peer.call([*headers_of(), ("x", str(number))])
            await peer.answer()
        assert len(peer.side.http2._h2._requests._known) <= KNOWN_BLOCKS_MAX
        assert len(peer.side.headers) == 5 * KNOWN_BLOCKS_MAX

    asyncio.run(run())
