"""The crash matrix of a data node: every fault at every point, and what the next process finds.

After each fault the node is opened on what survived: a kill, a power cut, a power cut that kept
some. It must open; what it acknowledged must be there once, byte for byte, unless it was removed;
and its senders, who offer everything again, must end with each part applied exactly once.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache

import pytest
from tests.crash.stage import content_of
from tests.node.handing_over import (
    ROOT,
    check_exactly_once,
    hand_over,
    open_node,
    part_folders,
    some_parts,
)

from holdfast.errors import HoldfastError
from holdfast.node.data_node import DataNode
from holdfast.node.points import NodePoint
from holdfast.node.replica import Incoming
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.replica.messages import RESOLVED, AnswerKind
from holdfast.replica.part import slices
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.simulated import SimulatedCrash, SimulatedDisk

KILLS = (FaultKind.KILL_BEFORE, FaultKind.KILL_MIDWAY, FaultKind.KILL_AFTER)
PARTS = some_parts()
QUIVER_ID = PARTS[0].part.id.quiver_id
# So that `node.adopt.undo` is reached: taken only when a sync failed.
UNDONE = Fault(NodePoint.ADOPT_SYNC_DIR, FaultKind.FAILED_SYNC, nth=3)


@dataclass
class Life:
    """What a sender, and an operator, know of a node's life."""

    acked: set[int] = field(default_factory=set)
    # Given up by retention for certain; and perhaps.
    removed: set[int] = field(default_factory=set)
    maybe_removed: set[int] = field(default_factory=set)
    # Damaged by the script, and not yet replaced.
    damaged: set[int] = field(default_factory=set)

    def put(self, node: DataNode, place: int) -> None:
        kind = hand_over(node, PARTS[place]).kind
        assert kind in RESOLVED | {AnswerKind.BUSY, AnswerKind.RETRY}
        if kind in RESOLVED:
            self.acked.add(place)
            self.damaged.discard(place)
        if place in self.removed:
            assert kind is AnswerKind.EXPIRED

    def put_damaged(self, node: DataNode, place: int) -> None:
        sent = PARTS[place]
        with contextlib.suppress(OSError), node.receiving(sent.part) as incoming:
            if isinstance(incoming, Incoming):
                for piece in slices(sent.disk, sent.folder, sent.part):
                    incoming.write(piece._replace(data=bytes(len(piece.data))))
                assert node.commit(incoming).kind in (AnswerKind.RETRY, AnswerKind.BUSY)

    def remove(self, node: DataNode, place: int) -> None:
        self.maybe_removed.add(place)
        stored = [s for s in node._all_parts() if s.folder.name == PARTS[place].folder.name]
        for one in stored:
            with contextlib.suppress(OSError):
                node.replica(QUIVER_ID).remove([one])
                self.removed.add(place)

    def not_owned(self, node: DataNode) -> None:
        with contextlib.suppress(OSError, HoldfastError):
            node.tell_not_owned(QUIVER_ID, IntervalSet([(1000, 2000)]))

    def replace_damaged(self, disk: SimulatedDisk, node: DataNode, place: int) -> None:
        """Damage a part, find it, and take a sound copy in its place."""
        for one in node._all_parts():
            if one.folder.name == PARTS[place].folder.name:
                disk.overwrite(one.folder / "bundles.arrow", 40, b"\xff\x00\xff")
                self.acked.discard(place)  # its bytes are gone; that is not the node's doing
                self.damaged.add(place)
                assert node.scrub().damaged
        self.put(node, place)


def begin() -> SimulatedDisk:
    """Return a disk on which a node died while it took a part in."""
    disk = SimulatedDisk()
    node = open_node(disk)
    staging = node._replica(QUIVER_ID).folder / "staging"
    node.close()
    disk.make_dir(staging / "half", "test")
    disk.put(staging / "half" / "manifest", b"half")
    disk.put(staging / "seen.tmp", b"half")
    disk.put(ROOT / "NODE.tmp", b"half")
    for folder in (staging / "half", staging, ROOT):
        disk.sync_dir(folder, "test")
    return disk


def steps(disk: SimulatedDisk) -> list[Callable[[Life, DataNode], object]]:
    return [
        lambda life, node: life.put(node, 0),
        lambda life, node: life.put(node, 1),
        lambda life, node: life.put(node, 2),
        lambda life, node: life.put(node, 2),
        lambda life, node: life.put_damaged(node, 3),
        lambda life, node: life.not_owned(node),
        lambda life, node: life.remove(node, 0),
        lambda life, node: life.put(node, 0),
        lambda life, node: life.replace_damaged(disk, node, 2),
        lambda life, node: life.put(node, 3),
        lambda life, node: life.remove(node, 3),
    ]


SCRIPTS: dict[str, Callable[[], SimulatedDisk]] = {"fresh": SimulatedDisk, "unclean": begin}


