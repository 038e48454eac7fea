"""`holdfast graph`: a graph file as a drawing."""

from __future__ import annotations

import click

from holdfast.graph.drawing import arrows, as_mermaid, as_text, pipeline_label
from holdfast.graph.loader import load
from holdfast.operate.cli.gateway_options import config_argument
from holdfast.operate.cli.output import json_option, print_json


@click.command()
@config_argument
@click.option(
    "--format", "form", type=click.Choice(["text", "mermaid"]), default="text", show_default=True
)
@json_option
def command(config: str, form: str, as_json: bool) -> None:
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
