"""The cold tier: what retention takes is in the store before it leaves, whatever fails when."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any

import pytest
from pydantic import ValidationError
from tests.node.handing_over import hand_over, offered, open_node, part_folders
from tests.patience import PATIENCE_S
from tests.replica.parts import NOON_NS, seal_parts

from holdfast.errors import StoreUnavailable
from holdfast.node.cold import ColdTier
from holdfast.node.data_node import DataNode
from holdfast.node.points import NodePoint
from holdfast.node.settings import DataNodeSettings
from holdfast.replica.transport import OutgoingPart
from holdfast.seam.clock import JumpingClock
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.simulated import SimulatedCrash, SimulatedDisk
from holdfast.store.filesets import Commits
from holdfast.store.store import Store

HOUR_NS = 3600 * 10**9
SETTINGS = DataNodeSettings(min_free=0, clock_grace=0, max_age=3 * 3600, cold_store="store")
# Past the age of everything, and an hour before.
LATER_NS = NOON_NS + 6 * HOUR_NS
PARTS = tuple(seal_parts(SimulatedDisk(), PurePath("/quiver"), [1, 2, 3]))
QUIVER_ID = PARTS[0].part.id.quiver_id


@pytest.fixture(scope="module")
def store_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that all tests share: nodes have ids of their own, and so have their commits."""
    folder = tmp_path_factory.mktemp("cold") / "store"
    Store.create(str(folder)).close()
    return folder


@pytest.fixture
def store(store_folder: Path) -> Iterator[Store]:
    with Store.open(str(store_folder)) as opened:
        yield opened


class Cold(ColdTier):
    """A cold tier over a store that is open, and may fail, wait or die where a test says so."""

    def __init__(self, store: Store) -> None:
        super().__init__(self._opened)
        self.store = store
        self.before: Callable[[], object] = lambda: None

    def _opened(self) -> Store:
        self.before()
        return self.store

    def close(self) -> None:
        self._store = None  # the tests close it


def started(
    disk: Any, store: Store, parts: Sequence[OutgoingPart] = PARTS, seed: int = 1, **given: Any
) -> tuple[DataNode, Cold]:
    cold = Cold(store)
    clock = JumpingClock(LATER_NS)
    node = open_node(disk, SETTINGS.model_copy(update=given), clock, seed=seed, cold=cold)
    for one in parts:
        assert hand_over(node, one).kind in ("ack", "have", "expired")
    return node, cold


def stored(store: Store, node_id: str) -> dict[str, dict[str, bytes]]:
    """Return every file in every commit of a node."""
    commits = Commits(store)
    found = {}
    for commit in commits.list(f"nodes/{node_id}/"):
        with commits.open(commit.name) as files:
            found[commit.name] = {file.path: files.read(file.path) for file in files.files()}
    return found


def content(parts: Sequence[OutgoingPart]) -> dict[str, bytes]:
    return {
        f"{one.part.id.quiver_id}/segments/{one.folder.name}/{file.name}": one.disk.read(
            one.folder / file.name
        )
        for one in parts
        for file in one.part.files
    }


def test_old_parts_become_a_commit_for_each_hour_and_then_leave(store: Store) -> None:
    later = seal_parts(
        SimulatedDisk(), PurePath("/later"), [2, 1], seed=5, wall_ns=NOON_NS + HOUR_NS
    )
    young = seal_parts(SimulatedDisk(), PurePath("/young"), [1], seed=6, wall_ns=LATER_NS - HOUR_NS)
    disk = SimulatedDisk()
    node, _ = started(disk, store, [*PARTS, *later, *young], seed=11)
    assert node.sweep() == 5
    base = f"nodes/{node.node_id}/2023-11-14T"  # NOON_NS is at 22:13
    assert stored(store, node.node_id) == {
        f"{base}22/000000": content(PARTS),
        f"{base}23/000000": content(later),
    }
    assert offered(node, PARTS) == ["expired"] * 3
    assert offered(node, young) == ["have"]
    assert node.sweep() == 0
    told = node.statistics()
    assert (told.cold_commits_total, told.cold_parts_total, told.removed_total) == (2, 5, 5)
    assert told.cold_bytes_total == sum(one.part.size_bytes for one in [*PARTS, *later])
    late = seal_parts(SimulatedDisk(), PurePath("/late"), [1], seed=7)
    hand_over(node, late[0])
    assert node.sweep() == 1
    assert stored(store, node.node_id)[f"{base}22/000001"] == content(late)


def test_an_hour_goes_when_all_of_it_is_old_or_there_is_no_room(store: Store) -> None:
    disk = SimulatedDisk()
    # They are 6 h old, and their hour ends 47 min after them.
    node, _ = started(disk, store, seed=12, max_age=5.5 * 3600)
    assert node.sweep() == 0
    node.close()
    size_bytes = sum(one.part.size_bytes for one in PARTS)
    node, _ = started(disk, store, seed=12, max_age=None, max_size=size_bytes - 1)
    assert node.sweep() == 1
    assert offered(node, PARTS) == ["expired", "have", "have"]
    (files,) = stored(store, node.node_id).values()
    assert files == content(PARTS[:1])


