"""`holdfast print-config`: a graph file with every default filled in."""

from __future__ import annotations

import click

from holdfast.graph.loader import load
from holdfast.graph.printing import as_yaml, printed
from holdfast.operate.cli.gateway_options import config_argument
from holdfast.operate.cli.output import json_option, print_json


@click.command()
@config_argument
@json_option
def command(config: str, as_json: bool) -> None:
    """Print CONFIG with every default filled in and every secret hidden.

    What is printed means the same as CONFIG. A secret that CONFIG takes from a variable or a file
    is printed as that reference.
    """
    tree = printed(load(config))
    if as_json:
        print_json(tree)
    else:
        click.echo(as_yaml(tree), nl=False)
