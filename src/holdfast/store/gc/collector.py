"""The collector: ends leases that lapsed, finishes commits, and takes garbage through its states.

    leases that lapsed ─▶ end ─▶ release what they held
    commits left half made ─▶ object, confirm;   half deleted ─▶ object, row
    garbage ─▶ Removing ─▶ Deleting (its own references go with it) ─▶ objects ─▶ rows

Every arrow is a guarded transaction or a request that may be repeated, and nothing is remembered
outside of the database. So recovery is no separate thing: a collector that starts first does what
its predecessor left (rows that are dying), and two collectors that do the same do it safely. Each
batch looks at garbage alone, through indexes that hold nothing else: the cost grows with what goes,
not with what stays. What a chunk referred to becomes garbage in the batch in which the chunk goes,
and is found by the next.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial

from holdfast.errors import DiskFull, UnknownCommit
from holdfast.seam import Seam
from holdfast.store.gc import commit_rows
from holdfast.store.gc.commit_rows import CommitId, CommitRow, commit_object_key
from holdfast.store.gc.connections import DatabaseConnection, DatabaseRow
from holdfast.store.gc.database import Database, slices
from holdfast.store.gc.leases import release_references
from holdfast.store.gc.limits import DeleteRate, Shard
from holdfast.store.gc.plan import GcPlan, make_plan
from holdfast.store.gc.points import StorePoint
from holdfast.store.gc.references import References
from holdfast.store.gc.references_sql import (
    ReferenceSource,
    lock_rows,
    outgoing_edges,
    take_step,
)
from holdfast.store.gc.sweep import Sweeper, SweepReport
from holdfast.store.gc.tables import IS_DYING, IS_UNFINISHED, ONE_CHUNK
from holdfast.store.gc.transitions import (
    BEGIN_DELETING,
    BEGIN_REMOVING,
    FORGET,
    UNREFER,
    CommitState,
    Transition,
)
from holdfast.store.gc.watch import LeaseWatch
from holdfast.store.objects.objects import ChunkHash, ChunkKey, Objects

# Chunks whose references are asked for at once.
OUTGOING_ROWS = 250


@dataclass
class GcReport:
    """What a collection did."""

    leases_expired: int = 0
    leases_lapsed: int = 0
    """Not renewed in time, and not ended yet: a later collection does, if they stay so."""
    leases_released: int = 0
    """Ended ones that are gone now with all that they held, which may have been nothing."""
    holds_released: int = 0
    commits_finished: int = 0
    chunks_removed: int = 0
    """Chunks that became Removing."""
    references_removed: int = 0
    """References of theirs to other chunks."""
    objects_deleted: int = 0
    """Objects whose deletion was asked for; some were never stored."""
    bytes_deleted: int = 0
    """Plain bytes of those that were stored."""
    batches: int = 0

    def add(self, other: GcReport) -> None:
        """Add up two reports."""
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            setattr(self, field.name, mine + theirs)

    @property
    def did_something(self) -> bool:
        """Whether anything was there to do."""
        idle = ("batches", "leases_lapsed")
        return any(getattr(self, field.name) for field in fields(self) if field.name not in idle)


_SELECT_BATCH = "SELECT hash, generation, size_bytes, uploaded FROM gc_chunk"
# Rows of one batch, and how many plain bytes go with each: none if it was never uploaded.
ChunkSizes = dict[ChunkKey, int]


class Collector:
    """Collects one shard of a store. Several may run at once, also on the same shard."""

    def __init__(
        self,
        references: References,
        objects: Objects,
        *,
        shard: Shard | None = None,
        name: str = "collector",
        seam: Seam | None = None,
    ) -> None:
        self.shard = shard or Shard()
        self.name = f"{name} {self.shard}"
        self._references = references
        self._database: Database = references.database
        self._settings = references.settings
        self._objects = objects
        self._seam = seam or references.seam
        self._watch = LeaseWatch(self._database, self._seam.clock)
        self._stop = threading.Event()
        self._rate = DeleteRate(
            self._settings.objects_per_s,
            self._settings.bytes_per_s,
            self._seam.clock,
            self.wait,
        )

    # What operators call.

    def plan(self) -> GcPlan:
        """Return what a collection would do now, and why; nothing is changed."""
        return make_plan(self._database, self.shard, self._seam.clock)

    def collect(self) -> GcReport:
        """Do all that there is to do; end when nothing is left, or when stopped."""
        started_s = self._seam.clock.monotonic_s()
        report = GcReport()
        while not self._stop.is_set():
            done = self.collect_some()
            report.add(done)
            # Not a sum: the same lease is seen as lapsed by every batch until it is renewed or
            # ended.
            report.leases_lapsed = done.leases_lapsed
            if not done.did_something:
                break
        self._remember(report, self._seam.clock.monotonic_s() - started_s)
        if self._database.reserve is not None:
            self._database.reserve.restore()
        return report

    def collect_some(self) -> GcReport:
        """Do one batch of everything."""
        report = GcReport(batches=1)
        self._expire_leases(report)
        self._finish_commits(report)
        # What others, or this one before it died, have begun comes first.
        self._delete(self._find_deleting(), report)
        self._delete(self._begin_deleting(report), report)
        # The order within a batch is back to front on purpose: finish what is Deleting, advance
        # what is Removing, and only then mark more. A collector that is killed again and again
        # still empties the last states, instead of piling up rows in the first.
        removing = self._database.transact(self._mark_removing)
        if removing:
            report.chunks_removed += len(removing)
            self._seam.reached(StorePoint.REMOVING)
            self._delete(self._begin_deleting(report), report)
        return report

    def sweep(self) -> SweepReport:
        """Delete objects that no row knows, and that are older than the grace."""
        report = Sweeper(self._database, self._objects, self._rate).sweep(self.shard)
        self._seam.reached(StorePoint.SWEPT)
        return report

    def stop(self) -> None:
        """End `collect` after its batch."""
        self._stop.set()

    def wait(self, wait_s: float) -> None:
        """Wait, but not when stopped."""
        self._stop.wait(wait_s)

    def consider(self, hashes: Sequence[ChunkHash]) -> int:
        """Mark those of these chunks that are garbage, for the next batch; return how many."""
        marked = 0
        for part in slices(sorted(set(hashes)), self._settings.batch_rows):
            marked += len(self._database.transact(partial(self._mark_removing, hashes=part)))
        return marked

    # Leases.

    def _expire_leases(self, report: GcReport) -> None:
        """End leases that are over, and release what ended ones hold.

        Two steps, because a holder or another collector may end a lease and die before releasing
        it.
        """
        expired, report.leases_lapsed = self._watch.end_those_over()
        report.leases_expired += expired
        if expired:
            self._seam.reached(StorePoint.LEASES_EXPIRED)
        for kind, number in self._database.read(self._ended):
            source = ReferenceSource.numbered(kind, number)
            report.holds_released += release_references(self._database, source, number)
            report.leases_released += 1
            self._seam.reached(StorePoint.LEASE_RELEASED)

    def _ended(self, connection: DatabaseConnection) -> list[tuple[str, int]]:
        asked = "SELECT kind, id FROM gc_job WHERE ended IS NOT NULL ORDER BY id LIMIT :rows"
        rows = connection.rows(asked, rows=self._settings.batch_rows)
        return [(kind, number) for kind, number in rows]

    # Commits.

    def _finish_commits(self, report: GcReport) -> None:
        """Complete commits that were left half made, and deletions that were left half done.

        Forwards in both cases: a commit that has its row refers to its chunks already, and one that
        is being deleted is not found any more.
        """
        for row in self._database.read(self._unfinished):
            key = commit_object_key(row.name, row.id)
            if row.state == CommitState.PUBLISHING:
                try:
                    # Whoever was first wrote the same bytes.
                    self._objects.put_many([(key, [row.record])])
                except DiskFull:
                    # The commit's chunks are safe without its object, since the row refers to
                    # them.
                    continue  # first of all the disk is to be freed
                self._seam.reached(StorePoint.COMMIT_PUT)
                self._confirm(row.id)
            else:
                self._objects.delete_many([key])
                self._seam.reached(StorePoint.COMMIT_OBJECT_DELETED)
                self._references.end_delete_commit(row.id)
            report.commits_finished += 1

    def _unfinished(self, connection: DatabaseConnection) -> list[CommitRow]:
        """Return commits that are being deleted, or whose publisher's lease is over."""
        publisher = "SELECT id FROM gc_job WHERE gc_job.id = gc_commit.job_id AND ended IS NULL"
        asked = (
            f"{commit_rows.SELECT_COMMITS} WHERE {IS_UNFINISHED} AND (state = 'deleting' OR "
            f"(state = 'publishing' AND NOT EXISTS ({publisher}))) ORDER BY id LIMIT :rows"
        )
        found = connection.rows(asked, rows=self._settings.batch_rows)
        return [commit_rows.to_row(row) for row in found]

    def _confirm(self, number: CommitId) -> None:
        # Gone, if another collector was quicker and the commit was deleted since; then the object
        # that was put too late is an orphan, for the sweep.
        with contextlib.suppress(UnknownCommit):
            self._references.confirm_commit(number)

    # Chunks.

    def _find_deleting(self) -> ChunkSizes:
        """Return chunks that are Deleting already: their collector died, or is at work."""
        asked = (
            f"{_SELECT_BATCH} WHERE {self._database.guard(FORGET)} AND {IS_DYING} "
            f"AND {self.shard.condition} ORDER BY hash, generation LIMIT :rows"
        )
        given = {**self.shard.bounds(), "rows": self._settings.batch_rows}
        return _sizes(self._database.read(lambda connection: connection.rows(asked, **given)))

    def _mark_removing(
        self, connection: DatabaseConnection, hashes: Sequence[ChunkHash] | None = None
    ) -> ChunkSizes:
        """Mark garbage as Removing: from now on no writer can refer to it."""
        # Half of the references of a rebuild would make garbage of all that the others need.
        self._database.keep_complete(connection)
        found = self._lock_some(connection, BEGIN_REMOVING, hashes)
        take_step(self._database, connection, BEGIN_REMOVING, dict.fromkeys(found, 1))
        return found

    def _begin_deleting(self, report: GcReport) -> ChunkSizes:
        """Take a batch from Removing to Deleting; return what is to be deleted."""
        batch, references = self._database.transact(self._mark_deleting)
        report.references_removed += references
        if batch:
            self._seam.reached(StorePoint.DELETING)
        return batch

    def _mark_deleting(self, connection: DatabaseConnection) -> tuple[ChunkSizes, int]:
        """Let rows that are Removing let go what they refer to; what that frees is garbage next.

        Edges go in the same transaction as the state: a crash between the two would either leave
        references of a chunk that is gone, or free children of one that is still there.
        """
        found = self._lock_some(connection, BEGIN_DELETING)
        targets: Counter[ChunkKey] = Counter()
        batch: ChunkSizes = {}
        for key, outgoing in self._outgoing(connection, list(found)).items():
            # An index chunk refers to thousands of others, a data chunk to none. Counting rows
            # alone would make transactions of any size; the first chunk is always taken, however
            # many references it has.
            if targets and targets.total() + len(outgoing) > self._settings.batch_edges:
                break  # the rest waits for the next transaction
            targets.update(outgoing)
            batch[key] = found[key]
        # Dying rows were locked first (`_lock_some`), the targets, which live, are locked now: the
        # order that database.py prescribes.
        self._drop_edges(connection, list(batch))
        lock_rows(self._database, connection, [key.hash for key in targets])
        take_step(self._database, connection, UNREFER, targets)
        take_step(self._database, connection, BEGIN_DELETING, dict.fromkeys(batch, 1))
        return batch, targets.total()

    def _outgoing(
        self, connection: DatabaseConnection, keys: Sequence[ChunkKey]
    ) -> dict[ChunkKey, list[ChunkKey]]:
        """Return what each of these chunks refers to, until there is enough for a transaction."""
        found: dict[ChunkKey, list[ChunkKey]] = {}
        total = 0
        for part in slices(keys, OUTGOING_ROWS):
            by_key: dict[ChunkKey, list[ChunkKey]] = {key: [] for key in part}
            for hash_, generation, *target in outgoing_edges(connection, part):
                # Another generation of the same chunk may be in use.
                by_key.get(ChunkKey(hash_, generation), []).append(ChunkKey(*target))
            found |= by_key
            total += sum(len(targets) for targets in by_key.values())
            if total > self._settings.batch_edges:
                break
        return found

    def _drop_edges(self, connection: DatabaseConnection, keys: Sequence[ChunkKey]) -> None:
        """Remove the references of chunks that are about to be deleted."""
        named = (
            "DELETE FROM gc_edge WHERE source_kind = 'chunk' AND source_id = :hash "
            "AND source_generation = :generation"
        )
        connection.change_many(named, [key._asdict() for key in keys])

    def _lock_some(
        self,
        connection: DatabaseConnection,
        step: Transition,
        hashes: Sequence[ChunkHash] | None = None,
    ) -> ChunkSizes:
        """Find and lock rows that may take a step."""
        # What another collector has locked, it is taking care of.
        asked = f"{_SELECT_BATCH} WHERE {self._database.guard(step)} AND "
        end = " FOR UPDATE SKIP LOCKED"
        if hashes is not None:
            named = f"{asked}hash IN :hashes ORDER BY hash, generation{end}"
            return _sizes(connection.rows(named, hashes=hashes))
        some = f"{asked}{self.shard.condition} ORDER BY hash, generation LIMIT :rows{end}"
        limit = self._settings.batch_rows
        return _sizes(connection.rows(some, **self.shard.bounds(), rows=limit))

    def _delete(self, batch: ChunkSizes, report: GcReport) -> None:
        """Delete objects, then forget their rows, no faster than the rate allows.

        In this order: a row without an object is found again and deleted twice, harmlessly; an
        object without a row would wait for a sweep.
        """
        for part in slices(list(batch), self._rate.batch(self._settings.delete_objects)):
            size_bytes = sum(batch[key] for key in part)
            self._rate.wait_for(len(part), size_bytes)
            if self._stop.is_set():
                return  # they are Deleting, and found again
            self._objects.delete_many([key.object_key() for key in part])
            self._seam.reached(StorePoint.OBJECTS_DELETED)
            self._database.transact(partial(self._forget, keys=part))
            self._seam.reached(StorePoint.FORGOTTEN)
            report.objects_deleted += len(part)
            report.bytes_deleted += size_bytes

    def _forget(self, connection: DatabaseConnection, keys: Sequence[ChunkKey]) -> None:
        # Some may be gone: another collector did the same.
        statement = self._database.step(FORGET, ONE_CHUNK)
        connection.change_many(statement, [key._asdict() for key in sorted(keys)])

    def _remember(self, report: GcReport, busy_s: float) -> None:
        """Add a report to what this collector has done so far."""
        done = {
            "name": self.name,
            "chunks": report.objects_deleted,
            "size_bytes": report.bytes_deleted,
            "busy_s": busy_s,
        }

        def remember(connection: DatabaseConnection) -> None:
            if not connection.change(_GROW_TOTALS, **done):
                connection.change(_INSERT_TOTALS, **done)

        self._database.transact(remember)


_GROW_TOTALS = (
    "UPDATE gc_collector SET chunks = chunks + :chunks, size_bytes = size_bytes + :size_bytes, "
    "busy_s = busy_s + :busy_s, updated = :now WHERE name = :name"
)
_INSERT_TOTALS = (
    "INSERT INTO gc_collector (name, started, updated, chunks, size_bytes, busy_s) "
    "VALUES (:name, :now, :now, :chunks, :size_bytes, :busy_s)"
)


def _sizes(rows: Sequence[DatabaseRow]) -> ChunkSizes:
    return {
        ChunkKey(hash_, generation): size_bytes if uploaded else 0
        for hash_, generation, size_bytes, uploaded in rows
    }
