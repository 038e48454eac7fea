"""The repair: a plan of what is to be done about each finding, then its execution.

Nothing that may still be somebody's data is deleted. What is damaged is set aside under
`quarantine/` before anything takes its place; objects that nobody knows go only after the
collector's grace; what is held by a lease, or refers to nothing yet, is not touched at all. Each
step looks again before it changes anything, so a plan that is old, or was executed already, does no
harm. What can be repaired:

- Of a missing or damaged chunk, the database records that it is not stored. If another generation
  is whole, it is stored anew from that. If not, the next writer who has the same bytes stores them
  again, and the next repair moves the references there.
- Rows and references are made to say what commits and chunks say, then counted anew.
- Of a commit's row and its object, the one that can be read replaces the other.
- What nobody refers to any more is left to the collector, which runs at the end.

What brings something back is done first, and by itself. Only a check that finds nothing more to
bring back knows all that is in use; until then no reference is removed, no count lowered, nothing
deleted or collected. While an index is missing nobody knows what it led to, and it stays so.

`check_and_repair` checks, repairs and checks again, until nothing is wrong or nothing more can be
done. `rebuild_database` makes a lost database again from the objects of its store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from blake3 import blake3

from holdfast.errors import Damaged, HoldfastError, ObjectMissing
from holdfast.seam import Seam
from holdfast.store.chunks.codec import decode
from holdfast.store.chunks.settings import StoreSettings
from holdfast.store.filesets.commits import walk_record
from holdfast.store.fsck.check import CheckEngine, check
from holdfast.store.fsck.commit_check import readable, stored_record
from holdfast.store.fsck.confirm import Confirm, is_stored, source_exists
from holdfast.store.fsck.findings import (
    NEEDED_BY_COMMITS,
    FindingKind,
    FsckReport,
    StoreFinding,
    parse_source,
    without_known,
)
from holdfast.store.fsck.indexes import verify, whole_object
from holdfast.store.fsck.repair_transactions import RepairTransactions
from holdfast.store.fsck.tables import FsckSettings
from holdfast.store.gc.collector import Collector
from holdfast.store.gc.commit_rows import CommitId, commit_object_key, row_of
from holdfast.store.gc.rebuild import RebuildReport, rebuild, release_quarantine
from holdfast.store.gc.references_sql import CHUNK_KIND, COMMIT_KIND
from holdfast.store.objects.objects import ChunkKey
from holdfast.store.store import Store, open_objects

QUARANTINE_PREFIX = "quarantine/"
_NAME_MARK_BYTES = 4

# What is done about each kind, in this order: what is needed comes back, then the rest goes.
ORDER: dict[FindingKind, str] = {
    FindingKind.COMMIT_DIFFERS: "let row and object agree; the one that is replaced is set aside",
    FindingKind.COMMIT_OBJECT_MISSING: "write the object from the row",
    FindingKind.COMMIT_ROW_MISSING: "restore the row from the object, or set the object aside",
    FindingKind.DAMAGED_CHUNK: "set the object aside, bring the chunk back from another generation",
    FindingKind.MISSING_ROW: "store the chunk anew from the object",
    FindingKind.MISSING_CHUNK: "bring the chunk back from another generation",
    FindingKind.MISSING_EDGE: "add the reference",
    FindingKind.STALE_EDGE: "let the reference name the generation that is stored",
    FindingKind.LEAKED_EDGE: "remove the reference",
    FindingKind.WRONG_COUNT: "count again",
    FindingKind.LEAKED_ROW: "count again, then collect",
    FindingKind.LEAKED_OBJECT: "delete the object, if it is older than the grace",
    FindingKind.COMMIT_UNFINISHED: "let the collector finish it",
    FindingKind.COMMIT_DAMAGED: "nothing: bring the commit's object back from a copy",
}


TAKES_AWAY = (
    FindingKind.LEAKED_EDGE,
    FindingKind.WRONG_COUNT,
    FindingKind.LEAKED_ROW,
    FindingKind.LEAKED_OBJECT,
    FindingKind.COMMIT_UNFINISHED,
)


class Action(NamedTuple):
    """One thing to do."""

    finding: StoreFinding
    what: str


@dataclass
class RepairReport:
    """What was done, and what could not be."""

    done: list[Action] = field(default_factory=list)
    left: list[tuple[Action, str]] = field(default_factory=list)
    """With the reason."""
    set_aside: list[str] = field(default_factory=list)
    """Objects under `quarantine/`."""


def plan_repair(findings: Sequence[StoreFinding]) -> list[Action]:
    """Return what is to be done, in order; each chunk once, however many files need it."""
    places = {kind: place for place, kind in enumerate(ORDER)}
    chosen: dict[tuple[object, ...], Action] = {}
    for finding in sorted(findings, key=lambda one: places[one.kind]):
        about = (finding.kind, finding.hash, finding.generation, finding.source)
        chosen.setdefault(about, Action(finding, ORDER[finding.kind]))
    return list(chosen.values())


class Repair:
    """Executes a plan."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._objects = store.objects
        self._references = store.references
        self._transactions = RepairTransactions(store.references)
        self._confirm = Confirm(store.references, store.objects)
        self.report = RepairReport()

    def execute(self, plan: Sequence[Action]) -> RepairReport:
        """Bring back what can be; if there is nothing of that kind, take away what is too much."""
        self._take_steps([one for one in plan if one.finding.kind not in TAKES_AWAY])
        # Stop after bringing anything back: what was too much a moment ago may be needed by what
        # came back. The next check knows.
        if self.report.done:
            return self.report
        surplus = [one for one in plan if one.finding.kind in TAKES_AWAY]
        # As long as an index is missing, everything it led to looks like garbage. Nothing goes
        # until it is found or its commits are deleted.
        if any(_hides_others(action.finding) for action, _ in self.report.left):
            self.report.left += [(action, _UNKNOWN_USE) for action in surplus]
            return self.report
        self._take_steps(surplus)
        Collector(self._references, self._objects, name="holdfast store fsck").collect()
        return self.report

    def _take_steps(self, plan: Sequence[Action]) -> None:
        """Do what there is to do about each finding, and note why it was not done.

        One that fails does not keep the others from being repaired.
        """
        steps: dict[FindingKind, Callable[[StoreFinding], str]] = {
            FindingKind.COMMIT_DIFFERS: self._agree,
            FindingKind.COMMIT_OBJECT_MISSING: self._write_commit,
            FindingKind.COMMIT_ROW_MISSING: self._restore_commit,
            FindingKind.DAMAGED_CHUNK: self._replace,
            FindingKind.MISSING_ROW: self._adopt,
            FindingKind.MISSING_CHUNK: self._bring_back,
            FindingKind.MISSING_EDGE: self._add_edge,
            FindingKind.STALE_EDGE: self._move_edge,
            FindingKind.LEAKED_EDGE: self._drop_edge,
            FindingKind.WRONG_COUNT: self._recount,
            FindingKind.LEAKED_ROW: self._recount,
            FindingKind.LEAKED_OBJECT: self._sweep,
            FindingKind.COMMIT_UNFINISHED: lambda _: "",
            FindingKind.COMMIT_DAMAGED: lambda _: "neither its row nor its object can be read",
        }
        for action in plan:
            try:
                why_not = steps[action.finding.kind](action.finding)
            except HoldfastError as error:
                why_not = str(error)
            if why_not:
                self.report.left.append((action, why_not))
            else:
                self.report.done.append(action)

    # Each of these returns why it did not do it; nothing if it did, or if it need not be done.

    def _agree(self, finding: StoreFinding) -> str:
        """Let a commit's row and object hold the same record: the row's, if that can be read."""
        number = CommitId(finding.generation)
        row = row_of(self._references.database, number)
        data = stored_record(self._objects, finding.commit, number)
        if row is None or data is None or data == row.record:
            return ""
        of_row, of_object = readable(row.record, number), readable(data, number)
        if of_row is not None and of_row.name == row.name:
            # The row is what readers saw all the time.
            key = commit_object_key(row.name, number)
            self._set_aside(key, data)
            self._objects.put(key, [row.record])
        elif of_object is not None and of_object.name == row.name:
            self._transactions.replace_record(number, data)
        return ""

    def _write_commit(self, finding: StoreFinding) -> str:
        row = row_of(self._references.database, CommitId(finding.generation))
        if row is not None:
            self._objects.put(commit_object_key(row.name, row.id), [row.record])
        return ""

    def _restore_commit(self, finding: StoreFinding) -> str:
        """Give a commit its row back from its object; where that cannot be, set the object aside.

        Its name may have been taken by another commit since, or its chunks may be collected.
        """
        number = CommitId(finding.generation)
        data = stored_record(self._objects, finding.commit, number)
        if data is None or row_of(self._references.database, number) is not None:
            return ""
        commit = readable(data, number)
        is_whole = commit is not None and commit.name == finding.commit
        if commit is not None and is_whole and self._transactions.restore_commit(commit, data):
            return ""
        self._set_aside(commit_object_key(finding.commit, number), data)
        return ""

    def _replace(self, finding: StoreFinding) -> str:
        """Set a damaged object aside, and store the chunk again from another generation.

        The row says `not stored` before the object goes: a writer that has the bytes stores them
        again, and no new reference is made to what is damaged.
        """
        key = finding.key
        if not self._confirm.confirm([finding]):
            return ""
        other = whole_object(self._objects, key.hash, but=key)
        try:
            damaged = self._objects.get(key.object_key())
        except ObjectMissing:
            return self._bring_back(finding)
        except Damaged:
            # The disk cannot read it, so it is not set aside. It stays until a collector takes it.
            self._transactions.lose(key)
            return self._store_anew(other)
        # Whole after all: what was wrong was the size in the database, not the object.
        if verify(self._objects, key) is None:
            self._transactions.note_size(key, len(damaged))
            return ""
        # First, so that nobody relies on it; then away with it.
        self._transactions.lose(key)
        self._set_aside(key.object_key(), damaged)
        return self._store_anew(other)

    def _bring_back(self, finding: StoreFinding) -> str:
        """Store a missing chunk again from another generation, if it is still missing."""
        if not finding.generation:
            return _NO_OTHER
        key = finding.key
        if is_stored(self._objects, key):
            return ""
        if self._references.resolve([key.hash]).get(key.hash) != key:
            return ""
        self._transactions.lose(key)
        return self._store_anew(whole_object(self._objects, key.hash, but=key))

    def _adopt(self, finding: StoreFinding) -> str:
        if self._references.resolve([finding.hash]):
            return ""
        return self._store_anew(whole_object(self._objects, finding.hash))

    def _store_anew(self, found: tuple[ChunkKey, bytes] | None) -> str:
        """Store a chunk as every writer does, and let all that needs it refer to that.

        Under a new generation. A delete that timed out, or a sweep that has listed the object, may
        still take away what has the name of an old one.
        """
        if found is None:
            return _NO_OTHER
        key, stored = found
        with self._references.open_job("holdfast store fsck") as job:
            wanted = [(key.hash, len(decode(stored, key)))]
            [(new, needs_upload)] = self._references.reserve_chunks(job, wanted)
            if needs_upload:
                self._objects.put(new.object_key(), [stored])
                # What a chunk refers to is noted with it, or a collector could take it.
                children = self._references.resolve(self._transactions.children(key.hash))
                self._references.mark_uploaded(job, [(new, sorted(children))])
            self._transactions.move_edges(key.hash)
        return ""

    def _add_edge(self, finding: StoreFinding) -> str:
        source = parse_source(finding.source)
        if source is None or not source_exists(self._references, source):
            return ""
        stored = self._transactions.add_edge(source, finding.hash)
        return "" if stored else "the chunk is not stored"

    def _move_edge(self, finding: StoreFinding) -> str:
        self._transactions.move_edges(finding.hash)
        return ""

    def _drop_edge(self, finding: StoreFinding) -> str:
        source = parse_source(finding.source)
        if source is None:
            return ""
        # The finding said that nobody is there who refers. By now an earlier step may have
        # restored the commit or the chunk, and its references are right again.
        came_back = "nobody" in finding.detail and source.kind in (CHUNK_KIND, COMMIT_KIND)
        if not (came_back and source_exists(self._references, source)):
            self._transactions.drop_edge(source, finding.key)
        return ""

    def _recount(self, finding: StoreFinding) -> str:
        self._transactions.recount([finding.hash])
        return ""

    def _sweep(self, finding: StoreFinding) -> str:
        if not self._confirm.confirm([finding]):
            return ""
        name = finding.key.object_key()
        old_enough_s = self._objects.now_s() - self._references.settings.orphan_grace_s
        for stored in self._objects.list(name):
            if stored.modified_s > old_enough_s:
                return "it is younger than the grace; the collector deletes it later"
        self._objects.delete_many([name])
        return ""

    def _set_aside(self, key: str, data: bytes) -> None:
        """Keep an object's bytes under another name, and remove it."""
        # A mark of the content in the name: the same object may be set aside twice, damaged in two
        # ways.
        mark = blake3(data).hexdigest(length=_NAME_MARK_BYTES)
        name = f"{QUARANTINE_PREFIX}{key}.{mark}"
        # Kept before it is removed. A crash in between leaves both, and the next repair does it
        # again.
        self._objects.put(name, [data])
        self._objects.delete_many([key])
        self.report.set_aside.append(name)


