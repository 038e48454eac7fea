"""What a database of references holds, counted: the one source for status, metrics and console."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, case, func, select

from holdfast.seam.clock import Clock
from holdfast.store.gc.database import Database, chunk, collector, commit, job
from holdfast.store.gc.transitions import ChunkState
from holdfast.store.gc.watch import LeaseWatch, OpenLease

LEASES_SHOWN = 100


@dataclass(frozen=True)
class StateTotals:
    """How much is in one state."""

    chunks: int = 0
    size_bytes: int = 0


@dataclass(frozen=True)
class CollectorTotals:
    """What one collector has done since it began."""

    name: str
    started_s: float
    updated_s: float
    chunks: int
    size_bytes: int
    chunks_per_s: float


@dataclass(frozen=True)
class GcStatistics:
    """Everything at one moment; times are by the database's clock."""

    now_s: float
    states: dict[ChunkState, StateTotals]
    not_uploaded_chunks: int
    jobs: int
    pins: int
    lapsed_leases: int
    oldest_lease_s: float | None
    """Since when the oldest job or pin is open."""
    leases: tuple[OpenLease, ...]
    """Whose they are, the oldest first, `LEASES_SHOWN` at most."""
    commits: dict[str, int]
    collectors: tuple[CollectorTotals, ...]


def gather(database: Database, clock: Clock) -> GcStatistics:
    """Count everything; one look at each table."""
    watch = LeaseWatch(database, clock)
    return database.read(lambda connection: _gather(database, connection, watch))


def _gather(database: Database, connection: Connection, watch: LeaseWatch) -> GcStatistics:
    now_s = connection.execute(select(database.now)).scalar_one()
    leases = [
        row._mapping
        for row in connection.execute(
            select(
                job.c.kind,
                func.count().label("count"),
                func.min(job.c.created).label("oldest"),
                func.sum(case((job.c.lease_until < now_s, 1), else_=0)).label("lapsed"),
            )
            .where(job.c.ended.is_(None))
            .group_by(job.c.kind)
        )
    ]
    by_kind = {row["kind"]: row["count"] for row in leases}
    by_state = select(commit.c.state, func.count()).group_by(commit.c.state)
    states, not_uploaded = _states(connection)
    return GcStatistics(
        now_s=now_s,
        states=states,
        not_uploaded_chunks=not_uploaded,
        jobs=by_kind.get("job", 0),
        pins=by_kind.get("pin", 0),
        lapsed_leases=sum(int(row["lapsed"]) for row in leases),
        oldest_lease_s=min((row["oldest"] for row in leases), default=None),
        leases=tuple(watch.open_leases(connection, LEASES_SHOWN)),
        commits={row[0]: row[1] for row in connection.execute(by_state)},
        collectors=_collectors(connection),
    )


def _states(connection: Connection) -> tuple[dict[ChunkState, StateTotals], int]:
    state = case(
        (chunk.c.deleting.is_not(None), ChunkState.DELETING.value),
        (chunk.c.removing.is_not(None), ChunkState.REMOVING.value),
        (chunk.c.refcount > 0, ChunkState.LIVE.value),
        else_=ChunkState.NASCENT.value,
    ).label("state")
    asked = select(
        state,
        func.count().label("count"),
        func.sum(chunk.c.size_bytes).label("size"),
        func.sum(case((chunk.c.uploaded.is_(True), 0), else_=1)).label("waiting"),
    ).group_by(state)
    rows = connection.execute(asked).mappings().all()
    totals = {ChunkState(row["state"]): StateTotals(row["count"], int(row["size"])) for row in rows}
    every = (ChunkState.NASCENT, ChunkState.LIVE, ChunkState.REMOVING, ChunkState.DELETING)
    found = {one: totals.get(one, StateTotals()) for one in every}
    return found, sum(int(row["waiting"]) for row in rows)


def _collectors(connection: Connection) -> tuple[CollectorTotals, ...]:
    rows = connection.execute(select(collector).order_by(collector.c.name)).mappings()
    return tuple(
        CollectorTotals(
            name=row["name"],
            started_s=row["started"],
            updated_s=row["updated"],
            chunks=row["chunks"],
            size_bytes=row["size_bytes"],
            chunks_per_s=row["chunks"] / row["busy_s"] if row["busy_s"] else 0.0,
        )
        for row in rows
    )
