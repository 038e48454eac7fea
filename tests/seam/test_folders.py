"""The user's folders: walked in order, written below, never left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.seam import folders
from holdfast.seam.folders import Folder, new_folder


def test_a_walk_is_sorted_by_whole_paths(tmp_path: Path) -> None:
    for name in ("a/x", "a-b", "a0", "b/c/d", "e"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    (tmp_path / "link").symlink_to("a")
    with Folder(tmp_path) as folder:
        found = [(entry.path, entry.kind) for entry in folder.walk()]
    assert [path for path, _ in found] == sorted(path for path, _ in found)
    assert ("a/", "folder") in found
    assert ("a/x", "file") in found
    # What a link leads to is not walked.
    assert ("link", "link") in found
    assert len(found) == 9


def test_nothing_is_read_or_written_through_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    with new_folder(tmp_path / "inside") as folder:
        (tmp_path / "inside/way").symlink_to(outside)
        (tmp_path / "inside/file").symlink_to(outside / "secret")
        for path in ("way/secret", "file"):
            with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
                folder.read(path)
        with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
            folder.write("way/new", [b"x"], 0o644, None)
        with pytest.raises(FileExistsError):
            folder.write("file", [b"x"], 0o644, None)
    assert os.listdir(outside) == ["secret"]


def test_a_pipe_does_not_hang_a_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with Folder(tmp_path) as folder, pytest.raises(FileNotFoundError, match="no longer a file"):
        folder.read("pipe")


def test_few_folders_are_kept_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "OPEN_FOLDERS_MAX", 3)
    with Folder(tmp_path) as folder:
        before = len(os.listdir("/proc/self/fd"))
        for number in range(20):
            folder.write(f"{number}/file", [b"%d" % number, b"!"], 0o600, 5)
            assert len(os.listdir("/proc/self/fd")) <= before + 3
        assert folder.read("7/file") == b"7!"
    assert (tmp_path / "7/file").stat().st_mtime_ns == 5
