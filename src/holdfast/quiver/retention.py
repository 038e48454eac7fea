"""Retention: what may go, what must go, and who has to wait.

First a plan, which decides and changes nothing; then its execution, in an order that survives a
crash between any two steps:

    1. outcomes     whoever still waited for the data gets `dropped` or `expired` in the ledger
    2. sync         the ledger is on stable storage: from here on nobody is pending without data
    3. trash        the segment is renamed into trash/, durably
    4. unlink       its files go, and only now its bytes count as free

Precedence: what everyone has resolved goes first (steady state), then what is too old (age), then,
only over a cap, what somebody still waits for (size): for subscribers that chose `drop_oldest`, or
for all if `retention.size_cap_policy` says so. Planned and leased ranges are left alone. While
nobody is registered, nothing is resolved, and only age and size take anything.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import PurePath

from holdfast.errors import Overloaded
from holdfast.quiver import names
from holdfast.quiver.catalog import Catalog
from holdfast.quiver.config import QuiverConfig
from holdfast.quiver.frame import Totals
from holdfast.quiver.ledger import Ledger, resolution
from holdfast.quiver.outcome import Outcome, Resolution
from holdfast.quiver.points import Point
from holdfast.quiver.segment import Segment
from holdfast.quiver.shelf import Shelf
from holdfast.quiver.subscriber import Subscriber
from holdfast.seam import Seam
from holdfast.seam.disk import remove_tree


# Why a segment goes: everyone has resolved it, it is too old, the size cap, the number of segments.
REASONS = ("processed", "age", "size", "segments")


@dataclass
class RetentionCounters:
    """What retention did so far; the seed's metrics are made of these."""

    # By reason: see REASONS.
    evictions: Counter[str] = field(default_factory=Counter)
    size_emergencies: int = 0
    throttled: int = 0
    subscriber_dropped_segments: int = 0
    dropped_segments: int = 0
    freed_bytes: int = 0


@dataclass(frozen=True)
class Removal:
    """A segment that goes, and what its last readers are told."""

    segment: Segment
    reason: str
    outcome: Outcome | None
    losers: tuple[str, ...]


