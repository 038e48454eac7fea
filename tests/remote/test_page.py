"""docs/reference/flight.md says what the code does."""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import fields
from pathlib import Path

import pytest
from pydantic import BaseModel
from tests.remote.serving import Served

from holdfast.quiver import EventTimeStatement, Receipt
from holdfast.remote import ClientSettings, FlightSettings, PlannedRange, QuiverServer
from holdfast.remote.puts import KINDS
from holdfast.remote.wire import VERSION

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "flight.md").read_text()


def section(title: str) -> str:
    """Return what stands below a heading."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None, title
    return found[1]


def rows(text: str) -> list[list[str]]:
    """Return the cells of all tables, without their heads."""
    without_heads = re.sub(r"^\|.*\|\n\|[-|]+\|\n", "", text, flags=re.MULTILINE)
    lines = re.findall(r"^\| (.*) \|$", without_heads, re.MULTILINE)
    return [[cell.strip() for cell in line.split(" | ")] for line in lines]


def named(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


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
    told = [(cells[0].strip("`"), cells[1]) for cells in rows(section("Actions"))]
    assert told == [(name, right) for name, (right, _) in service._actions.items()]


@pytest.mark.parametrize("model", [FlightSettings, ClientSettings])
def test_every_setting_is_told_with_its_default(model: type[BaseModel]) -> None:
    head = f"| `{model.__name__}` | default | |\n"
    table = head + section("Settings").partition(head)[2].partition("\n\n")[0] + "\n"
    told = {cells[0]: cells[1] for cells in rows(table)}
    assert told == {f"`{name}`": f"`{f.default}`" for name, f in model.model_fields.items()}


def test_documents_are_told_by_their_fields() -> None:
    assert f"version {VERSION} of the protocol" in PAGE
    statement = [name for cells in rows(section("Statements")) for name in named(cells[0])]
    assert statement == [field.name for field in fields(EventTimeStatement)]
    receipt = section("Puts").rpartition("the receipt:")[2]
    assert tuple(named(receipt)) == Receipt._fields
    described = section("Actions").rpartition("A `range` has")[2].partition(":")[0]
    assert named(described) == [field.name for field in fields(PlannedRange)]
    assert all(f"`{kind}`" in section("Puts") for kind in KINDS)
