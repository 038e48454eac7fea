"""A whole store on a disk that stays full, or cannot read a block, from any of its steps on.

Every named step of putting and deleting objects, and every moment of writers and collectors, is the
one at which the disk turns bad. What was committed before is read as it was, or told as damaged by
its name; what frees the disk works; what does not, fails typed, and works when there is room again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath

import pytest
from tests.store.chunks.stage import TINY, noise, over
from tests.store.fsck.stage import LIMITS

from holdfast.errors import Damaged, DiskFull, HoldfastError
from holdfast.seam import Seam
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.simulated import SimulatedDisk
from holdfast.store.filesets import Commits, FileSetWriter
from holdfast.store.fsck.check import LocalEngine
from holdfast.store.fsck.findings import Kind
from holdfast.store.fsck.run import check_and_repair
from holdfast.store.fsck.scrub import scrub
from holdfast.store.gc.collector import Collector
from holdfast.store.gc.points import Point
from holdfast.store.gc.settings import GcSettings
from holdfast.store.objects.local import Point as Step
from holdfast.store.settings import StoreSettings
from holdfast.store.store import Store

SETTINGS = StoreSettings(
    chunking=TINY, gc=GcSettings(synchronous="off", orphan_grace_s=0.0, reserve_bytes=0)
)
ROOT = PurePath("/store")
FILES = {name: {f"{name}/{n}": noise(900 + n, b"%d" % n + name.encode()) for n in range(6)}
         for name in ("before", "during", "after")}  # fmt: skip
MOMENTS = [
    point
    for point in Point
    if not point.startswith(("gc-rebuild", "gc-set", "gc-lease", "gc-referred", "gc-commit-put"))
]
QUICK = (Step.WRITE, Step.LINK, Point.PUBLISHING, Point.REMOVING)
EVERY_STEP = [
    pytest.param(at, marks=[] if at in QUICK else [pytest.mark.slow]) for at in [*Step, *MOMENTS]
]
ROOMY_BYTES = 50_000_000

Strike = Callable[[SimulatedDisk], None]


def fill(disk: SimulatedDisk) -> None:
    disk.fill()


def spoil(disk: SimulatedDisk) -> None:
    disk.spoil_last_write()


class World:
    """A store on a simulated disk, beside its database on a real one."""

    def __init__(self, folder: Path, disk: SimulatedDisk, seam: Seam) -> None:
        self.disk = disk
        self.scratch = folder
        place = {"database": f"sqlite:///{folder}/gc.sqlite", "settings": SETTINGS}
        self.store = Store.create(str(ROOT), **place, seam=seam)  # type: ignore[arg-type]
        self.commits = Commits(self.store)

    def put(self, name: str) -> None:
        with self.store.references.open_job(name) as job:
            with FileSetWriter(self.store, job) as writer:
                for path, data in FILES[name].items():
                    writer.put(path, data)
                layer = writer.close()
            self.commits.create(job, name, [layer])

    def collect(self) -> None:
        collector = Collector(self.store.references, self.store.objects)
        collector.collect()
        collector.sweep()

    def is_whole(self, name: str) -> bool:
        """Whether all files of a commit are as they were; what is not is damage with a name."""
        whole = True
        for path, data in FILES[name].items():
            # Read from the objects, as another process would.
            self.store.chunks.close()
            self.store.chunks = over(self.store, self.store.objects)
            try:
                with self.commits.open(name) as files:
                    assert files.read(path) == data
            except Damaged:
                whole = False
        return whole

    def findings(self) -> set[Kind]:
        """Check and scrub; return what is wrong."""
        engine = LocalEngine(self.store, self.scratch, LIMITS)
        damaged = scrub(self.store, restart=True).findings
        found = check_and_repair(self.store, engine, LIMITS, damaged)
        return {one.kind for one in found.before.findings}


@contextlib.contextmanager
def world(folder: Path, at: str, kind: FaultKind, strike: Strike) -> Iterator[World]:
    """A store with one commit, whose disk turns bad at a step or a moment of what comes next."""
    disk = SimulatedDisk(ROOMY_BYTES)
    armed: list[str] = []

    def reached(point: str) -> None:
        if armed and point == armed[0]:
            armed.clear()
            strike(disk)

    faults: list[Fault] = []
    faulty = FaultyDisk(disk, faults, disk.die)
    made = World(folder, disk, Seam(disk=faulty, reached=reached))
    with made.store:
        made.put("before")
        if at in list(Step):
            faulty._faults.append(Fault(at, kind, nth=faulty.calls().get(at, 0) + 1))
        else:
            armed.append(at)
        yield made


def work(made: World) -> None:
    """Put a commit, delete it again, collect; a step that fails is typed, and the rest goes on."""
    steps: list[Callable[[], None]] = [
        lambda: made.put("during"),
        lambda: made.commits.delete("during"),
        made.collect,
    ]
    for step in steps:
        with contextlib.suppress(HoldfastError):
            step()


@pytest.mark.parametrize("at", EVERY_STEP)
def test_the_disk_stays_full_from_any_step_on(tmp_path: Path, at: str) -> None:
    with world(tmp_path, at, FaultKind.STAYS_FULL, fill) as made:
        work(made)
        assert made.is_whole("before")
        fill(made.disk)
        made.commits.delete("before")
        made.collect()
        made.collect()
        # A commit that had no room for its object was finished when there was.
        for commit in made.store.references.commits():
            assert made.is_whole(commit.name)
            made.commits.delete(commit.name)
        made.collect()
        assert not list(made.store.objects.list("chunks/")), "everything was freed"
        made.disk.capacity_bytes = ROOMY_BYTES
        made.put("after")
        assert made.is_whole("after")
        assert made.findings() == set()


@pytest.mark.parametrize("at", EVERY_STEP)
def test_a_block_cannot_be_read_from_any_step_on(tmp_path: Path, at: str) -> None:
    with world(tmp_path, at, FaultKind.BAD_BLOCK, spoil) as made:
        work(made)
        whole = made.is_whole("before")
        found = made.findings()
        assert found <= {Kind.DAMAGED_CHUNK, Kind.COMMIT_DIFFERS, Kind.MISSING_CHUNK}
        assert whole or found, "what cannot be read is found"
        made.put("after")
        assert made.is_whole("after")
        made.commits.delete("before")
        made.collect()
        made.commits.delete("after")
        made.collect()
        assert not list(made.store.objects.list("chunks/")), "it can be deleted all the same"
        assert made.findings() == set()


def test_a_put_on_a_full_disk_is_told_as_such(tmp_path: Path) -> None:
    with world(tmp_path, Step.WRITE, FaultKind.STAYS_FULL, fill) as made:
        with pytest.raises(DiskFull):
            made.put("during")
        assert made.store.references.statistics().leases == ()
