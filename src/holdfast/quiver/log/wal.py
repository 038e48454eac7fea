"""WAL files: a header that says whose file it is, then frames, appended by one thread.

Every process start and every handed-over segment begins a new file, so a file is never appended to
after a crash, and it is removed as a whole once its bundles are in segments: there is no cursor to
keep and nothing to truncate in place. What is removed may be kept as a spare, and written over by a
later file (spares.py): that one has another salt, so nothing of its former life is found in it.

The header is stored twice, each copy in a sector of its own with its checksum at its end, in this
and in all later versions, so that a program can tell a newer header from a damaged one. (Ledger
files and the reserve begin with such a block, too.) It holds

    salt              seeds this file's frames (see frame.py)
    seq_limit         no sequence number from here on is given out while this file is the newest.
                      After an unclean end numbering goes on at `seq_limit`: numbers that were given
                      out but never reached the disk are skipped, not used again
    previous_number,  the file that was left when this one was begun, how far it was then on stable
    previous_synced,  storage, and what it held up to there. So far it counts, and no further:
    previous_holds    what stands beyond is in the copies, or was refused
    copied_bytes      that much at the beginning are copies of frames of the file before that are
                      not known to be on stable storage there. Nothing proves that a page which
                      can be read is on the disk, least of all after a failed sync
    accepted_before   how many bundles and events the quiver had accepted before this file, without
                      the copies
    recycled_bytes    how long the file was that this one is written over; 0 for a new file, which
                      is of version 1

A file exists once its header and its copies do: until then (replay.py) the file before counts as a
whole. So a file is never written to again once its successor was tried, or a leftover of that try
would cut off what came later.

docs/format/wal.md has the byte layout and an example.
"""

from __future__ import annotations

import contextlib
import random
import struct
import threading
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

from xxhash import xxh3_64_intdigest

from holdfast.errors import NotAccepted
from holdfast.quiver.base import names
from holdfast.quiver.base.frame import (
    ALIGNMENT_BYTES,
    NOTHING,
    Frame,
    FrameFault,
    Totals,
    decode,
    find_next,
)
from holdfast.quiver.base.held_bundle import HeldBundle
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.log.group import Framing, Numbered
from holdfast.quiver.log.spares import SpareWalFiles
from holdfast.seam.disk import Disk, Handle, disk_error, write_all, write_behind

if TYPE_CHECKING:
    from typing_extensions import Buffer

BLOCK_BYTES = 8192

# What a disk loses at once. (Those that tell of sectors of 512 bytes have larger ones inside.)
_COPY_BYTES = 4096
_SUM_OFFSET = _COPY_BYTES - 8
_LEAD = struct.Struct("<8sHHI")
_SUM = struct.Struct("<Q")


class HeaderFault(Exception):
    """A file has no sound header."""


class NewerVersion(Exception):
    """A sound header of a version this program does not know."""


def encode_block(magic: bytes, version: int, fields: bytes) -> bytes:
    """Return the first `BLOCK_BYTES` of a file."""
    content = (_LEAD.pack(magic, version, BLOCK_BYTES, 0) + fields).ljust(_SUM_OFFSET, b"\0")
    return (content + _SUM.pack(xxh3_64_intdigest(content))) * 2


def sound_copies(view: memoryview) -> int:
    """Return how many of the two copies match their checksums."""
    copies = (view[:_COPY_BYTES], view[_COPY_BYTES:BLOCK_BYTES])
    return sum(
        len(copy) == _COPY_BYTES
        and _SUM.unpack_from(copy, _SUM_OFFSET)[0] == xxh3_64_intdigest(copy[:_SUM_OFFSET])
        for copy in copies
    )


def decode_block(view: memoryview, magic: bytes, newest_version: int) -> memoryview:
    """Return the fields from whichever copy is sound; those that a version lacks are zeros."""
    if len(view) < BLOCK_BYTES:
        raise HeaderFault("the file is shorter than its header")
    for copy in (view[:_COPY_BYTES], view[_COPY_BYTES:BLOCK_BYTES]):
        (checksum,) = _SUM.unpack_from(copy, _SUM_OFFSET)
        if bytes(copy[:8]) != magic or xxh3_64_intdigest(copy[:_SUM_OFFSET]) != checksum:
            continue
        # Only behind the checksum: a version that the disk made up must not be mistaken for a
        # newer program's file, which is refused, while a damaged one is repaired from its copy.
        _, found, _, _ = _LEAD.unpack_from(copy)
        if not 1 <= found <= newest_version:
            raise NewerVersion(f"version {found}")
        return copy[_LEAD.size : _SUM_OFFSET]
    raise HeaderFault("both copies of the header are damaged")


