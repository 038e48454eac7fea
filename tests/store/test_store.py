"""Creating and opening stores: what is there, what is not, and what is another's."""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.store.chunks.stage import SETTINGS, TINY, noise

from holdfast.errors import (
    BadInput,
    CannotOpen,
    Damaged,
    DatabaseLost,
    HoldfastError,
    UnknownFormat,
)
from holdfast.seam import Seam
from holdfast.seam.disk import RealDisk
from holdfast.seam.faulty import Fault, FaultKind, FaultyDisk
from holdfast.store.chunks.settings import Chunking, StoreSettings
from holdfast.store.objects.local import LEFTOVER_AGE_S, ObjectPoint
from holdfast.store.store import DATABASE_FILE, FORMAT_KEY, Store


def put_and_read(store: Store) -> None:
    with store.references.open_job("job") as job, store.chunks.writer(job) as writer:
        refs = writer.put_stream([noise(50_000)])
        writer.barrier()
        assert b"".join(store.chunks.reader().read(refs)) == noise(50_000)


def test_a_store_is_made_and_opened(tmp_path: Path) -> None:
    folder = tmp_path / "some" / "folder"
    with Store.create(str(folder), settings=SETTINGS) as store:
        put_and_read(store)
        store_id = store.id
    with Store.open(str(folder)) as store:
        assert store.id == store_id
        assert store.chunks.chunking == TINY, "what it was made with, not what we would choose"
        put_and_read(store)
    assert {path.name for path in folder.iterdir()} >= {FORMAT_KEY, DATABASE_FILE, "chunks"}


def test_what_a_store_says_of_itself(tmp_path: Path) -> None:
    Store.create(str(tmp_path)).close()
    written = json.loads((tmp_path / FORMAT_KEY).read_text())
    assert len(written.pop("store_id")) == 32
    assert written == {
        "format_version": 1,
        "chunking": {
            "min_bytes": 256 * 1024,
            "average_bytes": 1024 * 1024,
            "max_bytes": 4 * 1024 * 1024,
            "small_file_bytes": 256 * 1024,
            "pack_min_bytes": 64 * 1024,
            "pack_spread_bytes": 64 * 1024,
            "pack_files_max": 16384,
        },
    }


def test_a_folder_with_strange_letters(tmp_path: Path) -> None:
    folder = tmp_path / "a b%20c?d=e#f@ü"
    with Store.create(str(folder), settings=SETTINGS) as store:
        put_and_read(store)
    Store.open(str(folder)).close()
    assert (folder / DATABASE_FILE).exists()


def test_there_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(CannotOpen, match="no store here"):
        Store.open(str(tmp_path / "nothing"))
    assert list(tmp_path.iterdir()) == [], "looking leaves no trace"


def test_there_is_a_store_already(tmp_path: Path) -> None:
    with Store.create(str(tmp_path), settings=SETTINGS) as store:
        store_id = store.id
    with pytest.raises(CannotOpen, match="already"):
        Store.create(str(tmp_path))
    with Store.open(str(tmp_path)) as store:
        assert store.id == store_id


@pytest.mark.parametrize("version", [0, 2, "1"])
def test_another_format_is_refused(tmp_path: Path, version: object) -> None:
    Store.create(str(tmp_path)).close()
    written = json.loads((tmp_path / FORMAT_KEY).read_text())
    written["format_version"] = version
    written["something"] = "new"
    (tmp_path / FORMAT_KEY).write_text(json.dumps(written))
    with pytest.raises(UnknownFormat, match=f"version {version}") as raised:
        Store.open(str(tmp_path))
    assert str(tmp_path) in str(raised.value)


@pytest.mark.parametrize(
    "written",
    [b"", b"{", b"[]", b"7", b"{}", b'{"format_version": 1}', b"\xff\xfe",
     b'{"format_version": 1, "store_id": "x", "chunking": {"min_bytes": 1}}'],
)  # fmt: skip
def test_a_damaged_description_is_told(tmp_path: Path, written: bytes) -> None:
    Store.create(str(tmp_path)).close()
    (tmp_path / FORMAT_KEY).write_bytes(written)
    with pytest.raises(Damaged, match=FORMAT_KEY):
        Store.open(str(tmp_path))


def test_a_missing_database_is_told_and_not_made_anew(tmp_path: Path) -> None:
    with Store.create(str(tmp_path), settings=SETTINGS) as store:
        put_and_read(store)
    database = tmp_path / DATABASE_FILE
    for path in tmp_path.glob(f"{DATABASE_FILE}*"):
        path.unlink()
    for _ in range(2):
        with pytest.raises(DatabaseLost, match=r"missing.*rebuild"):
            Store.open(str(tmp_path))
    assert not database.exists()
    with pytest.raises(DatabaseLost):
        Store.create(str(tmp_path))
    assert not database.exists()


