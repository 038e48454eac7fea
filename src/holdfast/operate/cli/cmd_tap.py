"""`holdfast tap`: events on their way to a destination, live."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from holdfast.operate.cli.gateway_options import ask_gateway, where_argument
from holdfast.operate.cli.output import json_option, moment, printable

# How often the gateway is asked.
POLL_S = 0.25


@click.command()
@click.argument("node")
@where_argument
@click.option("--limit", type=click.IntRange(min=1), help="End after so many events.")
@json_option
def command(node: str, where: Path, limit: int | None, as_json: bool) -> None:
    """Show a sample of the events that pass to the destination NODE, as it gets them.

    At most twenty per second are shown, and 4 kB of each. With --json, one line each.
    """
    after: Any = None
    shown = 0
    while limit is None or shown < limit:
        told = ask_gateway(where, "tap", destination=node, after=after)
        after = told["next"]
        for event in told["events"][: None if limit is None else limit - shown]:
            _show(event, as_json)
            shown += 1
        if limit is None or shown < limit:
            time.sleep(POLL_S)


def _show(event: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(event))
        return
    where = f"{event['seq']}/{event['row']}"
    head = f"{moment(event['ingestion_ns'])}  {where}  {event['slot']}  {event['bytes']} bytes"
    click.secho(head, bold=True)
    click.echo(printable(event["payload"]))
