"""Changing a ledger from outside: through the owner, or without one and nothing else touched."""

from __future__ import annotations

from pathlib import Path, PurePath

import pyarrow as pa
import pytest
from tests.quiver.machine import ROOT, Machine, contents, quiet
from tests.quiver.owner import CONFIG, Owner
from tests.quiver.reading import acknowledge

from holdfast.errors import (
    CannotOpen,
    DirectoryLocked,
    StorageFailed,
    UnknownPosition,
    UnknownSubscriber,
)
from holdfast.quiver import ColumnExtractor, Outcome, Quiver, QuiverConfig
from holdfast.quiver.base.identity import BackupMarker, write_marker
from holdfast.quiver.tools.changes import balances, drop_subscriber, offline, replay
from holdfast.quiver.tools.inspect import inspect
from holdfast.seam import Seam
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.simulated import SimulatedCrash


def fill(quiver: Quiver) -> None:
    """Four bundles in a segment and two behind it; `archive` has acknowledged 0 to 2."""
    quiver.register("archive")
    quiver.register("metrics")
    for number in range(4):
        quiver.append_raw([b"%d" % number, b"more"])
    quiver.flush()
    acknowledge(quiver, "archive", 3)
    quiver.append_raw(b"4")
    quiver.append_raw(b"5")


@pytest.fixture
def left(machine: Machine) -> Machine:
    """A machine whose owner was killed."""
    fill(machine.start())
    machine.kill()
    return machine


def seam(machine: Machine) -> Seam:
    return Seam(machine.disk, machine.clock)


def files_but_ledger(machine: Machine) -> dict[PurePath, bytes]:
    return {
        path: content
        for path, content in contents(machine.disk).items()
        if path.parent.name != "ledger" and path.name != "LOCK"
    }


def test_replay_without_an_owner_hands_out_again_at_the_next_start(left: Machine) -> None:
    assert replay(seam(left), ROOT, "archive", 1, 6) == (2, 4)
    quiver = left.start()
    assert quiver.balance("archive").holds
    with quiver.lease("archive") as deliveries:
        got = [delivery.seq for _ in range(5) if (delivery := deliveries.poll())]
    assert got == [1, 2, 3, 4, 5]
    assert quiver.balance("metrics").pending == (6, 10)


def test_drop_subscriber_without_an_owner_gives_up_what_waited(left: Machine) -> None:
    assert drop_subscriber(seam(left), ROOT, "archive", "it is dead") == (3, 4)
    assert left.start().subscribers() == ("metrics",)


def test_only_the_ledger_is_touched(left: Machine) -> None:
    before = files_but_ledger(left)
    replay(seam(left), ROOT, "archive", 0, 2)
    drop_subscriber(seam(left), ROOT, "metrics", "")
    assert files_but_ledger(left) == before


def test_the_owners_extractors_still_see_what_was_not_sealed(machine: Machine) -> None:
    """Sealed by a tool, which has no extractors, the event times would be lost."""
    config = QuiverConfig(extractors={"events": ColumnExtractor("at")}, segment=quiet().segment)
    quiver = machine.start(config)
    quiver.register("archive")
    quiver.append(pa.record_batch({"at": pa.array([1_000_000], pa.timestamp("us", "UTC"))}))
    machine.kill()
    drop_subscriber(seam(machine), ROOT, "archive", "")
    machine.start(config)
    machine.stop()
    assert inspect(machine.disk, ROOT).segments[0].summary.clamped_min_event_us == 1_000_000


def test_what_cannot_be_is_refused_and_leaves_the_lock(left: Machine) -> None:
    with pytest.raises(UnknownSubscriber):
        drop_subscriber(seam(left), ROOT, "nobody", "")
    with pytest.raises(UnknownPosition):
        replay(seam(left), ROOT, "archive", 5, 5)
    with pytest.raises(CannotOpen, match="no quiver"):
        replay(seam(left), ROOT / "elsewhere", "archive", 0, 5)
    assert left.start().balance("archive").holds


