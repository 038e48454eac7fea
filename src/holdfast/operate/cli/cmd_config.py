"""`holdfast validate | print-config | config | graph`: check, print, describe, draw graph files."""

from __future__ import annotations

import click

from holdfast.errors import BadConfig
from holdfast.graph.drawing import arrows, as_mermaid, as_text, pipeline_label
from holdfast.graph.environment import caps_beyond_disks, missing_packages
from holdfast.graph.loader import load
from holdfast.graph.printing import as_yaml, printed
from holdfast.graph.registry import Registry
from holdfast.graph.schema import graph_schema
from holdfast.operate.cli import finding_line
from holdfast.operate.cli.gateway_options import config_argument
from holdfast.operate.cli.groups import CommandGroup
from holdfast.operate.cli.output import counted, json_option, print_json


@click.group(cls=CommandGroup)
def command() -> None:
    """Describe graph files."""


@command.command("schema")
@json_option
def schema_command(as_json: bool) -> None:
    """Print the JSON Schema of graph files, with the settings of every component, for editors."""
    print_json(graph_schema(Registry.standard()))


@click.command()
@config_argument
@json_option
def validate_command(config: str, as_json: bool) -> int:
    """Check CONFIG and report everything that is wrong with it in one pass, with line and column.

    Environment variables and files that it refers to are looked up. A package that it needs and
    that is not installed here is a warning; `holdfast up --check` looks at the whole machine. Ends
    with 78 if anything is wrong; warnings alone end with 0.
    """
    try:
        loaded = load(config)
        here = (*missing_packages(loaded), *caps_beyond_disks(loaded))
        findings, ok = (*loaded.warnings, *here), True
    except BadConfig as error:
        findings, ok = error.findings, False
    if as_json:
        print_json({"ok": ok, "findings": [found._asdict() for found in findings]})
    else:
        for found in findings:
            click.echo(finding_line(found))
        errors = sum(found.severity == "error" for found in findings)
        warnings = len(findings) - errors
        click.echo(f"{config}: {counted(errors, 'error')}, {counted(warnings, 'warning')}")
    return 0 if ok else BadConfig.exit_code


@click.command()
@config_argument
@json_option
def print_config_command(config: str, as_json: bool) -> None:
    """Print CONFIG with every default filled in and every secret hidden.

    What is printed means the same as CONFIG. A secret that CONFIG takes from a variable or a file
    is printed as that reference.
    """
    tree = printed(load(config))
    if as_json:
        print_json(tree)
    else:
        click.echo(as_yaml(tree), nl=False)


@click.command()
@config_argument
@click.option(
    "--format", "form", type=click.Choice(["text", "mermaid"]), default="text", show_default=True
)
@json_option
def graph_command(config: str, form: str, as_json: bool) -> None:
    """Draw CONFIG: which node leads to which, and which pipelines read them."""
    graph = load(config).graph
    if as_json:
        nodes = [
            {"name": one.name, "kind": one.kind, "type": one.component.type}
            for one in graph.nodes.values()
        ]
        nodes += [
            {"name": pipeline_label(name), "kind": "pipeline", "type": "spark"}
            for name in graph.settings.pipelines
        ]
        connections = [
            {"from": source, "to": target, "label": label}
            for source, target, label in arrows(graph)
        ]
        print_json({"nodes": nodes, "connections": connections})
    else:
        click.echo(as_mermaid(graph) if form == "mermaid" else as_text(graph), nl=False)
