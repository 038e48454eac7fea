"""What was read and has no outcome in the ledger yet: events, what was decided, and what to write.

A bundle is one request of a producer, an event one row of it. Events get decided in any order:
lanes run in parallel, a batch may be taken in part. The ledger takes bundles in any order, but the
events of one bundle only in theirs. So `pieces` gives, for every bundle, the decided events up to
the first undecided one, in runs of the same outcome; consecutive bundles share a run. What is
decided behind an undecided event of its own bundle is left behind: remembered here alone, and sent
again after a restart; it counts as in flight until then. Later events of its key wait for it in the
same way, or it would come again after them.

**Bounds.** The window is bounded by bytes from its oldest undecided event on (`ahead_bytes`), done
or not: a key that is stuck for a day must not let the others fill memory with what they decided
behind it. That is why finished bundles in the middle stay in `_bundles` and keep counting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.quiver import Outcome, Position, Range
from holdfast.signals.event import Unit

# Counted for every bundle, so that very many without a payload are bounded too.
BUNDLE_OVERHEAD_BYTES = 256


class DeadLetterReason(NamedTuple):
    """Why an event will not be delivered; final once it is a dead letter."""

    # The word of its dead letter: permanent, too_large, poison, skipped, processor.
    word: str
    # The same for the same cause.
    code: str
    # For people; never holds a payload or a secret.
    message: str


class Decision(NamedTuple):
    """What became of an event, for the ledger."""

    outcome: Outcome
    reason: str = ""


DELIVERED = Decision(Outcome.ACKED)
# Somebody else has written its outcome.
GONE = Decision(Outcome.DROPPED)


@dataclass(slots=True, eq=False)
class Item:
    """A unit on its way: an event, or several that are sent as one."""

    event: Unit
    key: str
    bundle: TrackedBundle
    # Why its destination cannot take it; None if it can.
    refusal: str | None = None
    # How often it was sent.
    attempts: int = 0
    # As it left the processors.
    ready: Unit | None = None
    # It will be a dead letter, as soon as that is stored.
    verdict: DeadLetterReason | None = None
    decision: Decision | None = None

    @property
    def position(self) -> Position:
        """Where it begins in the quiver."""
        return self.event.position

    @property
    def end_row(self) -> int:
        """The row behind its last one."""
        return self.event.position.row + self.event.rows


@dataclass(slots=True, eq=False)
class TrackedBundle:
    """A bundle that was read."""

    planned: Range
    # Its place in `planned.refs`.
    place: int
    # Events before this row are in the ledger.
    recorded: int
    items: list[Item] = field(default_factory=list)
    # How many of its first items are in the ledger.
    recorded_items: int = 0
    # For a bundle of which nothing is sent.
    whole: Decision | None = None
    is_done: bool = False
    seq: int = field(init=False)
    # How many events it has.
    events: int = field(init=False)
    # Its payload, and about what it costs to remember it.
    size_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        ref = self.planned.refs[self.place]
        self.seq, self.events = ref.seq, ref.events
        self.size_bytes = ref.size_bytes + BUNDLE_OVERHEAD_BYTES

    def record(self, end_row: int) -> None:
        """Note that everything before a row is in the ledger."""
        self.recorded = max(self.recorded, end_row)
        items, done = self.items, self.recorded_items
        while done < len(items) and items[done].end_row <= self.recorded:
            done += 1
        self.recorded_items = done


@dataclass(slots=True)
class LedgerLine:
    """One line for the ledger: consecutive events of one range with the same outcome."""

    planned: Range
    since: Position
    through: Position
    decision: Decision
    # The bundles it touches, and up to which row.
    parts: list[tuple[TrackedBundle, int]]

    def spans(self) -> list[tuple[Position, Position]]:
        """Return what it covers, bundle by bundle."""
        starts = [self.since, *(Position(bundle.seq) for bundle, _ in self.parts[1:])]
        ends = [*(Position(bundle.seq + 1) for bundle, _ in self.parts[:-1]), self.through]
        return list(zip(starts, ends, strict=True))

    def joins(self, bundle: TrackedBundle, since: Position, decision: Decision) -> bool:
        """Whether this one continues a run that begins a bundle."""
        last = self.parts[-1][0]
        return (
            self.planned is bundle.planned
            and self.decision == decision
            and self.through == Position(last.seq + 1)
            and bundle.place == last.place + 1
            and since.row == 0
        )


class DeliveryWindow:
    """All bundles from the oldest without an outcome to the newest that was read."""

    def __init__(self) -> None:
        # Those in the middle that are done stay until everything before them is.
        self._bundles: deque[TrackedBundle] = deque()
        self._by_seq: dict[int, TrackedBundle] = {}
        # Of bundles with events that are decided and not recorded.
        self._dirty: set[int] = set()
        # Bytes from the oldest without an outcome on.
        self.ahead_bytes = 0
        # Events that are not decided.
        self.pending_events = 0

    def add(self, bundles: Sequence[TrackedBundle]) -> list[Item]:
        """Take bundles that were read; return the events to send.

        One that is here already (after an operator asked for a replay) is not taken twice.
        """
        items: list[Item] = []
        for bundle in bundles:
            if bundle.seq in self._by_seq:
                continue
            self._by_seq[bundle.seq] = bundle
            self._bundles.append(bundle)
            self.ahead_bytes += bundle.size_bytes
            items += bundle.items
            if not bundle.items:
                self._dirty.add(bundle.seq)
        self.pending_events += len(items)
        return items

    def decide(self, item: Item, decision: Decision) -> None:
        """Note what became of an event, once."""
        assert item.decision is None, "BUG: an event is decided twice"
        if item.event.damaged_slots and decision.outcome is Outcome.ACKED:
            # It arrived, and it was not what was accepted.
            slots = ", ".join(item.event.damaged_slots)
            decision = Decision(Outcome.DAMAGED, f"sent without {slots}: damaged")
        # What the processors made of it is not needed again; the payload goes with its bundle.
        item.decision, item.ready = decision, None
        self.pending_events -= 1
        self._dirty.add(item.bundle.seq)

    def oldest(self) -> Item | None:
        """Return the oldest event that is not decided."""
        for bundle in self._bundles:
            for item in bundle.items:
                if item.decision is None:
                    return item
        return None

    def ranges(self) -> list[Range]:
        """Return the planned ranges of which something is not decided."""
        found = {id(b.planned): b.planned for b in self._bundles if not b.is_done}
        return list(found.values())

    def forget_all_but(self, seqs: Collection[int], of: Collection[Range]) -> None:
        """Take out the bundles of some ranges that got an outcome from somebody else meanwhile.

        Only of the ranges that were asked about: a bundle that was read since is not in `seqs`
        either, and would be taken for one that somebody decided.
        """
        ranges = {id(planned) for planned in of}
        for bundle in self._bundles:
            if bundle.is_done or bundle.seq in seqs or id(bundle.planned) not in ranges:
                continue
            for item in bundle.items:
                if item.decision is None:
                    self.decide(item, GONE)
            self._finish(bundle)
        self._shrink()

    # ------------------------------------------------------------------ recording

    def pieces(self) -> list[LedgerLine]:
        """Return what can be written to the ledger now."""
        pieces: list[LedgerLine] = []
        left_behind: set[str] = set()
        # In the order of seqs, so that neighbours can share a line. With a backlog most lines
        # cover a whole plan: the ledger grows with the changes of outcome and not with the number
        # of bundles.
        for seq in sorted(self._dirty):
            bundle = self._by_seq[seq]
            for first, end, decision in _runs(bundle, left_behind):
                since = Position(seq, first)
                through = Position(seq + 1) if end == bundle.events else Position(seq, end)
                if pieces and pieces[-1].joins(bundle, since, decision):
                    pieces[-1].through = through
                    pieces[-1].parts.append((bundle, end))
                else:
                    part = [(bundle, end)]
                    pieces.append(LedgerLine(bundle.planned, since, through, decision, part))
        return pieces

    def recorded(self, pieces: Sequence[LedgerLine]) -> None:
        """Note that pieces are in the ledger."""
        for piece in pieces:
            for bundle, end in piece.parts:
                if end == bundle.events:
                    if not bundle.is_done:
                        self._finish(bundle)
                    continue
                bundle.record(end)
                # Still dirty if something behind a gap is decided: it is looked at again when the
                # gap closes.
                if not any(item.decision for item in bundle.items[bundle.recorded_items :]):
                    self._dirty.discard(bundle.seq)
        self._shrink()

    def _finish(self, bundle: TrackedBundle) -> None:
        bundle.is_done = True
        bundle.items.clear()
        del self._by_seq[bundle.seq]
        self._dirty.discard(bundle.seq)

    def _shrink(self) -> None:
        while self._bundles and self._bundles[0].is_done:
            self.ahead_bytes -= self._bundles.popleft().size_bytes


def _runs(bundle: TrackedBundle, left_behind: set[str]) -> list[tuple[int, int, Decision]]:
    """Return first row, end row and decision of what may be recorded of a bundle, in order.

    Notes the keys of events that are decided, and have to wait for others.
    """
    if bundle.whole is not None:
        return [(bundle.recorded, bundle.events, bundle.whole)]
    runs: list[tuple[int, int, Decision]] = []
    first, waits = bundle.recorded, False
    for item in bundle.items[bundle.recorded_items :]:
        decision = item.decision
        # Two rules in one pass. Within a bundle nothing may be recorded behind a gap: the ledger
        # stores one row number per bundle. Across bundles nothing of a key may be recorded that
        # follows something of the same key left behind, or a restart would send the older event
        # after the newer one.
        waits = waits or decision is None or item.key in left_behind
        if decision is None:
            continue
        if waits:
            left_behind.add(item.key)
            continue
        if runs and runs[-1][2] == decision:
            first = runs.pop()[0]
        end = item.end_row
        runs.append((first, end, decision))
        first = end
    return runs
