"""The check of a store: recomputes what commits lead to, and compares it with rows and objects.

    commits ─▶ walk ─▶ ┐
    objects ─▶ list ─▶ ├─▶ facts by prefix ─▶ compare ─▶ candidates ─▶ confirm ─▶ findings
    rows, references ─▶┘

It changes nothing, takes no lock for longer than a batch, and may run while others write, read and
collect. Facts are collected in batches (`walk_facts` … `source_facts`). An engine brings those of
each prefix together and compares them; the one here does so in this process, one part of the
prefixes after another.

`ChunkUses` finds which commits and files need some chunks: a second walk, made only if a chunk is
missing or damaged.

**Why prefixes.** Every fact is about a chunk or comes from one, and is filed under the first byte
of its hash. All that has to be compared with each other is then in one prefix, so a store of any
size is checked in as many parts as memory asks for, or by as many Spark tasks as there are.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import PurePath
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from holdfast.store.filesets.commits import Commit, roots_of
from holdfast.store.filesets.reachable import Reached, Use, walk_below
from holdfast.store.fsck.commit_check import CheckedCommits, check_commits
from holdfast.store.fsck.compare import compare
from holdfast.store.fsck.confirm import Confirm
from holdfast.store.fsck.findings import (
    INDEX_WORDS,
    NEEDED_BY_COMMITS,
    REFS_WORDS,
    FindingKind,
    FsckReport,
    StoreFinding,
    from_table,
    to_table,
)
from holdfast.store.fsck.indexes import IndexReader
from holdfast.store.fsck.tables import (
    PREFIXES,
    FactTable,
    FsckSettings,
    Spill,
    facts,
    partition_of,
    prefixes_of,
    source_prefix,
)
from holdfast.store.gc.commit_rows import CommitId
from holdfast.store.gc.connections import DatabaseConnection
from holdfast.store.gc.database import Database
from holdfast.store.gc.references_sql import COMMIT_KIND, ReferenceSource
from holdfast.store.gc.sweep import pages
from holdfast.store.gc.tables import CHUNK_COLUMNS, EDGE_COLUMNS
from holdfast.store.gc.transitions import state_of
from holdfast.store.objects.objects import CHUNK_PREFIX, ChunkHash, ChunkKey, Objects, StoredObject
from holdfast.store.store import Store

Columns = dict[str, Sequence[Any]]


def walk_facts(
    reader: IndexReader, commits: Sequence[Commit], *, visited_max: int
) -> Iterator[pa.RecordBatch]:
    """Yield what commits lead to: reached, expected and walked, a batch for each index chunk."""
    # Commits share most of their index. With the use, since the same bytes may be an index in one
    # place and a file's content in another, and only the index leads further.
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
            # Full, it stops growing and nothing is lost: what is not remembered is walked again,
            # and facts that come twice compare the same.
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
    before = bytes([prefixes.stop]) if prefixes.stop < PREFIXES else None
    begin = (bytes([prefixes.start]), -1)
    for rows in _keyset(database, "gc_chunk", CHUNK_COLUMNS, begin, batch_rows, before):
        columns: Columns = {
            name: [row[name] for row in rows]
            for name in ("hash", "generation", "refcount", "holds", "stored_bytes")
        }
        columns["uploaded"] = [bool(row["uploaded"]) for row in rows]
        columns["state"] = [state_of(row).value for row in rows]
        yield facts(FactTable.ROW, [row["hash"][0] for row in rows], columns)


def edge_facts(database: Database, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield all references, each twice: by what it refers to, and by who refers."""
    begin = ("", b"", -1, b"", -1)
    for rows in _keyset(database, "gc_edge", EDGE_COLUMNS, begin, batch_rows):
        columns = {name: [row[name] for row in rows] for name in EDGE_COLUMNS}
        yield facts(FactTable.EDGE_TO, [row["hash"][0] for row in rows], columns)
        prefixes = [source_prefix(row["source_kind"], row["source_id"]) for row in rows]
        yield facts(FactTable.EDGE_FROM, prefixes, columns)


