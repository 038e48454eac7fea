"""An accepted bundle before it is in a segment: its payload in memory, or still in a WAL file.

Payloads that a start finds stay in the file until they are wanted. What is kept of such a frame is
where it stands: its payload is read again, and checked again, when somebody wants it. So a start
needs little memory, however much the log holds.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import NamedTuple

import pyarrow as pa

from holdfast.errors import Damaged
from holdfast.quiver.base.frame import FrameFault, FrameKind, decode
from holdfast.seam.disk import CANNOT_BE_READ, PAGE_BYTES, Disk


class OpenFile:
    """A file that is open for reading as long as anything points to it, also without its name.

    The log's file may be removed once its bundles are sealed, while a scan still holds some of
    them. On POSIX an open descriptor keeps the bytes; the finalizer closes it with the last
    reference, so nobody has to know when the last reader is done.
    """

    def __init__(self, disk: Disk, path: PurePath) -> None:
        self.path = path
        self._disk = disk
        self._handle = disk.open_read(path)
        weakref.finalize(self, disk.close, self._handle)

    def check_name(self) -> None:
        """Raise FileNotFoundError if the file has lost its name.

        Then its owner may have written over it (log/spares.py), and what was read of it is nothing.
        """
        self._disk.file_bytes(self.path)

    def fill(self, offset: int, buffer: memoryview) -> tuple[int, list[tuple[int, int]]]:
        """Fill a buffer; return how much there was, and what of it cannot be read."""
        try:
            return self._disk.read_into(self._handle, offset, buffer), []
        except OSError as error:
            if error.errno not in CANNOT_BE_READ:
                raise
        # The read failed somewhere, and nobody says where. Page by page, aligned to pages of the
        # file, it costs exactly the sectors that are gone, and every frame beside them is still
        # found.
        start, filled, unreadable = 0, 0, []
        while start < len(buffer):
            page = buffer[start : start + PAGE_BYTES - (offset + start) % PAGE_BYTES]
            try:
                count = self._disk.read_into(self._handle, offset + start, page)
            except OSError as error:
                if error.errno not in CANNOT_BE_READ:
                    raise
                # Zeros and not what the buffer held before: a checksum must not match by what an
                # earlier read left.
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


class HeldBundle(NamedTuple):
    """One accepted bundle, in the bytes that are also in the WAL."""

    seq: int
    kind: FrameKind
    ingestion_ns: int
    watermark_ns: int
    producer: str | None
    epoch: int
    events: int
    # Bytes or a buffer: appended by this process, which has them anyway.
    # Unread: what a start found in the WAL stays there until it is wanted.
    payload: bytes | memoryview | pa.Buffer | Unread

    def content(self) -> memoryview:
        """Return the payload; raise `Damaged` if it can no longer be read."""
        payload = self.payload
        return payload.read() if isinstance(payload, Unread) else memoryview(payload).cast("B")


def in_memory(
    bundles: Iterable[HeldBundle],
    on_damage: Callable[[HeldBundle, Damaged], None] = lambda *_: None,
) -> list[HeldBundle]:
    """Return the bundles with their payloads, without those that can no longer be read."""
    found = []
    for held in bundles:
        try:
            found.append(held._replace(payload=held.content()))
        except Damaged as damage:
            on_damage(held, damage)
    return found
