"""Backup and restore: everything comes back, under another name, and nobody is given other data."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath

import pyarrow as pa
import pytest
from tests.patience import until
from tests.quiver.machine import ROOT, SEGMENTS, Machine, contents, quiet
from tests.quiver.owner import CONFIG, Owner
from tests.quiver.reading import acknowledge, reject

from holdfast.errors import (
    BadInput,
    CannotOpen,
    Damaged,
    DirectoryLocked,
    DiskFull,
    Fenced,
    Overloaded,
    WrongQuiver,
)
from holdfast.handoff.membership import Membership
from holdfast.handoff.owners import Placement
from holdfast.quiver import Outcome, Quiver
from holdfast.quiver.base.points import ToolPoint
from holdfast.quiver.tools import backup as backup_module
from holdfast.quiver.tools.assemble import GENERATION_STEP
from holdfast.quiver.tools.backup import Copied, backup, restore
from holdfast.quiver.tools.explain import explain
from holdfast.quiver.tools.fsck import fsck
from holdfast.quiver.tools.inspect import Inventory, inspect
from holdfast.seam import Seam
from holdfast.seam.disk import Disk
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.randomness import seeded_randomness
from holdfast.seam.simulated import SimulatedCrash, SimulatedDisk

COPY = PurePath("/copy")
AGAIN = PurePath("/again")


def quiet_reading(_: int) -> None:
    """Take no notice of progress."""


def seam(machine: Machine) -> Seam:
    return Seam(machine.disk, machine.clock, seeded_randomness(99))


def fill(quiver: Quiver) -> None:
    """Two segments and a tail; `archive` has 0 to 3 and rejected 4, `metrics` has nothing."""
    quiver.register("archive")
    quiver.register("metrics")
    for number in range(3):
        quiver.append_raw([b"%d" % number, b"more"], producer="p", epoch=number + 1)
    quiver.flush()
    quiver.append(pa.record_batch({"n": [1, 2, 3]}))
    quiver.append_raw(b"4")
    quiver.flush()
    acknowledge(quiver, "archive", 4)
    reject(quiver, "archive", "no")
    with quiver.transaction(producer="t", epoch=9) as transaction:
        transaction.append_raw(b"5")
        transaction.append_raw(b"6")


def everything(quiver: Quiver) -> dict[int, object]:
    """Return the content of every bundle."""
    found: dict[int, object] = {}
    for seq in range(8):
        bundle = quiver.bundle(seq)
        if bundle is not None:
            content = {name: batch.to_pylist() for name, batch in bundle.slots.items()}
            found[seq] = (content, bundle.producer, bundle.epoch, bundle.ingestion_ns)
    return found


@pytest.fixture
def left(machine: Machine) -> Machine:
    """A machine whose owner was killed."""
    fill(machine.start())
    machine.kill()
    return machine


def open_at(machine: Machine, root: PurePath, expected_id: str | None = None) -> Quiver:
    machine.stop()
    machine.quiver = Quiver.open(root, quiet(), seam=seam(machine), expected_id=expected_id)
    return machine.quiver


def there_and_back(machine: Machine) -> tuple[Copied, Copied]:
    made = backup(seam(machine), ROOT, COPY, quiet_reading)
    return made, restore(seam(machine), COPY, AGAIN, quiet_reading)


def test_everything_comes_back(left: Machine) -> None:
    expected = everything(left.start())
    assert len(expected) == 7
    left.kill()
    made, restored = there_and_back(left)
    assert (made.bundles, made.events) == (restored.bundles, restored.events) == (7, 12)
    quiver = open_at(left, AGAIN)
    assert everything(quiver) == expected
    assert quiver.recovery.damages == []
    for name in ("archive", "metrics"):
        assert quiver.balance(name).holds
    assert quiver.balance("archive").outcomes[Outcome.ACKED] == (4, 9)
    assert quiver.balance("archive").outcomes[Outcome.DEAD_LETTERED] == (1, 1)
    assert quiver.balance("archive").pending == (2, 2)
    assert quiver.balance("metrics").pending == (7, 12)


def test_who_the_data_nodes_are_comes_along(left: Machine) -> None:
    membership = Membership(left.disk, ROOT)
    membership.add("a", Placement(0, ("a",)))
    membership.bind("a", "the-id-of-a")
    there_and_back(left)
    left.cut_power()
    for root in (COPY, AGAIN):
        found = Membership(left.disk, root)
        assert found.bound == membership.bound
        assert found.owners.placements == membership.owners.placements
    assert [one.where for one in fsck(seam(left), ROOT).findings if one.where == "handoff"] == []


def test_the_original_is_untouched(left: Machine) -> None:
    before = {p: c for p, c in contents(left.disk).items() if p.name != "LOCK"}
    there_and_back(left)
    assert {p: c for p, c in contents(left.disk).items() if p.name != "LOCK"} == before


def test_readers_go_on_where_they_were(left: Machine) -> None:
    there_and_back(left)
    quiver = open_at(left, AGAIN)
    with quiver.lease("archive") as deliveries:
        assert [d.bundle.payloads for _ in range(2) if (d := deliveries.poll())] == [[b"5"], [b"6"]]


def test_a_restored_quiver_is_another_one(left: Machine) -> None:
    original = inspect(left.disk, ROOT).identity
    assert original is not None
    made, restored = there_and_back(left)
    assert made.quiver_id == original.quiver_id
    assert restored.quiver_id != original.quiver_id
    with pytest.raises(WrongQuiver):
        open_at(left, AGAIN, expected_id=original.quiver_id)
    assert open_at(left, AGAIN, expected_id=restored.quiver_id).quiver_id == restored.quiver_id
    identity = inspect(left.disk, AGAIN).identity
    assert identity is not None
    assert identity.former_ids == (original.quiver_id,)


def test_whoever_was_attached_to_the_original_is_fenced(left: Machine) -> None:
    there_and_back(left)
    quiver = open_at(left, AGAIN)
    ledger = quiver._engine.ledger
    for generation in (1, 2, 3, 1000):
        with pytest.raises(Fenced):
            ledger.check_generation("archive", generation)
    assert quiver.cursor("archive").generation > GENERATION_STEP


def test_no_number_of_the_original_is_given_out_again(left: Machine) -> None:
    there_and_back(left)
    in_original = left.start().append_raw(b"new").seq
    left.kill()
    in_copy = open_at(left, AGAIN).append_raw(b"other").seq
    assert in_copy > 6
    assert in_original > 6


def test_idempotent_producers_are_remembered(left: Machine) -> None:
    there_and_back(left)
    quiver = open_at(left, AGAIN)
    assert quiver.append_raw(b"2", producer="p", epoch=3).duplicate
    assert quiver.append_raw(b"x", producer="t", epoch=9).bundles == 2


def test_the_account_of_what_happened_comes_along(left: Machine) -> None:
    there_and_back(left)
    open_at(left, AGAIN)
    story = explain(left.disk, inspect(left.disk, AGAIN), 4)
    fates = {fate.subscriber: fate for fate in story.subscribers}
    assert (fates["archive"].state, fates["archive"].reason) == ("dead_lettered", "no")


def test_a_restored_quiver_can_be_backed_up_and_restored_again(left: Machine) -> None:
    first, second = there_and_back(left)
    backup(seam(left), AGAIN, PurePath("/copy2"), quiet_reading)
    third = restore(
        Seam(left.disk, left.clock, seeded_randomness(5)),
        PurePath("/copy2"),
        PurePath("/again2"),
        quiet_reading,
    )
    assert len({first.quiver_id, second.quiver_id, third.quiver_id}) == 3
    quiver = open_at(left, PurePath("/again2"))
    assert len(everything(quiver)) == 7
    assert quiver.balance("archive").holds


def test_a_backup_is_not_opened_and_all_tools_read_it(left: Machine) -> None:
    there_and_back(left)
    with pytest.raises(CannotOpen, match="quiver restore"):
        open_at(left, COPY)
    assert fsck(seam(left), COPY).findings == []
    assert len(inspect(left.disk, COPY).unsealed) == 2


def test_a_quiver_without_subscribers_and_one_without_anything_come_back(machine: Machine) -> None:
    machine.start()
    machine.stop()
    there_and_back(machine)
    assert open_at(machine, AGAIN).append_raw(b"first").seq >= 0


def test_what_was_deleted_stays_accounted_for(machine: Machine) -> None:
    quiver = machine.start()
    fill(quiver)
    acknowledge(quiver, "metrics", 3)
    quiver._engine.retention.tick()
    assert len(quiver.segments()) == 1
    machine.kill()
    there_and_back(machine)
    quiver = open_at(machine, AGAIN)
    for name in ("archive", "metrics"):
        assert quiver.balance(name).holds
    assert quiver.balance("archive").accepted == (7, 12)
    assert quiver.statistics().deleted_bundles == 3


def test_the_copy_survives_a_power_cut(left: Machine) -> None:
    expected = everything(left.start())
    left.stop()
    there_and_back(left)
    left.cut_power()
    assert everything(open_at(left, AGAIN)) == expected


# What goes wrong.


def test_a_target_that_is_not_empty_is_refused(left: Machine) -> None:
    left.disk.make_dir(COPY, "test")
    left.disk.put(COPY / "precious", b"")
    with pytest.raises(BadInput, match="not empty"):
        backup(seam(left), ROOT, COPY, quiet_reading)
    with pytest.raises(BadInput, match="inside the other"):
        backup(seam(left), ROOT, ROOT / "backup", quiet_reading)
    assert list(contents(left.disk, COPY)) == [COPY / "precious"]


def test_what_is_no_quiver_or_no_backup_is_refused(left: Machine) -> None:
    with pytest.raises(CannotOpen, match="no quiver"):
        backup(seam(left), COPY, AGAIN, quiet_reading)
    with pytest.raises(CannotOpen, match="no backup"):
        restore(seam(left), ROOT, AGAIN, quiet_reading)
    there_and_back(left)
    with pytest.raises(CannotOpen, match="is a backup"):
        backup(seam(left), COPY, PurePath("/copy2"), quiet_reading)


def test_a_directory_in_use_by_an_owner_that_does_not_listen_is_not_copied(left: Machine) -> None:
    left.start()
    with pytest.raises(DirectoryLocked):
        backup(seam(left), ROOT, COPY, quiet_reading)


def test_damage_in_a_backup_is_found_before_anything_is_restored(left: Machine) -> None:
    backup(seam(left), ROOT, COPY, quiet_reading)
    for path in [p for p in contents(left.disk, COPY) if p.name != "BACKUP"]:
        content = left.disk.read(path)
        left.flip(path, 8 * (len(content) // 2))
        with pytest.raises(Damaged, match="does not match its checksum"):
            restore(seam(left), COPY, AGAIN, quiet_reading)
        left.disk.put(path, content)
    left.disk.unlink(COPY / "FORMAT", "test")
    with pytest.raises(Damaged, match="cannot be read"):
        restore(seam(left), COPY, AGAIN, quiet_reading)
    assert not left.disk.exists(AGAIN)


def test_damage_in_the_original_is_copied_and_told(left: Machine) -> None:
    path = SEGMENTS / left.disk.list(SEGMENTS)[0].name / "000-events.arrow"
    left.flip(path, 8 * 700)
    made, _ = there_and_back(left)
    (finding,) = made.findings
    assert finding.seqs == ((0, 2),)
    assert left.disk.read(COPY / path.relative_to(ROOT)) == left.disk.read(path)


def test_a_full_disk_is_told(left: Machine) -> None:
    left.disk.capacity_bytes = sum(map(len, contents(left.disk, PurePath("/")).values())) + 20_000
    with pytest.raises(DiskFull, match="the copy could not be made"):
        backup(seam(left), ROOT, COPY, quiet_reading)


def survivors(
    left: Machine, point: ToolPoint, act: Callable[[Seam], Copied]
) -> Iterator[SimulatedDisk]:
    """Yield what a power cut leaves when it comes before each call of a step."""
    for nth in itertools.count(1):
        disk = left.disk.snapshot()
        dying = FaultyDisk(disk, [Fault(point, FaultKind.KILL_BEFORE, nth)], disk.die)
        try:
            act(Seam(dying, left.clock, seeded_randomness(nth)))
        except SimulatedCrash:
            yield disk.power_loss()
        else:
            return


REACHED = [point for point in ToolPoint if point is not ToolPoint.COPY_REMOVE]


@pytest.mark.parametrize("point", [p for p in REACHED if p is not ToolPoint.MARKER_UNLINK])
def test_a_backup_that_was_interrupted_is_not_restored(left: Machine, point: ToolPoint) -> None:
    expected = everything(left.start())
    left.stop()
    found = list(survivors(left, point, lambda s: backup(s, ROOT, COPY, quiet_reading)))
    assert found, "the step is never reached"
    for disk in found:
        left.disk = disk
        with pytest.raises(CannotOpen):
            restore(seam(left), COPY, AGAIN, quiet_reading)
        assert everything(left.start()) == expected
        left.kill()


@pytest.mark.parametrize("point", REACHED)
def test_a_restore_that_was_interrupted_is_not_opened(left: Machine, point: ToolPoint) -> None:
    expected = everything(left.start())
    left.stop()
    backup(seam(left), ROOT, COPY, quiet_reading)
    found = list(survivors(left, point, lambda s: restore(s, COPY, AGAIN, quiet_reading)))
    assert found, "the step is never reached"
    for disk in found:
        left.disk = disk
        if not disk.exists(AGAIN / "BACKUP"):
            # Nothing was written yet, or everything.
            done = disk.exists(AGAIN / "FORMAT")
            assert everything(open_at(left, AGAIN)) == (expected if done else {})
        else:
            with pytest.raises(CannotOpen, match="interrupted"):
                open_at(left, AGAIN)
        left.kill()


# Beside a running owner.


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with Quiver.open(tmp_path / "data", CONFIG) as quiver:
        fill(quiver)
    return tmp_path / "data"


def test_beside_an_owner_that_works_on_every_equation_holds(root: Path, tmp_path: Path) -> None:
    """Appends and acknowledgements go on all the time; the copy has one moment of it."""
    stop = threading.Event()
    with Quiver.open(root, CONFIG) as quiver:

        def append() -> None:
            while not stop.is_set():
                quiver.append_raw([b"more", b"and more"])

        def read(name: str) -> None:
            with quiver.lease(name) as deliveries:
                while not stop.is_set():
                    delivery = deliveries.poll(timeout_s=0.01)
                    if delivery is not None:
                        delivery.ack()

        def keep() -> None:
            while not stop.wait(0.01):
                quiver.flush()
                quiver._engine.retention.tick()

        work = [
            threading.Thread(target=append),
            threading.Thread(target=keep),
            *(threading.Thread(target=read, args=[name]) for name in ("archive", "metrics")),
        ]
        for thread in work:
            thread.start()
        try:
            copies = [backup(Seam(), root, tmp_path / f"copy{n}", quiet_reading) for n in range(3)]
        finally:
            stop.set()
            for thread in work:
                thread.join()
    for number, copied in enumerate(copies):
        assert [account["holds"] for account in copied.balances] == [True, True]
        restore(Seam(), tmp_path / f"copy{number}", tmp_path / f"again{number}", quiet_reading)
        with Quiver.open(tmp_path / f"again{number}", CONFIG) as quiver:
            for name in ("archive", "metrics"):
                assert quiver.balance(name).holds
                assert quiver.balance(name).outcomes[Outcome.DAMAGED] == (0, 0)
            assert quiver._engine.written_off == []


def test_the_owner_holds_still_however_long_its_segments_take_to_list(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hold was renewed while files were read, not while they were listed."""
    with Quiver.open(root, CONFIG) as quiver:
        retention = quiver._engine.retention

        def slow_inspect(disk: Disk, source: PurePath) -> Inventory:
            held_until_s = retention._held_until_s
            until(lambda: retention._held_until_s > held_until_s, "the hold is renewed")
            return inspect(disk, source)

        monkeypatch.setattr(backup_module, "RENEW_S", 0.01)
        monkeypatch.setattr(backup_module, "inspect", slow_inspect)
        assert backup(Seam(), root, tmp_path / "copy", quiet_reading).bundles == 7
        assert retention._held_until_s <= quiver._engine.clock.monotonic_s()


