"""The store of the demo: results of the pipeline as commits, and one that is deleted and collected.

The pipeline commits its windows with every batch, through all kills. When everything is still, the
journals of the play become a commit, too; it is deleted, and the collector takes back exactly what
it had added. Nobody else uses the store then, so the bytes can be compared.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from holdfast.store.filesets import Commits
    from holdfast.store.store import Store

STORE = "store"
COUNTS, JOURNALS = "counts", "journals"
_NEEDED = ("blake3", "pyfastcdc", "sqlalchemy", "xxhash", "zstandard")


@dataclass(frozen=True)
class Kept:
    """What became of the store."""

    # Commits of the pipeline, the last of them, and the events in its windows.
    commits: int
    last: str
    counted: int
    # What the commit that was deleted had added, and what the collector took back.
    added_chunks: int
    added_bytes: int
    reclaimed_chunks: int
    reclaimed_bytes: int

    @property
    def ok(self) -> bool:
        """Whether exactly the bytes of the deleted commit are gone."""
        added = (self.added_chunks, self.added_bytes)
        return added == (self.reclaimed_chunks, self.reclaimed_bytes) and self.added_chunks > 0


def can_keep() -> bool:
    """Whether what a store needs is installed."""
    return all(find_spec(name) is not None for name in _NEEDED)


class Keeping:
    """The store of one performance."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._url = str(directory / STORE)

    def create(self) -> None:
        """Make the store, before the pipeline needs it."""
        from holdfast.store.store import Store

        Store.create(self._url).close()

    def finish(self) -> Kept:
        """Store the journals, delete them, collect; count what the pipeline committed."""
        from holdfast.store.filesets import Commits
        from holdfast.store.gc.collector import Collector
        from holdfast.store.store import Store

        with Store.open(self._url) as store:
            collector, commits = Collector(store.references, store.objects), Commits(store)
            collector.collect()  # what kills have left is nobody's
            before = _held(store)
            self._store_journals(store)
            added = tuple(new - old for new, old in zip(_held(store), before, strict=True))
            commits.delete(JOURNALS)
            report = collector.collect()
            results = commits.list(f"{COUNTS}/")
            last = results[-1].name if results else ""
            return Kept(
                commits=len(results),
                last=last,
                counted=_counted(commits, last) if last else 0,
                added_chunks=added[0],
                added_bytes=added[1],
                reclaimed_chunks=report.objects_deleted,
                reclaimed_bytes=report.bytes_deleted,
            )

    def _store_journals(self, store: Store) -> None:
        from holdfast.store.filesets import Commits, FileSetWriter

        with store.references.open_job("demo") as job, FileSetWriter(store, job) as writer:
            for path in sorted(self._directory.iterdir()):
                if path.is_file():
                    writer.put(path.name, path.read_bytes())
            Commits(store).create(job, JOURNALS, [writer.close()])


def _held(store: Store) -> tuple[int, int]:
    """Return all chunks that the database knows, and their bytes."""
    totals = store.references.statistics().states.values()
    return sum(one.chunks for one in totals), sum(one.size_bytes for one in totals)


def _counted(commits: Commits, name: str) -> int:
    """Return the events in the windows of a commit, by reading it whole."""
    with commits.open(name) as files:
        tables = [
            pq.read_table(io.BytesIO(files.read(file.path)), columns=["events"])
            for file in files.files()
        ]
    return sum(pc.sum(table["events"]).as_py() or 0 for table in tables)


def how_to_read(folder: str, kept: Kept) -> str:
    """Return what to type in order to read the results."""
    store = f"{folder}/{STORE}"
    return (
        f"holdfast files ls {kept.last} --store {store}\n"
        f'spark.read.format("holdfast").option("store", "{store}")'
        f'.option("format", "parquet").load("{kept.last}")'
    )
