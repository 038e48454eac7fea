"""The ledger's files: a checkpoint, then lines, in the frames of the write-ahead log.

Every file begins with a checkpoint of everything known when it was begun, so recovery needs the
newest file that begins soundly and nothing older. A file is closed at `ledger.rotate_bytes`; closed
files are kept for a while, as the account of what happened. docs/format/ledger.md has the bytes.

The last line of a closed file names the one that continues it, so that a newest file that vanished
is missed. It is written when the next file is durable: a crash in between leaves no line, never one
that names a file that was not there.

A line is written at once (kill -9 does not lose it) and synced in batches. Whatever deletes data
asks for a sync first.
"""

from __future__ import annotations

import contextlib
import json
import struct
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import PurePath
from typing import Any

from holdfast.quiver.base import names
from holdfast.quiver.base.frame import (
    ALIGNMENT_BYTES,
    NO_WATERMARK,
    NOTHING,
    Frame,
    Totals,
    encode,
)
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.ledger.subscriber import Outcome, Position, Resolution
from holdfast.quiver.log.wal import BLOCK_BYTES, Hole, decode_block, encode_block, walk
from holdfast.seam.disk import Disk, Handle, Pages, read_pages, write_all, write_behind

VERSION = 1
# The verb of the line that names the next file.
CONTINUED = "continued"

_MAGIC = b"HFLDGR\r\n"
_FIELDS = struct.Struct("<16sQQq")
_LINE = struct.Struct("<qIQIQIBQQHH")


class LineKind(IntEnum):
    """What a frame of the ledger holds. On disk: never renumber."""

    CHECKPOINT = 16
    RESOLUTIONS = 17
    CHANGE = 18


@dataclass(frozen=True)
class LedgerHeader:
    """What a ledger file says about itself."""

    quiver_id: str
    number: int
    salt: int
    created_ns: int

    def encode(self) -> bytes:
        """Return the header block."""
        owner = uuid.UUID(self.quiver_id).bytes
        fields = _FIELDS.pack(owner, self.number, self.salt, self.created_ns)
        return encode_block(_MAGIC, VERSION, fields)


def decode_header(view: memoryview) -> LedgerHeader:
    """Return the header from whichever copy is sound."""
    owner, *numbers = _FIELDS.unpack_from(decode_block(view, _MAGIC, VERSION))
    return LedgerHeader(str(uuid.UUID(bytes=owner)), *numbers)


def encode_resolutions(resolutions: Sequence[Resolution]) -> bytes:
    """Return the body of a RESOLUTIONS frame."""
    parts = []
    for line in resolutions:
        name = line.subscriber.encode()
        # Half of a surrogate pair must not cost an outcome.
        reason = line.reason.encode("utf-8", "backslashreplace")[:65_535]
        parts.append(
            _LINE.pack(
                line.time_ns,
                line.generation,
                *line.start,
                *line.end,
                line.outcome,
                *line.counts,
                len(name),
                len(reason),
            )
            + name
            + reason
        )
    return b"".join(parts)


def decode_resolutions(body: memoryview) -> Iterator[Resolution]:
    """Yield the lines of a RESOLUTIONS frame."""
    position = 0
    while position < len(body):
        fields = _LINE.unpack_from(body, position)
        time_ns, generation, start_seq, start_row, end_seq, end_row, outcome = fields[:7]
        bundles, events, name_bytes, reason_bytes = fields[7:]
        position += _LINE.size
        name = bytes(body[position : position + name_bytes]).decode()
        position += name_bytes
        reason = bytes(body[position : position + reason_bytes]).decode("utf-8", "replace")
        position += reason_bytes
        yield Resolution(
            time_ns,
            name,
            generation,
            Position(start_seq, start_row),
            Position(end_seq, end_row),
            Outcome(outcome),
            Totals(bundles, events),
            reason,
        )


