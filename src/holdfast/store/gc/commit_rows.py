"""Commits: the roots. A row first, then the object; at the end, the object first, then the row.

The row and its edges are the moment at which a commit is safe from the collector; the object is
what a lost database is rebuilt from, and what makes the commit visible (`published`). A process
that dies in between leaves a commit that is `publishing` or `deleting`; a collector finishes what
was begun: the row holds the record, so it can write the object as well as the one who began.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, NewType
from urllib.parse import quote, unquote

from holdfast.errors import BadInput, CommitExists, UnknownCommit
from holdfast.seam.holder import this_process
from holdfast.store.gc.connections import DatabaseConnection, DatabaseRow
from holdfast.store.gc.database import Database
from holdfast.store.gc.references_sql import (
    COMMIT_KIND,
    Reference,
    ReferenceSource,
    add_references,
    lock_rows,
    remove_references,
    targets_of,
)
from holdfast.store.gc.transitions import (
    BEGIN_DELETE,
    CLOSE,
    CONFIRM,
    END_DELETE,
    FORGET_JOB,
    PIN,
    CommitState,
    JobKind,
)
from holdfast.store.objects.objects import ChunkKey, Objects

COMMIT_PREFIX = "commits/"
# The quoted name of a commit, its id and a dot must fit into one file name.
FILE_NAME_BYTES_MAX = 255

CommitId = NewType("CommitId", int)

SELECT_COMMITS = "SELECT name, id, record, state, created FROM gc_commit"
# Not LIKE, to which letters of both cases are the same on SQLite.
_BEGINS_SO = "substr(name, 1, :length) = :prefix"
_INSERT_LEASE = (
    "INSERT INTO gc_job (id, kind, name, created, lease_until, host, pid, boot, started) "
    "VALUES (:id, :kind, :name, :now, :lease_end, :host, :pid, :boot, :started)"
)

_OBJECT_KEY = re.compile(r"commits/([^/]+)\.([0-9a-f]{16})")


class CommitRow(NamedTuple):
    """One commit; `created_s` is by the database's clock."""

    name: str
    id: CommitId
    record: bytes
    state: CommitState
    created_s: float


def commit_object_key(name: str, commit_id: int) -> str:
    """Return the name of a commit's object: `commits/<quoted name>.<id, 16 hex>`."""
    return f"{COMMIT_PREFIX}{quote(name, safe='')}.{commit_id:016x}"


def parse_commit_key(object_key: str) -> tuple[str, CommitId] | None:
    """Return name and id of the commit that an object's name stands for, or None."""
    found = _OBJECT_KEY.fullmatch(object_key)
    return (unquote(found[1]), CommitId(int(found[2], 16))) if found else None


def check_database(database: Database, objects: Objects) -> None:
    """Refuse a database that is older than the commits: an old copy, or another store's.

    It would not know the newest commits, and give out numbers a second time.
    """
    named = ((parse_commit_key(stored.key), stored.key) for stored in objects.list(COMMIT_PREFIX))
    # Listed first: a number in a name was given out before the object was put.
    highest = max(((found[1], key) for found, key in named if found), default=None)
    if highest is not None:
        database.check_given_out(*highest)


def check_name(name: str) -> None:
    """Refuse a name that could not be an object's."""
    if not name or "\0" in name or not _is_unicode(name) or _is_too_long(name):
        raise BadInput(
            f"{name[:80]!r} cannot be the name of a commit",
            hint="use 1 to about 200 letters, digits and slashes; others count three times",
        )


def insert_commit(
    database: Database,
    connection: DatabaseConnection,
    job_id: int,
    given: tuple[int, str, bytes],
    roots: Sequence[ChunkKey],
) -> CommitId:
    """Add the row of a commit that is publishing, and its edges to rows that are locked."""
    number, name, record = given
    asked = "SELECT id, job_id, record FROM gc_commit WHERE name = :name AND state <> 'deleting'"
    for found_id, found_job, found_record in connection.rows(asked, name=name):
        # Both must match: the same job may be asked for another record under the same name, which
        # is a conflict, and another job with the same record has not published it.
        if found_job == job_id and found_record == record:
            return CommitId(found_id)  # the same call, repeated
        raise CommitExists(
            f"there is a commit {name!r} already",
            hint="choose another name, or delete that commit first",
        )
    insert_row(connection, number, name, record, CommitState.PUBLISHING, job_id)
    source = ReferenceSource.numbered(COMMIT_KIND, number)
    add_references(database, connection, [Reference(source, key) for key in sorted(set(roots))])
    return CommitId(number)


def confirm(database: Database, connection: DatabaseConnection, commit_id: CommitId) -> None:
    """Say that a commit's object is there."""
    if connection.change(database.step(CONFIRM, "id = :id"), id=commit_id) == 0:
        asked = "SELECT state FROM gc_commit WHERE id = :id"
        # No row changed: confirmed before, by this caller or by a collector, which is fine; or
        # deleted since, which is not.
        if connection.value(asked, id=commit_id) != CommitState.PUBLISHED:
            raise unknown(f"number {commit_id}")


