"""`holdfast store fsck | scrub | rebuild`, as a user types them."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from holdfast.errors import BadInput, DatabaseLost
from holdfast.operate.cli import cli
from holdfast.store.filesets import Commits
from holdfast.store.objects.objects import ChunkKey
from holdfast.store.store import Store

Run = Callable[..., Any]
WRONG = 65


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a command; return its exit code and what it printed, as JSON if it is."""

    def run_command(*words: str) -> tuple[int, Any]:
        variables = {"HOLDFAST_STORE": str(tmp_path / "store")}
        result = CliRunner(env=variables).invoke(
            cli, list(words), catch_exceptions=False, standalone_mode=False
        )
        if result.exception is not None:
            raise result.exception
        printed = json.loads(result.stdout) if "--json" in words else result.stdout
        return result.return_value or 0, printed

    return run_command


@pytest.fixture
def store(tmp_path: Path, run: Run) -> Path:
    """A store with one commit of two files."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"alpha\n" * 50_000)
    (folder / "b.txt").write_bytes(b"beta\n" * 80_000)
    run("store", "create")
    run("files", "put", "first", str(folder))
    return tmp_path / "store"


def chunk_files(store: Path) -> list[Path]:
    """Return the objects of chunks, the largest first."""
    return sorted(store.glob("chunks/*/*"), key=lambda path: -path.stat().st_size)


def test_a_sound_store(run: Run, store: Path) -> None:
    code, report = run("store", "fsck", "--json")
    assert (code, report["ok"], report["findings"]) == (0, True, [])
    assert (report["commits"], report["objects"]) == (1, len(chunk_files(store)))
    assert (report["contents_read"], report["sizes_unknown"]) == (False, 0)
    code, words = run("store", "fsck")
    assert code == 0
    assert ": sound\n" in words
    assert "contents were not read" in words
    code, words = run("store", "fsck", "--scrub")
    assert words.endswith(": sound\n")


def test_a_chunk_that_was_cut_off_is_not_called_sound(
    run: Run, store: Path, tmp_path: Path
) -> None:
    """Without --scrub, and a repair does not call it so either."""
    [cut] = [path for path in chunk_files(store) if serves(run, path, tmp_path) == "a.txt"][:1]
    os.truncate(cut, cut.stat().st_size - 10)
    code, report = run("store", "fsck", "--json")
    assert (code, report["ok"]) == (WRONG, False)
    [found] = report["findings"]
    assert (found["kind"], found["commit"]) == ("damaged chunk", "first")
    assert "bytes, and was stored with" in found["detail"]
    code, report = run("store", "fsck", "--scrub", "--json")
    assert (code, len(report["findings"])) == (WRONG, 1), "told once, not by either look"
    code, report = run("store", "fsck", "--repair", "--json")
    assert (code, report["ok"]) == (WRONG, False)


def test_a_missing_chunk_is_told_with_commit_and_path(
    run: Run, store: Path, tmp_path: Path
) -> None:
    run("store", "scrub")  # it leaves nothing behind that fsck would mind
    [gone] = [path for path in chunk_files(store) if serves(run, path, tmp_path) == "a.txt"][:1]
    gone.unlink()
    reports = tmp_path / "reports"
    code, report = run("store", "fsck", "--report", str(reports), "--json")
    assert code == WRONG
    found = report["findings"]
    assert [(one["kind"], one["commit"], one["path"]) for one in found] == [
        ("missing chunk", "first", "a.txt")
    ]
    [row] = pq.read_table(reports / "findings.parquet").to_pylist()
    assert (row["kind"], row["hash"].hex()) == ("missing chunk", found[0]["hash"])
    assert json.loads((reports / "summary.json").read_text())["found"] == {"missing chunk": 1}
    _, words = run("store", "fsck")
    assert "a.txt" in words
    assert "SOMETHING IS WRONG" in words


def serves(run: Run, path: Path, tmp_path: Path) -> str:
    """Return which file a chunk belongs to, by what fsck says when it is away."""
    away = tmp_path / "away"
    path.rename(away)
    try:
        _, report = run("store", "fsck", "--json")
    finally:
        away.rename(path)
    [finding] = report["findings"]
    return "" if "index" in finding["detail"] else str(finding["path"])


def test_scrub_tells_a_flipped_bit_and_repair_sets_it_aside(run: Run, store: Path) -> None:
    path = chunk_files(store)[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    other = ChunkKey.parse(str(path.relative_to(store)))
    assert other is not None
    code, report = run("store", "scrub", "--json")
    assert code == WRONG
    assert {one["kind"] for one in report["findings"]} == {"damaged chunk"}
    assert report["complete"]
    code, report = run("store", "scrub", "--repair", "--json")
    assert code == WRONG  # there is no other copy
    [kept] = report["repair"]["set_aside"]
    assert (store / kept).read_bytes() == data
    code, report = run("store", "fsck", "--json")
    assert set(report["found"]) == {"missing chunk"}


def test_fsck_can_scrub_too(run: Run, store: Path) -> None:
    path = chunk_files(store)[0]
    data = bytearray(path.read_bytes())
    good = bytes(data)
    data[-1] ^= 1
    path.write_bytes(data)
    code, report = run("store", "fsck", "--scrub", "--json")
    assert code == WRONG
    assert "damaged chunk" in report["found"]
    key = ChunkKey.parse(str(path.relative_to(store)))
    assert key is not None
    copy = store / ChunkKey(key.hash, 900).object_key()
    copy.write_bytes(good)
    code, report = run("store", "fsck", "--scrub", "--repair", "--json")
    [anew] = [one for one in copy.parent.glob(f"{key.hash.hex()}.*") if one not in (copy, path)]
    assert anew.read_bytes() == good
    # The copy is young, and is left to the collector.
    assert [one["kind"] for one in report["left"]] == ["leaked object"]


def test_a_lost_database_is_rebuilt_by_repair(run: Run, store: Path, tmp_path: Path) -> None:
    for path in store.glob("gc.sqlite*"):
        path.unlink()
    with pytest.raises(DatabaseLost, match="--repair"):
        run("store", "fsck")
    code, report = run("store", "fsck", "--repair", "--json")
    assert (code, report["ok"], report["rebuilt"]["commits"]) == (0, True, 1)
    run("files", "get", "first", str(tmp_path / "out"))
    assert (tmp_path / "out" / "b.txt").read_bytes() == b"beta\n" * 80_000


@pytest.fixture
def old_copy(run: Run, store: Path, tmp_path: Path) -> Path:
    """A store whose database was brought back from a copy that is older than its last commit."""
    copy = (store / "gc.sqlite").read_bytes()
    run("files", "put", "second", str(tmp_path / "folder"))
    for path in store.glob("gc.sqlite*"):
        path.unlink()
    (store / "gc.sqlite").write_bytes(copy)
    return store


@pytest.mark.parametrize(
    "words",
    ["files ls", "files put third {}", "files get first {}/out", "files rm first --yes",
     "files log first", "gc status", "gc plan", "gc run", "store info", "store fsck",
     "store scrub"],
)  # fmt: skip
def test_an_old_copy_of_the_database_is_refused_by_every_command(
    run: Run, old_copy: Path, tmp_path: Path, words: str
) -> None:
    """`files` worked on, and the newest commit was not to be seen."""
    before = (old_copy / "gc.sqlite").read_bytes()
    with pytest.raises(DatabaseLost, match=r"never gave out.*`holdfast store rebuild`"):
        run(*words.format(tmp_path / "folder").split())
    assert (old_copy / "gc.sqlite").read_bytes() == before


def test_an_old_copy_of_the_database_is_set_aside_and_made_anew(run: Run, old_copy: Path) -> None:
    code, report = run("store", "rebuild", "--json")
    assert (code, report["commits"]) == (0, 2)
    aside = Path(report["set_aside"])
    with sqlite3.connect(aside) as old:
        assert old.execute("SELECT name FROM gc_commit").fetchall() == [("first",)]
    _, listed = run("files", "ls", "--json")
    assert {one["name"] for one in listed} == {"first", "second"}
    code, report = run("store", "fsck", "--scrub", "--json")
    assert (code, report["ok"]) == (0, True)
    with pytest.raises(BadInput, match="not lost"):
        run("store", "rebuild")


def test_a_rebuild_with_a_lost_index_collects_nothing(run: Run, store: Path) -> None:
    with Store.open(str(store)) as opened:
        index = Commits(opened).get("first").layers[0].chunks[0].hex()
    for path in [*store.glob("gc.sqlite*"), *store.glob(f"chunks/*/{index}.*")]:
        path.unlink()
    others = chunk_files(store)
    code, report = run("store", "fsck", "--repair", "--json")
    assert (code, list(report["rebuilt"]["damaged_commits"])) == (WRONG, ["first"])
    assert set(report["found"]) == {"missing chunk"}
    assert report["repair"] is None
    assert chunk_files(store) == others


def test_rebuild_leaves_a_database_alone_that_is_not_lost(run: Run, store: Path) -> None:
    with pytest.raises(BadInput, match="not lost"):
        run("store", "rebuild")
    for path in store.glob("gc.sqlite*"):
        path.unlink()
    code, words = run("store", "rebuild")
    assert code == 0
    assert "1 commit," in words
    assert run("store", "fsck")[0] == 0


def test_a_report_that_cannot_be_written(run: Run, store: Path) -> None:
    with pytest.raises(BadInput, match="report"):
        run("store", "fsck", "--report", str(store / "store.json" / "x"))
