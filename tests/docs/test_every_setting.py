"""Every key that a graph file can have is in an example that is valid."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.graph.loader import load
from holdfast.graph.model import GraphFile
from holdfast.graph.registry import COMPONENTS, Component
from holdfast.graph.schema import settings_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "every_setting.yaml"
# Another name of `type`, short forms of what exporter and quiver have; and what the guide to
# pipelines has.
ELSEWHERE = re.compile(r"nodes\.<name>\.plugin_urn|data_node_list|handoff_\w+|pipelines\.<name>.*")


def paths(tree: Any, at: str = "") -> set[str]:
    """Return the path of every key, with `[]` for members of lists."""
    if isinstance(tree, list):
        return {path for item in tree for path in paths(item, f"{at}[]")}
    if not isinstance(tree, dict):
        return set()
    below = {path for key, item in tree.items() for path in paths(item, f"{at}.{key}")}
    return below | {f"{at}.{key}" for key in tree}


def test_the_example_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in re.findall(r"\$\{env:(\w+)\}", EXAMPLE.read_text()):
        monkeypatch.setenv(name, "a-secret-of-20-letters")
    assert load(EXAMPLE).warnings == ()


def test_every_key_of_the_file_is_in_the_example() -> None:
    named = {
        re.sub(r"(nodes|handlers|out_ports)\.\w+", r"\1.<name>", path)
        for path in paths(yaml.safe_load(EXAMPLE.read_text()))
    }
    rows = [row.key for row in settings_of(GraphFile) if not ELSEWHERE.fullmatch(row.key)]
    assert [key for key in rows if f".{key}" not in named] == []


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda component: component.type)
def test_every_key_of_a_component_is_in_the_example(component: Component) -> None:
    named = {path for node in nodes() if node["type"] == component.type
             for path in paths(node["config"])}  # fmt: skip
    rows = settings_of(component.config_model)
    assert [row.key for row in rows if f".{row.key}" not in named] == []


def nodes() -> list[dict[str, Any]]:
    tree = yaml.safe_load(EXAMPLE.read_text())
    return [*tree["nodes"].values(), *tree["dead_letters"]["handlers"].values()]