def _hides_others(finding: StoreFinding) -> bool:
    """Whether nobody can know what else is in use, as long as this is not repaired."""
    if finding.kind is FindingKind.COMMIT_DAMAGED:
        return True
    return finding.kind in NEEDED_BY_COMMITS and finding.use_refers


_UNKNOWN_USE = "something that leads to other chunks is missing, so nobody knows what is in use"
_NO_OTHER = "no other generation of it is stored; store the same data again, then repair once more"


@dataclass
class Repaired:
    """What was wrong, what was done, and what is wrong still."""

    before: FsckReport
    repairs: list[RepairReport] = field(default_factory=list)
    after: FsckReport = field(default_factory=FsckReport)
    released: int = 0
    """Chunks that a rebuild had held back, and that the collector may take now."""


def check_and_repair(
    store: Store,
    engine: CheckEngine,
    settings: FsckSettings | None = None,
    damaged: Sequence[StoreFinding] = (),
) -> Repaired:
    """Repair what a check finds, and what a scrub has found damaged before.

    One repair may bring to light what another one is needed for: the references of a row that came
    back, or chunks that only a leaked one kept.
    """
    limits = settings or FsckSettings()
    before = check(store, engine, limits)
    before.findings += without_known(damaged, before.findings)
    result = Repaired(before, after=before)
    for _ in range(limits.repair_rounds):
        if result.after.ok:
            break
        done = Repair(store).execute(plan_repair(result.after.findings))
        result.repairs.append(done)
        result.after = check(store, engine, limits)
        if not done.done:
            break
    if result.after.ok:
        # All that is in use is known, and has its references.
        result.released = release_quarantine(store.references.database)
    return result


def rebuild_database(
    url: str,
    *,
    database: str | None = None,
    settings: StoreSettings | None = None,
    seam: Seam | None = None,
) -> RebuildReport:
    """Fill a database that is gone, empty, or half rebuilt; one that knows chunks is left alone."""
    used = settings or StoreSettings()
    with open_objects(url, database=database, settings=used, seam=seam) as found:
        return rebuild(
            found.database_url,
            found.objects,
            walk_record(found.objects),
            settings=used.gc,
            store_id=found.store_id,
            seam=seam,
        )