def test_an_empty_database_is_a_lost_one(tmp_path: Path) -> None:
    Store.create(str(tmp_path)).close()
    for path in tmp_path.glob(f"{DATABASE_FILE}*"):
        path.unlink()
    (tmp_path / DATABASE_FILE).touch()
    with pytest.raises(DatabaseLost):
        Store.open(str(tmp_path))


def test_the_database_of_another_store_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        Store.create(str(tmp_path / name)).close()
    with pytest.raises(DatabaseLost, match="belongs to store"):
        Store.open(str(tmp_path / "one"), database=f"sqlite:///{tmp_path}/two/{DATABASE_FILE}")


def test_a_creation_that_was_interrupted_can_be_finished(tmp_path: Path) -> None:
    """The power went after `store.json`, before the database."""
    Store.create(str(tmp_path), settings=SETTINGS).close()
    store_id = json.loads((tmp_path / FORMAT_KEY).read_text())["store_id"]
    for path in tmp_path.glob(f"{DATABASE_FILE}*"):
        path.unlink()
    with Store.create(str(tmp_path), settings=SETTINGS) as store:
        assert store.id == store_id
        put_and_read(store)


def test_a_place_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(HoldfastError) as raised:
        Store.create(str(tmp_path / "file" / "store"))
    assert str(tmp_path / "file") in str(raised.value)


@pytest.mark.parametrize("url", ["ftp://host/path", "http://host", "sqlite:///x"])
def test_an_address_that_is_no_place_is_refused(url: str) -> None:
    with pytest.raises(BadInput, match="a store cannot be at"):
        Store.open(url)


def test_a_bucket_needs_a_database() -> None:
    with pytest.raises(BadInput, match="needs a database"):
        Store.create("s3://bucket/prefix")


def test_a_store_in_a_bucket(tmp_path: Path, s3_url: str) -> None:
    url = f"{s3_url}/{uuid.uuid4().hex}"
    database = f"sqlite:///{tmp_path}/gc.sqlite"
    with Store.create(url, database=database, settings=SETTINGS) as store:
        put_and_read(store)
        store_id = store.id
        assert store.objects.get(FORMAT_KEY)
    with Store.open(url, database=database) as store:
        assert store.id == store_id
        put_and_read(store)
    with pytest.raises(CannotOpen, match="already"):
        Store.create(url, database=database)
    with pytest.raises(CannotOpen, match="no store here"):
        Store.open(f"{url}-other", database=database)


def test_leftovers_go_when_a_store_is_opened(tmp_path: Path) -> None:
    Store.create(str(tmp_path)).close()
    old, new = tmp_path / "tmp" / "old", tmp_path / "tmp" / "new"
    for path in (old, new):
        path.write_bytes(b"half a chunk")
    os.utime(old, (0, time.time() - LEFTOVER_AGE_S - 60))
    Store.open(str(tmp_path)).close()
    assert [old.exists(), new.exists()] == [False, True]


def test_a_disk_that_fails_while_a_store_is_made(tmp_path: Path) -> None:
    disk = FaultyDisk(
        RealDisk(), [Fault(ObjectPoint.SYNC, FaultKind.EIO)], lambda: pytest.fail("dead")
    )
    with pytest.raises(HoldfastError, match="did not take"):
        Store.create(str(tmp_path / "store"), seam=Seam(disk=disk))
    Store.create(str(tmp_path / "store"), seam=Seam(disk=disk)).close()


@pytest.mark.parametrize(
    "sizes",
    [
        {"min_bytes": 2**20, "average_bytes": 2**20},
        {"max_bytes": 2**20},
        {"average_bytes": 2**23},
        {"max_bytes": 2**25},
        {"min_bytes": 100},
        {"small_file_bytes": 2**23},
        {"pack_min_bytes": 2**23},
        {"pack_spread_bytes": 0},
    ],
)
def test_sizes_that_cannot_be_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="bytes"):
        Chunking(**sizes)


def test_settings_are_written_as_people_do() -> None:
    written: dict[str, Any] = {"cache_bytes": "256MB", "request_timeout_s": "5s"}
    cut: dict[str, Any] = {"average_bytes": "512KB"}
    settings = StoreSettings(**written, chunking=Chunking(**cut))
    assert settings.cache_bytes == 256 * 2**20
    assert settings.request_timeout_s == 5.0
    assert settings.chunking.average_bytes == 512 * 1024
