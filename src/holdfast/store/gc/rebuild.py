"""A lost database, rebuilt from what the objects say.

1. Every chunk's object gets a row. Of several generations of a hash the newest is current; the
   others are garbage, and collected later. Its size is that of the object, as stored.
2. Every commit's object is read and walked; its references are written, and those of its chunks.
3. If part of a commit could not be walked, what nobody refers to is held back from the collector:
   it may be what the missing part led to (`hold_garbage`).
4. Numbers go on far above all that were seen, because the lost database may have given out some
   whose objects are still on their way.

Until the last step the database says that it is being rebuilt: nobody can open it, and no collector
starts on half of the references. An interrupted rebuild is restarted.

Who made commits knows how to walk them: `walk` is given a commit's record and the stored generation
of each chunk, and yields every chunk with its children, and the roots as such.

`set_aside` moves a database out of the way that no longer belongs to the objects: an old copy of
the right one. Nothing in it is changed but a mark, and nothing of it is deleted: on SQLite its file
gets another name, on PostgreSQL its tables do. A rebuild then begins with an empty one.

No process may continue with the old one: what it stores would be unknown to the new one. Before
the file moves, the mark refuses every process that opens it, and SQLite shows whether one still has
it open: it leaves its write-ahead log only if no other connection is. On PostgreSQL the names lead
to the new tables immediately, and these hold none of the old leases.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from holdfast.errors import BadInput, CannotOpen, Damaged, ObjectMissing
from holdfast.seam import Seam
from holdfast.store.gc.commit_rows import (
    COMMIT_PREFIX,
    CommitId,
    insert_row,
    parse_commit_key,
)
from holdfast.store.gc.connections import DatabaseConnection, DatabaseRow
from holdfast.store.gc.database import (
    MAKING_TABLES_LOCK,
    REBUILD_NUMBER_STEP,
    REBUILDING,
    SET_ASIDE,
    Database,
    slices,
)
from holdfast.store.gc.leases import QUARANTINE_JOB, end_lease, release_references
from holdfast.store.gc.points import StorePoint
from holdfast.store.gc.references_sql import (
    COMMIT_KIND,
    Reference,
    ReferenceSource,
    add_references,
    current,
    existing,
    locked_rows,
    of_source,
)
from holdfast.store.gc.settings import GcSettings
from holdfast.store.gc.sweep import pages
from holdfast.store.gc.tables import TABLE_NAMES
from holdfast.store.gc.transitions import BEGIN_REMOVING, CommitState, JobKind
from holdfast.store.objects.objects import CHUNK_PREFIX, ChunkHash, ChunkKey, Objects, StoredObject

# Somebody who is in does not leave within any time that is worth waiting for.
BUSY_TIMEOUT_S = 1.0


def set_aside(database: Database, seam: Seam) -> str:
    """Close a database and move it out of the way; return its new name."""
    moment = datetime.fromtimestamp(seam.clock.wall_ns() / 1e9, UTC)
    suffix = f"old_{moment:%Y%m%dT%H%M%S%fZ}"
    if database.locks_rows:
        name = database.transact(lambda connection: _rename_tables(connection, suffix.lower()))
        database.close()
        return name
    database.close()
    path = database.address.path
    assert path is not None, "BUG: a database without row locks is a file"
    with contextlib.closing(
        sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    ) as alone:
        _lock_out(alone, str(path))
    seam.reached(StorePoint.SETTING_ASIDE)
    target = path.with_name(f"{path.name}.{suffix}")
    seam.disk.rename(path, target, StorePoint.SET_ASIDE)
    seam.disk.sync_dir(path.parent, StorePoint.SET_ASIDE_SYNC)
    return str(target)


def _lock_out(alone: sqlite3.Connection, path: str) -> None:
    """Leave a database in one file that nobody has open, and nobody will open."""
    marked = "UPDATE gc_meta SET number = ? WHERE name = 'rebuilding'"
    try:
        alone.execute(marked, (SET_ASIDE,))
        [mode] = alone.execute("PRAGMA journal_mode=DELETE").fetchone()
    except sqlite3.OperationalError:
        mode = "locked"
    if mode != "delete":
        with contextlib.suppress(sqlite3.OperationalError):
            alone.execute(marked, (0,))
        raise CannotOpen(
            "somebody else has the database of references open",
            hint="stop all commands and services that work with this store, then try again",
            path=path,
        )


def _rename_tables(connection: DatabaseConnection, suffix: str) -> str:
    connection.rows(f"SELECT pg_advisory_xact_lock({MAKING_TABLES_LOCK})")
    asked = (
        "SELECT indexname FROM pg_indexes "
        "WHERE schemaname = current_schema() AND tablename IN :names"
    )
    for index in connection.values(asked, names=TABLE_NAMES):
        connection.change(f'ALTER INDEX "{index}" RENAME TO "{index}_{suffix}"')
    for name in TABLE_NAMES:
        connection.change(f'ALTER TABLE "{name}" RENAME TO "{name}_{suffix}"')
    return f"the tables gc_…_{suffix}"


class WalkedChunk(NamedTuple):
    """A chunk that a commit leads to; a root if the commit itself refers to it."""

    hash: ChunkHash
    children: Sequence[ChunkHash] = ()
    root: bool = False


Resolve = Callable[[Sequence[ChunkHash]], Mapping[ChunkHash, ChunkKey]]
Walk = Callable[[bytes, Resolve], Iterator[WalkedChunk]]


@dataclass
class RebuildReport:
    """What was found."""

    chunks: int = 0
    superseded: int = 0
    """Objects of older generations, now garbage."""
    commits: int = 0
    references: int = 0
    damaged_commits: dict[str, str] = field(default_factory=dict)
    """Commits that lead to what is not there, and what; they are kept, and what they have."""
    unknown_names: int = 0
    set_aside: str = ""
    """The old database that was in the way, under its new name."""
    quarantined: int = 0
    """Chunks that nobody refers to, held because something that leads to others is missing."""


def rebuild(
    database_url: str,
    objects: Objects,
    walk: Walk,
    *,
    settings: GcSettings | None = None,
    store_id: str = "",
    seam: Seam | None = None,
) -> RebuildReport:
    """Fill a database that is empty, or whose rebuild was interrupted.

    One that is older than the objects is set aside before; any other that knows chunks is refused.
    """
    used, name = seam or Seam(), ""
    database = Database(
        database_url, settings=settings or GcSettings(), store_id=store_id, seam=used
    )
    try:
        if _is_old(database, objects):
            name = set_aside(database, used)
            database = Database(
                database_url, settings=database.settings, store_id=store_id, seam=used
            )
        report = _Rebuild(database, objects, used).run(walk)
        report.set_aside = name
        return report
    finally:
        database.close()


def _is_old(database: Database, objects: Objects) -> bool:
    """Whether objects have numbers that a database, which is not empty, never gave out."""
    if database.rebuilding():
        return database.rebuilding() == SET_ASIDE
    last = database.last_number()
    numbers = (
        named[1] if (named := parse_commit_key(stored.key)) else 0
        for stored in objects.list(COMMIT_PREFIX)
    )
    generations = (
        key.generation if (key := ChunkKey.parse(stored.key)) else 0
        for stored in objects.list(CHUNK_PREFIX)
    )
    return last > 0 and any(number > last for number in itertools.chain(numbers, generations))


class _Rebuild:
    """One run."""

    def __init__(self, database: Database, objects: Objects, seam: Seam) -> None:
        self._database = database
        self._objects = objects
        self._seam = seam
        self._report = RebuildReport()
        self._highest = 0
        self._hides_others = False

    def run(self, walk: Walk) -> RebuildReport:
        """Rebuild chunks first, then commits: a commit refers to chunks, which need their rows."""
        self._database.transact(self._begin)
        for part in pages(self._objects.list(CHUNK_PREFIX), self._database.settings.batch_rows):
            self._add_chunks(part)
        self._report.superseded = self._database.transact(self._drop_superseded)
        self._seam.reached(StorePoint.REBUILD_LISTED)
        for stored in self._objects.list(COMMIT_PREFIX):
            self._add_commit(stored, walk)
            self._seam.reached(StorePoint.REBUILD_COMMIT)
        self._database.transact(self._end)
        return self._report

    def _begin(self, connection: DatabaseConnection) -> None:
        """Mark the database, and empty what an interrupted run has left."""
        rebuilding = "SELECT number FROM gc_meta WHERE name = 'rebuilding'"
        knows = connection.row("SELECT 1 FROM gc_chunk LIMIT 1") is not None
        if knows and not connection.value(rebuilding):
            # The guard against the worst mistake: a rebuild begins by deleting every row.
            raise BadInput(
                "the database is not lost: it knows chunks",
                hint="check the store instead; to rebuild all the same, name an empty database",
                path=self._database.url,
            )
        for table in ("gc_edge", "gc_chunk", "gc_commit", "gc_job"):
            connection.change(f"DELETE FROM {table}")
        connection.change(_FORGET_META, name=META_NAME)
        connection.change(_SET_META, name="rebuilding", number=REBUILDING)

    def _end(self, connection: DatabaseConnection) -> None:
        """Let numbers continue far beyond the highest seen; quarantine garbage; clear the mark.

        Numbers may have been given out that no object bears yet, to writers that are still at work.
        """
        beyond = (self._highest // REBUILD_NUMBER_STEP + 1) * REBUILD_NUMBER_STEP
        connection.change(_SET_META, name="last_number", number=beyond)
        if self._hides_others:
            # The last number that was given out is nobody's yet.
            self._report.quarantined = hold_garbage(self._database, connection, beyond)
        connection.change(_SET_META, name="rebuilding", number=0)

    def _add_chunks(self, page: Sequence[StoredObject]) -> None:
        """Insert a row for each object, with the object's size: the plain size is not known."""
        keys = {key: stored for stored in page if (key := ChunkKey.parse(stored.key))}
        self._report.unknown_names += len(page) - len(keys)
        self._highest = max([self._highest, *(key.generation for key in keys)])
        rows = [
            {"hash": key.hash, "generation": key.generation, "size_bytes": stored.size_bytes}
            for key, stored in keys.items()
        ]
        statement = (
            "INSERT INTO gc_chunk "
            "(hash, generation, size_bytes, uploaded, refcount, holds, updated) "
            "VALUES (:hash, :generation, :size_bytes, TRUE, 0, 0, :now)"
        )
        if rows:
            self._database.transact(lambda connection: connection.change_many(statement, rows))
        self._report.chunks += len(rows)

    def _drop_superseded(self, connection: DatabaseConnection) -> int:
        """Let the newest generation of each hash be the current one.

        Objects do not say which generation was current when the database was lost. The newest is
        the safest guess: it was uploaded last, and an older one with the same hash has the same
        bytes. The others become rows that were never uploaded, which is garbage that a collector
        understands.
        """
        return connection.change(
            "UPDATE gc_chunk SET uploaded = FALSE WHERE EXISTS (SELECT 1 FROM gc_chunk AS newer "
            "WHERE newer.hash = gc_chunk.hash AND newer.generation > gc_chunk.generation)"
        )

    def _add_commit(self, stored: StoredObject, walk: Walk) -> None:
        """Insert a commit and all references that it leads to, as far as its index can be read.

        After damage the rest of the commit is still added: what can be reached is kept.
        """
        named = parse_commit_key(stored.key)
        if named is None:
            self._report.unknown_names += 1
            return
        name, number = named
        self._highest = max(self._highest, number)
        try:
            record = self._objects.get(stored.key)
        except Damaged as error:
            # Nobody knows what it led to. Its object stays, as a commit without a row.
            self._report.damaged_commits.setdefault(name, str(error))
            self._hides_others = True
            return
        # Written in batches while walking: a commit may lead to millions of chunks, and the
        # database is marked as being rebuilt, so nobody sees half of it.
        walked: list[WalkedChunk] = []
        try:
            for one in walk(record, self._resolve):
                walked.append(one)
                if len(walked) >= self._database.settings.batch_rows:
                    self._add_edges(name, number, walked)
                    walked = []
        except (ObjectMissing, Damaged) as error:
            self._report.damaged_commits.setdefault(name, str(error))
            self._hides_others = True
        # Also after damage: what was reached before it is in use, and must not become garbage.
        self._add_edges(name, number, walked)
        self._database.transact(partial(self._insert_commit, named=named, record=record))
        self._report.commits += 1

    def _insert_commit(
        self, connection: DatabaseConnection, named: tuple[str, CommitId], record: bytes
    ) -> None:
        name, number = named
        other = connection.value("SELECT max(id) FROM gc_commit WHERE name = :name", name=name)
        # A name that was given anew while the old commit was being deleted: the newer one stays.
        if other is not None:
            retired = "UPDATE gc_commit SET state = 'deleting' WHERE id = :id"
            connection.change(retired, id=min(other, number))
        state = CommitState.PUBLISHED
        if other is not None and other > number:
            state = CommitState.DELETING
        insert_row(connection, number, name, record, state, job_id=0)

    def _add_edges(self, name: str, number: CommitId, walked: Sequence[WalkedChunk]) -> None:
        commit_source = ReferenceSource.numbered(COMMIT_KIND, number)
        if not walked:
            return
        missing, added = self._database.transact(
            partial(self._insert_edges, source=commit_source, walked=walked)
        )
        self._report.references += added
        for hash_ in missing:
            self._report.damaged_commits.setdefault(name, f"chunk {hash_.hex()} is missing")

    def _insert_edges(
        self, connection: DatabaseConnection, source: ReferenceSource, walked: Sequence[WalkedChunk]
    ) -> tuple[list[ChunkHash], int]:
        """Add references to roots and to children; return the chunks that are missing.

        Commits share chunks, so that many references are there already.
        """
        hashes = {one.hash for one in walked} | {c for one in walked for c in one.children}
        rows = locked_rows(self._database, connection, hashes)
        missing = sorted(hash_ for hash_ in hashes if current(rows.get(hash_)) is None)
        keys = {
            hash_: ChunkKey(hash_, generation)
            for hash_ in hashes
            if (generation := current(rows.get(hash_))) is not None
        }
        wanted: dict[ReferenceSource, set[ChunkKey]] = {
            source: {keys[one.hash] for one in walked if one.root and one.hash in keys}
        }
        for one in walked:
            if one.hash in keys and one.children:
                below = {keys[child] for child in one.children if child in keys}
                wanted.setdefault(ReferenceSource.chunk(keys[one.hash]), set()).update(below)
        added = 0
        for origin, targets in wanted.items():
            there = existing(self._database, connection, origin, {key.hash for key in targets})
            new = [Reference(origin, key) for key in sorted(targets - there)]
            add_references(self._database, connection, new)
            added += len(new)
        return missing, added

    def _resolve(self, hashes: Sequence[ChunkHash]) -> Mapping[ChunkHash, ChunkKey]:
        found: dict[ChunkHash, ChunkKey] = {}
        for part in slices(sorted(set(hashes)), self._database.settings.batch_rows):
            rows = self._database.read(partial(_listed, hashes=part))
            found |= {ChunkHash(hash_): ChunkKey(ChunkHash(hash_), g) for hash_, g in rows}
        return found


