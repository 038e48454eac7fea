"""What a quiver tells about itself: the one source for metrics, tools and tests.

A snapshot is taken without stopping anything. Counters of different threads may be a moment apart,
so a difference of two of them may be off by what is under way. Only what must add up (accepted,
outcomes, pending of a subscriber) is taken together, under the ledger's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.quiver.base.frame import Totals
from holdfast.quiver.engine.balance import balance
from holdfast.quiver.engine.engine import Engine
from holdfast.quiver.keep.archiver import ArchiveStatistics
from holdfast.quiver.keep.retention import RetentionCounters
from holdfast.quiver.ledger.subscriber import LOSSES, Subscriber
from holdfast.quiver.log.sealer import SealCounters
from holdfast.quiver.log.writer_state import WriterCounters
from holdfast.quiver.read.segment_progress import outstanding, segment_progress
from holdfast.quiver.segments.segment import Segment

# Where attributes are that `Statistics` had itself before its counters were nested.
FORMER_NAMES = {
    **{
        f"{name}_total": ("writer", name)
        for name in (
            "appends",
            "bundles",
            "events",
            "payload_bytes",
            "groups",
            "syncs",
            "sync_seconds",
            "write_failures",
            "sync_failures",
            "stall_seconds",
            "blocked_seconds",
        )
    },
    "sync_seconds_max": ("writer", "sync_seconds_max"),
    "stall_seconds_max": ("writer", "stall_seconds_max"),
    "seals_total": ("sealer", "segments"),
    "seal_failures_total": ("sealer", "failures"),
    "seal_seconds_total": ("sealer", "seconds"),
    **{
        f"{name}_total": ("retention", name)
        for name in (
            "evictions",
            "size_emergencies",
            "throttled",
            "subscriber_dropped_segments",
            "dropped_segments",
        )
    },
}


class SubscriberStatistics(NamedTuple):
    """One subscriber at this moment."""

    name: str
    attached: bool
    paused: bool
    generation: int
    accepted: Totals
    outcomes: dict[str, Totals]
    pending: Totals
    pending_bytes: int
    high_water_seq: int
    # Resolved ranges beyond the high-water mark.
    gap_ranges: int
    # Age of the oldest bundle that waits; None if none does.
    oldest_age_s: float | None
    pins: int
    # The same for the bundles of each slot, for those of which something waits.
    oldest_age_s_by_slot: Mapping[str, float] = MappingProxyType({})
    # The same progress by the numbers of segments: see `SegmentProgress`.
    high_water_segment: int = 0
    gap_segments: int = 0
    gap_set: tuple[tuple[int, int], ...] = ()
    # Segments that it lost to make room, by its own cap or the quiver's, since that was opened.
    dropped_segments: int = 0

    @property
    def lost_events(self) -> dict[str, int]:
        """Events that it still wanted and will never get, by what became of them."""
        return {name: self.outcomes[name].events for name in _LOSSES if name in self.outcomes}


_LOSSES = tuple(one.name.lower() for one in sorted(LOSSES))


class SignalStatistics(NamedTuple):
    """What the segments on disk hold of one signal."""

    events: int
    # Of its data files.
    size_bytes: int


@dataclass(frozen=True)
class Statistics:
    """A moment's picture of one quiver. Totals count since it was opened."""

    quiver_id: str
    next_seq: int
    synced_seq: int
    accepting: bool
    # Ever accepted by this quiver, over all its openings; and what is gone from disk of that.
    accepted_bundles: int
    accepted_events: int
    deleted_bundles: int
    deleted_events: int
    # What its threads have counted: appends and syncs, seals, segments that went.
    writer: WriterCounters
    sealer: SealCounters
    retention: RetentionCounters
    extractor_failures_total: int
    opaque_rows_total: int
    ledger_lines_total: int
    ledger_syncs_total: int
    # Gauges.
    pending_bytes: int
    staged_bytes: int
    open_bundles: int
    open_bytes: int
    sealing_bytes: int
    wal_bytes: int
    wal_files: int
    segments: int
    segment_bytes: int
    segment_events: int
    # Segments whose damaged bundle table was rebuilt from the rows.
    rebuilt_tables: int
    ledger_bytes: int
    ledger_depth: int
    producers: int
    quarantined_bytes: int
    used_bytes: int
    size_cap_bytes: int
    # How much longer nothing expires, because the clock may be wrong; see `SteadyTime`.
    clock_doubted_s: float
    last_seal_error: str | None
    last_keeper_error: str | None
    subscribers: tuple[SubscriberStatistics, ...]
    # Its number where several quivers share a root, and whether it is only drained there (cores).
    core_id: int = 0
    adopted: bool = False
    # By signal, of segments whose manifests name it.
    signals: Mapping[str, SignalStatistics] = field(default_factory=dict)
    # How many segments wait for how many subscribers.
    outstanding: Mapping[int, int] = field(default_factory=dict)
    # None: it has no archive.
    archive: ArchiveStatistics | None = None

    @property
    def cap_fraction(self) -> float:
        """How full it is: 1 is at the size cap."""
        # A core may be left without room while others hold all of it.
        return self.used_bytes / max(1, self.size_cap_bytes)

    if not TYPE_CHECKING:  # a type checker is to know the names of today only

        def __getattr__(self, name: str) -> Any:
            """Return a counter by the name that it had before."""
            if name not in FORMER_NAMES:
                raise AttributeError(name)
            group, counter = FORMER_NAMES[name]
            return getattr(getattr(self, group), counter)


