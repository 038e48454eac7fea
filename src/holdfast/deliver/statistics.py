"""What a destination tells about itself: the one source for metrics, tools and tests."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from holdfast.deliver.pacing import BreakerState


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
