"""The collector, on SQLite and PostgreSQL: what goes, what stays, in which steps, how fast."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.store.gc.stage import LEASE_S, SETTINGS, START_S, Died, Stage, staged
from tests.support.clock import ManualClock

from holdfast.errors import DatabaseLost, StoreUnavailable
from holdfast.seam import Seam
from holdfast.store.gc.collector import Collector
from holdfast.store.gc.commit_rows import commit_object_key
from holdfast.store.gc.connections import DatabaseConnection, DatabaseRow
from holdfast.store.gc.limits import BURST_S, SHARDS_MAX, Shard
from holdfast.store.gc.plan import FREED, HELD_BY_LAPSED, INTERRUPTED, NEVER_UPLOADED, UNREFERENCED
from holdfast.store.gc.points import StorePoint
from holdfast.store.gc.references import References
from holdfast.store.gc.settings import DELETE_OBJECTS_MAX
from holdfast.store.gc.transitions import ChunkState, CommitState
from holdfast.store.objects.objects import ChunkHash, ChunkKey, hash_of

A, B, C, D = (hash_of(name) for name in (b"a", b"b", b"c", b"d"))


def make_tree(stage: Stage, name: str = "c", leaves: int = 3) -> list[ChunkHash]:
    """Publish a commit: a root, some branches, and leaves below each."""
    with stage.references.open_job("writer") as job:
        branches = []
        for branch in range(2):
            below = [stage.upload(job, f"{name}{branch}{leaf}".encode()) for leaf in range(leaves)]
            branches.append(stage.upload(job, f"{name}{branch}".encode(), below))
        root = stage.upload(job, name.encode(), branches)
        stage.publish(job, name, [root])
    return [root, *branches]


def test_nothing_is_collected_that_a_commit_leads_to(stage: Stage) -> None:
    make_tree(stage)
    report = stage.collector().collect()
    assert report.objects_deleted == 0
    stage.check_at_rest()
    assert len(stage.rows("gc_chunk")) == 9


def test_a_deleted_commit_takes_its_tree_along(stage: Stage) -> None:
    """Upstream's scenario: transitive delete; its defect 1: one request per object."""
    make_tree(stage, "gone")
    make_tree(stage, "kept")
    stage.delete("gone")
    report = stage.collector().collect()
    assert report.objects_deleted == 9
    assert report.references_removed == 8
    # Three levels, and one look that finds nothing.
    assert report.batches <= 4
    assert max(len(keys) for keys in stage.objects.deletes) > 1
    stage.check_at_rest()
    assert len(stage.rows("gc_chunk")) == 9


def test_a_shared_chunk_stays(stage: Stage) -> None:
    with stage.references.open_job("j") as job:
        stage.upload(job, b"a")
        stage.upload(job, b"b", [A])
        stage.upload(job, b"c", [A])
        stage.publish(job, "one", [B])
        stage.publish(job, "two", [C])
    stage.delete("one")
    stage.collector().collect()
    assert stage.has(A)
    assert not stage.has(B)
    stage.check_at_rest()
    stage.delete("two")
    stage.collector().collect()
    stage.check_at_rest()
    assert stage.objects.stored == {}


def test_a_chain_goes_within_its_depth(stage: Stage) -> None:
    """I9: a chain of n chunks takes n batches and one more; upstream takes a round per link too."""
    with stage.references.open_job("j") as job:
        below: list[ChunkHash] = []
        for depth in range(6):
            below = [stage.upload(job, bytes([depth]), below)]
        stage.publish(job, "chain", below)
    stage.delete("chain")
    report = stage.collector().collect()
    assert report.objects_deleted == 6
    assert report.batches <= 7
    stage.check_at_rest()