def gather(engine: Engine, staged_bytes: int, *, accepting: bool) -> Statistics:
    """Return a snapshot."""
    writer, maker, segments = engine.writer, engine.builder.table_maker, engine.catalog.snapshot()
    kept, deleted = engine.retention.counters, engine.ledger.state.deleted
    subscribers, waiting = _subscribers(engine)
    return Statistics(
        quiver_id=engine.quiver_id,
        next_seq=writer.next_seq,
        synced_seq=writer.synced_seq,
        accepting=accepting and writer.failure is None,
        accepted_bundles=writer.accepted.bundles,
        accepted_events=writer.accepted.events,
        deleted_bundles=deleted.bundles,
        deleted_events=deleted.events,
        writer=replace(writer.counters),
        sealer=replace(engine.sealer.counters),
        retention=replace(
            kept,
            evictions=dict(kept.evictions),
            dropped_by_subscriber=dict(kept.dropped_by_subscriber),
        ),
        extractor_failures_total=maker.extractor_failures,
        opaque_rows_total=maker.opaque_rows,
        ledger_lines_total=engine.ledger.lines_total,
        ledger_syncs_total=engine.ledger.syncs_total,
        pending_bytes=writer.inbox.pending_bytes,
        staged_bytes=staged_bytes,
        open_bundles=len(writer.buffer.bundles),
        open_bytes=writer.buffer.size_bytes,
        sealing_bytes=sum(buffer.size_bytes for buffer in engine.sealer.sealing()),
        wal_bytes=writer.wal_bytes,
        # Those the sealer still has to work off, and the one that is being written.
        wal_files=len(engine.sealer.wal_files) + 1,
        segments=len(segments),
        segment_bytes=sum(segment.summary.size_bytes for segment in segments),
        segment_events=sum(segment.summary.events for segment in segments),
        rebuilt_tables=sum(segment.table_is_rebuilt for segment in segments),
        ledger_bytes=engine.ledger.size_bytes,
        ledger_depth=engine.ledger.depth,
        producers=writer.producer_count,
        quarantined_bytes=engine.quarantine.used_bytes(),
        used_bytes=engine.retention.used_bytes(),
        size_cap_bytes=engine.retention.size_cap_bytes,
        clock_doubted_s=engine.ledger.steady.doubted_s,
        last_seal_error=engine.sealer.last_error,
        last_keeper_error=engine.keeper.last_error,
        subscribers=subscribers,
        signals=_signals(segments),
        outstanding=waiting,
        archive=None if engine.archiver is None else engine.archiver.statistics(),
    )


def _signals(segments: Iterable[Segment]) -> dict[str, SignalStatistics]:
    found: dict[str, SignalStatistics] = {}
    for file in (file for segment in segments for file in segment.summary.files if file.signal):
        events, size_bytes = found.get(file.signal, (0, 0))
        found[file.signal] = SignalStatistics(events + file.rows, size_bytes + file.size_bytes)
    return found


def _subscribers(engine: Engine) -> tuple[tuple[SubscriberStatistics, ...], dict[int, int]]:
    """Return how every subscriber is, and how many segments wait for how many of them."""
    with engine.ledger.lock:
        known = list(engine.ledger.state.subscribers.values())
        told = tuple(_subscriber(engine, subscriber) for subscriber in known)
        return told, outstanding(engine.catalog.snapshot(), known)


def _subscriber(engine: Engine, subscriber: Subscriber) -> SubscriberStatistics:
    account = balance(subscriber, engine.readable)
    oldest_ns = engine.readable.oldest_waiting_ns(subscriber)
    # By the clock that does not jump; what was ingested before one that went back is new, not odd.
    now_ns = engine.ledger.steady.earliest_now_ns()
    age_s = None if oldest_ns is None else max(0, now_ns - oldest_ns) / 1e9
    high_water_seq = subscriber.high_water_seq
    deleted = engine.ledger.state.deleted_segments
    progress = segment_progress(engine.catalog.snapshot(), subscriber, deleted)
    return SubscriberStatistics(
        name=subscriber.name,
        attached=subscriber.absent_since_ns is None,
        paused=subscriber.paused,
        generation=subscriber.generation,
        accepted=account.accepted,
        outcomes={outcome.name.lower(): counts for outcome, counts in account.outcomes.items()},
        pending=account.pending,
        pending_bytes=account.pending_bytes,
        high_water_seq=high_water_seq,
        gap_ranges=sum(first > high_water_seq for first, _ in subscriber.resolved),
        oldest_age_s=age_s,
        pins=len(subscriber.pins),
        oldest_age_s_by_slot={
            slot: max(0, now_ns - oldest_ns) / 1e9
            for slot, oldest_ns in engine.readable.oldest_waiting_by_slot(subscriber).items()
        },
        high_water_segment=progress.high_water_segment,
        gap_segments=progress.gap_segments,
        gap_set=progress.gap_set,
        dropped_segments=engine.retention.counters.dropped_by_subscriber.get(subscriber.name, 0),
    )
