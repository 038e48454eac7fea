"""Claims: one watermark out of what all gateways say.

The claim is the minimum over the gateways, in whole milliseconds (Spark's watermark has no finer
ones, and the verdict on a late row must be the same on both sides), and it never moves back. A
gateway that does not answer holds it where it is: silence is not idleness, its disk may be full of
events that nobody has read. Only where the pipeline says `unreachable: release` it is left out, and
counted. There is no bound of a single gateway that is remembered: only the claim is a promise, and
an event that is older than its own gateway's newest, but not than the claim, is in time.

First come the settings, then what one gateway reports and how far the watermark may go on its
account (`bound_of`), then the claim over all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple

from holdfast.settings import DurationS, Settings

_MS = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Before anything is known: Spark's watermark begins at 1970 too.
NOTHING_CLAIMED_US = 0
# What `drain --close` claims: the last whole hour that Python's and Spark's calendars both know.
END_OF_TIME_US = int(datetime(9999, 12, 31, 23, tzinfo=UTC).timestamp()) * 1_000_000

BoundReason = Literal["pending", "newest", "idle", "producers", "unheard", "unreachable"]


class WatermarkSettings(Settings):
    """How far the watermark follows the events, and what holds it."""

    max_delay: DurationS = 10.0
    """How much older than the newest event another may be, and still be in time."""

    idle_after: DurationS = 5.0
    """A gateway that has accepted nothing for this long and has nothing waiting is idle."""

    max_hold: DurationS = 600.0
    """How long a row that is retried holds the watermark, from its first failure on."""

    unreachable: Literal["hold", "release"] = "hold"
    """A gateway that does not answer holds the watermark, or is left out of it (and counted)."""

    @property
    def max_delay_us(self) -> int:
        """`max_delay` in the unit of event times."""
        return int(self.max_delay * 1_000_000)


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


class Silence(NamedTuple):
    """A gateway gave no statement."""

    since_us: int


class Hold(NamedTuple):
    """What one gateway has to do with the claim."""

    gateway: str
    bound: Bound
    silent_since_us: int | None = None


class Claim(NamedTuple):
    """A watermark, and what every gateway had to do with it, the one that holds it first."""

    us: int
    holds: tuple[Hold, ...]

    def explain(self) -> str:
        """Say in one sentence what holds the watermark, and where."""
        if not self.holds:
            return f"at {_clock(self.us)}; no gateway has anything to do with it"
        first = self.holds[0]
        return f"held at {_clock(self.us)} by {first.gateway}: {_why(first)}"


class Claims:
    """Turns statements into claims, one after the other. One thread."""

    def __init__(
        self,
        settings: WatermarkSettings,
        claimed_us: int = NOTHING_CLAIMED_US,
        reach: Reach | None = None,
    ) -> None:
        self.released_total = 0
        self._settings = settings
        self._reach = reach or Reach()
        self._claimed_us = claimed_us

    @property
    def claimed_us(self) -> int:
        """The newest claim."""
        return self._claimed_us

    def update(self, heard: Mapping[str, EventTimeReport | Silence]) -> Claim:
        """Return the claim after every gateway was asked about what lies beyond the batch."""
        said = [one.newest_us for one in heard.values() if isinstance(one, EventTimeReport)]
        seen = [us for us in (self._reach.newest_us, *said) if us is not None]
        reach = self._reach._replace(newest_us=max(seen, default=None))
        holds = [self._hold(gateway, said, reach) for gateway, said in heard.items()]
        counted = [hold for hold in holds if not self._is_released(hold)]
        self.released_total += len(holds) - len(counted)
        bounds = [hold.bound.us for hold in counted]
        known = [bound for bound in bounds if bound is not None]
        if known and len(known) == len(bounds):
            self._claimed_us = max(self._claimed_us, min(known) // _MS * _MS)
        return Claim(self._claimed_us, tuple(sorted(counted, key=_slowest)))

    def close(self) -> Claim:
        """Claim the end of time: no event will come any more."""
        self._claimed_us = END_OF_TIME_US
        return Claim(self._claimed_us, ())

    def _hold(self, gateway: str, said: EventTimeReport | Silence, reach: Reach) -> Hold:
        if isinstance(said, Silence):
            # Not what it said last: it may have accepted an older event since, and one that is not
            # late, because the claim was held elsewhere.
            return Hold(gateway, Bound(None, "unreachable"), said.since_us)
        return Hold(gateway, bound_of(said, self._settings.max_delay_us, reach))

    def _is_released(self, hold: Hold) -> bool:
        return hold.silent_since_us is not None and self._settings.unreachable == "release"


def _slowest(hold: Hold) -> tuple[bool, int]:
    return hold.bound.us is not None, hold.bound.us or 0


def _why(hold: Hold) -> str:
    if hold.silent_since_us is not None:
        return f"does not answer since {_clock(hold.silent_since_us)}"
    return {
        "pending": "an event of this time waits there to be read or tried again",
        "newest": "its newest event, less max_delay",
        "idle": "idle; its newest event and the time since, less max_delay",
        "producers": "a pipeline that writes there has come this far",
        "unheard": "it has not accepted any event yet, and is not idle",
        "unreachable": "does not answer",
    }[hold.bound.reason]


def _clock(time_us: int) -> str:
    if time_us >= END_OF_TIME_US:
        return "the end of time"
    moment = _EPOCH + timedelta(microseconds=time_us)
    return moment.strftime("%Y-%m-%d %H:%M:%S") + f".{moment.microsecond // _MS:03d} UTC"