def test_reserving_a_dying_chunk_takes_a_new_generation_at_once(stage: Stage) -> None:
    """Race 1: no writer waits for a delete."""
    with stage.references.open_job("j") as job:
        stage.upload(job, b"a")
    stage.dying.die_at = _moments_until(stage, StorePoint.DELETING)
    with pytest.raises(Died):
        stage.collector().collect()
    (dying,) = stage.rows("gc_chunk")
    assert dying["deleting"] is not None
    with stage.references.open_job("k") as job:
        stage.upload(job, b"a")
        stage.publish(job, "c", [A])
    stage.collector().collect()
    assert stage.has(A)
    (row,) = stage.rows("gc_chunk")
    assert row["generation"] != dying["generation"]
    stage.check_at_rest()


def test_the_sequence_that_loses_a_chunk_upstream(stage: Stage) -> None:
    """Defect 2: A stalls, its generation dies, B reserves anew and crashes; A must not go on."""
    a = stage.references.open_job("a")
    (old,) = stage.references.reserve_chunks(a, [(A, 1)])
    stage.jump(LEASE_S + 1)
    stage.dying.die_at = _moments_until(stage, StorePoint.REMOVING)
    with pytest.raises(Died):
        stage.collector().collect()
    b = stage.references.open_job("b")
    stage.references.reserve_chunks(b, [(A, 1)])
    stage.objects.put(old.key.object_key(), [b"a"])
    with pytest.raises(Exception, match="lease"):
        stage.references.mark_uploaded(a, [(old.key, [])])
    with pytest.raises(Exception, match="lease"):
        stage.references.publish_commit(a, "c", b"", [A])
    assert stage.references.resolve([A]) == {}
    stage.come_to_rest()
    stage.check_at_rest()


def test_a_chunk_that_was_never_uploaded_goes_too(stage: Stage) -> None:
    """Race 6: its object may never have been; a missing object is a deleted one."""
    job = stage.references.open_job("j")
    stage.references.reserve_chunks(job, [(A, 7)])
    stage.jump(LEASE_S + 1)
    report = stage.collector().collect()
    assert (report.leases_expired, report.holds_released, report.objects_deleted) == (1, 1, 1)
    assert report.bytes_deleted == 0
    stage.check_at_rest()


def test_a_late_delete_hits_nobody(stage: Stage) -> None:
    """Variant D2: the delete of an old generation lands after the chunk was stored again."""
    with stage.references.open_job("j") as job:
        stage.upload(job, b"a")
    stage.objects.deletes_time_out = True
    with pytest.raises(StoreUnavailable):
        stage.collector().collect()
    stage.objects.deletes_time_out = False
    stage.collector().collect()
    with stage.references.open_job("k") as job:
        stage.upload(job, b"a")
        stage.publish(job, "c", [A])
    stage.objects.land(0)
    assert stage.has(A)
    stage.check_at_rest()


def test_the_clock_may_jump(stage: Stage) -> None:
    """Race 10, I5: back and forth between the steps, nothing is lost and no order is turned."""
    with stage.references.open_job("j") as job:
        stage.upload(job, b"a")
        stage.jump(-7 * 86400)
        stage.publish(job, "c", [A])
        assert stage.collector().collect().leases_expired == 0
    stage.delete("c")
    stage.dying.die_at = _moments_until(stage, StorePoint.REMOVING)
    with pytest.raises(Died):
        stage.collector().collect()
    stage.jump(-86400)
    stage.dying.die_at = _moments_until(stage, StorePoint.DELETING)
    with pytest.raises(Died):
        stage.collector().collect()
    stage.check()
    stage.jump(30 * 86400)
    stage.collector().collect()
    stage.check_at_rest()


def _moments_until(stage: Stage, point: StorePoint) -> int:
    """Return how many named moments pass before a collection reaches `point`."""
    order = [
        StorePoint.LEASES_EXPIRED,
        StorePoint.LEASE_RELEASED,
        StorePoint.REMOVING,
        StorePoint.DELETING,
    ]
    already = len(stage.dying.reached)
    rows = stage.rows("gc_chunk")
    expected = [StorePoint.REMOVING, StorePoint.DELETING]
    if any(row["removing"] is not None for row in rows):
        expected = [StorePoint.DELETING]
    if point in expected:
        lapsed = stage.references.statistics().lapsed_leases
        expected = [*(order[:1] if lapsed else []), *([order[1]] * lapsed), *expected]
    return already + expected.index(point)


