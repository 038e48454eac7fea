"""Holdfast's store, restic and borg as contenders: each a program that is started and measured.

All three sync what they store, and all three are new processes each time, as a user or a timer
starts them. restic encrypts always; borg and Holdfast are measured without encryption.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from holdfast.bench.stopwatch import Stopwatch
from holdfast.errors import CheckFailed
from holdfast.store.filesets import Commits, extract, put_tree
from holdfast.store.store import Store


@dataclass(frozen=True)
class Took:
    """What one run of a program took, its children included."""

    wall_s: float
    cpu_s: float


class Contender(ABC):
    """A program that stores folders. Each round has a folder of its own, with an empty repository.

    Nothing is removed between rounds: ext4 does not use the inode of a file again that was removed
    in the last minute, and whoever makes files after a large removal searches long for others.
    """

    name: str

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rounds = itertools.count()

    def begin(self) -> None:
        """Make an empty repository."""
        place = self._folder / f"{self.name}-{next(self._rounds)}"
        place.mkdir()
        self.repository, self._home = place / "repository", place / "home"
        self.restored = place / "restored"
        self._home.mkdir()
        self._make()

    @abstractmethod
    def _make(self) -> None:
        """Make the repository."""

    @abstractmethod
    def store(self, folder: Path, label: str, parent: str | None) -> Took:
        """Store a folder."""

    @abstractmethod
    def restore(self, label: str) -> Took:
        """Restore what was stored into `restored`."""

    def stored_bytes(self) -> int:
        """Return how many bytes the files of the repository have."""
        return sum(path.stat().st_size for path in self.repository.rglob("*") if path.is_file())

    def _run(
        self, *words: str, cwd: Path | None = None, more: Mapping[str, str] | None = None
    ) -> Took:
        # A home of its own, so that no cache of another round or user is used.
        variables = {**os.environ, "HOME": str(self._home), **(more or {})}
        variables.pop("XDG_CACHE_HOME", None)
        began_s = time.perf_counter()
        process = subprocess.Popen(
            words, cwd=cwd, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        assert process.stderr is not None, "BUG: it was asked for"
        said = process.stderr.read()
        process.stderr.close()
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began_s
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise CheckFailed(
                f"{words[0]} {words[1]} failed: {said.decode(errors='replace')[-300:]}",
                hint="Run it by hand to see why.",
            )
        return Took(wall_s, usage.ru_utime + usage.ru_stime)


class Holdfast(Contender):
    """`holdfast files put` and `get`."""

    name = "holdfast"

    def _holdfast(self, *words: str) -> Took:
        # With its bytecode kept, as an installed program has it; the round that is not counted
        # writes it.
        more = {"HOLDFAST_STORE": str(self.repository), "PYTHONDONTWRITEBYTECODE": ""}
        return self._run(sys.executable, "-m", "holdfast", *words, more=more)

    def _make(self) -> None:
        self._holdfast("store", "create")

    def store(self, folder: Path, label: str, parent: str | None) -> Took:
        on = ["--parent", parent] if parent else []
        return self._holdfast("files", "put", label, str(folder), *on)

    def restore(self, label: str) -> Took:
        return self._holdfast("files", "get", label, str(self.restored))


class Library(Contender):
    """The same as `Holdfast`, by a process that runs already: what of it is the work itself.

    A gateway, a Spark driver and a service start once, and a command each time.
    """

    name = "library"

    def _make(self) -> None:
        Store.create(str(self.repository)).close()

    def store(self, folder: Path, label: str, parent: str | None) -> Took:
        with Stopwatch() as watch, Store.open(str(self.repository)) as store, ExitStack() as held:
            commits = Commits(store)
            job = held.enter_context(store.references.open_job(label))
            files = held.enter_context(commits.open(parent)) if parent else None
            seen = commits.get(parent).seen if parent else ()
            tree = put_tree(store, job, folder, parent=files, parent_seen=seen)
            commits.create(job, label, [tree.layer], parent=parent, seen=tree.seen)
        return Took(watch.wall_s, watch.cpu_s)

    def restore(self, label: str) -> Took:
        with (
            Stopwatch() as watch,
            Store.open(str(self.repository)) as store,
            Commits(store).open(label) as files,
        ):
            extract(files, self.restored)
        return Took(watch.wall_s, watch.cpu_s)


class Restic(Contender):
    """restic, with the repository format and the compression it has by default."""

    name = "restic"

    def _restic(self, *words: str, cwd: Path | None = None) -> Took:
        secrets = {"RESTIC_PASSWORD": "bench", "RESTIC_REPOSITORY": str(self.repository)}
        return self._run("restic", *words, cwd=cwd, more=secrets)

    def _make(self) -> None:
        self._restic("init", "--repository-version", "2")

    def store(self, folder: Path, label: str, parent: str | None) -> Took:
        # From within, so that what is restored has no more folders above it.
        return self._restic("backup", "--quiet", "--tag", label, ".", cwd=folder)

    def restore(self, label: str) -> Took:
        words = ("restore", "--quiet", "latest", "--tag", label)
        return self._restic(*words, "--target", str(self.restored))


class Borg(Contender):
    """borg, without encryption, with lz4, which is its default."""

    name = "borg"

    def _borg(self, *words: str, cwd: Path | None = None) -> Took:
        more = {"BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes"}
        return self._run("borg", *words, cwd=cwd, more=more)

    def _make(self) -> None:
        self._borg("init", "--encryption", "none", str(self.repository))

    def store(self, folder: Path, label: str, parent: str | None) -> Took:
        return self._borg("create", f"{self.repository}::{label}", ".", cwd=folder)

    def restore(self, label: str) -> Took:
        self.restored.mkdir()
        return self._borg("extract", f"{self.repository}::{label}", cwd=self.restored)


PEERS: tuple[type[Contender], ...] = (Restic, Borg)


def is_installed(contender: type[Contender]) -> bool:
    """Whether a peer is on this machine."""
    return shutil.which(contender.name) is not None
