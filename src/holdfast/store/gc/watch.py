"""Judges open leases: which are in use, which process is dead, whose lease is over; and counts.

A lease is over once it has not been renewed for its whole length. A wall clock alone cannot say
that: on SQLite it is the clock of the process that looks, and one that is wrong, or a machine that
slept, would end leases that are in use. So a collector notes in the row of each lease when it first
saw it in its present state, by a clock that does not jump, and ends it only when it sees it
unchanged one length later:

- on SQLite, by the monotonic clock of this boot, which stands still while the machine sleeps; what
  was noted before the machine was restarted counts for nothing;
- on PostgreSQL, by the clock of the server, which is one for all.

A lease whose process is certainly dead is ended immediately. None of this is needed for safety: a
lease may end at any time, and its holder is refused from then on.

`gather` counts what the database holds: the one source for status, metrics and console.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from holdfast.seam.clock import Clock
from holdfast.seam.holder import Holder, is_dead, monotonic_name
from holdfast.store.gc.connections import DatabaseConnection
from holdfast.store.gc.database import Database
from holdfast.store.gc.transitions import CLOSE, EXPIRE, ChunkState

DATABASE_CLOCK = "database"


class LeaseVerdict(StrEnum):
    """What is known of a lease that has not ended."""

    AT_WORK = "at work"
    DEAD = "its process is dead"
    LAPSED = "not renewed in time; ended if it is not renewed while a collector looks"
    OVER = "over"


ENDED_BY_COLLECTORS = (LeaseVerdict.DEAD, LeaseVerdict.OVER)


@dataclass(frozen=True)
class OpenLease:
    """A job or pin that has not ended; times are by the database's clock."""

    id: int
    kind: str
    name: str
    host: str
    """Empty if an older version opened it."""
    pid: int
    since_s: float
    until_s: float
    verdict: LeaseVerdict


