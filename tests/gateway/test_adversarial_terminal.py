"""Attempts to reach an operator's terminal through an event."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.operate.cli import cli
from holdfast.operate.cli.base.target import Target
from holdfast.quiver import Quiver

# Clears the screen; and the same by a character that JSON lets through as it is.
ORDERS = "\x1b[2J \x9b2J"


def test_a_tap_shows_no_orders_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    event = {"seq": 1, "row": 0, "slot": "openlineage", "bytes": 9, "ingestion_ns": 0}

    def ask(target: Target, verb: str, **fields: Any) -> dict[str, Any]:
        return {"next": 1, "events": [{**event, "payload": f"job {ORDERS}"}]}

    monkeypatch.setattr(Target, "ask_gateway", ask)
    shown = CliRunner().invoke(cli, ["tap", "out", ".", "--limit", "1"], catch_exceptions=False)
    assert "job \\u001b[2J \\u009b2J" in shown.output


def test_an_explanation_shows_no_orders_to_the_terminal(tmp_path: Path) -> None:
    with Quiver.open(tmp_path / "q") as quiver:
        quiver.append_raw(f"job {ORDERS}".encode(), slot="openlineage")
    arguments = ["explain", "job", str(tmp_path / "q")]
    shown = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert "job \\u001b[2J \\u009b2J" in shown.output