def source_facts(
    database: Database, walked: Collection[int], restorable: Collection[int]
) -> pa.RecordBatch:
    """Return the commits, jobs and pins that exist; commits that can be restored count, too."""

    def ask(connection: DatabaseConnection) -> list[tuple[str, int]]:
        jobs = connection.rows("SELECT kind, id FROM gc_job")
        commits = connection.values("SELECT id FROM gc_commit")
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
    database: Database,
    table: str,
    columns: Sequence[str],
    begin: tuple[object, ...],
    batch_rows: int,
    before: bytes | None = None,
) -> Iterator[Sequence[dict[str, Any]]]:
    """Yield rows in order of their key, in short transactions that each go on behind the last.

    The key is the first columns, as many as `begin` has, which sorts before all; `before` ends it.

    Not by OFFSET, which counts through all rows before it each time; and not by one long cursor,
    whose transaction would keep SQLite from emptying its log for as long as the check takes.
    """
    key = columns[: len(begin)]
    places = ", ".join(f":last_{name}" for name in key)
    end = "" if before is None else f" AND {key[0]} < :before"
    asked = (
        f"SELECT {', '.join(columns)} FROM {table} WHERE ({', '.join(key)}) > ({places}){end} "
        f"ORDER BY {', '.join(key)} LIMIT :rows"
    )
    given: dict[str, Any] = {"rows": batch_rows, "before": before}
    given |= {f"last_{name}": value for name, value in zip(key, begin, strict=True)}
    while rows := database.read(partial(_page, asked=asked, given=given)):
        yield rows
        given = {**given, **{f"last_{name}": rows[-1][name] for name in key}}


def _page(
    connection: DatabaseConnection, asked: str, given: Mapping[str, Any]
) -> list[dict[str, Any]]:
    return connection.named(asked, **given)


class ChunkUse(NamedTuple):
    """A commit and a path, or a range of paths, that a chunk serves."""

    commit: str
    path: str
    detail: str


class ChunkUses:
    """Where wanted chunks are used."""

    def __init__(
        self, reader: IndexReader, wanted: Collection[ChunkHash], settings: FsckSettings
    ) -> None:
        self._reader = reader
        self._wanted = frozenset(wanted)
        self._settings = settings
        # Index chunks below which nothing is wanted.
        self._without: set[tuple[ChunkHash, Use]] = set()
        self.found: dict[ChunkHash, list[ChunkUse]] = {}
        self.more: Counter[ChunkHash] = Counter()

    def look(self, commits: Sequence[Commit]) -> None:
        """Look through commits."""
        for one in commits if self._wanted else ():
            for root in roots_of(one):
                self._look_below(one.name, root)

    def _look_below(self, commit: str, one: Reached) -> bool:
        """Note what is wanted at or below a chunk; say whether there was any.

        It calls itself for each level of an index, and there are only a few.
        """
        here = one.hash in self._wanted
        if here:
            self._note(commit, one)
        if not one.use.refers or (one.hash, one.use) in self._without:
            return here
        below = False
        for child in self._reader.look_into(one) or ():
            below |= self._look_below(commit, child)
        if not here and not below and len(self._without) < self._settings.visited_max:
            self._without.add((one.hash, one.use))
        return here or below

    def _note(self, commit: str, one: Reached) -> None:
        places = self.found.setdefault(one.hash, [])
        place = ChunkUse(commit, one.path, _words(one))
        if place in places:
            return
        if len(places) < self._settings.paths_per_chunk_max:
            places.append(place)
        else:
            self.more[one.hash] += 1


def _words(one: Reached) -> str:
    match one.use:
        case Use.INDEX:
            return f"{INDEX_WORDS} {one.path!r} to {one.last_path!r}"
        case Use.REFS:
            return REFS_WORDS
        case Use.TOMBSTONES:
            return "the list of folders that a layer takes away"
        case Use.SEEN:
            return "the table of files as they were seen on disk"
        case _:
            return "content"


class CheckEngine(Protocol):
    """Collects and compares facts; adds to the report what it counted."""

    def candidates(self, commits: CheckedCommits, report: FsckReport) -> Iterator[pa.Table]:
        """Yield tables of `FINDINGS`, none of them confirmed; several may say the same."""