def begin_delete(
    database: Database, connection: DatabaseConnection, name: str, lease_id: int
) -> CommitId:
    """Take a commit away from all who look for it. Again: return the one that is being deleted.

    Its row names a lease, which is not renewed: as long as it lasts, the deleter may be at work.
    Nothing waits for that; a collector deletes the commit as well, and a check knows that nothing
    is wrong.
    """
    begun = database.step(BEGIN_DELETE, "name = :name", returning="id")
    number = connection.value(begun, name=name)
    if number is None:
        number = _take_over_delete(database, connection, name)
    insert_lease(connection, lease_id, JobKind.JOB, f"delete {name}")
    connection.change(
        "UPDATE gc_commit SET job_id = :job_id WHERE id = :id", job_id=lease_id, id=number
    )
    return CommitId(number)


def end_delete(database: Database, connection: DatabaseConnection, commit_id: CommitId) -> None:
    """Let the edges and the row of a commit go, whose object is deleted."""
    asked = f"SELECT job_id FROM gc_commit WHERE id = :id AND {database.guard(END_DELETE)}"
    lease_id = connection.value(f"{asked} FOR UPDATE", id=commit_id)
    if lease_id is None:
        return  # somebody else ended it
    source = ReferenceSource.numbered(COMMIT_KIND, commit_id)
    targets = targets_of(connection, source)
    lock_rows(database, connection, [key.hash for key in targets])
    remove_references(database, connection, [Reference(source, target) for target in targets])
    connection.change(database.step(END_DELETE, "id = :id"), id=commit_id)
    _forget_lease(database, connection, lease_id)


def _take_over_delete(database: Database, connection: DatabaseConnection, name: str) -> int:
    """Return the commit of this name that is being deleted, without a deleter."""
    asked = "SELECT id, job_id FROM gc_commit WHERE name = :name AND state = 'deleting'"
    row = connection.row(f"{asked} ORDER BY id DESC", name=name)
    if row is None:
        raise unknown(repr(name))
    number, lease_id = row
    _forget_lease(database, connection, lease_id)
    return int(number)


def _forget_lease(database: Database, connection: DatabaseConnection, lease_id: int) -> None:
    """End the lease of a deleter.

    After the commit was locked, which is not the usual order; but whoever else locks this lease
    waits for nothing then, because it holds nothing.
    """
    for step in (CLOSE, FORGET_JOB):
        connection.change(database.step(step, "id = :id"), id=lease_id)


def published(
    database: Database, connection: DatabaseConnection, name: str, *, lock: bool
) -> CommitRow:
    """Return a commit that can be pinned; with `lock`, it stays so until the transaction ends."""
    asked = f"{SELECT_COMMITS} WHERE name = :name AND {database.guard(PIN)}"
    asked += " FOR SHARE" if lock else ""
    row = connection.row(asked, name=name)
    if row is None:
        raise unknown(repr(name))
    return to_row(row)


def with_prefix(
    connection: DatabaseConnection, prefix: str, *, every_state: bool
) -> list[CommitRow]:
    """Return the commits whose name begins so, in order of their names."""
    state = "" if every_state else " AND state = 'published'"
    asked = f"{SELECT_COMMITS} WHERE {_BEGINS_SO}{state} ORDER BY name, id"
    found = connection.rows(asked, prefix=prefix, length=len(prefix))
    return [to_row(row) for row in found]


def last_with_prefix(connection: DatabaseConnection, prefix: str) -> CommitRow | None:
    """Return the last commit by name that is there, or is about to be."""
    asked = (
        f"{SELECT_COMMITS} WHERE {_BEGINS_SO} AND state <> 'deleting' ORDER BY name DESC, id DESC"
    )
    found = connection.row(f"{asked} LIMIT 1", prefix=prefix, length=len(prefix))
    return None if found is None else to_row(found)


def row_of(database: Database, number: CommitId) -> CommitRow | None:
    """Return a commit's row as it is now."""
    found = database.read(
        lambda connection: connection.row(f"{SELECT_COMMITS} WHERE id = :id", id=number)
    )
    return None if found is None else to_row(found)


def insert_lease(connection: DatabaseConnection, number: int, kind: JobKind, name: str) -> bool:
    """Insert the row of a lease of this process; False if it is there already.

    A connection may break after COMMIT was sent. The transaction is then repeated, though it had
    happened and only its answer was lost: a second insert would fail on the primary key.
    """
    if connection.row("SELECT id FROM gc_job WHERE id = :id", id=number) is not None:
        return False
    connection.change(
        _INSERT_LEASE, id=number, kind=kind.value, name=name, **this_process()._asdict()
    )
    return True


def insert_row(
    connection: DatabaseConnection,
    number: int,
    name: str,
    record: bytes,
    state: CommitState,
    job_id: int,
) -> None:
    """Insert the row of a commit."""
    connection.change(
        "INSERT INTO gc_commit (id, name, record, state, job_id, created) "
        "VALUES (:id, :name, :record, :state, :job_id, :now)",
        id=number,
        name=name,
        record=record,
        state=state.value,
        job_id=job_id,
    )


def to_row(row: DatabaseRow) -> CommitRow:
    """Return a row of the columns that `SELECT_COMMITS` names."""
    name, number, record, state, created_s = row
    return CommitRow(name, CommitId(number), record, CommitState(state), created_s)


def unknown(what: str) -> UnknownCommit:
    """Return the error for a commit that is not there."""
    return UnknownCommit(f"there is no commit {what}", hint="list the commits to see what there is")


def _is_too_long(name: str) -> bool:
    return len(commit_object_key(name, 0)) - len(COMMIT_PREFIX) > FILE_NAME_BYTES_MAX


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
