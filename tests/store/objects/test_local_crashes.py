"""Power cuts, kills and failing calls at every step of putting objects into a folder.

What a put that returned has stored is there after every power cut; what one that did not return was
about to store is there whole, or not at all.
"""

from __future__ import annotations

import errno
import itertools
import random
from collections.abc import Sequence

import pytest
from tests.store.objects.places import ROOT, on_simulated_disk, simulated_disk

from holdfast.errors import Damaged, DiskFull, HoldfastError, StorageFailed
from holdfast.seam import Seam
from holdfast.seam.clock import JumpingClock
from holdfast.seam.disk import Handle
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.simulated import SimulatedCrash, SimulatedDisk
from holdfast.store.objects.local import (
    LEFTOVER_AGE_S,
    TEMPORARY_DIR,
    Leftovers,
    LocalObjects,
    ObjectPoint,
)

BEFORE = {f"chunks/{n % 3}/before-{n}": b"%d" % n * 700 for n in range(4)}
DURING = {f"chunks/{n % 5}/during-{n}": b"%d" % n * 900 for n in range(6)}
EVERYTHING = {**BEFORE, **DURING}

PUT_STEPS = [
    step for step in ObjectPoint if step not in (ObjectPoint.DELETE, ObjectPoint.DELETE_SYNC)
]
DEATHS = [FaultKind.KILL_BEFORE, FaultKind.KILL_MIDWAY, FaultKind.KILL_AFTER]
CALLS = [1, 2, 5]


def items(contents: dict[str, bytes]) -> Sequence[tuple[str, Sequence[bytes]]]:
    return [(key, [data[:100], data[100:]]) for key, data in contents.items()]


def contents(disk: SimulatedDisk) -> dict[str, bytes]:
    objects = on_simulated_disk(disk)
    return {stored.key: objects.get(stored.key) for stored in objects.list("")}


def check_survivors(disk: SimulatedDisk, returned: dict[str, bytes]) -> None:
    """Look at the disk after kill -9, and after several power cuts."""
    images = [disk.snapshot(), disk.snapshot().power_loss()]
    images += [disk.snapshot().power_loss(random.Random(seed)) for seed in range(4)]
    for image in images:
        found = contents(image)
        assert found.items() <= EVERYTHING.items(), "something is torn, or was never put"
        assert returned.items() <= found.items(), "something that was put is lost"


def faulty(disk: SimulatedDisk, at: ObjectPoint, kind: FaultKind, nth: int) -> LocalObjects:
    faults = FaultyDisk(disk, [Fault(at, kind, nth)], disk.die)
    return LocalObjects(ROOT, Seam(disk=faults))


@pytest.mark.thinned(5)
@pytest.mark.parametrize("nth", CALLS)
@pytest.mark.parametrize("kind", DEATHS)
@pytest.mark.parametrize("at", PUT_STEPS)
def test_dying_at_any_step_loses_and_tears_nothing(
    at: ObjectPoint, kind: FaultKind, nth: int
) -> None:
    disk = simulated_disk()
    on_simulated_disk(disk).put_many(items(BEFORE))
    objects = faulty(disk, at, kind, nth)
    returned = dict(BEFORE)
    try:
        objects.put_many(items(DURING))
        returned.update(DURING)
    except SimulatedCrash:
        pass
    check_survivors(disk, returned)
    # The next process puts what the last one could not.
    after = disk.snapshot().power_loss(random.Random(3))
    on_simulated_disk(after).put_many(items(DURING))
    check_survivors(after, EVERYTHING)


def test_every_step_of_a_put_is_reached() -> None:
    disk = FaultyDisk(simulated_disk(), (), lambda: pytest.fail("nothing dies here"))
    objects = LocalObjects(ROOT, Seam(disk=disk))
    objects.put_many(items(DURING))
    objects.delete_many(list(DURING))
    assert disk.calls().keys() == set(ObjectPoint)


