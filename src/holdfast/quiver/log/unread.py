"""Payloads that stay in a WAL file until they are wanted.

What is kept of a frame is where it stands: its payload is read again, and checked again, when
somebody wants it. So a start needs little memory, however much the log holds.
"""

from __future__ import annotations

import weakref
from pathlib import PurePath

from holdfast.errors import Damaged
from holdfast.quiver.base.frame import FrameFault, decode
from holdfast.seam.disk import CANNOT_BE_READ, PAGE_BYTES, Disk


class OpenFile:
    """A file that is open for reading as long as anything points to it, also without its name."""

    def __init__(self, disk: Disk, path: PurePath) -> None:
        self.path = path
        self._disk = disk
        self._handle = disk.open_read(path)
        weakref.finalize(self, disk.close, self._handle)

    def fill(self, offset: int, buffer: memoryview) -> tuple[int, list[tuple[int, int]]]:
        """Fill a buffer; return how much there was, and what of it cannot be read."""
        try:
            return self._disk.read_into(self._handle, offset, buffer), []
        except OSError as error:
            if error.errno not in CANNOT_BE_READ:
                raise
        start, filled, unreadable = 0, 0, []
        while start < len(buffer):
            page = buffer[start : start + PAGE_BYTES - (offset + start) % PAGE_BYTES]
            try:
                count = self._disk.read_into(self._handle, offset + start, page)
            except OSError as error:
                if error.errno not in CANNOT_BE_READ:
                    raise
                page[:] = bytes(len(page))
                unreadable.append((offset + start, offset + start + len(page)))
                count = len(page)
            start, filled = start + len(page), filled + count
        return filled, unreadable


class Unread:
    """The payload of a frame that stands in a file, and is read when it is wanted."""

    __slots__ = ("_end", "_file", "_salt", "_size_bytes", "_start")

    def __init__(self, file: OpenFile, salt: int, start: int, end: int, size_bytes: int) -> None:
        self._file = file
        self._salt = salt
        self._start = start
        self._end = end
        self._size_bytes = size_bytes

    def __len__(self) -> int:
        return self._size_bytes

    def read(self) -> memoryview:
        """Return the payload; raise `Damaged` if it is not what it was."""
        view = memoryview(bytearray(self._end - self._start))
        count, unreadable = self._file.fill(self._start, view)
        try:
            if unreadable:
                raise FrameFault("the disk cannot read it")
            return decode(view[:count], 0, self._salt, self._start).payload
        except FrameFault as fault:
            raise Damaged(
                f"a bundle that was sound at the start no longer is: {fault.reason}",
                hint="look after the disk; what is lost is recorded as damaged when it is sealed",
                path=str(self._file.path),
            ) from fault
