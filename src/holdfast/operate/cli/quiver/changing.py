"""`holdfast quiver replay | drop-subscriber`: through the owner, or without one."""

from __future__ import annotations

import sys
from pathlib import PurePath
from typing import Any

import click

from holdfast.errors import BadInput, UnknownSubscriber
from holdfast.operate.cli.output import json_option, print_json, size
from holdfast.operate.cli.quiver.options import directory_argument
from holdfast.quiver.base.frame import Totals
from holdfast.quiver.tools.changes import balances, drop_subscriber, replay
from holdfast.quiver.tools.inspect import inspect
from holdfast.seam import Seam


@click.command("replay")
@directory_argument
@click.option("--subscriber", required=True, help="Who gets it again.")
@click.option("--from", "first_seq", type=click.IntRange(min=0), required=True, help="First seq.")
@click.option("--to", "last_seq", type=click.IntRange(min=0), required=True, help="Last seq, too.")
@json_option
def replay_command(
    directory: PurePath, subscriber: str, first_seq: int, last_seq: int, as_json: bool
) -> None:
    """Hand out again, to one subscriber, what is still there of a range."""
    again = replay(Seam(), directory, subscriber, first_seq, last_seq + 1)
    if as_json:
        print_json({"subscriber": subscriber, **again._asdict()})
    else:
        click.echo(f"{_count(again)} will be handed out again to {subscriber}")


@click.command("drop-subscriber")
@directory_argument
@click.argument("subscriber")
@click.option("--reason", default="dropped by an operator", show_default=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def drop_subscriber_command(
    directory: PurePath, subscriber: str, reason: str, yes: bool, as_json: bool
) -> None:
    """Forget a subscriber; what still waited for it is recorded as given up."""
    if not yes:
        _ask(directory, subscriber)
    given_up = drop_subscriber(Seam(), directory, subscriber, reason)
    if as_json:
        print_json({"subscriber": subscriber, "given_up": given_up._asdict()})
    else:
        click.echo(f"{subscriber} is forgotten, {_count(given_up)} given up")


def _ask(directory: PurePath, subscriber: str) -> None:
    """Say what would be lost, and let a person decide."""
    account = _account(directory, subscriber)
    pending = Totals(**account["pending"])
    if not sys.stdin.isatty():
        raise BadInput(
            f"{_count(pending)} still wait for {subscriber}, and there is nobody to ask",
            hint="say --yes if they may be given up",
            path=str(directory),
        )
    waiting = f"{_count(pending)} ({size(account['pending_bytes'])}) still wait for {subscriber}"
    click.confirm(f"{waiting}. Give them up?", abort=True)


def _account(directory: PurePath, subscriber: str) -> dict[str, Any]:
    seam = Seam()
    accounts = {a["subscriber"]: a for a in balances(seam, inspect(seam.disk, directory))}
    if subscriber not in accounts:
        raise UnknownSubscriber(
            f"no subscriber {subscriber!r}",
            hint=f"registered subscribers: {', '.join(accounts) or 'none'}",
        )
    return accounts[subscriber]


def _count(totals: Totals) -> str:
    return f"{totals.bundles:,} bundles with {totals.events:,} events"
