"""A simulated sender as operators reach it; and whether what it says of gaps is true."""

from __future__ import annotations

from typing import Any, Literal

from tests.handoff.simulation import Simulation, _twice

from holdfast.handoff.comparison import AddedNode, NodeStatements, find_gaps
from holdfast.handoff.control import HandoffVerbs
from holdfast.handoff.fake import FakeTransport
from holdfast.handoff.membership import subscriber_of
from holdfast.handoff.repair import repair
from holdfast.handoff.sender import Handoff
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.replica.transport import Transport
from holdfast.seam import Seam


class SimulatedSender:
    """The sender of a simulation, with connections to its nodes."""

    name = "replicas"
    core_id = 0

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim

    @property
    def handoff(self) -> Handoff:
        return self._sim.handoff

    @handoff.setter
    def handoff(self, value: Handoff) -> None:
        raise AssertionError("it is the simulation's")

    def connect(self, node: str) -> Transport:
        return FakeTransport(lambda: self._sim.at.get(node))

    def address_of(self, node: str) -> str | None:
        return f"{node}:1" if node in self._sim.handoff.workers else None

    def add(self, name: str, address: str, *, is_planned: bool) -> AddedNode:
        raise AssertionError("its nodes have no addresses: tests/handoff/test_runner.py")

    def forget(self, name: str, mode: Literal["drop", "reassign"]) -> int:
        return self.handoff.forget(name, mode)


def verbs_of(sim: Simulation) -> HandoffVerbs:
    return HandoffVerbs(lambda: [SimulatedSender(sim)], Seam(sim.disk, sim.clock, sim.random))


def asked(sim: Simulation, action: str, **fields: Any) -> list[dict[str, Any]]:
    """Ask, as a tool does; return the records without what is the same in all of them."""
    answer = verbs_of(sim)({"action": action, **fields})
    assert answer["left_out"] == 0
    for record in answer["records"]:
        assert (record.pop("component"), record.pop("core_id")) == ("replicas", 0)
    found: list[dict[str, Any]] = answer["records"]
    return found


def lacking(sim: Simulation, name: str) -> set[int]:
    """Return which accepted seqs a node should have and has not, looked at one by one."""
    subscriber = sim.quiver.subscriber(subscriber_of(name))
    owners, quiver_id = sim.handoff.membership.owners, sim.quiver.quiver_id
    lost = IntervalSet((first, end) for first, end, _ in subscriber.losses)
    # Of members only: nobody asks a node that was forgotten.
    stored = [one.part.id for member in sim.names for one in sim.at[member].adopted]
    seen = sim.at[name].seen.get(quiver_id, IntervalSet())
    return {
        seq
        for seq in sim.accepted
        if seq >= subscriber.start_seq
        and seq in subscriber.resolved
        and seq not in seen
        and name in owners.owners(quiver_id, seq, seq + 1)
        and (
            seq in lost
            or any(part.first_seq <= seq <= part.last_seq for part in stored)
            or any(
                one.summary.first_seq <= seq <= one.summary.last_seq
                for one in sim.quiver.segments()
            )
        )
    }


def gaps_of(sim: Simulation) -> dict[str, IntervalSet]:
    with NodeStatements(SimulatedSender(sim)) as statements:
        assert statements.unknown == {}
        found: dict[str, IntervalSet] = {}
        for gap in find_gaps(statements):
            found.setdefault(gap.node, IntervalSet()).add(gap.first_seq, gap.end_seq)
        return found


def check_gaps(sim: Simulation) -> None:
    """Compare the gaps of a settled history with the truth, repair them, and look again."""
    gaps = gaps_of(sim)
    for name in sim.names:
        assert {seq for seq in sim.accepted if seq in gaps.get(name, IntervalSet())} == lacking(
            sim, name
        ), name
    with NodeStatements(SimulatedSender(sim)) as statements:
        turn = repair(statements, sim.clock, None, None)
        assert turn.next_position is None
        assert {one.answer for one in turn.parts} <= {"ack", "waits"}
    sim.settle()
    with NodeStatements(SimulatedSender(sim)) as statements:
        nobody = {
            (gap.node, seq)
            for gap in find_gaps(statements)
            for first, end in gap.nowhere
            for seq in range(first, end)
        }
    for name in sim.names:
        assert {(name, seq) for seq in lacking(sim, name)} <= nobody
        assert _twice(name, sim.at[name]) == []
        assert sim._different(name, sim.at[name]) == []
