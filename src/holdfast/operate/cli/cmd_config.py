"""`holdfast config`: what graph files may say."""

from __future__ import annotations

import click

from holdfast.graph.registry import Registry
from holdfast.graph.schema import graph_schema
from holdfast.operate.cli.groups import CommandGroup
from holdfast.operate.cli.output import json_option, print_json


@click.group(cls=CommandGroup)
def command() -> None:
    """Describe graph files."""


@command.command("schema")
@json_option
def schema_command(as_json: bool) -> None:
    """Print the JSON Schema of graph files, with the settings of every component, for editors."""
    print_json(graph_schema(Registry.standard()))
