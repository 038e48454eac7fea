"""A subscriber: a named reader, what is resolved for it, and what it may hold back.

This is the state behind the ledger: plain data that lines of the ledger change, in the order they
were written, live and at replay alike. Nothing here touches a disk or a clock.

The seed's terms are views of it. The high-water mark is the first seq that is not resolved. The gap
set is what is resolved beyond it. A segment's outstanding count is the number of subscribers for
which some of its seqs are not resolved.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any, Literal, NamedTuple

from holdfast.errors import BadInput
from holdfast.quiver.base.frame import NOTHING, Totals
from holdfast.quiver.ledger.intervals import IntervalSet


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


OnFull = Literal["block", "drop_oldest", "drop_copied"]
Start = Literal["oldest", "latest"] | int

NAME_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}")
# Bundles of a subscriber whose failed attempts are remembered; what was noted first is forgotten
# first, and begins to count anew.
ATTEMPTS_MAX = 10_000
# Ranges of losses that a cursor has not accepted yet. Of more, the oldest are left out and counted:
# a range never names what was not lost.
LOSSES_MAX = 10_000


def check_name(name: object) -> str:
    """Return the name of a subscriber if it is one."""
    if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name):
        raise BadInput(
            f"{name!r} is not a subscriber's name",
            hint="use 1 to 64 letters, digits, '_', '-' or '.', not beginning with '-' or '.'",
        )
    return name


@dataclass(frozen=True)
class SubscriberOptions:
    """What a subscriber may hold back, and what happens at its cap."""

    # Payload bytes that may wait for it. None: no cap of its own.
    max_bytes: int | None = None
    # Age since ingestion of the oldest bundle that may wait for it.
    max_age_s: float | None = None
    # At a cap: refuse appends, or drop its oldest and say so. `drop_copied` drops whole segments,
    # and only those that somebody else still holds (`Quiver.tell_copied`); else it refuses.
    on_full: OnFull = "block"
    # A bundle that a lease handed out so often, and nobody acknowledged, is dead-lettered; crashes
    # of the consumer count. None: it is handed out for ever.
    max_attempts: int | None = None
    # Instead of `max_bytes`, for one that takes whole segments: what they may occupy on disk.
    max_segment_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.on_full not in ("block", "drop_oldest", "drop_copied"):
            raise BadInput(
                f"on_full is {self.on_full!r}", hint="use 'block', 'drop_oldest' or 'drop_copied'"
            )
        if self.max_bytes is not None and self.counts_segments:
            raise BadInput(
                f"max_bytes is {self.max_bytes}, and whole segments are dropped",
                hint="use max_segment_bytes",
            )
        if self.max_segment_bytes is not None and self.max_segment_bytes <= 0:
            raise BadInput(
                f"max_segment_bytes is {self.max_segment_bytes}",
                hint="use a positive number, or None",
            )
        if self.max_bytes is not None and self.max_bytes <= 0:
            raise BadInput(f"max_bytes is {self.max_bytes}", hint="use a positive number, or None")
        if self.max_age_s is not None and self.max_age_s <= 0:
            raise BadInput(f"max_age_s is {self.max_age_s}", hint="use a positive number, or None")
        if self.max_attempts is not None and self.max_attempts < 1:
            raise BadInput(f"max_attempts is {self.max_attempts}", hint="use at least 1, or None")

    @property
    def counts_segments(self) -> bool:
        """Whether its caps count and take whole segments."""
        return self.max_segment_bytes is not None or self.on_full == "drop_copied"

    @classmethod
    def from_fields(cls, found: dict[str, Any]) -> SubscriberOptions:
        """Return what a ledger holds; options of a newer program are passed over."""
        return cls(**{f.name: found[f.name] for f in fields(cls) if f.name in found})


@dataclass
class Pin:
    """A planned range that retention leaves alone, for a while."""

    first_seq: int
    end_seq: int
    time_ns: int

    @property
    def seqs(self) -> tuple[int, int]:
        """The range."""
        return self.first_seq, self.end_seq


@dataclass
class Subscriber:
    """Everything the ledger knows about one subscriber."""

    name: str
    start_seq: int
    # What the quiver had accepted before `start_seq`.
    accepted_before: Totals
    registered_ns: int
    options: SubscriberOptions = field(default_factory=SubscriberOptions)
    generation: int = 0
    paused: bool = False
    # Since when nobody is attached and the quiver is open; None while somebody is.
    absent_since_ns: int | None = None
    # How long nobody was attached before that; time in which the quiver was closed does not count.
    absent_s: float = 0.0
    resolved: IntervalSet = field(default_factory=IntervalSet)
    # Bundles resolved in part: seq to number of events.
    partial: dict[int, int] = field(default_factory=dict)
    # Bundles that were handed out and not acknowledged: seq to number of attempts.
    attempts: dict[int, int] = field(default_factory=dict)
    counts: dict[Outcome, Totals] = field(default_factory=dict)
    pins: list[Pin] = field(default_factory=list)
    # Ranges lost since the cursor last accepted that: first seq, end seq, outcome.
    losses: list[tuple[int, int, Outcome]] = field(default_factory=list)
    # Lost since then, too, and only to be found in the ledger's lines: how many ranges.
    losses_left_out: int = 0
    # How often outcomes were taken back: then its reader has to look at everything again.
    reopened: int = 0

    @property
    def high_water_seq(self) -> int:
        """The first seq that is not resolved."""
        return self.resolved.first_missing(self.start_seq)

    @property
    def position(self) -> Position:
        """The first event that is not resolved."""
        seq = self.high_water_seq
        return Position(seq, self.partial.get(seq, 0))

    @property
    def resolved_totals(self) -> Totals:
        """The sum of all outcomes."""
        total = NOTHING
        for counts in self.counts.values():
            total = total.plus(*counts)
        return total

    def pending(self, accepted: Totals) -> Totals:
        """Return what is accepted for it and not resolved."""
        done = self.resolved_totals.plus(*self.accepted_before)
        return Totals(accepted.bundles - done.bundles, accepted.events - done.events)

    def unresolved(self, first_seq: int, end_seq: int) -> bool:
        """Whether anything between the two seqs still waits for it."""
        return not self.resolved.covers(max(first_seq, self.start_seq), end_seq)

    def apply(self, resolution: Resolution) -> None:
        """Take over one line of the ledger."""
        start, end = resolution.start, resolution.end
        if resolution.outcome in LOSSES:
            # What had been resolved before is not lost, although the line goes over it.
            # Taken before `add` below closes the holes.
            for hole in list(self.resolved.holes(start.seq, end.seq)):
                self._note_loss(*hole, resolution.outcome)
            # Bundles that are gone, and nobody knows which.
            # Written by the balance when it knows how much is gone and not where
            # (engine/balance.py).
            self.losses_left_out += start.seq == end.seq and resolution.counts != NOTHING
        self.resolved.add(start.seq, end.seq)
        _forget(self.partial, start.seq, end.seq)
        _forget(self.attempts, start.seq, end.seq)
        # An acknowledgement of part of a bundle may be replayed behind one for all of it.
        if end.row and end.seq not in self.resolved:
            self.partial[end.seq] = end.row
        before = self.counts.get(resolution.outcome, NOTHING)
        self.counts[resolution.outcome] = before.plus(*resolution.counts)
        self.pins = [pin for pin in self.pins if self.unresolved(pin.first_seq, pin.end_seq)]

    def note_attempt(self, seq: int, attempt: int) -> None:
        """Remember how often a bundle was handed out."""
        if seq not in self.resolved:
            # Popped and set again, so that the order of the dict is that of the last attempt and
            # the bound below forgets the bundle that was tried least recently.
            self.attempts[seq] = max(attempt, self.attempts.pop(seq, 0))
        while len(self.attempts) > ATTEMPTS_MAX:
            del self.attempts[next(iter(self.attempts))]

    def reopen(self, first_seq: int, end_seq: int) -> None:
        """Take back the outcomes of a range."""
        self.reopened += 1
        self.resolved.remove(first_seq, end_seq)
        _forget(self.attempts, first_seq, end_seq)

    def _note_loss(self, first_seq: int, end_seq: int, outcome: Outcome) -> None:
        if self.losses and self.losses[-1][1:] == (first_seq, outcome):
            first_seq, _, _ = self.losses.pop()
        self.losses.append((first_seq, end_seq, outcome))
        if len(self.losses) > LOSSES_MAX:
            del self.losses[0]
            self.losses_left_out += 1

    def accept_losses(self) -> None:
        """Let go of what the reader knows of."""
        self.losses, self.losses_left_out = [], 0

    # ------------------------------------------------------------- checkpoints

    def to_fields(self) -> dict[str, Any]:
        """Return the state as JSON can hold it."""
        return {
            "name": self.name,
            "start_seq": self.start_seq,
            "accepted_before": list(self.accepted_before),
            "registered_ns": self.registered_ns,
            "options": {f.name: getattr(self.options, f.name) for f in fields(self.options)},
            "generation": self.generation,
            "paused": self.paused,
            "absent_since_ns": self.absent_since_ns,
            "absent_s": self.absent_s,
            "resolved": list(self.resolved),
            "partial": list(self.partial.items()),
            "attempts": list(self.attempts.items()),
            "counts": {outcome.name: list(counts) for outcome, counts in self.counts.items()},
            "pins": [[pin.first_seq, pin.end_seq, pin.time_ns] for pin in self.pins],
            "losses": [[first, end, outcome.name] for first, end, outcome in self.losses],
            "losses_left_out": self.losses_left_out,
            "reopened": self.reopened,
        }

    @classmethod
    def from_fields(cls, state: dict[str, Any]) -> Subscriber:
        """Return the state that `to_fields` gave."""
        return cls(
            name=state["name"],
            start_seq=state["start_seq"],
            accepted_before=Totals(*state["accepted_before"]),
            registered_ns=state["registered_ns"],
            options=SubscriberOptions.from_fields(state["options"]),
            generation=state["generation"],
            paused=state["paused"],
            absent_since_ns=state["absent_since_ns"],
            absent_s=state.get("absent_s", 0.0),
            resolved=IntervalSet((first, end) for first, end in state["resolved"]),
            partial=dict(state["partial"]),
            attempts=dict(state.get("attempts", [])),
            counts={Outcome[name]: Totals(*counts) for name, counts in state["counts"].items()},
            pins=[Pin(*pin) for pin in state["pins"]],
            losses=[(first, end, Outcome[name]) for first, end, name in state["losses"]],
            losses_left_out=state.get("losses_left_out", 0),
            reopened=state["reopened"],
        )


def _forget(by_seq: dict[int, int], first_seq: int, end_seq: int) -> None:
    """Remove the seqs of a range; of a long one without going through all its numbers."""
    if not by_seq:
        return
    known = range(first_seq, end_seq) if end_seq - first_seq < len(by_seq) else list(by_seq)
    for seq in known:
        if first_seq <= seq < end_seq:
            by_seq.pop(seq, None)
