"""Who data nodes are, across restarts, crashes and damage."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import PurePath

import pytest
from tests.handoff.test_sender import Calm
from xxhash import xxh3_64_hexdigest

from holdfast.errors import BadInput, UnknownFormat
from holdfast.handoff.membership import Membership
from holdfast.handoff.owners import Placement
from holdfast.handoff.points import HandoffPoint
from holdfast.handoff.statistics import backlog_statistics
from holdfast.seam.disk import Disk
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.simulated import SimulatedCrash, SimulatedDisk

ROOT = PurePath("/q")
# Everything but the moments that are no disk calls, and the sweep, which needs a crash before.
STEPS = [
    point
    for point in HandoffPoint
    if point.startswith("handoff.") and point is not HandoffPoint.SWEEP
]


def made(disk: Disk) -> Membership:
    return Membership(disk, ROOT)


def fresh_disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_dir(ROOT, "test")
    disk.sync_dir(ROOT.parent, "test")
    return disk


def fill(members: Membership) -> None:
    members.add("a", Placement(0, ("a",)))
    members.bind("a", "node-1")
    members.add("b", Placement(7, ("a", "b"), 1))


def test_names_ids_and_placements_survive_a_power_cut() -> None:
    disk = fresh_disk()
    members = made(disk)
    fill(members)
    members.drain("b", Placement(9, ("a",), 1))
    again = made(disk.power_loss())
    assert again.bound == members.bound
    assert again.owners.placements == members.owners.placements
    assert again.bound["a"].node_id == "node-1"
    assert again.bound["b"].is_draining


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", [FaultKind.ENOSPC, FaultKind.EIO])
def test_a_disk_that_fails_changes_nothing_here(step: HandoffPoint, kind: FaultKind) -> None:
    disk = fresh_disk()
    members = made(FaultyDisk(disk, [Fault(step, kind)], disk.die))
    with contextlib.suppress(OSError):
        members.add("a", Placement(0, ("a",)))
        assert "a" in members.bound  # or it did not fail
    # The next attempt works, and is what the next start finds.
    members.add("a", Placement(0, ("a",)))
    assert made(disk.power_loss()).bound == members.bound == {"a": members.bound["a"]}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", [FaultKind.KILL_BEFORE, FaultKind.KILL_AFTER])
@pytest.mark.parametrize("cut_power", [False, True])
def test_after_a_crash_at_any_step_it_is_as_before_or_as_after(
    step: HandoffPoint, kind: FaultKind, *, cut_power: bool
) -> None:
    disk = fresh_disk()
    nth = 1 if step is HandoffPoint.MAKE_DIR else 3
    members = made(FaultyDisk(disk, [Fault(step, kind, nth)], disk.die))
    with contextlib.suppress(SimulatedCrash):
        for name in "abcd":
            members.add(name, Placement(0, (name,)))
        pytest.fail("it did not crash")
    believed = len(members.bound)
    again = made(disk.power_loss() if cut_power else disk.kill())
    assert "".join(again.bound) in ("abcd"[:believed], "abcd"[: believed + 1])
    # What the crash left does not get in the way.
    again.add("x", Placement(1, ("x",)))
    assert made(again._disk).bound == again.bound


def test_a_damaged_file_is_forgotten_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    disk = fresh_disk()
    fill(made(disk))
    disk.overwrite(ROOT / "handoff" / "MEMBERS", 5, b"?")
    assert made(disk).bound == {}
    assert "damaged" in caplog.text


def test_a_newer_file_is_refused() -> None:
    disk = fresh_disk()
    fill(made(disk))
    path = ROOT / "handoff" / "MEMBERS"
    line = disk.read(path).split(b"\n")[0].replace(b'"version":1', b'"version":2')

    disk.put(path, line + b"\n" + xxh3_64_hexdigest(line).encode() + b"\n")
    with pytest.raises(UnknownFormat):
        made(disk)


def test_what_is_not_there_cannot_be_changed() -> None:
    members = made(fresh_disk())
    with pytest.raises(BadInput, match="no data node 'x'"):
        members.unbind("x")


@pytest.fixture
def sim() -> Iterator[Calm]:
    sim = Calm()
    yield sim
    sim.quiver.close()


def test_statistics_say_what_waits_for_whom_and_why(sim: Calm) -> None:
    sim.run(10.0)
    sim.stop("a")
    parts = sim.seal(3)
    sim.run(60.0)
    sim.handoff.workers["a"].discard(parts[0])
    a, b = backlog_statistics(sim.handoff, sim.clock.wall_ns())
    assert (a.name, a.state, a.pending_parts) == ("a", "down", 2)
    assert a.gaps == ((0, 1, "dropped"),)
    assert a.oldest_age_s == pytest.approx(60.0, abs=1.0)
    assert "refused" in (a.problem or "")
    assert (b.state, b.pending_parts, b.pending_bytes, b.oldest_age_s) == ("up", 0, 0, None)
    assert (b.sent_parts, b.answers["ack"], b.node_id) == (3, 3, sim.at["b"].node_id)
    sim.names = ["b"]
    sim.handoff.configure(sim.names)
    a, _ = backlog_statistics(sim.handoff, sim.clock.wall_ns())
    assert (a.state, a.pending_parts, a.sent_parts) == ("orphaned", 2, 0)
    assert "or forget it" in (a.problem or "")
    # Of one that never answered: why not, and not only that.
    sim.new_node("c").is_up = False
    sim.names = ["b", "c"]
    sim.handoff.configure(sim.names)
    sim.run(20.0)
    *_, c = backlog_statistics(sim.handoff, sim.clock.wall_ns())
    assert "not met yet: the connection was refused" in (c.problem or "")
