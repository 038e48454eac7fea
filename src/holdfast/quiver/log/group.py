"""One commit group: appends that are written together and made durable by one sync.

**Numbers and epochs.** A seq is given out once, when an append is numbered, and never again, even
if the group is not stored: whoever saw it (a log line, an error) must not find other data under
it. An epoch is looked up in three places, nearest first: this group, groups carried over from a
failed write, and the table of durable appends. The first two matter because a producer that
retries fast may have its first attempt still under way.
"""

from __future__ import annotations

import bisect
import itertools
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.quiver.base.config import AckLevel
from holdfast.quiver.base.frame import (
    HEADER_BYTES,
    NO_WATERMARK,
    STAGED,
    FrameKind,
    Totals,
    encode,
    producer_part,
)
from holdfast.quiver.base.held_bundle import HeldBundle, Unread
from holdfast.quiver.log.inbox import Answered, Append, Receipt
from holdfast.quiver.log.writer_state import LastAppend, Producers

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from holdfast.quiver.log.writer_state import Room

COUNT = struct.Struct("<I")


@dataclass(slots=True)
class Numbered:
    """An append with its place in the sequence."""

    # The append, and behind it those that repeat its (producer, epoch).
    appends: list[Append]
    held: list[HeldBundle]
    # Whether it is in the open buffer, and counted as accepted.
    published: bool = False

    @property
    def append(self) -> Append:
        """The append itself."""
        return self.appends[0]

    def receipt(self, quiver_id: str, append: Append) -> Receipt:
        """Return the answer for the producer."""
        held = self.held
        first = held[0]
        events = first.events if len(held) == 1 else sum([one.events for one in held])
        return Receipt(
            quiver_id, first.seq, len(held), events, append.level, append is not self.appends[0]
        )


class Numbering:
    """Gives out sequence numbers and sorts out repeated epochs, within one group.

    `carried` are appends that have their numbers from an earlier group, which failed.
    """

    def __init__(
        self,
        quiver_id: str,
        producers: Producers,
        next_seq: int,
        now_ns: int,
        carried: Sequence[Numbered],
    ) -> None:
        self.next_seq = next_seq
        self.numbered: list[Numbered] = []
        self.refused: list[Answered] = []
        # Repeats of appends of earlier groups, with the receipts of the first time.
        self.repeated: list[tuple[Append, Receipt]] = []
        self._quiver_id = quiver_id
        self._producers = producers
        self._now_ns = now_ns
        self._in_group = {
            item.append.producer: item
            for item in carried
            if item.append.producer is not None and item.append.epoch
        }

    def take(self, append: Append) -> None:
        """Number one append, unless it is refused or repeats another."""
        # From here on the append is the writer's, and a producer that times out is answered
        # "maybe".
        if not append.claim():
            return  # its producer gave up waiting
        if append.producer is not None and append.epoch:
            try:
                if self._repeats(append, append.producer):
                    return
            except HoldfastError as error:
                self.refused.append((append, error))
                return
        numbered = Numbered([append], self._number(append))
        self.numbered.append(numbered)
        if append.producer is not None and append.epoch:
            self._in_group[append.producer] = numbered

    def _repeats(self, append: Append, producer: str) -> bool:
        """Answer an append whose epoch was stored before; return whether it is one.

        The first one may be in this very group, and not durable yet: then the repeat follows it,
        and both get one answer. A repeat that was answered earlier could be acknowledged for data
        that is not stored.
        """
        before = self._in_group.get(producer)
        if before is not None and before.append.epoch >= append.epoch:
            if before.append.epoch > append.epoch:
                raise Producers.stale(producer, append.epoch, before.append.epoch)
            before.appends.append(append)
            return True
        last = self._producers.seen(producer, append.epoch)
        if last is None:
            return False
        receipt = Receipt(
            self._quiver_id, last.seq, last.bundles, last.events, append.level, duplicate=True
        )
        self.repeated.append((append, receipt))
        return True

    def _number(self, append: Append) -> list[HeldBundle]:
        """Give each bundle a seq. A number is given once: if the group fails, it stays unused."""
        held = []
        for kind, payload, events in append.bundles:
            held.append(
                HeldBundle(
                    self.next_seq,
                    kind,
                    self._now_ns,
                    append.watermark_ns,
                    append.producer,
                    append.epoch,
                    events,
                    payload,
                )
            )
            self.next_seq += 1
        return held


