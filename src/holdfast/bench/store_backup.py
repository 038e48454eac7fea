"""Stores and restores a real corpus, beside restic and borg.

The corpus is a sample of the files of the Python environment that runs this, and a later state of
it. The sample is drawn by the hash of each path, so that it has the environment's own mix of large
and small, text and binary, and is the same in each run on the same environment.

Each contender is a program that is started and measured. All of them sync what they store, and all
are new processes each time, as a user or a timer starts them. restic encrypts always; borg and
Holdfast are measured without encryption. Who begins changes from round to round. Holdfast runs a
second time beside itself: how far that ratio is from one says what the others are worth.
"""

from __future__ import annotations

import contextlib
import filecmp
import itertools
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from holdfast.bench.figures import Figures, rotated
from holdfast.bench.scale import MB, StoreScale
from holdfast.bench.stopwatch import Stopwatch
from holdfast.errors import CheckFailed
from holdfast.store.filesets import Commits, extract, put_tree
from holdfast.store.store import Store

_SEED = 7
# Starts that are measured in a round.
_STARTS = 5

# What each program gives back of a file besides its content: seen by storing and restoring a folder
# with all of it on ext4, as root, by this version, restic 0.14 and borg 1.2.4.
METADATA_KEPT = {
    "holdfast": "mode, owner, mtime, xattrs, links, hard links, holes, folders with mode and time; "
    "set-id bits and capabilities where --set-id is given to get; no pipes, atime or flags",
    "restic": "the same with set-id bits, capabilities and pipes, without holes; atime where "
    "--with-atime is given to backup; no flags",
    "borg": "the same with set-id bits, capabilities, pipes and flags; holes where --sparse is "
    "given to extract, atime where --atime is given to create",
}


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
        """Run a program, and return what it and its children took.

        `wait4` is the only call that says so for one child alone.
        """
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

    def list_commits(self) -> Took:
        """List the commits of the last round's store."""
        return self._holdfast("files", "ls")


class HoldfastAgain(Holdfast):
    """The same once more, to see how much two equal ones differ."""

    name = "holdfast_again"


class Library(Contender):
    """The same as `Holdfast`, by a process that runs already: what of it is the work itself.

    A gateway, a Spark driver and a service start once, and a command each time.

    Its CPU is that of this process, and its caches are warm from the last round. That is the
    point: the difference to `Holdfast` is the price of starting Python.
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


class Corpus:
    """A folder of files that can be changed and changed back, and how much it holds.

    It is changed in place: programs skip files by size, time and inode, and in a changed copy all
    inodes are others.
    """

    def __init__(self, folder: Path, corpus_bytes: int, changed_every: int) -> None:
        self.folder = folder / "corpus"
        self._kept = folder / "kept"
        self._changes = 0
        self.files, self.size_bytes = _sample(self.folder, corpus_bytes)
        paths = sorted(path for path in self.folder.rglob("*") if path.is_file())
        chosen = random.Random(_SEED)
        sample = chosen.sample(paths, max(3, 3 * len(paths) // changed_every))
        self._edited, self._doubled, self._removed = (sample[kind::3] for kind in range(3))

    def change(self) -> None:
        """Edit some files in the middle, add some, remove some.

        Edits insert bytes in the middle: everything behind them moves, which is what
        content-defined chunking is for. A program that cuts at fixed offsets would store the rest
        of the file again.
        """
        # Kept for good: a removal between two rounds would be paid for by whoever comes next.
        self._changes += 1
        self._place = self._kept / str(self._changes)
        self._place.mkdir(parents=True)
        for number, path in enumerate((*self._edited, *self._removed)):
            shutil.copy2(path, self._place / str(number))
        for path in self._edited:
            data = path.read_bytes()
            middle = len(data) // 2
            path.write_bytes(data[:middle] + b"changed " + data[middle:])
        for path in self._doubled:
            _double(path).write_bytes(path.read_bytes()[::-1])
        for path in self._removed:
            path.unlink()

    def change_back(self) -> None:
        """Make everything as it was."""
        for number, path in enumerate((*self._edited, *self._removed)):
            shutil.copy2(self._place / str(number), path)
        for path in self._doubled:
            _double(path).unlink(missing_ok=True)


def _double(path: Path) -> Path:
    return path.with_name(path.name + ".new")


def _sample(folder: Path, corpus_bytes: int) -> tuple[int, int]:
    """Copy a sample of the environment; return how many files and bytes it has.

    The hash of its path decides about each file: one package more or less in the environment
    changes little else.
    """
    source = Path(sysconfig.get_paths()["purelib"])
    found = sorted(_files(source))
    total_bytes = sum(size_bytes for _, size_bytes in found)
    share = corpus_bytes / max(1, total_bytes)
    taken = [
        (path, size_bytes)
        for path, size_bytes in found
        if int.from_bytes(blake3(path.encode()).digest(8), "big") / 2**64 < share
    ]
    for path, _ in taken:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / path, target)
    return len(taken), sum(size_bytes for _, size_bytes in taken)


def _files(root: Path) -> list[tuple[str, int]]:
    """Return paths and sizes of all regular files below a folder."""
    found = []
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink():
                found.append((str(path.relative_to(root)), path.stat().st_size))
    return found


FIRST, CHANGED = "first", "changed"


@dataclass(frozen=True)
class Backup:
    """What one contender did in one round."""

    first: Took
    changed: Took
    restored: Took
    stored_bytes: int


def measure_backup(
    folder: Path, scale: StoreScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Store a corpus, then its changed copy, then restore that; each program in turn."""
    progress("corpus: a sample of the installed environment")
    corpus = Corpus(folder, scale.corpus_bytes, scale.changed_every)
    figures.note("corpus_files", corpus.files)
    figures.note("corpus_mb", round(corpus.size_bytes / MB, 1))
    contenders: list[Contender] = [
        Holdfast(folder),
        HoldfastAgain(folder),
        Library(folder),
        *(peer(folder) for peer in PEERS if is_installed(peer)),
    ]
    figures.note("peers_missing", [peer.name for peer in PEERS if not is_installed(peer)])

    def run(contender: Contender) -> Callable[[], Backup]:
        def once() -> Backup:
            progress(f"store, store changed, restore: {contender.name}")
            return _backup(contender, corpus)

        return once

    results = rotated(
        {contender.name: run(contender) for contender in contenders},
        scale.rounds,
        warm_up=scale.rounds > 1,
    )
    _add_figures(figures, results, corpus)
    figures.note("metadata_kept", METADATA_KEPT)
    progress("start: a command that lists the commits of a store")
    _measure_start(figures, contenders[0], scale.rounds)


