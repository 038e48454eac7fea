"""Retention: what may go, what must go, and who has to wait.

First a plan, which decides and changes nothing; then its execution, in an order that survives a
crash between any two steps:

    1. outcomes     whoever still waited for the data gets `dropped` or `expired` in the ledger
    2. sync         the ledger is on stable storage: from here on nobody is pending without data
    3. trash        the segment is renamed into trash/, durably (trash.py)
    4. unlink       its files go, and only now its bytes count as free

Between plan and execution anybody may register, plan a range or take outcomes back. So what was
planned is looked at once more under the ledger's lock, which all of them need.

Precedence: what everyone has resolved goes first (steady state), then what is too old (age, by its
arrival or by its events), then, only over a cap, what somebody still waits for (size): for those
that chose `drop_oldest`, or chose `drop_copied` and another holds it, or for all
(`size_cap_policy`). Planned and leased ranges stay. While nobody is registered, nothing is
resolved, and only age and size take anything.

Where there is an archive, a segment has to be in it before it goes, whatever the reason. One that
is not yet stays; at the size cap appends then wait, unless `on_full` lets it go all the same.
"""

from __future__ import annotations

import bisect
import contextlib
import math
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from holdfast.errors import HoldfastError, NotAccepted, Overloaded
from holdfast.quiver.base import names
from holdfast.quiver.base.config import QuiverConfig
from holdfast.quiver.base.frame import Totals
from holdfast.quiver.keep.archiver import Archiver
from holdfast.quiver.keep.disk_room import DiskRoom
from holdfast.quiver.keep.orphans import Orphans
from holdfast.quiver.keep.segment_caps import SegmentCaps
from holdfast.quiver.keep.subscriber_caps import SubscriberCaps
from holdfast.quiver.keep.trash import Trash
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.quiver.ledger.ledger import Ledger, resolution
from holdfast.quiver.ledger.subscriber import Outcome, Resolution, Subscriber
from holdfast.quiver.read.readable_bundles import ReadableBundles
from holdfast.quiver.segments.segment import Catalog, Segment
from holdfast.seam import Seam

# Where no age limit says how long data may wait, `max_segments` lasts for this long.
UNLIMITED_S = 7 * 24 * 3600.0

# What the files of a seal take beside the data: manifest, footer, whole blocks, the next WAL file.
SEAL_FILES_BYTES = 64 * 1024

# Why a segment goes: everyone has resolved it, it is too old, the size cap, the number of segments.
REASONS = ("processed", "age", "size", "segments")


@dataclass
class RetentionCounters:
    """What retention did so far; the seed's metrics are made of these."""

    # By reason: see REASONS.
    evictions: dict[str, int] = field(default_factory=Counter)
    size_emergencies: int = 0
    throttled: int = 0
    # Once for every subscriber that still waited; by its own cap or by that of the quiver.
    subscriber_dropped_segments: int = 0
    dropped_by_subscriber: dict[str, int] = field(default_factory=Counter)
    dropped_segments: int = 0

    def subscriber_lost(self, name: str, segments: int) -> None:
        """Count segments that a subscriber will not get, because room had to be made."""
        if segments:
            self.subscriber_dropped_segments += segments
            self.dropped_by_subscriber[name] += segments


@dataclass(frozen=True)
class Removal:
    """A segment that goes, and what becomes of it for whoever still waits for it."""

    segment: Segment
    reason: str
    # None: nobody may wait for it.
    outcome: Outcome | None


