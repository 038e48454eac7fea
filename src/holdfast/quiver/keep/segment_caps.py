"""Caps of a subscriber that takes whole segments: counted as they lie on disk, dropped as a whole.

A data node gets segments byte for byte. What waits for it costs what its segments occupy, which may
be several times their payload, so `max_segment_bytes` counts that. And a segment of which half was
dropped would be sent all the same, so a cap takes all of it or nothing.

With `drop_copied` a segment is dropped only while somebody else still holds it: another owner that
says so when it is asked because of that. Who that is, the quiver does not know; whoever sends to
the nodes tells (`copied`), and has to ask them first, so its first answer is no. Without anybody
who tells, nothing is dropped, and appends wait: the last copy of anything is never given up for a
limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from holdfast.quiver.base.frame import Totals
from holdfast.quiver.ledger.ledger import Ledger, resolution
from holdfast.quiver.ledger.subscriber import Outcome, Resolution, Subscriber
from holdfast.quiver.read.parts import waiting_segments
from holdfast.quiver.read.readable_bundles import ReadableBundles
from holdfast.quiver.segments.segment import Catalog, Segment
from holdfast.seam.clock import Clock


class _Counted(NamedTuple):
    """What waited for a subscriber when its segments were last counted."""

    segments: tuple[Segment, ...]
    resolved: Totals
    waiting_bytes: int


class SegmentCaps:
    """Keeps such subscribers within their caps. Safe to use from many threads."""

    def __init__(
        self,
        clock: Clock,
        ledger: Ledger,
        catalog: Catalog,
        readable: ReadableBundles,
        is_pinned: Callable[[Subscriber, int, int], bool],
    ) -> None:
        # Whether somebody else than a subscriber holds a range of a quiver's seqs, now. It is
        # called with locks of the quiver held, and must take none that is held around one of them.
        self.copied: Callable[[str, str, int, int], bool] = _nobody
        # Hears how many segments a subscriber lost to its cap.
        self.on_dropped: Callable[[str, int], None] = lambda name, segments: None
        self._clock = clock
        self._ledger = ledger
        self._catalog = catalog
        self._readable = readable
        self._is_pinned = is_pinned
        self._counted: dict[tuple[str, int, int], _Counted] = {}

    def may_drop(self, subscriber: Subscriber, segment: Segment) -> bool:
        """Whether a segment that waits for a subscriber may go for want of room."""
        if subscriber.options.on_full != "drop_copied":
            return subscriber.options.on_full == "drop_oldest"
        summary = segment.summary
        return self.copied(
            subscriber.name, summary.quiver_id, summary.first_seq, summary.last_seq + 1
        )

    def enforce(self, subscriber: Subscriber, now_ns: int) -> None:
        """Drop what may go until a subscriber is within its caps."""
        with self._ledger.lock:
            if subscriber.options.on_full != "block" and self._beyond(subscriber, now_ns):
                self._drop(subscriber, now_ns)

    def beyond(self, subscriber: Subscriber, now_ns: int) -> str | None:
        """Say why appends must wait for a subscriber; None if they need not.

        With `drop_oldest` what is left is on its way, and nobody waits for that.
        """
        if subscriber.options.on_full == "drop_oldest":
            return None
        with self._ledger.lock:
            return self._beyond(subscriber, now_ns)

    def _beyond(self, subscriber: Subscriber, now_ns: int) -> str | None:
        options = subscriber.options
        most_bytes = options.max_segment_bytes
        if most_bytes is not None and self._waiting_bytes(subscriber) > most_bytes:
            return f"{most_bytes} bytes of segments behind (max_segment_bytes)"
        oldest = next(self._waiting(subscriber), None)
        if oldest is not None and self._is_old(subscriber, oldest, now_ns):
            return f"{options.max_age_s} s behind (max_age_s)"
        return None

    def _waiting(self, subscriber: Subscriber) -> Iterator[Segment]:
        return waiting_segments(self._catalog.snapshot(), subscriber)

    def _waiting_bytes(self, subscriber: Subscriber) -> int:
        """Return what the segments that wait occupy; counted again only when something changed."""
        segments, resolved = self._catalog.snapshot(), subscriber.resolved_totals
        key = (subscriber.name, subscriber.start_seq, subscriber.reopened)
        counted = self._counted.get(key)
        is_current = (
            counted is not None and counted.segments is segments and counted.resolved == resolved
        )
        if counted is None or not is_current:
            waiting_bytes = sum(segment.disk_bytes for segment in self._waiting(subscriber))
            counted = _Counted(segments, resolved, waiting_bytes)
            # At most one entry per name: those of earlier registrations and replays are not asked
            # for again. `is segments` above is enough to compare, because the catalog makes a new
            # tuple for each change.
            others = {one: known for one, known in self._counted.items() if one[0] != key[0]}
            self._counted = {**others, key: counted}
        return counted.waiting_bytes

    def _is_old(self, subscriber: Subscriber, segment: Segment, now_ns: int) -> bool:
        """Whether a segment as a whole is older than what may wait."""
        max_age_s = subscriber.options.max_age_s
        if max_age_s is None:
            return False
        return segment.summary.max_ingestion_ns < now_ns - int(max_age_s * 1e9)

    def _drop(self, subscriber: Subscriber, now_ns: int) -> None:
        """Resolve whole segments, oldest first, each that may go."""
        lines: list[Resolution] = []
        most_bytes = subscriber.options.max_segment_bytes
        over_bytes = 0 if most_bytes is None else self._waiting_bytes(subscriber) - most_bytes
        for segment in self._waiting(subscriber):
            is_old = self._is_old(subscriber, segment, now_ns)
            if not is_old and over_bytes <= 0:
                break
            first, end = segment.summary.first_seq, segment.summary.last_seq + 1
            pinned = self._is_pinned(subscriber, first, end)
            # Passed over, not a reason to stop: a younger segment that another owner holds too may
            # go while the oldest, the last copy of its data, stays.
            if pinned or not self.may_drop(subscriber, segment):
                continue
            over_bytes -= segment.disk_bytes
            lines.append(
                resolution(
                    self._clock.wall_ns(),
                    subscriber.name,
                    max(first, subscriber.start_seq),
                    end,
                    Outcome.EXPIRED if is_old else Outcome.DROPPED,
                    self._readable.unresolved(subscriber, segment),
                    "max_age_s" if is_old else "max_segment_bytes",
                )
            )
        if lines:
            self._ledger.resolve(lines)
            dropped = sum(line.outcome is Outcome.DROPPED for line in lines)
            self.on_dropped(subscriber.name, dropped)


def _nobody(name: str, quiver_id: str, first_seq: int, end_seq: int) -> bool:
    """Without anybody who tells, everything is the last copy."""
    return False
