"""What a timer needs of `holdfast files`: names, parents and sizes by themselves, old ones gone."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadInput, UnknownPath
from holdfast.operate.cli import cli
from holdfast.store.filesets.commits import Commit
from holdfast.store.filesets.retention import KeepPolicy, kept_of
from holdfast.store.gc.commit_rows import CommitId

LONG_AGO_NS = 1_600_000_000_000_000_000


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_STORE", str(tmp_path / "store"))
    run("store", "create")
    made = tmp_path / "reports"
    (made / "sub").mkdir(parents=True)
    for number in range(5):
        (made / f"sub/{number}.csv").write_bytes(os.urandom(1000))
        os.utime(made / f"sub/{number}.csv", ns=(LONG_AGO_NS, LONG_AGO_NS))
    return made


def run(*words: str) -> Any:
    """Run a command with --json, and return what it says."""
    result = CliRunner().invoke(
        cli, [*words, "--json"], catch_exceptions=False, standalone_mode=False
    )
    if result.exception is not None:
        raise result.exception
    return json.loads(result.stdout)


def test_the_last_commit_of_a_folder_is_its_parent(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.filesets.previous_tree.RACY_NS", -(10**18))
    first = run("files", "put", str(folder))
    assert first["name"].startswith("reports/20")
    assert (first["parent"], first["read_files"], first["size_bytes"]) == (None, 5, 5000)
    assert first["new_bytes"] >= 5000
    (folder / "sub/9.csv").write_bytes(b"more")
    would = run("files", "put", str(folder), "--dry-run")
    assert (would["files"], would["read_files"], would["read_bytes"]) == (6, 1, 4)
    second = run("files", "put", str(folder))
    assert (second["parent"], second["read_files"], second["read_bytes"]) == (first["name"], 1, 4)
    assert second["new_bytes"] < 5000
    assert [one["name"] for one in run("files", "ls")] == [first["name"], second["name"]]
    whole = run("files", "put", "whole", str(folder), "--no-parent")
    assert (whole["parent"], whole["read_files"]) == (None, 6)
    told = CliRunner().invoke(cli, ["files", "put", str(folder)])
    assert "6 files" in told.output
    assert "shared" in told.output


def test_single_files_and_patterns_are_restored(folder: Path, tmp_path: Path) -> None:
    run("files", "put", "one", str(folder))
    would = run("files", "get", "one", str(tmp_path / "none"), "sub/1.csv", "--dry-run")
    assert (would["files"], would["size_bytes"]) == (1, 1000)
    assert not (tmp_path / "none").exists()
    restored = tmp_path / "restored"
    assert run("files", "get", "one", str(restored), "sub/1.csv", "sub/[23].*")["files"] == 3
    assert sorted(path.name for path in restored.rglob("*.csv")) == ["1.csv", "2.csv", "3.csv"]
    for unknown in ("sub/x.csv", "x*"):
        with pytest.raises(UnknownPath):
            run("files", "get", "one", str(tmp_path / "none"), unknown)
    assert not (tmp_path / "none").exists()


def test_old_commits_are_forgotten(folder: Path) -> None:
    for name in ("a/1", "a/2", "a/3", "b/1"):
        run("files", "put", name, str(folder))
    assert run("files", "forget", "a/", "--keep-last", "1", "--dry-run")["deleted"] == [
        "a/1",
        "a/2",
    ]
    assert len(run("files", "ls")) == 4
    assert run("files", "forget", "a/", "--keep-last", "1", "--yes")["kept"] == ["a/3"]
    assert [one["name"] for one in run("files", "ls")] == ["a/3", "b/1"]
    with pytest.raises(BadInput, match="nothing would be kept"):
        run("files", "forget", "--yes")


def commit_at(number: int, time: datetime) -> Commit:
    created_ns = int(time.timestamp() * 1e9)
    return Commit(str(number), CommitId(number), None, "", created_ns, {}, (), ())


HOURS = st.lists(st.integers(0, 24 * 800), unique=True, max_size=60)


@given(HOURS, st.integers(0, 5), st.integers(0, 10), st.integers(0, 5), st.integers(0, 3))
def test_what_is_kept_stays_kept_until_its_time_is_over(
    hours: list[int], last: int, daily: int, monthly: int, yearly: int
) -> None:
    """Forgetting twice forgets no more, the newest stays, and no day has two that only it keeps."""
    begin = datetime(2025, 1, 1, tzinfo=UTC)
    series = [commit_at(n, begin + timedelta(hours=hour)) for n, hour in enumerate(hours, 1)]
    policy = KeepPolicy(last, daily, 0, monthly, yearly)
    kept = kept_of(series, policy)
    again = [one for one in series if one.name in kept]
    assert kept_of(again, policy) == kept
    if series and any(policy):
        assert max(series, key=lambda one: one.created_ns).name in kept
    assert len(kept) <= last + daily + monthly + yearly
    if policy == KeepPolicy(daily=daily):
        assert len(kept) == min(daily, len({hour // 24 for hour in hours}))