def test_beside_another_process(root: Path, tmp_path: Path) -> None:
    with Owner(root) as owner:
        assert owner.do("quiver.append_raw(b'7').seq") == 7
        made = backup(Seam(), root, tmp_path / "copy", quiet_reading)
        assert made.bundles == 8
        assert owner.do("quiver.append_raw(b'8').seq") == 8
        assert owner.do("quiver._engine.retention._held_until_s") <= owner.do(
            "quiver._engine.clock.monotonic_s()"
        )
    restore(Seam(), tmp_path / "copy", tmp_path / "again", quiet_reading)
    with Quiver.open(tmp_path / "again", CONFIG) as quiver:
        assert set(everything(quiver)) == set(range(8))


def test_an_owner_killed_while_its_quiver_is_copied(root: Path, tmp_path: Path) -> None:
    """What is copied then is what a dead owner has: whole."""
    with Owner(root) as owner:
        backup(Seam(), root, tmp_path / "copy", lambda _: owner.kill())
    restore(Seam(), tmp_path / "copy", tmp_path / "again", quiet_reading)
    with Quiver.open(tmp_path / "again", CONFIG) as quiver:
        assert set(everything(quiver)) == set(range(7))
        assert quiver.balance("archive").holds


def test_a_copy_begins_again_when_the_owner_needs_the_room(root: Path, tmp_path: Path) -> None:
    """Segments that go while they are copied are not missed: what they held is resolved."""
    with Quiver.open(root, CONFIG) as quiver:
        went: list[int] = []

        def drop(_: int) -> None:
            if not went:
                went.append(1)
                quiver.unregister("metrics")
                quiver._engine.retention.hold(0)
                quiver._engine.retention.tick()

        made = backup(Seam(), root, tmp_path / "copy", drop)
        assert went
        assert [(a["subscriber"], a["holds"]) for a in made.balances] == [("archive", True)]
        assert made.findings == []
    assert fsck(Seam(), tmp_path / "copy").findings == []


def test_a_copy_that_never_comes_to_an_end_is_given_up(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> bool:
        return False

    monkeypatch.setattr(backup_module._OnlineBackup, "_nothing_went", never)
    with Quiver.open(root, CONFIG), pytest.raises(Overloaded, match="at its size cap"):
        backup(Seam(), root, tmp_path / "copy", quiet_reading)
