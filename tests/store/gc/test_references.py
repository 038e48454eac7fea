"""The client library, on SQLite and PostgreSQL: reserve, upload, refer, let go; all repeatable."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from tests.patience import PATIENCE_S, SCALE
from tests.store.gc.stage import LEASE_S, SETTINGS, Stage, staged
from tests.store.postgres import schema

from holdfast.errors import (
    BadInput,
    CannotOpen,
    ChunkGone,
    CommitExists,
    DatabaseLost,
    DiskFull,
    LeaseLost,
    UnknownCommit,
    UnknownFormat,
)
from holdfast.store.gc.commit_rows import CommitId, commit_object_key, parse_commit_key
from holdfast.store.gc.references import References
from holdfast.store.gc.settings import GcSettings
from holdfast.store.gc.transitions import ChunkState, CommitState
from holdfast.store.objects.objects import ChunkHash, ChunkKey, hash_of

A, B, C = (hash_of(name) for name in (b"a", b"b", b"c"))


@pytest.mark.parametrize("count", [0, 1, 120])
def test_reserve(stage: Stage, count: int) -> None:
    """Upstream's scenario: reserve 0, 1 and n chunks; in the order asked for, in batches."""
    small = replace(SETTINGS, batch_rows=50)
    stage.references.settings = stage.references.database.settings = small
    wanted = [(hash_of(bytes([number])), 1) for number in range(count)]
    with stage.references.open_job("j") as opened:
        reserved = stage.references.reserve_chunks(opened, wanted)
        assert [one.key.hash for one in reserved] == [hash_ for hash_, _ in wanted]
        assert all(one.needs_upload for one in reserved)
        assert len({one.key.generation for one in reserved}) == count
        stage.check()
        assert stage.references.reserve_chunks(opened, wanted) == reserved  # I11
        stage.check()


def test_a_chunk_that_is_uploaded_is_not_uploaded_again(stage: Stage) -> None:
    with stage.references.open_job("first") as first, stage.references.open_job("second") as second:
        stage.upload(first, b"a")
        (reserved,) = stage.references.reserve_chunks(second, [(A, 1)])
        assert not reserved.needs_upload
        assert stage.references.resolve([A, B]) == {A: reserved.key}
        stage.check()


def test_a_reservation_is_no_upload(stage: Stage) -> None:
    """Race 7: a row of another writer says nothing; only `uploaded` does."""
    with stage.references.open_job("first") as first, stage.references.open_job("second") as second:
        (theirs,) = stage.references.reserve_chunks(first, [(A, 1)])
        (ours,) = stage.references.reserve_chunks(second, [(A, 1)])
        assert ours.needs_upload
        assert ours.key != theirs.key
        assert stage.references.resolve([A]) == {}
        with pytest.raises(ChunkGone):
            stage.references.publish_commit(first, "c", b"", [A])


def test_the_first_upload_wins(stage: Stage) -> None:
    """Writers that meet: no live-lock, no wait; the second one's object is collected."""
    references = stage.references
    with references.open_job("first") as first, references.open_job("second") as second:
        (one,) = references.reserve_chunks(first, [(A, 1)])
        (two,) = references.reserve_chunks(second, [(A, 1)])
        for reserved in (one, two):
            stage.objects.put(reserved.key.object_key(), [b"a"])
        assert references.mark_uploaded(second, [(two.key, [])]) == [two.key]
        assert references.mark_uploaded(first, [(one.key, [])]) == [two.key]
        assert references.mark_uploaded(first, [(one.key, [])]) == [two.key]  # I11
        stage.check()
        second.close()
        stage.collector().collect()
        assert stage.has(A)  # the first job holds the winner
        assert one.key.object_key() not in stage.objects.stored
    stage.collector().collect()
    stage.check_at_rest()


