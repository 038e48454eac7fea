"""The tables of settings of which docs/reference/config.md is made."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from scripts import config_page

from holdfast.graph.registry import COMPONENTS
from holdfast.graph.schema import Setting, settings_of
from holdfast.settings import DurationS, Secret, Settings, SizeBytes


class Inner(Settings):
    """The inside."""

    wait: DurationS | None = 90.0
    """How long."""


class Outer(Settings):
    """The outside."""

    must: str
    """Needed."""
    size: SizeBytes | None = 2 * 1024**2
    """How large,
    in two lines."""
    choice: Literal["a", "b"] = "a"
    """Which."""
    inner: Inner = Inner()
    """More."""
    several: list[Inner] = Field(default_factory=list)
    """Many."""
    named: dict[str, Inner] = Field(default_factory=dict)
    """By name."""
    secret: Secret | None = None
    """Hidden."""


def test_every_setting_of_a_model_is_in_its_table() -> None:
    assert settings_of(Outer) == [
        Setting("must", "text", "required", "Needed."),
        Setting("size", "size or null", "2MB", "How large, in two lines."),
        Setting("choice", "a or b", "a", "Which."),
        Setting("inner", "mapping", "", "More."),
        Setting("inner.wait", "duration or null", "90s", "How long."),
        Setting("several", "list of mapping", "", "Many."),
        Setting("several[].wait", "duration or null", "90s", "How long."),
        Setting("named", "mapping to mapping", "", "By name."),
        Setting("named.<name>.wait", "duration or null", "90s", "How long."),
        Setting("secret", "secret or null", "null", "Hidden."),
    ]


def test_the_page_has_every_component_and_every_key_is_explained() -> None:
    page = config_page.page()
    for component in COMPONENTS:
        assert f"## {component.kind} `{component.type}`" in page
        for row in settings_of(component.config_model):
            # What tells the members of a union apart needs no words.
            assert row.text or row.key.endswith(".type"), f"{component.type}: {row.key}"
            assert f"| `{row.key}` |" in page
