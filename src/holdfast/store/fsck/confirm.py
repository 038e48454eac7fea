"""Asks again about each candidate, so that what others do meanwhile is never called a fault.

Every rule here is an order of questions whose answers cannot all be true of a sound store:

- *Missing chunk*: the row says stored, the object is not there, the row says stored still. Objects
  go only after rows are dying, and a generation is stored before its row says so, once and for all.
- *Reached, without a row*: no row is current, and a commit that leads there is alive afterwards.
- *Leaked object*: it was listed, its generation has no row, it is still there. A row comes before
  its object, and a generation that has lost its row never gets another.
- *Reference from nobody, or to nothing*: the one end was not there, and afterwards the reference
  is. References go with either end or before it.
- *Missing reference*: it is not there, and afterwards the source is, which existed before, too.
  A source and its references come in one transaction.
- *Counts*: row and references are read under the row's lock, which all who change them take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from holdfast.errors import Damaged, ObjectMissing
from holdfast.store.fsck.findings import FindingKind, StoreFinding, parse_source
from holdfast.store.gc.commit_rows import CommitId, row_of
from holdfast.store.gc.connections import DatabaseConnection
from holdfast.store.gc.database import Database, slices
from holdfast.store.gc.references import References
from holdfast.store.gc.references_sql import (
    CHUNK_KIND,
    COMMIT_KIND,
    ReferenceSource,
    locked_rows,
    of_source,
)
from holdfast.store.gc.tables import OF_SOURCE, ONE_CHUNK
from holdfast.store.objects.objects import ChunkHash, ChunkKey, Objects


class Confirm:
    """Asks the database and the objects again."""

    def __init__(self, references: References, objects: Objects) -> None:
        self._references = references
        self._database: Database = references.database
        self._objects = objects

    def confirm(self, candidates: Sequence[StoreFinding]) -> list[StoreFinding]:
        """Return those that are true, in the same order."""
        # These need locks, so they are asked together, a batch of rows per transaction.
        counted = self._counts([c for c in candidates if c.kind in _COUNTS])
        rules: dict[FindingKind, Callable[[StoreFinding], StoreFinding | None]] = {
            FindingKind.MISSING_CHUNK: self._missing_chunk,
            FindingKind.DAMAGED_CHUNK: self._damaged_chunk,
            FindingKind.MISSING_ROW: self._missing_row,
            FindingKind.LEAKED_OBJECT: self._leaked_object,
            FindingKind.LEAKED_EDGE: self._still_there,
            FindingKind.STALE_EDGE: self._still_there,
            FindingKind.MISSING_EDGE: self._missing_edge,
            FindingKind.LEAKED_ROW: lambda finding: counted.get(finding.key),
            FindingKind.WRONG_COUNT: lambda finding: counted.get(finding.key),
        }
        asked = (rules[candidate.kind](candidate) for candidate in candidates)
        return [finding for finding in asked if finding is not None]

    def _missing_chunk(self, finding: StoreFinding) -> StoreFinding | None:
        """Confirm all but that a commit needs it, which `places` says."""
        if not finding.generation:
            return self._missing_row(finding)
        # Row, object, row, object: a chunk that was collected and stored anew in between has
        # another generation by the second question, and is not called missing.
        for _ in range(2):
            if self._references.resolve([finding.hash]).get(finding.hash) != finding.key:
                return None
            if is_stored(self._objects, finding.key):
                return None
        return finding

    def _damaged_chunk(self, finding: StoreFinding) -> StoreFinding | None:
        current = self._references.resolve([finding.hash]).get(finding.hash)
        return finding if current == finding.key else None

    def _missing_row(self, finding: StoreFinding) -> StoreFinding | None:
        return None if self._references.resolve([finding.hash]) else finding

    def _leaked_object(self, finding: StoreFinding) -> StoreFinding | None:
        """Confirm that an object has no row, and that this database may have named it.

        One with a number that was never given out is not leaked: the database is an old copy.
        """
        if _row(self._database, finding.key) is not None:
            return None
        if not is_stored(self._objects, finding.key):
            return None
        self._database.check_given_out(finding.generation, finding.key.object_key())
        return finding

    def _still_there(self, finding: StoreFinding) -> StoreFinding | None:
        source = parse_source(finding.source)
        assert source is not None, "BUG: a reference without a source"
        return finding if has_edge(self._database, source, finding.key) else None

    def _missing_edge(self, finding: StoreFinding) -> StoreFinding | None:
        """Confirm that a reference is missing, and that both ends of it are there."""
        source = parse_source(finding.source)
        assert source is not None, "BUG: a reference without a source"
        if has_edge(self._database, source, ChunkKey(finding.hash, 0)):
            return None
        if not self._references.resolve([finding.hash]):
            return None  # a missing chunk, and reported as such: there is nothing to refer to
        return finding if source_exists(self._references, source) else None

    def _counts(self, candidates: Sequence[StoreFinding]) -> dict[ChunkKey, StoreFinding]:
        """Count again, in batches and under locks: writers beside the check change the counts."""
        found: dict[ChunkKey, StoreFinding] = {}
        by_key = {candidate.key: candidate for candidate in candidates}
        for part in slices(sorted(by_key), self._database.settings.batch_rows):
            hashes = [key.hash for key in part]
            wrong = self._database.transact(
                partial(wrong_counts, database=self._database, hashes=hashes)
            )
            for key in part:
                if key in wrong:
                    found[key] = by_key[key]._replace(detail=wrong[key])
        return found


_COUNTS = (FindingKind.LEAKED_ROW, FindingKind.WRONG_COUNT)


def is_stored(objects: Objects, key: ChunkKey) -> bool:
    """Whether there is an object of a generation."""
    try:
        # One byte: a listing would cost a request as well, and an object's size is not the
        # question.
        objects.get(key.object_key(), 0, 1)
    except ObjectMissing:
        return False
    except Damaged:
        pass  # it cannot be read, and is there
    return True


def source_exists(references: References, source: ReferenceSource) -> bool:
    """Whether a commit, or a chunk that has references, is there."""
    if source.kind == COMMIT_KIND:
        return row_of(references.database, CommitId(int.from_bytes(source.id, "big"))) is not None
    assert source.kind == CHUNK_KIND, "BUG: only commits and chunks are walked"
    row = _row(references.database, ChunkKey(ChunkHash(source.id), source.generation))
    return row is not None and bool(row["uploaded"]) and row["deleting"] is None


def has_edge(database: Database, source: ReferenceSource, target: ChunkKey) -> bool:
    """Whether a source refers to a chunk; with generation 0, to any generation of it."""
    asked = f"SELECT hash FROM gc_edge WHERE {OF_SOURCE} AND hash = :hash"
    if target.generation:
        asked += " AND generation = :generation"
    given = {**of_source(source), **target._asdict()}
    return database.read(lambda connection: connection.row(asked, **given)) is not None


def true_counts(
    connection: DatabaseConnection, hashes: Iterable[ChunkHash]
) -> dict[ChunkKey, tuple[int, int]]:
    """Return how many references and holds there are, by generation; none where there are none.

    References are kept by who refers, so this looks at all of them.
    """
    asked = (
        "SELECT hash, generation, count(*), sum(CASE WHEN source_kind = 'job' THEN 1 ELSE 0 END) "
        "FROM gc_edge WHERE hash IN :hashes GROUP BY hash, generation"
    )
    if not (wanted := sorted(set(hashes))):
        return {}
    return {
        ChunkKey(ChunkHash(hash_), generation): (int(count) - int(held), int(held))
        for hash_, generation, count, held in connection.rows(asked, hashes=wanted)
    }


def wrong_counts(
    connection: DatabaseConnection, database: Database, hashes: Sequence[ChunkHash]
) -> dict[ChunkKey, str]:
    """Return the rows among these that count wrongly, and how, under their locks."""
    rows = locked_rows(database, connection, hashes)
    counts = true_counts(connection, hashes)
    wrong: dict[ChunkKey, str] = {}
    for hash_, generations in rows.items():
        for generation, row in generations.items():
            key = ChunkKey(hash_, generation)
            references, holds = counts.get(key, (0, 0))
            said = [
                f"{name} {row[name]} instead of {count}"
                for name, count in (("refcount", references), ("holds", holds))
                if row[name] != count
            ]
            if said:
                wrong[key] = ", ".join(said)
    return wrong


def _row(database: Database, key: ChunkKey) -> dict[str, Any] | None:
    asked = f"SELECT uploaded, deleting FROM gc_chunk WHERE {ONE_CHUNK}"
    found = database.read(lambda connection: connection.named(asked, **key._asdict()))
    return found[0] if found else None
