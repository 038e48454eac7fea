"""Collects the facts of a store, in batches: commits' indexes, rows, references, objects."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection, Select, select, tuple_

from holdfast.store.filesets.commits import Commit
from holdfast.store.filesets.reachable import Reached, Use, roots_of, walk_below
from holdfast.store.fsck.indexes import IndexReader
from holdfast.store.fsck.tables import PREFIXES, FactTable, facts, source_prefix
from holdfast.store.gc.commit_rows import CommitId
from holdfast.store.gc.database import Database, chunk, commit, edge, job
from holdfast.store.gc.references_sql import COMMIT_KIND, ReferenceSource
from holdfast.store.gc.sweep import pages
from holdfast.store.gc.transitions import state_of
from holdfast.store.objects.address import CHUNK_PREFIX, ChunkHash, ChunkKey
from holdfast.store.objects.objects import Objects, StoredObject

Columns = dict[str, Sequence[Any]]


def walk_facts(
    reader: IndexReader, commits: Sequence[Commit], *, visited_max: int
) -> Iterator[pa.RecordBatch]:
    """Yield what commits lead to: reached, expected and walked, a batch for each index chunk."""
    visited: set[tuple[ChunkHash, Use]] = set()
    for one in commits:
        roots = roots_of(one)
        yield from children_facts(ReferenceSource.numbered(COMMIT_KIND, one.id), one.id, roots)
        tops = [root for root in roots if root.use.refers]
        walked = walk_below(
            tops, reader.look_into, lambda reached: (reached.hash, reached.use) in visited
        )
        for parent, children in walked:
            if children is None:
                continue
            if len(visited) < visited_max:
                visited.add((parent.hash, parent.use))
            key = ChunkKey(parent.hash, reader.generation(parent.hash))
            columns: Columns = {"hash": [key.hash], "generation": [key.generation]}
            yield facts(FactTable.WALKED, [key.hash[0]], columns)
            yield from children_facts(ReferenceSource.chunk(key), one.id, children)


def children_facts(
    source: ReferenceSource, commit_id: CommitId, children: Sequence[Reached]
) -> Iterator[pa.RecordBatch]:
    """Yield that a source must refer to its children, and that a commit leads to them."""
    uses = {child.hash: child.use.value for child in children}
    hashes, count = list(uses), len(uses)
    commits = [commit_id] * count
    reached: Columns = {"hash": hashes, "commit": commits, "kind": list(uses.values())}
    yield facts(FactTable.REACHED, [hash_[0] for hash_ in hashes], reached)
    expected: Columns = {"hash": hashes, "commit": commits, **_source_columns([source] * count)}
    prefix = source_prefix(source.kind, source.id)
    yield facts(FactTable.EXPECTED, [prefix] * count, expected)


def row_facts(database: Database, prefixes: range, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of chunks whose hashes begin so."""
    asked = select(chunk).where(chunk.c.hash >= bytes([prefixes.start]))
    if prefixes.stop < PREFIXES:
        asked = asked.where(chunk.c.hash < bytes([prefixes.stop]))
    for rows in _keyset(database, asked, (chunk.c.hash, chunk.c.generation), batch_rows):
        columns: Columns = {
            name: [row[name] for row in rows]
            for name in ("hash", "generation", "refcount", "holds", "uploaded", "stored_bytes")
        }
        columns["state"] = [state_of(row).value for row in rows]
        yield facts(FactTable.ROW, [row["hash"][0] for row in rows], columns)


def edge_facts(database: Database, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield all references, each twice: by what it refers to, and by who refers."""
    for rows in _keyset(database, select(edge), tuple(edge.c), batch_rows):
        columns = {name: [row[name] for row in rows] for name in edge.c.keys()}  # noqa: SIM118
        yield facts(FactTable.EDGE_TO, [row["hash"][0] for row in rows], columns)
        prefixes = [source_prefix(row["source_kind"], row["source_id"]) for row in rows]
        yield facts(FactTable.EDGE_FROM, prefixes, columns)


def source_facts(
    database: Database, walked: Collection[int], restorable: Collection[int]
) -> pa.RecordBatch:
    """Return the commits, jobs and pins that exist; commits that can be restored count, too."""

    def ask(connection: Connection) -> list[tuple[str, int]]:
        jobs = connection.execute(select(job.c.kind, job.c.id)).all()
        commits = connection.execute(select(commit.c.id)).scalars()
        return [(kind, number) for kind, number in jobs] + [(COMMIT_KIND, n) for n in commits]

    known = database.read(ask) + [(COMMIT_KIND, number) for number in restorable]
    sources = [ReferenceSource.numbered(kind, number) for kind, number in known]
    columns: Columns = {
        "source_kind": [source.kind for source in sources],
        "source_id": [source.id for source in sources],
        "walked": [kind == COMMIT_KIND and number in walked for kind, number in known],
    }
    prefixes = [source_prefix(source.kind, source.id) for source in sources]
    return facts(FactTable.SOURCE, prefixes, columns)


def object_facts(
    objects: Objects, prefixes: range, batch_rows: int, unknown: Callable[[StoredObject], None]
) -> Iterator[pa.RecordBatch]:
    """Yield the objects of chunks whose hashes begin so; `unknown` is called with other names."""
    for prefix in prefixes:
        for page in pages(objects.list(f"{CHUNK_PREFIX}{prefix:02x}/"), batch_rows):
            found = []
            for stored in page:
                key = ChunkKey.parse(stored.key)
                if key is None:
                    unknown(stored)
                else:
                    found.append((key, stored))
            columns: Columns = {
                "hash": [key.hash for key, _ in found],
                "generation": [key.generation for key, _ in found],
                "size_bytes": [stored.size_bytes for _, stored in found],
                "modified_s": [stored.modified_s for _, stored in found],
            }
            yield facts(FactTable.OBJECT, [prefix] * len(found), columns)


def _source_columns(sources: Sequence[ReferenceSource]) -> Columns:
    return {
        "source_kind": [source.kind for source in sources],
        "source_id": [source.id for source in sources],
        "source_generation": [source.generation for source in sources],
    }


def _keyset(
    database: Database, asked: Select[Any], key: tuple[Any, ...], batch_rows: int
) -> Iterator[Sequence[Any]]:
    """Yield rows in order of their key, in short transactions that each go on behind the last."""
    ordered = asked.order_by(*key).limit(batch_rows)
    page = ordered
    while rows := database.read(partial(_mappings, asked=page)):
        yield rows
        last = [rows[-1][column.name] for column in key]
        page = ordered.where(tuple_(*key) > tuple_(*last))


def _mappings(connection: Connection, asked: Select[Any]) -> Sequence[Any]:
    return connection.execute(asked).mappings().all()
