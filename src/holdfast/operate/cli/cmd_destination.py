"""`holdfast destination`: the destinations of a running gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from holdfast.operate.cli.gateway_options import ask_gateway, where_argument
from holdfast.operate.cli.output import json_option, print_json, print_table, size


@click.group()
def command() -> None:
    """Look at the destinations of a running gateway; pause one, resume it."""


@command.command("ls")
@where_argument
@json_option
def list_command(where: Path, as_json: bool) -> None:
    """Say how every destination is: its state, how far it is behind, its last error."""
    status = ask_gateway(where, "status")
    workers = status.get("workers", [status])
    found: list[dict[str, Any]] = [one for worker in workers for one in worker["destinations"]]
    if as_json:
        print_json(found)
        return
    rows = [
        (
            one["name"],
            one["state"],
            one["lag_events"],
            size(one["lag_bytes"]),
            one["oldest_age_s"],
            one["sent_events"],
            one["last_error"],
        )
        for one in found
    ]
    columns = ("destination", "state", "wait", "size", "oldest (s)", "sent", "last error")
    print_table("destinations", columns, rows)


@command.command("pause")
@click.argument("name")
@where_argument
@json_option
def pause_command(name: str, where: Path, as_json: bool) -> None:
    """Deliver nothing to NAME until it is resumed, also after a restart; events wait for it."""
    ask_gateway(where, "pause", destination=name)
    _done({"paused": name}, f"{name} is paused", as_json)


@command.command("resume")
@click.argument("name")
@where_argument
@json_option
def resume_command(name: str, where: Path, as_json: bool) -> None:
    """Go on delivering to NAME; after a failure, try at once."""
    ask_gateway(where, "resume", destination=name)
    _done({"resumed": name}, f"{name} goes on", as_json)


def _done(fields: dict[str, str], text: str, as_json: bool) -> None:
    if as_json:
        print_json(fields)
    else:
        click.echo(text)