def _backup(contender: Contender, corpus: Corpus) -> Backup:
    """Run one contender: store, store again after some changes, restore, and compare every byte."""
    # A new repository for each round. Deduplication against the last round's would make every
    # round but the first free.
    contender.begin()
    # Everybody finds the same: the corpus in memory, and nothing left to be written.
    os.sync()
    first = contender.store(corpus.folder, FIRST, None)
    with _changed(corpus):
        os.sync()
        changed = contender.store(corpus.folder, CHANGED, FIRST)
        os.sync()
        restored = contender.restore(CHANGED)
        _compare(corpus.folder, contender.restored)
    return Backup(first, changed, restored, contender.stored_bytes())


@contextlib.contextmanager
def _changed(corpus: Corpus) -> Iterator[None]:
    """Change the corpus for a while: the next contender must find it as it was."""
    corpus.change()
    try:
        yield
    finally:
        corpus.change_back()


def _compare(left: Path, right: Path) -> None:
    """A program that restores something else is no contender."""
    compared = filecmp.dircmp(left, right, ignore=[])
    # Its own comparison stops at size and time, and both are restored.
    _, other, unread = filecmp.cmpfiles(left, right, compared.common_files, shallow=False)
    missing = [*compared.left_only, *compared.right_only, *compared.common_funny]
    differing = [*missing, *other, *unread]
    if differing:
        raise CheckFailed(
            f"what was restored differs: {differing[:3]}", hint="This is a bug; please report it."
        )
    for name in compared.common_dirs:
        _compare(left / name, right / name)


def _add_figures(figures: Figures, results: dict[str, list[Backup]], corpus: Corpus) -> None:
    """Add the figures of all contenders, and ours in relation to each peer's, round by round."""
    mb = corpus.size_bytes / MB
    ours = results["holdfast"]
    figures.add("store_mb_s", [mb / one.first.wall_s for one in ours])
    figures.add("store_changed_s", [one.changed.wall_s for one in ours])
    figures.add("restore_mb_s", [mb / one.restored.wall_s for one in ours])
    _compare_times(figures, "control", results[HoldfastAgain.name], ours)
    for name, backups in results.items():
        if name == HoldfastAgain.name:
            continue
        figures.add(f"{name}_store_s", [one.first.wall_s for one in backups])
        figures.add(f"{name}_store_cpu_s", [one.first.cpu_s for one in backups])
        figures.add(f"{name}_changed_cpu_s", [one.changed.cpu_s for one in backups])
        figures.add(f"{name}_restore_s", [one.restored.wall_s for one in backups])
        figures.add(f"{name}_restore_cpu_s", [one.restored.cpu_s for one in backups])
        figures.add(f"{name}_stored_mb", [one.stored_bytes / MB for one in backups])
        if name in (Holdfast.name, Library.name):
            continue
        _compare_times(figures, f"vs_{name}", backups, ours)
        _compare_times(figures, f"library_vs_{name}", backups, results[Library.name])
        pairs = zip(backups, ours, strict=True)
        figures.add(f"stored_bytes_vs_{name}", [b.stored_bytes / a.stored_bytes for a, b in pairs])


def _compare_times(
    figures: Figures, name: str, theirs: Sequence[Backup], ours: Sequence[Backup]
) -> None:
    pairs = list(zip(theirs, ours, strict=True))
    figures.add(f"{name}_store", [a.first.wall_s / b.first.wall_s for a, b in pairs])
    figures.add(f"{name}_changed", [a.changed.wall_s / b.changed.wall_s for a, b in pairs])
    figures.add(f"{name}_restore", [a.restored.wall_s / b.restored.wall_s for a, b in pairs])
    # CPU beside every wall ratio: a machine that is busy with something else bends it less.
    figures.add(f"{name}_store_cpu", [a.first.cpu_s / b.first.cpu_s for a, b in pairs])
    figures.add(f"{name}_changed_cpu", [a.changed.cpu_s / b.changed.cpu_s for a, b in pairs])
    figures.add(f"{name}_restore_cpu", [a.restored.cpu_s / b.restored.cpu_s for a, b in pairs])


def _measure_start(figures: Figures, contender: Contender, rounds: int) -> None:
    """Measure the CPU of a command that has next to nothing to do."""
    assert isinstance(contender, Holdfast), "BUG: ours come first"
    runs = range(_STARTS * rounds)
    figures.add("startup_cpu_ms", [contender.list_commits().cpu_s * 1000 for _ in runs])
