"""`holdfast components`: what graphs are made of."""

from __future__ import annotations

from typing import Any

import click

from holdfast.errors import BadInput
from holdfast.extras import install_command, missing_modules
from holdfast.graph.registry import Component, Registry
from holdfast.graph.settings_table import Setting, settings_of
from holdfast.graph.validation import nearest
from holdfast.operate.cli.output import json_option, print_json, print_table


@click.command()
@click.argument("name", required=False)
@json_option
def command(name: str | None, as_json: bool) -> None:
    """List receivers, processors and exporters, or the settings of one."""
    registry = list(Registry.standard())
    if name is None:
        _list(registry, as_json)
        return
    found = [one for one in registry if name in (one.type, *one.aliases)]
    if not found:
        hint = nearest(name, [one.type for one in registry], "known components")
        raise BadInput(f"there is no component {name!r}", hint=hint)
    settings = {one: _settings(one) for one in found}
    if as_json:
        print_json(
            [{**_fields(one), "settings": [s._asdict() for s in settings[one]]} for one in found]
        )
        return
    for one in found:
        click.echo(f"{one.kind} {one.type}: {one.summary}")
        columns = ("key", "type", "default", "what it is")
        print_table("settings", columns, settings[one])


def _list(registry: list[Component], as_json: bool) -> None:
    if as_json:
        print_json([_fields(one) for one in registry])
        return
    rows = [(one.kind, one.type, one.summary, "yes" if _installed(one) else _how(one))
            for one in registry]  # fmt: skip
    print_table("components", ("kind", "type", "what it does", "installed"), rows)


def _fields(one: Component) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "type": one.type,
        "aliases": list(one.aliases),
        "summary": one.summary,
        "installed": _installed(one),
    }


def _installed(one: Component) -> bool:
    if one.extra is not None and missing_modules(one.extra):
        return False
    return _importable(one)


def _importable(one: Component) -> bool:
    try:
        return one.config_model is not None
    except ImportError:
        return False


def _how(one: Component) -> str:
    return install_command(one.extra) if one.extra else "no"


def _settings(one: Component) -> list[Setting]:
    return settings_of(one.config_model) if _importable(one) else []