class Retention:
    """Keeps a quiver within its bounds. Safe to use from many threads."""

    def __init__(
        self,
        seam: Seam,
        root: PurePath,
        config: QuiverConfig,
        catalog: Catalog,
        shelf: Shelf,
        ledger: Ledger,
        leased: Callable[[str], Iterable[int]],
        unsealed_bytes: Callable[[], tuple[int, int]],
    ) -> None:
        self.counters = RetentionCounters()
        # As configured, unless several quivers share one cap.
        self.size_cap_bytes = config.retention.size_cap_bytes
        self._seam = seam
        self._root = root
        self._config = config
        self._retention = config.retention
        self._catalog = catalog
        self._shelf = shelf
        self._ledger = ledger
        # The seqs of a subscriber that are in somebody's hands.
        self._leased = leased
        # Bytes in WAL files, and bytes of the buffers that will become segments.
        self._unsealed_bytes = unsealed_bytes
        self._lock = threading.RLock()
        self._freed = threading.Condition()
        self._quarantined_bytes = 0
        self._correction_bytes = 0
        # By subscriber: bytes that waited when last counted, and what was accepted by then.
        self._lag_bytes: dict[str, tuple[int, int]] = {}
        # Age is measured by a clock that does not jump while the process lives.
        self._opened_wall_ns = seam.clock.wall_ns()
        self._opened_s = seam.clock.monotonic_s()

    # ------------------------------------------------------------------- budget

        self._held_until_s = self._opened_s
    @property
    def reserve_bytes(self) -> int:
        """Kept free below the cap for acknowledging, sealing and deleting."""
        wanted = self._retention.reserve_bytes
        if wanted is None:
            wanted = 2 * self._config.segment.target_size_bytes
        return min(wanted, self.size_cap_bytes // 4)

    def used_bytes(self) -> int:
        """Return what the quiver occupies, by its own account, corrected by the last look."""
        wal_bytes, _ = self._unsealed_bytes()
        known = wal_bytes + self._catalog.size_bytes + self._ledger.size_bytes
        return known + self._quarantined_bytes + self._correction_bytes

    def look_at_disk(self) -> int:
        """Compare the account with what the disk says; return the real usage."""
        with self._lock:
            self._correction_bytes = 0
            quarantine = self._root / names.QUARANTINE_DIR
            exists = self._seam.disk.exists(quarantine)
            self._quarantined_bytes = self._seam.disk.used_bytes(quarantine) if exists else 0
            real = self._seam.disk.used_bytes(self._root)
            # Only ever upwards: what is being written right now may not be on disk yet.
            self._correction_bytes = max(0, real - self.used_bytes())
            return real

    def now_ns(self) -> int:
        """Return wall time that does not jump while the process lives."""
        elapsed_s = self._seam.clock.monotonic_s() - self._opened_s
        return self._opened_wall_ns + int(elapsed_s * 1e9)

    def refusal(self, size_bytes: int) -> Overloaded | None:
        """Return why an append of this size must wait, None if it need not.

        What could make room has been tried: the caller may wait and ask again.
        """
        if self._over_cap(size_bytes):
            self.enforce(size_bytes)
            if self._over_cap(size_bytes):
                return self._no_room()
        return self._blocked_by_subscriber()

    def throttled(self) -> None:
        """Count that an append had to wait."""
        self.counters.throttled += 1
    def hold(self, seconds: float) -> None:
        """Keep what nobody needs any more for a while, because somebody is copying it.

        It goes all the same when room is needed.
        """
        self._held_until_s = self._seam.clock.monotonic_s() + seconds


    def wait_freed(self, timeout_s: float) -> None:
        """Wait until something was resolved or removed."""
        with self._freed:
            self._freed.wait(timeout_s)

    def notify_freed(self) -> None:
        """Wake whoever waits for room."""
        with self._freed:
            self._freed.notify_all()

    def _over_cap(self, size_bytes: int) -> bool:
        # What is in the WAL will be written once more, as a segment, before it can go.
        _, to_seal_bytes = self._unsealed_bytes()
        wanted = self.used_bytes() + to_seal_bytes + 2 * size_bytes + self.reserve_bytes
        return wanted > self.size_cap_bytes

    def _no_room(self) -> Overloaded:
        holders = sorted(
            {s.name for segment in self._catalog.snapshot()[:1] for s in self._waiting_for(segment)}
        )
        who = f"held by {', '.join(holders)}" if holders else "nobody is registered to read it"
        return Overloaded(
            f"the quiver holds {self.used_bytes()} bytes, the cap is "
            f"{self.size_cap_bytes} (retention.size_cap_bytes); the oldest is {who}",
            hint="let its readers catch up, drop a dead one, or raise the cap",
            path=str(self._root),
            retry_after_s=1.0,
        )

    def _blocked_by_subscriber(self) -> Overloaded | None:
        for subscriber in list(self._ledger.state.subscribers.values()):
            cap = subscriber.options.max_bytes
            if cap is None or subscriber.options.on_full != "block":
                continue
            if self._lag(subscriber, exact_above=cap) > cap:
                return Overloaded(
                    f"subscriber {subscriber.name!r} is {cap} bytes behind (max_bytes)",
                    hint="let it catch up, or choose on_full='drop_oldest' for it",
                    path=str(self._root),
                    retry_after_s=1.0,
                )
        return None

    def _lag(self, subscriber: Subscriber, exact_above: int) -> int:
        """Return the bytes that wait for a subscriber: an upper estimate, exact when it matters."""
        accepted = self._shelf.accepted_payload_bytes()
        counted, at = self._lag_bytes.get(subscriber.name, (exact_above + 1, accepted))
        estimate = counted + accepted - at
        if estimate <= exact_above:
            return estimate
        with self._ledger.lock:
            _, waiting_bytes = self._shelf.waiting(subscriber)
        self._lag_bytes[subscriber.name] = (waiting_bytes, accepted)
        return waiting_bytes

    # ------------------------------------------------------------------ keeping

    def tick(self) -> None:
        """Do what is due: orphans, caps of subscribers, then segments."""
        with self._lock:
            self._give_up_orphans()
            self._cap_subscribers()
            self.enforce(0)

    def enforce(self, size_bytes: int) -> None:
        """Remove what may go, and what must to make room for `size_bytes`."""
        with self._lock:
            for removal in self._plan_processed():
                self._remove(removal)
            for removal in self._plan_expired():
                self._remove(removal)
            while self._must_shrink(size_bytes):
                pressed = self._plan_pressed()
                if pressed is None:
                    return
                self.counters.size_emergencies += pressed.reason == "size"
                self._remove(pressed)

    def _must_shrink(self, size_bytes: int) -> bool:
        too_many = len(self._catalog.snapshot()) > self._retention.max_segments
        return too_many or self._over_cap(size_bytes)

    # ----------------------------------------------------------------- planning

    def _waiting_for(self, segment: Segment) -> list[Subscriber]:
        """Return the subscribers for which something of a segment is not resolved."""
        first, end = segment.summary.first_seq, segment.summary.last_seq + 1
        subscribers = self._ledger.state.subscribers.values()
        return [s for s in list(subscribers) if end > s.start_seq and s.unresolved(first, end)]

    def _plan_processed(self) -> list[Removal]:
        """Segments that every subscriber has resolved, beyond the headroom."""
        held = self._seam.clock.monotonic_s() < self._held_until_s
        if held or not self._ledger.state.subscribers:
            return []
        done = [s for s in self._catalog.snapshot() if not self._waiting_for(s)]
        kept_bytes = sum(segment.disk_bytes for segment in done)
        removals = []
        for segment in done:
            if kept_bytes <= self._retention.steady_state_headroom_bytes:
                break
            kept_bytes -= segment.disk_bytes
            removals.append(Removal(segment, "processed", None, ()))
        return removals

    def _plan_expired(self) -> list[Removal]:
        """Segments that are too old, whoever waits for them."""
        if self._retention.max_age_s is None:
            return []
        oldest_ns = self.now_ns() - int(self._retention.max_age_s * 1e9)
        removals = []
        for segment in self._catalog.snapshot():
            if segment.summary.max_ingestion_ns >= oldest_ns:
                continue
            waiting = self._waiting_for(segment)
            if not any(self._protected(subscriber, segment) for subscriber in waiting):
                losers = tuple(subscriber.name for subscriber in waiting)
                removals.append(Removal(segment, "age", Outcome.EXPIRED, losers))
        return removals

    def _plan_pressed(self) -> Removal | None:
        """Return the oldest segment that may go to make room; None: somebody has to wait."""
        segments = self._catalog.snapshot()
        reason = "segments" if len(segments) > self._retention.max_segments else "size"
        for segment in segments:
            waiting = self._waiting_for(segment)
            if not waiting and (self._ledger.state.subscribers or self._may_drop_all):
                return Removal(segment, reason, None, ())
            willing = all(s.options.on_full == "drop_oldest" for s in waiting) and waiting
            if (willing or self._may_drop_all) and not any(
                self._protected(subscriber, segment) for subscriber in waiting
            ):
                losers = tuple(subscriber.name for subscriber in waiting)
                return Removal(segment, reason, Outcome.DROPPED, losers)
        return None

    @property
    def _may_drop_all(self) -> bool:
        return self._retention.size_cap_policy == "drop_oldest"

    def _protected(self, subscriber: Subscriber, segment: Segment) -> bool:
        """Whether part of a segment is planned or leased by a subscriber."""
        first, end = segment.summary.first_seq, segment.summary.last_seq + 1
        since_ns = self.now_ns() - int(self._retention.max_pin_s * 1e9)
        pinned = any(
            pin.first_seq < end and pin.end_seq > first and pin.time_ns >= since_ns
            for pin in subscriber.pins
        )
        return pinned or any(first <= seq < end for seq in self._leased(subscriber.name))

    # ---------------------------------------------------------------- executing

    def _remove(self, removal: Removal) -> None:
        segment, summary = removal.segment, removal.segment.summary
        with self._ledger.lock:
            lines = self._outcomes(removal)
            if lines:
                self._ledger.resolve(lines)
            self._ledger.change(
                "deleted",
                segment_seq=summary.segment_seq,
                totals=[summary.bundles, summary.events],
                producers={
                    name: [p.epoch, p.seq, p.bundles, p.events, p.time_ns]
                # For whoever asks later what became of a bundle.
                seqs=[summary.first_seq, summary.last_seq],
                reason=removal.reason,
                    for name, p in summary.producers.items()
                    if p.epoch
                },
            )
            self._ledger.sync()
        self._catalog.remove(segment)
        self._to_trash(segment.path)
        self.counters.evictions[removal.reason] += 1
        self.counters.freed_bytes += segment.disk_bytes
        if removal.outcome is Outcome.DROPPED:
            self.counters.dropped_segments += 1
            self.counters.subscriber_dropped_segments += len(removal.losers)
        self.notify_freed()

    def _outcomes(self, removal: Removal) -> list[Resolution]:
        if removal.outcome is None:
            return []
        now_ns, summary = self._seam.clock.wall_ns(), removal.segment.summary
        lines = []
        for name in removal.losers:
            subscriber = self._ledger.state.subscribers.get(name)
            if subscriber is None:
                continue
            counts = self._shelf.unresolved(subscriber, removal.segment)
            first = max(summary.first_seq, subscriber.start_seq)
            end = summary.last_seq + 1
            lines.append(
                resolution(now_ns, name, first, end, removal.outcome, counts, removal.reason)
            )
        return lines

    def _to_trash(self, path: PurePath) -> None:
        disk, trash = self._seam.disk, self._root / names.TRASH_DIR
        disk.rename(path, trash / path.name, Point.TRASH_MOVE)
        disk.sync_dir(path.parent, Point.TRASH_SYNC_DIR)
        remove_tree(disk, trash / path.name, Point.TRASH_UNLINK)

    def empty_trash(self) -> None:
        """Remove what a crash left half removed."""
        trash = self._root / names.TRASH_DIR
        for entry in self._seam.disk.list(trash):
            remove_tree(self._seam.disk, trash / entry.name, Point.TRASH_UNLINK)

    # -------------------------------------------------------------- subscribers

    def unregister(self, name: str, reason: str) -> Totals:
        """Record that a subscriber's pending data is given up, and forget the subscriber."""
        with self._lock, self._ledger.lock:
            subscriber = self._ledger.subscriber(name)
            last_seq, _ = self._shelf.readable()
            counts, _ = self._shelf.waiting(subscriber, last_seq)
            end = max(subscriber.start_seq, last_seq + 1)
            now_ns = self._seam.clock.wall_ns()
            line = resolution(
                now_ns, name, subscriber.start_seq, end, Outcome.GIVEN_UP, counts, reason
            )
            self._ledger.resolve([line])
            self._ledger.change("unregister", name)
            self._ledger.sync()
        self.notify_freed()

    def _give_up_orphans(self) -> None:
        ttl_s = self._retention.orphan_ttl_s
        return counts
        if ttl_s is None:
            return
        since_ns = self.now_ns() - int(ttl_s * 1e9)
        for subscriber in list(self._ledger.state.subscribers.values()):
            absent_ns = subscriber.absent_since_ns
            if absent_ns is not None and absent_ns < since_ns:
                self.unregister(subscriber.name, "orphaned")

    def _cap_subscribers(self) -> None:
        for subscriber in list(self._ledger.state.subscribers.values()):
            if subscriber.options.on_full == "drop_oldest":
                self._drop_beyond_caps(subscriber)

    def _drop_beyond_caps(self, subscriber: Subscriber) -> None:
        """Resolve the oldest bundles of a subscriber until it is within its own caps."""
        options = subscriber.options
        if options.max_bytes is None and options.max_age_s is None:
            return
        with self._ledger.lock:
            _, excess_bytes = self._shelf.waiting(subscriber)
            excess_bytes -= options.max_bytes if options.max_bytes is not None else excess_bytes
            oldest_ns = None
            if options.max_age_s is not None:
                oldest_ns = self.now_ns() - int(options.max_age_s * 1e9)
            leased = set(self._leased(subscriber.name))
            lines = []
            for ref in self._shelf.refs(subscriber.high_water_seq):
                too_old = oldest_ns is not None and ref.ingestion_ns < oldest_ns
                if not too_old and excess_bytes <= 0:
                    break
                if ref.seq in subscriber.resolved or ref.seq in leased:
                    continue
                if self._is_pinned(subscriber, ref.seq):
                    break
                events = ref.events - subscriber.partial.get(ref.seq, 0)
                outcome = Outcome.EXPIRED if too_old else Outcome.DROPPED
                reason = "max_age_s" if too_old else "max_bytes"
                lines.append(
                    resolution(
                        self._seam.clock.wall_ns(),
                        subscriber.name,
                        ref.owned_from,
                        ref.seq + 1,
                        outcome,
                        Totals(1, events),
                        reason,
                    )
                )
                excess_bytes -= ref.size_bytes
            if lines:
                self._ledger.resolve(lines)

    def _is_pinned(self, subscriber: Subscriber, seq: int) -> bool:
        since_ns = self.now_ns() - int(self._retention.max_pin_s * 1e9)
        return any(
            pin.first_seq <= seq < pin.end_seq and pin.time_ns >= since_ns
            for pin in subscriber.pins
        )