class LedgerFile:
    """The ledger file being appended to. The ledger's lock guards it."""

    def __init__(self, disk: Disk, path: PurePath, header: LedgerHeader, handle: Handle) -> None:
        self.header = header
        self.path = path
        self.end = BLOCK_BYTES
        self.synced = BLOCK_BYTES
        self.lines = 0
        self._disk = disk
        self._handle = handle
        # Where the checkpoint ends.
        self._begin = BLOCK_BYTES

    @classmethod
    def begin(
        cls, disk: Disk, directory: PurePath, header: LedgerHeader, checkpoint: dict[str, Any]
    ) -> LedgerFile:
        """Create a file and write its checkpoint, or leave nothing behind."""
        path = directory / names.ledger_file(header.number)
        file = cls(disk, path, header, disk.create(path, QuiverPoint.LEDGER_CREATE))
        try:
            write_all(disk, file._handle, [header.encode()], QuiverPoint.LEDGER_HEADER)
            # Alone, so that a file with more than a header and no sound one is damaged, not torn.
            disk.sync(file._handle, QuiverPoint.LEDGER_HEADER_SYNC)
            body = json.dumps(checkpoint, separators=(",", ":")).encode()
            file._write(LineKind.CHECKPOINT, header.created_ns, body, QuiverPoint.LEDGER_CHECKPOINT)
            file._begin = file.end
        except OSError:
            file.abandon()
            raise
        return file

    @classmethod
    def resume(cls, disk: Disk, content: LedgerContent) -> LedgerFile | None:
        """Go on behind the last line of a file, or return None if more than its end is torn.

        All of it is written again first: a sync of the last process may have failed.
        """
        frames = [item for item in content.items if isinstance(item, Frame)]
        if content.checkpoint is None or frames != content.items[: len(frames)]:
            return None
        disk.rewrite(content.path, content.view[: frames[-1].end], QuiverPoint.RECOVER_SYNC)
        handle = disk.reopen(content.path, QuiverPoint.LEDGER_CREATE)
        file = cls(disk, content.path, content.header, handle)
        file.end, file.lines, file._begin = frames[-1].end, len(frames) - 1, frames[0].end
        try:
            file.undo()
            file.sync()
        except OSError:
            file.close()
            raise
        return file

    @classmethod
    def behind(cls, disk: Disk, content: LedgerContent) -> LedgerFile:
        """Open a file of the last process for one more line, behind whatever it ends with."""
        handle = disk.reopen(content.path, QuiverPoint.LEDGER_CONTINUE)
        file = cls(disk, content.path, content.header, handle)
        last, file.end = content.items[-1:], len(content.view)
        # A torn line whose length is known would swallow what begins inside it.
        torn = last[0].frame if last and isinstance(last[0], Hole) else None
        begin = max(file.end, torn.end if torn else 0)
        gap = begin + -begin % ALIGNMENT_BYTES - file.end
        try:
            file.end = write_behind(
                disk, handle, file.end, [bytes(gap)], QuiverPoint.LEDGER_CONTINUE
            )
        except OSError:
            file.close()
            raise
        return file

    def make_durable(self) -> None:
        """Put the checkpoint and the file's name on stable storage."""
        self.sync(QuiverPoint.LEDGER_CHECKPOINT_SYNC)
        self._disk.sync_dir(self.path.parent, QuiverPoint.LEDGER_SYNC_DIR)

    def abandon(self) -> None:
        """Take a file back that could not be begun, as far as the disk lets us."""
        self.close()
        with contextlib.suppress(OSError):
            self._disk.unlink(self.path, QuiverPoint.LEDGER_UNLINK)

    def write_resolutions(self, resolutions: Sequence[Resolution]) -> None:
        """Append lines; on an error the file must be left."""
        body = encode_resolutions(resolutions)
        self._write(LineKind.RESOLUTIONS, resolutions[0].time_ns, body, QuiverPoint.LEDGER_WRITE)
        self.lines += len(resolutions)

    def write_change(self, change: dict[str, Any], time_ns: int) -> None:
        """Append a change of the subscribers themselves."""
        body = json.dumps(change, separators=(",", ":")).encode()
        self._write(LineKind.CHANGE, time_ns, body, QuiverPoint.LEDGER_WRITE)
        self.lines += 1

    def write_continued(self, number: int, time_ns: int) -> None:
        """Append, durably, that the file with this number continues this one."""
        body = json.dumps({"verb": CONTINUED, "name": "", "number": number}).encode()
        self._write(LineKind.CHANGE, time_ns, body, QuiverPoint.LEDGER_CONTINUE)
        self.sync(QuiverPoint.LEDGER_CONTINUE_SYNC)

    def _write(self, kind: LineKind, time_ns: int, body: bytes, at: QuiverPoint) -> None:
        header, padding = encode(
            self.header.salt,
            self.end,
            kind,
            self.lines,
            time_ns,
            self.synced,
            NO_WATERMARK,
            body,
            NOTHING,
        )
        # As one buffer: it is short, and a vector of three costs more than joining them.
        line = b"".join((header, body, padding))
        self.end = write_behind(self._disk, self._handle, self.end, [line], at)

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of the checkpoint."""
        return self._begin - BLOCK_BYTES

    @property
    def lines_bytes(self) -> int:
        """Bytes of all lines behind it."""
        return self.end - self._begin

    def is_full(self, rotate_bytes: int) -> bool:
        """Whether to begin another: not for the sake of a large checkpoint alone."""
        return self.end >= max(rotate_bytes, 2 * self._begin)

    def sync(self, at: QuiverPoint = QuiverPoint.LEDGER_SYNC) -> None:
        """Put everything written on stable storage. After an error: never again on this file."""
        self._disk.sync(self._handle, at)
        self.synced = self.end

    def undo(self) -> None:
        """Cut a failed line off, so that later ones can follow."""
        self._disk.truncate(self._handle, self.end, QuiverPoint.LEDGER_UNDO)

    def close(self) -> None:
        """Close the descriptor; syncs nothing."""
        self._disk.close(self._handle)


@dataclass(frozen=True)
class LedgerContent:
    """One readable ledger file. Its lines are read when they are asked for."""

    path: PurePath
    header: LedgerHeader
    read: Callable[[], Pages]

    @cached_property
    def pages(self) -> Pages:
        """The file's bytes, with zeros for what the disk cannot read."""
        return self.read()

    @property
    def view(self) -> memoryview:
        """The file's bytes."""
        return self.pages.view

    @cached_property
    def items(self) -> list[Frame | Hole]:
        """All lines, and the holes between them."""
        return list(walk(self.view, self.header.salt))

    @cached_property
    def checkpoint(self) -> dict[str, Any] | None:
        """What the file begins with, if that is sound."""
        first = next(walk(self.view, self.header.salt), None)
        if isinstance(first, Frame) and first.kind == LineKind.CHECKPOINT:
            state: dict[str, Any] = json.loads(bytes(first.payload))
            return state
        return None


def read_ledger_file(disk: Disk, path: PurePath) -> LedgerContent:
    """Return what a ledger file holds; raises what `decode_header` raises."""
    header = decode_header(read_pages(disk, path, BLOCK_BYTES).view)
    return LedgerContent(path, header, lambda: read_pages(disk, path))
