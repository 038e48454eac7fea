"""Whole sealed segments, in any order: for a reader that takes them as they are on disk.

A data node gets segments byte for byte, so for it a segment is resolved as a whole. Nothing is read
here, and nothing of the open buffer is seen: what is offered is durable and does not change.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence

from holdfast.quiver.ledger.ledger import ANY_GENERATION
from holdfast.quiver.ledger.subscriber import LOSSES, Outcome, Position, Resolution, Subscriber
from holdfast.quiver.read.attachment import Attachment, ReadableQuiver
from holdfast.quiver.segments.segment import Segment


class PartReader(Attachment):
    """Hands out the segments of which something waits for a subscriber."""

    def __init__(
        self, store: ReadableQuiver, name: str, segments: Callable[[], Sequence[Segment]]
    ) -> None:
        super().__init__(store, name)
        self._segments = segments

    def waiting(self, from_seq: int = 0) -> Iterator[Segment]:
        """Yield the segments from a seq on of which something is not resolved, oldest first."""
        return waiting_segments(self._segments(), self.subscriber, from_seq)

    def waiting_newest(self, from_seq: int) -> Iterator[Segment]:
        """Yield those that begin at a seq or behind it, newest first."""
        subscriber = self.subscriber
        for segment in reversed(self._segments()):
            summary = segment.summary
            if summary.first_seq < from_seq:
                return
            if subscriber.unresolved(summary.first_seq, summary.last_seq + 1):
                yield segment

    def pin(self, segments: Iterable[Segment], seconds: float, max_pin_s: float) -> None:
        """Keep retention from these segments for so long, because they are on their way.

        What is dropped while a node takes it would be lost by the ledger, and there by the node's.
        The pin is not synced: after a crash nothing is on its way.
        """
        # A pin ends `max_pin_s` after its timestamp. One that should end sooner is written as if
        # it had been taken earlier; the ledger's format has no field for a shorter life.
        since_ns = self._ledger.steady.now_ns() + int((seconds - max_pin_s) * 1e9)
        with self._ledger.lock:
            self._require_current()
            for segment in segments:
                first, end = segment.summary.first_seq, segment.summary.last_seq + 1
                if self.subscriber.unresolved(first, end):
                    self._ledger.change(
                        "pin", self.name, first_seq=first, end_seq=end, since_ns=since_ns
                    )

    def resolve(self, segment: Segment, outcome: Outcome, reason: str = "") -> bool:
        """Decide a segment; return whether it still waited."""
        with self._ledger.lock:
            self._require_current()
            return resolve_segment(
                self._store, self.name, segment, outcome, reason, self.generation
            )


def waiting_segments(
    segments: Sequence[Segment], subscriber: Subscriber, from_seq: int = 0
) -> Iterator[Segment]:
    """Yield the segments of which something is not resolved for a subscriber, oldest first."""
    first_seq = max(from_seq, subscriber.high_water_seq)
    # By their last seqs: the segment that holds the high-water mark in its middle is the first
    # wanted.
    place = bisect.bisect_left(segments, first_seq, key=lambda one: one.summary.last_seq)
    for segment in segments[place:]:
        first, end = segment.summary.first_seq, segment.summary.last_seq + 1
        if end > subscriber.start_seq and subscriber.unresolved(first, end):
            yield segment


def resolve_segment(
    store: ReadableQuiver,
    name: str,
    segment: Segment,
    outcome: Outcome,
    reason: str,
    generation: int = ANY_GENERATION,
) -> bool:
    """Decide what waits of a segment for a subscriber; return whether anything did.

    Numbers before the segment that no bundle has are decided with it, or they would keep the
    subscriber's high-water mark for ever. Only a loss names nothing but the segment.
    """
    summary = segment.summary
    with store.ledger.lock:
        subscriber = store.ledger.subscriber(name)
        first = max(summary.first_seq, subscriber.start_seq)
        if not subscriber.unresolved(first, summary.last_seq + 1):
            return False
        if outcome not in LOSSES:
            first = max(store.readable.unused_before(summary.first_seq), subscriber.start_seq)
        line = Resolution(
            store.clock.wall_ns(),
            name,
            generation,
            Position(first),
            Position(summary.last_seq + 1),
            outcome,
            store.readable.unresolved(subscriber, segment),
            reason,
        )
        store.ledger.resolve([line])
    store.freed()
    return True