class Retention:
    """Keeps a quiver within its bounds. Safe to use from many threads."""

    def __init__(
        self,
        seam: Seam,
        root: PurePath,
        config: QuiverConfig,
        catalog: Catalog,
        readable: ReadableBundles,
        ledger: Ledger,
        leased: Callable[[str], Collection[int]],
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
        self._readable = readable
        self._ledger = ledger
        # The seqs of a subscriber that are in somebody's hands.
        self._leased = leased
        # Bytes in WAL files, and bytes of the buffers that will become segments.
        self._unsealed_bytes = unsealed_bytes
        self._lock = threading.RLock()
        self._freed = threading.Condition()
        self._reserve = ledger.reserve
        self.disk_room = DiskRoom(seam.disk, root, config, ledger, unsealed_bytes)
        self.trash = Trash(seam.disk, root, ledger.reserve)
        self._quarantined_bytes = 0
        self._correction_bytes = 0
        self._held_until_s = seam.clock.monotonic_s()
        self.segment_caps = SegmentCaps(seam.clock, ledger, catalog, readable, self._is_pinned)
        self._subscriber_caps = SubscriberCaps(
            seam.clock, ledger, catalog, readable, leased, self._is_pinned
        )
        for caps in (self.segment_caps, self._subscriber_caps):
            caps.on_dropped = self.counters.subscriber_lost
        # Where segments have to be before they may go; None: nowhere.
        self.archiver: Archiver | None = None
        self.orphans = Orphans(seam.clock, root, config.retention, ledger, self.unregister)

    # ------------------------------------------------------------------- budget

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
        others = self._quarantined_bytes + self.trash.left_bytes + self._reserve.held_bytes
        return known + others + self._correction_bytes

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
        """Return the time by which the age of data is measured; see `SteadyTime`."""
        return self._ledger.steady.age_now_ns()

    @property
    def has_age_limits(self) -> bool:
        """Whether anything may expire by age."""
        subscribers = self._ledger.state.subscribers.values()
        limits = [*self._age_limits, *(s.options.max_age_s for s in subscribers)]
        return any(limit is not None for limit in limits)

    def refusal(self, size_bytes: int) -> NotAccepted | None:
        """Return why an append of this size must wait, None if it need not.

        What could make room has been tried: the caller may wait and ask again.
        """
        if self._must_shrink(size_bytes):
            # A failing disk must not end the writer: the keeper tells, and there is no room.
            with contextlib.suppress(HoldfastError, OSError):
                self.enforce(size_bytes)
                if self._correction_bytes:
                    self.look_at_disk()  # it may be out of date by now
            if self._must_shrink(size_bytes):
                return self._no_room(size_bytes)
        return self._blocked_by_subscriber()

    def standing_refusal(self, size_bytes: int) -> NotAccepted | None:
        """Return why an append of this size, or of that which was refused last, must wait."""
        refusal = self.refusal(max(size_bytes, self.disk_room.refused_bytes))
        if refusal is None and self.disk_room.look_again():
            return self.disk_room.refusal()
        return refusal

    def hold(self, seconds: float) -> None:
        """Keep what nobody needs any more for a while, because somebody is copying it.

        It goes all the same when room is needed.
        """
        self._held_until_s = self._seam.clock.monotonic_s() + seconds
        with self._lock:
            pass  # a removal that was under way has ended: from now on nothing goes

    def _is_held(self) -> bool:
        return self._seam.clock.monotonic_s() < self._held_until_s

    def refused(self, size_bytes: int) -> None:
        """Remember that a producer was refused because the disk is full."""
        self.disk_room.refused(size_bytes)

    def throttled(self) -> None:
        """Count that an append had to wait."""
        self.counters.throttled += 1

    def wait_freed(self, timeout_s: float) -> None:
        """Wait until something was resolved or removed."""
        with self._freed:
            self._freed.wait(timeout_s)

    def notify_freed(self) -> None:
        """Wake whoever waits for room."""
        with self._freed:
            self._freed.notify_all()

    def _over_cap(self, size_bytes: int) -> bool:
        """Whether the cap leaves no room, also without the spare files of the log."""
        if not self._exceeds_cap(size_bytes):
            return False
        return not self._reserve.give_up_spares() or self._exceeds_cap(size_bytes)

    def _exceeds_cap(self, size_bytes: int) -> bool:
        # What is in the WAL will be written once more, as a segment, before it can go. While the
        # disk has room that takes nothing from the reserve on the disk.
        _, to_seal_bytes = self._unsealed_bytes()
        kept_bytes = max(self.reserve_bytes, self.disk_room.wanted_bytes(size_bytes))
        seal_bytes = to_seal_bytes + min(SEAL_FILES_BYTES, self.size_cap_bytes // 64)
        left_bytes = seal_bytes + max(0, kept_bytes - self._reserve.held_bytes)
        return self.used_bytes() + 2 * size_bytes + left_bytes > self.size_cap_bytes

    def _no_room(self, size_bytes: int) -> NotAccepted:
        """Return the error that names the bound that is reached, and who holds the data."""
        if not self._too_many() and not self._over_cap(size_bytes):
            return self.disk_room.refusal()
        segments = self._catalog.snapshot()
        holders = sorted(self._holders(segments))
        if self.archiver is not None and segments and not self._is_archived(segments[0]):
            why = f"segment.archive: {self.archiver.why_not_yet}"
            holders.append(f"the archive, which does not have it yet ({why})")
        who = f"its oldest is held by {', '.join(holders)}"
        if not holders:
            who = "nobody is registered to read it"
        _, to_seal_bytes = self._unsealed_bytes()
        free_bytes = to_seal_bytes + self.reserve_bytes
        full = (
            f"{len(segments)} segments, the cap is {self._retention.max_segments} "
            "(retention.max_segments)"
            if self._too_many()
            else f"{self.used_bytes()} bytes and keeps {free_bytes} free for sealing, the cap is "
            f"{self.size_cap_bytes} (retention.size_cap_bytes)"
        )
        return Overloaded(
            f"the quiver holds {full}; {who}",
            hint="let its readers catch up, drop a dead one, or raise the cap",
            path=str(self._root),
            retry_after_s=1.0,
        )

    def make_room(self) -> bool:
        """Remove what may go, because the disk refused an append, as a quota does unannounced."""
        if self._reserve.give_up_spares():
            return True
        with contextlib.suppress(HoldfastError, OSError), self._lock:
            pressed = self._plan_pressed()
            return pressed is not None and self._remove(pressed)
        return False

    def _holders(self, segments: Sequence[Segment]) -> list[str]:
        """Return who waits for the oldest segment, or for what is not sealed if there is none."""
        if segments:
            return [subscriber.name for subscriber in self._waiting_for(segments[0])]
        with self._ledger.lock:
            subscribers = self._ledger.state.subscribers.values()
            return [s.name for s in subscribers if self._readable.oldest_waiting_ns(s) is not None]

    def _blocked_by_subscriber(self) -> Overloaded | None:
        """Return the error if a subscriber with `on_full="block"` is too far behind."""
        for subscriber in list(self._ledger.state.subscribers.values()):
            if subscriber.options.counts_segments:
                now_ns = self.now_ns()
                # As above: what cannot be recorded as dropped stays.
                with contextlib.suppress(HoldfastError, OSError):
                    self.segment_caps.enforce(subscriber, now_ns)
                behind = self.segment_caps.beyond(subscriber, now_ns)
            else:
                behind = self._subscriber_caps.beyond(subscriber)
            if behind is not None:
                return Overloaded(
                    f"subscriber {subscriber.name!r} is more than {behind}",
                    hint="let it catch up, or choose on_full='drop_oldest' for it",
                    path=str(self._root),
                    retry_after_s=1.0,
                )
        return None

    # ------------------------------------------------------------------ keeping

    def tick(self) -> None:
        """Do what is due: orphans, caps of subscribers, then segments."""
        with self._lock:
            self.trash.empty()
            self.orphans.give_up()
            self._cap_subscribers()
            self.enforce(0)
            self.disk_room.tick()

    def enforce(self, size_bytes: int) -> None:
        """Remove what may go, and what must to make room for `size_bytes`."""
        with self._lock:
            for removal in self._plan_processed():
                if self._is_held():
                    break  # a copy began since this was planned
                self._remove(removal)
            for removal in self._plan_expired():
                self._remove(removal)
            while self._must_shrink(size_bytes):
                pressed = self._plan_pressed()
                if pressed is None or not self._remove(pressed):
                    return
                self.counters.size_emergencies += pressed.reason == "size"

    def _must_shrink(self, size_bytes: int) -> bool:
        return self._too_many() or self._over_cap(size_bytes) or self.disk_room.is_full(size_bytes)

    def earliest_seal_s(self) -> float:
        """Return the age before which a buffer is not sealed for its age alone.

        It grows with the segments that are held, so that `max_segments` lasts for as long as the
        age limits let data wait: were they sealed at this age from the first to the last, that
        would take just as long. What is read soon is sealed early all the same.
        """
        limits = list(self._age_limits)
        limits += [s.options.max_age_s for s in list(self._ledger.state.subscribers.values())]
        longest_s = max((limit for limit in limits if limit is not None), default=UNLIMITED_S)
        most = self._retention.max_segments
        return 2 * longest_s / most * (len(self._catalog.snapshot()) / most)

    def _too_many(self) -> bool:
        return len(self._catalog.snapshot()) > self._retention.max_segments

    # ----------------------------------------------------------------- planning

    def _waiting_for(self, segment: Segment) -> list[Subscriber]:
        """Return the subscribers for which something of a segment is not resolved."""
        first, end = _seqs_of(segment)
        subscribers = self._ledger.state.subscribers.values()
        return [s for s in list(subscribers) if end > s.start_seq and s.unresolved(first, end)]

    def _plan_processed(self) -> list[Removal]:
        """Segments that every subscriber has resolved, beyond the headroom."""
        if self._is_held() or not self._ledger.state.subscribers:
            return []
        done = [s for s in self._resolved_for_one() if not self._waiting_for(s)]
        kept_bytes = sum(segment.disk_bytes for segment in done)
        removals = []
        for segment in done:
            if kept_bytes <= self._retention.steady_state_headroom_bytes:
                break
            kept_bytes -= segment.disk_bytes
            removals.append(Removal(segment, "processed", None))
        return removals

    def _resolved_for_one(self) -> list[Segment]:
        """Return the segments that one subscriber has resolved, without looking at all others."""
        with self._ledger.lock:
            one = min(self._ledger.state.subscribers.values(), key=lambda s: len(s.resolved))
            done = IntervalSet([(0, one.start_seq), *one.resolved])
        segments, found = self._catalog.snapshot(), []
        for first_seq, end_seq in done:
            place = bisect.bisect_left(segments, first_seq, key=lambda s: s.summary.first_seq)
            while place < len(segments) and segments[place].summary.last_seq < end_seq:
                found.append(segments[place])
                place += 1
        return found

    def _plan_expired(self) -> list[Removal]:
        """Segments that are too old, whoever waits for them."""
        if not any(limit is not None for limit in self._age_limits):
            return []
        arrived_ns, happened_ns = map(self._oldest_kept_ns, self._age_limits)
        removals = []
        for segment in self._catalog.snapshot():
            summary, event_us = segment.summary, segment.summary.clamped_max_event_us
            # Without an event there is only the time of arrival.
            event_ns = summary.max_ingestion_ns if event_us is None else event_us * 1000
            if summary.max_ingestion_ns >= arrived_ns and event_ns >= happened_ns:
                continue
            waiting = self._waiting_for(segment)
            if not self._in_use(segment, waiting):
                removals.append(Removal(segment, "age", Outcome.EXPIRED))
        return removals

    @property
    def _age_limits(self) -> tuple[float | None, float | None]:
        """How old data may be in seconds, by its arrival and by the events in it."""
        return self._retention.max_age_s, self._retention.max_event_age_s

    def _oldest_kept_ns(self, limit_s: float | None) -> float:
        return -math.inf if limit_s is None else self.now_ns() - int(limit_s * 1e9)

    def _plan_pressed(self) -> Removal | None:
        """Return the oldest segment that may go to make room; None: somebody has to wait."""
        reason = "segments" if self._too_many() else "size"
        segments = [(segment, self._waiting_for(segment)) for segment in self._catalog.snapshot()]
        # What nobody needs goes first, although headroom kept it; of that, what is archived.
        segments.sort(key=lambda pair: (bool(pair[1]), not self._is_archived(pair[0])))
        for segment, waiting in segments:
            removal = Removal(segment, reason, Outcome.DROPPED if waiting else None)
            if self._may_go(removal, waiting) and not self._in_use(segment, waiting):
                return removal
        return None

    def _may_go(self, removal: Removal, waiting: Sequence[Subscriber]) -> bool:
        """Whether a segment may go under those who wait for it now."""
        if any(self._is_pinned(s, *_seqs_of(removal.segment)) for s in waiting):
            return False
        if not self._may_leave(removal):
            return False
        if removal.outcome is None:
            anybody = bool(self._ledger.state.subscribers) or self._may_drop_all
            return anybody and not waiting
        willing = all(self.segment_caps.may_drop(s, removal.segment) for s in waiting)
        return removal.outcome is Outcome.EXPIRED or willing or self._may_drop_all

    def _is_archived(self, segment: Segment) -> bool:
        return self.archiver is None or self.archiver.is_archived(segment)

    def _may_leave(self, removal: Removal) -> bool:
        """Whether a segment is in the archive, or may go without having been there."""
        if self.archiver is None or self.archiver.is_archived(removal.segment):
            return True
        return self.archiver.config.on_full == "remove" and removal.reason in ("size", "segments")

    @property
    def _may_drop_all(self) -> bool:
        return self._retention.size_cap_policy == "drop_oldest"

    def _in_use(self, segment: Segment, waiting: Sequence[Subscriber]) -> bool:
        """Whether part of a segment is planned, or in somebody's hands."""
        first, end = _seqs_of(segment)
        return any(
            self._is_pinned(s, first, end)
            or any(first <= seq < end for seq in self._leased(s.name))
            for s in waiting
        )

    def _is_pinned(self, subscriber: Subscriber, first_seq: int, end_seq: int) -> bool:
        since_ns = self._ledger.steady.age_now_ns() - int(self._retention.max_pin_s * 1e9)
        return any(
            pin.first_seq < end_seq and pin.end_seq > first_seq and pin.time_ns >= since_ns
            for pin in subscriber.pins
        )

    # ---------------------------------------------------------------- executing

    def _remove(self, removal: Removal) -> bool:
        """Remove a segment, if that is still right; return whether it was."""
        segment, summary = removal.segment, removal.segment.summary
        with self._ledger.lock:
            waiting = self._waiting_for(segment)
            if not self._may_go(removal, waiting):
                return False
            lines = self._outcomes(removal, waiting)
            if lines:
                self._ledger.resolve(lines)
            self._ledger.change(
                "deleted",
                segment_seq=summary.segment_seq,
                # For whoever asks later what became of a bundle.
                seqs=[summary.first_seq, summary.last_seq],
                reason=removal.reason,
                totals=[summary.bundles, summary.events],
                producers={
                    name: [p.epoch, p.seq, p.bundles, p.events, p.time_ns]
                    for name, p in summary.producers.items()
                    if p.epoch
                },
            )
            self._ledger.sync()
            self._catalog.remove(segment)
        self.trash.remove(segment.path, segment.disk_bytes)
        self._reserve.freed()
        self.counters.evictions[removal.reason] += 1
        if self.archiver is not None:
            self.archiver.removed(segment)
        if removal.outcome is Outcome.DROPPED:
            self.counters.dropped_segments += 1
            for line in lines:
                self.counters.subscriber_lost(line.subscriber, 1)
        self.notify_freed()
        return True

    def _outcomes(self, removal: Removal, waiting: Sequence[Subscriber]) -> list[Resolution]:
        """Return the lines for those who still waited for a segment that is removed."""
        if removal.outcome is None:
            return []
        now_ns, (first, end) = self._seam.clock.wall_ns(), _seqs_of(removal.segment)
        return [
            resolution(
                now_ns,
                subscriber.name,
                max(first, subscriber.start_seq),
                end,
                removal.outcome,
                self._readable.unresolved(subscriber, removal.segment),
                removal.reason,
            )
            for subscriber in waiting
        ]

    # -------------------------------------------------------------- subscribers

    def unregister(self, name: str, reason: str) -> Totals:
        """Record that a subscriber's pending data is given up, and forget the subscriber."""
        with self._lock, self._ledger.lock:
            subscriber = self._ledger.subscriber(name)
            last_seq, _ = self._readable.extent()
            counts, _ = self._readable.waiting(subscriber, last_seq)
            end = max(subscriber.start_seq, last_seq + 1)
            now_ns = self._seam.clock.wall_ns()
            line = resolution(
                now_ns, name, subscriber.start_seq, end, Outcome.GIVEN_UP, counts, reason
            )
            self._ledger.resolve([line])
            self._ledger.change("unregister", name)
            self._ledger.sync()
        self._subscriber_caps.forget(name)
        self.counters.dropped_by_subscriber.pop(name, None)
        self.notify_freed()
        return counts

    def _cap_subscribers(self) -> None:
        for subscriber in list(self._ledger.state.subscribers.values()):
            if subscriber.options.counts_segments:
                self.segment_caps.enforce(subscriber, self.now_ns())
            elif subscriber.options.on_full == "drop_oldest":
                self._subscriber_caps.drop_beyond(subscriber)


def _seqs_of(segment: Segment) -> tuple[int, int]:
    """Return the first seq of a segment, and the one behind its last."""
    return segment.summary.first_seq, segment.summary.last_seq + 1
