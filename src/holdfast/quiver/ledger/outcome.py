"""Outcomes: what became of a bundle for a subscriber, once and for all."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from holdfast.quiver.base.frame import Totals


class Outcome(IntEnum):
    """What became of a bundle. On disk: never renumber."""

    ACKED = 1
    DEAD_LETTERED = 2
    DROPPED = 3
    EXPIRED = 4
    DAMAGED = 5
    FILTERED = 6
    GIVEN_UP = 7


# Outcomes that took data away from a subscriber that still wanted it.
LOSSES = frozenset({Outcome.DROPPED, Outcome.EXPIRED, Outcome.DAMAGED})


class Position(NamedTuple):
    """A place in a quiver: before event `row` of bundle `seq`."""

    seq: int
    row: int = 0


class Resolution(NamedTuple):
    """One line of the ledger: a range of bundles got an outcome for a subscriber.

    The range goes from `start` up to, not including, `end`; with `end.row` it stops inside a
    bundle. `counts` is what it resolved: a bundle counts when its last event does.
    """

    time_ns: int
    subscriber: str
    generation: int
    start: Position
    end: Position
    outcome: Outcome
    counts: Totals
    reason: str = ""
