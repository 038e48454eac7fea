"""The transactions of a repair. Each looks again, under locks, and does nothing if all is well.

A repair works beside writers and collectors, so it keeps their rules: rows are locked in the same
order, sources before chunks, and every change is followed by a count under the same lock. Counts
are set here and nowhere else; everyone else only steps them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from holdfast.store.filesets.commits import Commit, roots_of
from holdfast.store.fsck.confirm import true_counts
from holdfast.store.gc.commit_rows import CommitId, insert_row
from holdfast.store.gc.connections import DatabaseConnection
from holdfast.store.gc.database import Database, slices
from holdfast.store.gc.references import References
from holdfast.store.gc.references_sql import (
    CHUNK_KIND,
    COMMIT_KIND,
    DELETE_EDGE,
    Generations,
    Reference,
    ReferenceSource,
    current,
    edge_columns,
    existing,
    locked_rows,
    take_step,
)
from holdfast.store.gc.tables import INSERT_EDGE, ONE_CHUNK
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

        def drop(connection: DatabaseConnection) -> None:
            locked_rows(self._database, connection, [target.hash])
            _drop_edge(connection, source, target)
            self._recount(connection, [target.hash])

        self._database.transact(drop)

    def lose(self, key: ChunkKey) -> None:
        """Say that a chunk is not stored, so that whoever has its bytes stores it again.

        What refers to it stays: once it is stored anew, the references can be moved there. Jobs let
        go of it: a job may store what it holds, and this generation is never to be stored again.
        """

        def lose(connection: DatabaseConnection) -> None:
            row = self._locked(connection, key.hash).get(key.generation)
            if row is not None and allows(LOSE, row):
                for source, generation in _sources(connection, key.hash):
                    if source.kind == JobKind.JOB and generation == key.generation:
                        _drop_edge(connection, source, key)
                take_step(self._database, connection, LOSE, {key: 1})

        self._database.transact(lose)

    def move_edges(self, hash_: ChunkHash) -> None:
        """Let references to generations that are gone name the one that is stored."""

        def move(connection: DatabaseConnection) -> None:
            stored = current(self._locked(connection, hash_))
            if stored is None:
                return
            for source, generation in _sources(connection, hash_):
                if source.kind != JobKind.JOB and generation != stored:
                    _drop_edge(connection, source, ChunkKey(hash_, generation))
                    self._add_edges(connection, source, [hash_])

        self._database.transact(move)

    def note_size(self, key: ChunkKey, size_bytes: int) -> None:
        """Say how large the object of a chunk is, which was read and is whole."""
        noted = f"UPDATE gc_chunk SET stored_bytes = :stored_bytes WHERE {ONE_CHUNK}"
        given = {**key._asdict(), "stored_bytes": size_bytes}
        self._database.transact(lambda connection: connection.change(noted, **given))

    def children(self, hash_: ChunkHash) -> list[ChunkHash]:
        """Return what any generation of a chunk refers to."""
        asked = "SELECT hash FROM gc_edge WHERE source_kind = 'chunk' AND source_id = :hash"
        found = self._database.read(lambda connection: connection.values(asked, hash=hash_))
        return sorted({ChunkHash(child) for child in found})

    def restore_commit(self, restored: Commit, record: bytes) -> bool:
        """Give a commit its row back; False if its name is taken, or what it needs is gone."""

        def restore(connection: DatabaseConnection) -> bool:
            # A name that has been given to another commit since is not taken away from it.
            named = (
                "SELECT 1 FROM gc_commit "
                "WHERE id = :id OR (name = :name AND state <> 'deleting') LIMIT 1"
            )
            if connection.row(named, id=restored.id, name=restored.name) is not None:
                return False
            source = ReferenceSource.numbered(COMMIT_KIND, restored.id)
            hashes = list({root.hash for root in roots_of(restored)})
            if not self._add_edges(connection, source, hashes):
                return False
            state = CommitState.PUBLISHED
            insert_row(connection, restored.id, restored.name, record, state, job_id=0)
            return True

        return self._database.transact(restore)

    def replace_record(self, number: CommitId, record: bytes) -> None:
        """Let a commit's row hold what its object does."""
        replaced = "UPDATE gc_commit SET record = :record WHERE id = :id"
        self._database.transact(
            lambda connection: connection.change(replaced, record=record, id=number)
        )

    def _locked(self, connection: DatabaseConnection, hash_: ChunkHash) -> Generations:
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

    def _lock_numbered(
        self, connection: DatabaseConnection, sources: Iterable[ReferenceSource]
    ) -> None:
        """Lock jobs and pins, then commits."""
        numbers: dict[str, set[int]] = {"gc_job": set(), "gc_commit": set()}
        tables = {
            JobKind.JOB.value: "gc_job",
            JobKind.PIN.value: "gc_job",
            COMMIT_KIND: "gc_commit",
        }
        for source in sources:
            if source.kind in tables:
                numbers[tables[source.kind]].add(int.from_bytes(source.id, "big"))
        for table, ids in numbers.items():
            asked = f"SELECT id FROM {table} WHERE id IN :ids ORDER BY id FOR UPDATE"
            if ids:
                connection.rows(asked, ids=sorted(ids))

    def _add_edges(
        self, connection: DatabaseConnection, source: ReferenceSource, hashes: Sequence[ChunkHash]
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
        connection.change_many(INSERT_EDGE, [edge_columns(Reference(source, key)) for key in new])
        self._recount(connection, hashes)
        return True

    def _recount(self, connection: DatabaseConnection, hashes: Sequence[ChunkHash]) -> None:
        """Write the true counts into rows that differ, under the locks that all who count take."""
        rows = locked_rows(self._database, connection, hashes)
        counts = true_counts(connection, hashes)
        changed = []
        for hash_, generations in rows.items():
            for generation, row in generations.items():
                refcount, holds = counts.get(ChunkKey(hash_, generation), (0, 0))
                if (row["refcount"], row["holds"]) != (refcount, holds):
                    named = {"hash": hash_, "generation": generation}
                    changed.append(named | {"refcount": refcount, "holds": holds})
        counted = f"UPDATE gc_chunk SET refcount = :refcount, holds = :holds WHERE {ONE_CHUNK}"
        connection.change_many(counted, changed)


def _drop_edge(connection: DatabaseConnection, source: ReferenceSource, target: ChunkKey) -> None:
    connection.change(DELETE_EDGE, **edge_columns(Reference(source, target)))


def _sources(connection: DatabaseConnection, hash_: ChunkHash) -> set[tuple[ReferenceSource, int]]:
    """Return who refers to or holds any generation of a chunk, and which; not what is dying."""
    dying = (
        "SELECT 1 FROM gc_chunk WHERE gc_chunk.hash = gc_edge.source_id "
        "AND gc_chunk.generation = gc_edge.source_generation AND gc_chunk.removing IS NOT NULL"
    )
    asked = (
        "SELECT source_kind, source_id, source_generation, generation FROM gc_edge "
        f"WHERE hash = :hash AND (source_kind <> 'chunk' OR NOT EXISTS ({dying}))"
    )
    return {
        (ReferenceSource(*source), generation)
        for *source, generation in connection.rows(asked, hash=hash_)
    }
