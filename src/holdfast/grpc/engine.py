"""`h2` for one connection, and a short way past it for what ordinary calls do again and again.

Thousands of calls on one connection differ in nothing but their messages: their headers are the
same bytes, so are their answers, and each opens the windows a little. Frame by frame through `h2`,
that is most of what a small call costs. So three things are done here, with the state that `h2`
has: it knows of every stream, and whatever is not ordinary goes through it.

- **Header blocks are remembered.** What a block means depends on its bytes and on the table that
  HPACK keeps for the connection. While that table stays as it is, the same bytes mean the same
  headers, which `h2` checked when they came first. Alike for what we write.
- **A whole answer** that the windows have room for is three frames, written at once.
- **Windows** are opened by a sum.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

import h2.config
import h2.connection
import h2.settings
from h2.connection import AllowedStreamIDs
from h2.stream import StreamClosedBy, StreamInputs

from holdfast.grpc.settings import GrpcSettings

HeaderList = Sequence[tuple[bytes, bytes]]
# Headers that are sent again and again, and remembered.
FixedHeaders = tuple[tuple[bytes, bytes], ...]

# Closed streams whose late frames `h2` recognises; it would remember 65,536 on each connection.
_CLOSED_STREAMS_MAX = 256
# Header blocks that are remembered in each direction, and how long one may be.
KNOWN_BLOCKS_MAX = 8
KNOWN_BLOCK_BYTES_MAX = 512
_WINDOW_BYTES_MAX = 2**31 - 1
# How a block begins that changes the size of the table.
_RESIZES, _RESIZES_MASK = 0x20, 0xE0
# Frames: HEADERS that end the block, and the stream; DATA.
_HEADERS_FRAME, _TRAILERS_FRAME, _DATA_FRAME = b"\x01\x04", b"\x01\x05", b"\0\0"

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class KnownBlocks(Generic[_Key, _Value]):
    """What was found about header blocks, until the table of HPACK changes.

    A new entry is always the first of its table, and what leaves a table makes it shorter. So the
    first entry and their number say whether it is what it was.
    """

    def __init__(self, table: deque[tuple[bytes, bytes]]) -> None:
        self._table = table
        self._first: object = None
        self._count = 0
        self._known: dict[_Key, _Value] = {}

    def get(self, key: _Key) -> _Value | None:
        """Return what is known."""
        return self._known.get(key) if self.is_same_table() else None

    def add(self, key: _Key, value: _Value) -> None:
        """Remember something, if finding it did not change the table since it was asked for."""
        if self.is_same_table():
            if len(self._known) >= KNOWN_BLOCKS_MAX:
                self._known.clear()
            self._known[key] = value

    def is_same_table(self) -> bool:
        """Forget everything if the table has changed, and return whether it has not."""
        table = self._table
        first = table[0] if table else None
        if first is self._first and len(table) == self._count:
            return True
        self._first, self._count = first, len(table)
        self._known.clear()
        return False


class H2Engine(h2.connection.H2Connection):
    """The protocol of one connection."""

    MAX_CLOSED_STREAMS = _CLOSED_STREAMS_MAX

    def __init__(self, settings: GrpcSettings, *, is_client: bool) -> None:
        # What a peer sends is checked; what we send is ours, and checking it would cost a third.
        super().__init__(
            h2.config.H2Configuration(
                client_side=is_client,
                header_encoding=None,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        codes = h2.settings.SettingCodes
        self.local_settings = h2.settings.Settings(
            client=is_client,
            initial_values={
                codes.ENABLE_PUSH: 0,
                codes.MAX_CONCURRENT_STREAMS: settings.max_streams,
                codes.INITIAL_WINDOW_SIZE: settings.window_bytes,
                codes.MAX_FRAME_SIZE: settings.max_frame_bytes,
                codes.MAX_HEADER_LIST_SIZE: settings.max_header_bytes,
            },
        )
        self.decoder.max_header_list_size = settings.max_header_bytes
        self.max_inbound_frame_size = settings.max_frame_bytes
        self._max_streams = settings.max_streams
        self._requests = KnownBlocks[bytes, HeaderList](self.decoder.header_table.dynamic_entries)
        self._answers = KnownBlocks[FixedHeaders, bytes](self.encoder.header_table.dynamic_entries)

    # -------------------------------------------------------------- what comes

    def open_known(self, stream_id: int, block: bytes) -> HeaderList | None:
        """Open a stream whose headers came before, and return them; else None, nothing done."""
        headers = self._requests.get(block)
        if (
            headers is None
            or len(self.streams) >= self._max_streams
            or stream_id <= self.highest_inbound_stream_id
            or not stream_id & 1
        ):
            return None
        stream = self._begin_new_stream(stream_id, AllowedStreamIDs.ODD)
        stream.state_machine.process_input(StreamInputs.RECV_HEADERS)
        return headers

    def remember(self, block: bytes, headers: HeaderList) -> None:
        """Know the headers of a stream that `h2` has opened since `open_known` did not."""
        if len(block) <= KNOWN_BLOCK_BYTES_MAX and block[0] & _RESIZES_MASK != _RESIZES:
            self._requests.add(block, headers)

    def open_window(self, stream_id: int, more_bytes: int) -> bool:
        """Open what may be sent; False if that is not as it should be, nothing done."""
        if more_bytes <= 0:
            return False
        if stream_id == 0:
            if self.outbound_flow_control_window + more_bytes > _WINDOW_BYTES_MAX:
                return False
            self.outbound_flow_control_window += more_bytes
            return True
        stream = self.streams.get(stream_id)
        if stream is None or stream.outbound_flow_control_window + more_bytes > _WINDOW_BYTES_MAX:
            return False
        stream.outbound_flow_control_window += more_bytes
        return True

    # ----------------------------------------------------------- what is sent

    def answer(
        self, stream_id: int, headers: FixedHeaders, body: bytes, trailers: FixedHeaders
    ) -> bool:
        """Send all of an answer on a stream that the peer has ended; False if there is no room."""
        stream = self.streams[stream_id]
        size_bytes = len(body)
        room_bytes = min(self.outbound_flow_control_window, stream.outbound_flow_control_window)
        if size_bytes > min(room_bytes, self.max_outbound_frame_size):
            return False
        head = self._block(headers)
        self.outbound_flow_control_window -= size_bytes
        number = stream_id.to_bytes(4, "big")
        self._data_to_send += (
            _frame(_HEADERS_FRAME, number, head)
            + _frame(_DATA_FRAME, number, body)
            + _frame(_TRAILERS_FRAME, number, self._block(trailers))
        )
        del self.streams[stream_id]
        # What comes late on it is answered as what comes on one that was reset.
        self._closed_streams[stream_id] = StreamClosedBy.RECV_RST_STREAM
        return True

    def _block(self, headers: FixedHeaders) -> bytes:
        """Return headers as HPACK writes them."""
        if self.encoder.table_size_changes:
            # The block begins with what the peer has to know of its table, this time only.
            return self.encoder.encode(headers)
        block = self._answers.get(headers)
        if block is None:
            block = self.encoder.encode(headers)
            self._answers.add(headers, block)
        return block


def _frame(kind_and_flags: bytes, number: bytes, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + kind_and_flags + number + payload


def goaway(last_stream_id: int, code: int, debug: bytes) -> bytes:
    """Return the frame that tells a peer to open no more streams."""
    number, reason = last_stream_id.to_bytes(4, "big"), code.to_bytes(4, "big")
    return _frame(b"\x07\0", bytes(4), number + reason + debug)
