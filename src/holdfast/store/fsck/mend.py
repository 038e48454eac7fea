"""The transactions of a repair. Each looks again, under locks, and does nothing if all is well."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sqlalchemy import Connection, Delete, bindparam, delete, func, insert, select, update

from holdfast.store.address import ChunkHash, ChunkKey
from holdfast.store.filesets.commits import Commit
from holdfast.store.filesets.reachable import roots_of
from holdfast.store.fsck.confirm import of_source, true_counts
from holdfast.store.gc.commits import CommitId
from holdfast.store.gc.database import Database, chunk, commit, edge, slices
from holdfast.store.gc.edges import COMMIT_KIND, EdgeSource, current, existing, locked_rows
from holdfast.store.gc.references import References
from holdfast.store.gc.transitions import CommitState, JobKind


class Mender:
    """Changes rows and references so that they say what is true."""

    def __init__(self, references: References) -> None:
        self._database: Database = references.database

    def recount(self, hashes: Sequence[ChunkHash]) -> None:
        """Let rows count the references that there are."""
        for part in slices(sorted(set(hashes)), self._database.settings.batch_rows):
            self._database.transact(partial(self._recount, hashes=part))

    def add_edge(self, source: EdgeSource, hash_: ChunkHash) -> bool:
        """Note that a source refers to a chunk; False if the chunk is not stored."""
        return self._database.transact(partial(self._add_edges, source=source, hashes=[hash_]))

    def drop_edge(self, source: EdgeSource, target: ChunkKey) -> None:
        """Take away a reference that nobody makes."""

        def drop(connection: Connection) -> None:
            locked_rows(self._database, connection, [target.hash])
            connection.execute(_edge(source, target))
            self._recount(connection, [target.hash])

        self._database.transact(drop)

    def move_edge(self, source: EdgeSource, target: ChunkKey) -> None:
        """Let a reference to a generation that is gone name the one that is stored."""

        def move(connection: Connection) -> None:
            rows = locked_rows(self._database, connection, [target.hash])
            if current(rows.get(target.hash)) not in (None, target.generation):
                connection.execute(_edge(source, target))
                self._add_edges(connection, source, [target.hash])

        self._database.transact(move)

    def adopt(self, key: ChunkKey, size_bytes: int) -> bool:
        """Give a stored object its row back; False if it has one, or another is current.

        What refers to other generations, none of which is current, refers to this one from now on.
        """

        def insert_row(connection: Connection) -> bool:
            rows = locked_rows(self._database, connection, [key.hash])
            if current(rows.get(key.hash)) is not None or _exists(connection, key):
                return False
            columns = {"hash": key.hash, "generation": key.generation, "size_bytes": size_bytes}
            counts = {"uploaded": True, "refcount": 0, "holds": 0}
            row = insert(chunk).values(**columns, **counts, updated=self._database.now)
            connection.execute(row)
            for source, generation in _sources(connection, key.hash):
                connection.execute(_edge(source, ChunkKey(key.hash, generation)))
                self._add_edges(connection, source, [key.hash])
            self._recount(connection, [key.hash])
            return True

        return self._database.transact(insert_row)

    def lose(self, key: ChunkKey) -> None:
        """Say that a chunk is not stored, so that whoever has its bytes stores it again.

        What refers to it stays: once it is stored anew, the references can be moved there.
        """
        lost = (
            update(chunk)
            .where(chunk.c.hash == key.hash, chunk.c.generation == key.generation)
            .where(chunk.c.removing.is_(None))
            .values(uploaded=False, updated=self._database.now)
        )
        self._database.transact(lambda connection: connection.execute(lost))

    def restore_commit(self, restored: Commit, record: bytes) -> bool:
        """Give a commit its row back; False if its name is taken, or what it needs is gone."""

        def restore(connection: Connection) -> bool:
            named = select(func.count()).where(
                (commit.c.id == restored.id)
                | (commit.c.name == restored.name) & (commit.c.state != CommitState.DELETING.value)
            )
            if connection.execute(named).scalar_one():
                return False
            source = EdgeSource.numbered(COMMIT_KIND, restored.id)
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

    def _add_edges(
        self, connection: Connection, source: EdgeSource, hashes: Sequence[ChunkHash]
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


def _edge(source: EdgeSource, target: ChunkKey) -> Delete:
    return delete(edge).where(
        *of_source(source), edge.c.hash == target.hash, edge.c.generation == target.generation
    )


def _sources(connection: Connection, hash_: ChunkHash) -> list[tuple[EdgeSource, int]]:
    """Return who refers to any generation of a chunk, and to which."""
    asked = select(edge).where(edge.c.hash == hash_, edge.c.source_kind != JobKind.JOB.value)
    return [
        (EdgeSource(row.source_kind, row.source_id, row.source_generation), row.generation)
        for row in connection.execute(asked)
    ]


def _exists(connection: Connection, key: ChunkKey) -> bool:
    asked = select(chunk.c.hash).where(
        chunk.c.hash == key.hash, chunk.c.generation == key.generation
    )
    return connection.execute(asked).first() is not None
