"""What is sent on the streams of one connection, as fast as the peer takes it.

A stream has one piece on its way at a time, which waits here while the peer's windows have no room
or its socket is full. A unary call has one piece altogether; a stream of messages gives the next
one when it hears that the last is gone, so that neither keeps more than a message in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import h2.exceptions

from holdfast.grpc.engine import H2Engine, HeaderList

TURN_BYTES = 256 * 1024


class _OutgoingPiece:
    """What is left to send of a piece."""

    __slots__ = ("data", "ends", "since_s", "trailers")

    def __init__(
        self, data: bytes, trailers: HeaderList | None, since_s: float, *, ends: bool
    ) -> None:
        self.data = memoryview(data)
        # None: the end of the data is the end of the stream, if this piece `ends` it.
        self.trailers = trailers
        self.ends = ends
        # When the peer last took something of it.
        self.since_s = since_s


class Outgoing:
    """The pieces of one connection, by stream."""

    def __init__(
        self,
        engine: H2Engine,
        flush_soon: Callable[[], None],
        on_sent: Callable[[int], None],
        on_trailers: Callable[[int], None],
    ) -> None:
        """`on_sent` hears of pieces that did not end their stream, `on_trailers` of those that did
        with trailers."""
        self._engine = engine
        self._flush_soon = flush_soon
        self._on_sent = on_sent
        self._on_trailers = on_trailers
        self._loop = asyncio.get_running_loop()
        self._pieces: dict[int, _OutgoingPiece] = {}
        # The peer reads nothing.
        self.is_paused = False

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._pieces

    def put(
        self, stream_id: int, data: bytes, trailers: HeaderList | None, *, ends: bool = True
    ) -> None:
        """Send a piece of a stream that has none on its way."""
        self._pieces[stream_id] = _OutgoingPiece(data, trailers, self._loop.time(), ends=ends)
        try:
            self._send_some(stream_id)
        except h2.exceptions.ProtocolError:
            # The stream is over. Left here, the piece would end the whole connection when the next
            # window opens.
            self.drop(stream_id)
            raise
        self._flush_soon()

    def drop(self, stream_id: int) -> None:
        """Forget what was not sent."""
        self._pieces.pop(stream_id, None)

    def clear(self) -> None:
        """Forget everything."""
        self._pieces.clear()

    def untaken_since(self, oldest_s: float) -> list[int]:
        """Return the streams of which the peer has taken nothing since then."""
        return [one for one, piece in self._pieces.items() if piece.since_s <= oldest_s]

    def send_all(self) -> None:
        """Send what there is room for now."""
        for stream_id in list(self._pieces):
            self._send_some(stream_id)
        self._flush_soon()

    def _send_some(self, stream_id: int) -> None:
        """Send what the windows have room for, a turn's worth at most."""
        piece, engine = self._pieces[stream_id], self._engine
        room_bytes = min(engine.local_flow_control_window(stream_id), TURN_BYTES)
        frame_bytes = engine.max_outbound_frame_size
        if not piece.data and piece.trailers is None and piece.ends:
            engine.send_data(stream_id, b"", end_stream=True)
        while piece.data and room_bytes > 0 and not self.is_paused:
            part = piece.data[: min(frame_bytes, room_bytes)]
            piece.data = piece.data[len(part) :]
            room_bytes -= len(part)
            piece.since_s = self._loop.time()
            is_last = not piece.data and piece.trailers is None and piece.ends
            engine.send_data(stream_id, bytes(part), end_stream=is_last)
        if not piece.data:
            del self._pieces[stream_id]
            if not piece.ends:
                self._on_sent(stream_id)
            elif piece.trailers is not None:
                engine.send_headers(stream_id, piece.trailers, end_stream=True)
                self._on_trailers(stream_id)
        elif room_bytes <= 0 and engine.local_flow_control_window(stream_id) > 0:
            self._loop.call_soon(self._send_more, stream_id)

    def _send_more(self, stream_id: int) -> None:
        if stream_id in self._pieces:
            self._send_some(stream_id)
            self._flush_soon()
