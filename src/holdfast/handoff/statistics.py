"""A picture of a sender at one moment: what `handoff status` shows and metrics are made of."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.handoff.membership import subscriber_of
from holdfast.handoff.monitor import NodeState
from holdfast.handoff.sender import Handoff
from holdfast.handoff.worker import NOT_MET, HeldPart, Worker
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.quiver.ledger.subscriber import LOSSES, Subscriber
from holdfast.quiver.read.parts import waiting_segments


@dataclass(frozen=True)
class BacklogStatistics:
    """One data node, as its sender sees it."""

    name: str
    state: NodeState
    node_id: str | None
    is_draining: bool
    is_paused: bool
    # Sealed parts that wait for it, held ones included; bytes as they lie on disk.
    pending_parts: int
    pending_bytes: int
    # Age of the oldest of them; None if nothing waits.
    oldest_age_s: float | None
    held: tuple[HeldPart, ...]
    # What may wait for it; None: no limit of its own.
    max_bytes: int | None
    # Events that it will never get from here, ever, by what became of them.
    lost_events: dict[str, int]
    # Seqs that it will never get from here, and has not by its last statement: first, end, and how.
    gaps: tuple[tuple[int, int, str], ...]
    sent_parts: int
    sent_bytes: int
    # By what the node said of parts, and by why they were tried again.
    answers: dict[str, int]
    retries: dict[str, int]
    failed_calls: int
    state_changes: int
    # None: no limit.
    rate_bytes_s: float | None
    # Why nothing is sent to it although it answers, or what failed last.
    problem: str | None


def backlog_statistics(handoff: Handoff, now_ns: int) -> list[BacklogStatistics]:
    """Return every data node that is known, also orphans, by name."""
    with handoff.lock:
        known = handoff.quiver.subscribers()
        return [
            _of_node(handoff, name, now_ns)
            for name in sorted(handoff.membership.bound)
            if subscriber_of(name) in known
        ]


def _of_node(handoff: Handoff, name: str, now_ns: int) -> BacklogStatistics:
    subscriber = handoff.quiver.subscriber(subscriber_of(name))
    waiting = list(waiting_segments(handoff.quiver.segments(), subscriber))
    worker = handoff.workers.get(name)
    bound = handoff.membership.bound[name]
    oldest_ns = min((one.summary.min_ingestion_ns for one in waiting), default=None)
    counters = None if worker is None else worker.counters
    return BacklogStatistics(
        name=name,
        state=handoff.monitor.state(name),
        node_id=bound.node_id,
        is_draining=bound.is_draining,
        is_paused=subscriber.paused,
        pending_parts=len(waiting),
        pending_bytes=sum(one.disk_bytes for one in waiting),
        oldest_age_s=None if oldest_ns is None else max(0.0, (now_ns - oldest_ns) / 1e9),
        held=() if worker is None else tuple(worker.held.values()),
        max_bytes=subscriber.options.max_segment_bytes,
        lost_events={
            one.name.lower(): subscriber.counts[one].events
            for one in sorted(LOSSES)
            if one in subscriber.counts
        },
        gaps=_gaps(subscriber, handoff.seen(name)),
        sent_parts=0 if counters is None else counters.sent_parts,
        sent_bytes=0 if counters is None else counters.sent_bytes,
        answers={} if counters is None else {str(k): n for k, n in counters.answers.items()},
        retries={} if counters is None else dict(counters.retries),
        failed_calls=0 if counters is None else counters.failed_calls,
        state_changes=handoff.monitor.changes(name),
        rate_bytes_s=None if worker is None or worker.is_over else handoff.scheduler.rate(name),
        problem=_problem(handoff, name, worker),
    )


def _problem(handoff: Handoff, name: str, worker: Worker | None) -> str | None:
    """Say what is in the way, the nearest first; None: nothing is known to be."""
    if worker is None:
        return "it is no longer in the configuration: configure it again, or forget it"
    missed = handoff.monitor.last_error(name)
    if worker.refusal == NOT_MET and missed is not None:
        return f"{NOT_MET}: {missed}"
    health = handoff.probers[name].health
    refuses = health.reason if health is not None and not health.is_writable else None
    return worker.refusal or worker.last_error or missed or refuses


def _gaps(subscriber: Subscriber, seen: IntervalSet) -> tuple[tuple[int, int, str], ...]:
    return tuple(
        (*hole, outcome.name.lower())
        for first, end, outcome in subscriber.losses
        for hole in seen.holes(first, end)
    )
