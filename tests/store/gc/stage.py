"""Where tests of the collector happen: objects in memory, a clock that obeys, all invariants.

The invariants are those of the design (docs/format/gc.md), by their numbers there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from holdfast.errors import ObjectMissing, StoreUnavailable
from holdfast.seam import Seam
from holdfast.seam.clock import RealClock
from holdfast.seam.holder import monotonic_name
from holdfast.store.gc.collector import Collector
from holdfast.store.gc.commit_rows import CommitId, commit_object_key, parse_commit_key
from holdfast.store.gc.leases import Job
from holdfast.store.gc.limits import Shard
from holdfast.store.gc.references import References
from holdfast.store.gc.settings import GcSettings
from holdfast.store.gc.watch import DATABASE_CLOCK
from holdfast.store.objects.objects import ChunkHash, ChunkKey, ObjectExists, StoredObject, hash_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

START_S = 1_800_000_000.0
TEST_CLOCK = "(SELECT now_s FROM test_clock)"
LEASE_S = 600.0
SETTINGS = GcSettings(
    lease_s=LEASE_S,
    synchronous="off",
    number_block=50,
    orphan_grace_s=3600.0,
    connections=4,
    reserve_bytes=0,
)


class Died(BaseException):
    """The process ended here."""


class MemoryObjects:
    """Objects in memory, whose requests can time out and land later."""

    def __init__(self) -> None:
        self.stored: dict[str, tuple[bytes, float]] = {}
        self.clock_s = START_S
        self.deletes: list[list[str]] = []
        self.deletes_time_out = False
        self.late: list[tuple[str, str, bytes]] = []

    def put(self, key: str, data: Sequence[Buffer]) -> None:
        if key in self.stored and self.stored[key][0] != b"".join(data):
            raise ObjectExists(key)
        self.put_many([(key, data)])

    def put_many(self, items: Sequence[tuple[str, Sequence[Buffer]]]) -> None:
        for key, data in items:
            self.stored.setdefault(key, (b"".join(data), self.clock_s))

    def get(self, key: str, offset_bytes: int = 0, size_bytes: int | None = None) -> bytes:
        if key not in self.stored:
            raise ObjectMissing("an object is missing", hint="none", path=key)
        end = None if size_bytes is None else offset_bytes + size_bytes
        return self.stored[key][0][offset_bytes:end]

    def delete_many(self, keys: Sequence[str]) -> None:
        self.deletes.append(list(keys))
        if self.deletes_time_out:
            self.late += [("delete", key, b"") for key in keys]
            raise StoreUnavailable("a request timed out", hint="it may land later")
        for key in keys:
            self.stored.pop(key, None)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        for key, (data, modified_s) in list(self.stored.items()):
            if key.startswith(prefix):
                yield StoredObject(key, len(data), modified_s)

    def now_s(self) -> float:
        return self.clock_s

    def close(self) -> None:
        pass

    def land(self, number: int) -> None:
        """Let a request land that had timed out."""
        what, key, data = self.late.pop(number)
        if what == "put":
            self.stored.setdefault(key, (data, self.clock_s))
        else:
            self.stored.pop(key, None)


class StageClock(RealClock):
    """A monotonic clock that a test moves forward."""

    ahead_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


class DyingSeam:
    """Ends the process at a chosen one of the named moments."""

    def __init__(self) -> None:
        self.reached: list[str] = []
        self.die_at: int | None = None

    def __call__(self, point: str) -> None:
        self.reached.append(str(point))
        if self.die_at is not None and len(self.reached) > self.die_at:
            self.die_at = None
            raise Died(point)


class Stage:
    """A store of references and objects, and those who work with it."""

    def __init__(self, url: str, settings: GcSettings = SETTINGS) -> None:
        self.url = url
        self.settings = settings
        self.objects = MemoryObjects()
        self.dying = DyingSeam()
        self.clock = StageClock()
        self.seam = Seam(reached=self.dying, clock=self.clock)
        self.references = self.open()
        self.sql("CREATE TABLE test_clock (now_s DOUBLE PRECISION)")
        self.sql(f"INSERT INTO test_clock VALUES ({START_S})")

    def open(self, **given: Any) -> References:
        return References(self.url, settings=self.settings, seam=self.seam, now=TEST_CLOCK, **given)

    def close(self) -> None:
        self.references.close()

    def sql(self, statement: str) -> None:
        self.references.database.transact(lambda connection: connection.change(statement))

    def rows(self, table: str) -> list[dict[str, Any]]:
        return self.references.database.read(
            lambda connection: connection.named(f"SELECT * FROM {table}")
        )

    def set_clock(self, seconds: float) -> None:
        """Set the database's clock, forward or back, without any time passing."""
        self.sql(f"UPDATE test_clock SET now_s = now_s + {seconds}")

    def jump(self, seconds: float) -> None:
        """Let time pass, which a collector saw begin; or set the database's clock back."""
        if seconds > 0:
            server = self.references.database.locks_rows
            clock = DATABASE_CLOCK if server else monotonic_name()
            now_s = TEST_CLOCK if server else repr(self.clock.monotonic_s())
            self.sql(
                f"UPDATE gc_job SET seen_until = lease_until, seen_clock = '{clock}', "
                f"seen_s = {now_s} WHERE seen_until IS NULL OR seen_until <> lease_until"
            )
            self.clock.ahead_s += seconds
        self.set_clock(seconds)

    def collector(self, shard: Shard | None = None, name: str = "c") -> Collector:
        return Collector(self.references, self.objects, shard=shard, name=name)

    # Writers.

    def upload(
        self, job: Job, data: bytes, children: Sequence[ChunkHash] = (), put: bool = True
    ) -> ChunkHash:
        """Reserve, put and mark one chunk."""
        (reserved,) = self.references.reserve_chunks(job, [(hash_of(data), len(data))])
        if reserved.needs_upload:
            if put:
                self.objects.put_many([(reserved.key.object_key(), [data])])
            self.references.mark_uploaded(job, [(reserved.key, children)])
        return reserved.key.hash

    def publish(self, job: Job, name: str, roots: Sequence[ChunkHash]) -> CommitId:
        """Publish a commit, all of it."""
        number = self.references.publish_commit(job, name, name.encode(), roots)
        self.objects.put_many([(commit_object_key(name, number), [name.encode()])])
        self.references.confirm_commit(number)
        return number

    def delete(self, name: str) -> None:
        """Delete a commit, all of it."""
        number = self.references.begin_delete_commit(name)
        self.objects.delete_many([commit_object_key(name, number)])
        self.references.end_delete_commit(number)

    def has(self, hash_: ChunkHash) -> bool:
        """Say whether a chunk can be read."""
        key = self.references.resolve([hash_]).get(hash_)
        return key is not None and hash_of(self.objects.get(key.object_key())) == hash_

    # Invariants.

    def check(self) -> None:
        """Check everything that must be true at every moment."""
        chunks = {ChunkKey(r["hash"], r["generation"]): r for r in self.rows("gc_chunk")}
        edges = self.rows("gc_edge")
        refers: Counter[ChunkKey] = Counter()
        held: Counter[ChunkKey] = Counter()
        for one in edges:
            target = ChunkKey(one["hash"], one["generation"])
            (held if one["source_kind"] == "job" else refers)[target] += 1
        for key in refers:
            assert key in chunks, "I1: an edge to a row that is gone"
            assert chunks[key]["uploaded"], "I1: an edge to what is not uploaded"
            stored = self.objects.stored.get(key.object_key())
            assert stored is not None, "I1: an edge to an object that is gone"
            assert hash_of(stored[0]) == key.hash, "I1: other bytes"
        alive: Counter[ChunkHash] = Counter()
        for key, row in chunks.items():
            assert row["refcount"] == refers[key] >= 0, "I2: the count of references is wrong"
            assert row["holds"] == held[key] >= 0, "I2: the count of holds is wrong"
            self._check_states(key, row, refers, held)
            alive[key.hash] += row["uploaded"] and row["removing"] is None
        assert max(alive.values(), default=0) <= 1, "I6: two generations are current"
        self._check_sources(edges, chunks)

    def _check_states(
        self, key: ChunkKey, row: Any, refers: Counter[ChunkKey], held: Counter[ChunkKey]
    ) -> None:
        if row["removing"] is not None:
            assert refers[key] + held[key] == 0, "I4: dying and referred to"
        if row["deleting"] is not None:
            assert row["removing"] is not None, "I5: Deleting before Removing"
            assert row["removing"] <= row["deleting"], "I5: Deleting before Removing"
        elif row["uploaded"] and row["removing"] is None:
            assert key.object_key() in self.objects.stored, "uploaded, and its object is gone"

    def _check_sources(self, edges: Sequence[Any], chunks: dict[ChunkKey, Any]) -> None:
        numbers = {r["id"] for r in self.rows("gc_job")} | {r["id"] for r in self.rows("gc_commit")}
        for one in edges:
            if one["source_kind"] == "chunk":
                source = chunks.get(ChunkKey(one["source_id"], one["source_generation"]))
                assert source is not None, "I3: an edge from a row that is gone"
                assert source["deleting"] is None, "I3: an edge from a row that is Deleting"
            elif one["source_kind"] in {"job", "pin", "commit"}:
                assert int.from_bytes(one["source_id"], "big") in numbers, "I3: from nobody"

    def reachable(self) -> set[ChunkKey]:
        """Return all chunks that commits lead to."""
        outgoing: dict[tuple[str, bytes, int], list[ChunkKey]] = {}
        for one in self.rows("gc_edge"):
            source = (one["source_kind"], one["source_id"], one["source_generation"])
            outgoing.setdefault(source, []).append(ChunkKey(one["hash"], one["generation"]))
        found: set[ChunkKey] = set()
        front = [key for (kind, _, _), keys in outgoing.items() if kind == "commit" for key in keys]
        while front:
            key = front.pop()
            if key not in found:
                found.add(key)
                front += outgoing.get(("chunk", key.hash, key.generation), [])
        return found

    def check_at_rest(self) -> None:
        """I9, I13: exactly what commits lead to is there, in rows and in objects."""
        self.check()
        reachable = self.reachable()
        rows = {ChunkKey(row["hash"], row["generation"]) for row in self.rows("gc_chunk")}
        assert rows == reachable, "I9: rows"
        stored = {key for name in self.objects.stored if (key := ChunkKey.parse(name))}
        assert stored == reachable, "I9: objects"
        named = {found for name in self.objects.stored if (found := parse_commit_key(name))}
        assert named == {(row["name"], row["id"]) for row in self.rows("gc_commit")}, "I9: commits"
        size_bytes = sum(row["size_bytes"] for row in self.rows("gc_chunk"))
        listed = sum(one.size_bytes for one in self.objects.list("chunks/"))
        assert size_bytes == listed, "I13: bytes"

    def come_to_rest(self) -> None:
        """Let everything lapse, land and be collected."""
        self.objects.deletes_time_out = False
        while self.objects.late:
            self.objects.land(0)
        # However far the clock was set back: leases that were given out before lapse later.
        self.jump(1e9)
        self.objects.clock_s += 10 * self.settings.orphan_grace_s
        collector = self.collector()
        collector.collect()
        collector.sweep()


@contextmanager
def staged(url: str, settings: GcSettings = SETTINGS) -> Iterator[Stage]:
    """Open a stage, and close it."""
    stage = Stage(url, settings)
    try:
        yield stage
    finally:
        stage.close()