class Framing:
    """Turns groups into frames, each with what its file holds before it."""

    def __init__(self, salt: int, end: int, synced_through: int, holds: Totals) -> None:
        # Of the file, with these frames.
        self.end = end
        self._salt = salt
        self._synced_through = synced_through
        self._bundles, self._events = holds
        self._buffers: list[Buffer] = []
        # What ends the last frame, written with the next one's header: a buffer less for each.
        self._padding = b""

    @property
    def buffers(self) -> list[Buffer]:
        """All frames, to be written as they stand."""
        return [*self._buffers, self._padding] if self._padding else self._buffers

    @property
    def holds(self) -> Totals:
        """What the file holds, with these frames."""
        return Totals(self._bundles, self._events)

    def put_all(self, appends: Iterable[list[HeldBundle]]) -> None:
        """Add the frames of some appends, each with its bundles."""
        for bundles in appends:
            # A transaction's frames count only with the COMMIT frame behind them. A single bundle
            # needs none: its own checksum says whether it is all there.
            staged = STAGED if len(bundles) > 1 else 0
            for held in bundles:
                self._put_bundle(held, staged)
            if staged:
                last = bundles[-1]
                body = COUNT.pack(len(bundles))
                self._put(FrameKind.COMMIT, last.seq, last.ingestion_ns, NO_WATERMARK, body)

    def put_close(self, next_seq: int, now_ns: int) -> None:
        """Add the frame that marks a clean end."""
        self._put(FrameKind.CLOSE, next_seq, now_ns, NO_WATERMARK, b"")

    def _put_bundle(self, held: HeldBundle, flags: int) -> None:
        """Add the frame of one bundle, with its producer in front of the payload."""
        seq, kind, ingestion_ns, watermark_ns, producer, epoch, events, payload = held
        if isinstance(payload, Unread):
            # A bundle replayed from an older file is still only a reference to it; copying it into
            # a new file is the one time its bytes are needed.
            payload = payload.read()
        body: bytes | memoryview | pa.Buffer = payload
        extra_bytes = 0
        if producer is not None:
            part = producer_part(producer, epoch)
            body, extra_bytes = b"".join((part, payload)), len(part)
        self._put(kind, seq, ingestion_ns, watermark_ns, body, events, extra_bytes, flags)
        self._bundles += 1
        self._events += events

    def _put(
        self,
        kind: FrameKind,
        seq: int,
        ingestion_ns: int,
        watermark_ns: int,
        body: bytes | memoryview | pa.Buffer,
        events: int = 0,
        extra_bytes: int = 0,
        flags: int = 0,
    ) -> None:
        header, padding = encode(
            self._salt,
            self.end,
            kind,
            seq,
            ingestion_ns,
            self._synced_through,
            watermark_ns,
            body,
            (self._bundles, self._events),
            events,
            extra_bytes,
            flags,
        )
        self._buffers += (self._padding + header, body)
        self._padding = padding
        self.end += HEADER_BYTES + len(body) + len(padding)


def parts(appends: list[Append], room: Room | None) -> tuple[list[list[Append]], bool]:
    """Return a group, and whether there is room for it.

    Where there is none for all of it, it is the first ones that fit, and the rest. Those behind
    wait for room together, and hold up none that needs no more.

    A group is as large as its appends were many, so near a cap it may be refused as a whole
    although most of it would fit. The largest prefix that fits is found by bisection: room is
    monotonic in size, and asking it is not free.
    """
    ends = list(itertools.accumulate([append.size_bytes for append in appends]))
    if room is None or not ends or room.refusal(ends[-1]) is None:
        return [appends], True
    count = bisect.bisect_left(ends, 1, key=lambda size: room.refusal(size) is not None)
    return ([appends[:count], appends[count:]] if count else [appends]), False


def last_append(item: Numbered) -> LastAppend:
    """Return what is remembered of a durable append by a producer with an epoch."""
    first, events = item.held[0], sum(held.events for held in item.held)
    return LastAppend(first.epoch, first.seq, len(item.held), events, first.ingestion_ns)


def answers_from_memory(quiver_id: str, group: Iterable[Numbered]) -> list[Answered]:
    """Return the good news for everyone who waits neither for a write nor for a sync."""
    return [
        (append, item.receipt(quiver_id, append))
        for item in group
        for append in item.appends
        if append.level is AckLevel.MEMORY
    ]
