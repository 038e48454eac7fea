"""What data nodes lack of what they should have, and who has it.

The ledger says what is settled for a node: it acknowledged a range, or the range was lost to it.
The node itself says which seqs it has, and ever had. A *gap* is what is settled, is the node's own,
and was never there by its own statement:

    gap = (stored anywhere, or lost by the ledger)  ∩  settled  ∩  owned  -  seen by the node

So a loss that the ledger states is no gap if the node has the part all the same: it took it, and
its answer did not arrive before the part was dropped for it. A part that is held because it is
damaged here is a gap, too, although it is not settled: only another node can give it.

Only what somebody stores, or what a loss names, counts. After a crash a quiver leaves numbers out,
which are settled, and in no part: from numbers alone they cannot be told from a range that every
node acknowledged and none has any more. Two copies that are lost behind their nodes' backs are
therefore not found here.

The ledger is looked at first, and the nodes are asked after that: what a node takes meanwhile is in
its statement, and cannot look like a gap.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise
from types import TracebackType
from typing import Literal, NamedTuple, Protocol, Self

from holdfast.errors import HoldfastError
from holdfast.handoff.membership import subscriber_of
from holdfast.handoff.monitor import NodeState
from holdfast.handoff.sender import Handoff
from holdfast.handoff.worker import DAMAGED
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.quiver.ledger.subscriber import LOSSES, Subscriber
from holdfast.replica.messages import Holding, ListedPart
from holdfast.replica.part import PartId, content_checksum, part_id, part_of
from holdfast.replica.transport import Transport, all_parts, whole_health
from holdfast.seam.disk import Disk

# Where a part is that has not left its quiver yet; no data node can have this name.
SENDER = "(sender)"
# How a gap came to be that the ledger knows nothing of: the node said that it had it, once.
MISSING = "missing"
# It waits, and cannot be sent from here: see `Worker.held`.
DAMAGED_HERE = "held: damaged here"
# No number of a bundle is so high.
_EVERYTHING = (0, 1 << 62)
# Nodes that are asked, whether they take parts now or not.
_ANSWERING = (NodeState.UP, NodeState.SUSPECT, NodeState.BUSY)


class RunningSender(Protocol):
    """A sender with the addresses of its nodes."""

    # Of the exporter in the graph file, and which of its quivers it is.
    name: str
    core_id: int
    handoff: Handoff

    def connect(self, node: str) -> Transport:
        """Return a new connection to a data node; the caller closes it."""

    def address_of(self, node: str) -> str | None:
        """Return where a data node is; None: nobody knows, or it is no longer configured."""

    def add(self, name: str, address: str, *, is_planned: bool) -> AddedNode:
        """Keep data for one more data node, durably; if it is only planned, just look."""

    def forget(self, name: str, mode: Literal["drop", "reassign"]) -> int:
        """Remove a data node for good; return how many parts others have to get instead."""


class AddedNode(NamedTuple):
    """What came of adding a data node."""

    address: str
    # Who answers there now; None: nobody does, for the reason that `problem` has.
    node_id: str | None
    problem: str | None
    # False: it was added before.
    is_new: bool
    # It gets what is accepted from this seq on.
    from_seq: int


class AskedNode(NamedTuple):
    """A data node that answered."""

    node_id: str
    transport: Transport
    holdings: Mapping[str, Holding]

    def holding(self, quiver_id: str) -> Holding:
        """Return what it has of a quiver."""
        return self.holdings.get(quiver_id, Holding(quiver_id))


class NodeStatements:
    """What all nodes of a sender say now, and what the ledger said just before."""

    def __init__(self, sender: RunningSender) -> None:
        """Ask every node that is up; takes as long as they do, each within its deadline."""
        self.sender = sender
        self.handoff = sender.handoff
        # By node: what is settled, at a moment before it was asked.
        self.settled: dict[str, Subscriber] = {}
        self.asked: dict[str, AskedNode] = {}
        # Who could not be asked, and why.
        self.unknown: dict[str, str] = {}
        self._connections = contextlib.ExitStack()
        handoff = self.handoff
        with handoff.lock:
            states = {name: handoff.monitor.state(name) for name in handoff.membership.bound}
            for name in states:
                if subscriber_of(name) in handoff.quiver.subscribers():
                    self.settled[name] = handoff.quiver.snapshot(subscriber_of(name))
        for name, state in states.items():
            try:
                if state in _ANSWERING:
                    self._ask(name)
                else:
                    self.unknown[name] = f"it is {state}"
            except HoldfastError as error:
                self.unknown[name] = str(error)

    def _ask(self, name: str) -> None:
        transport = self.sender.connect(name)
        self._connections.callback(transport.close)
        health = whole_health(transport)
        bound_id = self.handoff.membership.bound[name].node_id
        if health.node_id != bound_id:
            self.unknown[name] = f"node {health.node_id} answers, and {bound_id} is bound to it"
            return
        holdings = {one.quiver_id: one for one in health.holdings}
        self.asked[name] = AskedNode(health.node_id, transport, holdings)

    def went(self, name: str, error: HoldfastError) -> None:
        """Note that a node that answered does not any more."""
        del self.asked[name]
        self.unknown[name] = str(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connections.close()


# ------------------------------------------------------------------------- gaps


@dataclass(frozen=True)
class NodeGap:
    """A range that a data node should have, and has not."""

    node: str
    quiver_id: str
    first_seq: int
    end_seq: int
    # How the ledger says that it was lost, or `MISSING`, or `DAMAGED_HERE`.
    outcome: str
    # Who has some of it.
    sources: tuple[str, ...]
    # What of it nobody has who could be asked.
    nowhere: tuple[tuple[int, int], ...]


def find_gaps(statements: NodeStatements) -> Iterator[NodeGap]:
    """Yield what the nodes that answered lack, by node and in order."""
    ids = statements.handoff.quiver_ids
    stored = {quiver_id: _stored(statements, quiver_id) for quiver_id in ids}
    for name in sorted(statements.asked.keys() & statements.settled.keys()):
        lost = _losses(statements, name, stored)
        for quiver_id in ids:
            exists = IntervalSet()
            for one in stored[quiver_id].values():
                exists = exists.union(one)
            if quiver_id == ids[0]:
                exists = exists.union(lost)
            lacking = _lacking(statements, name, quiver_id, exists)
            for outcome, ranges in _by_outcome(statements.settled[name], lacking):
                for first_seq, end_seq in ranges:
                    yield _gap(name, quiver_id, (first_seq, end_seq), outcome, stored[quiver_id])
        for part in _damaged_here(statements.handoff, name):
            nodes = {who: one for who, one in stored[part.quiver_id].items() if who != SENDER}
            yield _gap(name, part.quiver_id, (part.first_seq, part.end_seq), DAMAGED_HERE, nodes)


def _damaged_here(handoff: Handoff, name: str) -> list[PartId]:
    with handoff.lock:
        worker = handoff.workers.get(name)
        held = [] if worker is None else [worker.held[part] for part in sorted(worker.held)]
    return [
        one.part for one in held if one.kind == DAMAGED and one.part.quiver_id in handoff.quiver_ids
    ]


def _stored(statements: NodeStatements, quiver_id: str) -> dict[str, IntervalSet]:
    """Return who stores what of a quiver: the sender first, then its nodes by name."""
    own = IntervalSet()
    for segment in statements.handoff.quiver.segments():
        if segment.summary.quiver_id == quiver_id:
            own.add(segment.summary.first_seq, segment.summary.last_seq + 1)
    nodes = {name: one.holding(quiver_id).stored for name, one in sorted(statements.asked.items())}
    return {SENDER: own, **nodes}


def _losses(
    statements: NodeStatements, name: str, stored: Mapping[str, Mapping[str, IntervalSet]]
) -> IntervalSet:
    """Return what the ledger says was lost to a node, and which no part of a former id holds.

    A ledger has no ids: what was lost before a restore was a part of the quiver's former id.
    """
    losses = IntervalSet((first, end) for first, end, _ in statements.settled[name].losses)
    for quiver_id in list(stored)[1:]:
        losses = losses.without(statements.asked[name].holding(quiver_id).seen)
        for one in stored[quiver_id].values():
            losses = losses.without(one)
    return losses


def _lacking(
    statements: NodeStatements, name: str, quiver_id: str, exists: IntervalSet
) -> IntervalSet:
    subscriber = statements.settled[name]
    first_seq = subscriber.start_seq
    end_seq = max((end for _, end in exists), default=first_seq)
    lacking = exists.without(statements.asked[name].holding(quiver_id).seen)
    lacking.remove(0, first_seq)
    for hole in list(subscriber.resolved.holes(first_seq, end_seq)):
        lacking.remove(*hole)
    owners = statements.handoff.membership.owners
    for others in list(owners.not_owned(name, quiver_id, first_seq, end_seq)):
        lacking.remove(*others)
    return lacking


def _by_outcome(subscriber: Subscriber, lacking: IntervalSet) -> Iterator[tuple[str, IntervalSet]]:
    rest = lacking
    for outcome in sorted(LOSSES):
        lost = IntervalSet((first, end) for first, end, how in subscriber.losses if how is outcome)
        without = rest.without(lost)
        yield outcome.name.lower(), rest.without(without)
        rest = without
    yield MISSING, rest


def _gap(
    name: str,
    quiver_id: str,
    seqs: tuple[int, int],
    outcome: str,
    stored: Mapping[str, IntervalSet],
) -> NodeGap:
    sources = [who for who, ranges in stored.items() if ranges.overlaps(*seqs)]
    nowhere = IntervalSet([seqs])
    for who in sources:
        nowhere = nowhere.without(stored[who])
    return NodeGap(name, quiver_id, *seqs, outcome, tuple(sources), tuple(nowhere))


# ------------------------------------------------------------------------ parts


class PartsPage(NamedTuple):
    """Parts in the order of their seqs, each with who has it; and where the next page begins."""

    parts: dict[PartId, dict[str, ListedPart]]
    # None: there are no more.
    next_seq: int | None


def list_parts(
    statements: NodeStatements,
    names: Iterable[str],
    quiver_id: str,
    ranges: IntervalSet,
    limit: int,
) -> PartsPage:
    """Return the parts that some nodes have of some ranges; at most so many of each node.

    A node that goes meanwhile is one that could not be asked.
    """
    found: dict[PartId, dict[str, ListedPart]] = {}
    ends = []
    for name in names:
        node = statements.asked[name]
        try:
            listed = list(islice(all_parts(node.transport, node.node_id, quiver_id, ranges), limit))
        except HoldfastError as error:
            statements.went(name, error)
            continue
        if len(listed) == limit:
            ends.append(listed[-1].part.id.end_seq)
        for one in listed:
            found.setdefault(one.part.id, {})[name] = one
    # Behind this one not every node was asked.
    next_seq = min(ends, default=None)
    return PartsPage(
        {
            part: found[part]
            for part in sorted(found)
            if next_seq is None or part.first_seq < next_seq
        },
        next_seq,
    )


class PartDifference(NamedTuple):
    """A part that is not the same everywhere."""

    part: PartId
    problem: str
    # Who has it, and by what checksum; or, of an overlap, which of the two parts.
    checksums: dict[str, str]


def find_differences(
    statements: NodeStatements, disk: Disk, quiver_id: str, from_seq: int, limit: int
) -> tuple[list[PartDifference], int, int | None]:
    """Compare a page of parts; return what differs, how many parts there were, what is next."""
    ranges = IntervalSet([(from_seq, _EVERYTHING[1])])
    page = list_parts(statements, sorted(statements.asked), quiver_id, ranges, limit)
    for segment in statements.handoff.quiver.segments():
        part = part_id(segment.summary)
        is_on_page = page.next_seq is None or part.first_seq < page.next_seq
        if part.quiver_id == quiver_id and part.end_seq > from_seq and is_on_page:
            with contextlib.suppress(FileNotFoundError):  # everybody has it, and it is removed
                listed = ListedPart(
                    part_of(disk, segment.path, segment.summary), content_checksum(segment.summary)
                )
                page.parts.setdefault(part, {})[SENDER] = listed
    differences = []
    for part, holders in page.parts.items():
        checksums = {name: one.checksum for name, one in holders.items()}
        if len(set(checksums.values())) > 1:
            differences.append(PartDifference(part, "its bytes differ", checksums))
    for one, two in pairwise(sorted(page.parts)):
        if two.first_seq <= one.last_seq:
            cuts = {name: str(one) for name in page.parts[one]}
            cuts |= {name: str(two) for name in page.parts[two]}
            differences.append(PartDifference(two, f"it overlaps {one} in part", cuts))
    return differences, len(page.parts), page.next_seq