def test_children_come_with_their_parent(stage: Stage) -> None:
    """Race 5: edges of a chunk are there from the moment at which it is uploaded."""
    references = stage.references
    with references.open_job("j") as opened:
        reserved = references.reserve_chunks(opened, [(A, 1), (B, 1)])
        keys = [one.key for one in reserved]
        for key, data in zip(keys, (b"a", b"b"), strict=True):
            stage.objects.put(key.object_key(), [data])
        with pytest.raises(ChunkGone):
            references.mark_uploaded(opened, [(keys[0], [B])])
        assert references.resolve([A]) == {}  # all or nothing
        assert references.mark_uploaded(opened, [(keys[1], []), (keys[0], [B, B])]) == keys[::-1]
        stage.check()
        (row,) = [row for row in stage.rows("gc_chunk") if row["hash"] == B]
        assert row["refcount"] == 1
        references.mark_uploaded(opened, [(keys[1], []), (keys[0], [B])])
        stage.check()


def test_references_come_and_go_once(stage: Stage) -> None:
    """Race 4 and I11: a repeated call is no second reference; counts cannot go below zero."""
    references = stage.references
    with references.open_job("j") as opened:
        stage.upload(opened, b"a")
        for _ in range(2):
            references.update_references(opened, [(("note", b"1"), A), (("note", b"2"), A)])
            stage.check()
        assert stage.rows("gc_chunk")[0]["refcount"] == 2
    for _ in range(2):
        references.update_references(None, remove=[(("note", b"1"), A), (("note", b"9"), A)])
        stage.check()
    assert stage.rows("gc_chunk")[0]["refcount"] == 1
    stage.collector().collect()
    assert stage.has(A)
    references.update_references(None, remove=[(("note", b"2"), A)])
    stage.collector().collect()
    stage.check_at_rest()


def test_a_batch_with_one_bad_reference_changes_nothing(stage: Stage) -> None:
    with stage.references.open_job("j") as opened:
        stage.upload(opened, b"a")
        with pytest.raises(ChunkGone, match=B.hex()):
            stage.references.update_references(opened, [(("n", b"1"), A), (("n", b"1"), B)])
        assert stage.rows("gc_chunk")[0]["refcount"] == 0


def test_concurrent_updates_lose_nothing(stage: Stage) -> None:
    """Race 4: many threads add and remove references to the same chunks, in any order."""
    names = [bytes([number]) for number in range(20)]
    hashes = [hash_of(name) for name in names]
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            source = ("thread", bytes([number]))
            for turn in range(4):
                some = hashes if (turn + number) % 2 else hashes[::-1]
                stage.references.update_references(None, [(source, hash_) for hash_ in some])
                stage.references.update_references(None, (), [(source, h) for h in some[:10]])
        except BaseException as error:
            failures.append(error)

    with stage.references.open_job("j") as opened:
        for name in names:
            stage.upload(opened, name)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    stage.check()
    assert sum(row["refcount"] for row in stage.rows("gc_chunk")) == 4 * 10


def test_concurrent_writers_of_the_same_chunks(stage: Stage) -> None:
    """I6: whoever is first, one generation is current, and every writer holds it."""
    names = [bytes([number]) for number in range(30)]
    failures: list[BaseException] = []
    jobs = [stage.references.open_job(f"j{number}") for number in range(4)]

    def work(number: int) -> None:
        try:
            some = names if number % 2 else names[::-1]
            wanted = [(hash_of(name), 1) for name in some]
            reserved = stage.references.reserve_chunks(jobs[number], wanted)
            todo = [one.key for one in reserved if one.needs_upload]
            for one, name in zip(reserved, some, strict=True):
                stage.objects.put_many([(one.key.object_key(), [name])])
            stage.references.mark_uploaded(jobs[number], [(key, []) for key in todo])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    stage.check()
    stage.collector().collect()
    assert all(stage.has(hash_of(name)) for name in names)
    assert len(stage.rows("gc_chunk")) == len(names)
    for opened in jobs:
        opened.close()
    stage.collector().collect()
    stage.check_at_rest()


