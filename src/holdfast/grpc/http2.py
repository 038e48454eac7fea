"""One HTTP/2 connection of gRPC, either side of it: `h2`, but for what has to be bounded.

`h2` knows the protocol: header compression, settings, the states of streams (`engine.py`, with a
short way for ordinary calls). Three things are done here, on the bytes, before it sees them:

- **DATA never passes `h2`.** It is most of all bytes, and its frames are the dearest part of a
  server in pure Python. A payload goes from the socket's buffer to its call, also while its frame
  is incomplete, so that every byte is admitted or forgotten when it comes. The windows of what the
  peer may send are therefore ours, and open only for bytes that were `granted`. `h2` learns of the
  end of a stream by a frame that we make (`end_stream`).
- **GOAWAY never passes it either.** It takes one for the end of the connection; for gRPC the
  streams that are open go on. Ours is written by hand for the same reason.
- **Frames that bring no data are counted** (`TokenBucket`): resets, PING, SETTINGS, empty frames.
  Each is cheap to send and costs us a hundred times as much.

A turn is at most `TURN_BYTES` or `TURN_S`; then other connections have theirs. While a peer does
not read what we write, nothing of it is read.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Protocol

import h2.errors
import h2.events
import h2.exceptions

from holdfast.grpc.engine import FixedHeaders, H2Engine, HeaderList, goaway
from holdfast.grpc.outgoing import TURN_BYTES, Outgoing
from holdfast.grpc.settings import GrpcSettings
from holdfast.grpc.windows import ReceiveWindows, WindowExceeded
from holdfast.seam.clock import Clock
from holdfast.seam.rate import TokenBucket

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
TURN_S = 0.010
# Frames without data that one call pays for: its windows, and the pings of a client that measures.
CONTROL_FRAMES_PER_CALL = 8
# What HTTP/2 begins with, before settings are known.
_FIRST_FRAME_BYTES = 16384
_HEAD_BYTES = 9
_LAST_STREAM_ID = 2**31 - 1
_WINDOW_UPDATE_BYTES = 4

_DATA, _HEADERS, _PRIORITY, _RST_STREAM, _SETTINGS, _PUSH_PROMISE = range(6)
_PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = range(6, 10)
_END_STREAM, _END_HEADERS, _PADDED = 0x1, 0x4, 0x8
_GOAWAY_BYTES_MIN = 8

ErrorCodes = h2.errors.ErrorCodes


class Side(Protocol):
    """What a server or a client does with what comes."""

    def opened(self) -> None:
        """Begin: the connection is there."""

    def headers_came(self, stream_id: int, headers: HeaderList, *, ended: bool) -> None:
        """Take headers or trailers."""

    def data_came(self, stream_id: int, data: bytes) -> bool:
        """Take a piece of a body, and grant it later; False: nobody wants it."""

    def stream_ended(self, stream_id: int) -> None:
        """Know that the peer sends nothing more on a stream."""

    def stream_reset(self, stream_id: int, code: int) -> None:
        """Know that a stream is gone."""

    def all_sent(self, stream_id: int) -> None:
        """Know that a piece is gone, and the next one may be sent."""

    def peer_leaves(self, last_stream_id: int, code: int) -> None:
        """Know that the peer takes no stream above this one."""

    def pinged_back(self) -> None:
        """Know that the peer has read all that was written before the ping."""

    def lost(self, error: Exception | None) -> None:
        """Know that the connection is gone."""


class _Violation(Exception):
    """The peer breaks the protocol, or a bound; the connection ends."""

    def __init__(self, code: ErrorCodes, message: str) -> None:
        super().__init__(message)
        self.code = code


class Http2(asyncio.Protocol):
    """One connection."""

    def __init__(
        self, side: Side, settings: GrpcSettings, clock: Clock, *, is_client: bool
    ) -> None:
        self._side = side
        self._settings = settings
        self._is_client = is_client
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._h2 = H2Engine(settings, is_client=is_client)
        self._control = TokenBucket(
            settings.max_control_frames_per_s, settings.control_frames_burst, clock
        )
        self._resets = TokenBucket(settings.max_resets_per_s, settings.resets_burst, clock)
        # What came and was not looked at yet: less than a turn and a frame without data.
        self._buffer = b""
        self._preface = b"" if is_client else PREFACE
        # A turn is coming; or the peer reads nothing.
        self._is_waiting = False
        self._flushes = False
        self._ends = False
        # The DATA frame whose payload comes now.
        self._data_stream_id = 0
        self._data_left_bytes = 0
        self._padding_left_bytes = 0
        self._data_ends_stream = False
        # The stream whose header block is incomplete, and how large it is so far.
        self._block_stream_id = 0
        self._block_bytes = 0
        # When a header block began; and when the peer stopped to read.
        self.block_since_s: float | None = None
        self.unread_since_s: float | None = None
        self._windows = ReceiveWindows(settings.window_bytes)
        # Streams that `h2` has open.
        self._open: set[int] = set()
        # Bytes of streams that nobody wanted, since the last that somebody did.
        self._unwanted_bytes = 0
        self._outgoing = Outgoing(self._h2, self._flush_soon, side.all_sent, self.end_stream)

    # ------------------------------------------------------------ the transport

    @property
    def is_open(self) -> bool:
        """Whether anything can be sent."""
        return self._transport is not None and not self._ends and not self._transport.is_closing()

    @property
    def max_streams(self) -> int:
        """How many streams the peer lets us open."""
        return self._h2.remote_settings.max_concurrent_streams

    @property
    def _highest_stream_id(self) -> int:
        engine = self._h2
        return (
            engine.highest_outbound_stream_id
            if self._is_client
            else engine.highest_inbound_stream_id
        )

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._h2.initiate_connection()
        self._write(self._h2.data_to_send() + self._windows.begin())
        self._side.opened()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ends = True
        self._buffer = b""
        self._outgoing.clear()
        self._side.lost(exc)

    def pause_writing(self) -> None:
        self.unread_since_s = self._loop.time()
        self._outgoing.is_paused = True
        self._hold_reading()

    def resume_writing(self) -> None:
        self.unread_since_s = None
        self._outgoing.is_paused = False
        self._outgoing.send_all()
        self._soon()

    def data_received(self, data: bytes) -> None:
        if self._ends:
            return
        self._buffer = self._buffer + data if self._buffer else data
        if not self._is_waiting:
            self._turn()

    # ------------------------------------------------------------------- a turn

    def _turn(self) -> None:
        """Go through what came, for as long as one connection may."""
        self._is_waiting = False
        if self._ends or self.unread_since_s is not None:
            return
        buffer, at = self._buffer, 0
        size_bytes = len(buffer)
        ends_s = perf_counter() + TURN_S
        is_over = False
        try:
            while at < size_bytes and self.is_open and not is_over:
                step = self._step(buffer, at)
                if step == 0:
                    break
                at += step
                is_over = at >= TURN_BYTES or perf_counter() >= ends_s
        except _Violation as violation:
            self.end(violation.code, str(violation))
            return
        self._buffer = buffer[at:]
        self._flush()
        if is_over and self._buffer and self.is_open:
            self._soon()
        elif self.is_open:
            self._go_on_reading()

    def _soon(self) -> None:
        """Have the next turn when the others had theirs."""
        if not self._is_waiting:
            self._hold_reading()
            self._is_waiting = True
            self._loop.call_soon(self._turn)

    def _hold_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _go_on_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _step(self, buffer: bytes, at: int) -> int:
        """Take the next frame, or what came of it; return the bytes taken, 0 if more must come."""
        if self._data_left_bytes or self._padding_left_bytes:
            return self._take_data(buffer, at)
        if self._preface:
            return self._take_preface(buffer, at)
        if len(buffer) - at < _HEAD_BYTES:
            return 0
        length = int.from_bytes(buffer[at : at + 3], "big")
        kind, flags = buffer[at + 3], buffer[at + 4]
        stream_id = int.from_bytes(buffer[at + 5 : at + 9], "big") & _LAST_STREAM_ID
        if self._block_stream_id and (kind != _CONTINUATION or stream_id != self._block_stream_id):
            raise _Violation(ErrorCodes.PROTOCOL_ERROR, "a header block was not continued")
        if kind == _DATA:
            return self._begin_data(buffer, at, length, flags, stream_id)
        if length > self._settings.max_header_bytes:
            raise _Violation(ErrorCodes.FRAME_SIZE_ERROR, "a frame without data is too large")
        if len(buffer) - at < _HEAD_BYTES + length:
            return 0
        frame = buffer[at : at + _HEAD_BYTES + length]
        self._take_frame(frame, kind, flags, stream_id)
        return len(frame)

    def _take_preface(self, buffer: bytes, at: int) -> int:
        came = buffer[at : at + len(PREFACE)]
        if not self._preface.startswith(came):
            raise _Violation(ErrorCodes.PROTOCOL_ERROR, "this port speaks gRPC (HTTP/2)")
        if len(came) < len(PREFACE):
            return 0
        self._preface = b""
        self._h2.receive_data(PREFACE)
        return len(came)

    # --------------------------------------------------------------------- data

    def _begin_data(self, buffer: bytes, at: int, length: int, flags: int, stream_id: int) -> int:
        """Take the head of a DATA frame."""
        if length > max(self._settings.max_frame_bytes, _FIRST_FRAME_BYTES):
            raise _Violation(ErrorCodes.FRAME_SIZE_ERROR, "a frame is larger than we said")
        if stream_id == 0 or stream_id > self._highest_stream_id:
            raise _Violation(ErrorCodes.PROTOCOL_ERROR, "data came on a stream that is not open")
        if stream_id in self._open and stream_id not in self._windows:
            raise _Violation(ErrorCodes.STREAM_CLOSED, "data came behind the end of a stream")
        head_bytes = _HEAD_BYTES
        padding_bytes = 0
        if flags & _PADDED:
            if len(buffer) - at <= _HEAD_BYTES and length:
                return 0
            head_bytes += 1
            padding_bytes = buffer[at + _HEAD_BYTES] if length else 0
            if padding_bytes >= length:
                raise _Violation(ErrorCodes.PROTOCOL_ERROR, "a frame is all padding")
        data_bytes = length - padding_bytes - (head_bytes - _HEAD_BYTES)
        if data_bytes == 0 and not flags & _END_STREAM:
            self._charge_control()
        try:
            self._windows.consume(stream_id, length)
        except WindowExceeded:
            code = ErrorCodes.FLOW_CONTROL_ERROR
            raise _Violation(code, "more came than the window allows") from None
        if head_bytes > _HEAD_BYTES:
            # Padding is gone as soon as it came.
            self.granted(stream_id, length - data_bytes)
        self._data_stream_id = stream_id
        self._data_left_bytes = data_bytes
        self._padding_left_bytes = padding_bytes
        self._data_ends_stream = bool(flags & _END_STREAM)
        if not data_bytes and not padding_bytes:
            self._end_data()
        return head_bytes

    def _take_data(self, buffer: bytes, at: int) -> int:
        """Take what came of the payload of a DATA frame."""
        if self._data_left_bytes:
            data = buffer[at : min(at + self._data_left_bytes, TURN_BYTES)]
            self._data_left_bytes -= len(data)
            if not self._side.data_came(self._data_stream_id, data):
                self._forget_data(len(data))
            taken_bytes = len(data)
        else:
            taken_bytes = min(len(buffer) - at, self._padding_left_bytes)
            self._padding_left_bytes -= taken_bytes
        if not self._data_left_bytes and not self._padding_left_bytes:
            self._end_data()
        return taken_bytes

    def _end_data(self) -> None:
        if self._data_ends_stream and self._windows.close(self._data_stream_id):
            self._side.stream_ended(self._data_stream_id)

    def _forget_data(self, size_bytes: int) -> None:
        """Count data that nobody wants: it takes no memory, but time."""
        self._write(self._windows.give_back(size_bytes))
        self._unwanted_bytes += size_bytes
        if self._unwanted_bytes > self._settings.max_unread_bytes:
            raise _Violation(ErrorCodes.ENHANCE_YOUR_CALM, "too much came for calls that are over")

    def granted(self, stream_id: int, size_bytes: int) -> None:
        """Let the peer send as much again: these bytes were admitted, or are gone."""
        self._unwanted_bytes = 0
        self._write(self._windows.grant(stream_id, size_bytes))

    def admitted(self, size_bytes: int) -> None:
        """Let the peer send as much again on other streams; on its own when `granted_stream`."""
        self._unwanted_bytes = 0
        self._write(self._windows.give_back(size_bytes))

    def granted_stream(self, stream_id: int, size_bytes: int) -> None:
        """Let the peer send as much again on a stream."""
        self._write(self._windows.grant_stream(stream_id, size_bytes))

    # ------------------------------------------------------------- other frames

    def _take_frame(self, frame: bytes, kind: int, flags: int, stream_id: int) -> None:
        """Give a whole frame to `h2`, if it may come, and tell what it means."""
        if kind in (_HEADERS, _CONTINUATION):
            self._count_block(len(frame), flags, stream_id)
        if kind == _RST_STREAM and stream_id in self._open:
            self._charge_reset()
        elif kind != _HEADERS:
            self._charge_control()
        if kind == _GOAWAY:
            self._take_goaway(frame, stream_id)
            return
        if kind > _CONTINUATION or (
            kind in (_RST_STREAM, _WINDOW_UPDATE)
            and 0 < stream_id <= self._highest_stream_id
            and stream_id not in self._open
        ):
            # Unknown, or about a stream that is over: `h2` forgets those.
            self._check_ignored(frame, kind)
            return
        if kind == _HEADERS and flags == _END_HEADERS and not self._is_client:
            self._take_request(frame, stream_id)
        elif kind == _WINDOW_UPDATE and self._take_window(frame, stream_id):
            return
        else:
            self._give_to_h2(frame)

    def _take_request(self, frame: bytes, stream_id: int) -> None:
        """Take headers in one frame, which are mostly those of the last call."""
        block = frame[_HEAD_BYTES:]
        headers = self._h2.open_known(stream_id, block)
        if headers is not None:
            self._open.add(stream_id)
            self._windows.open(stream_id)
            self._side.headers_came(stream_id, headers, ended=False)
            return
        for event in self._give_to_h2(frame):
            if isinstance(event, h2.events.RequestReceived):
                self._h2.remember(block, event.headers)

    def _take_window(self, frame: bytes, stream_id: int) -> bool:
        """Open a window; False if `h2` has to say what is wrong with it."""
        if len(frame) != _HEAD_BYTES + _WINDOW_UPDATE_BYTES:
            return False
        more_bytes = int.from_bytes(frame[_HEAD_BYTES:], "big") & _LAST_STREAM_ID
        if not self._h2.open_window(stream_id, more_bytes):
            return False
        if self._outgoing:
            self._outgoing.send_all()
        return True

    def _give_to_h2(self, frame: bytes) -> list[h2.events.Event]:
        try:
            events = self._h2.receive_data(frame)
        except h2.exceptions.ProtocolError as error:
            # It has written its own GOAWAY.
            self._flush()
            raise _Violation(error.error_code, str(error)) from error
        for event in events:
            self._tell(event)
        return events

    def _count_block(self, size_bytes: int, flags: int, stream_id: int) -> None:
        """Bound a header block over all its frames."""
        self._block_bytes += size_bytes
        if self._block_bytes > self._settings.max_header_bytes:
            raise _Violation(ErrorCodes.ENHANCE_YOUR_CALM, "the headers are too large")
        if flags & _END_HEADERS:
            self._block_stream_id = self._block_bytes = 0
            self.block_since_s = None
        elif not self._block_stream_id:
            self._block_stream_id = stream_id
            self.block_since_s = self._loop.time()

    def _charge_control(self) -> None:
        if self._control.take(1) > 0:
            raise _Violation(ErrorCodes.ENHANCE_YOUR_CALM, "too many frames without data")

    def _charge_reset(self) -> None:
        if self._resets.take(1) > 0:
            raise _Violation(ErrorCodes.ENHANCE_YOUR_CALM, "too many calls are taken back")

    def _check_ignored(self, frame: bytes, kind: int) -> None:
        """Look at what nobody reads: it may be wrong all the same."""
        if kind <= _CONTINUATION and len(frame) != _HEAD_BYTES + _WINDOW_UPDATE_BYTES:
            raise _Violation(ErrorCodes.FRAME_SIZE_ERROR, "a frame has not the length of its kind")
        if kind == _WINDOW_UPDATE and not int.from_bytes(frame[_HEAD_BYTES:], "big"):
            raise _Violation(ErrorCodes.PROTOCOL_ERROR, "a window is opened by nothing")

    def _take_goaway(self, frame: bytes, stream_id: int) -> None:
        if stream_id:
            raise _Violation(ErrorCodes.PROTOCOL_ERROR, "a GOAWAY came on a stream")
        if len(frame) < _HEAD_BYTES + _GOAWAY_BYTES_MIN:
            raise _Violation(ErrorCodes.FRAME_SIZE_ERROR, "a GOAWAY is too short")
        last_stream_id = int.from_bytes(frame[9:13], "big") & _LAST_STREAM_ID
        self._side.peer_leaves(last_stream_id, int.from_bytes(frame[13:17], "big"))

    def _tell(self, event: h2.events.Event) -> None:
        if isinstance(
            event,
            h2.events.RequestReceived | h2.events.ResponseReceived | h2.events.TrailersReceived,
        ):
            ended = event.stream_ended is not None
            if isinstance(event, h2.events.RequestReceived):
                self._open.add(event.stream_id)
                if not ended:
                    self._windows.open(event.stream_id)
            if ended:
                self._windows.close(event.stream_id)
            self._side.headers_came(event.stream_id, event.headers, ended=ended)
        elif isinstance(event, h2.events.StreamReset):
            if not event.remote_reset:
                # It was made to reset one, by a frame that its state does not allow.
                self._charge_reset()
            self._drop(event.stream_id)
            self._side.stream_reset(event.stream_id, int(event.error_code))
        elif isinstance(event, h2.events.WindowUpdated | h2.events.RemoteSettingsChanged):
            self._outgoing.send_all()
        elif isinstance(event, h2.events.PingAckReceived):
            self._side.pinged_back()

    def _drop(self, stream_id: int) -> None:
        self._open.discard(stream_id)
        self._windows.close(stream_id)
        self._outgoing.drop(stream_id)

    # ------------------------------------------------------------------ sending

    def open_stream(self, headers: HeaderList) -> int:
        """Begin a stream of a client, and return its number."""
        stream_id = self._h2.get_next_available_stream_id()
        self._h2.send_headers(stream_id, headers)
        self._open.add(stream_id)
        self._windows.open(stream_id)
        self._flush_soon()
        return stream_id

    def send_body(self, stream_id: int, data: bytes, trailers: HeaderList | None = None) -> None:
        """Send all that is to be sent on a stream, as fast as the peer takes it."""
        if not self._ends:
            self._outgoing.put(stream_id, data, trailers)

    def send_headers(self, stream_id: int, headers: HeaderList) -> None:
        """Begin a response whose messages follow one by one."""
        if self._ends:
            return
        self._h2.send_headers(stream_id, headers)
        self._flush_soon()

    def send_piece(self, stream_id: int, data: bytes) -> None:
        """Send a part of a body; `Side.all_sent` tells when the next one can be sent."""
        if not self._ends:
            self._outgoing.put(stream_id, data, None, ends=False)

    def respond(
        self,
        stream_id: int,
        headers: HeaderList,
        body: bytes = b"",
        trailers: HeaderList | None = None,
    ) -> None:
        """Send a whole response; without trailers, headers are all of it. Then the stream ends."""
        if self._ends:
            return
        self._h2.send_headers(stream_id, headers, end_stream=trailers is None)
        if trailers is None:
            self.end_stream(stream_id)
            self._flush_soon()
        else:
            self.send_body(stream_id, body, trailers)

    def answer(
        self, stream_id: int, headers: FixedHeaders, body: bytes, trailers: FixedHeaders
    ) -> None:
        """Send a response that is like most others; at once, if there is room for it."""
        if self._ends:
            return
        if stream_id in self._windows or not self._h2.answer(stream_id, headers, body, trailers):
            self.respond(stream_id, headers, body, trailers)
            return
        self._open.discard(stream_id)
        self._control.charge(-CONTROL_FRAMES_PER_CALL)
        self._flush_soon()

    def expire(self, oldest_s: float) -> None:
        """Give up what a peer takes nothing of since then."""
        for stream_id in self._outgoing.untaken_since(oldest_s):
            self.reset(stream_id, ErrorCodes.CANCEL)
            self._side.stream_reset(stream_id, ErrorCodes.CANCEL)

    @property
    def is_sending(self) -> bool:
        """Whether the peer has not taken all bodies yet."""
        return bool(self._outgoing)

    def reset(self, stream_id: int, code: ErrorCodes) -> None:
        """End a stream at once; what the peer still sends on it is forgotten."""
        self._drop(stream_id)
        if self._ends:
            return
        self._h2.reset_stream(stream_id, code)
        self._control.charge(-CONTROL_FRAMES_PER_CALL)
        self._flush_soon()

    def end_stream(self, stream_id: int) -> None:
        """End a stream: one side has sent all, and that is the end of the call."""
        if stream_id in self._windows or stream_id in self._outgoing:
            # What is still to come on it is not wanted.
            self.reset(stream_id, ErrorCodes.NO_ERROR)
            return
        self._drop(stream_id)
        # `h2` did not see the peer's end of it.
        self._h2.receive_data(b"\0\0\4\3\0%b\0\0\0\0" % stream_id.to_bytes(4, "big"))
        self._control.charge(-CONTROL_FRAMES_PER_CALL)

    def ping(self) -> None:
        """Ask for a sign that all was read."""
        self._h2.ping(b"holdfast")
        self._flush_soon()

    def leave(self, last_stream_id: int = _LAST_STREAM_ID) -> None:
        """Tell the peer to open no more streams; those up to this one go on."""
        self._flush()
        self._write(goaway(last_stream_id, ErrorCodes.NO_ERROR, b""))

    def end(self, code: ErrorCodes = ErrorCodes.NO_ERROR, message: str = "") -> None:
        """Say why, and close."""
        if self._ends or self._transport is None:
            return
        self._flush()
        # Answers that are under way find nobody: `h2` may have closed the connection, and refuses.
        self._ends = True
        self._outgoing.clear()
        last = 0 if self._is_client else self._h2.highest_inbound_stream_id
        self._write(goaway(last, code, message.encode()[:256]))
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._ends = True
        if self._transport is not None:
            self._transport.abort()

    def _flush_soon(self) -> None:
        """Write once for everything that happens in this round of the loop."""
        if not self._flushes:
            self._flushes = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushes = False
        self._write(self._h2.data_to_send())

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
