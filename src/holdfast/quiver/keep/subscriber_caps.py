"""Caps of a subscriber: how many bytes may wait for it, and for how long.

With `on_full="block"` appends wait while it is beyond them; with `drop_oldest` its oldest bundles
are dropped until it is not, one by one: they stay where they are for everybody else. Whoever takes
whole segments has other caps (segment_caps.py).

Whether somebody is beyond a cap is asked at every append. So what waits is counted only when it may
be too much, and remembered: see `_lag` and `_is_late`.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from holdfast.quiver.base.frame import Totals
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.quiver.ledger.ledger import Ledger, resolution
from holdfast.quiver.ledger.subscriber import Outcome, Resolution, Subscriber
from holdfast.quiver.read.readable_bundles import ReadableBundles
from holdfast.quiver.segments.segment import BundleRef, Catalog, Segment
from holdfast.seam.clock import Clock


class Lag(NamedTuple):
    """What waited for a subscriber when it was last counted."""

    waiting_bytes: int
    # By then the quiver had accepted so much, and the subscriber resolved so much.
    accepted_bytes: int
    resolved: Totals


class SubscriberCaps:
    """Keeps subscribers within their caps. Safe to use from many threads."""

    def __init__(
        self,
        clock: Clock,
        ledger: Ledger,
        catalog: Catalog,
        readable: ReadableBundles,
        leased: Callable[[str], Collection[int]],
        is_pinned: Callable[[Subscriber, int, int], bool],
    ) -> None:
        # Hears how many segments a subscriber lost to its cap.
        self.on_dropped: Callable[[str, int], None] = lambda name, segments: None
        self._clock = clock
        self._ledger = ledger
        self._catalog = catalog
        self._readable = readable
        self._leased = leased
        self._is_pinned = is_pinned
        # By subscriber, until outcomes are taken back.
        self._lags: dict[tuple[str, int], Lag] = {}
        # Nothing that waits was ingested before this.
        self._oldest_ns: dict[tuple[str, int], int] = {}

    def beyond(self, subscriber: Subscriber) -> str | None:
        """Say why appends must wait for a subscriber; None if they need not."""
        options = subscriber.options
        if options.on_full != "block":
            return None
        if options.max_bytes is not None and self._lag(subscriber, options.max_bytes):
            return f"{options.max_bytes} bytes behind (max_bytes)"
        if options.max_age_s is not None and self._is_late(subscriber, options.max_age_s):
            return f"{options.max_age_s} s behind (max_age_s)"
        return None

    def forget(self, name: str) -> None:
        """Forget the lag of a subscriber: more may wait for the next one of that name."""
        self._lags = {key: lag for key, lag in self._lags.items() if key[0] != name}
        self._oldest_ns = {k: oldest for k, oldest in self._oldest_ns.items() if k[0] != name}

    def _lag(self, subscriber: Subscriber, max_bytes: int) -> int:
        """Return how many bytes more than `max_bytes` wait for a subscriber; 0 if not more.

        They are counted only when it may be so. Of a subscriber that resolves nothing, such as a
        dead one at its cap, they are known without counting: what was accepted since waits for it.
        """
        key, accepted = _key_of(subscriber), self._readable.accepted_payload_bytes()
        lag = self._lags.get(key)
        if lag is not None:
            waiting_bytes = lag.waiting_bytes + accepted - lag.accepted_bytes
            if waiting_bytes <= max_bytes:
                return 0
            if lag.resolved == subscriber.resolved_totals:
                return waiting_bytes - max_bytes
        with self._ledger.lock:
            accepted = self._readable.accepted_payload_bytes()
            _, waiting_bytes = self._readable.waiting(subscriber)
            self._lags[key] = Lag(waiting_bytes, accepted, subscriber.resolved_totals)
        return max(0, waiting_bytes - max_bytes)

    def _is_late(self, subscriber: Subscriber, max_age_s: float) -> bool:
        """Whether something older waits for a subscriber; looked up only when it may be so."""
        key, now_ns = _key_of(subscriber), self._ledger.steady.age_now_ns()
        limit_ns = now_ns - int(max_age_s * 1e9)
        if self._oldest_ns.get(key, limit_ns - 1) >= limit_ns:
            return False
        with self._ledger.lock:
            oldest_ns = self._readable.oldest_waiting_ns(subscriber)
        self._oldest_ns[key] = now_ns if oldest_ns is None else oldest_ns
        return oldest_ns is not None and oldest_ns < limit_ns

    # ----------------------------------------------------------------- dropping

    def drop_beyond(self, subscriber: Subscriber) -> None:
        """Resolve the oldest bundles of a subscriber until it is within its caps."""
        options = subscriber.options
        # Before the ledger's lock: a lease takes its own first, and the ledger's second.
        leased = self._leased(subscriber.name)
        with self._ledger.lock:
            over_bytes = (
                0 if options.max_bytes is None else self._lag(subscriber, options.max_bytes)
            )
            oldest_ns = 0
            if options.max_age_s is not None and self._is_late(subscriber, options.max_age_s):
                oldest_ns = self._ledger.steady.age_now_ns() - int(options.max_age_s * 1e9)
            lines: list[Resolution] = []
            dropped_bytes = 0
            for ref in self._readable.refs(subscriber.high_water_seq):
                too_old = ref.ingestion_ns < oldest_ns
                if not too_old and dropped_bytes >= over_bytes:
                    break
                if ref.seq in subscriber.resolved or ref.seq in leased:
                    continue
                if not self._is_pinned(subscriber, ref.seq, ref.seq + 1):
                    dropped_bytes += ref.size_bytes
                    self._add_line(lines, subscriber, ref, too_old=too_old)
            if not lines:
                return
            key, resolved = _key_of(subscriber), subscriber.resolved_totals
            waiting = self._waiting_in(subscriber, lines)
            self._ledger.resolve(lines)
            self.on_dropped(subscriber.name, _ended_by(subscriber, waiting, lines))
            lag = self._lags.get(key)
            if lag is not None and lag.resolved == resolved:
                # It is still counted: nothing but this was resolved since.
                left_bytes = lag.waiting_bytes - dropped_bytes
                self._lags[key] = Lag(left_bytes, lag.accepted_bytes, subscriber.resolved_totals)

    def _add_line(
        self, lines: list[Resolution], subscriber: Subscriber, ref: BundleRef, *, too_old: bool
    ) -> None:
        """Add a bundle that is dropped; consecutive ones share a line."""
        outcome = Outcome.EXPIRED if too_old else Outcome.DROPPED
        reason = "max_age_s" if too_old else "max_bytes"
        first, counts = ref.owned_from, Totals(1, ref.events - subscriber.partial.get(ref.seq, 0))
        if lines and lines[-1].end.seq == first and lines[-1].outcome is outcome:
            last = lines.pop()
            first, counts = last.start.seq, last.counts.plus(*counts)
        now_ns = self._clock.wall_ns()
        lines.append(
            resolution(now_ns, subscriber.name, first, ref.seq + 1, outcome, counts, reason)
        )

    def _waiting_in(self, subscriber: Subscriber, lines: Sequence[Resolution]) -> list[Segment]:
        """Return the segments within reach of some lines that still wait for a subscriber."""
        segments = self._catalog.snapshot()
        begin = bisect.bisect_left(
            segments, lines[0].start.seq, key=lambda one: one.summary.last_seq
        )
        end = bisect.bisect_left(segments, lines[-1].end.seq, key=lambda one: one.summary.first_seq)
        return [one for one in segments[begin:end] if _waits_for(subscriber, one)]


def _ended_by(
    subscriber: Subscriber, waiting: Sequence[Segment], lines: Sequence[Resolution]
) -> int:
    """Count the segments of which nothing waits any more because the rest was dropped.

    A bundle that went before its segment was sealed is in none, and is counted as a bundle only.
    """
    dropped = IntervalSet(
        (line.start.seq, line.end.seq) for line in lines if line.outcome is Outcome.DROPPED
    )
    return sum(
        not _waits_for(subscriber, one)
        and dropped.overlaps(one.summary.first_seq, one.summary.last_seq + 1)
        for one in waiting
    )


def _waits_for(subscriber: Subscriber, segment: Segment) -> bool:
    return subscriber.unresolved(segment.summary.first_seq, segment.summary.last_seq + 1)


def _key_of(subscriber: Subscriber) -> tuple[str, int]:
    return subscriber.name, subscriber.reopened
