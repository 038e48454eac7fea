"""Graph files of the tests, with components that need no network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

from holdfast.errors import BadConfig
from holdfast.graph.document import escaped
from holdfast.graph.loader import Loaded, load
from holdfast.graph.registry import NODES, QUIVER, Component, Registry

TOYS = Registry(
    [
        QUIVER,
        NODES,
        Component("toy", "receiver", "tests.graph.toys.receiver", "Receives nothing."),
        Component("memory", "exporter", "tests.graph.toys.exporter", "Keeps events in memory."),
        Component("drop", "processor", "tests.graph.toys.processor", "Drops by a word."),
        Component("letters", "processor", "tests.graph.toys.router", "Routes by a letter."),
        Component("absent", "exporter", "tests.graph.toys.absent", "Is not there.", extra="absent"),
    ]
)


def load_text(folder: Path, text: str, environment: Mapping[str, str] | None = None) -> Loaded:
    """Load a file with this text."""
    path = folder / "graph.yaml"
    path.write_text(dedent(text))
    return load(path, registry=TOYS, environment=environment or {})


def findings(folder: Path, text: str, environment: Mapping[str, str] | None = None) -> list[str]:
    """Return `line:column severity message` of everything found; hints are told apart."""
    try:
        found = load_text(folder, text, environment).warnings
    except BadConfig as error:
        found = error.findings
    return [f"{one.line}:{one.column} {one.severity} {one.message}" for one in found]


def hints(folder: Path, text: str) -> list[str]:
    """Return the hints of everything found."""
    try:
        found = load_text(folder, text).warnings
    except BadConfig as error:
        found = error.findings
    return [one.hint for one in found]


def escaped_tree(value: Any) -> Any:
    """Return plain data in which no text is taken for a reference."""
    if isinstance(value, dict):
        return {key: escaped_tree(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [escaped_tree(inner) for inner in value]
    return escaped(value) if isinstance(value, str) else value
