"""The transactions of a repair. Each looks again, under locks, and does nothing if all is well.

A repair works beside writers and collectors, so it keeps their rules: rows are locked in the same
order, sources before chunks, and every change is followed by a count under the same lock. Counts
are set here and nowhere else; everyone else only steps them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from sqlalchemy import (
    Connection,
    Delete,
    Table,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)

from holdfast.store.filesets.commits import Commit, roots_of
from holdfast.store.fsck.confirm import of_source, true_counts
from holdfast.store.gc.commit_rows import CommitId
from holdfast.store.gc.database import Database, chunk, commit, edge, job, slices
from holdfast.store.gc.references import References
from holdfast.store.gc.references_sql import (
    CHUNK_KIND,
    COMMIT_KIND,
    Generations,
    ReferenceSource,
    current,
    existing,
    locked_rows,
    take_step,
)
from holdfast.store.gc.transitions import LOSE, CommitState, JobKind, allows
from holdfast.store.objects.objects import ChunkHash, ChunkKey


class RepairTransactions:
    """Changes rows and references so that they say what is true."""

    def __init__(self, references: References) -> None:
        self._database: Database = references.database

    def recount(self, hashes: Sequence[ChunkHash]) -> None:
        """Let rows count the references that there are."""
        for part in slices(sorted(set(hashes)), self._database.settings.batch_rows):
            self._database.transact(partial(self._recount, hashes=part))

    def add_edge(self, source: ReferenceSource, hash_: ChunkHash) -> bool:
        """Note that a source refers to a chunk; False if the chunk is not stored."""
        return self._database.transact(partial(self._add_edges, source=source, hashes=[hash_]))

    def drop_edge(self, source: ReferenceSource, target: ChunkKey) -> None:
        """Take away a reference that nobody makes."""

        def drop(connection: Connection) -> None:
            locked_rows(self._database, connection, [target.hash])
            connection.execute(_edge(source, target))
            self._recount(connection, [target.hash])

        self._database.transact(drop)

    def lose(self, key: ChunkKey) -> None:
        """Say that a chunk is not stored, so that whoever has its bytes stores it again.

        What refers to it stays: once it is stored anew, the references can be moved there. Jobs let
        go of it: a job may store what it holds, and this generation is never to be stored again.
        """

        def lose(connection: Connection) -> None:
            row = self._locked(connection, key.hash).get(key.generation)
            if row is not None and allows(LOSE, row):
                for source, generation in _sources(connection, key.hash):
                    if source.kind == JobKind.JOB and generation == key.generation:
                        connection.execute(_edge(source, key))
                take_step(self._database, connection, LOSE, {key: 1})

        self._database.transact(lose)

    def move_edges(self, hash_: ChunkHash) -> None:
        """Let references to generations that are gone name the one that is stored."""

        def move(connection: Connection) -> None:
            stored = current(self._locked(connection, hash_))
            if stored is None:
                return
            for source, generation in _sources(connection, hash_):
                if source.kind != JobKind.JOB and generation != stored:
                    connection.execute(_edge(source, ChunkKey(hash_, generation)))
                    self._add_edges(connection, source, [hash_])

        self._database.transact(move)

    def note_size(self, key: ChunkKey, size_bytes: int) -> None:
        """Say how large the object of a chunk is, which was read and is whole."""
        noted = update(chunk).where(chunk.c.hash == key.hash, chunk.c.generation == key.generation)
        sized = noted.values(stored_bytes=size_bytes)
        self._database.transact(lambda connection: connection.execute(sized))

    def children(self, hash_: ChunkHash) -> list[ChunkHash]:
        """Return what any generation of a chunk refers to."""
        asked = select(edge.c.hash).where(
            edge.c.source_kind == CHUNK_KIND, edge.c.source_id == hash_
        )
        found = self._database.read(lambda connection: connection.execute(asked).scalars().all())
        return sorted({ChunkHash(child) for child in found})

    def restore_commit(self, restored: Commit, record: bytes) -> bool:
        """Give a commit its row back; False if its name is taken, or what it needs is gone."""

        def restore(connection: Connection) -> bool:
            # A name that has been given to another commit since is not taken away from it.
            named = select(func.count()).where(
                (commit.c.id == restored.id)
                | (commit.c.name == restored.name) & (commit.c.state != CommitState.DELETING.value)
            )
            if connection.execute(named).scalar_one():
                return False
            source = ReferenceSource.numbered(COMMIT_KIND, restored.id)
            hashes = list({root.hash for root in roots_of(restored)})
            if not self._add_edges(connection, source, hashes):
                return False
            columns = {"id": restored.id, "name": restored.name, "record": record, "job_id": 0}
            state = {"state": CommitState.PUBLISHED.value, "created": self._database.now}
            connection.execute(insert(commit).values(**columns, **state))
            return True

        return self._database.transact(restore)

    def replace_record(self, number: CommitId, record: bytes) -> None:
        """Let a commit's row hold what its object does."""
        replaced = update(commit).where(commit.c.id == number).values(record=record)
        self._database.transact(lambda connection: connection.execute(replaced))

    def _locked(self, connection: Connection, hash_: ChunkHash) -> Generations:
        """Lock who refers to a chunk, then its rows, in the order that all keep; return the rows.

        Whoever ends a lease, deletes a commit or collects a chunk reads what it refers to before it
        locks that, and must find it so.
        """
        while True:
            sources = _sources(connection, hash_)
            self._lock_numbered(connection, [source for source, _ in sources])
            parents = {ChunkHash(one.id) for one, _ in sources if one.kind == CHUNK_KIND}
            rows = locked_rows(self._database, connection, {hash_, *parents})
            # Somebody may have begun to refer between the question and the locks. Now that the
            # rows are locked nobody can; if there are new ones, they are locked as well, and it is
            # asked again.
            if _sources(connection, hash_) <= sources:
                return rows.get(hash_, {})

    def _lock_numbered(self, connection: Connection, sources: Iterable[ReferenceSource]) -> None:
        """Lock jobs and pins, then commits."""
        numbers: dict[Table, set[int]] = {job: set(), commit: set()}
        tables = {JobKind.JOB.value: job, JobKind.PIN.value: job, COMMIT_KIND: commit}
        for source in sources:
            if source.kind in tables:
                numbers[tables[source.kind]].add(int.from_bytes(source.id, "big"))
        for table, ids in numbers.items():
            asked = select(table.c.id).where(table.c.id.in_(sorted(ids))).order_by(table.c.id)
            connection.execute(asked.with_for_update()).all()

    def _add_edges(
        self, connection: Connection, source: ReferenceSource, hashes: Sequence[ChunkHash]
    ) -> bool:
        """Refer to all of these, or to none if one of them is not stored."""
        rows = locked_rows(self._database, connection, hashes)
        keys = {
            ChunkKey(hash_, generation)
            for hash_ in hashes
            if (generation := current(rows.get(hash_))) is not None
        }
        if len(keys) < len(set(hashes)):
            return False
        new = sorted(keys - existing(self._database, connection, source, set(hashes)))
        columns = dict(
            zip(edge.c.keys(), (source.kind, source.id, source.generation), strict=False)
        )
        if new:
            rows_to_add = [columns | {"hash": h, "generation": g} for h, g in new]
            self._database.execute_many(connection, insert(edge), rows_to_add)
        self._recount(connection, hashes)
        return True

    def _recount(self, connection: Connection, hashes: Sequence[ChunkHash]) -> None:
        """Write the true counts into rows that differ, under the locks that all who count take."""
        rows = locked_rows(self._database, connection, hashes)
        counts = true_counts(connection, hashes)
        changed = []
        for hash_, generations in rows.items():
            for generation, row in generations.items():
                refcount, holds = counts.get(ChunkKey(hash_, generation), (0, 0))
                if (row["refcount"], row["holds"]) != (refcount, holds):
                    named = {"x_hash": hash_, "x_generation": generation}
                    changed.append(named | {"x_refcount": refcount, "x_holds": holds})
        counted = (
            update(chunk)
            .where(chunk.c.hash == bindparam("x_hash"))
            .where(chunk.c.generation == bindparam("x_generation"))
            .values(refcount=bindparam("x_refcount"), holds=bindparam("x_holds"))
        )
        if changed:
            connection.execute(counted, changed)


def _edge(source: ReferenceSource, target: ChunkKey) -> Delete:
    return delete(edge).where(
        *of_source(source), edge.c.hash == target.hash, edge.c.generation == target.generation
    )


def _sources(connection: Connection, hash_: ChunkHash) -> set[tuple[ReferenceSource, int]]:
    """Return who refers to or holds any generation of a chunk, and which; not what is dying."""
    dying = (
        select(chunk.c.hash)
        .where(chunk.c.hash == edge.c.source_id, chunk.c.generation == edge.c.source_generation)
        .where(chunk.c.removing.is_not(None))
        .exists()
    )
    asked = select(edge).where(edge.c.hash == hash_, (edge.c.source_kind != CHUNK_KIND) | ~dying)
    return {
        (ReferenceSource(row.source_kind, row.source_id, row.source_generation), row.generation)
        for row in connection.execute(asked)
    }
