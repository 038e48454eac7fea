"""The user's folders: walked in order, written below, never left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.seam import folders
from holdfast.seam.folders import Dress, Folder, new_folder


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
            folder.write("way/new", [b"x"], Dress(0o644))
        with pytest.raises(FileExistsError):
            folder.write("file", [b"x"], Dress(0o644))
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
            folder.write(f"{number}/file", [b"%d" % number, b"!"], Dress(0o600, 5))
            assert len(os.listdir("/proc/self/fd")) <= before + 3
        assert folder.read("7/file") == b"7!"
    assert (tmp_path / "7/file").stat().st_mtime_ns == 5


def test_what_cannot_be_given_to_a_file_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    for name in ("fchown", "setxattr", "chown"):
        monkeypatch.setattr(f"holdfast.seam.folders.os.{name}", refuse)
    dress = Dress(0o4755, 5, (1, 1), ((b"user.a", b"1"),))
    with Folder(tmp_path) as folder:
        assert folder.write("file", [b"x"], dress) == ["owner", "xattrs"]
        assert folder.link("link", "file", dress) == ["owner"]
    # It is not the owner's whose rights the bit would give.
    assert (tmp_path / "file").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize("blocks", [[b"one"], [b"one", b"two"]])
@pytest.mark.parametrize("fails", ["write", "fchmod"])
def test_a_file_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: list[bytes], fails: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"holdfast.seam.folders.os.{fails}", full)
    with Folder(tmp_path) as folder, pytest.raises(OSError, match="No space"):
        folder.write("file", blocks, Dress(0o644))
    assert os.listdir(tmp_path) == []


def test_a_file_has_its_name_once_all_of_it_is_there(tmp_path: Path) -> None:
    def blocks() -> Iterator[bytes]:
        yield b"one"
        yield b"two"
        assert not (tmp_path / "file").exists()
        yield b"three"

    with Folder(tmp_path) as folder:
        folder.write("file", blocks(), Dress(0o644))
        with pytest.raises(FileExistsError):
            folder.write("file", blocks(), Dress(0o644))
    assert (tmp_path / "file").read_bytes() == b"onetwothree"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("step", [100, 4096, 5000, 1 << 20])
def test_holes_are_written_whatever_the_blocks_are(tmp_path: Path, step: int) -> None:
    data = b"a" * 5000 + bytes(100_000) + b"b" + bytes(50_000)
    blocks = [data[start : start + step] for start in range(0, len(data), step)]
    with Folder(tmp_path) as folder:
        folder.write("file", blocks, Dress(0o644), holes=True)
        assert folder.read("file") == data
    assert (tmp_path / "file").read_bytes() == data
    assert (tmp_path / "file").stat().st_blocks * 512 < 30_000