HEADER_BYTES = BLOCK_BYTES
SEQ_BLOCK = 65_536
# Of a new file, and of one that is written over a spare.
VERSION = 1
RECYCLED_VERSION = 2

_MAGIC = b"HFWAL\r\n\x1a"
_FIELDS = struct.Struct("<16sQQQQQQQQQqQQ")


@dataclass(frozen=True)
class WalHeader:
    """What a WAL file says about itself."""

    quiver_id: str
    number: int
    salt: int
    seq_limit: int
    previous_number: int
    previous_synced: int
    previous_holds: Totals
    accepted_before: Totals
    created_ns: int
    copied_bytes: int = 0
    recycled_bytes: int = 0

    def encode(self) -> bytes:
        """Return the whole header block."""
        fields = _FIELDS.pack(
            uuid.UUID(self.quiver_id).bytes,
            self.number,
            self.salt,
            self.seq_limit,
            self.previous_number,
            self.previous_synced,
            *self.previous_holds,
            *self.accepted_before,
            self.created_ns,
            self.copied_bytes,
            self.recycled_bytes,
        )
        return encode_block(_MAGIC, RECYCLED_VERSION if self.recycled_bytes else VERSION, fields)


def decode_header(view: memoryview) -> WalHeader:
    """Return the header from whichever copy is sound."""
    owner, *numbers = _FIELDS.unpack_from(decode_block(view, _MAGIC, RECYCLED_VERSION))
    number, salt, seq_limit, previous_number, previous_synced, *totals = numbers[:-3]
    created_ns, copied_bytes, recycled_bytes = numbers[-3:]
    return WalHeader(
        str(uuid.UUID(bytes=owner)),
        number,
        salt,
        seq_limit,
        previous_number,
        previous_synced,
        Totals(*totals[:2]),
        Totals(*totals[2:]),
        created_ns,
        copied_bytes,
        recycled_bytes,
    )


@dataclass(frozen=True)
class Hole:
    """Bytes of a WAL file that are no sound frame."""

    start: int
    end: int
    reason: str
    # What the header says, if that is sound and only the body is damaged: then the hole is exactly
    # one frame. Other holes reach up to the next sound header.
    frame: Frame | None


def walk(view: memoryview, salt: int) -> Iterator[Frame | Hole]:
    """Yield everything after the header, in order: sound frames, and the holes between them."""
    offset = HEADER_BYTES
    end_of_file = len(view)
    while offset < end_of_file:
        try:
            frame = decode(view, offset, salt)
        except FrameFault as fault:
            if fault.frame is not None:
                end = min(fault.frame.end, end_of_file)
            else:
                # The length is not to be believed either. Frames are aligned and seeded with this
                # file's salt, so one of another file, still on the disk beneath, is never found
                # here.
                end = find_next(view, offset + ALIGNMENT_BYTES, salt) or end_of_file
            yield Hole(offset, end, fault.reason, fault.frame)
            offset = end
        else:
            yield frame
            offset = frame.end


