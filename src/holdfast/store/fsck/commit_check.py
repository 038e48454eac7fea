"""Compares the rows of commits with their objects; returns those whose chunks are to be walked.

A commit is stored twice, as a row and as an object, and everything else in the database can be made
again from the objects. So of the two the object is the one that must not be missing, and a row that
is missing can be restored. Whatever can be read is walked: a chunk that one of the two still leads
to must never be reported as garbage.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.errors import Damaged, ObjectMissing, UnknownFormat
from holdfast.store.filesets.commits import Commit, parse_record
from holdfast.store.fsck.findings import FindingKind, StoreFinding
from holdfast.store.gc.commit_rows import (
    COMMIT_PREFIX,
    CommitId,
    CommitRow,
    commit_object_key,
    parse_commit_key,
    row_of,
)
from holdfast.store.gc.references import References
from holdfast.store.gc.transitions import CommitState
from holdfast.store.objects.objects import Objects


@dataclass
class CheckedCommits:
    """What is known of all commits."""

    commits: list[Commit] = field(default_factory=list)
    """Those that can be walked; their chunks are in use."""
    restorable: list[CommitId] = field(default_factory=list)
    """Those among them that have no row any more."""
    findings: list[StoreFinding] = field(default_factory=list)
    rows: int = 0
    unknown_names: int = 0


def check_commits(references: References, objects: Objects) -> CheckedCommits:
    """Compare all rows with all objects."""
    found = CheckedCommits()
    # Rows before objects: a commit that is published in between then has an object and no row in
    # this listing, and `_check_object` asks for its row once more. The other way round it would
    # look lost.
    rows = {row.id: row for row in references.commits(every_state=True)}
    found.rows = len(rows)
    listed: dict[CommitId, str] = {}
    for stored in objects.list(COMMIT_PREFIX):
        named = parse_commit_key(stored.key)
        if named is None:
            found.unknown_names += 1
        else:
            listed[named[1]] = named[0]
    for row in rows.values():
        _check_row(found, references, objects, row)
    for number in sorted(listed.keys() - rows.keys()):
        _check_object(found, references, objects, (listed[number], number))
    return found


def readable(record: bytes, number: int) -> Commit | None:
    """Return the commit that a record stands for, or None if it stands for none."""
    try:
        return parse_record(record, number)
    except (Damaged, UnknownFormat, ValueError):
        return None


def stored_record(objects: Objects, name: str, number: int) -> bytes | None:
    """Return what a commit's object holds, or None if there is no object."""
    try:
        return objects.get(commit_object_key(name, number))
    except ObjectMissing:
        return None
    except Damaged:
        return b""  # what the disk cannot read stands for no commit


def is_abandoned(references: References, row: CommitRow) -> bool:
    """Whether nobody works on a commit any more that is neither published nor gone.

    Whoever makes or deletes a commit has a lease, which its row names.
    """
    if row.state is CommitState.PUBLISHED:
        return False
    database = references.database
    at_work = (
        "SELECT gc_job.id FROM gc_job JOIN gc_commit ON gc_commit.job_id = gc_job.id "
        "WHERE gc_commit.id = :id AND gc_job.ended IS NULL AND gc_job.lease_until >= :now"
    )
    return database.read(lambda connection: connection.row(at_work, id=row.id)) is None


def _check_row(
    found: CheckedCommits, references: References, objects: Objects, row: CommitRow
) -> None:
    data = stored_record(objects, row.name, row.id)
    of_row = readable(row.record, row.id)
    of_object = readable(data, row.id) if data is not None else None
    if of_row is not None and of_row.name != row.name:
        of_row = None
    # Whatever state it is in, and whichever of the two can be read: its chunks count as in use, so
    # that the check does not call them leaked while somebody argues about the commit.
    if (walked := of_row or of_object) is not None:
        found.commits.append(walked)
    if is_abandoned(references, row):
        _add(found, references, FindingKind.COMMIT_UNFINISHED, row, row.state.value)
    elif row.state is not CommitState.PUBLISHED:
        return
    elif of_row is None and of_object is None:
        _add(found, references, FindingKind.COMMIT_DAMAGED, row, "its record cannot be read")
    elif data is None:
        _add(found, references, FindingKind.COMMIT_OBJECT_MISSING, row, "")
    elif data != row.record:
        broken = "the row" if of_row is None else "the object"
        why = f"{broken} cannot be read" if of_row is None or of_object is None else "both are read"
        _add(found, references, FindingKind.COMMIT_DIFFERS, row, why)


def _add(
    found: CheckedCommits, references: References, kind: FindingKind, row: CommitRow, detail: str
) -> None:
    """Note what is wrong with a row, if it is still as it was."""
    now = row_of(references.database, row.id)
    if now is not None and now.state == row.state:
        found.findings.append(_finding(kind, row.name, row.id, detail))


def _check_object(
    found: CheckedCommits, references: References, objects: Objects, named: tuple[str, CommitId]
) -> None:
    """Note an object without a row: the row comes before it and goes after it."""
    name, number = named
    if row_of(references.database, number) is not None:
        return
    data = stored_record(objects, name, number)
    if data is None:
        return
    # A number from the future means the wrong database, and then every other finding is wrong as
    # well.
    references.database.check_given_out(number, commit_object_key(name, number))
    restored = readable(data, number)
    if restored is not None and restored.name == name:
        found.commits.append(restored)
        found.restorable.append(number)
    found.findings.append(_finding(FindingKind.COMMIT_ROW_MISSING, name, number, ""))


def _finding(kind: FindingKind, name: str, number: CommitId, detail: str) -> StoreFinding:
    return StoreFinding(kind, generation=number, commit=name, detail=detail)