# Crashes.


def scene(stage: Stage) -> None:
    """Everything a collector has to do, at once."""
    make_tree(stage, "gone", leaves=2)
    make_tree(stage, "kept", leaves=1)
    stage.delete("gone")
    job = stage.references.open_job("lapsed")
    stage.references.reserve_chunks(job, [(hash_of(b"never put"), 1)])
    stage.upload(job, b"held")
    publisher = stage.references.open_job("publisher")
    stage.upload(publisher, b"published")
    stage.references.publish_commit(publisher, "half made", b"half made", [hash_of(b"published")])
    make_tree(stage, "half deleted", leaves=1)
    stage.references.begin_delete_commit("half deleted")
    stage.jump(LEASE_S + 1)


def test_a_crash_at_every_step_ends_like_none(stage: Stage) -> None:
    """I10, and race 2: die at each named moment in turn, start again, and find the same at rest."""
    scene(stage)
    deaths = 0
    while True:
        stage.dying.die_at = len(stage.dying.reached) + (deaths % 5)
        try:
            stage.collector(name=f"c{deaths}").collect()
        except Died:
            deaths += 1
            stage.check()
        else:
            break
    stage.dying.die_at = None
    assert deaths > 5
    stage.come_to_rest()
    stage.check_at_rest()
    assert [row.name for row in stage.references.commits()] == ["half made", "kept"]
    assert stage.has(hash_of(b"published"))
    seen = {StorePoint(point) for point in stage.dying.reached}
    rebuild = {point for point in StorePoint if point.startswith(("gc-rebuild", "gc-set"))}
    assert seen == set(StorePoint) - rebuild - {StorePoint.REFERRED}
    assert all(point.description for point in StorePoint)


def test_a_commit_left_half_made_is_finished(stage: Stage) -> None:
    """Race 11: between its row and its object; while its job is at work nobody meddles."""
    with stage.references.open_job("j") as job:
        stage.upload(job, b"a")
        number = stage.references.publish_commit(job, "c", b"record", [A])
        assert stage.collector().collect().commits_finished == 0
    assert stage.collector().collect().commits_finished == 1
    assert stage.references.commit("c").state == CommitState.PUBLISHED
    assert stage.objects.get(commit_object_key("c", number)) == b"record"
    stage.check_at_rest()


# Several collectors, shards.


def test_two_collectors_share_one_shard(stage: Stage) -> None:
    """Variant E2, race 12: a zombie that repeats everything harms nothing."""
    for number in range(4):
        make_tree(stage, f"c{number}")
        stage.delete(f"c{number}")
    make_tree(stage, "kept")
    failures: list[BaseException] = []

    def work(name: str) -> None:
        try:
            stage.collector(name=name).collect()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    stage.collector().collect()
    stage.check_at_rest()


def test_shards_split_the_work(stage: Stage) -> None:
    with stage.references.open_job("j") as job:
        hashes = [stage.upload(job, bytes([number])) for number in range(60)]
    shards = [Shard(part, 3) for part in range(3)]
    for shard in shards:
        mine = [hash_ for hash_ in hashes if shard.holds(hash_)]
        assert stage.collector(shard).collect().objects_deleted == len(mine)
        left = {row["hash"] for row in stage.rows("gc_chunk")}
        assert not left & set(mine)
    stage.check_at_rest()


def test_what_a_chunk_frees_in_another_shard_is_found_there(stage: Stage) -> None:
    make_tree(stage)
    stage.delete("c")
    shards = [Shard(part, 4) for part in range(4)]
    for _ in range(3):
        for shard in shards:
            stage.collector(shard).collect()
    stage.check_at_rest()


