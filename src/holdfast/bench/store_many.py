"""Very many files: looking one up, listing all of them, comparing two commits."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from holdfast.bench.figures import Figures
from holdfast.bench.rounds import interleave
from holdfast.bench.scale import StoreScale
from holdfast.bench.stopwatch import Stopwatch
from holdfast.errors import CheckFailed
from holdfast.store.filesets import Commits, FileSet, FileSetWriter
from holdfast.store.store import Store

_FOLDERS = 1000
_LOOKUPS = 200
_SEED = 11


def path_of(number: int) -> str:
    """Return the path of one of the files."""
    return f"data/{number % _FOLDERS:03}/part-{number:08}.json"


def measure_many(
    folder: Path, scale: StoreScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Fill a store with two large file sets and their successors, and read them in turn."""
    with Store.create(str(folder / "many")) as store:
        commits = Commits(store)
        for name, files in (("many", scale.many_files), ("fewer", scale.fewer_files)):
            progress(f"{name}: {files:,} files")
            with Stopwatch() as watch:
                _fill(store, name, files, scale.differing_files)
            figures.note(f"{name}_files", files)
            figures.note(f"{name}_write_entries_per_s", round(files / watch.wall_s))
        with commits.open("many") as many:
            progress("look up, list, compare")
            results = interleave(
                {
                    "lookup": lambda: _lookup_ms(many, scale.many_files),
                    "list": lambda: _list_per_s(many, scale.many_files),
                    "diff_many": lambda: _diff_ms(commits, "many", scale.differing_files),
                    "diff_fewer": lambda: _diff_ms(commits, "fewer", scale.differing_files),
                },
                scale.rounds,
            )
    figures.add("lookup_ms", results["lookup"])
    figures.add("list_entries_per_s", results["list"])
    figures.add("diff_ms", results["diff_many"])
    figures.add("diff_fewer_ms", results["diff_fewer"])
    pairs = zip(results["diff_many"], results["diff_fewer"], strict=True)
    figures.add("diff_growth", [many_ms / fewer_ms for many_ms, fewer_ms in pairs])


def _fill(store: Store, name: str, files: int, differing: int) -> None:
    commits = Commits(store)
    with store.references.open_job(f"fill {name}") as job:
        with FileSetWriter(store, job) as writer:
            for number in range(files):
                # There is nothing to overwrite, so this says it as a snapshot of a folder does.
                writer.append(path_of(number), b'{"number": %d}\n' % number)
            layer = writer.close()
        commits.create(job, name, [layer])
        chosen = random.Random(_SEED).sample(range(files), differing)
        with FileSetWriter(store, job) as writer:
            for number in chosen:
                writer.put(path_of(number), b'{"number": %d, "changed": true}\n' % number)
            changes = writer.close()
        commits.create(job, f"{name}-both", [layer, changes], parent=name)
        # One layer, as a compacted commit or the next snapshot of a folder is.
        commits.compact(job, f"{name}-both", f"{name}-changed", whole=True)


def _lookup_ms(files: FileSet, count: int) -> float:
    chosen = random.Random(_SEED)
    with Stopwatch() as watch:
        for _ in range(_LOOKUPS):
            files.stat(path_of(chosen.randrange(count)))
    return watch.wall_s * 1000 / _LOOKUPS


def _list_per_s(files: FileSet, count: int) -> float:
    with Stopwatch() as watch:
        found = sum(1 for _ in files.files())
    if found != count:
        raise CheckFailed(f"{found} of {count} files were listed", hint="Please report this.")
    return found / watch.wall_s


def _diff_ms(commits: Commits, name: str, differing: int) -> float:
    """Open two commits, of which nothing is in memory then, and compare them."""
    with (
        Stopwatch() as watch,
        commits.open(name) as old,
        commits.open(f"{name}-changed") as new,
    ):
        found = sum(1 for _ in old.diff(new))
    if found != differing:
        raise CheckFailed(f"{found} of {differing} files differ", hint="Please report this.")
    return watch.wall_s * 1000
