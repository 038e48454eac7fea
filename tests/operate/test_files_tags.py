"""Tags from the command line: parts of a file that are replaced, read and deleted by name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadInput, UnknownPath
from holdfast.operate.cli import cli
from holdfast.operate.cli.files.commits import TAG
from holdfast.store.filesets import shown_tag, tag_of

Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a command of `holdfast files`; --json is parsed. Errors are raised."""
    variables = {"HOLDFAST_STORE": str(tmp_path / "store")}

    def run_command(*words: str) -> Any:
        result = CliRunner(env=variables).invoke(
            cli, ["files", *words], catch_exceptions=False, standalone_mode=False
        )
        if result.exception is not None:
            raise result.exception
        return json.loads(result.stdout) if "--json" in words else result.stdout

    CliRunner(env=variables).invoke(cli, ["store", "create"], catch_exceptions=False)
    return run_command


@pytest.fixture
def put(run: Run, tmp_path: Path) -> Run:
    """Put some text as the file `log` of a commit."""

    def put_text(name: str, text: str, *words: str) -> None:
        (tmp_path / "log").write_text(text)
        run("put", name, str(tmp_path / "log"), *words)

    return put_text


def test_parts_of_a_file_are_put_under_tags_and_read_by_them(run: Run, put: Run) -> None:
    put("1", "two\n", "--tag", "#2")
    put("2", "ten\n", "--tag", "#10", "--parent", "1")
    put("3", "one\n", "--tag", "#1", "--parent", "2")
    assert run("cat", "3", "log") == "one\ntwo\nten\n"
    assert run("cat", "3", "log", "--tag", "#2") == "two\n"
    assert run("cat", "3", "log", "--tag", "#10", "--offset", "1", "--size", "99") == "en\n"
    assert run("cat", "3", "log", "--tag", "#10", "--offset", "9") == ""
    assert run("tags", "3", "log", "--json") == [
        {"tag": "#1", "size_bytes": 4},
        {"tag": "#2", "size_bytes": 4},
        {"tag": "#10", "size_bytes": 4},
    ]
    assert run("tags", "3", "log").splitlines()[1:] == [
        "tag  bytes",
        *(f"{t:<3}      4" for t in ("#1", "#2", "#10")),
    ]


def test_a_tag_is_replaced_extended_and_deleted_while_others_stay(run: Run, put: Run) -> None:
    put("1", "a", "--tag", "a")
    put("2", "b", "--tag", "b", "--parent", "1")
    put("3", "B", "--tag", "b", "--parent", "2")
    assert run("cat", "3", "log") == "aB"
    put("4", "+", "--tag", "a", "--append", "--parent", "3")
    assert run("cat", "4", "log") == "a+B"
    run("rm", "4", "log", "--tag", "a", "--as", "5")
    assert run("cat", "5", "log") == "B"
    run("rm", "5", "log", "--tag", "b", "--as", "6")
    assert run("ls", "6", "--json") == []
    put("7", "whole", "--parent", "4")
    assert run("tags", "7", "log", "--json") == [{"tag": "", "size_bytes": 5}]
    put("8", ", and more", "--append", "--parent", "7")
    assert run("cat", "8", "log") == "whole, and more"


def test_a_tag_is_of_a_file_that_has_it(run: Run, put: Run, tmp_path: Path) -> None:
    put("1", "a", "--tag", "a", "--into", "folder")
    (tmp_path / "tree").mkdir()
    for words in (
        ("cat", "1", "folder/log", "--tag", "b"),
        ("rm", "1", "folder/log", "--tag", "b", "--as", "2"),
        ("rm", "1", "folder", "--tag", "a", "--as", "2"),
        ("rm", "1", "--tag", "a", "--yes"),
        ("tags", "1", "folder"),
        ("put", "2", str(tmp_path / "tree"), "--tag", "a"),
        ("put", "2", str(tmp_path / "tree"), "--append"),
    ):
        with pytest.raises(BadInput):
            run(*words)
    with pytest.raises(UnknownPath):
        run("tags", "1", "nothing")
    assert [one["name"] for one in run("ls", "--json")] == ["1"]


def test_a_tag_that_a_file_does_not_have_is_named_as_it_was_typed(run: Run, put: Run) -> None:
    """It was shown as Python writes bytes: b'b', or eight bytes in hexadecimal for a number."""
    put("1", "a", "--tag", "a")
    for typed in ("b", "#7", "0x00ff"):
        with pytest.raises(BadInput, match=re.escape(f"'log' has no tag '{typed}'")):
            run("cat", "1", "log", "--tag", typed)


@given(
    st.one_of(
        st.binary(max_size=12),
        st.text(max_size=6).map(str.encode),
        st.integers(-(2**63), 2**63 - 1).map(tag_of),
    )
)
def test_a_tag_is_typed_as_it_is_shown(tag: bytes) -> None:
    assert TAG.convert(shown_tag(tag), None, None) == tag


@pytest.mark.parametrize("text", ["#", "#x", f"#{2**63}", f"#{-(2**63) - 1}", "0xz", "0x1"])
def test_what_is_no_tag_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a tag"):
        TAG.convert(text, None, None)
