"""What a destination reports: its figures, for metrics, tools and tests, and its lines in the log.

An outage is one line at its beginning, which says what happens next, one every `REMIND_S` for as
long as it lasts, and one at its end, however often it is tried. A destination that fails now and
then has one line per `GAP_S`, and so have dead letters, with their number. The ledger has every
single loss, and the metrics their number; the log says that there are any to look for.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePath
from typing import NamedTuple

from holdfast.deliver.exporter import Failure
from holdfast.deliver.sending import BreakerState, Cause
from holdfast.deliver.settings import DeliverySettings
from holdfast.quiver import Position

# Between two lines of the same kind.
GAP_S = 60.0
# Between two lines about the same outage.
REMIND_S = 3600.0

log = logging.getLogger("holdfast.deliver")


class State(StrEnum):
    """What a destination is doing."""

    RUNNING = "running"
    # It failed, and is tried again after a pause.
    BACKING_OFF = "backing_off"
    # An operator paused it.
    PAUSED = "paused"
    # It refuses our credentials.
    AUTH_FAILED = "auth_failed"
    # It cannot continue until somebody acts: `stalled_by` says what is in the way.
    STALLED = "stalled"
    STOPPED = "stopped"


@dataclass
class DeliveredItems:
    """What became of the items of one signal: spans, data points, log records."""

    # Of requests that the destination took; and what it said it left out of these.
    sent: int = 0
    rejected: int = 0
    # Of requests that it did not take; the same ones each time they are tried.
    failed: int = 0
    # What processors dropped, also out of the middle of a request.
    filtered: int = 0


@dataclass
class DeliveryCounters:
    """What a destination did since it was started."""

    sends: int = 0
    sent_events: int = 0
    sent_bytes: int = 0
    # Events that were not taken, by class of failure; the same one each time it is tried.
    failed: Counter[str] = field(default_factory=Counter)
    filtered: int = 0
    # By the word of the letter.
    dead_lettered: Counter[str] = field(default_factory=Counter)
    last_error: str | None = None
    # By signal, where events are made of items.
    items: defaultdict[str, DeliveredItems] = field(
        default_factory=lambda: defaultdict(DeliveredItems)
    )


class HeldEvent(NamedTuple):
    """An event that fails again and again, and that others wait for."""

    seq: int
    row: int
    # Of the last answer; what it means, for people.
    code: str
    reason: str
    # How often it was sent, and for how long it fails.
    attempts: int
    age_s: float


class DestinationStatistics(NamedTuple):
    """One destination at this moment. Totals count since it was started."""

    name: str
    state: State
    # What is in the way, if it is stalled.
    stalled_by: str | None
    # With `order: key`: the key that the others have run ahead of as far as they may.
    stuck_key: str | None
    # The event that fails for longest; None if none does.
    held: HeldEvent | None
    last_error: str | None
    breaker: BreakerState
    breaker_opened_total: int
    sends: int
    sent_events: int
    sent_bytes: int
    failed: dict[str, int]
    filtered: int
    dead_lettered: int
    dead_lettered_by_reason: dict[str, int]
    # From the ledger, ever: events taken from it, by outcome: dropped, expired, damaged.
    lost_events: dict[str, int]
    # What waits, in the quiver; None if nothing does.
    lag_events: int
    lag_bytes: int
    oldest_age_s: float | None
    in_flight_events: int
    active_lanes: int
    # By signal, where events are made of items: totals, and how long the oldest waits.
    items: dict[str, DeliveredItems]
    queue_age_s: dict[str, float]


class LogPace:
    """Lets one through, and then none for a while."""

    def __init__(self, gap_s: float = GAP_S) -> None:
        self._gap_s = gap_s
        self._next_s = -math.inf

    def lets_through(self, now_s: float) -> bool:
        """Whether to speak now."""
        if now_s < self._next_s:
            return False
        self._next_s = now_s + self._gap_s
        return True


class DeliveryLog:
    """Speaks for one destination."""

    def __init__(self, name: str, settings: DeliverySettings) -> None:
        self._name = name
        self._settings = settings
        self._paces = {cause: LogPace() for cause in Cause}
        self._pace_of_letters = LogPace()
        self._pace_of_refusals = LogPace(REMIND_S)
        # Since when it fails, how many sends did, and what of that was told.
        self.failing_since_s: float | None = None
        self._remind_at_s = math.inf
        self._failures = 0
        self._told: set[Cause] = set()
        self._untold_letters = 0

    def failed(self, failure: Failure, attempts: int, now_s: float) -> None:
        """Note a failure that may pass; `attempts`: of the same event in a row."""
        again_s = self._settings.retry_max_s
        if self.failing_since_s is not None and now_s >= self._remind_at_s:
            self._remind_at_s = now_s + REMIND_S
            lasts = (
                f"still fails, for {now_s - self.failing_since_s:.0f} s, {attempts} times in a row"
            )
            where = "`holdfast destination ls` says which event it is"
            self._log(logging.ERROR, f"{lasts}, last with {failure}; nothing overtakes it; {where}")
        self._fails(
            Cause.FAILURES,
            str(failure),
            f"it is tried again until it works, at most {again_s:g} s apart",
            now_s,
        )

    def stopped(self, cause: Cause, what: str, again_s: float, now_s: float) -> None:
        """Note something that somebody has to mend."""
        resume = f"`holdfast destination resume {self._name}`"
        next_ = f"nothing is sent for {again_s:g} s, or until {resume}"
        self._fails(cause, what, next_, now_s)

    def _fails(self, cause: Cause, what: str, next_: str, now_s: float) -> None:
        if self.failing_since_s is None:
            self.failing_since_s, self._remind_at_s = now_s, now_s + REMIND_S
        self._failures += 1
        if cause in self._told or not self._paces[cause].lets_through(now_s):
            return
        self._told.add(cause)
        level = logging.WARNING if cause is Cause.FAILURES else logging.ERROR
        self._log(level, f"fails, {what}; {next_}; events wait for {self._settings.limits}")

    def worked(self, now_s: float) -> None:
        """Note that something was taken."""
        if self.failing_since_s is None:
            return
        if self._told:
            took = f"{self._failures} failed sends in {now_s - self.failing_since_s:.0f} s"
            self._log(logging.INFO, f"works again, after {took}")
        self.failing_since_s, self._failures = None, 0
        self._told.clear()

    def cannot_take(self, position: Position, why: str, now_s: float) -> None:
        """Note that the next event cannot be given to the destination as it is configured."""
        if not self._pace_of_refusals.lets_through(now_s):
            return
        seq, row = position
        self._log(
            logging.ERROR,
            f"event {seq}/{row} is held: {why}; it and everything behind it waits for "
            f"{self._settings.limits}; use an exporter that takes it, or list what to deliver in "
            "`delivery.signals`, or make a dead letter of it with "
            f"`holdfast destination skip {self._name} {seq}/{row}`",
        )

    def set_aside(self, why: str, now_s: float) -> None:
        """Note that an event became a dead letter."""
        self._untold_letters += 1
        if not self._pace_of_letters.lets_through(now_s):
            return
        count, self._untold_letters = self._untold_letters, 0
        are = "1 event is a dead letter" if count == 1 else f"{count} events are dead letters"
        where = f"`holdfast dlq ls --destination {self._name}`"
        self._log(logging.WARNING, f"{are} now, {why}; see {where}")

    def _log(self, level: int, what: str) -> None:
        log.log(level, "%s: %s", self._name, what, extra={"destination": self._name})


class Losses:
    """Compares what destinations lost ever with what was told of it."""

    def __init__(self) -> None:
        self._told: dict[Hashable, Mapping[str, int]] = {}
        self._paces: dict[Hashable, LogPace] = {}

    def look(
        self,
        which: Hashable,
        destination: str,
        lost_events: Mapping[str, int],
        quiver: PurePath,
        now_s: float,
    ) -> None:
        """Report new losses; those before the first look are not new."""
        told = self._told.setdefault(which, lost_events)
        new = {why: count - told.get(why, 0) for why, count in lost_events.items()}
        if not any(new.values()) or not self._paces.setdefault(which, LogPace()).lets_through(
            now_s
        ):
            return
        self._told[which] = lost_events
        log.warning(
            "%s: lost %d events: %s; see `holdfast quiver ledger %s --subscriber %s`",
            destination,
            sum(new.values()),
            ", ".join(f"{count} {why}" for why, count in new.items() if count),
            quiver,
            destination,
            extra={"destination": destination},
        )