def test_a_damaged_format_is_left_to_the_owner(left: Machine) -> None:
    left.flip(ROOT / "FORMAT", 99)
    with pytest.raises(CannotOpen, match="FORMAT"):
        drop_subscriber(seam(left), ROOT, "archive", "")
    assert left.start().balance("archive").holds


def test_a_full_disk_is_told_and_the_lock_is_free_again(left: Machine) -> None:
    left.disk.capacity_bytes = 1
    with pytest.raises(StorageFailed, match="the ledger could not be"):
        drop_subscriber(seam(left), ROOT, "archive", "")
    left.disk.capacity_bytes = None
    drop_subscriber(seam(left), ROOT, "archive", "")


def test_an_owner_that_does_not_listen_keeps_tools_out(left: Machine) -> None:
    left.start()
    with pytest.raises(DirectoryLocked, match="does not listen"):
        drop_subscriber(seam(left), ROOT, "archive", "")


def test_a_backup_is_not_changed(left: Machine) -> None:
    write_marker(left.disk, ROOT, BackupMarker(1, True, "", 0))
    with pytest.raises(CannotOpen, match="backup"):
        drop_subscriber(seam(left), ROOT, "archive", "")


def test_a_backup_is_not_opened(left: Machine) -> None:
    write_marker(left.disk, ROOT, BackupMarker(1, True, "", 0))
    before = contents(left.disk)
    with pytest.raises(CannotOpen, match="quiver restore"):
        left.start()
    assert contents(left.disk) == before


@pytest.mark.parametrize(
    "point",
    ["ledger.create", "ledger.checkpoint", "ledger.checkpoint_sync", "ledger.write", "ledger.sync"],
)
@pytest.mark.parametrize("kind", [FaultKind.KILL_BEFORE, FaultKind.KILL_AFTER])
def test_a_tool_killed_at_any_step_leaves_a_ledger_that_holds(
    machine: Machine, point: str, kind: FaultKind
) -> None:
    fill(machine.start())
    machine.stop()
    disk = FaultyDisk(machine.disk, [Fault(point, kind)], machine.disk.die)
    with pytest.raises(SimulatedCrash):
        replay(Seam(disk, machine.clock), ROOT, "archive", 0, 2)
    machine.cut_power()
    account = machine.start().balance("archive")
    assert account.holds
    assert account.outcomes[Outcome.ACKED] == (3, 6)
    assert account.pending in ((3, 4), (5, 8))


def test_balances_without_an_owner_are_what_the_owner_said(left: Machine) -> None:
    told = {a["subscriber"]: a for a in balances(seam(left), inspect(left.disk, ROOT))}
    assert told["archive"]["accepted"] == {"bundles": 6, "events": 10}
    assert told["archive"]["outcomes"]["acked"] == {"bundles": 3, "events": 6}
    assert told["archive"]["pending"] == {"bundles": 3, "events": 4}
    assert all(account["holds"] for account in told.values())


def test_offline_has_what_readers_have(left: Machine) -> None:
    with offline(seam(left), ROOT) as held:
        assert [ref.seq for ref in held.readable.refs(0)] == [0, 1, 2, 3, 4, 5]
        assert held.readable.extent() == (5, (6, 10))


# With an owner in another process.


def test_changes_go_through_the_owner(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with Quiver.open(root, CONFIG) as quiver:
        fill(quiver)
    with Owner(root) as owner:
        assert replay(Seam(), root, "archive", 0, 2) == (2, 4)
        assert owner.do("quiver.balance('archive').pending") == [5, 8]
        told = {a["subscriber"]: a for a in balances(Seam(), inspect(Seam().disk, root))}
        assert told["archive"]["pending"] == {"bundles": 5, "events": 8}
        assert drop_subscriber(Seam(), root, "metrics", "unused") == (6, 10)
        assert owner.do("quiver.subscribers()") == ["archive"]


def test_after_a_kill_the_tools_help_themselves(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with Quiver.open(root, CONFIG) as quiver:
        fill(quiver)
    with Owner(root) as owner:
        owner.kill()
    assert replay(Seam(), root, "archive", 0, 2) == (2, 4)
