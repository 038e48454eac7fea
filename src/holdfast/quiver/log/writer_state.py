"""What the writer has in memory: the open buffer, producers, counters; and who gives it room.

**The open buffer** holds the accepted bundles that are not yet in a segment.

**Idempotent producers.** A producer numbers its appends with epochs that only grow. The same epoch
again is answered with the receipt of the first time, an older one is refused. Memory is bounded by
count and by age.
"""

from __future__ import annotations

import contextlib
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from holdfast.errors import BadInput, HoldfastError, NotAccepted, StaleEpoch
from holdfast.quiver.base.bundle import ENVELOPE_BYTES
from holdfast.quiver.base.config import ProducerConfig, SegmentConfig
from holdfast.quiver.base.frame import HEADER_BYTES, NO_WATERMARK, Totals
from holdfast.quiver.base.held_bundle import HeldBundle
from holdfast.seam.clock import Clock

EPOCH_MAX = 2**63 - 1
NAME_BYTES_MAX = 1024


class LastAppend(NamedTuple):
    """The newest append of a producer."""

    epoch: int
    seq: int
    bundles: int
    events: int
    time_ns: int


def check_producer(producer: str | None, epoch: int | None) -> int:
    """Return the epoch (0: none) if producer and epoch are well formed."""
    if producer is None:
        if epoch is not None:
            raise BadInput("an epoch without a producer", hint="name the producer too")
        return 0
    if not 0 < _text_bytes(producer) <= NAME_BYTES_MAX:
        raise BadInput(
            "the producer's name is empty, too long, or no text",
            hint=f"use text of 1 to {NAME_BYTES_MAX} bytes",
        )
    if epoch is None:
        return 0
    if not _within(epoch, 1, EPOCH_MAX):
        raise BadInput(f"epoch {epoch!r}", hint=f"epochs are whole numbers from 1 to {EPOCH_MAX}")
    return epoch


def _within(number: object, lowest: int, highest: int) -> bool:
    return isinstance(number, int) and lowest <= number <= highest


def _text_bytes(name: object) -> int:
    try:
        return len(name.encode()) if isinstance(name, str) else 0
    except UnicodeEncodeError:  # half of a surrogate pair
        return 0


def check_watermark(watermark_ns: int | None) -> int:
    """Return the watermark as frames have it."""
    if watermark_ns is None:
        return NO_WATERMARK
    if not _within(watermark_ns, NO_WATERMARK + 1, -NO_WATERMARK - 1):
        raise BadInput(
            f"watermark {watermark_ns!r}", hint="a watermark is in nanoseconds and has 64 bits"
        )
    return watermark_ns


class Producers:
    """The table of last epochs. One thread only."""

    def __init__(self, config: ProducerConfig) -> None:
        self._config = config
        # By which clock they are forgotten; None, as at a start: by none.
        self.now_ns: Callable[[], int] | None = None
        self._last: OrderedDict[str, LastAppend] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last)

    def seen(self, producer: str, epoch: int) -> LastAppend | None:
        """Return the append that already carried this epoch; raise if a newer one did."""
        last = self._last.get(producer)
        if last is None or epoch > last.epoch:
            return None
        if epoch < last.epoch:
            raise self.stale(producer, epoch, last.epoch)
        return last

    @staticmethod
    def stale(producer: str, epoch: int, newer: int) -> StaleEpoch:
        """Return the error for an epoch that was overtaken."""
        return StaleEpoch(
            f"producer {producer!r} appends epoch {epoch} after epoch {newer}",
            hint="another instance of this producer has taken over, or epochs were reset",
        )

    def record(self, producer: str, append: LastAppend) -> None:
        """Remember a durable append; an older epoch changes nothing."""
        last = self._last.get(producer)
        if last is not None and last.epoch > append.epoch:
            return
        self._last[producer] = append
        self._last.move_to_end(producer)
        self._forget()

    def absorb(self, producer: str, bundle: LastAppend) -> None:
        """Remember one recovered bundle; the bundles of one transaction add up."""
        # Recovery meets the bundles of one append one at a time; the receipt that a repeat is
        # answered with names the first seq and the sum.
        last = self._last.get(producer)
        if last is not None and last.epoch == bundle.epoch and bundle.seq > last.seq:
            bundle = last._replace(
                bundles=last.bundles + bundle.bundles, events=last.events + bundle.events
            )
        self.record(producer, bundle)

    def snapshot(self) -> dict[str, LastAppend]:
        """Return a copy of the table."""
        return dict(self._last)

    def _forget(self) -> None:
        ttl_ns = int(self._config.ttl_s * 1e9)
        oldest_ns = -math.inf if self.now_ns is None else self.now_ns() - ttl_ns
        while self._last:
            name, last = next(iter(self._last.items()))
            # Ordered by the last append, so the first entry is the oldest; the loop ends at the
            # first that stays.
            if len(self._last) <= self._config.max_count and last.time_ns >= oldest_ns:
                return
            del self._last[name]


