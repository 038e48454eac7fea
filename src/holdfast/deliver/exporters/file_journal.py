"""The journal of the files exporter: where events are durable before their file is complete.

A journal is a sequence of frames. The first one holds the identities of events that went before
(see file_staging.py). Then come batches: a frame that says that one begins, and one for each event.

    offset  size  field
    0       4     b"HFJ1"
    4       4     length of the body, little-endian
    8       8     xxh3_64 of the body, little-endian
    16      n     body: one byte kind, 4 bytes length of the meta data, meta data (JSON), payload

A batch is synced before the next one begins. So where a frame does not match its checksum and
another batch begins behind it, that is damage: it costs the frame, and the rest is kept. Behind the
beginning of the last batch it may as well be a power cut while the batch was written. Its events
are then sent again, and must come in order, so nothing behind the gap counts.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import NamedTuple, overload

import orjson
import xxhash

from holdfast.seam.disk import Disk, Handle, read_pages, write_all
from holdfast.signals.event import Event

MAGIC = b"HFJ1"
_FRAME = struct.Struct("<4sIQ")
_BODY = struct.Struct("<BI")
_REMEMBERED, _BATCH, _EVENT = 1, 2, 3
_NAME = re.compile(r"journal-(\d{12})")


class JournalIdentity(NamedTuple):
    """Which event it is."""

    quiver_id: str
    seq: int
    row: int


class JournalRecord(NamedTuple):
    """One event as the journal holds it; the payload points into what was read of it."""

    identity: JournalIdentity
    slot: str
    ingestion_ns: int
    headers: dict[str, str]
    payload: memoryview


class Records(Sequence[JournalRecord]):
    """The events of a journal, each decoded when it is asked for: there may be very many."""

    def __init__(self, whole: memoryview, offsets: Sequence[int]) -> None:
        self._whole = whole
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, index: int) -> JournalRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Records: ...
    def __getitem__(self, index: int | slice) -> JournalRecord | Records:
        if isinstance(index, slice):
            return Records(self._whole, self._offsets[index])
        body = _body_at(self._whole, self._offsets[index])
        assert body is not None, "BUG: the frame was sound before"
        meta = orjson.loads(body.meta)
        identity = JournalIdentity(*meta["at"])
        return JournalRecord(identity, meta["slot"], meta["ns"], meta["headers"], body.payload)


class Contents(NamedTuple):
    """What a journal holds. `damaged`: there are sound frames behind bytes that are not."""

    remembered: list[JournalIdentity]
    records: Records
    damaged: bool

    def newest_identities(self, count: int) -> list[JournalIdentity]:
        """Return which events came last, those of earlier journals included."""
        newest = [record.identity for record in self.records[-count:]]
        return [*self.remembered, *newest][-count:]


NOTHING = Contents([], Records(memoryview(b""), []), damaged=False)


def identity_of(event: Event) -> JournalIdentity:
    """Return which event it is."""
    return JournalIdentity(event.quiver_id, *event.position)


def frame_of(event: Event) -> bytes:
    """Return the bytes of one event in a journal."""
    meta = {
        "at": list(identity_of(event)),
        "slot": event.slot,
        "ns": event.ingestion_ns,
        "headers": dict(event.headers),
    }
    return _frame(_EVENT, orjson.dumps(meta), event.payload)


def name_of(number: int) -> str:
    """Return the file name of a journal."""
    return f"journal-{number:012d}"


def number_of(name: str) -> int | None:
    """Return the number of a journal by its file name; None if it is none."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


