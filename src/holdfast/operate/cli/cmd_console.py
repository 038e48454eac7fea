"""`holdfast console`: where a running gateway's console is, with the token that unlocks it."""

from __future__ import annotations

import click

from holdfast.operate.cli.base.output import json_option, print_json
from holdfast.operate.cli.base.target import Target, gateway_argument


@click.command()
@gateway_argument
@json_option
def command(target: Target, as_json: bool) -> None:
    """Print the address of the console of a running gateway; whoever opens it may act.

    The token stands behind the #, which a browser keeps to itself. TARGET is the graph file of the
    gateway or its data directory; by default ./holdfast_data.
    """
    found = target.ask_gateway("console")
    if as_json:
        print_json(found)
    else:
        click.echo(f"{found['address']}/#token={found['token']}")
