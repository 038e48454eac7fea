"""Stores and restores a real corpus, beside restic and borg.

The corpus is a sample of the files of the Python environment that runs this, and a later state of
it. The sample is drawn by the hash of each path, so that it has the environment's own mix of large
and small, text and binary, and is the same in each run on the same environment.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import random
import shutil
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from holdfast.bench.figures import Figures
from holdfast.bench.rounds import interleave
from holdfast.bench.scale import MB, StoreScale
from holdfast.bench.store_peers import PEERS, Contender, Holdfast, Library, Took, is_installed
from holdfast.errors import CheckFailed

_SEED = 7


class Corpus:
    """A folder of files that can be changed and changed back, and how much it holds.

    It is changed in place: programs skip files by size, time and inode, and in a changed copy all
    inodes are others.
    """

    def __init__(self, folder: Path, corpus_bytes: int, changed_every: int) -> None:
        self.folder = folder / "corpus"
        self._kept = folder / "kept"
        self.files, self.size_bytes = _sample(self.folder, corpus_bytes)
        paths = sorted(path for path in self.folder.rglob("*") if path.is_file())
        chosen = random.Random(_SEED)
        sample = chosen.sample(paths, max(3, 3 * len(paths) // changed_every))
        self._edited, self._doubled, self._removed = (sample[kind::3] for kind in range(3))

    def change(self) -> None:
        """Edit some files in the middle, add some, remove some."""
        self._kept.mkdir()
        for number, path in enumerate((*self._edited, *self._removed)):
            shutil.copy2(path, self._kept / str(number))
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
            shutil.copy2(self._kept / str(number), path)
        for path in self._doubled:
            _double(path).unlink(missing_ok=True)
        shutil.rmtree(self._kept)


def _double(path: Path) -> Path:
    return path.with_name(path.name + ".new")


def _sample(folder: Path, corpus_bytes: int) -> tuple[int, int]:
    """Copy a sample of the environment; return how many files and bytes it has."""
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
    contenders = [
        Holdfast(folder),
        Library(folder),
        *(peer(folder) for peer in PEERS if is_installed(peer)),
    ]
    figures.note("peers_missing", [peer.name for peer in PEERS if not is_installed(peer)])

    def run(contender: Contender) -> Callable[[], Backup]:
        def once() -> Backup:
            progress(f"store, store changed, restore: {contender.name}")
            return _backup(contender, corpus)

        return once

    results = interleave(
        {contender.name: run(contender) for contender in contenders},
        scale.rounds,
        warm_up=scale.rounds > 1,
    )
    _tell(figures, results, corpus)


def _backup(contender: Contender, corpus: Corpus) -> Backup:
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
    corpus.change()
    try:
        yield
    finally:
        corpus.change_back()


def _compare(left: Path, right: Path) -> None:
    """A program that restores something else is no contender."""
    compared = filecmp.dircmp(left, right, ignore=[])
    differing = [*compared.left_only, *compared.right_only, *compared.diff_files]
    if differing:
        raise CheckFailed(
            f"what was restored differs: {differing[:3]}", hint="This is a bug; please report it."
        )
    for name in compared.common_dirs:
        _compare(left / name, right / name)


def _tell(figures: Figures, results: dict[str, list[Backup]], corpus: Corpus) -> None:
    mb = corpus.size_bytes / MB
    ours = results["holdfast"]
    figures.add("store_mb_s", [mb / one.first.wall_s for one in ours])
    figures.add("store_changed_s", [one.changed.wall_s for one in ours])
    figures.add("restore_mb_s", [mb / one.restored.wall_s for one in ours])
    for name, backups in results.items():
        figures.add(f"{name}_store_s", [one.first.wall_s for one in backups])
        figures.add(f"{name}_store_cpu_s", [one.first.cpu_s for one in backups])
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
