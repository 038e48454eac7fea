"""docs/reference/exporters.md says what the code does: examples are valid, tables are true."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import yaml

from holdfast.deliver.exporters.classify import failure_of_status
from holdfast.deliver.exporters.dialects import PRESETS

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "exporters.md").read_text()
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
STATUS_ROWS = re.findall(r"^\| ((?:\d{3}(?:, )?)+) \| `(\w+)` \|$", PAGE, re.MULTILINE)
PRESET_ROWS = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| `(/\S+)` \| `(\w+)` \|$", PAGE, re.MULTILINE)


def test_there_is_something_to_check() -> None:
    assert {yaml.safe_load(text)["type"] for text in EXAMPLES} == {
        *("http", "files", "kafka", "python", "console")
    }
    assert len(STATUS_ROWS) == 5


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_are_valid(text: str) -> None:
    node = yaml.safe_load(text)
    module = importlib.import_module(f"holdfast.deliver.exporters.{node['type']}")
    module.Config.model_validate(node["config"])


@pytest.mark.parametrize(("statuses", "kind"), STATUS_ROWS)
def test_statuses_are_as_they_say(statuses: str, kind: str) -> None:
    assert {failure_of_status(int(status)).kind.value for status in statuses.split(", ")} == {kind}


def test_presets_are_as_they_say() -> None:
    told = {
        name.strip("`"): (path, dialect)
        for names, path, dialect in PRESET_ROWS
        for name in names.split(", ")
    }
    assert told == {
        name: (preset.path(preset.dialect), preset.dialect) for name, preset in PRESETS.items()
    }
