"""A process that works on a store until it is killed: as writer, reader, deleter or collector.

Run as `python -m holdfast.prove.store_victim TASK [DEATH]`, both as JSON. It prints "ready" when
its store is open, and works until it is killed, or until it reaches the point of its death.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast.errors import CommitExists, LeaseLost, StoreUnavailable, UnknownCommit
from holdfast.prove.journal import ProofJournal, digest_of, whole_lines
from holdfast.prove.victim import deadly_seam, end_with_parent, say
from holdfast.seam import Seam
from holdfast.store.chunks.settings import Chunking, StoreSettings
from holdfast.store.filesets import Commits, FileSetWriter
from holdfast.store.gc.collector import Collector
from holdfast.store.gc.settings import GcSettings
from holdfast.store.store import Store

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


@dataclass(frozen=True)
class StoreTask:
    """What one process has to do."""

    role: str
    name: str
    url: str
    database: str | None
    journal_dir: str
    seed: int

    def argument(self) -> str:
        """Return it for a command line."""
        return json.dumps(asdict(self))


class StoreVictim:
    """What all roles have."""

    def __init__(self, task: StoreTask, seam: Seam) -> None:
        self.name = task.name
        self.dice = random.Random(f"{task.seed} {task.name} {os.getpid()}")
        self.path = Path(task.journal_dir) / f"{task.name}.journal"
        self.journal = ProofJournal(self.path)
        self.store = Store.open(task.url, database=task.database, settings=SETTINGS, seam=seam)
        self.commits = Commits(self.store)

    def write(self) -> None:
        """Make a commit of some files, a few of them like those of others."""
        # From its own journal, which outlives it: a name is never used for two contents.
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
        """Half of the files are like those of other writers: the hard case is a chunk that one
        refers to again while a collector is about to delete it.
        """
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
        # Not a finding: the database is locked, or the S3 server slow, because the machine is busy.
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


ROLES: dict[str, Callable[[StoreVictim], None]] = {
    "writer": StoreVictim.write,
    "reader": StoreVictim.read,
    "deleter": StoreVictim.delete,
    "collector": StoreVictim.collect,
}


def _opened(task: StoreTask, seam: Seam) -> StoreVictim:
    """Open the store, however busy the machine is."""
    while True:
        try:
            return StoreVictim(task, seam)
        except StoreUnavailable:
            time.sleep(0.1)


def main(task: StoreTask, seam: Seam) -> None:
    """Do one thing again and again."""
    end_with_parent()
    victim = _opened(task, seam)
    say("ready")
    while True:
        try:
            ROLES[task.role](victim)
        except (LeaseLost, StoreUnavailable, CommitExists):
            # A busy machine: the attempt is given up, and what it left is for the collector.
            continue
        time.sleep(victim.dice.uniform(0.0, 0.1))


if __name__ == "__main__":
    main(StoreTask(**json.loads(sys.argv[1])), deadly_seam(sys.argv[2:]))
