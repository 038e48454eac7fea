"""A folder walked by a process of its own: told as it is, whatever becomes of the process."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from tests.patience import until
from tests.store.filesets.test_trees import make_tree

from holdfast.errors import StoreError
from holdfast.seam.folders import Folder, FolderEntry
from holdfast.store.filesets import Selection, folder_walk, put_tree
from holdfast.store.filesets.folder_walk import FolderWalk, ForkedWalk, LeftOut
from holdfast.store.gc.leases import Job
from holdfast.store.store import Store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Everything that a folder may hold, and some that is not stored."""
    made = tmp_path / "folder"
    made.mkdir()
    make_tree(made)
    os.mkfifo(made / "many/075-pipe")
    os.mkfifo(made / "zz-pipe")
    return made


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_walk, "TOLD_ENTRIES", 7)
    # Whatever threads the tests themselves have.
    monkeypatch.setattr(threading, "active_count", lambda: 1)


def selection() -> Selection:
    """Return what leaves out some; each is good for one walk."""
    return Selection(["1?7", "odd*"], ["many/117"])


def begun(folder: Path, chosen: Selection | None = None) -> ForkedWalk:
    walk = ForkedWalk.begin(folder, chosen)
    assert walk is not None
    return walk


def test_a_process_tells_what_there_is_and_what_is_left_out(folder: Path) -> None:
    expected = list(FolderWalk(folder, selection()).items())
    with begun(folder, selection()) as walk:
        assert list(walk.items()) == expected
    assert {type(item) for item in expected} == {FolderEntry, LeftOut}
    left_out = {item.path: item.reason for item in expected if isinstance(item, LeftOut)}
    assert left_out["many/107"] == left_out["odd * [name]"] == "excluded"
    assert left_out["zz-pipe"] == "pipe"


def kill(walk: ForkedWalk) -> None:
    """Kill the process of a walk, and wait until it is dead."""
    (pid,) = walk._pool.pids
    os.kill(pid, signal.SIGKILL)
    until(lambda: Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z", "a dead process")


@pytest.mark.parametrize("told", [0, 1, 40, 100])
def test_what_a_process_that_dies_has_not_told_is_walked_here(folder: Path, told: int) -> None:
    expected = list(FolderWalk(folder, selection()).items())
    with begun(folder, selection()) as walk:
        items = walk.items()
        found = [next(items) for _ in range(told)]
        kill(walk)
        assert [*found, *items] == expected


def test_what_is_said_of_a_folder_goes_with_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that cannot be listed is told as such once, wherever a piece would end."""
    listed = Folder._scan

    def scan(self: object, below: str, failed: object) -> list[FolderEntry]:
        if below == "private/":
            assert callable(failed)
            failed(below, PermissionError(13, "not for you"))
            return []
        return listed(self, below, failed)  # type: ignore[arg-type]

    monkeypatch.setattr(Folder, "_scan", scan)
    expected = list(FolderWalk(folder, None).items())
    at = expected.index(LeftOut("private/", "unreadable", "not for you"))
    assert expected[at - 1].path == "private/"
    for pieces in range(1, 12):
        monkeypatch.setattr(folder_walk, "TOLD_ENTRIES", pieces)
        with begun(folder) as walk:
            items = walk.items()
            found = [next(items) for _ in range(at)]
            kill(walk)
            assert [*found, *items] == expected


def test_a_folder_that_cannot_be_read_is_an_error_here(tmp_path: Path) -> None:
    with begun(tmp_path / "missing") as walk, pytest.raises(StoreError, match="cannot be read"):
        next(walk.items())


def test_a_folder_is_stored_as_without_the_process(store: Store, job: Job, folder: Path) -> None:
    expected = put_tree(store, job, folder, selection=selection())
    for dies in (False, True):
        with begun(folder, selection()) as walk:
            if dies:
                kill(walk)
            tree = put_tree(store, job, walk)
        assert tree.layer == expected.layer
        assert tree.report.left_out == expected.report.left_out