@pytest.mark.parametrize(
    ("at", "kind"),
    [
        *itertools.product(
            [step for step in PUT_STEPS if step is not ObjectPoint.TIDY],
            [FaultKind.EIO, FaultKind.ENOSPC],
        ),
        (ObjectPoint.WRITE, FaultKind.SHORT_WRITE),
    ],
)
def test_a_failing_step_is_told_and_can_be_repeated(at: ObjectPoint, kind: FaultKind) -> None:
    disk = simulated_disk()
    on_simulated_disk(disk).put_many(items(BEFORE))
    objects = faulty(disk, at, kind, nth=2 if at is not ObjectPoint.PARENT_SYNC else 1)
    with pytest.raises(StorageFailed if kind is FaultKind.EIO else DiskFull, match=str(ROOT)):
        objects.put_many(items(DURING))
    assert disk.list(ROOT / TEMPORARY_DIR) == [], "what failed leaves nothing behind"
    check_survivors(disk, BEFORE)
    objects.put_many(items(DURING))
    check_survivors(disk, EVERYTHING)


@pytest.mark.parametrize("at", list(ObjectPoint))
def test_a_disk_that_stays_full_takes_deletes_and_then_puts_again(at: ObjectPoint) -> None:
    """The column "stays full until something is unlinked" of every step."""
    disk = simulated_disk()
    disk.capacity_bytes = 4_000_000
    on_simulated_disk(disk).put_many(items(BEFORE))
    faults = FaultyDisk(disk, [Fault(at, FaultKind.STAYS_FULL)], disk.die)
    objects = LocalObjects(ROOT, Seam(disk=faults))
    returned = dict(BEFORE)
    try:
        objects.put_many(items(DURING))
        returned.update(DURING)
    except DiskFull:
        assert disk.list(ROOT / TEMPORARY_DIR) == [], "what failed leaves nothing behind"
    check_survivors(disk, returned)
    disk.fill()
    objects.delete_many(list(DURING))
    check_survivors(disk, BEFORE)
    assert contents(disk) == BEFORE, "deleting needs no room"
    disk.capacity_bytes = 8_000_000
    objects.put_many(items(DURING))
    check_survivors(disk, EVERYTHING)


@pytest.mark.parametrize("nth", CALLS)
@pytest.mark.parametrize("at", PUT_STEPS)
def test_a_block_that_cannot_be_read_is_damage_of_one_object(at: ObjectPoint, nth: int) -> None:
    """The column "this block cannot be read" of every step."""
    disk = simulated_disk()
    on_simulated_disk(disk).put_many(items(BEFORE))
    objects = faulty(disk, at, FaultKind.BAD_BLOCK, nth)
    objects.put_many(items(DURING))
    damaged = set()
    for key, data in EVERYTHING.items():
        try:
            assert objects.get(key) == data
        except Damaged:
            damaged.add(key)
    assert len(damaged) <= 1
    for key in damaged:
        assert disk.unreadable(ROOT / key)
    objects.delete_many([*DURING, *damaged])
    objects.put_many(items(EVERYTHING))
    assert contents(disk) == EVERYTHING, "it is replaced as any other"


@pytest.mark.parametrize("at", [ObjectPoint.SYNC, ObjectPoint.DIR_SYNC, ObjectPoint.PARENT_SYNC])
def test_a_failed_sync_is_never_taken_for_a_put(at: ObjectPoint) -> None:
    disk = simulated_disk()
    with pytest.raises(HoldfastError):
        faulty(disk, at, FaultKind.FAILED_SYNC, nth=1).put_many(items(DURING))
    check_survivors(disk, {})


def test_what_another_process_named_is_durable_when_we_find_it() -> None:
    """It was killed between link and sync of the folder; we are told that the name exists."""
    disk = simulated_disk()
    with pytest.raises(SimulatedCrash):
        faulty(disk, ObjectPoint.DIR_SYNC, FaultKind.KILL_BEFORE, nth=1).put_many(items(DURING))
    next_one = disk.kill()
    on_simulated_disk(next_one).put_many(items(DURING))
    check_survivors(next_one, DURING)


