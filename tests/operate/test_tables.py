"""Tables: drawn for a terminal, plain and narrow in a pipe."""

from __future__ import annotations

import pytest

from holdfast.operate.cli.base.output import print_table, short_hash

ROWS = [("long/" * 60, 1_234_567, None), ("b", 8, "first\nsecond \x1b[31m")]


def test_a_table_in_a_pipe_has_no_box_and_one_line_for_each_row(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table("commits", ("name", "bytes", "message"), ROWS)
    told = capsys.readouterr().out.splitlines()
    wide = "long/" * 60
    assert told == [
        "commits",
        f"{'name':<300}      bytes  message",
        f"{wide}  1,234,567",
        f"{'b':<300}          8  first second \\u001b[31m",
    ]


def test_a_table_of_nothing_has_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("found", ("what", "where"), [])
    assert capsys.readouterr().out == "found\nwhat  where\n"


def test_a_table_on_a_terminal_is_drawn(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_table("found", ("what", "where"), [("a", "b\x1b[31m")])
    told = capsys.readouterr().out
    assert "│ a" in told
    assert "\\u001b" in told


def test_a_hash_for_people_is_short() -> None:
    assert short_hash(bytes(32)) == "0000000000000000…"
    assert short_hash(b"") is None
