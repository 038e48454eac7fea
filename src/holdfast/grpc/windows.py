"""What a peer may send: on a connection, and on each of its streams.

A window shrinks by what comes, and opens again for what was granted: bytes that admission counted
in, or that are gone. It is opened by halves, so that a small call costs no frame for it.
"""

from __future__ import annotations

# What HTTP/2 begins with, before settings are known.
FIRST_WINDOW_BYTES = 65535


class WindowExceeded(Exception):
    """More came than the window allows."""


class ReceiveWindows:
    """The windows of one connection; returns the frames that open them."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._left_bytes = FIRST_WINDOW_BYTES
        self._returned_bytes = 0
        # Streams on which the peer may still send.
        self._streams: dict[int, int] = {}
        self._stream_returned: dict[int, int] = {}

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._streams

    def begin(self) -> bytes:
        """Open the connection's window to its size."""
        more_bytes = self._size_bytes - FIRST_WINDOW_BYTES
        self._left_bytes += more_bytes
        return window_update(0, more_bytes) if more_bytes > 0 else b""

    def open(self, stream_id: int) -> None:
        """Begin to count a stream."""
        self._streams[stream_id] = self._size_bytes

    def close(self, stream_id: int) -> bool:
        """Stop counting a stream; False if it was not counted."""
        self._stream_returned.pop(stream_id, None)
        return self._streams.pop(stream_id, None) is not None

    def consume(self, stream_id: int, size_bytes: int) -> None:
        """Count what comes, or raise `WindowExceeded`."""
        self._left_bytes -= size_bytes
        left_bytes = self._streams.get(stream_id)
        if left_bytes is not None:
            self._streams[stream_id] = left_bytes = left_bytes - size_bytes
        if self._left_bytes < 0 or (left_bytes is not None and left_bytes < 0):
            raise WindowExceeded

    def grant(self, stream_id: int, size_bytes: int) -> bytes:
        """Let the peer send as much again, on the stream and on the connection."""
        return self.give_back(size_bytes) + self.grant_stream(stream_id, size_bytes)

    def grant_stream(self, stream_id: int, size_bytes: int) -> bytes:
        """Let the peer send as much again on a stream, if it still sends there."""
        opened = b""
        if stream_id not in self._streams:
            return opened
        returned_bytes = self._stream_returned.get(stream_id, 0) + size_bytes
        if returned_bytes >= self._size_bytes // 2:
            self._streams[stream_id] += returned_bytes
            opened = window_update(stream_id, returned_bytes)
            returned_bytes = 0
        self._stream_returned[stream_id] = returned_bytes
        return opened

    def give_back(self, size_bytes: int) -> bytes:
        """Let the peer send as much again on the connection: what came is gone, or admitted."""
        self._returned_bytes += size_bytes
        if self._returned_bytes < self._size_bytes // 2:
            return b""
        opened = window_update(0, self._returned_bytes)
        self._left_bytes += self._returned_bytes
        self._returned_bytes = 0
        return opened


def window_update(stream_id: int, size_bytes: int) -> bytes:
    """Return the frame that opens a window."""
    return b"\0\0\4\x08\0%b%b" % (stream_id.to_bytes(4, "big"), size_bytes.to_bytes(4, "big"))