class WalFile:
    """The WAL file being appended to. One thread only."""

    def __init__(
        self,
        disk: Disk,
        directory: PurePath,
        header: WalHeader,
        copied: Sequence[list[HeldBundle]] = (),
        spares: SpareWalFiles | None = None,
    ) -> None:
        """Create the file with copies of some appends and make it durable, or leave nothing behind.

        1. create  2. header and copies  3. sync  4. sync the directory

        Without copies it is written over a spare, if there is one. That is renamed only when its
        header is synced, so whatever has a WAL file's name has the header of this life:

        1. open  2. header  3. sync  4. rename  5. sync the directory
        """
        spare = None if spares is None or copied else spares.take()
        framing = Framing(header.salt, HEADER_BYTES, HEADER_BYTES, NOTHING)
        framing.put_all(copied)
        self.header = replace(header, copied_bytes=framing.end - HEADER_BYTES)
        self.path = directory / names.wal_file(header.number)
        self.last_seq = max((held.seq for bundles in copied for held in bundles), default=-1)
        self.end = self.synced = framing.end
        self.holds = self.synced_holds = framing.holds
        # Whether a write or a sync of it failed.
        self.has_failed = False
        self._disk = disk
        self._handle = self._create(framing.buffers) if spare is None else self._write_over(spare)

    def _create(self, copies: Sequence[Buffer]) -> Handle:
        disk, handle = self._disk, self._disk.create(self.path, QuiverPoint.WAL_CREATE)
        try:
            write_all(disk, handle, [self.header.encode(), *copies], QuiverPoint.WAL_HEADER)
            disk.sync(handle, QuiverPoint.WAL_HEADER_SYNC)
            disk.sync_dir(self.path.parent, QuiverPoint.WAL_SYNC_DIR)
        except OSError:
            # What stays behind is harmless at the next start; a busy name is not.
            disk.close(handle)
            self._remove(self.path)
            raise
        return handle

    def _write_over(self, spare: PurePath) -> Handle:
        try:
            self._write_header_over(spare)
            self._disk.rename(spare, self.path, QuiverPoint.WAL_RENAME)
            self._disk.sync_dir(self.path.parent, QuiverPoint.WAL_SYNC_DIR)
            return self._disk.reuse(self.path, QuiverPoint.WAL_REOPEN, self.end)
        except OSError:
            self._remove(spare)
            self._remove(self.path)
            raise

    def _write_header_over(self, spare: PurePath) -> None:
        # Closed before it is renamed: Windows renames nothing that is open.
        handle = self._disk.reuse(spare, QuiverPoint.WAL_REUSE)
        try:
            recycled_bytes = self._disk.open_size_bytes(handle)
            self.header = replace(self.header, recycled_bytes=recycled_bytes)
            write_all(self._disk, handle, [self.header.encode()], QuiverPoint.WAL_HEADER)
            self._disk.sync(handle, QuiverPoint.WAL_HEADER_SYNC)
        finally:
            self._disk.close(handle)

    def _remove(self, path: PurePath) -> None:
        with contextlib.suppress(OSError):
            self._disk.unlink(path, QuiverPoint.TRUNCATE_UNLINK)

    @property
    def size_bytes(self) -> int:
        """Bytes of the file, with what is left of its former life."""
        return max(self.end, self.header.recycled_bytes)

    def write(self, group: list[Numbered]) -> None:
        """Append the frames of a group; on an error the file's end is unknown until `undo`."""
        framing = self._framing()
        framing.put_all(item.held for item in group)
        write_behind(self._disk, self._handle, self.end, framing.buffers, QuiverPoint.WAL_WRITE)
        self.end, self.holds = framing.end, framing.holds
        self.last_seq = max(self.last_seq, group[-1].held[-1].seq)

    def write_close(self, next_seq: int, now_ns: int) -> None:
        """Append the frame that marks a clean end."""
        framing = self._framing()
        framing.put_close(next_seq, now_ns)
        write_behind(
            self._disk, self._handle, self.end, framing.buffers, QuiverPoint.WAL_CLOSE_WRITE
        )
        self.end = framing.end

    def _framing(self) -> Framing:
        return Framing(self.header.salt, self.end, self.synced, self.holds)

    def sync(self, at: QuiverPoint = QuiverPoint.WAL_SYNC) -> None:
        """Put everything written on stable storage. After an error: never again on this file."""
        try:
            self._disk.sync(self._handle, at)
        except OSError:
            self.has_failed = True
            raise
        self.synced, self.synced_holds = self.end, self.holds

    def undo(self) -> None:
        """Cut a failed write off, durably, so that it cannot come back after a power cut.

        If the disk allows neither, the caller begins another file: the frames of this write were
        refused, and must not be there at the next start.
        """
        self.has_failed = True
        self._disk.truncate(self._handle, self.end, QuiverPoint.WAL_UNDO)
        self._disk.sync(self._handle, QuiverPoint.WAL_UNDO_SYNC)
        self.synced, self.synced_holds = self.end, self.holds

    def close(self) -> None:
        """Close the descriptor; syncs nothing."""
        self._disk.close(self._handle)

    def closed(self) -> ClosedWalFile:
        """Return what is to be known of it once it is left."""
        return ClosedWalFile(self.path, self.last_seq, self.size_bytes, not self.has_failed)


