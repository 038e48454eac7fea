"""docs/reference/flight.md: its snippets run, and a server has the actions that it names."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
from tests.remote.serving import Served

from holdfast.remote import QuiverServer

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "flight.md").read_text()


def test_the_snippets_print_what_stands_below_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    found = re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", PAGE, re.DOTALL)
    assert len(found) == 5
    try:
        for code, expected in found:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(code, "flight.md", "exec"), namespace)
            assert printed.getvalue() == expected
    finally:
        server = namespace.get("server")
        if isinstance(server, QuiverServer):
            server.stop()


def test_every_action_is_described_with_its_right(served: Served) -> None:
    service = served.server._service
    assert service is not None
    actions = PAGE.partition("## Actions\n")[2].partition("\n## ")[0]
    told = re.findall(r"^\| `(\w+)` \| (\w+) \|", actions, re.MULTILINE)
    assert told == [(name, right) for name, (right, _) in service._actions.items()]
