"""The sweep: objects that no row knows are orphans, left by requests that landed too late.

Why it is safe to delete them. A writer puts an object only under a generation that has a row, and a
generation whose row is gone is never given out again. So an object that was listed, and whose row
is not there *afterwards*, will never have one. The grace on top of that protects what people do by
hand.

One thing would be fatal: to sweep with the wrong database, an empty or an older one, for which
every object is an orphan. Such a database has not given out the numbers in the objects' names yet,
and the sweep refuses at the first of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from holdfast.store.gc.commit_rows import COMMIT_PREFIX, parse_commit_key
from holdfast.store.gc.connections import DatabaseConnection
from holdfast.store.gc.database import Database
from holdfast.store.gc.limits import DeleteRate, Shard
from holdfast.store.objects.objects import ChunkHash, ChunkKey, Objects, StoredObject

UNKNOWN_KEYS_SHOWN = 20


@dataclass
class SweepReport:
    """What a sweep found."""

    objects_seen: int = 0
    orphans_deleted: int = 0
    bytes_deleted: int = 0
    """As stored."""
    orphans_kept: int = 0
    """Too young."""
    unknown_names: list[str] = field(default_factory=list)
    """Names that are not ours, left alone; the first of them."""


class _Named(NamedTuple):
    """An object, and the number in its name."""

    stored: StoredObject
    number: int
    hash: ChunkHash | None


class Sweeper:
    """Looks for orphans, page by page."""

    def __init__(self, database: Database, objects: Objects, rate: DeleteRate) -> None:
        self._database = database
        self._objects = objects
        self._rate = rate

    def sweep(self, shard: Shard) -> SweepReport:
        """List a shard's objects, and delete those without a row that are older than the grace."""
        self._database.check_complete()
        report = SweepReport()
        # One of the shards looks after the commits.
        commits = [COMMIT_PREFIX] if shard.part == 0 else []
        page_size = self._rate.batch(self._database.settings.delete_objects)
        for prefix in [*shard.prefixes(), *commits]:
            for page in pages(self._objects.list(prefix), page_size):
                self._sweep_page(report, page)
        return report

    def _sweep_page(self, report: SweepReport, page: Sequence[StoredObject]) -> None:
        named = list(_named(page, report))
        report.objects_seen += len(page)
        # After the listing: a number in a name was given out before the object was put.
        _check_numbers(self._database, named)
        known = self._database.read(partial(_known, named=named))
        old_enough_s = self._objects.now_s() - self._database.settings.orphan_grace_s
        # Order matters: listed first, looked up second. Looked up first, an object that was
        # reserved and put in between would be listed, found without a row, and saved by nothing
        # but the grace.
        orphans = [one.stored for one in named if one.number not in known]
        old = [stored for stored in orphans if stored.modified_s <= old_enough_s]
        size_bytes = sum(stored.size_bytes for stored in old)
        if old:
            self._rate.wait_for(len(old), size_bytes)
            self._objects.delete_many([stored.key for stored in old])
        report.orphans_kept += len(orphans) - len(old)
        report.orphans_deleted += len(old)
        report.bytes_deleted += size_bytes


def _named(page: Iterable[StoredObject], report: SweepReport) -> Iterator[_Named]:
    for stored in page:
        key = ChunkKey.parse(stored.key)
        named = parse_commit_key(stored.key)
        if key is not None:
            yield _Named(stored, key.generation, key.hash)
        elif named is not None:
            yield _Named(stored, named[1], None)
        elif len(report.unknown_names) < UNKNOWN_KEYS_SHOWN:
            report.unknown_names.append(stored.key)


def _known(connection: DatabaseConnection, named: Sequence[_Named]) -> set[int]:
    """Return the numbers that have a row. A number is given out once, so it says enough."""
    hashes = [one.hash for one in named if one.hash is not None]
    ids = [one.number for one in named if one.hash is None]
    rows = "SELECT generation FROM gc_chunk WHERE hash IN :hashes"
    commits = "SELECT id FROM gc_commit WHERE id IN :ids"
    return {
        *(connection.values(rows, hashes=hashes) if hashes else ()),
        *(connection.values(commits, ids=ids) if ids else ()),
    }


def _check_numbers(database: Database, named: Sequence[_Named]) -> None:
    highest = max(named, key=lambda one: one.number, default=None)
    if highest is not None:
        database.check_given_out(highest.number, highest.stored.key)


def pages(listed: Iterator[StoredObject], size: int) -> Iterator[list[StoredObject]]:
    """Yield a listing in pieces of `size`, the last one smaller."""
    page: list[StoredObject] = []
    for stored in listed:
        page.append(stored)
        if len(page) == size:
            yield page
            page = []
    if page:
        yield page
