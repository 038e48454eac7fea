"""A store that is opened read-only: it can be read, and nothing of it changes."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from tests.store.filesets.operations import put_all, read_all
from tests.store.postgres import schema

from holdfast.errors import BadInput, CannotOpen, UnknownFormat
from holdfast.store.chunks.settings import StoreSettings
from holdfast.store.filesets import Commits, FileSet
from holdfast.store.gc.settings import GcSettings
from holdfast.store.gc.tables import FORMAT_VERSION
from holdfast.store.store import Store

READ_ONLY = StoreSettings(gc=GcSettings(read_only=True))


def filled(folder: Path, database: str | None = None) -> str:
    with (
        Store.create(str(folder), database=database) as store,
        store.references.open_job("test") as job,
    ):
        Commits(store).create(job, "c", [put_all(store, {"a": b"1"}, job)])
    return str(folder)


def check(url: str, database: str | None = None) -> None:
    with Store.open(url, database=database, settings=READ_ONLY) as store:
        commits = Commits(store)
        assert read_all(FileSet(store, commits.get("c").layers)) == {"a": b"1"}
        assert store.references.statistics().commits == {"published": 1}
        with pytest.raises(BadInput, match="opened to look at it"):
            commits.open("c")
        with pytest.raises(BadInput, match="opened to look at it"):
            store.references.open_job("no")
        with pytest.raises(BadInput, match="opened to look at it"):
            commits.delete("c")
    with Store.open(url, database=database) as store:
        assert [one.name for one in Commits(store).list()] == ["c"]


def test_it_is_read_and_refuses_to_write(tmp_path: Path) -> None:
    check(filled(tmp_path / "a store?#%"))


def test_the_same_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    with schema(postgres_url) as database:
        check(filled(tmp_path / "store", database), database)


def test_an_older_database_is_not_migrated(tmp_path: Path) -> None:
    url = filled(tmp_path / "store")
    database = sqlite3.connect(tmp_path / "store" / "gc.sqlite")
    database.execute("UPDATE gc_meta SET number = number - 1 WHERE name = 'format_version'")
    database.commit()
    with pytest.raises(UnknownFormat, match=f"older than this code's {FORMAT_VERSION}"):
        Store.open(url, settings=READ_ONLY)
    asked = "SELECT number FROM gc_meta WHERE name = 'format_version'"
    assert database.execute(asked).fetchone() == (FORMAT_VERSION - 1,)
    database.close()


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    url = filled(tmp_path / "store")
    missing = tmp_path / "missing.sqlite"
    with pytest.raises(CannotOpen):
        Store.open(url, database=f"sqlite:///{missing}", settings=READ_ONLY)
    assert not missing.exists()
