"""A store of a few commits for tests of the check, and ways to damage it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.store.chunks.stage import TINY, noise, over

from holdfast.store.chunks.settings import StoreSettings
from holdfast.store.filesets import Commits, FileSetWriter
from holdfast.store.fsck.check import LocalEngine, check
from holdfast.store.fsck.findings import FsckReport, StoreFinding
from holdfast.store.fsck.repair import Repaired, check_and_repair
from holdfast.store.fsck.tables import FsckSettings
from holdfast.store.gc.leases import Job
from holdfast.store.gc.settings import GcSettings
from holdfast.store.objects.objects import ChunkHash, ChunkKey
from holdfast.store.store import Store

_GC = GcSettings(synchronous="off", orphan_grace_s=0.0, reserve_bytes=0)
SETTINGS = StoreSettings(chunking=TINY, gc=_GC)
LIMITS = FsckSettings(partitions=2, batch_rows=50)
FILES = {f"d{n % 3}/{n:02}": noise(300 + n * 50, b"%d" % n) for n in range(24)}
LARGE = noise(20_000, b"large")


class Damaged:
    """A sound store, whose objects and rows can be changed behind its back."""

    def __init__(self, store: Store, scratch: Path) -> None:
        self.store = store
        self.scratch = scratch
        self.commits = Commits(store)

    def fill(self) -> None:
        """Make two commits that share most of their chunks."""
        with self.store.references.open_job("fill") as job:
            self.write(job, "one", FILES | {"large": LARGE})
            layers = self.commits.get("one").layers
            with FileSetWriter(self.store, job) as writer:
                writer.put("d1/new", noise(5000, b"new"))
                writer.delete_prefix("d2/")
                upper = writer.close()
            self.commits.create(job, "two", [*layers, upper], parent="one")

    def write(self, job: Job, name: str, files: dict[str, bytes]) -> None:
        """Make a commit of files."""
        with FileSetWriter(self.store, job) as writer:
            for path, data in files.items():
                writer.put(path, data)
            layer = writer.close()
        self.commits.create(job, name, [layer])

    def check(self, limits: FsckSettings = LIMITS) -> FsckReport:
        """Check the store."""
        return check(self.store, LocalEngine(self.store, self.scratch, limits), limits)

    def repair(
        self, limits: FsckSettings = LIMITS, damaged: Sequence[StoreFinding] = ()
    ) -> Repaired:
        """Check, repair, and check again."""
        engine = LocalEngine(self.store, self.scratch, limits)
        return check_and_repair(self.store, engine, limits, damaged)

    def sql(self, statement: str, **given: Any) -> None:
        """Change the database behind everybody's back."""
        self.store.references.database.transact(
            lambda connection: connection.change(statement, **given)
        )

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return all rows of a table."""
        return self.store.references.database.read(
            lambda connection: connection.named(f"SELECT * FROM {table}")
        )

    def key(self, hash_: ChunkHash) -> ChunkKey:
        """Return the stored generation of a chunk."""
        return self.store.references.resolve([hash_])[hash_]

    def file_chunk(self, commit: str, path: str) -> ChunkKey:
        """Return the first chunk of a file."""
        with self.commits.open(commit) as files:
            info = files.stat(path)
        return self.key(ChunkHash(info.refs[0].chunk.hash))

    def root(self, commit: str) -> ChunkKey:
        """Return the chunk at the top of a commit's first layer."""
        return self.key(self.commits.get(commit).layers[0].chunks[0])

    def read(self, commit: str) -> dict[str, bytes]:
        """Return all files of a commit."""
        with self.commits.open(commit) as files:
            return {info.path: files.read(info.path) for info in files.files()}

    def forget_chunks(self) -> None:
        """Read from the objects again, as another process would."""
        store = self.store
        store.chunks.close()
        store.chunks = over(store, store.objects)

    def object(self, key: ChunkKey) -> bytes:
        """Return an object's bytes."""
        return self.store.objects.get(key.object_key())

    def replace_object(self, key: ChunkKey, data: bytes) -> None:
        """Change an object in its place."""
        self.store.objects.delete_many([key.object_key()])
        self.store.objects.put(key.object_key(), [data])

    def known(self) -> list[ChunkKey]:
        """Return all generations that have a row."""
        return sorted(ChunkKey(row["hash"], row["generation"]) for row in self.rows("gc_chunk"))


@contextlib.contextmanager
def filled_store(
    folder: Path, database: str | None = None, settings: StoreSettings = SETTINGS
) -> Iterator[Damaged]:
    """Make a store with two commits in a folder."""
    scratch = folder / "scratch"
    scratch.mkdir()
    place = str(folder / "store")
    with Store.create(place, database=database, settings=settings) as store:
        damaged = Damaged(store, scratch)
        damaged.fill()
        yield damaged