class ClosedWalFile(NamedTuple):
    """A WAL file that is no longer written to."""

    path: PurePath
    last_seq: int
    size_bytes: int
    # Whether a later file may be written over it: see spares.py.
    may_be_kept: bool = False


class ClosedWalFiles:
    """WAL files no longer written to, each removed once a segment holds its last bundle."""

    def __init__(self, disk: Disk, directory: PurePath, spare_files: int, bound_bytes: int) -> None:
        self.spares = SpareWalFiles(disk, directory, spare_files, bound_bytes)
        self._disk = disk
        self._directory = directory
        self._lock = threading.Lock()
        self._files: list[ClosedWalFile] = []
        self._size_bytes = 0
        self._sealed_through = -1
        # While there is no newer file, the newest of these keeps the sequence floor.
        self.newest_stays = False

    @property
    def size_bytes(self) -> int:
        """Bytes of all closed files that are still there, and of the spares."""
        return self._size_bytes + self.spares.size_bytes

    def __len__(self) -> int:
        return len(self._files) + len(self.spares)

    def add(self, file: ClosedWalFile) -> None:
        """Take a file over from the writer or from recovery.

        Its size counts against the log's bound until it is really gone, not until it could be.
        """
        with self._lock:
            self._files.append(file)
            self._size_bytes += file.size_bytes

    def remove_sealed(self, sealed_through: int = -1) -> None:
        """Let every file go whose bundles are all in segments; call again after a failure.

        One that cannot go yet holds up no other: on Windows none goes that a reader has open.
        """
        with self._lock:
            self._sealed_through = max(self._sealed_through, sealed_through)
            due = [file for file in self._files if file.last_seq <= self._sealed_through]
            if self.newest_stays and self._files:
                due = [file for file in due if file != max(self._files)]
            if not due:
                return
            kept: list[ClosedWalFile] = []
            for file in due:
                if spare := self._keep(file, len(kept)):
                    kept.append(spare)
            refusals = [
                refusal for file in due if file in self._files and (refusal := self._remove(file))
            ]
            # Not for safety (a file that comes back is skipped at replay), but so that it is free.
            # A spare is one only then: what was not renamed durably is removed with the next ones.
            self._disk.sync_dir(self._directory, QuiverPoint.TRUNCATE_SYNC_DIR)
            for spare in kept:
                self._forget(spare)
                self.spares.add(spare.path, spare.size_bytes)
            if refusals:
                raise OSError(*refusals[0])

    def _keep(self, file: ClosedWalFile, beside: int) -> ClosedWalFile | None:
        """Rename a file to a spare; return what it is now, None if it is to be unlinked."""
        path = self.spares.keep(file.path, file.size_bytes, beside) if file.may_be_kept else None
        if path is None:
            return None
        spare = ClosedWalFile(path, file.last_seq, file.size_bytes)
        self._files[self._files.index(file)] = spare
        return spare

    def _remove(self, file: ClosedWalFile) -> tuple[object, ...] | None:
        """Remove a file; return why it stays (no exception, which keeps frames and all in them)."""
        try:
            self._disk.unlink(file.path, QuiverPoint.TRUNCATE_UNLINK)
        except FileNotFoundError:
            pass
        except OSError as refusal:
            return refusal.errno, refusal.strerror, str(file.path)
        self._forget(file)
        return None

    def _forget(self, file: ClosedWalFile) -> None:
        self._files.remove(file)
        self._size_bytes -= file.size_bytes


def new_salt(randomness: random.Random) -> int:
    """Return a salt for a new file."""
    return randomness.getrandbits(64)


def write_error(error: OSError, directory: PurePath) -> NotAccepted:
    """Return the error for a producer whose append could not be written."""
    what = "the write-ahead log could not be written"
    unaffected = "nothing acknowledged is affected"
    return disk_error(error, what, directory, then=unaffected, retry_after_s=1.0)
