"""`holdfast store` and `holdfast files`, as a user types them."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.errors import BadInput, CannotOpen, CommitExists, Damaged, UnknownCommit, UnknownPath
from holdfast.operate.cli import cli
from holdfast.store.store import Store

Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a command; --json is parsed, anything else comes as bytes. Errors are raised."""

    def run_command(*words: str, stdin: bytes | None = None) -> Any:
        variables = {"HOLDFAST_STORE": str(tmp_path / "store")}
        result = CliRunner(env=variables).invoke(
            cli, list(words), input=stdin, catch_exceptions=False, standalone_mode=False
        )
        if result.exception is not None:
            raise result.exception
        if "--json" in words:
            return json.loads(result.stdout_bytes)
        return result.stdout_bytes

    return run_command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a few files of all kinds."""
    folder = tmp_path / "folder"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "a.txt").write_bytes(b"alpha\n")
    (folder / "deep" / "b.bin").write_bytes(os.urandom(700_000))
    (folder / "deep" / "er" / "c").write_bytes(b"")
    (folder / "deep" / "link").symlink_to("../a.txt")
    return folder


def same_tree(left: Path, right: Path) -> bool:
    """Whether two folders hold the same."""

    def seen(root: Path) -> dict[str, object]:
        return {
            str(path.relative_to(root)): os.readlink(path)
            if path.is_symlink()
            else (path.read_bytes() if path.is_file() else "folder")
            for path in root.rglob("*")
        }

    return seen(left) == seen(right)


def test_a_folder_goes_in_and_comes_out(run: Run, folder: Path, tmp_path: Path) -> None:
    assert b"made store" in run("store", "create")
    made = run("files", "put", "work/1", str(folder), "-m", "first", "--json")
    assert (made["name"], made["layers"], made["message"]) == ("work/1", 1, "first")
    assert [one["path"] for one in run("files", "ls", "work/1", "--json")] == [
        "a.txt",
        "deep/",
        "empty/",
    ]
    assert [one["path"] for one in run("files", "ls", "work/1", "deep", "-r", "--json")] == [
        "deep/b.bin",
        "deep/er/",
        "deep/er/c",
        "deep/link",
    ]
    assert run("files", "cat", "work/1", "a.txt") == b"alpha\n"
    assert run("files", "cat", "work/1", "a.txt", "--offset", "2", "--size", "3") == b"pha"
    run("files", "get", "work/1", str(tmp_path / "out"))
    assert same_tree(folder, tmp_path / "out")


def test_commits_are_made_of_commits(run: Run, folder: Path, tmp_path: Path) -> None:
    run("store", "create")
    run("files", "put", "1", str(folder))
    (folder / "a.txt").write_bytes(b"beta\n")
    run("files", "put", "2", str(folder), "--parent", "1")
    assert run("files", "diff", "1", "2").decode() == "M a.txt\n"
    run("files", "cp", "2", "deep", "copy", "--as", "3")
    run("files", "rm", "3", "deep", "a.txt", "--as", "4")
    kinds = {
        one["path"]: one["kind"] for one in run("files", "diff", "2", "4", "--json")["differences"]
    }
    assert kinds == {
        "a.txt": "removed",
        "copy/": "added",
        "copy/b.bin": "added",
        "copy/er/": "added",
        "copy/er/c": "added",
        "copy/link": "added",
        "deep/": "removed",
        "deep/b.bin": "removed",
        "deep/er/": "removed",
        "deep/er/c": "removed",
        "deep/link": "removed",
    }
    assert [one["name"] for one in run("files", "log", "4", "--json")] == ["4", "3", "2", "1"]
    assert run("files", "compact", "4", "--as", "5", "--whole", "--json")["layers"] == 1
    assert run("files", "diff", "4", "5") == b""
    run("files", "commit", "6", "--from", "5", "--from", "1")
    assert run("files", "cat", "6", "a.txt") == b"alpha\n"
    assert run("files", "cat", "6", "copy/er/c") == b""


def test_one_file_comes_beside_the_others(run: Run, folder: Path, tmp_path: Path) -> None:
    run("store", "create")
    run("files", "put", "1", str(folder))
    (tmp_path / "more").write_bytes(b"more")
    run("files", "put", "2", str(tmp_path / "more"), "--parent", "1", "--into", "new")
    run("files", "put", "3", str(folder), "--parent", "2", "--into", "twice")
    assert run("files", "cat", "3", "new/more") == b"more"
    assert run("files", "cat", "3", "twice/a.txt") == b"alpha\n"
    assert run("files", "diff", "1", "2").decode() == "+ new/more\n"


def test_archives_go_in_and_out(run: Run, folder: Path) -> None:
    run("store", "create")
    run("files", "put", "1", str(folder))
    archive = run("files", "export", "1", "-")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        names = ["a.txt", "deep", "deep/b.bin", "deep/er", "deep/er/c", "deep/link", "empty"]
        assert tar.getnames() == names
    run("files", "import", "2", "-", "--into", "from/tar", stdin=archive)
    assert run("files", "cat", "2", "from/tar/a.txt") == b"alpha\n"
    run("files", "import", "3", "-", stdin=archive)
    assert run("files", "export", "3", "-") == archive
    assert run("files", "import", "4", "-", "--json", stdin=archive)["archive_has_end"] is True
    cut = archive[:2048]  # behind a.txt: records and header, a block each
    assert run("files", "import", "5", "-", "--json", stdin=cut)["archive_has_end"] is False
    assert run("files", "ls", "5").count(b"\n") == 1


def test_a_deleted_commit_is_gone_and_its_name_is_free(run: Run, folder: Path) -> None:
    run("store", "create")
    run("files", "put", "1", str(folder))
    with pytest.raises(CommitExists):
        run("files", "put", "1", str(folder / "deep" / "er"))
    with pytest.raises(
        BadInput, match=r'no terminal to ask on: "Delete commit 1, made from 1 layer\?"'
    ):
        run("files", "rm", "1")
    assert run("files", "rm", "1", "--yes", "--json") == {"deleted": "1"}
    assert run("files", "ls", "--json") == []
    with pytest.raises(UnknownCommit):
        run("files", "ls", "1")
    run("files", "put", "1", str(folder / "deep"), "--outside-links", "skip")
    info = run("store", "info", "--json")
    assert info["commits"] == {"published": 1}
    assert info["chunks"]["live"] > 0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["ls", "nothing"], UnknownCommit),
        (["cat", "1", "nothing"], UnknownPath),
        (["cat", "1", "deep"], BadInput),
        (["rm", "1", "a.txt"], BadInput),
        (["rm", "1", "nothing", "--as", "2"], UnknownPath),
        (["cp", "1", "a.txt", "../a.txt", "--as", "2"], BadInput),
        (["cp", "1", "a.txt", "deep", "--as", "2"], BadInput),
        (["cp", "1", "a.txt", "a.txt/b", "--as", "2"], BadInput),
        (["import", "2", "-"], Damaged),
    ],
)
def test_what_cannot_be_is_said_and_changes_nothing(
    run: Run, folder: Path, words: list[str], error: type[Exception]
) -> None:
    run("store", "create")
    run("files", "put", "1", str(folder))
    with pytest.raises(error):
        run("files", *words, stdin=b"this is no archive" * 100)
    assert [one["name"] for one in run("files", "ls", "--json")] == ["1"]


def test_a_store_is_made_once_and_must_be_there(run: Run, tmp_path: Path) -> None:
    with pytest.raises(CannotOpen):
        run("files", "ls")
    run("store", "create")
    with pytest.raises(CannotOpen):
        run("store", "create")
    with Store.open(str(tmp_path / "store")) as store:
        assert len(store.id) == 32


def test_what_is_left_out_is_told_and_ends_with_a_code(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", str(tmp_path / "store"))
    runner = CliRunner()

    def invoke(*words: str) -> Any:
        return runner.invoke(cli, list(words), standalone_mode=False, catch_exceptions=False)

    assert invoke("store", "create").exception is None
    os.mkfifo(folder / "pipe")
    (folder / "out").symlink_to("/etc/passwd")
    os.close(os.open(os.fsencode(folder) + b"/caf\xe9", os.O_CREAT))
    (tmp_path / "patterns").write_text("*.bin\n# nothing\n!deep\n")
    first = invoke("files", "put", "one", str(folder), "--exclude", "a.*")
    assert first.return_value == 0
    assert "left out: 1 excluded, 1 pipes" in first.stderr
    assert "  pipe: pipe" in first.stderr
    assert "caf\\xe9" in invoke("files", "ls", "one").stdout
    assert invoke("files", "cat", "one", "caf\udce9").stdout == ""
    chosen = invoke(
        "files", "put", "two", str(folder), "--exclude-file", str(tmp_path / "patterns"),
        "--exclude-caches", "--include", "x", "--outside-links", "skip", "--json",
    )  # fmt: skip
    fields = json.loads(chosen.stdout)
    assert fields["left_out"] == {"outside_link": 1, "pipe": 1}
    assert (fields["changed_files"], fields["lost_files"]) == (0, 0)
    monkeypatch.setattr(
        "holdfast.seam.folders.Folder.open_file",
        lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")),
    )
    missed = invoke("files", "put", "three", str(folder), "--no-parent")
    assert missed.return_value == 3
    assert "unreadable: a.txt: Permission denied" in missed.stderr
    assert invoke("files", "ls", "three").exception is None
