"""Reading a WAL file piece by piece, into one buffer of bounded size.

What the disk cannot read is zeros there, which no checksum takes for a frame, and is noted.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.quiver.base.frame import (
    ALIGNMENT_BYTES,
    HEADER_BYTES,
    Frame,
    FrameFault,
    decode,
    find_next,
)
from holdfast.quiver.base.held_bundle import OpenFile
from holdfast.quiver.log.wal import HEADER_BYTES as FILE_HEADER_BYTES
from holdfast.quiver.log.wal import Hole, WalHeader

# What is read at once; a larger frame is read as a whole.
WINDOW_BYTES = 1 << 20


class FileWindow:
    """What is seen of a file at the moment, up to `end`."""

    def __init__(self, file: OpenFile, end: int) -> None:
        self.file = file
        self.end = end
        self.unreadable: list[tuple[int, int]] = []
        self.base = 0
        self.view = memoryview(b"")
        self._buffer = bytearray(min(WINDOW_BYTES, end))

    def show(self, offset: int, size_bytes: int) -> None:
        """Have a part of the file in view, as far as the file goes."""
        if self.base <= offset and offset + size_bytes <= self.base + len(self.view):
            return
        size_bytes = min(max(WINDOW_BYTES, size_bytes), self.end - offset)
        if size_bytes > len(self._buffer):
            self._buffer = bytearray(size_bytes)
        self.base, self.view = offset, memoryview(self._buffer)[:size_bytes]
        count, unreadable = self.file.fill(offset, self.view)
        self.unreadable += unreadable
        if count < size_bytes:
            self.view, self.end = self.view[:count], offset + count

    @property
    def shown_end(self) -> int:
        """Where the view ends in the file."""
        return self.base + len(self.view)

    def lacks(self, start: int, end: int) -> bool:
        """Whether anything between the two cannot be read."""
        return any(first < end and start < last for first, last in self.unreadable)


def walk_file(window: FileWindow, salt: int) -> Iterator[Frame | Hole]:
    """Yield everything after the header, as `walk` does; payloads are there until the next item."""
    offset = FILE_HEADER_BYTES
    while offset < window.end:
        if offset + HEADER_BYTES > window.shown_end:
            window.show(offset, HEADER_BYTES)
        try:
            frame = decode(window.view, offset - window.base, salt, window.base)
        except FrameFault as fault:
            frame_end = offset if fault.frame is None else min(fault.frame.end, window.end)
            if window.shown_end < frame_end:
                window.show(offset, frame_end - offset)
                continue
            if fault.frame is None:
                frame_end = _next_header(window, offset + ALIGNMENT_BYTES, salt)
            yield Hole(offset, frame_end, fault.reason, fault.frame)
            offset = frame_end
        else:
            yield frame
            offset = frame.end


def is_begun(window: FileWindow, header: WalHeader) -> bool:
    """Whether the creation of a file was finished: all its copies are there, or more is."""
    end = FILE_HEADER_BYTES + header.copied_bytes
    if window.end != end:
        return window.end > end
    return all(isinstance(item, Frame) for item in walk_file(window, header.salt))


def _next_header(window: FileWindow, offset: int, salt: int) -> int:
    while offset + HEADER_BYTES <= window.end:
        window.show(offset, HEADER_BYTES)
        found = find_next(window.view, offset - window.base, salt, window.base)
        if found is not None:
            return window.base + found
        # The first place whose header is not in view as a whole.
        offset = window.shown_end - HEADER_BYTES
        offset += ALIGNMENT_BYTES - offset % ALIGNMENT_BYTES
    return window.end
