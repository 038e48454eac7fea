"""The frame: the one record format of the write-ahead log (and later of the ledger).

    offset  size  field
         0     8  magic            MAGIC xor salt
         8     1  kind             see Kind; never renumber
         9     1  flags            STAGED, or 0
        10     2  extra_bytes      length of the producer part at the start of the body
        12     4  body_bytes       length of the body, without padding
        16     8  seq
        24     8  ingestion_ns     nanoseconds since 1970, UTC
        32     8  synced_through   this file was on stable storage up to here when this was written
        40     8  watermark_ns     NO_WATERMARK if none
        48     4  events           in this bundle
        52     4  bundles_before   in this file, before this frame
        56     8  events_before    the same in events
        64     8  body_sum         xxh3-64 of the body, seeded with the salt
        72     8  header_sum       xxh3-64 of bytes 0..71, seeded with salt xor the frame's offset
        80     …  body, then zeros up to a multiple of 8

The salt is drawn at random for every file and kept in its header. It enters the magic and seeds
both checksums, the header's together with the place of the frame in the file: a payload that
contains frames (copied from this file or another, or made by an attacker who read this) is never
mistaken for one while resynchronising. Header and body have a sum each: with a sound header, damage
in the body costs exactly one bundle, and its seq is known. The counts before each frame tell how
many bundles and events a hole swallowed, headers and all.
docs/format/frame.md has an example dump.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAGIC = int.from_bytes(b"HFFRAME1", "little")
ALIGNMENT_BYTES = 8
HEADER_BYTES = 80
# One group, or a transaction of twice this, and a segment's target together stay below 2 GiB: what
# one binary column of an Arrow file can hold.
BODY_BYTES_MAX = 512 * 1024 * 1024
NO_WATERMARK = -(2**63)

_HEAD = struct.Struct("<QBBHIQqQqIIQQ")
_SUM = struct.Struct("<Q")
_MAGIC = struct.Struct("<Q")
_PRODUCER = struct.Struct("<QH")
_HASHED_AT_ONCE_BYTES = 64 * 1024
_PADDING = [bytes(length) for length in range(ALIGNMENT_BYTES)]


# The bundle belongs to a transaction and counts only with the COMMIT behind it.
STAGED = 1


class FrameKind(IntEnum):
    """What a frame's body is. On disk: never renumber."""

    ARROW = 1
    RAW = 2
    CONTROL = 3
    COMMIT = 4
    CLOSE = 5


# The kinds that are bundles.
BUNDLE_KINDS = (FrameKind.ARROW, FrameKind.RAW, FrameKind.CONTROL)


class Totals(NamedTuple):
    """How many bundles, and how many events in them."""

    bundles: int
    events: int

    def plus(self, bundles: int, events: int) -> Totals:
        """Return the totals with so many more."""
        return Totals(self.bundles + bundles, self.events + events)


NOTHING = Totals(0, 0)


class Frame(NamedTuple):
    """One decoded frame; `payload` points into the file."""

    kind: int
    flags: int
    seq: int
    ingestion_ns: int
    synced_through: int
    watermark_ns: int
    producer: str | None
    epoch: int
    events: int
    before: Totals
    payload: memoryview
    end: int

    @property
    def after(self) -> Totals:
        """What the file holds up to and including this frame."""
        return self.before.plus(1, self.events) if self.kind in BUNDLE_KINDS else self.before


