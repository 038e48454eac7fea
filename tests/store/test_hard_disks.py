"""A whole store on a disk that stays full, or cannot read a block, from any of its steps on.

Every named step of putting and deleting objects, and every moment of writers and collectors, is the
one at which the disk turns bad. What was committed before is read as it was, or told as damaged by
its name; what frees the disk works; what does not, fails typed, and works when there is room again.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath

import pytest
from tests.store.chunks.stage import TINY, noise, over
from tests.store.fsck.stage import LIMITS

from holdfast.errors import Damaged, DiskFull, HoldfastError
from holdfast.seam import Seam
from holdfast.seam.disk import RealDisk
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.seam.holder import monotonic_name
from holdfast.seam.simulated import SimulatedDisk
from holdfast.store.chunks.settings import StoreSettings
from holdfast.store.filesets import Commits, FileSetWriter
from holdfast.store.fsck.check import LocalEngine
from holdfast.store.fsck.findings import FindingKind
from holdfast.store.fsck.repair import check_and_repair, rebuild_database
from holdfast.store.fsck.scrub import scrub
from holdfast.store.gc.collector import Collector
from holdfast.store.gc.leases import Job
from holdfast.store.gc.points import StorePoint
from holdfast.store.gc.settings import GcSettings
from holdfast.store.objects.local import ObjectPoint
from holdfast.store.store import Store

SETTINGS = StoreSettings(
    chunking=TINY, gc=GcSettings(synchronous="off", orphan_grace_s=0.0, reserve_bytes=0)
)
ROOT = PurePath("/store")
FILES = {name: {f"{name}/{n}": noise(900 + n, b"%d" % n + name.encode()) for n in range(6)}
         for name in ("before", "during", "half made", "after")}  # fmt: skip
REBUILDS = [point for point in StorePoint if point.startswith(("gc-rebuild", "gc-set"))]
# Of the disk that has the database's file.
RENAMES = (StorePoint.SET_ASIDE, StorePoint.SET_ASIDE_SYNC)
MOMENTS = [point for point in StorePoint if point not in REBUILDS]
QUICK = (ObjectPoint.WRITE, ObjectPoint.LINK, StorePoint.PUBLISHING, StorePoint.REMOVING)
EVERY_STEP = [
    pytest.param(at, marks=[] if at in QUICK else [pytest.mark.slow])
    for at in [*ObjectPoint, *MOMENTS]
]
EVERY_REBUILD = [
    pytest.param(at, marks=[] if at is StorePoint.REBUILD_COMMIT else [pytest.mark.slow])
    for at in REBUILDS
]
ROOMY_BYTES = 50_000_000

Strike = Callable[[SimulatedDisk], None]


def fill(disk: SimulatedDisk) -> None:
    disk.fill()


def spoil(disk: SimulatedDisk) -> None:
    disk.spoil_last_write()


class TwoDisks(SimulatedDisk):
    """A simulated disk, and a real one that only SQLite and who renames its file knows."""

    def __init__(self, real: Path) -> None:
        super().__init__(ROOMY_BYTES)
        self._real = real

    def rename(self, source: PurePath, target: PurePath, at: str) -> None:
        if source.is_relative_to(self._real):
            RealDisk().rename(source, target, at)
        else:
            super().rename(source, target, at)

    def sync_dir(self, path: PurePath, at: str) -> None:
        if path.is_relative_to(self._real):
            RealDisk().sync_dir(path, at)
        else:
            super().sync_dir(path, at)


class Gone(Exception):
    """A publisher is gone before it has put its commit's object."""


class World:
    """A store on a simulated disk, beside its database on a real one."""

    def __init__(self, folder: Path, disk: SimulatedDisk, faulty: FaultyDisk) -> None:
        self.disk = disk
        self.scratch = folder
        # The moment at which the disk turns bad, and the one at which a publisher is gone.
        self.armed: str | None = None
        self.publisher_goes = False
        self.strike: Strike = fill
        self.seam = Seam(disk=faulty, reached=self.reached)
        self.place = {"database": f"sqlite:///{folder}/gc.sqlite", "settings": SETTINGS}
        self.store = Store.create(str(ROOT), **self.place, seam=self.seam)  # type: ignore[arg-type]
        self.commits = Commits(self.store)

    def reached(self, point: str) -> None:
        if point == self.armed:
            self.armed = None
            self.strike(self.disk)
        if point == StorePoint.PUBLISHING and self.publisher_goes:
            self.publisher_goes = False
            raise Gone

    def reopen(self) -> None:
        """Open the store again, with the database that is there."""
        self.store = Store.open(str(ROOT), **self.place, seam=self.seam)  # type: ignore[arg-type]
        self.commits = Commits(self.store)

    def leave_half_made(self) -> None:
        """Publish a commit, and be gone before its object is there; its lease lapses."""
        job = self.store.references.open_job("half made")
        self.publisher_goes = True
        with contextlib.suppress(Gone, HoldfastError):
            self.write(job, "half made")
        self.publisher_goes = False
        lapsed = (
            "UPDATE gc_job SET lease_until = 1, seen_until = 1, "
            f"seen_clock = '{monotonic_name()}', seen_s = -{SETTINGS.gc.lease_s * 10}"
        )
        self.store.references.database.transact(lambda c: c.change(lapsed))

    def leave_half_deleted(self, name: str) -> None:
        """Delete a commit, and be gone before its object is."""
        self.store.references.begin_delete_commit(name)

    def refer(self) -> None:
        """Refer to what is stored by hand, and no longer."""
        references = self.store.references
        (layer,) = self.commits.get("before").layers
        by_hand = [(("test", b"by hand"), layer.chunks[0])]
        references.update_references(None, by_hand, [])
        references.update_references(None, [], by_hand)

    def put(self, name: str) -> None:
        with self.store.references.open_job(name) as job:
            self.write(job, name)

    def write(self, job: Job, name: str) -> None:
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

    def findings(self) -> set[FindingKind]:
        """Check and scrub; return what is wrong."""
        engine = LocalEngine(self.store, self.scratch, LIMITS)
        damaged = scrub(self.store, restart=True).findings
        found = check_and_repair(self.store, engine, LIMITS, damaged)
        return {one.kind for one in found.before.findings}


