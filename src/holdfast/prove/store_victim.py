"""A process that works on a store until it is killed: as writer, reader, deleter or collector.

Run as `python -m holdfast.prove.store_victim ROLE NAME`, with everything else in the environment.
If a point is named there, the process kills itself when it gets to it.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.errors import CommitExists, LeaseLost, StoreUnavailable, UnknownCommit
from holdfast.prove.journal import StoreJournal, digest_of, whole_lines
from holdfast.seam import Seam
from holdfast.seam.disk import RealDisk
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk, die_for_real
from holdfast.store.chunks.settings import Chunking, StoreSettings
from holdfast.store.filesets import Commits, FileSetWriter
from holdfast.store.gc.collector import Collector
from holdfast.store.gc.settings import GcSettings
from holdfast.store.store import Store

URL = "HOLDFAST_PROVE_STORE"
DATABASE = "HOLDFAST_PROVE_DATABASE"
JOURNALS = "HOLDFAST_PROVE_JOURNALS"
POINT = "HOLDFAST_PROVE_POINT"
SEED = "HOLDFAST_PROVE_SEED"

LEASE_S = 5.0
ORPHAN_GRACE_S = 15.0
# Small chunks and small files, so that each commit has many, and shares some with others.
SETTINGS = StoreSettings(
    chunking=Chunking(
        min_bytes=256, average_bytes=1024, max_bytes=4096, small_file_bytes=512, pack_min_bytes=512
    ),
    gc=GcSettings(lease_s=LEASE_S, orphan_grace_s=ORPHAN_GRACE_S, synchronous="normal"),
)
FILES_PER_COMMIT = 12
# Contents that all writers draw from: what one reserves, another may be deleting.
COMMON_CONTENTS = 40
KEPT_COMMITS = 6
# A point strikes one of its next moments.
NTH_MAX = 5


class Victim:
    """What all roles have."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dice = random.Random(f"{os.environ[SEED]} {name} {os.getpid()}")
        self._left = self.dice.randint(1, NTH_MAX)
        self.path = Path(os.environ[JOURNALS]) / f"{name}.journal"
        self.journal = StoreJournal(self.path)
        self.store = Store.open(
            os.environ[URL],
            database=os.environ.get(DATABASE),
            settings=SETTINGS,
            seam=Seam(disk=self._disk(), reached=self._reached),
        )
        self.commits = Commits(self.store)

    def _disk(self) -> FaultyDisk:
        kind = self.dice.choice((FaultKind.KILL_BEFORE, FaultKind.KILL_AFTER))
        faults = [Fault(os.environ[POINT], kind, self._left)] if POINT in os.environ else []
        return FaultyDisk(RealDisk(), faults, die_for_real)

    def _reached(self, point: str) -> None:
        if point == os.environ.get(POINT):
            self._left -= 1
            if self._left <= 0:
                die_for_real()

    def write(self) -> None:
        """Make a commit of some files, a few of them like those of others."""
        number = sum(1 for line in whole_lines(self.path) if line.startswith("S "))
        commit = f"{self.name}/{number}"
        contents = {
            f"files/{place:02}": self._content(commit, place) for place in range(FILES_PER_COMMIT)
        }
        self.journal.note("S", commit, digest_of(contents.items()))
        with self.store.references.open_job(commit) as job:
            with FileSetWriter(self.store, job) as writer:
                for path, data in contents.items():
                    writer.put(path, data)
                layer = writer.close()
            self.commits.create(job, commit, [layer])
        self.journal.note("A", commit)

    def _content(self, commit: str, place: int) -> bytes:
        if self.dice.random() < 0.5:  # noqa: PLR2004 - half of them
            shared = random.Random(self.dice.randrange(COMMON_CONTENTS))
            return shared.randbytes(shared.randrange(1, 6000))
        return f"{commit} {place} ".encode() * self.dice.randrange(1, 200)

    def read(self) -> None:
        """Read a commit as a whole; it may be deleted meanwhile, but not taken from under this."""
        found = self.commits.list()
        if not found:
            return
        commit = self.dice.choice(found).name
        try:
            with self.commits.open(commit) as files:
                contents = [(file.path, files.read(file.path)) for file in files.files()]
        except (UnknownCommit, LeaseLost):
            return
        except StoreUnavailable:
            raise
        except Exception as error:  # whatever else it is, it is what the proof looks for
            self.journal.note("X", commit, type(error).__name__)
            return
        self.journal.note("R", commit, digest_of(contents))

    def delete(self) -> None:
        """Delete a commit, if there are enough."""
        found = self.commits.list()
        if len(found) <= KEPT_COMMITS:
            return
        commit = self.dice.choice(found).name
        self.journal.note("D", commit)
        try:
            self.commits.delete(commit)
        except UnknownCommit:
            return
        self.journal.note("G", commit)

    def collect(self) -> None:
        """Collect garbage and orphans."""
        collector = Collector(self.store.references, self.store.objects)
        collector.collect()
        collector.sweep()


ROLES: dict[str, Callable[[Victim], None]] = {
    "writer": Victim.write,
    "reader": Victim.read,
    "deleter": Victim.delete,
    "collector": Victim.collect,
}


def _end_with_parent() -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)


def main(role: str, name: str) -> None:
    """Do one thing again and again."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    victim = Victim(name)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        try:
            ROLES[role](victim)
        except (LeaseLost, StoreUnavailable, CommitExists):
            # A busy machine: the attempt is given up, and what it left is for the collector.
            continue
        time.sleep(victim.dice.uniform(0.0, 0.1))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
