"""scripts/figures.py counts what its head says, in a small house."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scripts.figures import (
    GENERATED,
    Module,
    figures,
    graph_of,
    mutual,
    names_twice,
    packages_of,
    read,
)

HOUSE = {
    "src/house/__init__.py": '"""The house."""\n',
    "src/house/quiver/__init__.py": '"""The quiver."""\n',
    "src/house/quiver/names.py": "from house.quiver.log.wal import Wal\n",
    "src/house/quiver/log/__init__.py": '"""The log."""\n',
    "src/house/quiver/log/wal.py": (
        '"""Hold the log.\n\nOn disk.\n"""\n\n\n'
        "class Wal:\n    size = 1  # one\n\n\n"
        "def name() -> str:\n    from house.quiver import names\n\n    return names.__name__\n"
    ),
    "src/house/quiver/log/wal_pb2.py": "class Wal:\n    pass\n",
    "src/house/store/__init__.py": "class Wal:\n    pass\n",
    "src/house/store/text.py": "from abc import ABC\n\n_Path = tuple[ABC, int]\n",
    "src/house/store/tree.py": "import typing\n\nif typing:\n\n    class Path:\n        pass\n",
    "tests/test_house.py": "def test_house() -> None:\n    # It stands.\n    assert house\n",
    "docs/reference/config.md": (
        "| key | type |\n|---|---|\n| `a` | text |\n| `b` | text |\n\n| metric |\n|---|\n| `c` |\n"
    ),
}


@pytest.fixture
def found(tmp_path: Path) -> dict[str, Any]:
    for name, text in HOUSE.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return figures(tmp_path)


def test_lines_are_told_apart(found: dict[str, Any]) -> None:
    assert found["modules"] == 8
    assert found["code_lines"] == 1 + 5 + 2 + 2 + 4
    assert found["explained_pct"] == round(100 * 7 / found["lines"], 1)
    assert (found["test_modules"], found["test_lines"], found["test_code_lines"]) == (1, 3, 2)
    assert found["config_rows"] == 2


def test_names_defined_twice_are_found(found: dict[str, Any]) -> None:
    assert found["classes_twice"] == {"Wal": ["house.quiver.log.wal", "house.store"]}
    assert found["names_twice"] == {
        "Path": ["house.store.text", "house.store.tree"],
        "Wal": ["house.quiver.log.wal", "house.store"],
    }


@pytest.fixture(scope="module")
def house() -> dict[str, Module]:
    source = Path(__file__).parents[2] / "src"
    return read(source, source)


def test_a_name_is_defined_once(house: dict[str, Module]) -> None:
    assert names_twice({name: m for name, m in house.items() if GENERATED not in name}) == {}


def test_no_neighbours_import_each_other(house: dict[str, Module]) -> None:
    assert mutual(graph_of(house), packages_of(house)) == []


def test_circles_are_found_inside_functions_and_through_the_root(found: dict[str, Any]) -> None:
    assert found["circles"] == [["house.quiver.log.wal", "house.quiver.names"]]
    assert found["mutual"] == ["house.quiver: (root) <-> log"]
    assert found["depth_max"] == 2
    assert found["one_importer"] == 2