def test_a_generation_that_comes_while_a_mark_waits_is_seen(postgres_url: str) -> None:
    """I6: PostgreSQL's statements do not see rows that came while they waited for a lock."""
    first, second = sorted([hash_of(b"1"), hash_of(b"2")])
    with schema(postgres_url) as url, staged(url) as stage:
        references = stage.references
        slow, quick = references.open_job("slow"), references.open_job("quick")
        held = references.reserve_chunks(slow, [(first, 1), (second, 1)])
        blocker = psycopg.connect(url)
        blocker.execute("SELECT * FROM gc_chunk WHERE hash = %s FOR UPDATE", [first])
        marked: list[list[ChunkKey]] = []
        mark = threading.Thread(
            target=lambda: marked.append(
                references.mark_uploaded(slow, [(one.key, []) for one in held])
            )
        )
        mark.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        while not references.database.read(lambda connection: connection.value(waiting)):
            pass
        (other,) = references.reserve_chunks(quick, [(second, 1)])
        assert references.mark_uploaded(quick, [(other.key, [])]) == [other.key]
        blocker.rollback()
        blocker.close()
        mark.join()
        assert marked == [[held[0].key, other.key]], "the other one was first"


# Leases.


def test_a_job_is_renewed_by_one_row(stage: Stage) -> None:
    """Upstream renews 201 ids as one: here it is one row whatever the job holds."""
    with stage.references.open_job("j") as opened:
        stage.references.reserve_chunks(opened, [(hash_of(bytes([n])), 1) for n in range(201)])
        stage.jump(LEASE_S - 1)
        stage.references.renew_leases()
        stage.jump(LEASE_S - 1)
        assert stage.collector().collect().leases_expired == 0
        assert len(stage.rows("gc_job")) == 1
        opened.check()


def test_a_lapsed_lease_is_refused_everywhere(stage: Stage) -> None:
    """Race 3: what was uploaded under a lapsed lease is not taken, and the writer is told."""
    told = threading.Event()
    opened = stage.references.open_job("j")
    opened.on_lost(told.set)
    stage.upload(opened, b"a")
    (reserved,) = stage.references.reserve_chunks(opened, [(B, 1)])
    stage.jump(LEASE_S + 1)
    assert stage.collector().collect().leases_expired == 1
    for call in (
        lambda: stage.references.reserve_chunks(opened, [(C, 1)]),
        lambda: stage.references.mark_uploaded(opened, [(reserved.key, [])]),
        lambda: stage.references.update_references(opened, [(("n", b"1"), A)]),
        lambda: stage.references.publish_commit(opened, "c", b"", [A]),
        opened.check,
    ):
        with pytest.raises(LeaseLost, match="'j'"):
            call()
    assert told.is_set()
    opened.release()
    stage.check_at_rest()


def test_a_lease_that_lapsed_is_lost_at_its_renewal(stage: Stage) -> None:
    told: list[str] = []
    opened = stage.references.open_job("j")
    opened.on_lost(lambda: told.append("lost"))
    stage.jump(LEASE_S + 1)
    stage.references.renew_leases()  # nobody has ended it yet: it lives on
    opened.check()
    stage.jump(LEASE_S + 1)
    stage.collector().collect()
    stage.references.renew_leases()
    assert told == ["lost"]
    opened.on_lost(lambda: told.append("too late"))
    assert told == ["lost", "too late"]
    with pytest.raises(LeaseLost):
        opened.check()