@pytest.mark.parametrize("parts", [1, 2, 3, 7, SHARDS_MAX])
def test_shards_cover_every_hash_once(parts: int) -> None:
    shards = [Shard(part, parts) for part in range(parts)]
    for first in range(256):
        hash_ = ChunkHash(bytes([first]) + bytes(31))
        assert sum(shard.holds(hash_) for shard in shards) == 1
    assert sum(len(list(shard.prefixes())) for shard in shards) == 256
    assert [Shard.parse(str(shard)) for shard in shards] == shards


@pytest.mark.parametrize("words", ["", "0/1", "2/1", "1/257", "1", "a/b", "-1/2", "1/0"])
def test_what_is_no_shard_is_refused(words: str) -> None:
    with pytest.raises(Exception, match="not a shard"):
        Shard.parse(words)


# Bounds.


def test_batches_are_bounded(database_url: str) -> None:
    settings = replace(SETTINGS, batch_rows=7, batch_edges=5, delete_objects=3)
    with staged(database_url, settings) as stage:
        make_tree(stage, "c", leaves=6)
        stage.delete("c")
        stage.objects.deletes.clear()
        stage.collector().collect()
        assert max(len(keys) for keys in stage.objects.deletes) <= 3
        stage.check_at_rest()


def test_leases_that_held_nothing_do_not_end_a_collection_early(database_url: str) -> None:
    with staged(database_url, replace(SETTINGS, batch_rows=1)) as stage:
        *_, last = [stage.references.open_job(f"job {number}") for number in range(4)]
        stage.references.reserve_chunks(last, [(hash_of(b"a"), 1)])
        stage.come_to_rest()
        stage.check_at_rest()


def test_delete_requests_are_no_larger_than_s3_takes() -> None:
    assert SETTINGS.delete_objects <= DELETE_OBJECTS_MAX == 1000


class PatientCollector(Collector):
    """Waits in virtual time."""

    clock: ManualClock

    def wait(self, wait_s: float) -> None:
        self.clock.now_s += wait_s


@pytest.mark.parametrize(
    ("limit", "most"), [({"objects_per_s": 10.0}, 10), ({"bytes_per_s": 20}, 10)]
)
def test_deletes_keep_to_their_rate(tmp_path: Path, limit: dict[str, Any], most: float) -> None:
    """I12: in no second more than the limit and what the bucket had saved."""
    settings = replace(SETTINGS, **(limit | {"delete_objects": 4}))
    with staged(f"sqlite:///{tmp_path}/gc.sqlite", settings) as stage:
        with stage.references.open_job("j") as job:
            for number in range(100):
                stage.upload(job, b"%02d" % number)
        clock = ManualClock(0.0)
        collector = PatientCollector(stage.references, stage.objects, seam=Seam(clock=clock))
        collector.clock = clock
        deleted_at_s: list[float] = []
        really = stage.objects.delete_many

        def delete_many(keys: list[str]) -> None:
            deleted_at_s.extend([clock.now_s] * len(keys))
            really(keys)

        stage.objects.delete_many = delete_many  # type: ignore[assignment, method-assign]
        collector.collect()
        assert len(deleted_at_s) == 100
        for start_s in deleted_at_s:
            within = [t for t in deleted_at_s if start_s <= t < start_s + 1]
            assert len(within) <= most * (1 + BURST_S)
        assert clock.now_s >= (100 - most * BURST_S) / most * 0.99
        stage.check_at_rest()


def test_a_stopped_collector_leaves_what_it_began_for_the_next(stage: Stage) -> None:
    make_tree(stage)
    stage.delete("c")
    collector = stage.collector()
    collector.stop()
    assert collector.collect().objects_deleted == 0
    stage.collector().collect()
    stage.check_at_rest()