class FrameFault(Exception):
    """There is no sound frame at this offset.

    `frame` is what the header says (`payload` is not to be used), if the header is sound and only
    the body is damaged or cut short.
    """

    def __init__(self, reason: str, frame: Frame | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.frame = frame


def frame_bytes(body_bytes: int) -> int:
    """Return the length on disk of a frame with a body of this length."""
    return HEADER_BYTES + body_bytes + -body_bytes % ALIGNMENT_BYTES


def producer_part(producer: str, epoch: int) -> bytes:
    """Return the bytes that stand before the payload in a body that has a producer."""
    name = producer.encode()
    part = _PRODUCER.pack(epoch, len(name)) + name
    return part + _PADDING[-len(part) % ALIGNMENT_BYTES]


def encode(  # noqa: PLR0913, PLR0917  (the fields of a frame; called for every bundle)
    salt: int,
    offset: int,
    kind: int,
    seq: int,
    ingestion_ns: int,
    synced_through: int,
    watermark_ns: int,
    body: Buffer,
    before: tuple[int, int],
    events: int = 0,
    extra_bytes: int = 0,
    flags: int = 0,
) -> tuple[bytes, bytes]:
    """Return the header and the padding that go before and after `body`, at `offset`."""
    body_bytes = len(body)  # type: ignore[arg-type]
    head = _HEAD.pack(
        MAGIC ^ salt,
        kind,
        flags,
        extra_bytes,
        body_bytes,
        seq,
        ingestion_ns,
        synced_through,
        watermark_ns,
        events,
        *before,
        _body_sum(body, body_bytes, salt),
    )
    header = head + _SUM.pack(xxh3_64_intdigest(head, salt ^ offset))
    return header, _PADDING[-body_bytes % ALIGNMENT_BYTES]


def _body_sum(body: Buffer, body_bytes: int, salt: int) -> int:
    if body_bytes <= _HASHED_AT_ONCE_BYTES:
        return xxh3_64_intdigest(body, salt)
    return hashed(body, salt).intdigest()


def hashed(data: Buffer, seed: int = 0) -> xxh3_64:
    """Return the hash of some bytes without giving up the interpreter lock.

    xxhash gives it up for the few microseconds that more than 64 KB take, and has to wait up to
    5 ms for it when producers are busy: most of the time of a loaded writer was that.
    """
    hasher = xxh3_64(seed=seed)
    view = memoryview(data)
    for start in range(0, view.nbytes, _HASHED_AT_ONCE_BYTES):
        hasher.update(view[start : start + _HASHED_AT_ONCE_BYTES])
    return hasher


def decode(view: memoryview, offset: int, salt: int, base: int = 0) -> Frame:
    """Return the frame at `offset`, or raise `FrameFault`. Allocates nothing in proportion.

    `base` is where in the file the view begins.
    """
    body_start = offset + HEADER_BYTES
    if body_start > len(view):
        raise FrameFault("the header is cut short")
    head = view[offset : body_start - 8]
    (
        magic, kind, flags, extra_bytes, body_bytes, seq, time_ns, synced, watermark_ns,
        events, bundles_before, events_before, body_sum,
    ) = _HEAD.unpack(head)  # fmt: skip
    if magic != MAGIC ^ salt:
        raise FrameFault("no frame begins here")
    if _SUM.unpack_from(view, body_start - 8)[0] != xxh3_64_intdigest(head, salt ^ (base + offset)):
        raise FrameFault("the header does not match its checksum")
    body = view[body_start : body_start + body_bytes]
    before, end = Totals(bundles_before, events_before), base + offset + frame_bytes(body_bytes)
    frame = Frame(
        kind, flags, seq, time_ns, synced, watermark_ns, None, 0, events, before, body, end
    )
    if end > base + len(view):
        raise FrameFault("the body is cut short", frame)
    if xxh3_64_intdigest(body, salt) != body_sum:
        raise FrameFault("the body does not match its checksum", frame)
    if not extra_bytes:
        return frame
    name, epoch = _read_producer(body)
    return frame._replace(producer=name, epoch=epoch, payload=body[extra_bytes:])


def _read_producer(body: memoryview) -> tuple[str | None, int]:
    epoch, name_bytes = _PRODUCER.unpack_from(body)
    name = bytes(body[_PRODUCER.size : _PRODUCER.size + name_bytes]).decode()
    return name or None, epoch


def find_next(view: memoryview, offset: int, salt: int, base: int = 0) -> int | None:
    """Return where the next frame header begins at or after `offset`, or None."""
    wanted = _MAGIC.pack(MAGIC ^ salt)
    window_bytes = 1 << 20
    start = offset + -offset % ALIGNMENT_BYTES
    while start + HEADER_BYTES <= len(view):
        window = bytes(view[start : start + window_bytes])
        found = window.find(wanted)
        while found != -1:
            if found % ALIGNMENT_BYTES == 0 and _header_is_sound(view, start + found, salt, base):
                return start + found
            found = window.find(wanted, found + 1)
        start += window_bytes
    return None


def _header_is_sound(view: memoryview, offset: int, salt: int, base: int) -> bool:
    try:
        decode(view, offset, salt, base)
    except FrameFault as fault:
        return fault.frame is not None
    return True
