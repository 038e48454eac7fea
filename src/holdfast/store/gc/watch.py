"""Judges open leases: who is at work, who is gone, and whose lease is over.

A lease is over once nobody has renewed it for its whole length. What a wall clock says of that is
not enough: on SQLite it is the clock of whoever looks, and one that is wrong, or a machine that
slept, would end the leases of everybody at work. So a collector notes in the row of each lease when
it first saw it as it is, by a clock that does not jump, and ends it only when it sees it unchanged
one length later:

- on SQLite, by the monotonic clock of this boot, which stands still while the machine sleeps; what
  was noted before the machine was started anew counts for nothing;
- on PostgreSQL, by the clock of the server, which is one for all.

A lease whose process is certainly dead is ended at once. None of this is needed for safety: a lease
may end at any moment, and its holder is refused from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from sqlalchemy import Connection, Select, select, update

from holdfast.seam.clock import Clock
from holdfast.seam.holder import Holder, is_dead, monotonic_name
from holdfast.store.gc.database import Database, job
from holdfast.store.gc.transitions import CLOSE, EXPIRE

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
        """End what is over, note what else is seen; return how many ended, and how many lapsed."""
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

    def open_leases(self, connection: Connection, rows_max: int) -> list[OpenLease]:
        """Return leases that have not ended, the oldest first."""
        found: list[OpenLease] = []
        while len(found) < rows_max:
            page = self._page(connection, found[-1].id if found else 0)
            if not page:
                break
            found += [self._lease(row) for row in page]
        return found[:rows_max]

    def lease(self, connection: Connection, number: int) -> OpenLease | None:
        """Return one of them."""
        row = connection.execute(self._asked().where(job.c.id == number)).mappings().first()
        return None if row is None else self._lease(row)

    def _page(self, connection: Connection, after: int) -> Sequence[Any]:
        asked = self._asked().where(job.c.id > after).order_by(job.c.id)
        limited = asked.limit(self._database.settings.batch_rows)
        return connection.execute(limited).mappings().all()

    def _asked(self) -> Select[Any]:
        now = self._database.now
        columns = (job, (job.c.lease_until < now).label("is_past"), now.label("now_s"))
        return select(*columns).where(job.c.ended.is_(None))

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
        if is_dead(holder, one_machine=not self._database.locks_rows):
            return LeaseVerdict.DEAD
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
        """Whether the lease was seen as it is, by a clock that can be compared with ours."""
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
        self, connection: Connection, over: Sequence[tuple[Any, LeaseVerdict]], new: Sequence[Any]
    ) -> int:
        """Change what is still as it was seen."""
        ended = 0
        for row, verdict in over:
            step = CLOSE if verdict is LeaseVerdict.DEAD else EXPIRE
            same = (job.c.id == row["id"], job.c.lease_until == row["lease_until"])
            ended += connection.execute(self._database.step(step).where(*same)).rowcount
        for row in new:
            clock, now_s = self._moment(row)
            same = (job.c.id == row["id"], job.c.lease_until == row["lease_until"])
            seen = {"seen_until": row["lease_until"], "seen_clock": clock, "seen_s": now_s}
            connection.execute(update(job).where(*same).values(**seen))
        return ended
