"""The store page and its documents: a real store, looked into and never changed."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.console.running import RunningConsole, receiver
from tests.console.stored import ODD_NAME, make_store, using

from holdfast import extras
from holdfast.console import store_reader
from holdfast.console.commands import CommandRunner
from holdfast.console.store_parts import LOOK_S
from holdfast.errors import NotInstalled, Overloaded

NODES = {
    "lineage": receiver("buffer"),
    "buffer": {"kind": "processor", "type": "quiver", "to": ["archive"]},
    "archive": {"kind": "exporter", "type": "files", "config": {"directory": "archive"}},
}
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "console.md"
FILES_OF_MANY = store_reader.ENTRIES_MAX + 50


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningConsole]:
    folder = tmp_path_factory.mktemp("console")
    make_store(folder / "store", many=FILES_OF_MANY)
    with RunningConsole(folder, NODES, pipelines=using("store")) as running:
        yield running


def asked(console: RunningConsole, what: str) -> Any:
    """Return a document of the store; it is there."""
    found = console.get(f"/api/store/{what}", token=console.token)
    assert found.status == 200, found.body
    return found.json()


def part(console: RunningConsole, what: str) -> str:
    """Return a part of the page; it is there."""
    found = console.get(f"/parts/store/{what}", token=console.token)
    assert found.status == 200, found.body
    return found.body


def test_the_file_says_which_store(console: RunningConsole) -> None:
    url = str(console.file.parent / "store")
    told = console.get("/api/store").json()
    assert told == {"stores": [{"store": url, "used_by": ["reporting.reports"]}]}
    page = console.get("/store").body
    assert url in page
    # Names of commits and files are content.
    assert "reports/1" not in page
    beyond = console.get("/api/store/commits?store=1", token=console.token)
    assert (beyond.status, "names no store 1" in beyond.body) == (400, True)


def test_commits_are_listed_newest_first(console: RunningConsole) -> None:
    told = asked(console, "commits")
    assert [one["name"] for one in told["commits"]] == ["many", "reports/2", "reports/1"]
    newer = told["commits"][1]
    assert (newer["parent"], newer["entries"], newer["bytes"]) == ("reports/1", 4, 8)
    assert newer["message"] == "made reports/2"
    assert told["more"] is False
    page = part(console, "commits")
    assert page.index("reports/2") < page.index("reports/1")
    assert "made reports/2" in page


def test_the_collector_says_what_gc_status_says(console: RunningConsole) -> None:
    collector = asked(console, "commits")["collector"]
    assert collector["commits"] == {"published": 3}
    assert collector["states"]["live"]["chunks"] > 0
    assert (collector["pins"], collector["oldest_lease_age_s"]) == (0, None)
    assert "No collector has worked on this store yet" in part(console, "commits")


def test_a_commit_is_browsed_level_by_level(console: RunningConsole) -> None:
    top = asked(console, "files?commit=reports/2")
    paths = [one["path"] for one in top["entries"]]
    assert paths == [" x ", "a.csv", ODD_NAME, "daily/"]
    below = asked(console, "files?commit=reports/2&path=daily")
    assert (below["path"], [one["path"] for one in below["entries"]]) == (
        "daily/",
        ["daily/<b>new.csv"],
    )
    (file,) = asked(console, f"files?commit=reports/2&path={quote(' x ')}")["entries"]
    assert (file["kind"], file["size_bytes"]) == ("file", 5)
    page = part(console, "files?commit=reports/2")
    assert "caf\\xe9" in page
    # What others named is text in a page, never markup.
    assert "<b>" not in part(console, "files?commit=reports/2&path=daily/")


def test_a_large_folder_comes_in_pages(console: RunningConsole) -> None:
    first = asked(console, "files?commit=many&path=all/")
    assert (len(first["entries"]), first["more"]) == (store_reader.ENTRIES_MAX, True)
    last = first["entries"][-1]["path"]
    second = asked(console, f"files?commit=many&path=all/&after={quote(last)}")
    assert (len(second["entries"]), second["more"]) == (50, False)
    assert second["entries"][0]["path"] == f"all/{store_reader.ENTRIES_MAX:04}"
    assert "Next 200" in part(console, "files?commit=many&path=all/")
    assert "Next" not in part(console, f"files?commit=many&path=all/&after={quote(last)}")


def test_two_commits_are_compared(console: RunningConsole) -> None:
    told = asked(console, "diff?old=reports/1&new=reports/2")
    assert {one["path"]: one["kind"] for one in told["differences"]} == {
        " x ": "added",
        "a.csv": "content",
        ODD_NAME: "added",
        "daily/<b>new.csv": "added",
        "daily/old.csv": "removed",
    }
    assert told["more"] is False
    assert "&lt;b&gt;new" in part(console, "diff?old=reports/1&new=reports/2")
    assert "Nothing differs." in part(console, "diff?old=reports/1&new=reports/1")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("files", "no commit is named"),
        ("files?commit=nobody", "there is no commit 'nobody'"),
        ("files?commit=many&path=nothing", "there is no 'nothing'"),
        ("files?commit=many&path=all/&after=other", "does not stand in"),
        ("diff?old=many", "no commit is named"),
        ("commits?store=x", "not a number"),
    ],
)
def test_errors_say_what_is_wrong(console: RunningConsole, what: str, message: str) -> None:
    refused = console.get(f"/api/store/{what}", token=console.token)
    assert refused.status == 400
    assert message in refused.json()["error"]


def test_looking_changes_nothing(console: RunningConsole) -> None:
    folder = console.file.parent / "store"
    # What a killed process left: a command that opens the store removes it.
    left = folder / "tmp" / "put-0123456789abcdef.1"
    left.parent.mkdir(exist_ok=True)
    left.write_bytes(b"half")

    def state() -> tuple[dict[str, bytes], list[str]]:
        files = {
            str(path.relative_to(folder)): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file() and not path.name.startswith("gc.sqlite")
        }
        database = sqlite3.connect(folder / "gc.sqlite")
        rows = list(database.iterdump())
        database.close()
        return files, rows

    before = state()
    for what in ("commits", "files?commit=many", "diff?old=reports/1&new=reports/2"):
        asked(console, what)
    assert state() == before
    left.unlink()


def test_lists_are_bounded(
    monkeypatch: pytest.MonkeyPatch, console: RunningConsole, tmp_path: Path
) -> None:
    for name in ("COMMITS_MAX", "ENTRIES_MAX", "DIFFERENCES_MAX"):
        monkeypatch.setattr(store_reader, name, 1)
    question = {"url": str(console.file.parent / "store"), "database": "", "path": "", "after": ""}
    question |= {"commit": "reports/2", "old": "reports/1", "new": "reports/2"}
    for what, listed in (("commits", "commits"), ("files", "entries"), ("diff", "differences")):
        told = store_reader.answer({**question, "what": what})
        assert (len(told[listed]), told["more"]) == (1, True)


def test_the_guide_says_the_bounds() -> None:
    text = " ".join(GUIDE.read_text().split())
    for bound in (
        f"stopped after {LOOK_S:g} seconds",
        f"newest {store_reader.COMMITS_MAX} commits",
        f"{store_reader.ENTRIES_MAX} entries of a folder",
        f"first {store_reader.DIFFERENCES_MAX} differences",
    ):
        assert bound in text


def test_a_look_that_takes_too_long_is_ended() -> None:
    # A server, which never comes to an end by itself.
    runner = CommandRunner("http.server", limit_s=0.05)
    with pytest.raises(Overloaded, match=r"longer than 0\.05 s") as caught:
        asyncio.run(runner.run("0", by_hand="holdfast files ls"))
    assert "`holdfast files ls` has no limit" in str(caught.value.hint)


def test_without_the_extra_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda module: None)
    with pytest.raises(NotInstalled, match="this needs the extra `store`"):
        store_reader.answer({"what": "commits", "url": "s", "database": ""})


def test_an_error_is_told_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    class Asked:
        @staticmethod
        def read() -> str:
            return json.dumps({"what": "commits", "url": str(tmp_path), "database": ""})

    monkeypatch.setattr(sys, "stdin", Asked)
    assert store_reader.main() != 0
    told = capsys.readouterr()
    assert told.out == ""
    assert json.loads(told.err)["message"] == "there is no store here"
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_names_no_store_says_what_to_do(tmp_path: Path) -> None:
    with RunningConsole(tmp_path, NODES) as console:
        page = console.get("/store").body
        assert "The file of this gateway names no store." in page
        assert "holdfast files ls --store STORE" in page
        assert console.get("/api/store").json() == {"stores": []}
