"""Very many files: looking one up, listing all of them, comparing two commits, collecting garbage.

Garbage is a commit that was deleted: index chunks with references, data chunks below them, one
object each. It is collected beside a little live data and beside much more of it.
"""

from __future__ import annotations

import math
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path, PurePath

from holdfast.bench.figures import Figures, interleave
from holdfast.bench.scale import StoreScale
from holdfast.bench.stopwatch import Stopwatch
from holdfast.errors import CheckFailed
from holdfast.seam import Seam
from holdfast.seam.disk import Handle, RealDisk
from holdfast.store.chunks.settings import Chunking, StoreSettings
from holdfast.store.filesets import Commits, FileSet, FileSetWriter
from holdfast.store.gc.collector import Collector
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
    """Commit very many small files, then the same with a few changed, as one layer."""
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
    """Open two commits, of which nothing is in memory then, and compare them.

    Opened inside of the stopwatch: `diff_growth` claims that comparing costs what differs, and an
    index that is in memory already would hide what had to be read.
    """
    with (
        Stopwatch() as watch,
        commits.open(name) as old,
        commits.open(f"{name}-changed") as new,
    ):
        found = sum(1 for _ in old.diff(new))
    if found != differing:
        raise CheckFailed(f"{found} of {differing} files differ", hint="Please report this.")
    return watch.wall_s * 1000


# Chunks as small as they may be: the cost of a chunk is what is measured, not that of its bytes.
_SETTINGS = StoreSettings(
    chunking=Chunking(
        min_bytes=256, average_bytes=1024, max_bytes=4096, small_file_bytes=1, pack_min_bytes=1
    )
)
_FILE_BYTES = 200


class _UnsyncedDisk(RealDisk):
    """A disk for what is not measured: everything is synced in the end, instead of each file."""

    def sync(self, handle: Handle, at: str) -> None:
        pass

    def sync_dir(self, path: PurePath, at: str) -> None:
        pass


def measure_collecting(
    folder: Path, scale: StoreScale, figures: Figures, progress: Callable[[str], None]
) -> None:
    """Collect the same garbage beside little and beside much live data, in turn."""
    garbage, live = scale.garbage_chunks, scale.garbage_chunks * scale.live_factor
    places = {"small": folder / "gc-small", "large": folder / "gc-large"}
    progress(f"collect: {garbage:,} chunks, beside none and beside {live:,}")
    Store.create(str(places["small"]), settings=_SETTINGS).close()
    Store.create(str(places["large"]), settings=_SETTINGS).close()
    _commit(places["large"], "live", live)
    # Names of commits must differ between rounds; the uncounted round takes two as well.
    rounds = iter(range(2 * (scale.rounds + 1)))
    results = interleave(
        {
            name: lambda place=place: _collect(place, garbage, next(rounds))  # type: ignore[misc]
            for name, place in places.items()
        },
        scale.rounds,
    )
    figures.add("gc_chunks_per_s", [chunks / watch.wall_s for chunks, watch in results["small"]])
    figures.add(
        "gc_cpu_us_per_chunk",
        [watch.cpu_s * 1e6 / chunks for chunks, watch in results["small"]],
    )
    pairs = zip(results["small"], results["large"], strict=True)
    ratios = [
        (large.wall_s / large_chunks) / (small.wall_s / small_chunks)
        for (small_chunks, small), (large_chunks, large) in pairs
    ]
    # 0: what lives costs nothing. 1: twice the store, twice the cost of each piece of garbage.
    growth = math.log(1 + scale.live_factor)
    figures.add("gc_cost_ratio", ratios)
    figures.add("gc_cost_slope", [math.log(ratio) / growth for ratio in ratios])
    for place in places.values():
        shutil.rmtree(place)


def _collect(place: Path, garbage: int, round_number: int) -> tuple[int, Stopwatch]:
    """Make garbage, and time nothing but its collection."""
    name = f"garbage-{round_number}"
    _commit(place, name, garbage)
    with Store.open(str(place), settings=_SETTINGS) as store:
        Commits(store).delete(name)
        collector = Collector(store.references, store.objects)
        with Stopwatch() as watch:
            report = collector.collect()
        if report.objects_deleted < garbage:
            raise CheckFailed(
                f"{report.objects_deleted} of at least {garbage} chunks were collected",
                hint="Please report this.",
            )
        return report.objects_deleted, watch


def _commit(place: Path, name: str, chunks: int) -> None:
    """Store so many files that each is a chunk of its own, and have them all on disk.

    One sync of everything in the end instead of one per file: this is preparation, and not
    measured.
    """
    with (
        Store.open(str(place), settings=_SETTINGS, seam=Seam(disk=_UnsyncedDisk())) as store,
        store.references.open_job(name) as job,
    ):
        with FileSetWriter(store, job) as writer:
            for number in range(chunks):
                data = f"{name} {number} ".encode()
                writer.put(f"{name}/{number:08}", data * (_FILE_BYTES // len(data)))
            layer = writer.close()
        Commits(store).create(job, name, [layer])
    os.sync()