@pytest.mark.parametrize("at", [ObjectPoint.DELETE, ObjectPoint.DELETE_SYNC])
@pytest.mark.parametrize("kind", DEATHS)
def test_dying_while_deleting_leaves_objects_whole(at: ObjectPoint, kind: FaultKind) -> None:
    disk = simulated_disk()
    on_simulated_disk(disk).put_many(items(EVERYTHING))
    with pytest.raises(SimulatedCrash):
        faulty(disk, at, kind, nth=2).delete_many(list(DURING))
    check_survivors(disk, BEFORE)
    after = disk.snapshot().power_loss()
    on_simulated_disk(after).delete_many(list(DURING))
    assert contents(after.power_loss()) == BEFORE


def test_a_delete_that_returned_is_durable() -> None:
    disk = simulated_disk()
    objects = on_simulated_disk(disk)
    objects.put_many(items(EVERYTHING))
    objects.delete_many(list(DURING))
    assert contents(disk.power_loss()) == BEFORE


def test_leftovers_of_killed_processes_go_at_once() -> None:
    """They stayed for a day, and nobody told of them."""
    disk = simulated_disk()
    with pytest.raises(SimulatedCrash):
        faulty(disk, ObjectPoint.SYNC, FaultKind.KILL_BEFORE, nth=1).put_many(items(DURING))
    after = disk.kill()
    objects = on_simulated_disk(after)
    assert list(objects.list("")) == [], "nobody sees them"
    size_bytes = sum(map(len, DURING.values()))
    assert objects.remove_leftovers() == Leftovers(len(DURING), size_bytes)
    assert after.list(ROOT / TEMPORARY_DIR) == []
    assert objects.remove_leftovers() == Leftovers()


def test_leftovers_of_who_is_at_work_are_none() -> None:
    disk = simulated_disk()
    seen: list[Leftovers] = []
    sync = disk.sync

    def look(handle: Handle, at: str) -> None:
        seen.append(on_simulated_disk(disk).remove_leftovers())
        sync(handle, at)

    disk.sync = look  # type: ignore[method-assign]
    on_simulated_disk(disk).put_many(items(DURING))
    size_bytes = sum(map(len, DURING.values()))
    assert set(seen) == {Leftovers(kept=len(DURING), kept_bytes=size_bytes)}
    assert contents(disk) == DURING


def test_leftovers_without_a_lock_go_when_they_are_old() -> None:
    """Of the version before, and where nothing can be locked."""
    clock = JumpingClock(wall_ns=10**18)
    disk = SimulatedDisk(clock=clock)
    disk.make_dir(ROOT, "test")
    objects = LocalObjects(ROOT, Seam(disk=disk, clock=clock))
    disk.make_dir(ROOT / TEMPORARY_DIR, "test")
    disk.close(disk.create(ROOT / TEMPORARY_DIR / "0123456789abcdef.0", "test"))
    clock.jump(LEFTOVER_AGE_S - 10)
    assert objects.remove_leftovers() == Leftovers(kept=1), "it may be in use"
    clock.jump(20)
    assert objects.remove_leftovers() == Leftovers(removed=1)
    assert disk.list(ROOT / TEMPORARY_DIR) == []


@pytest.mark.parametrize("key", ["", "/absolute", "a/../b", "a//b", "./a", "a/.", "nul\0"])
def test_a_name_never_leaves_the_folder(key: str) -> None:
    objects = on_simulated_disk(simulated_disk())
    for call in (lambda: objects.put(key, [b"x"]), lambda: objects.get(key)):
        with pytest.raises(HoldfastError, match="no object's name"):
            call()


def test_a_disk_that_cannot_be_read_is_told() -> None:
    class Unreadable(SimulatedDisk):
        def read(self, path: object) -> bytes:
            raise OSError(errno.EIO, "input/output error")

    disk = Unreadable()
    disk.make_dir(ROOT, "test")
    with pytest.raises(Damaged, match=r"cannot read an object.*fsck --scrub"):
        on_simulated_disk(disk).get("key")