def explained(connection: DatabaseConnection, statement: str) -> list[DatabaseRow]:
    found: list[DatabaseRow] = connection.raw.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()
    return found


def test_garbage_is_found_without_looking_at_what_lives(tmp_path: Path) -> None:
    """The cost grows with the garbage: its queries use indexes that hold nothing else."""
    with staged(f"sqlite:///{tmp_path}/gc.sqlite") as stage:
        make_tree(stage)
        stage.delete("c")
        asked: set[str] = set()
        database = stage.references.database

        def traced(connection: DatabaseConnection) -> None:
            connection.raw.set_trace_callback(asked.add)

        # One connection serves all: each goes back to where the next is taken from.
        database.read(traced)
        stage.collector().collect()
        statements = {one for one in asked if one.startswith(("SELECT", "UPDATE", "DELETE"))}
        assert len(statements) > 5
        plans = {one: database.read(partial(explained, statement=one)) for one in statements}
        scans = [
            (row[3], statement)
            for statement, plan in plans.items()
            for row in plan
            if row[3].startswith("SCAN") and "gc_chunk" in row[3] + statement
        ]
        unindexed = [(what, statement) for what, statement in scans if "USING" not in what]
        assert [one for one in unindexed if "gc_chunk" in one[0] or "gc_edge" in one[0]] == []
        assert any("gc_chunk_garbage" in what or "gc_chunk_dying" in what for what, _ in scans)


# The plan.


def test_a_plan_says_what_would_go_and_why(stage: Stage) -> None:
    scene(stage)
    stage.dying.die_at = None
    plan = stage.collector().plan()
    before = {ChunkKey(row["hash"], row["generation"]) for row in stage.rows("gc_chunk")}
    totals = plan.totals()
    assert totals[UNREFERENCED][0] == 1
    assert totals[FREED][0] == 6
    assert totals[HELD_BY_LAPSED][0] == 2
    assert INTERRUPTED not in totals
    assert NEVER_UPLOADED not in totals
    assert plan.complete
    assert len(plan.lapsed_leases) == 3
    assert set(plan.unfinished_commits) == {"half made (publishing)", "half deleted (deleting)"}
    stage.references.end_delete_commit(stage.references.begin_delete_commit("half deleted"))
    plan = stage.collector().plan()
    stage.collector().collect()
    after = {ChunkKey(row["hash"], row["generation"]) for row in stage.rows("gc_chunk")}
    assert {one.key for one in plan.chunks} == before - after


def test_a_plan_is_bounded(tmp_path: Path) -> None:
    settings = replace(SETTINGS, plan_rows_max=4)
    with staged(f"sqlite:///{tmp_path}/gc.sqlite", settings) as stage:
        make_tree(stage)
        stage.delete("c")
        plan = stage.collector().plan()
        assert len(plan.chunks) <= 4
        assert not plan.complete


# The sweep.


def test_an_orphan_goes_after_its_grace(stage: Stage) -> None:
    """Race 8, defect 3: a put that lands after its row is gone is not left for ever."""
    job = stage.references.open_job("j")
    (reserved,) = stage.references.reserve_chunks(job, [(A, 1)])
    stage.jump(LEASE_S + 1)
    stage.collector().collect()
    stage.objects.put(reserved.key.object_key(), [b"a"])  # it was on its way for so long
    kept = make_tree(stage, "kept")
    assert stage.collector().sweep().orphans_kept == 1
    stage.objects.clock_s += stage.settings.orphan_grace_s
    report = stage.collector().sweep()
    assert (report.orphans_deleted, report.bytes_deleted) == (1, 1)
    stage.check_at_rest()
    assert all(stage.has(hash_) for hash_ in kept)


def test_the_grace_is_by_the_clock_of_the_objects(stage: Stage) -> None:
    """Race 10: the database's clock, however wrong, does not age an object."""
    job = stage.references.open_job("j")
    (reserved,) = stage.references.reserve_chunks(job, [(A, 1)])
    job.close()
    stage.collector().collect()
    stage.objects.put(reserved.key.object_key(), [b"a"])
    stage.jump(365 * 86400)
    assert stage.collector().sweep().orphans_deleted == 0


