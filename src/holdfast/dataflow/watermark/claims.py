"""Claims: one watermark out of what all gateways say.

The claim is the minimum over the gateways, in whole milliseconds (Spark's watermark has no finer
ones, and the verdict on a late row must be the same on both sides), and it never moves back. A
gateway that does not answer holds it where it is: silence is not idleness, its disk may be full of
events that nobody has read. Only where the pipeline says `unreachable: release` it is left out, and
counted. There is no bound of a single gateway that is remembered: only the claim is a promise, and
an event that is older than its own gateway's newest, but not than the claim, is in time.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from holdfast.dataflow.watermark.bounds import Bound, EventTimeReport, Reach, bound_of
from holdfast.dataflow.watermark.settings import WatermarkSettings

_MS = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Before anything is known: Spark's watermark begins at 1970 too.
NOTHING_CLAIMED_US = 0
# What `drain --close` claims: the last whole hour that Python's and Spark's calendars both know.
END_OF_TIME_US = int(datetime(9999, 12, 31, 23, tzinfo=UTC).timestamp()) * 1_000_000


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