def test_a_full_disk_does_not_end_the_renewing_of_leases(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that renews died of `DiskFull`, and every lease of the process lapsed later."""

    def full(*_: object, **__: object) -> None:
        raise DiskFull("the disk is full", hint="make room")

    opened = stage.references.open_job("j")
    with monkeypatch.context() as patch:
        patch.setattr(stage.references.database, "transact", full)
        stage.references.renew_leases()
    opened.check()
    stage.jump(LEASE_S - 1)
    stage.references.renew_leases()
    stage.jump(LEASE_S - 1)
    assert stage.collector().collect().leases_expired == 0
    opened.check()


def test_a_closed_job_lets_go_what_it_held(stage: Stage) -> None:
    opened = stage.references.open_job("j")
    stage.upload(opened, b"a")
    opened.close()
    opened.close()
    assert stage.rows("gc_edge") == []
    assert stage.rows("gc_job") == []
    with pytest.raises(LeaseLost):
        opened.check()


def test_the_renewing_thread_keeps_a_lease_and_says_when_it_cannot(tmp_path: Path) -> None:
    """Real time: a lease lives on; without its row it is lost."""
    settings = GcSettings(lease_s=2.0 * SCALE, synchronous="off")
    with References(f"sqlite:///{tmp_path}/gc.sqlite", settings=settings) as references:
        opened = references.open_job("j")
        first = _lease_until(references)
        deadline = threading.Event()
        while _lease_until(references) == first:
            assert not deadline.wait(0.01)
        opened.check()
        references.database.transact(lambda connection: connection.change("DELETE FROM gc_job"))
        assert opened.lost.wait(PATIENCE_S)


def _lease_until(references: References) -> float:
    asked = "SELECT lease_until FROM gc_job"
    return float(references.database.read(lambda connection: connection.value(asked)))


# Commits and pins.


def test_a_commit_is_found_when_its_object_is_there(stage: Stage) -> None:
    references = stage.references
    with references.open_job("j") as opened:
        stage.upload(opened, b"a")
        number = references.publish_commit(opened, "x/y", b"record", [A])
        assert references.publish_commit(opened, "x/y", b"record", [A]) == number  # I11
        with pytest.raises(UnknownCommit):
            references.commit("x/y")
        assert references.commits() == []
        (row,) = references.commits(every_state=True)
        assert row.state == CommitState.PUBLISHING
        references.confirm_commit(number)
        references.confirm_commit(number)
        assert references.commit("x/y").record == b"record"
        stage.check()


def test_a_name_is_given_once(stage: Stage) -> None:
    references = stage.references
    with references.open_job("j") as opened, references.open_job("k") as other:
        stage.upload(opened, b"a")
        stage.publish(opened, "name", [A])
        with pytest.raises(CommitExists):
            references.publish_commit(other, "name", b"name", [A])
        with pytest.raises(CommitExists):
            references.publish_commit(opened, "name", b"other", [A])
        references.begin_delete_commit("name")
        stage.publish(opened, "name", [A])  # while the old one is being deleted
        assert len(references.commits(every_state=True)) == 2
        stage.check()


def test_commits_are_listed_by_prefix(stage: Stage) -> None:
    with stage.references.open_job("j") as opened:
        stage.upload(opened, b"a")
        for name in ("a/2", "a/1", "a%1", "b", "A/1"):
            stage.publish(opened, name, [A])
    assert [row.name for row in stage.references.commits("a/")] == ["a/1", "a/2"]
    assert [row.name for row in stage.references.commits("a%")] == ["a%1"]
    assert len(stage.references.commits()) == 5


def test_deleting_a_commit_can_be_repeated(stage: Stage) -> None:
    with stage.references.open_job("j") as opened:
        stage.upload(opened, b"a")
        stage.publish(opened, "c", [A])
    number = stage.references.begin_delete_commit("c")
    assert stage.references.begin_delete_commit("c") == number
    with pytest.raises(UnknownCommit):
        stage.references.pin("c")
    stage.references.end_delete_commit(number)
    stage.references.end_delete_commit(number)
    with pytest.raises(UnknownCommit):
        stage.references.begin_delete_commit("c")
    with pytest.raises(UnknownCommit):
        stage.references.confirm_commit(number)


def test_a_pin_keeps_a_deleted_commit(stage: Stage) -> None:
    """Race 9: a reader's pin is a reference like any other."""
    with stage.references.open_job("j") as opened:
        stage.upload(opened, b"b")
        stage.upload(opened, b"a", [B])
        stage.publish(opened, "c", [A])
    with stage.references.pin("c") as pin:
        stage.delete("c")
        stage.collector().collect()
        assert stage.has(A)
        assert stage.has(B)
        pin.check()
        stage.check()
    stage.collector().collect()
    stage.check_at_rest()


def test_a_pin_lapses(stage: Stage) -> None:
    with stage.references.open_job("j") as opened:
        stage.upload(opened, b"a")
        stage.publish(opened, "c", [A])
    pin = stage.references.pin("c")
    stage.delete("c")
    stage.jump(LEASE_S + 1)
    stage.collector().collect()
    stage.references.renew_leases()
    with pytest.raises(LeaseLost):
        pin.check()
    stage.check_at_rest()


def test_commit_keys_round_trip() -> None:
    for name in ("a", "x/y", "ü.ö", "a.b%2F", "..", " "):
        key = commit_object_key(name, 77)
        assert key.count("/") == 1
        assert parse_commit_key(key) == (name, CommitId(77))
    assert parse_commit_key("commits/x") is None


# Bad input.


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 300, "ü" * 60, "\udcff"])
def test_names_that_cannot_be_objects_are_refused(tmp_path: Path, name: str) -> None:
    with (
        staged(f"sqlite:///{tmp_path}/gc.sqlite") as stage,
        stage.references.open_job("j") as opened,
        pytest.raises(BadInput, match="name"),
    ):
        stage.references.publish_commit(opened, name, b"", [])