def test_a_commit_object_without_a_row_is_an_orphan(stage: Stage) -> None:
    with stage.references.open_job("j") as job:
        stage.upload(job, b"a")
        number = stage.publish(job, "c", [A])
    stage.delete("c")
    stage.objects.put(commit_object_key("c", number), [b"c"])  # put twice, the second time late
    stage.come_to_rest()
    stage.check_at_rest()


def test_objects_that_are_not_ours_are_left_alone(stage: Stage) -> None:
    stage.objects.put("chunks/00/readme.txt", [b"x"])
    stage.objects.clock_s += 10 * stage.settings.orphan_grace_s
    report = stage.collector().sweep()
    assert report.unknown_names == ["chunks/00/readme.txt"]
    assert "chunks/00/readme.txt" in stage.objects.stored


def test_an_empty_or_old_database_deletes_nothing(stage: Stage, tmp_path: Path) -> None:
    """To such a one every object is an orphan: the numbers in their names give it away."""
    make_tree(stage)
    stage.objects.clock_s += 10 * stage.settings.orphan_grace_s
    before = dict(stage.objects.stored)
    other = f"sqlite:///{tmp_path}/other.sqlite"
    with (
        References(other, settings=SETTINGS) as empty,
        pytest.raises(DatabaseLost, match="never gave out"),
    ):
        Collector(empty, stage.objects).sweep()
    assert stage.objects.stored == before


def test_a_stale_listing_is_harmless(stage: Stage) -> None:
    """A listing that still shows what is deleted, and does not show what is new."""
    make_tree(stage, "old")
    shown = list(stage.objects.list("chunks/"))
    stage.delete("old")
    stage.collector().collect()
    make_tree(stage, "old")
    stage.objects.clock_s += 10 * stage.settings.orphan_grace_s
    stage.objects.list = lambda prefix: iter(  # type: ignore[method-assign]
        [one for one in shown if one.key.startswith(prefix)]
    )
    stage.collector().sweep()
    del stage.objects.list
    stage.check_at_rest()


def test_deletes_name_only_what_is_deleting(stage: Stage) -> None:
    """I7: at the moment of each delete, every row it names is Deleting."""
    make_tree(stage)
    stage.delete("c")
    really = stage.objects.delete_many
    named: list[str] = []

    def delete_many(keys: list[str]) -> None:
        rows = {ChunkKey(row["hash"], row["generation"]): row for row in stage.rows("gc_chunk")}
        for key in keys:
            parsed = ChunkKey.parse(key)
            assert parsed is not None
            assert rows[parsed]["deleting"] is not None
            assert rows[parsed]["deleting"] >= START_S
        named.extend(keys)
        really(keys)

    stage.objects.delete_many = delete_many  # type: ignore[assignment, method-assign]
    stage.collector().collect()
    assert len(named) == 9
    assert stage.rows("gc_edge") == []


def test_consider_marks_garbage_and_nothing_else(stage: Stage) -> None:
    with stage.references.open_job("j") as job:
        stage.upload(job, b"a")
        stage.upload(job, b"b")
        stage.publish(job, "c", [B])
    assert stage.collector().consider([A, B, C]) == 1
    assert stage.references.statistics().states[ChunkState.REMOVING].chunks == 1
    stage.check()


def test_a_collector_remembers_what_it_did(stage: Stage) -> None:
    make_tree(stage)
    stage.delete("c")
    for _ in range(2):
        stage.collector(name="me").collect()
    (found,) = stage.references.statistics().collectors
    assert found.name == "me 1/1"
    assert (found.chunks, found.size_bytes) == (9, sum(len(n) for n in ("c", "c0", "c1")) + 6 * 3)
