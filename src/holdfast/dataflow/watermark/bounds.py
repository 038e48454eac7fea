"""What one gateway reports about event time, and how far the watermark may go on its account."""

from __future__ import annotations

from typing import Literal, NamedTuple

BoundReason = Literal["pending", "newest", "idle", "producers", "unheard", "unreachable"]


class EventTimeReport(NamedTuple):
    """What a gateway holds from a position on, said at one moment. Times are µs since 1970."""

    # The earliest event time that waits there: sealed, open, or to be tried again. Events that were
    # late already when they came do not count. None: nothing waits.
    pending_us: int | None
    # The newest event time it ever saw, of events that were not dated in the future.
    newest_us: int | None
    # Nothing waits, and nothing came for `idle_after`. Nobody but the gateway itself can know that.
    idle: bool
    # Its wall clock.
    clock_us: int
    # How long nothing came, by the same clock.
    quiet_us: int = 0
    # Where its events come from pipelines that state a watermark: the earliest of those.
    producers_us: int | None = None


class Bound(NamedTuple):
    """How far one gateway lets the watermark go, and why no further."""

    # None: nothing is known yet, so not at all.
    us: int | None
    reason: BoundReason


class Reach(NamedTuple):
    """How far idleness may lead: what else is known in the query."""

    # The newest event time that any of its sources has seen.
    newest_us: int | None = None
    # How long after an event its windows may be open; None: nobody says.
    horizon_us: int | None = None


def bound_of(report: EventTimeReport, max_delay_us: int, reach: Reach) -> Bound:
    """Return how far a gateway's own report lets the watermark go.

    Everything that it will accept later and that is older than this is late, by definition.
    """
    ahead = _ahead(report, max_delay_us, reach)
    if report.pending_us is not None and (ahead.us is None or report.pending_us < ahead.us):
        # Without anything seen the delay is unknown, and so is what else may still come.
        return Bound(None if ahead.us is None else report.pending_us, "pending")
    return ahead


def _ahead(report: EventTimeReport, max_delay_us: int, reach: Reach) -> Bound:
    if report.producers_us is not None:
        return Bound(report.producers_us, "producers")
    newest = [us for us in (report.newest_us, reach.newest_us) if us is not None]
    if report.idle and newest:
        return Bound(_idle_us(report, max(newest), max_delay_us, reach), "idle")
    if report.newest_us is None:
        return Bound(None, "unheard")
    # An event dated a little ahead of the clock says nothing about the time of the others.
    return Bound(min(report.newest_us, report.clock_us) - max_delay_us, "newest")


def _idle_us(report: EventTimeReport, newest_us: int, max_delay_us: int, reach: Reach) -> int:
    """Return how far time has come while nothing came.

    It goes on with the clock from the newest event in the query, never by a jump: where events are
    as old as they were sent, that is the clock itself; where history is read, a pause is only as
    long as it took. And it goes no further than the windows that may be open: what comes after a
    long pause belongs to windows that nobody has closed.
    """
    event_us = min(newest_us, report.clock_us)
    bounds = [report.clock_us - max_delay_us, event_us - max_delay_us + report.quiet_us]
    if reach.horizon_us is not None:
        bounds.append(newest_us + reach.horizon_us)
    return min(bounds)