class FileJournal:
    """One journal, open for appending. After a failed call it takes nothing more."""

    def __init__(self, disk: Disk, path: PurePath, remembered: Iterable[JournalIdentity]) -> None:
        self.path = path
        self.events = 0
        self.sealed = False
        self._disk = disk
        self._handle: Handle | None = disk.create(path, "files.journal.create")
        self.sound_bytes = 0
        try:
            head = _frame(
                _REMEMBERED, orjson.dumps([list(identity) for identity in remembered]), b""
            )
            self._write([head])
        except OSError:
            self.close()
            raise

    def append(self, frames: list[bytes]) -> None:
        """Make events durable."""
        assert not self.sealed, "BUG: a sealed journal takes nothing"
        # Set before the write and taken back behind the sync: whatever is raised in between, the
        # journal takes nothing more, and `sound_bytes` still ends before the doubtful bytes.
        self.sealed = True  # until it is known that the bytes arrived
        self._write([_frame(_BATCH, b"", b""), *frames])
        self.events += len(frames)
        self.sealed = False

    def cut(self) -> None:
        """Remove what a failed append left behind the last sound byte.

        It was not answered. But it may be whole, and then a start after a crash would count it.
        """
        assert self._handle is not None, "BUG: a closed journal is not cut"
        if self._disk.open_size_bytes(self._handle) > self.sound_bytes:
            self._disk.truncate(self._handle, self.sound_bytes, "files.journal.cut")
            self._disk.sync(self._handle, "files.journal.cut_sync")

    def close(self) -> None:
        """Let go of the file."""
        if self._handle is not None:
            self._disk.close(self._handle)
            self._handle = None

    def _write(self, frames: list[bytes]) -> None:
        assert self._handle is not None, "BUG: a closed journal takes nothing"
        written = write_all(self._disk, self._handle, frames, "files.journal.write")
        self._disk.sync(self._handle, "files.journal.sync")
        self.sound_bytes += written


def read_journal(disk: Disk, path: PurePath, end: int | None = None) -> Contents | None:
    """Return what a journal holds up to `end`; None if it does not even have a first frame."""
    whole = read_pages(disk, path).view[:end]
    bodies = _bodies(whole)
    first = next(bodies, None)
    if first is None or first.kind != _REMEMBERED or first.offset != 0:
        return None
    offsets, damaged, expected, torn_at = array("Q"), False, first.end, None
    for body in bodies:
        if body.offset != expected:
            # A gap. Until a batch begins behind it, it may be the end of what a power cut left:
            # from here on nothing counts. The first such gap decides, later ones lie behind it.
            damaged, torn_at = True, len(offsets) if torn_at is None else torn_at
        expected = body.end
        if body.kind == _BATCH:
            torn_at = None  # what stands before it was synced
        elif body.kind == _EVENT:
            offsets.append(body.offset)
    remembered = [JournalIdentity(*item) for item in orjson.loads(first.meta)]
    return Contents(remembered, Records(whole, offsets[:torn_at]), damaged)


class _Body(NamedTuple):
    offset: int
    end: int
    kind: int
    meta: memoryview
    payload: memoryview


def _frame(kind: int, meta: bytes, payload: bytes) -> bytes:
    body = _BODY.pack(kind, len(meta)) + meta + payload
    return _FRAME.pack(MAGIC, len(body), xxhash.xxh3_64_intdigest(body)) + body


def _bodies(whole: memoryview) -> Iterator[_Body]:
    """Yield all sound frames, in order.

    Behind damage the next frame is looked for by its magic. A payload may contain those four
    bytes, too; then the checksum does not match, and the search continues one byte further.
    """
    offset = 0
    while offset + _FRAME.size <= len(whole):
        body = _body_at(whole, offset)
        if body is None:
            found = re.search(re.escape(MAGIC), whole[offset + 1 :])
            if found is None:
                return
            offset += 1 + found.start()
        else:
            yield body
            offset = body.end


def _body_at(whole: memoryview, offset: int) -> _Body | None:
    magic, length, checksum = _FRAME.unpack_from(whole, offset)
    start = offset + _FRAME.size
    body = whole[start : start + length]
    if magic != MAGIC or len(body) != length or length < _BODY.size:
        return None
    if xxhash.xxh3_64_intdigest(body) != checksum:
        return None
    kind, meta_length = _BODY.unpack_from(body)
    cut = _BODY.size + meta_length
    return _Body(offset, start + length, kind, body[_BODY.size : cut], body[cut:])
