"""Stores and restores a real corpus, beside restic and borg."""

from __future__ import annotations

import contextlib
import filecmp
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.bench.figures import Figures
from holdfast.bench.rounds import interleave
from holdfast.bench.store_corpus import Corpus
from holdfast.bench.store_peers import PEERS, Contender, Holdfast, Library, Took, is_installed
from holdfast.bench.store_scale import MB, StoreScale
from holdfast.errors import CheckFailed

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
