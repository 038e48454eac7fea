"""Brings a data node what it lacks, from whoever has it.

    still in the quiver    the range is reopened for the node, and its worker sends it as any other
    at another node        fetched from there and put here, slice by slice, without a disk between;
                           a part that was held because it is damaged here is then offered again

The node that takes the part verifies every byte before it adopts it, as it does with any put: a
source that is damaged, or lies, costs an attempt, and the next one is tried. Nothing is written
here, so nothing has to be cleaned up: after a crash the same gaps are found again.

The ledger keeps what it says: a range was lost to the node at that time. Whether it is there now is
for the node to say, and that is what gaps, statistics and sync points go by.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.errors import HoldfastError
from holdfast.handoff.comparison import (
    DAMAGED_HERE,
    SENDER,
    NodeGap,
    NodeStatements,
    find_gaps,
    list_parts,
)
from holdfast.handoff.membership import subscriber_of
from holdfast.handoff.sender import Handoff
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.replica.messages import RESOLVED, AnswerKind, ListedPart, PartAnswer
from holdfast.replica.part import PartId, part_id
from holdfast.seam.clock import Clock

# How long one turn works, and how many parts of one gap it looks at.
TURN_S = 10.0
TURN_PARTS = 1000

# What becomes of a part that the sender still has.
WAITS = "waits"

# Where the next turn goes on: node, quiver, seq.
RepairPosition = tuple[str, str, int]


class RepairedPart(NamedTuple):
    """What became of one part, for one node."""

    node: str
    part: PartId
    # Who had it; empty if nobody gave it.
    source: str
    # As the node said it; `waits` if the sender has it and sends it itself, `failed` if no answer.
    answer: str
    reason: str = ""


@dataclass
class RepairTurn:
    """What one turn did."""

    parts: list[RepairedPart] = field(default_factory=list)
    # None: nothing is left to try.
    next_position: RepairPosition | None = None
    # By node and quiver: what was brought, or will be. A part across many blocks is in many gaps.
    settled: dict[tuple[str, str], IntervalSet] = field(default_factory=dict)

    def add(self, one: RepairedPart) -> None:
        """Note what came of a part."""
        self.parts.append(one)
        if one.answer in RESOLVED or one.answer == WAITS:
            key = one.node, one.part.quiver_id
            self.settled.setdefault(key, IntervalSet()).add(one.part.first_seq, one.part.end_seq)


def repair(
    statements: NodeStatements, clock: Clock, node: str | None, after: RepairPosition | None
) -> RepairTurn:
    """Fill the gaps of one node, or of all, from a position on, for one turn."""
    done = RepairTurn()
    turn_ends_s = clock.monotonic_s() + TURN_S
    for gap in sorted(
        find_gaps(statements), key=lambda one: (one.node, one.quiver_id, one.first_seq)
    ):
        if node not in (None, gap.node) or _is_behind(gap, after):
            continue
        first_seq = gap.first_seq
        if after is not None and after[:2] == (gap.node, gap.quiver_id):
            first_seq = max(first_seq, after[2])
        for end_seq in _fill(statements, gap, first_seq, done):
            if clock.monotonic_s() >= turn_ends_s:
                done.next_position = gap.node, gap.quiver_id, end_seq
                return done
    return done


def _is_behind(gap: NodeGap, after: RepairPosition | None) -> bool:
    """Whether a turn before this one was through with a gap."""
    if after is None:
        return False
    here, there = (gap.node, gap.quiver_id), after[:2]
    return here < there or (here == there and gap.end_seq <= after[2])


def _fill(
    statements: NodeStatements, gap: NodeGap, first_seq: int, done: RepairTurn
) -> Iterator[int]:
    """Bring a node the parts of a gap; yield after each up to which seq that is."""
    settled = done.settled.get((gap.node, gap.quiver_id), IntervalSet())
    missing = IntervalSet([(first_seq, gap.end_seq)])
    if gap.outcome != DAMAGED_HERE:
        missing = missing.without(settled)
    if missing and SENDER in gap.sources:
        reopened = _reopen(statements.handoff, gap, missing)
        for part in reopened:
            done.add(RepairedPart(gap.node, part, SENDER, WAITS))
            missing.remove(part.first_seq, part.end_seq)
    while missing and gap.node in statements.asked:
        sources = statements.asked.keys() & set(gap.sources) - {gap.node}
        page = list_parts(statements, sorted(sources), gap.quiver_id, missing, TURN_PARTS)
        for part, holders in page.parts.items():
            brought = _bring(statements, gap.node, part, holders)
            done.add(brought)
            if gap.outcome == DAMAGED_HERE and brought.answer in RESOLVED:
                _release(statements.handoff, gap)
            if gap.node not in statements.asked:
                return
            yield part.end_seq
        if page.next_seq is None:
            return
        missing.remove(0, page.next_seq)


def _release(handoff: Handoff, gap: NodeGap) -> None:
    """Offer a held part again: the node has it now, and says so."""
    with handoff.lock:
        if (worker := handoff.workers.get(gap.node)) is not None:
            worker.release(PartId(gap.quiver_id, gap.first_seq, gap.end_seq - 1))
    handoff.quiver.arrivals.notify()


def _reopen(handoff: Handoff, gap: NodeGap, missing: IntervalSet) -> list[PartId]:
    """Let the worker send again what is still in the quiver; return which parts those are."""
    parts = [
        part
        for segment in handoff.quiver.segments()
        if (part := part_id(segment.summary)).quiver_id == gap.quiver_id
        and missing.overlaps(part.first_seq, part.end_seq)
    ]
    with handoff.lock:
        subscriber = subscriber_of(gap.node)
        start_seq = handoff.quiver.subscriber(subscriber).start_seq
        for first, end in IntervalSet((part.first_seq, part.end_seq) for part in parts):
            handoff.quiver.replay(subscriber, max(first, start_seq), end)
    return parts


def _bring(
    statements: NodeStatements, node: str, part: PartId, holders: dict[str, ListedPart]
) -> RepairedPart:
    """Put a part to a node from the first that gives it whole."""
    taking, problems = statements.asked[node], []
    try:
        (answer,) = taking.transport.offer(taking.node_id, [next(iter(holders.values())).part])
    except HoldfastError as error:
        # Whatever else it lacks, it cannot be brought now.
        statements.went(node, error)
        return RepairedPart(node, part, "", "failed", str(error))
    if answer.kind is not AnswerKind.NEED:
        return RepairedPart(node, part, "", str(answer.kind), answer.reason)
    for source in holders:
        try:
            answer = _relay(statements, node, source, part)
        except HoldfastError as error:
            problems.append(f"{source}: {error}")
            continue
        if answer.kind is not AnswerKind.RETRY:
            return RepairedPart(node, part, source, str(answer.kind), answer.reason)
        problems.append(f"{source}: {answer.reason}")
    return RepairedPart(node, part, "", "failed", "; ".join(problems))


def _relay(statements: NodeStatements, node: str, source: str, part: PartId) -> PartAnswer:
    """Fetch a part from one node and put it to another."""
    giving, taking = statements.asked[source], statements.asked[node]
    fetched = giving.transport.fetch(giving.node_id, part)
    (answer,) = taking.transport.send(taking.node_id, [fetched])
    with statements.handoff.lock:
        # What is sent here, catch-up has to leave.
        statements.handoff.scheduler.sent_live(node, fetched.part.size_bytes)
    return answer
