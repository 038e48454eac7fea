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

from holdfast.seam.clock import Clock
from holdfast.store.gc.connections import DatabaseConnection
from holdfast.store.gc.database import Database, slices
from holdfast.store.gc.limits import Shard
from holdfast.store.gc.references_sql import outgoing_edges
from holdfast.store.gc.tables import IS_DYING, IS_UNFINISHED
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

    def __init__(self, database: Database, connection: DatabaseConnection) -> None:
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
        commits = self._connection.rows(f"SELECT name, state FROM gc_commit WHERE {IS_UNFINISHED}")
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
        for condition in (IS_DYING, self._database.guard(BEGIN_REMOVING)):
            room = self._rows_max - len(self._planned)
            asked = (
                "SELECT hash, generation, size_bytes, uploaded, removing FROM gc_chunk "
                f"WHERE {condition} AND {shard.condition} ORDER BY hash LIMIT :rows"
            )
            rows = self._connection.rows(asked, **shard.bounds(), rows=room + 1)
            for hash_, generation, size_bytes, uploaded, removing in rows:
                reason = UNREFERENCED if uploaded else NEVER_UPLOADED
                self._plan(
                    ChunkKey(hash_, generation),
                    size_bytes if uploaded else 0,
                    reason if removing is None else INTERRUPTED,
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
            asked = "SELECT hash, generation FROM gc_edge WHERE source_kind = :kind"
            limited = f"{asked} AND source_id = :id LIMIT :rows"
            rows = self._connection.rows(limited, kind=kind, id=number, rows=self._rows_max)
            freed += self._free([ChunkKey(ChunkHash(h), g) for h, g in rows], HELD_BY_LAPSED)
        return freed

    def _follow(self, front: list[ChunkKey]) -> None:
        """Let go what planned chunks refer to, until nothing more is freed."""
        while front and self._complete:
            freed: list[ChunkKey] = []
            for part in slices(front, self._database.settings.batch_rows):
                going = set(part)
                targets = [
                    ChunkKey(*target)
                    for hash_, generation, *target in outgoing_edges(self._connection, part)
                    if ChunkKey(hash_, generation) in going
                ]
                freed += self._free(targets, FREED)
            front = freed

    def _free(self, targets: Iterable[ChunkKey], reason: str) -> list[ChunkKey]:
        self._going.update(targets)
        freed = []
        for part in slices(sorted(set(targets)), self._database.settings.batch_rows):
            wanted = set(part)
            asked = (
                "SELECT hash, generation, size_bytes, uploaded, refcount + holds FROM gc_chunk "
                "WHERE hash IN :hashes"
            )
            rows = self._connection.rows(asked, hashes=[key.hash for key in part])
            for hash_, generation, plain_bytes, uploaded, references in rows:
                key = ChunkKey(hash_, generation)
                if key not in wanted or key in self._planned:
                    continue
                # Freed only when the last of its references goes: a chunk that two chunks share is
                # planned when both are. References are counted once each, since a source is
                # followed once.
                left = references - self._going[key]
                size_bytes = plain_bytes if uploaded else 0
                if left == 0 and self._plan(key, size_bytes, reason):
                    freed.append(key)
        return freed
