"""Folders stored and restored by processes: the same as by threads, whatever becomes of them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE_S, until
from tests.seam.test_workers import forked
from tests.store.filesets.test_trees import LONG_AGO_NS, look, make_tree

from holdfast.errors import BadInput, DiskFull, StoreError, UnknownCommit
from holdfast.seam.folders import FolderEntry
from holdfast.seam.workers import TASKS_AHEAD, Alive, Finish, TaskHandler, WorkerPool
from holdfast.store.chunks.settings import Chunking, StoreSettings
from holdfast.store.filesets import (
    Commits,
    StoredTree,
    extract,
    previous_tree,
    put_tree,
    ranges,
    restore,
)
from holdfast.store.filesets.ranges import RangeStorer
from holdfast.store.filesets.restore import RangeRestorer, Restoring
from holdfast.store.gc.settings import GcSettings
from holdfast.store.store import Store

SMALL = StoreSettings(
    chunking=Chunking(
        min_bytes=1024,
        average_bytes=4096,
        max_bytes=16384,
        small_file_bytes=2048,
        pack_min_bytes=2048,
        pack_spread_bytes=2048,
    ),
    gc=GcSettings(synchronous="off", reserve_bytes=0),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    made.mkdir()
    make_tree(made)
    dice = random.Random(2)
    for number in range(60):
        path = made / f"sizes/{number:02}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(dice.randbytes(dice.choice([0, 10, 500, 2048, 2049, 30_000])))
        os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
    os.link(made / "sizes/00", made / "zz-again")
    return made


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "RANGE_BYTES", 20_000)
    monkeypatch.setattr(restore, "GROUP_BYTES", 20_000)


@contextmanager
def put_by(
    monkeypatch: pytest.MonkeyPatch,
    root: Path,
    folder: Path,
    begin: Callable[[Any], TaskHandler] = RangeStorer,
    **given: Any,
) -> Iterator[tuple[Store, StoredTree, WorkerPool]]:
    """Store a folder by workers, and commit it as `one`; the workers are forked first."""
    with (
        forked(monkeypatch, begin) as pool,
        Store.create(str(root), settings=SMALL) as store,
        store.references.open_job("put") as job,
    ):
        tree = put_tree(store, job, folder, threads=pool, **given)
        Commits(store).create(job, "one", [tree.layer], seen=tree.seen)
        yield store, tree, pool


def is_first(store: Store) -> bool:
    """Whether nobody asked before, in any process."""
    try:
        os.close(os.open(f"{store.url}/asked", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class KilledOnce(RangeStorer):
    """Dies when it has stored half of a range."""

    def take(self, task: Any, alive: Alive, *, again: bool) -> Finish:
        if len(task) < 2 or not is_first(self._store):
            return super().take(task, alive, again=again)
        super().take(task[: len(task) // 2], alive, again=again)()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


class FirstWaits(RangeStorer):
    """Begins with its first range when another worker has done more than was handed out at once."""

    def take(self, task: Any, alive: Alive, *, again: bool) -> Finish:
        taken = Path(f"{self._store.url}/taken")
        if is_first(self._store):
            enough = 2 * TASKS_AHEAD
            until(lambda: taken.exists() and taken.stat().st_size > enough, "other ranges")
        else:
            with taken.open("ab") as file:
                file.write(b".")
        return super().take(task, alive, again=again)


class FullDisk(RangeStorer):
    def take(self, task: Any, alive: Alive, *, again: bool) -> Finish:
        raise DiskFull("the disk of the store did not take an object", hint="make room")


def test_processes_store_what_threads_store(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path
) -> None:
    """The same chunks: packs end where they would, whoever cuts them."""
    with put_by(monkeypatch, tmp_path / "processes", folder) as (_, tree, pool):
        assert pool._next >= 4, "there was work for several"
    with (
        Store.create(str(tmp_path / "threads"), settings=SMALL) as store,
        store.references.open_job("put") as job,
    ):
        other = put_tree(store, job, folder)
    assert tree.layer == other.layer
    assert (tree.files, tree.read_files, tree.read_bytes) == (
        *(other.files, other.read_files, other.read_bytes),
    )


@pytest.mark.parametrize("begin", [RangeStorer, KilledOnce])
def test_what_is_stored_by_processes_is_restored_by_them(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    tmp_path: Path,
    begin: Callable[[Any], TaskHandler],
) -> None:
    with put_by(monkeypatch, tmp_path / "store", folder, begin) as (_, _, pool):
        assert len(pool.lost_pids) == (begin is KilledOnce)
    target = tmp_path / "restored"
    with (
        forked(monkeypatch, RangeRestorer) as pool,
        Store.open(str(tmp_path / "store"), settings=SMALL) as store,
        Commits(store).open("one") as files,
    ):
        restored = extract(files, target, threads=pool)
    assert look(target) == look(folder)
    assert restored.files == sum(
        not path.is_dir() or path.is_symlink() for path in folder.rglob("*")
    )
    assert (target / "sizes/00").stat().st_ino == (target / "zz-again").stat().st_ino


def test_little_to_read_is_read_without_workers(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path
) -> None:
    """Wherever in the folder it stands; they get what comes when it is no longer little."""
    monkeypatch.setattr(ranges, "RANGE_ENTRIES", 8)
    monkeypatch.setattr(previous_tree, "RACY_NS", -(10**18))  # the files were just made
    with put_by(monkeypatch, tmp_path / "store", folder) as (store, tree, _):
        for number in range(0, 150, 30):
            (folder / f"many/{number:03}").write_bytes(b"a pack." * 292)
        with (
            forked(monkeypatch, RangeStorer) as pool,
            Commits(store).open("one") as parent,
            store.references.open_job("put") as job,
        ):
            again = put_tree(store, job, folder, parent=parent, parent_seen=tree.seen, threads=pool)
            assert pool._next == 0
            (folder / "sizes/59").write_bytes(b"much" * 10_000)
            put_tree(store, job, folder, parent=parent, parent_seen=tree.seen, threads=pool)
            assert pool._next == 1, "the last range"
            monkeypatch.setattr(ranges, "LITTLE_FILES", 1)
            put_tree(store, job, folder, parent=parent, parent_seen=tree.seen, threads=pool)
            assert pool._next > 3, "every range with a file to read"
    assert 0 < again.read_files < tree.read_files


def test_a_long_range_keeps_no_worker_waiting(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path
) -> None:
    """Another takes what comes behind it, more than all have at a time."""
    monkeypatch.setattr(ranges, "RANGE_BYTES", 5_000)
    with put_by(monkeypatch, tmp_path / "store", folder, FirstWaits) as (_, _, pool):
        assert pool._next > 2 * pool.ahead, "there was work behind"


def test_a_disk_that_is_full_ends_a_put_without_a_commit(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path
) -> None:
    with (
        pytest.raises(DiskFull, match="did not take"),
        put_by(monkeypatch, tmp_path / "store", folder, FullDisk),
    ):
        pass
    with Store.open(str(tmp_path / "store"), settings=SMALL) as store:
        assert Commits(store).list() == []
        assert store.references.statistics().jobs == 0


def test_a_file_that_changes_while_it_is_read_is_stored_and_said(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path
) -> None:
    """It grows from small to large in one, and another one goes."""
    before = RangeStorer._read

    def meanwhile(self: RangeStorer, entry: FolderEntry, *rest: Any) -> Any:
        if entry.path == "sizes/00":
            (folder / entry.path).write_bytes(b"grown" * 5000)
        if entry.path == "many/007":
            (folder / entry.path).unlink(missing_ok=True)
        return before(self, entry, *rest)

    monkeypatch.setattr(RangeStorer, "_read", meanwhile)
    with put_by(monkeypatch, tmp_path / "store", folder) as (store, tree, _):
        assert tree.report.changed_files == 1
        assert tree.report.left_out == {"vanished": 1}
        with Commits(store).open("one") as files:
            assert files.read("sizes/00") == b"grown" * 5000
            assert not files.exists("many/007")


class RestorerKilledOnce(RangeRestorer):
    """Dies when a part of its group is written, with one file half written under its own name."""

    def take(self, task: Any, alive: Alive, *, again: bool) -> Finish:
        told, keys = task
        if len(told) < 3 or told[0][0] < "many/1" or not is_first(self._store):
            return super().take(task, alive, again=again)
        super().take((told[:2], keys), alive, again=False)
        half = Path(str(self._root.path)) / told[1][0]
        os.truncate(half, half.stat().st_size // 2)
        (half.parent / f".holdfast-{os.getpid()}-1234.partial").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def test_files_of_a_restorer_that_died_are_written_again(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path
) -> None:
    with put_by(monkeypatch, tmp_path / "store", folder):
        pass
    with (
        forked(monkeypatch, RestorerKilledOnce) as pool,
        Store.open(str(tmp_path / "store"), settings=SMALL) as store,
        Commits(store).open("one") as files,
    ):
        extract(files, tmp_path / "restored", threads=pool)
        assert len(pool.lost_pids) == 1
    assert look(tmp_path / "restored") == look(folder)


class RestorerKilledBesideAUser(RangeRestorer):
    """Dies while a user writes a file where one is to be restored."""

    def take(self, task: Any, alive: Alive, *, again: bool) -> Finish:
        mine = f"{self._root.path}/sizes/05"
        if "sizes/05" in [path for path, _ in task[0]] and not os.path.exists(mine):
            os.makedirs(os.path.dirname(mine), exist_ok=True)
            Path(mine).write_bytes(b"mine")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().take(task, alive, again=again)


def test_a_file_that_a_user_wrote_meanwhile_is_not_taken_for_a_dead_restorers(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path
) -> None:
    with put_by(monkeypatch, tmp_path / "store", folder):
        pass
    with (
        forked(monkeypatch, RestorerKilledBesideAUser) as pool,
        Store.open(str(tmp_path / "store"), settings=SMALL) as store,
        Commits(store).open("one") as files,
    ):
        how = Restoring(keep_going=True)
        done = extract(files, tmp_path / "restored", how=how, threads=pool)
        assert len(pool.lost_pids) == 1
    assert [one.path for one in done.failures] == ["sizes/05"]
    assert (tmp_path / "restored/sizes/05").read_bytes() == b"mine"


def test_a_file_that_was_there_before_is_not_replaced_by_processes_either(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path
) -> None:
    with put_by(monkeypatch, tmp_path / "store", folder):
        pass
    for how in (Restoring(), Restoring(keep_going=True)):
        target = tmp_path / f"restored-{how.keep_going}"
        (target / "sizes").mkdir(parents=True)
        (target / "sizes/05").write_bytes(b"mine")
        with (
            forked(monkeypatch, RangeRestorer) as pool,
            Store.open(str(tmp_path / "store"), settings=SMALL) as store,
            Commits(store).open("one") as files,
        ):
            if how.keep_going:
                failures = extract(files, target, how=how, threads=pool).failures
                assert [one.path for one in failures] == ["sizes/05"]
            else:
                with pytest.raises(BadInput, match="there already"):
                    extract(files, target, how=how, threads=pool)
        assert (target / "sizes/05").read_bytes() == b"mine"


def test_a_command_whose_workers_are_all_killed_commits_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command itself, with real signals: no commit, no process, and a store that is sound."""
    monkeypatch.setenv("HOLDFAST_STORE", str(tmp_path / "store"))
    with Store.create(str(tmp_path / "store"), settings=SMALL):
        pass
    (folder / "large").write_bytes(random.Random(3).randbytes(40_000_000))
    put = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "files", "put", "one", str(folder)],
        stderr=subprocess.PIPE,
    )
    children = Path(f"/proc/{put.pid}/task/{put.pid}/children")
    until(lambda: len(children.read_text().split()) >= 3, "the walk and two workers")
    pids = [int(word) for word in children.read_text().split()]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    _, told = put.communicate(timeout=PATIENCE_S)
    assert put.returncode == StoreError.exit_code
    assert b"killed by signal 9" in told
    with Store.open(str(tmp_path / "store"), settings=SMALL) as store:
        with pytest.raises(UnknownCommit):
            Commits(store).get("one")
        assert store.references.statistics().jobs == 0