def _listed(connection: DatabaseConnection, hashes: Sequence[ChunkHash]) -> list[DatabaseRow]:
    asked = "SELECT hash, generation FROM gc_chunk WHERE hash IN :hashes AND uploaded IS TRUE"
    return connection.rows(asked, hashes=hashes)


_SET_META = "UPDATE gc_meta SET number = :number WHERE name = :name"
_FORGET_META = "DELETE FROM gc_meta WHERE name = :name"

LEASE_S = 100 * 365.25 * 86400
# Its row in `gc_meta` has the number of the job.
META_NAME = "quarantine"


def hold_garbage(database: Database, connection: DatabaseConnection, number: int) -> int:
    """Hold everything that a collector would take, by a job of this number; return how much.

    A database that is rebuilt while an index is lost cannot know what that index led to: to the
    collector it is garbage like any other. So the rebuild lets a job of its own, the quarantine,
    hold all that nothing refers to. Its lease does not lapse in our lifetimes; it ends when a
    repair has found that nothing hides what is in use (`holdfast store fsck --repair`): the index
    was brought back, or the commits that needed it were deleted. Writers that store the same chunks
    meanwhile refer to them as to any others.
    """
    connection.change(
        "INSERT INTO gc_job (id, kind, name, created, lease_until) "
        "VALUES (:id, 'job', :name, :now, :now + :lease_s)",
        id=number,
        name=QUARANTINE_JOB,
        lease_s=LEASE_S,
    )
    connection.change(
        "INSERT INTO gc_meta (name, number, words) VALUES (:name, :number, '')",
        name=META_NAME,
        number=number,
    )
    garbage = database.guard(BEGIN_REMOVING)
    connection.change(
        "INSERT INTO gc_edge (source_kind, source_id, source_generation, hash, generation) "
        f"SELECT :kind, :id, :source_generation, hash, generation FROM gc_chunk WHERE {garbage}",
        **of_source(ReferenceSource.numbered(JobKind.JOB.value, number)),
    )
    return connection.change(f"UPDATE gc_chunk SET holds = holds + 1 WHERE {garbage}")


def release_quarantine(database: Database) -> int:
    """Hand over to the collector what is held, if there is a quarantine; return how much it is."""
    asked = "SELECT number FROM gc_meta WHERE name = :name"
    number = database.read(lambda connection: connection.value(asked, name=META_NAME))
    if number is None:
        return 0
    end_lease(database, number)
    released = release_references(
        database, ReferenceSource.numbered(JobKind.JOB.value, number), number
    )
    # Last: whoever dies before begins again, and what is left by then goes in any case.
    database.transact(lambda connection: connection.change(_FORGET_META, name=META_NAME))
    return released
