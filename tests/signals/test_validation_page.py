"""What docs/reference/openlineage-validation.md shows is taken: settings, and a schema."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import yaml
from tests.signals.events import FACET, event_with

from holdfast.signals.openlineage.findings import Override
from holdfast.signals.openlineage.validation import Level, ValidationSettings, Validator

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "openlineage-validation.md").read_text()


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