@contextlib.contextmanager
def world(folder: Path, at: str, kind: FaultKind, strike: Strike) -> Iterator[World]:
    """A store with one commit, whose disk turns bad at a step or a moment of what comes next."""
    disk = TwoDisks(folder)
    faulty = FaultyDisk(disk, [], disk.die)
    made = World(folder, disk, faulty)
    made.strike = strike
    with made.store:
        made.put("before")
        if at in (*ObjectPoint, *RENAMES):
            faulty._faults.append(Fault(at, kind, nth=faulty.calls().get(at, 0) + 1))
        else:
            made.armed = at
        yield made
        assert made.armed is None, "the moment came"


def work(made: World) -> None:
    """Put a commit, delete it again, collect; a step that fails is typed, and the rest goes on."""
    steps: list[Callable[[], None]] = [
        lambda: made.put("during"),
        made.refer,
        lambda: made.commits.delete("during"),
        made.collect,
        made.leave_half_made,
        made.collect,
        lambda: made.leave_half_deleted("half made"),
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
        assert found <= {
            FindingKind.DAMAGED_CHUNK,
            FindingKind.COMMIT_DIFFERS,
            FindingKind.MISSING_CHUNK,
        }
        assert whole or found, "what cannot be read is found"
        made.put("after")
        assert made.is_whole("after")
        for commit in made.store.references.commits():
            made.commits.delete(commit.name)
            made.collect()
        assert not list(made.store.objects.list("chunks/")), "it can be deleted all the same"
        assert made.findings() == set()


def rebuild(made: World) -> None:
    """Put an old copy of the database in place, and rebuild from the objects beside it."""
    file, copy = made.scratch / "gc.sqlite", made.scratch / "old.sqlite"
    made.store.close()
    shutil.copy(file, copy)
    made.reopen()
    made.put("during")
    made.store.close()
    shutil.copy(copy, file)
    for _ in range(2):  # once more, if it could not be done
        with contextlib.suppress(HoldfastError, OSError):
            rebuild_database(str(ROOT), **made.place, seam=made.seam)  # type: ignore[arg-type]
    made.reopen()


@pytest.mark.parametrize("at", EVERY_REBUILD)
def test_the_disk_stays_full_from_any_step_of_a_rebuild_on(tmp_path: Path, at: str) -> None:
    with world(tmp_path, at, FaultKind.STAYS_FULL, fill) as made:
        rebuild(made)
        assert made.is_whole("before")
        assert made.is_whole("during")
        for name in ("before", "during"):
            made.commits.delete(name)
        made.collect()
        made.collect()
        assert not list(made.store.objects.list("chunks/")), "everything was freed"
        made.disk.capacity_bytes = ROOMY_BYTES
        made.put("after")
        assert made.findings() == set()


@pytest.mark.parametrize("at", EVERY_REBUILD)
def test_a_block_cannot_be_read_from_any_step_of_a_rebuild_on(tmp_path: Path, at: str) -> None:
    with world(tmp_path, at, FaultKind.BAD_BLOCK, spoil) as made:
        rebuild(made)
        assert made.is_whole("before")
        known = {commit.name for commit in made.store.references.commits()}
        whole = "during" in known and made.is_whole("during")
        found = made.findings()
        assert whole or found, "what cannot be read is found"
        made.put("after")
        assert made.is_whole("after")


def test_a_put_on_a_full_disk_is_told_as_such(tmp_path: Path) -> None:
    with world(tmp_path, ObjectPoint.WRITE, FaultKind.STAYS_FULL, fill) as made:
        with pytest.raises(DiskFull):
            made.put("during")
        assert made.store.references.statistics().leases == ()
