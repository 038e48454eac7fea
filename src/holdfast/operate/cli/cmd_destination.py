"""`holdfast destination | tap`: the destinations of a running gateway, and what they are sent.

All of it is asked of the gateway, over the socket in its data directory: who may write there may
operate it, and no port has to be opened, nor a token kept, for that.
"""

from __future__ import annotations

import json
import time
from typing import Any

import click

from holdfast.errors import BadInput
from holdfast.graph.control import SKIP_VERB
from holdfast.operate.cli.base.asking import ask
from holdfast.operate.cli.base.groups import CommandGroup
from holdfast.operate.cli.base.output import (
    json_option,
    moment,
    print_json,
    print_table,
    printable,
    size,
)
from holdfast.operate.cli.base.target import Target, gateway_argument


@click.group(cls=CommandGroup)
def command() -> None:
    """List the destinations of a running gateway; pause, resume, skip what fails.

    TARGET is its graph file or its data directory; by default ./holdfast_data.
    """


@command.command("ls")
@gateway_argument
@json_option
def list_command(target: Target, as_json: bool) -> None:
    """List destinations: state, lag, and the event that one fails at."""
    status = target.ask_gateway("status")
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
            _held(one["held"]),
            one["last_error"],
        )
        for one in found
    ]
    columns = (
        "destination",
        "state",
        "wait",
        "size",
        "oldest (s)",
        "sent",
        "held by",
        "last error",
    )
    print_table("destinations", columns, rows)


@command.command("pause")
@click.argument("name")
@gateway_argument
@json_option
def pause_command(name: str, target: Target, as_json: bool) -> None:
    """Deliver nothing to NAME until it is resumed, also after a restart; events wait for it."""
    target.ask_gateway("pause", destination=name)
    _done({"paused": name}, f"{name} is paused", as_json)


@command.command("resume")
@click.argument("name")
@gateway_argument
@json_option
def resume_command(name: str, target: Target, as_json: bool) -> None:
    """Deliver to NAME again; after a failure, try immediately."""
    target.ask_gateway("resume", destination=name)
    _done({"resumed": name}, f"{name} is resumed", as_json)


@command.command("skip")
@click.argument("name")
@click.argument("event", metavar="SEQ[/ROW]")
@gateway_argument
@click.option("--reason", required=True, help="Why; it is kept in the dead letter and the ledger.")
@click.option("--worker", type=click.IntRange(min=0), default=0, help="Of several: the one it is.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def skip_command(
    name: str, event: str, target: Target, reason: str, worker: int, yes: bool, as_json: bool
) -> None:
    """Make a dead letter of the event that NAME fails at, and continue after it.

    SEQ[/ROW] is the event that `holdfast destination ls` says NAME is held by; any other is
    refused. The letter can be sent again: `holdfast dlq redrive`.
    """
    seq, _, row = event.partition("/")
    if not (seq.isdecimal() and (row or "0").isdecimal()):
        raise BadInput(
            f"{event!r} does not name an event"[:200],
            hint="`holdfast destination ls` does, as SEQ/ROW",
        )
    # The one command that keeps an event from its destination for good, so it asks, and wants a
    # reason.
    if not yes:
        what = f"Never deliver event {event} to {name}, unless it is redriven by hand?"
        ask(what)
    fields = {"destination": name, "seq": int(seq), "row": int(row or 0), "reason": reason}
    target.ask_gateway(SKIP_VERB, worker=worker, **fields)
    text = f"event {event} is a dead letter now: `holdfast dlq ls --destination {name}`"
    _done({"skipped": event, "destination": name}, text, as_json)


def _held(held: dict[str, Any] | None) -> str:
    """Return which event fails, with what, how often and for how long."""
    if held is None:
        return ""
    times = f"{held['attempts']} times in {held['age_s']:.0f} s"
    return f"{held['seq']}/{held['row']}: {held['code']}, {times}"


def _done(fields: dict[str, str], text: str, as_json: bool) -> None:
    if as_json:
        print_json(fields)
    else:
        click.echo(text)


# How often the gateway is asked.
POLL_S = 0.25


@click.command("tap")
@click.argument("node")
@gateway_argument
@click.option("--limit", type=click.IntRange(min=1), help="End after this many events.")
@json_option
def tap_command(node: str, target: Target, limit: int | None, as_json: bool) -> None:
    """Show a sample of the events that pass to the destination NODE, as it gets them.

    At most twenty per second are shown, and 4 kB of each. With --json, one line each.
    """
    # The gateway samples only while somebody asks, and keeps a few events for the next question:
    # a tap that is forgotten costs it nothing.
    after: Any = None
    shown = 0
    while limit is None or shown < limit:
        answer = target.ask_gateway("tap", destination=node, after=after)
        after = answer["next"]
        for event in answer["events"][: None if limit is None else limit - shown]:
            _show_event(event, as_json)
            shown += 1
        if limit is None or shown < limit:
            time.sleep(POLL_S)


def _show_event(event: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(event))
        return
    where = f"{event['seq']}/{event['row']}"
    head = f"{moment(event['ingestion_ns'])}  {where}  {event['slot']}  {event['bytes']} bytes"
    click.secho(head, bold=True)
    click.echo(printable(event["payload"]))
