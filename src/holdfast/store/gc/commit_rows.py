"""Commits: the roots. A row first, then the object; at the end, the object first, then the row.

The row and its edges are the moment at which a commit is safe from the collector; the object is
what a lost database is rebuilt from, and what makes the commit visible (`published`). A process
that dies in between leaves a commit that is `publishing` or `deleting`; a collector finishes what
was begun: the row holds the record, so it can write the object as well as the one who began.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, NewType
from urllib.parse import quote, unquote

from sqlalchemy import Connection, RowMapping, Select, insert, select, update

from holdfast.errors import BadInput, CommitExists, UnknownCommit
from holdfast.seam.holder import this_process
from holdfast.store.gc.database import Database, commit, edge, job
from holdfast.store.gc.references_sql import (
    COMMIT_KIND,
    Reference,
    ReferenceSource,
    add_references,
    lock_rows,
    remove_references,
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
from holdfast.store.objects.objects import ChunkHash, ChunkKey, Objects

COMMIT_PREFIX = "commits/"
# The quoted name of a commit, its id and a dot must fit into one file name.
FILE_NAME_BYTES_MAX = 255

CommitId = NewType("CommitId", int)

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
    connection: Connection,
    job_id: int,
    given: tuple[int, str, bytes],
    roots: Sequence[ChunkKey],
) -> CommitId:
    """Add the row of a commit that is publishing, and its edges to rows that are locked."""
    number, name, record = given
    asked = select(commit).where(
        commit.c.name == name, commit.c.state != CommitState.DELETING.value
    )
    row = connection.execute(asked).mappings().first()
    if row is not None:
        # Both must match: the same job may be asked for another record under the same name, which
        # is a conflict, and another job with the same record has not published it.
        if row["job_id"] == job_id and row["record"] == record:
            return CommitId(row["id"])  # the same call, repeated
        raise CommitExists(
            f"there is a commit {name!r} already",
            hint="choose another name, or delete that commit first",
        )
    columns = {"id": number, "name": name, "record": record, "job_id": job_id}
    connection.execute(
        insert(commit).values(**columns, state=CommitState.PUBLISHING.value, created=database.now)
    )
    source = ReferenceSource.numbered(COMMIT_KIND, number)
    add_references(database, connection, [Reference(source, key) for key in sorted(set(roots))])
    return CommitId(number)


def confirm(database: Database, connection: Connection, commit_id: CommitId) -> None:
    """Say that a commit's object is there."""
    confirmed = database.step(CONFIRM).where(commit.c.id == commit_id)
    if connection.execute(confirmed).rowcount == 0:
        asked = select(commit.c.state).where(commit.c.id == commit_id)
        # No row changed: confirmed before, by this caller or by a collector, which is fine; or
        # deleted since, which is not.
        if connection.execute(asked).scalar() != CommitState.PUBLISHED:
            raise unknown(f"number {commit_id}")


def begin_delete(database: Database, connection: Connection, name: str, lease_id: int) -> CommitId:
    """Take a commit away from all who look for it. Again: return the one that is being deleted.

    Its row names a lease, which is not renewed: as long as it lasts, the deleter may be at work.
    Nothing waits for that; a collector deletes the commit as well, and a check knows that nothing
    is wrong.
    """
    begun = database.step(BEGIN_DELETE).where(commit.c.name == name).returning(commit.c.id)
    number = connection.execute(begun).scalar()
    if number is None:
        number = _take_over_delete(database, connection, name)
    if connection.execute(select(job.c.id).where(job.c.id == lease_id)).first() is None:
        lease = {"id": lease_id, "kind": JobKind.JOB.value, "name": f"delete {name}"}
        times = {"created": database.now, "lease_until": database.lease_end}
        holder = this_process()._asdict()
        connection.execute(insert(job).values(**lease, **holder, **times))
    connection.execute(update(commit).where(commit.c.id == number).values(job_id=lease_id))
    return CommitId(number)


def end_delete(database: Database, connection: Connection, commit_id: CommitId) -> None:
    """Let the edges and the row of a commit go, whose object is deleted."""
    asked = select(commit.c.job_id).where(commit.c.id == commit_id, *database.guard(END_DELETE))
    lease_id = connection.execute(asked.with_for_update()).scalar()
    if lease_id is None:
        return  # somebody else ended it
    source = ReferenceSource.numbered(COMMIT_KIND, commit_id)
    targets = targets_of(connection, source)
    lock_rows(database, connection, [key.hash for key in targets])
    remove_references(database, connection, [Reference(source, target) for target in targets])
    connection.execute(database.step(END_DELETE).where(commit.c.id == commit_id))
    _forget_lease(database, connection, lease_id)


def _take_over_delete(database: Database, connection: Connection, name: str) -> int:
    """Return the commit of this name that is being deleted, without a deleter."""
    asked = select(commit.c.id, commit.c.job_id).where(
        commit.c.name == name, commit.c.state == CommitState.DELETING.value
    )
    row = connection.execute(asked.order_by(commit.c.id.desc())).first()
    if row is None:
        raise unknown(repr(name))
    _forget_lease(database, connection, row.job_id)
    return int(row.id)


def _forget_lease(database: Database, connection: Connection, lease_id: int) -> None:
    """End the lease of a deleter.

    After the commit was locked, which is not the usual order; but whoever else locks this lease
    waits for nothing then, because it holds nothing.
    """
    for step in (CLOSE, FORGET_JOB):
        connection.execute(database.step(step).where(job.c.id == lease_id))


def published(database: Database, connection: Connection, name: str) -> RowMapping:
    """Return a commit that can be pinned, and keep it so until the transaction ends."""
    asked = select(commit).where(commit.c.name == name, *database.guard(PIN))
    row = connection.execute(asked.with_for_update(read=True)).mappings().first()
    if row is None:
        raise unknown(repr(name))
    return row


def targets_of(connection: Connection, source: ReferenceSource) -> list[ChunkKey]:
    """Return all chunks that a source refers to."""
    asked = select(edge.c.hash, edge.c.generation).where(
        edge.c.source_kind == source.kind,
        edge.c.source_id == source.id,
        edge.c.source_generation == source.generation,
    )
    found = connection.execute(asked)
    return [ChunkKey(ChunkHash(hash_), generation) for hash_, generation in found]


def with_prefix(prefix: str, every_state: bool) -> Select[Any]:
    """Return the query for commits whose name begins so, in order of their names."""
    asked = select(commit).order_by(commit.c.name, commit.c.id)
    if prefix:
        asked = asked.where(commit.c.name.startswith(prefix, autoescape=True))
    if not every_state:
        asked = asked.where(commit.c.state == CommitState.PUBLISHED.value)
    return asked


def last_with_prefix(prefix: str) -> Select[Any]:
    """Return the query for the last commit by name that is there, or is about to be."""
    return (
        select(commit)
        .where(
            commit.c.name.startswith(prefix, autoescape=True),
            commit.c.state != CommitState.DELETING.value,
        )
        .order_by(commit.c.name.desc(), commit.c.id.desc())
        .limit(1)
    )


def row_of(database: Database, number: CommitId) -> CommitRow | None:
    """Return a commit's row as it is now."""
    asked = select(commit).where(commit.c.id == number)
    found = database.read(lambda connection: connection.execute(asked).mappings().first())
    return to_row(found) if found is not None else None


def to_row(row: RowMapping) -> CommitRow:
    """Return a row of the table as a CommitRow."""
    state = CommitState(row["state"])
    return CommitRow(row["name"], CommitId(row["id"]), row["record"], state, row["created"])


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
