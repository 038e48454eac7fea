"""The plan: what a collection would do now, and why; nothing is changed by looking.

Chunks that go take along what only they refer to. The plan follows these references, up to a bound.

A plan is an estimate. It is read in one transaction without locks, counts what would go, and stops
at `plan_rows_max`; the collector decides again, row by row and under locks, whatever was planned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Connection, select

from holdfast.seam.clock import Clock
from holdfast.store.gc.database import (
    IS_DYING,
    IS_UNFINISHED,
    Database,
    chunk,
    commit,
    edge,
    slices,
)
from holdfast.store.gc.limits import Shard
from holdfast.store.gc.references_sql import CHUNK_KIND
from holdfast.store.gc.transitions import BEGIN_REMOVING
from holdfast.store.gc.watch import ENDED_BY_COLLECTORS, LeaseWatch
from holdfast.store.objects.objects import ChunkHash, ChunkKey

NEVER_UPLOADED = "reserved, never uploaded"
UNREFERENCED = "nothing refers to it"
INTERRUPTED = "its collection has begun"
FREED = "only chunks that go refer to it"
HELD_BY_LAPSED = "held by a lease that lapsed, and by nothing else"


class PlannedChunk(NamedTuple):
    """One chunk that would go."""

    key: ChunkKey
    size_bytes: int
    reason: str


@dataclass(frozen=True)
class GcPlan:
    """What would happen."""

    lapsed_leases: tuple[str, ...]
    unfinished_commits: tuple[str, ...]
    chunks: tuple[PlannedChunk, ...]
    complete: bool
    """False if there is more than the plan may list."""

    def totals(self) -> dict[str, tuple[int, int]]:
        """Return chunks and bytes for each reason."""
        counts: dict[str, tuple[int, int]] = {}
        for _, size_bytes, reason in self.chunks:
            chunks, total_bytes = counts.get(reason, (0, 0))
            counts[reason] = (chunks + 1, total_bytes + size_bytes)
        return counts


def make_plan(database: Database, shard: Shard, clock: Clock) -> GcPlan:
    """Look at one shard; what its chunks free is shown whatever its shard."""
    watch = LeaseWatch(database, clock)
    return database.read(
        lambda connection: _CollectionPlanner(database, connection).make(shard, watch)
    )


class _CollectionPlanner:
    """One look.

    Garbage is found from three ends: rows that nothing refers to, rows whose removal has begun, and
    what lapsed leases hold. From there on it is a flood: a chunk that goes lets go of what it
    refers to, and whatever has lost its last reference goes as well.
    """

    def __init__(self, database: Database, connection: Connection) -> None:
        self._database = database
        self._connection = connection
        self._rows_max = database.settings.plan_rows_max
        self._planned: dict[ChunkKey, PlannedChunk] = {}
        self._complete = True
        # How many of a row's references and holds would go.
        self._going: Counter[ChunkKey] = Counter()

    def make(self, shard: Shard, watch: LeaseWatch) -> GcPlan:
        leases = [
            (one.kind, one.id, one.name)
            for one in watch.open_leases(self._connection, self._rows_max)
            if one.verdict in ENDED_BY_COLLECTORS
        ]
        commits = self._connection.execute(
            select(commit.c.name, commit.c.state).where(IS_UNFINISHED)
        )
        self._take_rows(shard)
        front = self._release([(kind, number.to_bytes(8, "big")) for kind, number, _ in leases])
        self._follow([*self._planned, *front])
        return GcPlan(
            lapsed_leases=tuple(f"{kind} {name}" for kind, _, name in leases),
            unfinished_commits=tuple(f"{name} ({state})" for name, state in commits),
            chunks=tuple(self._planned.values()),
            complete=self._complete,
        )

    def _take_rows(self, shard: Shard) -> None:
        """Plan what is garbage or dying already."""
        for conditions in ([IS_DYING], self._database.guard(BEGIN_REMOVING)):
            room = self._rows_max - len(self._planned)
            asked = select(chunk).where(*conditions, *shard.conditions()).limit(room + 1)
            for row in self._connection.execute(asked.order_by(chunk.c.hash)).mappings():
                reason = UNREFERENCED if row["uploaded"] else NEVER_UPLOADED
                dying = row["removing"] is not None
                self._plan(
                    ChunkKey(row["hash"], row["generation"]),
                    row["size_bytes"] if row["uploaded"] else 0,
                    INTERRUPTED if dying else reason,
                )

    def _plan(self, key: ChunkKey, size_bytes: int, reason: str) -> bool:
        if len(self._planned) >= self._rows_max:
            self._complete = False
            return False
        self._planned[key] = PlannedChunk(key, size_bytes, reason)
        return True

    def _release(self, sources: list[tuple[str, bytes]]) -> list[ChunkKey]:
        """Let go what lapsed leases hold."""
        freed: list[ChunkKey] = []
        for kind, number in sources:
            asked = select(edge.c.hash, edge.c.generation).where(
                edge.c.source_kind == kind, edge.c.source_id == number
            )
            rows = self._connection.execute(asked.limit(self._rows_max)).all()
            freed += self._free([ChunkKey(ChunkHash(h), g) for h, g in rows], HELD_BY_LAPSED)
        return freed

    def _follow(self, front: list[ChunkKey]) -> None:
        """Let go what planned chunks refer to, until nothing more is freed."""
        while front and self._complete:
            freed: list[ChunkKey] = []
            for part in slices(front, self._database.settings.batch_rows):
                going = set(part)
                # Asked by hash, which is indexed, and sorted out by generation here: there is
                # seldom more than one.
                asked = select(edge).where(
                    edge.c.source_kind == CHUNK_KIND,
                    edge.c.source_id.in_([key.hash for key in part]),
                )
                targets = [
                    ChunkKey(*target)
                    for _, hash_, generation, *target in self._connection.execute(asked)
                    if ChunkKey(hash_, generation) in going
                ]
                freed += self._free(targets, FREED)
            front = freed

    def _free(self, targets: Iterable[ChunkKey], reason: str) -> list[ChunkKey]:
        self._going.update(targets)
        freed = []
        for part in slices(sorted(set(targets)), self._database.settings.batch_rows):
            wanted = set(part)
            asked = select(chunk).where(chunk.c.hash.in_({key.hash for key in part}))
            for row in self._connection.execute(asked).mappings():
                key = ChunkKey(row["hash"], row["generation"])
                if key not in wanted or key in self._planned:
                    continue
                # Freed only when the last of its references goes: a chunk that two chunks share is
                # planned when both are. References are counted once each, since a source is
                # followed once.
                left = row["refcount"] + row["holds"] - self._going[key]
                size_bytes = row["size_bytes"] if row["uploaded"] else 0
                if left == 0 and self._plan(key, size_bytes, reason):
                    freed.append(key)
        return freed
