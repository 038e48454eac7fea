"""The quarantine: what nobody refers to, and may be somebody's all the same.

A database that is rebuilt while an index is lost cannot know what that index led to: to the
collector it is garbage like any other. So the rebuild lets a job of its own hold all that nobody
refers to. Its lease does not lapse in our lifetimes; it ends when a repair has found that nothing
hides what is in use (`holdfast store fsck --repair`): the index was brought back, or the commits
that needed it were deleted. Whoever stores the same chunks meanwhile refers to them as to any
others.
"""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, literal, select, update
from sqlalchemy.types import BigInteger, LargeBinary, Text

from holdfast.store.gc.database import Database, chunk, edge, job, meta
from holdfast.store.gc.leases import QUARANTINE_JOB, end_lease, release_references
from holdfast.store.gc.references_sql import ReferenceSource
from holdfast.store.gc.transitions import BEGIN_REMOVING, JobKind

LEASE_S = 100 * 365.25 * 86400
# Its row in `gc_meta` has the number of the job.
META_NAME = "quarantine"


def hold_garbage(database: Database, connection: Connection, number: int) -> int:
    """Hold everything that a collector would take, by a job of this number; return how much."""
    times = {"created": database.now, "lease_until": database.now + literal(LEASE_S)}
    named = {"id": number, "kind": JobKind.JOB.value, "name": QUARANTINE_JOB}
    connection.execute(insert(job).values(**named, **times))
    connection.execute(insert(meta).values(name=META_NAME, number=number, words=""))
    source = ReferenceSource.numbered(JobKind.JOB.value, number)
    garbage = database.guard(BEGIN_REMOVING)
    columns = (
        literal(source.kind, Text()),
        literal(source.id, LargeBinary()),
        literal(source.generation, BigInteger()),
        chunk.c.hash,
        chunk.c.generation,
    )
    held = insert(edge).from_select(edge.c.keys(), select(*columns).where(*garbage))
    connection.execute(held)
    counted = update(chunk).where(*garbage).values(holds=chunk.c.holds + 1)
    return int(connection.execute(counted).rowcount)


def release_quarantine(database: Database) -> int:
    """Hand over to the collector what is held, if there is a quarantine; return how much it is."""
    asked = select(meta.c.number).where(meta.c.name == META_NAME)
    number = database.read(lambda connection: connection.execute(asked).scalar())
    if number is None:
        return 0
    end_lease(database, number)
    released = release_references(
        database, ReferenceSource.numbered(JobKind.JOB.value, number), number
    )
    # Last: whoever dies before begins again, and what is left by then goes in any case.
    gone = delete(meta).where(meta.c.name == META_NAME)
    database.transact(lambda connection: connection.execute(gone))
    return released