def run(
    script: str, faults: Iterable[Fault], *, cut: bool
) -> tuple[SimulatedDisk, Life, FaultyDisk]:
    """Live until the end or a crash; with `cut` until the step in which a fault struck."""
    disk, life = SCRIPTS[script](), Life()
    faulty = FaultyDisk(disk, [*faults, UNDONE], disk.die)
    node = None
    with contextlib.suppress(SimulatedCrash):
        for _ in range(2):  # a node that cannot be opened is started again
            with contextlib.suppress(HoldfastError):
                node = open_node(faulty)
                break
        for step in steps(disk) if node is not None else ():
            step(life, node)  # type: ignore[arg-type]
            if cut and any(faulty.calls().get(one.at, 0) >= one.nth for one in faults):
                break
    return disk, life, faulty


@cache
def calls_of(script: str) -> dict[str, int]:
    return run(script, [], cut=False)[2].calls()


def test_the_scripts_reach_every_point_and_every_point_is_listed() -> None:
    assert {at for script in SCRIPTS for at in calls_of(script)} == set(NodePoint)


def kinds_at(point: NodePoint) -> Iterable[FaultKind]:
    for kind in FaultKind:
        if kind is FaultKind.BAD_BLOCK:
            continue  # found by scrub: tests/node/test_adoption.py
        if kind in (FaultKind.KILL_MIDWAY, FaultKind.SHORT_WRITE) and not point.endswith(".write"):
            continue
        if kind is FaultKind.FAILED_SYNC and "sync" not in point:
            continue
        yield kind


CELLS = [pytest.param(p, kind, id=f"{p}-{kind}") for p in NodePoint for kind in kinds_at(p)]


@pytest.mark.parametrize(("point", "kind"), CELLS)
def test_cell(point: NodePoint, kind: FaultKind) -> None:
    """The last time that a script reaches the point; a fault that does not kill is cut off then."""
    for script in SCRIPTS:
        if times := calls_of(script).get(point, 0):
            check_cell(script, Fault(point, kind, times), cut=kind not in KILLS)


@pytest.mark.slow
@pytest.mark.parametrize(("point", "kind"), CELLS)
def test_rest_of_cell(point: NodePoint, kind: FaultKind) -> None:
    """Every other time as well, and a script that goes on after its fault."""
    for script in SCRIPTS:
        times = calls_of(script).get(point, 0)
        for nth in range(1, times + 1):
            for cut in (False,) if kind in KILLS else (True, False):
                if (nth, cut) != (times, kind not in KILLS):
                    check_cell(script, Fault(point, kind, nth), cut=cut)


def check_cell(script: str, fault: Fault, *, cut: bool) -> None:
    disk, life, _ = run(script, [fault], cut=cut)
    with contextlib.suppress(SimulatedCrash):
        disk.die()
    endings = {"kill": disk.kill(), "power loss": disk.power_loss()}
    # If a power cut takes nothing, all was synced.
    if content_of(endings["kill"]) != content_of(endings["power loss"]):
        endings["loss of some"] = disk.power_loss(random.Random(fault.nth))
    else:
        del endings["power loss"]
    for ending, survivor in endings.items():
        survivor.capacity_bytes = None
        try:
            check_survivor(survivor, life)
        except BaseException as error:
            error.add_note(f"script {script}, {fault}, cut={cut}, then {ending}")
            raise


def check_survivor(disk: SimulatedDisk, life: Life) -> None:
    node = open_node(disk, seed=7)
    staging = ROOT / "replicas" / QUIVER_ID / "staging"
    assert not disk.exists(staging) or not disk.list(staging), "what was half done is swept"
    for place in life.damaged:
        node.scrub()
        hand_over(node, PARTS[place])
    kept = {place for place in life.acked if place not in life.maybe_removed}
    check_exactly_once(disk, PARTS, [PARTS[place] for place in kept])
    kinds = [answer.kind for answer in node.offer([one.part for one in PARTS])]
    for place, kind in enumerate(kinds):
        if place in life.removed:
            assert kind is AnswerKind.EXPIRED
        elif place in kept:
            assert kind is AnswerKind.HAVE
        elif place in life.acked:
            assert kind in (AnswerKind.HAVE, AnswerKind.EXPIRED)
        else:
            assert kind in (AnswerKind.HAVE, AnswerKind.NEED, AnswerKind.EXPIRED)
    # The senders go on: in the end each part was applied once.
    assert {hand_over(node, one).kind for one in PARTS} <= RESOLVED
    here = [place for place, one in enumerate(PARTS) if hand_over(node, one).kind == "have"]
    check_exactly_once(disk, PARTS, [PARTS[place] for place in here])
    assert len(part_folders(disk, QUIVER_ID)) == len(here)
    assert node.scrub().damaged == ()
    assert node.findings() == []
    assert node.statistics().damaged == 0
    node.close()
    assert open_node(disk.power_loss(), seed=8).node_id == node.node_id
