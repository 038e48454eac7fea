"""The reference page of processors has every option, with its default and its own words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from pydantic_core import PydanticUndefined
from tests.processors.passing import event_of

from holdfast.processors import filter as filter_module
from holdfast.processors import match, redact, rename, route, trim
from holdfast.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "processors.md"
MODELS: dict[str, type[Settings]] = {
    "filter": filter_module.Config,
    "condition": match.Condition,
    "route": route.Config,
    "rule": route.RouteRule,
    "redact": redact.Config,
    "pattern": redact.ValuePattern,
    "rename": rename.Config,
    "rename-rule": rename.RenameRule,
    "trim": trim.Config,
}
MODULES = {
    "filter": filter_module,
    "route": route,
    "redact": redact,
    "rename": rename,
    "trim": trim,
}


def shown(default: Any) -> str:
    if default is PydanticUndefined:
        return "required"
    if default is None:
        return "none"
    if default == redact.DEFAULT_NAMES:
        return "see below"
    text = default if isinstance(default, str) else orjson.dumps(default).decode()
    return f"`{text}`"


def rows(name: str) -> list[str]:
    """Return the rows of a table, made of the code."""
    model = MODELS[name]
    own = {"rule": ["port"]}.get(name, list(model.model_fields))
    made = []
    for field in own:
        info = model.model_fields[field]
        words = " ".join((info.description or "").split())
        made.append(f"| `{info.alias or field}` | {shown(info.default)} | {words} |")
    return made


@pytest.mark.parametrize("name", list(MODELS))
def test_every_option_is_on_the_page(name: str) -> None:
    found = re.search(rf"<!-- options: {name} -->\n(?:\|.*\n){{2}}((?:\|.*\n)*)", PAGE.read_text())
    assert found is not None
    assert found[1].splitlines() == rows(name)


def test_the_names_of_secrets_are_on_the_page() -> None:
    found = re.search(r"The names by default: (.*?)\n\n", PAGE.read_text(), re.DOTALL)
    assert found is not None
    assert re.findall(r"`([^`]+)`", found[1]) == list(redact.DEFAULT_NAMES)


def test_the_examples_are_configurations() -> None:
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    seen = set()
    for section in sections:
        name = section.split("\n", 1)[0]
        for example in re.findall(r"```yaml\n(.*?)```", section, re.DOTALL):
            loaded = yaml.safe_load(example)
            config = loaded.get("config") or next(iter(loaded.values()))["config"]
            module = MODULES[name]
            module.make(module.Config.model_validate(config))
            seen.add(name)
    assert seen == set(MODULES)


def test_the_marker_facet_is_as_the_page_shows_it() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    page = orjson.loads("{" + example + "}")
    large = {"spark.logicalPlan": {"x": "y" * 2000}}
    processor = trim.make(trim.Config(facets=("spark.*",), max_facet_bytes=1024))
    passed = processor.process(event_of({"run": {"facets": large}}))
    assert passed is not None
    found = passed.document["run"]["facets"]
    page[trim.MARKER]["facets"][0]["bytes"] = found[trim.MARKER]["facets"][0]["bytes"]
    assert found == page