def test_bad_references_are_refused(tmp_path: Path) -> None:
    with (
        staged(f"sqlite:///{tmp_path}/gc.sqlite") as stage,
        stage.references.open_job("j") as opened,
    ):
        with pytest.raises(BadInput, match="not the hash"):
            stage.references.reserve_chunks(opened, [(ChunkHash(b"short"), 1)])
        with pytest.raises(BadInput, match="by hand"):
            stage.references.update_references(opened, [(("commit", b"1"), A)])
        stage.references.settings = replace(SETTINGS, update_rows_max=1)
        with pytest.raises(BadInput, match="too many"):
            stage.references.update_references(opened, [(("n", b"1"), A), (("n", b"2"), A)])
        with pytest.raises(ChunkGone):
            stage.references.mark_uploaded(opened, [(ChunkKey(A, 999), [])])


@pytest.mark.parametrize("url", ["mysql://x/y", "nonsense", "sqlite://", "postgres"])
def test_other_databases_are_refused(url: str) -> None:
    with pytest.raises(BadInput, match="SQLite or PostgreSQL"):
        References(url)


def test_a_database_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CannotOpen):
        References(f"sqlite:///{tmp_path}/nowhere/gc.sqlite")
    with pytest.raises(CannotOpen):
        References(f"postgresql://nobody@/none?host={tmp_path}")


def test_an_empty_database_is_not_taken_for_an_empty_store(database_url: str) -> None:
    with pytest.raises(DatabaseLost, match="empty"):
        References(database_url, create=False)
    References(database_url, store_id="one").close()
    References(database_url, store_id="one", create=False).close()
    with pytest.raises(DatabaseLost, match="belongs to store one"):
        References(database_url, store_id="two")


def test_a_newer_format_is_refused(stage: Stage) -> None:
    stage.sql("UPDATE gc_meta SET number = 99 WHERE name = 'format_version'")
    with pytest.raises(UnknownFormat, match="99"):
        stage.open()


def test_numbers_are_never_given_twice(stage: Stage) -> None:
    other = stage.open()
    try:
        taken = [
            number
            for references in (stage.references, other) * 3
            for number in references.database.numbers(40)
        ]
    finally:
        other.close()
    assert len(set(taken)) == len(taken)
    assert max(taken) <= stage.references.database.last_number()


def test_statistics_count_everything(stage: Stage) -> None:
    with stage.references.open_job("j") as opened:
        stage.upload(opened, b"a")
        stage.references.reserve_chunks(opened, [(B, 5)])
        stage.publish(opened, "c", [A])
        with stage.references.pin("c"):
            stage.jump(5)
            found = stage.references.statistics()
    assert found.states[ChunkState.LIVE].chunks == 1
    assert found.states[ChunkState.NASCENT].size_bytes == 5
    assert (found.jobs, found.pins, found.not_uploaded_chunks) == (1, 1, 1)
    assert found.oldest_lease_s is not None
    assert found.now_s - found.oldest_lease_s == pytest.approx(5)
    assert found.commits == {"published": 1}
