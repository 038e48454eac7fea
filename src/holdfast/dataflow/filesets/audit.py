"""The check of a store on Spark: tasks read indexes, list objects and compare; the driver does not.

    driver: commits ─▶ tasks: look into index chunks, level by level ─▶ ┐
                       tasks: list objects, prefix by prefix         ─▶ ├─▶ by prefix ─▶ compare
    driver: references, then rows of the database                    ─▶ ┘

The facts, their comparison and the report are those of the check in one process (store/fsck); this
only brings the facts of each prefix together in another way. Facts stay where the tasks are; the
driver sees which index chunks come next, what the database says, and what does not fit. The order
matters, because others may work on the store meanwhile: commits, objects, references, rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from holdfast.dataflow.filesets.shipping import absolute
from holdfast.store.filesets.commits import roots_of
from holdfast.store.filesets.reachable import Reached, Use
from holdfast.store.fsck.check import (
    children_facts,
    edge_facts,
    object_facts,
    row_facts,
    source_facts,
)
from holdfast.store.fsck.commit_check import CheckedCommits
from holdfast.store.fsck.compare import compare
from holdfast.store.fsck.findings import FindingKind, FsckReport, StoreFinding, to_table
from holdfast.store.fsck.indexes import IndexReader
from holdfast.store.fsck.tables import (
    FACTS,
    FINDINGS,
    PREFIXES,
    FactTable,
    FsckSettings,
    facts,
    partition_of,
)
from holdfast.store.gc.references import NoReferences
from holdfast.store.gc.references_sql import COMMIT_KIND, ReferenceSource
from holdfast.store.objects.objects import ChunkHash, ChunkKey
from holdfast.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# What tasks have to say besides facts, in rows of the same table; nothing compares these.
DAMAGED, UNKNOWN = "damaged", "unknown name"
# Index chunks to look into: where they are, whether a row says so, and for which commit.
_NEXT = pa.schema(
    [
        ("hash", pa.binary()),
        ("use", pa.string()),
        ("generation", pa.int64()),
        ("commit", pa.int64()),
    ]
)
_REFERS = f"table = '{FactTable.REACHED.value}' AND kind IN ('{Use.INDEX}', '{Use.REFS}')"

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class SparkEngine:
    """Collects and compares on Spark."""

    def __init__(
        self, session: SparkSession, store: Store, settings: FsckSettings | None = None
    ) -> None:
        self._session = session
        self._store = store
        self._url = absolute(store.url)
        self._settings = settings or FsckSettings()

    def candidates(self, commits: CheckedCommits, report: FsckReport) -> Iterator[pa.Table]:
        """Yield what does not fit together."""
        with ExitStack() as kept:
            walked = list(self._walk(commits, kept))
            for frame in walked:
                yield _damaged(frame)
            found = self._kept(self._listed(), kept)
            report.objects += found.where(f"table = '{FactTable.OBJECT.value}'").count()
            report.unknown_names += found.where(f"table = '{UNKNOWN}'").count()
            everything = reduce(_union, [*walked, found, *self._known(commits, report)])
            # All facts of a prefix in one task: that is what `compare` needs, and all it needs.
            by_prefix = everything.repartition(self._settings.partitions, "prefix")
            yield self._map(by_prefix, compare_facts, FINDINGS).toArrow().cast(FINDINGS)

    # The commits.

    def _walk(self, commits: CheckedCommits, kept: ExitStack) -> Iterator[DataFrame]:
        """Yield the facts of the commits' indexes, a frame for each level."""
        first = [
            batch
            for one in commits.commits
            for batch in children_facts(
                ReferenceSource.numbered(COMMIT_KIND, one.id), one.id, roots_of(one)
            )
        ]
        yield self._frame(pa.Table.from_batches(first, FACTS))
        visited: set[tuple[ChunkHash, str]] = set()
        level: list[tuple[ChunkHash, str, int]] = [
            (root.hash, root.use.value, one.id)
            for one in commits.commits
            for root in roots_of(one)
            if root.use.refers
        ]
        # Level by level, because a task cannot start others: the driver learns which index chunks
        # come next, and nothing else. Indexes have a few levels, however many files they hold.
        while level := self._unvisited(level, visited):
            frame = self._kept(self._looked_into(level), kept)
            yield frame
            below = frame.where(_REFERS).groupBy("hash", "kind").agg({"commit": "min"})
            level = [(ChunkHash(bytes(row[0])), row[1], row[2]) for row in below.collect()]

    def _unvisited(
        self, level: Sequence[tuple[ChunkHash, str, int]], visited: set[tuple[ChunkHash, str]]
    ) -> list[tuple[ChunkHash, str, int]]:
        """Return what was not looked into before, as far as that is remembered."""
        new = {(hash_, use): commit for hash_, use, commit in level if (hash_, use) not in visited}
        if len(visited) + len(new) <= self._settings.visited_max:
            visited.update(new)
        return [(hash_, use, commit) for (hash_, use), commit in new.items()]

    def _looked_into(self, level: Sequence[tuple[ChunkHash, str, int]]) -> DataFrame:
        keys = self._store.references.resolve([hash_ for hash_, _, _ in level])
        rows = [
            {
                "hash": hash_,
                "use": use,
                "generation": keys[hash_].generation if hash_ in keys else None,
                "commit": commit,
            }
            for hash_, use, commit in level
        ]
        given = self._spread(pa.Table.from_pylist(rows, _NEXT))
        return self._map(given, partial(look_into, self._url), FACTS)

    # The objects.

    def _listed(self) -> DataFrame:
        prefixes = self._spread(pa.table({"prefix": pa.array(range(PREFIXES), pa.int32())}))
        task = partial(list_objects, self._url, self._settings.batch_rows)
        return self._map(prefixes, task, FACTS)

    # The database.

    def _known(self, commits: CheckedCommits, report: FsckReport) -> Iterator[DataFrame]:
        """Yield what the database says, references before rows, `memory_rows` in each frame."""
        database, batch_rows = self._store.references.database, self._settings.batch_rows
        walked = {commit.id for commit in commits.commits}

        def known_facts() -> Iterator[pa.RecordBatch]:
            for batch in edge_facts(database, batch_rows):
                yield batch
                report.references += batch.num_rows
            report.references //= 2  # each was counted at either end
            yield source_facts(database, walked, commits.restorable)
            for batch in row_facts(database, range(PREFIXES), batch_rows):
                yield batch
                report.count_rows(batch)

        waiting: list[pa.RecordBatch] = []
        rows = 0
        for batch in known_facts():
            waiting.append(batch)
            rows += batch.num_rows
            if rows >= self._settings.memory_rows:
                yield self._frame(pa.Table.from_batches(waiting, FACTS))
                waiting, rows = [], 0
        if waiting:
            yield self._frame(pa.Table.from_batches(waiting, FACTS))

    # Frames.

    def _frame(self, table: pa.Table) -> DataFrame:
        return self._session.createDataFrame(table)

    def _spread(self, table: pa.Table) -> DataFrame:
        """Return rows in as many parts as there may be tasks."""
        parts = max(1, min(table.num_rows, 2 * self._session.sparkContext.defaultParallelism))
        return self._frame(table).repartition(parts)

    def _map(self, frame: DataFrame, task: Task, schema: pa.Schema) -> DataFrame:
        return frame.mapInArrow(task, from_arrow_schema(schema))

    def _kept(self, frame: DataFrame, kept: ExitStack) -> DataFrame:
        """Have a frame worked out now, and once."""
        # Worked out here, once. Left lazy, Spark would read the indexes again for every use of the
        # frame, at another time, and the order of the facts would mean nothing.
        kept.callback(frame.persist().unpersist)
        frame.count()
        return frame