@dataclass
class OpenBuffer:
    """Consecutive bundles on their way into one segment.

    Only the writer adds; a reader takes a snapshot of `bundles` (list slicing is atomic).
    """

    opened_at_s: float
    bundles: list[HeldBundle] = field(default_factory=list)
    size_bytes: int = 0
    # A reader waits for it to be sealed.
    is_wanted: bool = False
    # Called once the segment is durable, or with an error if it cannot be: answers appends that
    # asked for level `segment`, and `flush`.
    on_sealed: list[Callable[[HoldfastError | None], None]] = field(default_factory=list)

    def add(self, *bundles: HeldBundle) -> None:
        """Take the bundles of whole appends; seqs only grow, readers see all of them or none."""
        assert not self.bundles or bundles[0].seq > self.bundles[-1].seq, "BUG: seqs must grow"
        # Headers and rows count: a million empty bundles are not free, nor are as many null rows.
        self.size_bytes += sum(
            [len(held.payload) + HEADER_BYTES + held.events * ENVELOPE_BYTES for held in bundles]
        )
        self.bundles.extend(bundles)

    def is_due(self, config: SegmentConfig, room: Room | None, now_s: float) -> bool:
        """Whether it is to be sealed, however small it is.

        Not as long as there would be too many segments; unless an append or a flush waits for it.
        """
        return now_s >= self._usually_due_s(config) and now_s >= self.due_s(config, room)

    def look_s(self, config: SegmentConfig, room: Room | None, now_s: float) -> float:
        """Return when to look whether it is to be sealed: segments may have gone by then."""
        usually_s = self._usually_due_s(config)
        if now_s < usually_s:
            return usually_s
        return min(self.due_s(config, room), now_s + config.max_open_duration_s)

    def _usually_due_s(self, config: SegmentConfig) -> float:
        """Return when it is due at the earliest; to ask about segments takes far longer."""
        longest_s = config.max_open_duration_s
        wait_s = min(config.min_open_duration_s, longest_s) if self.is_wanted else longest_s
        return self.opened_at_s + wait_s

    def due_s(self, config: SegmentConfig, room: Room | None) -> float:
        """Return when it is due; later than usual where there would be too many segments."""
        due_s = self._usually_due_s(config)
        if room is not None and not self.on_sealed:
            due_s = max(due_s, self.opened_at_s + room.earliest_seal_s())
        return due_s

    @property
    def first_seq(self) -> int:
        """The seq of the oldest bundle."""
        return self.bundles[0].seq

    @property
    def last_seq(self) -> int:
        """The seq of the newest bundle."""
        return self.bundles[-1].seq


@dataclass
class WriterCounters:
    """What the writer did so far. Written by its thread only."""

    appends: int = 0
    bundles: int = 0
    events: int = 0
    payload_bytes: int = 0
    groups: int = 0
    syncs: int = 0
    sync_seconds: float = 0.0
    sync_seconds_max: float = 0.0
    write_failures: int = 0
    sync_failures: int = 0
    stall_seconds: float = 0.0
    stall_seconds_max: float = 0.0
    # Appends waited this long for room: for the sealer, or because a cap was reached.
    blocked_seconds: float = 0.0

    def count(self, appends: int, bundles: Sequence[HeldBundle]) -> int:
        """Count a group; at once, because the writer's time per append is short."""
        events = sum([held.events for held in bundles])
        self.appends += appends
        self.bundles += len(bundles)
        self.events += events
        self.payload_bytes += sum([len(held.payload) for held in bundles])
        return events

    def synced(self, took_s: float) -> None:
        """Count a sync."""
        self.syncs += 1
        self.sync_seconds += took_s
        self.sync_seconds_max = max(self.sync_seconds_max, took_s)

    def stalled(self, took_s: float) -> None:
        """Count that the writer waited for the sealer."""
        self.stall_seconds += took_s
        self.stall_seconds_max = max(self.stall_seconds_max, took_s)

    @contextlib.contextmanager
    def blocked(self, clock: Clock) -> Iterator[float]:
        """Count how long appends wait for room, however that ends."""
        started_s = clock.monotonic_s()
        try:
            yield started_s
        finally:
            self.blocked_seconds += clock.monotonic_s() - started_s


@dataclass(frozen=True)
class WriterStart:
    """Where recovery ended and the writer begins."""

    quiver_id: str
    next_seq: int
    next_wal_number: int
    # Number of the newest WAL file of the last process, how far it counts, what it holds there.
    previous: tuple[int, int, Totals]
    # What the old files hold, but not on stable storage for certain.
    copied: list[list[HeldBundle]]
    # How far the newest file may count if there is no room for copies, and what it holds there.
    trusted: tuple[int, Totals] | None
    # What the quiver ever accepted.
    accepted: Totals
    producers: Producers
    buffer: OpenBuffer


class Room(Protocol):
    """Who says whether there is room for more."""

    def refusal(self, size_bytes: int) -> NotAccepted | None:
        """Return why an append of this size must wait, None if it need not."""

    def earliest_seal_s(self) -> float:
        """Return the age before which a buffer is not sealed for its age alone."""

    def make_room(self) -> bool:
        """Remove something for an append that the disk refused; return whether that was so."""

    def refused(self, size_bytes: int) -> None:
        """Remember that a producer was refused because the disk is full."""

    def wait_freed(self, timeout_s: float) -> None:
        """Wait until there may be room again."""

    def throttled(self) -> None:
        """Count that an append had to wait."""