def test_what_the_store_does_not_take_stays_and_is_served(store: Store) -> None:
    disk = SimulatedDisk()
    node, cold = started(disk, store, seed=13)

    def fail() -> None:
        raise StoreUnavailable("the bucket does not answer", hint="wait")

    cold.before = fail
    assert node.sweep() == node.sweep() == 0
    assert offered(node, PARTS) == ["have"] * 3
    assert node.statistics().cold_failures_total == 2
    cold.before = lambda: None
    assert node.sweep() == 3


def test_a_store_that_hangs_is_in_nobody_s_way(store: Store) -> None:
    disk = SimulatedDisk()
    node, cold = started(disk, store, PARTS[:2], seed=14)
    reached, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        reached.set()
        assert go_on.wait(PATIENCE_S)

    cold.before = hang
    sweeper = threading.Thread(target=node.sweep)
    sweeper.start()
    assert reached.wait(PATIENCE_S)
    assert hand_over(node, PARTS[2]).kind == "ack"
    assert offered(node, PARTS) == ["have"] * 3
    assert node.health().is_writable
    go_on.set()
    sweeper.join()
    assert offered(node, PARTS) == ["expired", "expired", "have"]


def test_a_damaged_part_is_set_aside_and_never_stored(store: Store) -> None:
    disk = SimulatedDisk()
    node, _ = started(disk, store, seed=15)
    disk.overwrite(node._all_parts()[1].folder / "bundles.arrow", 40, b"\xff\x00\xff")
    assert node.sweep() == 2
    (files,) = stored(store, node.node_id).values()
    assert files == content([PARTS[0], PARTS[2]])
    assert offered(node, PARTS) == ["expired", "need", "expired"]
    assert node.statistics().damaged == 1


def test_a_sweep_that_is_told_to_stop_leaves_the_rest(store: Store) -> None:
    node, _ = started(SimulatedDisk(), store, seed=16)
    calls = iter([False, False, False, True])
    assert node.sweep(lambda: next(calls, True)) == 0
    assert stored(store, node.node_id) == {}
    assert node.sweep() == 3


def test_a_cold_store_needs_a_limit() -> None:
    with pytest.raises(ValidationError, match="max_age or max_size"):
        DataNodeSettings(cold_store="store")


# -------------------------------------------------------------------------- crashes

POINTS = [point for point in NodePoint if point.startswith(("node.seen", "node.remove"))]
KINDS = [
    *(FaultKind.KILL_BEFORE, FaultKind.KILL_AFTER),
    *(FaultKind.ENOSPC, FaultKind.STAYS_FULL, FaultKind.EIO, FaultKind.FAILED_SYNC),
]
CELLS = [
    pytest.param(point, kind, id=f"{point}-{kind}")
    for point in POINTS
    for kind in KINDS
    if kind is not FaultKind.FAILED_SYNC or "sync" in point
]


def check_moved_once(survivor: SimulatedDisk, store: Store, node_id: str) -> None:
    """Whatever is not here any more is in the store; and in the end all of it is, once."""
    survivor.capacity_bytes = None
    folders = {folder.name for folder in part_folders(survivor, QUIVER_ID)}
    kept = [path for files in stored(store, node_id).values() for path in files]
    for one in PARTS:
        if one.folder.name not in folders:
            assert set(content([one])) <= set(kept), "it is in neither place"
    node, _ = started(survivor, store)
    assert node.node_id == node_id
    node.sweep()
    assert offered(node, PARTS) == ["expired"] * 3
    found = [item for files in stored(store, node_id).values() for item in files.items()]
    assert len(found) == len(dict(found)), "a part is in two commits"
    assert dict(found) == content(PARTS)
    node.close()


@pytest.mark.parametrize(("point", "kind"), CELLS)
def test_cell(store: Store, point: NodePoint, kind: FaultKind) -> None:
    check_cell(store, Fault(point, kind, nth=calls_of(store)[point]), CELLS_SEED[point, kind])


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_process_that_dies_around_the_commit(
    store: Store, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = Commits.create

    def die(*args: Any, **given: Any) -> Any:
        if moment == "after":
            create(*args, **given)
        raise SimulatedCrash

    disk = SimulatedDisk()
    node, _ = started(disk, store, seed=20 + len(moment))
    with monkeypatch.context() as patched:
        patched.setattr(Commits, "create", die)
        with pytest.raises(SimulatedCrash):
            node.sweep()
    check_moved_once(disk.power_loss(), store, node.node_id)


# Every cell has a node of its own.
CELLS_SEED = {(one.values[0], one.values[1]): 100 + place for place, one in enumerate(CELLS)}


def calls_of(store: Store) -> dict[str, int]:
    """Return how often each point is reached in a life without faults."""
    if not _calls:
        disk = SimulatedDisk()
        faulty = FaultyDisk(disk, [], disk.die)
        node, _ = started(faulty, store, seed=99)
        assert node.sweep() == 3
        _calls.update(faulty.calls())
    return _calls


_calls: dict[str, int] = {}


def check_cell(store: Store, fault: Fault, seed: int) -> None:
    disk = SimulatedDisk()
    node_id = ""
    with contextlib.suppress(SimulatedCrash):
        node, _ = started(FaultyDisk(disk, [fault], disk.die), store, seed=seed)
        node_id = node.node_id
        node.sweep()
        node.sweep()
    with contextlib.suppress(SimulatedCrash):
        disk.die()
    for survivor in (disk.kill(), disk.power_loss()):
        check_moved_once(survivor, store, node_id)
