"""What all transactions on references share: rows under lock, edges, and the counts they keep.

An edge says that a source refers to a chunk, or, if the source is a job, that it holds it. Counts
are never set, only stepped by the number of edges that really came or went, in the transaction in
which they did. So `refcount` is the number of edges at every moment, and repeating a call that
already happened finds its edges there, or gone, and counts nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.store.gc.connections import DatabaseConnection, DatabaseRow
from holdfast.store.gc.database import Database, slices
from holdfast.store.gc.tables import CHUNK_COLUMNS, INSERT_EDGE, OF_SOURCE, ONE_CHUNK
from holdfast.store.gc.transitions import (
    HOLD,
    MARK_UPLOADED,
    NEW_CHUNK,
    REFER,
    RELEASE,
    UNREFER,
    JobKind,
    Transition,
)
from holdfast.store.objects.objects import ChunkHash, ChunkKey

CHUNK_KIND = "chunk"
COMMIT_KIND = "commit"
# Kinds that `update_references` leaves alone: their edges come and go with what they name.
OWN_KINDS = frozenset({CHUNK_KIND, COMMIT_KIND, JobKind.JOB.value, JobKind.PIN.value})

_LOCKED = (
    "FROM gc_chunk WHERE hash IN :hashes AND removing IS NULL ORDER BY hash, generation FOR UPDATE"
)
_LOCKED_ROWS = f"SELECT {', '.join(CHUNK_COLUMNS)} {_LOCKED}"
_INSERT_CHUNK = (
    "INSERT INTO gc_chunk "
    "(hash, generation, size_bytes, uploaded, refcount, holds, updated, removing, deleting) VALUES "
    "(:hash, :generation, :size_bytes, :uploaded, :refcount, :holds, :now, :removing, :deleting)"
)
DELETE_EDGE = (
    "DELETE FROM gc_edge WHERE source_kind = :source_kind AND source_id = :source_id "
    "AND source_generation = :source_generation AND hash = :hash AND generation = :generation"
)

# Rows of one hash that are not dying, by generation.
Generations = dict[int, dict[str, Any]]


class ReferenceSource(NamedTuple):
    """Who refers: a chunk (by its key), a commit, a job, a pin, or what a user names."""

    kind: str
    id: bytes
    generation: int = 0

    @classmethod
    def chunk(cls, key: ChunkKey) -> ReferenceSource:
        """Return a chunk as a source."""
        return cls(CHUNK_KIND, key.hash, key.generation)

    @classmethod
    def numbered(cls, kind: str, number: int) -> ReferenceSource:
        """Return a job, pin or commit as a source."""
        return cls(kind, number.to_bytes(8, "big"))


class Reference(NamedTuple):
    """One reference, to one generation."""

    source: ReferenceSource
    target: ChunkKey


def locked_rows(
    database: Database, connection: DatabaseConnection, hashes: Iterable[ChunkHash]
) -> dict[ChunkHash, Generations]:
    """Lock all rows of these hashes that are not dying, in order, and return them.

    A statement that waits for a lock does not see rows that came meanwhile: another generation may
    have been reserved and uploaded, beside the one whose lock was waited for. So it looks again,
    until there are none that it had not locked.
    """
    wanted = sorted(set(hashes))
    found = _locked_once(database, connection, wanted)
    # On SQLite the transaction holds the whole database, and one look sees everything.
    while database.locks_rows:
        before, found = found, _locked_once(database, connection, wanted)
        if all(found[hash_].keys() <= before.get(hash_, {}).keys() for hash_ in found):
            break
    return found


def _locked_once(
    database: Database, connection: DatabaseConnection, hashes: Sequence[ChunkHash]
) -> dict[ChunkHash, Generations]:
    """Lock and return the rows of these hashes, in their order: others lock in the same one."""
    found: dict[ChunkHash, Generations] = {}
    for part in slices(hashes, database.settings.batch_rows):
        for row in connection.rows(_LOCKED_ROWS, hashes=part):
            found.setdefault(ChunkHash(row[0]), {})[row[1]] = dict(
                zip(CHUNK_COLUMNS, row, strict=True)
            )
    return found


def lock_rows(
    database: Database, connection: DatabaseConnection, hashes: Iterable[ChunkHash]
) -> None:
    """Lock what `locked_rows` does, and look at nothing: the rows are known to be there."""
    if database.locks_rows:
        for part in slices(sorted(set(hashes)), database.settings.batch_rows):
            connection.rows(f"SELECT generation {_LOCKED}", hashes=part)


def current(generations: Generations | None) -> int | None:
    """Return the generation of a hash that is uploaded and not dying, if there is one.

    At most one: `_mark` lets the first writer win, and a dying row is not in `generations`.
    """
    for generation, row in (generations or {}).items():
        if row["uploaded"]:
            return generation
    return None


def existing(
    database: Database,
    connection: DatabaseConnection,
    source: ReferenceSource,
    hashes: Collection[ChunkHash],
) -> set[ChunkKey]:
    """Return which chunks among `hashes` a source refers to."""
    found = set()
    for part in slices(sorted(hashes), database.settings.batch_rows):
        asked = f"SELECT hash, generation FROM gc_edge WHERE {OF_SOURCE} AND hash IN :hashes"
        found |= {
            ChunkKey(ChunkHash(hash_), generation)
            for hash_, generation in connection.rows(asked, **of_source(source), hashes=part)
        }
    return found


def add_references(
    database: Database, connection: DatabaseConnection, edges: Sequence[Reference]
) -> None:
    """Add edges that do not exist, to rows that are locked, and count them."""
    if edges:
        connection.change_many(INSERT_EDGE, [edge_columns(one) for one in edges])
        _count(database, connection, edges, HOLD, REFER)


def insert_held(
    database: Database,
    connection: DatabaseConnection,
    source: ReferenceSource,
    sizes: Mapping[ChunkKey, int],
) -> None:
    """Add rows of new generations, each held by the job that will upload it."""
    if not sizes:
        return
    rows = [
        {"hash": key.hash, "generation": key.generation, "size_bytes": size, **NEW_CHUNK}
        for key, size in sizes.items()
    ]
    connection.change_many(_INSERT_CHUNK, rows)
    connection.change_many(INSERT_EDGE, [edge_columns(Reference(source, key)) for key in sizes])


def remove_references(
    database: Database, connection: DatabaseConnection, edges: Sequence[Reference]
) -> None:
    """Remove edges that exist, to rows that are locked, and count them."""
    if edges:
        gone = connection.change_many(DELETE_EDGE, [edge_columns(one) for one in edges])
        assert gone == len(edges), f"BUG: {len(edges)} edges were to go, {gone} went"
        _count(database, connection, edges, RELEASE, UNREFER)


def take_step(
    database: Database,
    connection: DatabaseConnection,
    step: Transition,
    keys: Mapping[ChunkKey, int],
) -> None:
    """Let every row take a step so many times; each must be allowed to."""
    repeated = any(how == "add" for _, how, _ in step.effect)
    given = {key: {"times": times} if repeated else {} for key, times in keys.items()}
    _step_each(connection, step, database.step(step, ONE_CHUNK, times=repeated), given)


def mark_rows(
    database: Database,
    connection: DatabaseConnection,
    stored_bytes: Mapping[ChunkKey, int | None],
) -> None:
    """Let rows say that their objects are stored, and how large these are, where that is known."""
    sized = database.step(MARK_UPLOADED, ONE_CHUNK, also="stored_bytes = :stored_bytes")
    given = {key: {"stored_bytes": size} for key, size in stored_bytes.items()}
    _step_each(connection, MARK_UPLOADED, sized, given)


def _step_each(
    connection: DatabaseConnection,
    step: Transition,
    statement: str,
    values: Mapping[ChunkKey, Mapping[str, Any]],
) -> None:
    """Run the guarded statement of a step for each row; all of them must have changed.

    The caller holds the locks and has looked at the rows. A row that does not change means that the
    counts are wrong, and the transaction must not be committed.
    """
    given = [
        {"hash": key.hash, "generation": key.generation, **more}
        for key, more in sorted(values.items())
    ]
    changed = connection.change_many(statement, given)
    assert changed == len(given), f"BUG: {step.name}: {len(given)} rows were to go, {changed} went"


def _count(
    database: Database,
    connection: DatabaseConnection,
    edges: Iterable[Reference],
    hold: Transition,
    refer: Transition,
) -> None:
    """Count references in the rows they lead to: holds of jobs apart from all others.

    A chunk that jobs alone hold is not in use by any commit; the two counters tell that without a
    look at the references themselves.
    """
    held: Counter[ChunkKey] = Counter()
    referred: Counter[ChunkKey] = Counter()
    for source, target in edges:
        (held if source.kind == JobKind.JOB else referred)[target] += 1
    take_step(database, connection, hold, held)
    take_step(database, connection, refer, referred)


def of_source(source: ReferenceSource) -> dict[str, Any]:
    """Return what `OF_SOURCE` is given."""
    return {"kind": source.kind, "id": source.id, "source_generation": source.generation}


def targets_of(connection: DatabaseConnection, source: ReferenceSource) -> list[ChunkKey]:
    """Return all chunks that a source refers to."""
    asked = f"SELECT hash, generation FROM gc_edge WHERE {OF_SOURCE}"
    found = connection.rows(asked, **of_source(source))
    return [ChunkKey(ChunkHash(hash_), generation) for hash_, generation in found]


def outgoing_edges(connection: DatabaseConnection, keys: Iterable[ChunkKey]) -> list[DatabaseRow]:
    """Return hash and generation of these chunks and of what they refer to, a row for each.

    Asked by hash, which is indexed: other generations of the same hashes come along, and the caller
    tells them apart. There is seldom more than one.
    """
    asked = (
        "SELECT source_id, source_generation, hash, generation FROM gc_edge "
        "WHERE source_kind = 'chunk' AND source_id IN :hashes"
    )
    return connection.rows(asked, hashes=[key.hash for key in keys])


def edge_columns(one: Reference) -> dict[str, Any]:
    """Return the columns of a reference's row."""
    return {
        "source_kind": one.source.kind,
        "source_id": one.source.id,
        "source_generation": one.source.generation,
        "hash": one.target.hash,
        "generation": one.target.generation,
    }
