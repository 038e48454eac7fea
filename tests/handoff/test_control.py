"""What operators ask of a sender: looking, changing, giving up, comparing, repairing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, Literal

import pytest
from tests.handoff import simulation
from tests.handoff.comparing import asked, gaps_of
from tests.handoff.test_driver import is_done, seal, sending
from tests.handoff.test_sender import FAST, Calm
from tests.node.serving import served
from tests.patience import PATIENCE_S, until

from holdfast.errors import BadInput, OwnerGone, StorageFailed
from holdfast.handoff import repair as repairing
from holdfast.handoff.comparison import AddedNode
from holdfast.handoff.control import HandoffVerbs
from holdfast.handoff.fake import FakeNode
from holdfast.handoff.points import HandoffPoint
from holdfast.handoff.sender import Handoff, HandoffSettings
from holdfast.quiver import Outcome, SubscriberOptions
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.quiver.tools.backup import backup, restore
from holdfast.quiver.tools.history import LineFilter, lines
from holdfast.quiver.tools.inspect import inspect
from holdfast.remote import ClientSettings
from holdfast.replica import transport as transports
from holdfast.replica.flight import FlightTransport
from holdfast.replica.messages import AnswerKind, PartAnswer
from holdfast.replica.part import PartId
from holdfast.replica.transport import Transport, all_parts, whole_health
from holdfast.seam import Seam
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk


@pytest.fixture
def sim() -> Iterator[Calm]:
    sim = Calm()
    yield sim
    sim.quiver.close()


def one(sim: Calm, action: str, **fields: Any) -> dict[str, Any]:
    (record,) = asked(sim, action, **fields)
    return record


def seqs(part: PartId) -> tuple[int, int]:
    return part.first_seq, part.end_seq


def test_what_waits_is_listed_with_how_and_why(sim: Calm) -> None:
    sim.run(10.0)
    refused, failing = sim.seal(2)
    sim.at["a"].lies[refused] = PartAnswer(refused, AnswerKind.REJECT, "not that one")
    sim.at["a"].lies[failing] = PartAnswer(failing, AnswerKind.RETRY, "its disk failed")
    sim.run(20.0)
    (last,) = sim.seal()
    listed = {record["part"]: record for record in asked(sim, "ls", node="a")}
    assert {part: record["state"] for part, record in listed.items()} == {
        str(refused): "held",
        str(failing): "delayed",
        str(last): "waiting",
    }
    assert listed[str(refused)]["reason"] == "reject: not that one"
    assert "its disk failed" in listed[str(failing)]["reason"]
    assert [record["part"] for record in asked(sim, "ls", held=True)] == [str(refused)]
    status = {record["node"]: record for record in asked(sim, "status")}
    assert status["a"]["pending_parts"] == 3
    assert [held["part"] for held in status["a"]["held"]] == [str(refused)]
    shown = {record["node"]: record for record in asked(sim, "show", part=str(refused))}
    assert shown["(sender)"]["size_bytes"] == listed[str(refused)]["size_bytes"]
    assert (shown["a"]["state"], shown["a"]["says"]) == ("held", "not there")
    assert (shown["b"]["state"], shown["b"]["says"]) == ("settled", "stored")
    # And released, and retried.
    sim.at["a"].lies.clear()
    assert asked(sim, "release", part=str(refused)) == [{"node": "a", "released": 1}]
    assert asked(sim, "retry", node="a") == [{"node": "a"}]
    sim.run(20.0)
    assert asked(sim, "ls") == []


def test_scenario_30_pause_and_rate_work_at_once_and_unknown_names_do_nothing(sim: Calm) -> None:
    sim.run(10.0)
    assert one(sim, "pause", node="a") == {"node": "a", "is_paused": True}
    assert one(sim, "rate", node="b", bytes_s=7) == {"node": "b", "rate_bytes_s": 7}
    assert one(sim, "rate", bytes_s=1e9) == {"node": None, "rate_bytes_s": 1e9}
    (part,) = sim.seal()
    sim.run(20.0)
    status = {record["node"]: record for record in asked(sim, "status")}
    assert status["a"]["is_paused"]
    assert part not in sim.has("a")
    assert part in sim.has("b")  # new parts wait for no rate
    assert status["b"]["rate_bytes_s"] == 7
    assert status["b"]["total_rate_bytes_s"] == 1e9
    one(sim, "resume", node="a")
    sim.run(20.0)
    assert part in sim.has("a")
    for action in ("status", "ls", "pause", "retry", "release", "rebind", "drain"):
        assert asked(sim, action, node="nobody") == []
    with pytest.raises(BadInput, match="there is no action"):
        asked(sim, "explode")
    with pytest.raises(BadInput, match="is not text"):
        asked(sim, "pause", node=7)
    with pytest.raises(BadInput, match="a rate of"):
        asked(sim, "rate", bytes_s=-1)
    with pytest.raises(BadInput, match="sends to no data nodes"):
        HandoffVerbs(list, Seam())({"action": "status"})


def test_what_is_given_up_is_planned_first_and_exact_in_the_ledger(sim: Calm) -> None:
    sim.stop("a")
    old = sim.seal(2)
    sim.run(100.0)
    moment_ns = sim.clock.wall_ns()
    young = sim.seal(2)
    fields: dict[str, Any] = {"node": "a", "before_ns": moment_ns}
    planned = asked(sim, "drop", plan=True, **fields)
    assert [record["part"] for record in planned] == [str(part) for part in old]
    assert sim.quiver.subscriber("node.a").losses == []
    done = asked(sim, "drop", **fields)
    assert [record["is_dropped"] for record in done] == [True, True]
    assert sim.quiver.subscriber("node.a").losses == [(0, old[-1].end_seq, Outcome.DROPPED)]
    # One part: without a node only where it is held.
    assert asked(sim, "discard", part=str(young[0])) == []
    assert one(sim, "discard", part=str(young[0]), node="a")["is_dropped"]
    assert asked(sim, "discard", part=str(young[0]), node="a") == []
    assert [record["part"] for record in asked(sim, "ls", node="a")] == [str(young[1])]
    assert one(sim, "forget", node="a", mode="drop", plan=True)["pending_parts"] == 1
    one(sim, "forget", node="a", mode="drop")
    sim.names.remove("a")
    sim.tick()
    found = lines(sim.disk, inspect(sim.disk, simulation.ROOT), LineFilter(subscriber="node.a"))
    last = [line.resolution for line in found if line.resolution is not None][-2]
    assert (last.start.seq, last.end.seq, last.outcome) == (*seqs(young[1]), Outcome.DROPPED)
    assert [record["node"] for record in asked(sim, "status")] == ["b"]
    with pytest.raises(BadInput, match="mode"):
        asked(sim, "forget", node="b", mode="maybe")
    with pytest.raises(BadInput, match="before_ns"):
        asked(sim, "drop", node="b")


def test_scenario_18_a_change_that_cannot_be_written_is_refused_and_can_be_repeated(
    sim: Calm,
) -> None:
    sim.run(10.0)
    members, fault = sim.handoff.membership, Fault(HandoffPoint.MEMBERS_WRITE, FaultKind.ENOSPC)
    members._disk = FaultyDisk(sim.disk, [fault], sim.disk.die)
    with pytest.raises(StorageFailed, match="the disk failed"):
        asked(sim, "drain", node="b")
    assert not one(sim, "status", node="b")["is_draining"]
    assert one(sim, "drain", node="b")["is_drained"]
    # A crash before the account of a forgotten node was closed.
    members.forget("b", members.owners)
    assert asked(sim, "status", node="b") == []
    assert one(sim, "forget", node="b", mode="drop")["pending_parts"] == 0
    assert sim.quiver.subscribers() == ("node.a",)
    assert asked(sim, "forget", node="b", mode="drop") == []


def test_a_restored_sender_repairs_parts_of_its_former_id(
    sim: Calm, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim.run(10.0)
    sim.stop("b")
    lost, kept = sim.seal(2)
    sim.run(10.0)
    one(sim, "discard", part=str(lost), node="b")
    sim.at["b"].restart()
    sim.run(60.0)
    sim.tick()
    sim.quiver.close()
    seam, copy, restored = Seam(sim.disk, sim.clock, sim.random), PurePath("/c"), PurePath("/r")
    backup(seam, simulation.ROOT, copy, lambda size_bytes: None)
    restore(seam, copy, restored, lambda size_bytes: None)
    monkeypatch.setattr(simulation, "ROOT", restored)
    sim.start()
    (new,) = sim.seal()
    sim.run(60.0)
    assert new.quiver_id != lost.quiver_id
    gap = one(sim, "gaps")
    assert (gap["node"], gap["quiver_id"]) == ("b", lost.quiver_id)
    assert (gap["first_seq"], gap["end_seq"], gap["sources"]) == (*seqs(lost), ("a",))
    asked(sim, "repair")
    assert asked(sim, "gaps") == []
    assert sim.has("b") == {lost, kept, new}
    first, second = asked(sim, "verify"), asked(sim, "verify", after=[lost.quiver_id, 0])
    assert [record["compared_parts"] for record in (*first, *second)] == [1, 2]
    assert [record["next"] for record in (*first, *second)] == [[lost.quiver_id, 0], None]


def test_scenario_25_what_waits_for_an_orphan_can_be_seen_and_given_up(sim: Calm) -> None:
    sim.stop("a")
    (part,) = sim.seal()
    sim.names.remove("a")
    sim.handoff.configure(sim.names)
    assert one(sim, "ls", node="a")["reason"] == "the node is not in the configuration"
    assert one(sim, "status", node="a")["state"] == "orphaned"
    with pytest.raises(BadInput, match="not in the configuration"):
        asked(sim, "pause", node="a")
    assert one(sim, "discard", part=str(part), node="a")["is_dropped"]
    assert asked(sim, "ls", node="a") == []


def test_a_node_is_drained_and_rebound(sim: Calm) -> None:
    sim.run(10.0)
    parts = sim.seal(2)
    sim.run(10.0)
    sim.at["b"].remove(sim.has_at("b", parts[0]))
    sim.run(10.0)
    alone = [sim.quiver.quiver_id, *seqs(parts[0])]
    was = sim.at["a"].node_id
    assert one(sim, "rebind", node="a", plan=True) == {
        "node": "a",
        "was_node_id": was,
        "alone": [alone],
    }
    assert one(sim, "status", node="a")["node_id"] == was
    one(sim, "rebind", node="a")
    assert one(sim, "status", node="a")["node_id"] is None
    sim.run(10.0)
    assert one(sim, "drain", node="b")["is_drained"]
    (part,) = sim.seal()
    sim.run(10.0)
    assert part not in sim.has("b")


def test_scenario_05_a_loss_of_which_only_the_answer_was_lost_is_no_gap(sim: Calm) -> None:
    sim.run(10.0)
    (part,) = sim.seal()
    while part not in sim.has("a"):
        sim.run(0.001)
    sim.cut.add("a")  # it has the part, and cannot say so
    sim.run(15.0)
    point = sim.handoff.sync_point()
    assert one(sim, "discard", part=str(part), node="a")["is_dropped"]
    assert one(sim, "status", node="a")["gaps"] == ((*seqs(part), "dropped"),)
    assert sim.handoff.reached(point).lost == {"a": [seqs(part)]}
    (unknown,) = asked(sim, "gaps", node="a")
    assert unknown["lost"] == [[*seqs(part), "dropped"]]  # nobody can say more now
    sim.cut.clear()
    sim.run(60.0)
    assert asked(sim, "gaps") == []
    assert one(sim, "status", node="a")["gaps"] == ()
    (reached,) = asked(sim, "reached", tokens=[str(point)])
    assert reached["is_complete"]
    assert sim.quiver.subscriber("node.a").losses  # what happened, happened


def test_scenario_17_what_was_dropped_is_fetched_from_another_node_in_turns(
    sim: Calm, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim.stop("a")
    parts = sim.seal(5)
    sim.run(20.0)
    point = sim.handoff.sync_point()
    for part in parts[:4]:
        one(sim, "discard", part=str(part), node="a")
    sim.at["a"].restart()
    sim.run(60.0)
    sim.tick()
    assert sim.quiver.segments() == ()
    gap = one(sim, "gaps")
    assert (gap["node"], gap["outcome"], gap["sources"], gap["nowhere"]) == (
        "a",
        "dropped",
        ("b",),
        (),
    )
    # One that nobody has any more.
    sim.at["b"].remove(sim.has_at("b", parts[1]))
    assert one(sim, "gaps")["nowhere"] == (seqs(parts[1]),)
    monkeypatch.setattr(repairing, "TURN_S", 0.0)
    monkeypatch.setattr(repairing, "TURN_PARTS", 2)
    after, repaired = None, []
    for _ in range(4):
        first, *records = asked(sim, "repair", after=after)
        repaired += [(r["part"], r["source"], r["answer"]) for r in records if "part" in r]
        after = first["next"]
        if after is None:
            break
    assert repaired == [(str(parts[place]), "b", "ack") for place in (0, 2, 3)]
    assert sim.has("a") == set(parts) - {parts[1]}
    assert gaps_of(sim) == {"a": IntervalSet([seqs(parts[1])])}
    sim.run(10.0)
    assert sim.handoff.reached(point).lost == {"a": [seqs(parts[1])]}
    with pytest.raises(BadInput, match="after"):
        asked(sim, "repair", after=["a", 3])


def test_scenario_08_a_part_that_is_damaged_here_is_repaired_from_another_node(
    sim: Calm,
) -> None:
    sim.run(10.0)
    sim.stop("a")
    (part,) = sim.seal()
    sim.run(20.0)
    segment = sim.segment(part)
    path = segment.path / segment.summary.files[0].name
    content = sim.disk.read(path)
    sim.disk.overwrite(path, len(content) // 2, bytes([content[len(content) // 2] ^ 1]))
    sim.at["a"].restart()
    sim.run(60.0)
    assert one(sim, "ls")["state"] == "held"
    gap = one(sim, "gaps")
    assert (gap["outcome"], gap["sources"]) == ("held: damaged here", ("b",))
    _, repaired = asked(sim, "repair", node="a")
    assert (repaired["source"], repaired["answer"]) == ("b", "ack")
    sim.run(10.0)
    assert asked(sim, "ls") == asked(sim, "gaps") == []
    assert sim.handoff.workers["a"].counters.answers[AnswerKind.HAVE] == 1
    assert sim.quiver.subscriber("node.a").losses == []


def test_scenario_04_a_node_that_goes_while_it_is_compared_is_one_that_was_not(sim: Calm) -> None:
    sim.run(10.0)
    (part,) = sim.seal()
    sim.run(10.0)
    sim.tick()
    sim.new_node("a")
    sim.run(10.0)
    sim.handoff.rebind("a")
    sim.run(10.0)
    listed = FakeNode.listed

    def going(node: FakeNode, *given: Any) -> Any:
        if node is sim.at["b"]:
            raise OwnerGone("it went", hint="wait")
        return listed(node, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeNode, "listed", going)
        for action in ("repair", "verify"):
            first, unknown = asked(sim, action)
            assert (first["next"], unknown["node"]) == (None, "b")
            assert "it went" in unknown["problem"]

    def gone(node: FakeNode, parts: Any) -> Any:
        raise OwnerGone("the other one went", hint="wait")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeNode, "offer", gone)
        _, unknown, failed = asked(sim, "repair")
        assert (unknown["node"], failed["answer"]) == ("a", "failed")
    assert [record.get("part") for record in asked(sim, "repair")] == [None, str(part)]
    assert sim.has("a") == {part}


def test_a_replaced_node_lacks_what_its_predecessor_had_and_gets_it(sim: Calm) -> None:
    sim.run(10.0)
    parts = sim.seal(3)
    sim.run(10.0)
    sim.tick()
    sim.new_node("a")
    sim.run(10.0)
    # Until it is rebound nobody knows what it lacks.
    assert "is bound to it" in one(sim, "gaps", node="a")["problem"]
    sim.handoff.rebind("a")
    sim.run(10.0)
    gap = one(sim, "gaps")
    assert (gap["outcome"], gap["first_seq"], gap["end_seq"]) == ("missing", 0, parts[-1].end_seq)
    asked(sim, "repair")
    assert sim.has("a") == set(parts)
    assert asked(sim, "gaps") == []
    (end,) = asked(sim, "verify")
    assert end == {"next": None, "compared_parts": 3}
    place = sim.has_at("b", parts[1])
    stored = sim.at["b"].adopted[place]
    other = sim.at["b"].adopted[place - 1].files["manifest"]
    sim.at["b"].adopted[place] = replace(stored, files={**stored.files, "manifest": other})
    _, differs = asked(sim, "verify")
    assert differs["part"] == str(parts[1])
    assert len(set(differs["checksums"].values())) == 2


def test_a_part_across_many_blocks_is_brought_once_for_all_its_gaps() -> None:
    sim = Calm(3, HandoffSettings(replicas=1, block_seqs=1, scheduler=FAST))
    sim.append(12)
    sim.flush()
    sim.run(20.0)
    sim.tick()
    assert sim.quiver.segments() == ()
    sim.at["a"].is_up = False
    sim.new_node("a")
    sim.handoff.rebind("a")
    sim.run(100.0)  # it is told what is not its own
    assert len([gap for gap in asked(sim, "gaps", node="a") if "outcome" in gap]) > 1
    _, *brought = asked(sim, "repair", node="a")
    assert [one["answer"] for one in brought] == ["ack"]
    assert asked(sim, "gaps", node="a") == []
    sim.quiver.close()


def test_a_gap_of_one_owner_of_several_is_no_gap_of_the_others() -> None:
    options = SubscriberOptions()
    sim = Calm(3, HandoffSettings(replicas=1, block_seqs=2, scheduler=FAST, subscriber=options))
    try:
        sim.stop("a")
        parts = sim.seal(12)
        sim.run(20.0)
        waiting = {record["part"] for record in asked(sim, "ls", node="a")}
        assert waiting
        for text in waiting:
            one(sim, "discard", part=text, node="a")
        sim.at["a"].restart()
        sim.run(200.0)
        sim.tick()
        owned = IntervalSet(seqs(part) for part in parts if str(part) in waiting)
        assert gaps_of(sim) == {"a": owned}
        # It was the only owner: nobody has them.
        assert all(gap["sources"] == () for gap in asked(sim, "gaps"))
    finally:
        sim.quiver.close()


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_long_lists_of_parts_and_of_ranges_come_in_pages(
    sim: Calm, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim.run(10.0)
    parts = sim.seal(7)
    sim.run(10.0)
    node = sim.at["a"]
    monkeypatch.setattr(transports, "PARTS_LISTED_MAX", limit)
    monkeypatch.setattr(transports, "RANGES_ASKED_MAX", limit)

    class Paged:
        def parts(self, node_id: str, quiver_id: str, ranges: IntervalSet) -> Any:
            assert len(ranges) <= limit
            return node.listed(quiver_id, ranges)[:limit]

    paged: Any = Paged()
    for ranges in ([(0, 99)], [seqs(part) for part in parts[::2]]):
        found = list(all_parts(paged, "a", sim.quiver.quiver_id, IntervalSet(ranges)))
        wanted = [part for part in parts if IntervalSet(ranges).overlaps(*seqs(part))]
        assert [listed.part.id for listed in found] == wanted


class ThreadedSender:
    """A sender with threads and real connections."""

    name, core_id = "replicas", 3

    def __init__(self, handoff: Handoff, locations: dict[str, str]) -> None:
        self.handoff = handoff
        self._locations = locations

    def connect(self, node: str) -> Transport:
        return FlightTransport(self._locations[node], ClientSettings(timeout=PATIENCE_S))

    def address_of(self, node: str) -> str | None:
        return self._locations.get(node)

    def add(self, name: str, address: str, *, is_planned: bool) -> AddedNode:
        raise AssertionError("nothing is added here")

    def forget(self, name: str, mode: Literal["drop", "reassign"]) -> int:
        return self.handoff.forget(name, mode)


def test_real_nodes_are_compared_and_repaired_after_damage(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        nodes, locations = {}, {}
        for name in "ab":
            (tmp_path / name).mkdir()
            nodes[name], locations[name] = stack.enter_context(served(tmp_path / name))
        ways: dict[str, Transport] = {
            name: FlightTransport(location, ClientSettings(timeout=PATIENCE_S))
            for name, location in locations.items()
        }
        handoff = stack.enter_context(sending(tmp_path, ways))
        verbs = HandoffVerbs(lambda: [ThreadedSender(handoff, locations)], Seam())
        until(lambda: handoff.healthy_nodes() == {"a", "b"}, "that both are met")
        verbs({"action": "pause", "node": "a"})
        seal(handoff.quiver, 3)
        (first, *_) = verbs({"action": "ls", "node": "a"})["records"]
        verbs({"action": "discard", "node": "a", "part": first["part"]})
        verbs({"action": "resume", "node": "a"})
        until(lambda: handoff.reached(handoff.sync_point()).is_reached, "that the rest is there")
        handoff.quiver._engine.retention.tick()
        assert handoff.quiver.segments() == ()
        # Damage that a scrub of the node finds is a gap as well.
        quiver_id = handoff.quiver.quiver_id
        newest = max((tmp_path / "b").rglob("bundles.arrow"))
        newest.write_bytes(bytes(newest.stat().st_size))
        assert len(nodes["b"].scrub().damaged) == 1
        gaps = verbs({"action": "gaps"})["records"]
        assert [(gap["node"], gap["outcome"], gap["sources"]) for gap in gaps] == [
            ("a", "dropped", ("b",)),
            ("b", "missing", ("a",)),
        ]
        repaired = verbs({"action": "repair"})["records"]
        assert [record.get("answer") for record in repaired] == [None, "ack", "ack"]
        assert verbs({"action": "gaps"})["records"] == []
        for way in ways.values():
            (holding,) = whole_health(way).holdings
            assert (holding.quiver_id, list(holding.stored)) == (quiver_id, [(0, 3)])
        (compared,) = verbs({"action": "verify"})["records"]
        assert compared["compared_parts"] == 3
        assert all(node.scrub().damaged == () for node in nodes.values())
        until(lambda: is_done(handoff), "that nothing is lost any more")