class LeaseWatch:
    """Looks at leases with one clock."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def end_those_over(self) -> tuple[int, int]:
        """End what is over, note what else is seen; return how many ended, and how many lapsed.

        Page by page, each in a transaction of its own: thousands of leases must not hold a lock
        that writers need to renew theirs.
        """
        ended = lapsed = last = 0
        while page := self._database.read(partial(self._page, after=last)):
            last = page[-1]["id"]
            judged = [(row, self._judge(row)) for row in page]
            over = [(row, verdict) for row, verdict in judged if verdict in ENDED_BY_COLLECTORS]
            new = [
                row
                for row, verdict in judged
                if verdict not in ENDED_BY_COLLECTORS and not self._is_noted(row)
            ]
            if over or new:
                ended += self._database.transact(partial(self._change, over=over, new=new))
            lapsed += sum(verdict is LeaseVerdict.LAPSED for _, verdict in judged)
        return ended, lapsed

    def open_leases(self, connection: DatabaseConnection, rows_max: int) -> list[OpenLease]:
        """Return leases that have not ended, the oldest first."""
        found: list[OpenLease] = []
        while len(found) < rows_max:
            page = self._page(connection, found[-1].id if found else 0)
            if not page:
                break
            found += [self._lease(row) for row in page]
        return found[:rows_max]

    def lease(self, connection: DatabaseConnection, number: int) -> OpenLease | None:
        """Return one of them."""
        found = connection.named(f"{_OPEN_LEASES} AND id = :id", id=number)
        return self._lease(found[0]) if found else None

    def _page(self, connection: DatabaseConnection, after: int) -> Sequence[Any]:
        asked = f"{_OPEN_LEASES} AND id > :after ORDER BY id LIMIT :rows"
        return connection.named(asked, after=after, rows=self._database.settings.batch_rows)

    def _lease(self, row: Any) -> OpenLease:
        return OpenLease(
            id=row["id"],
            kind=row["kind"],
            name=row["name"],
            host=row["host"] or "",
            pid=row["pid"] or 0,
            since_s=row["created"],
            until_s=row["lease_until"],
            verdict=self._judge(row),
        )

    def _judge(self, row: Any) -> LeaseVerdict:
        holder = Holder(row["host"] or "", row["pid"] or 0, row["boot"] or "", row["started"] or "")
        # The one verdict that needs no waiting: the process table of this machine and boot says
        # so. With PostgreSQL the holder may be on another machine, whose process table nobody here
        # can see.
        if is_dead(holder, one_machine=not self._database.locks_rows):
            return LeaseVerdict.DEAD
        # By the wall clock, which may be wrong; but only in the harmless direction, since what it
        # calls past is watched for a whole length before it ends.
        if not row["is_past"]:
            return LeaseVerdict.AT_WORK
        _, now_s = self._moment(row)
        watched_s = now_s - row["seen_s"] if self._is_noted(row) else 0.0
        return (
            LeaseVerdict.OVER
            if watched_s >= self._database.settings.lease_s
            else LeaseVerdict.LAPSED
        )

    def _is_noted(self, row: Any) -> bool:
        """Whether the lease was seen as it is, by a clock that can be compared with ours.

        A renewal changes `lease_until`, and with it the note loses its worth: the watch begins
        again.
        """
        clock, now_s = self._moment(row)
        return bool(
            row["seen_until"] == row["lease_until"]
            and row["seen_clock"] == clock
            and row["seen_s"] <= now_s
        )

    def _moment(self, row: Any) -> tuple[str, float]:
        if self._database.locks_rows:
            return DATABASE_CLOCK, float(row["now_s"])
        return monotonic_name(), self._clock.monotonic_s()

    def _change(
        self,
        connection: DatabaseConnection,
        over: Sequence[tuple[Any, LeaseVerdict]],
        new: Sequence[Any],
    ) -> int:
        """Change what is still as it was seen."""
        ended = 0
        for row, verdict in over:
            step = CLOSE if verdict is LeaseVerdict.DEAD else EXPIRE
            # Judged outside of the transaction; a renewal since then has changed `lease_until`,
            # and the statement changes no row.
            statement = self._database.step(step, _UNCHANGED)
            ended += connection.change(statement, id=row["id"], lease_until=row["lease_until"])
        for row in new:
            clock, now_s = self._moment(row)
            seen = {"id": row["id"], "lease_until": row["lease_until"]}
            connection.change(_NOTE_LEASE, **seen, seen_clock=clock, seen_s=now_s)
        return ended


_OPEN_LEASES = (
    "SELECT id, kind, name, created, lease_until, host, pid, boot, started, seen_until, "
    "seen_clock, seen_s, lease_until < :now AS is_past, :now AS now_s FROM gc_job "
    "WHERE ended IS NULL"
)
_UNCHANGED = "id = :id AND lease_until = :lease_until"
_NOTE_LEASE = (
    "UPDATE gc_job SET seen_until = :lease_until, seen_clock = :seen_clock, seen_s = :seen_s "
    f"WHERE {_UNCHANGED}"
)

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

    @property
    def oldest_lease_age_s(self) -> float | None:
        """How long the oldest job or pin is open."""
        return None if self.oldest_lease_s is None else self.now_s - self.oldest_lease_s

    def to_json(self) -> dict[str, Any]:
        """Return it as tools and the console print it: an age in the place of a moment."""
        fields = asdict(self)
        del fields["oldest_lease_s"]
        return {**fields, "oldest_lease_age_s": self.oldest_lease_age_s}


def gather(database: Database, clock: Clock) -> GcStatistics:
    """Count everything; one look at each table."""
    watch = LeaseWatch(database, clock)
    return database.read(lambda connection: _gather(database, connection, watch))


def _gather(database: Database, connection: DatabaseConnection, watch: LeaseWatch) -> GcStatistics:
    now_s = connection.value("SELECT :now")
    leases = connection.rows(
        "SELECT kind, count(*), min(created), sum(CASE WHEN lease_until < :now_s THEN 1 ELSE 0 END)"
        " FROM gc_job WHERE ended IS NULL GROUP BY kind",
        now_s=now_s,
    )
    by_kind = {kind: count for kind, count, _, _ in leases}
    by_state = connection.rows("SELECT state, count(*) FROM gc_commit GROUP BY state")
    states, not_uploaded = _states(connection)
    return GcStatistics(
        now_s=now_s,
        states=states,
        not_uploaded_chunks=not_uploaded,
        jobs=by_kind.get("job", 0),
        pins=by_kind.get("pin", 0),
        lapsed_leases=sum(int(lapsed) for *_, lapsed in leases),
        oldest_lease_s=min((oldest_s for _, _, oldest_s, _ in leases), default=None),
        leases=tuple(watch.open_leases(connection, LEASES_SHOWN)),
        commits=dict(by_state),
        collectors=_collectors(connection),
    )


def _states(connection: DatabaseConnection) -> tuple[dict[ChunkState, StateTotals], int]:
    """Return the totals of each state, and how many chunks were reserved and not uploaded yet.

    A state is no column: it follows from the others, in the order below, as in transitions.py. Two
    truths about one chunk could differ.
    """
    rows = connection.rows(
        "SELECT CASE WHEN deleting IS NOT NULL THEN 'deleting' WHEN removing IS NOT NULL THEN "
        "'removing' WHEN refcount > 0 THEN 'live' ELSE 'nascent' END AS state, "
        "count(*), sum(size_bytes), sum(CASE WHEN uploaded IS TRUE THEN 0 ELSE 1 END) "
        "FROM gc_chunk GROUP BY state"
    )
    totals = {ChunkState(state): StateTotals(count, int(size)) for state, count, size, _ in rows}
    every = (ChunkState.NASCENT, ChunkState.LIVE, ChunkState.REMOVING, ChunkState.DELETING)
    found = {one: totals.get(one, StateTotals()) for one in every}
    return found, sum(int(waiting) for *_, waiting in rows)


def _collectors(connection: DatabaseConnection) -> tuple[CollectorTotals, ...]:
    rows = connection.rows(
        "SELECT name, started, updated, chunks, size_bytes, busy_s FROM gc_collector ORDER BY name"
    )
    return tuple(
        CollectorTotals(
            name, started_s, updated_s, chunks, size_bytes, chunks / busy_s if busy_s else 0.0
        )
        for name, started_s, updated_s, chunks, size_bytes, busy_s in rows
    )
