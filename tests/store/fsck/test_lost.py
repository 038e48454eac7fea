"""A lost database comes back from objects and the indexes of commits."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.store.fsck.stage import FILES, LARGE, SETTINGS, Damaged, filled_store
from tests.store.gc.stage import Died
from tests.store.postgres import schema

from holdfast.errors import BadInput, CannotOpen, DatabaseLost
from holdfast.seam import Seam
from holdfast.store.fsck.repair import rebuild_database
from holdfast.store.gc.collector import Collector
from holdfast.store.gc.points import StorePoint
from holdfast.store.gc.rebuild import RebuildReport
from holdfast.store.store import Store

SET_META = "UPDATE gc_meta SET number = :number WHERE name = :name"


def edges(damaged: Damaged) -> set[tuple[Any, ...]]:
    return {tuple(row.values()) for row in damaged.rows("gc_edge")}


def reopened(damaged: Damaged, url: str, database: str | None = None) -> Damaged:
    return Damaged(Store.open(url, database=database, settings=SETTINGS), damaged.scratch)


def rebuilt_without_an_index(damaged: Damaged, folder: Path) -> tuple[Damaged, RebuildReport]:
    """Lose the database, and the top of an index, too; rebuild, and open the store again."""
    url = damaged.store.url
    with Store.open(url, settings=SETTINGS) as store:
        key = Damaged(store, damaged.scratch).root("one")
        store.objects.delete_many([key.object_key()])
    for path in (folder / "store").glob("gc.sqlite*"):
        path.unlink()
    report = rebuild_database(url, settings=SETTINGS)
    return reopened(damaged, url), report


def test_references_are_as_before(tmp_path: Path) -> None:
    with filled_store(tmp_path) as damaged:
        Collector(damaged.store.references, damaged.store.objects).collect()
        before, url = edges(damaged), damaged.store.url
    for path in (tmp_path / "store").glob("gc.sqlite*"):
        path.unlink()
    with pytest.raises(DatabaseLost):
        Store.open(url, settings=SETTINGS)
    report = rebuild_database(url, settings=SETTINGS)
    assert (report.commits, report.damaged_commits) == (2, {})
    again = reopened(damaged, url)
    with again.store:
        assert edges(again) == before
        assert again.check().ok
        Collector(again.store.references, again.store.objects).collect()
        assert again.read("one") == dict(sorted((FILES | {"large": LARGE}).items()))


def test_a_lost_index_does_not_hide_the_rest(tmp_path: Path) -> None:
    """What can be read of a commit is referred to, whatever else is missing."""
    with filled_store(tmp_path) as damaged:
        upper = damaged.commits.get("two").layers[1]
    again, report = rebuilt_without_an_index(damaged, tmp_path)
    assert set(report.damaged_commits) == {"one", "two"}
    with again.store:
        Collector(again.store.references, again.store.objects).collect()
        assert set(upper.chunks) <= {known.hash for known in again.known()}
        assert set(again.check().counts()) == {"missing chunk"}


def test_what_only_a_lost_index_led_to_comes_back_with_it(tmp_path: Path) -> None:
    with filled_store(tmp_path) as damaged:
        before = damaged.read("two")
    again, report = rebuilt_without_an_index(damaged, tmp_path)
    with again.store:
        assert 0 < report.quarantined < len(again.known())
        Collector(again.store.references, again.store.objects).collect()
        assert again.repair().released == 0
        with again.store.references.open_job("again") as job:
            again.write(job, "again", FILES | {"large": LARGE})
        Collector(again.store.references, again.store.objects).collect()
        again.commits.delete("again")
        result = again.repair()
        assert result.after.ok
        assert result.released == report.quarantined
        Collector(again.store.references, again.store.objects).collect()
        assert again.check().ok
        assert again.read("two") == before
        assert again.read("one") == dict(sorted((FILES | {"large": LARGE}).items()))


def test_whoever_gives_up_the_damaged_commits_gets_the_space_back(tmp_path: Path) -> None:
    with filled_store(tmp_path) as damaged:
        pass
    again, report = rebuilt_without_an_index(damaged, tmp_path)
    with again.store:
        again.commits.delete("one")
        again.commits.delete("two")
        Collector(again.store.references, again.store.objects).collect()
        assert len(again.known()) == report.quarantined
        assert again.repair().released == report.quarantined
        Collector(again.store.references, again.store.objects).collect()
        assert again.known() == []
        assert again.check().ok


def test_on_postgres(tmp_path: Path, postgres_url: str) -> None:
    with schema(postgres_url) as url, filled_store(tmp_path, url) as damaged:
        place, before = damaged.store.url, edges(damaged)
        with pytest.raises(BadInput, match="not lost"):
            rebuild_database(place, database=url, settings=SETTINGS)
        with schema(postgres_url) as empty:
            with pytest.raises(DatabaseLost):
                Store.open(place, database=empty, settings=SETTINGS)
            rebuild_database(place, database=empty, settings=SETTINGS)
            again = reopened(damaged, place, empty)
            with again.store:
                assert edges(again) == before
                assert again.check().ok


def test_a_database_of_another_store_is_not_taken(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with filled_store(tmp_path / "a") as one, filled_store(tmp_path / "b") as other:
        theirs = f"sqlite:///{tmp_path}/b/store/gc.sqlite"
        with pytest.raises(DatabaseLost, match="belongs to store"):
            rebuild_database(one.store.url, database=theirs, settings=SETTINGS)
        assert other.check().ok


def make_old(damaged: Damaged) -> None:
    """Let the database be one that never heard of the second commit."""
    number = damaged.commits.get("two").id
    damaged.sql("DELETE FROM gc_commit WHERE id = :id", id=number)
    damaged.sql(SET_META, name="last_number", number=number - 1)


def test_an_old_database_is_set_aside_on_postgres(tmp_path: Path, postgres_url: str) -> None:
    with schema(postgres_url) as url:
        with filled_store(tmp_path, url) as damaged:
            make_old(damaged)
            place = damaged.store.url
        with pytest.raises(DatabaseLost, match="never gave out"):
            Store.open(place, database=url, settings=SETTINGS)
        report = rebuild_database(place, database=url, settings=SETTINGS)
        assert (report.commits, report.damaged_commits) == (2, {})
        again = reopened(damaged, place, url)
        with again.store:
            assert again.check().ok
            suffix = report.set_aside.partition("gc_…_")[2]
            assert len(again.rows("gc_commit_" + suffix)) == 1


def test_an_old_database_that_somebody_has_open_stays_where_it_is(tmp_path: Path) -> None:
    """Whatever they store would be unknown to the new one."""
    with filled_store(tmp_path) as damaged:
        make_old(damaged)
        with pytest.raises(CannotOpen, match="somebody else"):
            rebuild_database(damaged.store.url, settings=SETTINGS)
        assert not list((tmp_path / "store").glob("gc.sqlite.old*"))
        assert damaged.commits.get("one").name == "one"
        damaged.store.references.database.check_complete()


def test_setting_aside_goes_on_after_it_was_interrupted(tmp_path: Path) -> None:
    with filled_store(tmp_path) as damaged:
        make_old(damaged)
        url = damaged.store.url

    def die(point: str) -> None:
        if point == StorePoint.SETTING_ASIDE:
            raise Died(point)

    with pytest.raises(Died):
        rebuild_database(url, settings=SETTINGS, seam=Seam(reached=die))
    with pytest.raises(DatabaseLost, match="rebuild"):
        Store.open(url, settings=SETTINGS)
    report = rebuild_database(url, settings=SETTINGS)
    with sqlite3.connect(report.set_aside) as old:
        assert old.execute("SELECT name FROM gc_commit").fetchall() == [("one",)], "all is there"
    with reopened(damaged, url).store as store:
        assert len(store.references.commits()) == 2


def test_a_collector_that_is_at_work_takes_nothing_of_a_rebuild(damaged: Damaged) -> None:
    """It was opened before; half of the references make garbage of what the others need."""
    collector = Collector(damaged.store.references, damaged.store.objects)
    collector.collect()
    damaged.sql(SET_META, name="rebuilding", number=1)
    damaged.sql("DELETE FROM gc_edge")
    damaged.sql("UPDATE gc_chunk SET refcount = 0, holds = 0")
    with pytest.raises(DatabaseLost):
        collector.collect()
    assert all(row["removing"] is None for row in damaged.rows("gc_chunk"))


def test_an_old_copy_of_a_database_is_refused(damaged: Damaged) -> None:
    """All that was stored since would look like leaked objects."""
    key = damaged.file_chunk("one", "large")
    damaged.sql("DELETE FROM gc_edge WHERE hash = :hash", hash=key.hash)
    damaged.sql("DELETE FROM gc_chunk WHERE hash = :hash", hash=key.hash)
    damaged.commits.delete("two")
    damaged.commits.delete("one")
    damaged.sql(SET_META, name="last_number", number=key.generation - 1)
    with pytest.raises(DatabaseLost, match="never gave out"):
        damaged.check()