def _union(one: DataFrame, other: DataFrame) -> DataFrame:
    return one.unionAll(other)


def _damaged(frame: DataFrame) -> pa.Table:
    """Return the chunks that tasks could not read or whose content is not what it should be."""
    rows = frame.where(f"table = '{DAMAGED}'").select("hash", "generation", "kind").collect()
    return to_table(
        [
            StoreFinding(FindingKind.DAMAGED_CHUNK, ChunkHash(bytes(row[0])), row[1], detail=row[2])
            for row in rows
        ]
    )


# ------------------------------------------------------------------------------ in tasks


class _GivenKeys(NoReferences):
    """Knows the keys that the driver looked up.

    Tasks have no database, on purpose: hundreds of connections at once would be the end of it.
    """

    def __init__(self, keys: dict[ChunkHash, ChunkKey]) -> None:
        super().__init__()
        self._keys = keys

    def resolve(self, hashes: Sequence[ChunkHash]) -> dict[ChunkHash, ChunkKey]:
        """Return the keys that were given."""
        return {hash_: self._keys[hash_] for hash_ in hashes if hash_ in self._keys}


def look_into(url: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the facts of some index chunks, and which are damaged."""
    with Store.open_objects(url) as store:
        for batch in batches:
            rows = batch.to_pylist()
            keys = {
                ChunkHash(row["hash"]): ChunkKey(ChunkHash(row["hash"]), row["generation"])
                for row in rows
                if row["generation"] is not None
            }
            reader = IndexReader(store.objects, _GivenKeys(keys))
            for row in rows:
                yield from _chunk_facts(reader, row)
            for finding in reader.damaged.values():
                yield _one_fact(
                    DAMAGED, hash=finding.hash, generation=finding.generation, kind=finding.detail
                )


def _chunk_facts(reader: IndexReader, row: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    """Yield that an index chunk was read, and what it refers to."""
    parent = Reached(ChunkHash(row["hash"]), Use(row["use"]))
    children = reader.look_into(parent)
    if children is None:
        return
    key = ChunkKey(parent.hash, reader.generation(parent.hash))
    columns: dict[str, list[Any]] = {"hash": [key.hash], "generation": [key.generation]}
    yield facts(FactTable.WALKED, [key.hash[0]], columns)
    yield from children_facts(ReferenceSource.chunk(key), row["commit"], children)


def list_objects(
    url: str, batch_rows: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the objects whose hashes begin with some prefixes."""
    unknown: list[str] = []
    with Store.open_objects(url) as store:
        for batch in batches:
            for prefix in batch.column("prefix").to_pylist():
                yield from object_facts(
                    store.objects,
                    range(prefix, prefix + 1),
                    batch_rows,
                    lambda stored: unknown.append(stored.key),
                )
    for name in unknown:
        yield _one_fact(UNKNOWN, kind=name)


def compare_facts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield what does not fit together among all facts of some prefixes."""
    cast = (pa.Table.from_batches([batch]).cast(FACTS) for batch in batches)
    part = partition_of([one for table in cast for one in table.to_batches()])
    yield from compare(part).to_batches()


def _one_fact(table: str, **columns: Any) -> pa.RecordBatch:
    row = {"table": table, "prefix": 0, **columns}
    return pa.RecordBatch.from_pylist([row], FACTS)