class LocalEngine:
    """Collects and compares in this process; facts that do not fit wait in a scratch folder."""

    def __init__(
        self, store: Store, scratch: PurePath, settings: FsckSettings | None = None
    ) -> None:
        self._store = store
        self._scratch = scratch
        self._settings = settings or FsckSettings()

    def candidates(self, commits: CheckedCommits, report: FsckReport) -> Iterator[pa.Table]:
        """Yield what does not fit together, part by part."""
        disk = self._store.references.seam.disk
        with contextlib.closing(Spill(disk, self._scratch, self._settings)) as spill:
            yield from self._candidates(spill, commits, report)

    def _candidates(
        self, spill: Spill, commits: CheckedCommits, report: FsckReport
    ) -> Iterator[pa.Table]:
        references, settings = self._store.references, self._settings
        reader = IndexReader(self._store.objects, references)
        for batch in walk_facts(reader, commits.commits, visited_max=settings.visited_max):
            spill.add(batch)
        yield damaged_table(reader)
        # Objects before rows: whoever is listed without a row will never get one.
        for batch in self._objects(report):
            spill.add(batch)
        # After the commits were listed: those that were have their references.
        for batch in edge_facts(references.database, settings.batch_rows):
            report.references += batch.num_rows if _is(batch, FactTable.EDGE_TO) else 0
            spill.add(batch)
        walked = {commit.id for commit in commits.commits}
        spill.add(source_facts(references.database, walked, commits.restorable))
        for number in range(settings.partitions):
            prefixes = prefixes_of(number, settings.partitions)
            rows = list(row_facts(references.database, prefixes, settings.batch_rows))
            for batch in rows:
                report.count_rows(batch)
            yield compare(partition_of([*spill.part(number), *rows]))

    def _objects(self, report: FsckReport) -> Iterator[pa.RecordBatch]:
        def unknown(_: object) -> None:
            report.unknown_names += 1

        every = range(PREFIXES)
        for batch in object_facts(self._store.objects, every, self._settings.batch_rows, unknown):
            report.objects += batch.num_rows
            yield batch


def check(store: Store, engine: CheckEngine, settings: FsckSettings | None = None) -> FsckReport:
    """Return all that is wrong with a store."""
    limits = settings or FsckSettings()
    report = FsckReport()
    commits = check_commits(store.references, store.objects)
    report.commits = commits.rows
    report.unknown_names = commits.unknown_names
    report.add(commits.findings, limits.findings_max)
    confirm = Confirm(store.references, store.objects)
    waiting: dict[tuple[FindingKind, ChunkKey], StoreFinding] = {}
    candidates = engine.candidates(commits, report)
    for batch in (batch for table in candidates for batch in _slices(table, limits)):
        confirmed = confirm.confirm(from_table(batch))
        for one in confirmed:
            if one.kind not in NEEDED_BY_COMMITS:
                continue
            if len(waiting) < limits.findings_max:
                # An index that is cut off is found twice: it cannot be read, and has another size.
                waiting.setdefault((one.kind, one.key), one)
            elif (one.kind, one.key) not in waiting:
                report.omitted += 1
        others = [one for one in confirmed if one.kind not in NEEDED_BY_COMMITS]
        report.add(others, limits.findings_max)
    report.add(locate(store, list(waiting.values()), limits), limits.findings_max)
    # Facts are collected in several ways and one fault may show in two of them.
    report.findings = list(dict.fromkeys(report.findings))
    return report


def locate(
    store: Store, found: Sequence[StoreFinding], settings: FsckSettings
) -> Iterator[StoreFinding]:
    """Yield findings about chunks once for each commit and path that needs them.

    One that no commit needs, and that has no row, is none: its commit was deleted meanwhile.
    """
    reader = IndexReader(store.objects, store.references)
    places = ChunkUses(reader, {finding.hash for finding in found}, settings)
    places.look(live_commits(store) if found else [])
    for finding in dict.fromkeys(found):
        more = places.more[finding.hash]
        used = places.found.get(finding.hash, [])
        for place in used:
            words = "; ".join(filter(None, (finding.detail, place.detail)))
            if more and place is used[-1]:
                words += f"; and {more} more places"
            yield finding._replace(commit=place.commit, path=place.path, detail=words)
        if not used and finding.generation:
            yield finding


def live_commits(store: Store) -> list[Commit]:
    """Return the commits that are there now, with their row, and whose record can be read."""
    found = check_commits(store.references, store.objects)
    return [commit for commit in found.commits if commit.id not in found.restorable]


def damaged_table(reader: IndexReader) -> pa.Table:
    """Return what a reader of indexes found damaged, as candidates."""
    return to_table(list(reader.damaged.values()))


def _slices(table: pa.Table, limits: FsckSettings) -> Iterator[pa.Table]:
    for start in range(0, table.num_rows, limits.batch_rows):
        yield table.slice(start, limits.batch_rows)


def _is(batch: pa.RecordBatch, table: FactTable) -> bool:
    return bool(batch.num_rows) and bool(batch.column("table")[0].as_py() == table.value)
