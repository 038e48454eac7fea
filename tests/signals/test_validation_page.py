"""docs/reference/openlineage-validation.md says what the code does."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import yaml
from tests.signals.events import FACET, event_with

from holdfast.signals.openlineage import ValidationSettings, Validator
from holdfast.signals.openlineage.facts import FACETS, PLACES, Slot
from holdfast.signals.openlineage.findings import MAX_PROBLEMS, Override
from holdfast.signals.openlineage.json_text import MAX_DEPTH
from holdfast.signals.openlineage.validation import Level

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "openlineage-validation.md").read_text()
SOURCES = ROOT / "src" / "holdfast" / "signals" / "openlineage"


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_settings_it_shows_are_settings(tmp_path: Path) -> None:
    (tmp_path / "schemas").mkdir()
    settings = ValidationSettings.model_validate(yaml.safe_load(block("yaml"))["validation"])
    assert Validator(settings, tmp_path).check(event_with("run", {"spark_unknown": 1})).ok
    for name in ValidationSettings.model_fields:
        assert f"{name}:" in block("yaml")
    for option in (*get_args(Level), *get_args(Override)):
        assert f"`{option}`" in PAGE


def test_the_schema_it_shows_is_used(tmp_path: Path) -> None:
    (tmp_path / "cost.json").write_text(block("json"))
    assert json.loads(block("json"))["properties"].keys() == {"cost"}
    validator = Validator(ValidationSettings(facet_dirs=["."]), tmp_path)
    assert validator.check(event_with("run", {"cost": {**FACET, "cost": 1}})).ok
    assert not validator.check(event_with("run", {"cost": FACET})).ok


@pytest.mark.parametrize("slot", list(Slot))
def test_it_lists_every_facet(slot: Slot) -> None:
    facets = ", ".join(
        f"`{f.key}` {f.version}" for (place, _), f in FACETS.items() if place is slot
    )
    assert f"| `{slot}` | {PLACES[slot]} | {facets} |" in PAGE


def rules_in(source: str) -> Iterator[str]:
    """Yield the rule of every problem that is made in a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            rule = node.args[2] if node.func.id == "Problem" else None
            if isinstance(rule, ast.Constant):
                yield str(rule.value)


def test_it_lists_every_rule_and_bound() -> None:
    table = set(re.findall(r"^\| `(\w+)` \| (?:error|warning|either)", PAGE, re.MULTILINE))
    assert table == {rule for path in SOURCES.glob("*.py") for rule in rules_in(path.read_text())}
    assert f"more than {MAX_DEPTH} levels" in PAGE
    assert f"At most {MAX_PROBLEMS}\nerrors" in PAGE
