"""`holdfast processors`: try the processors of a graph file on events, without a gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

import click
import orjson

from holdfast.errors import BadInput
from holdfast.graph.delivery import chain_of
from holdfast.graph.loader import load
from holdfast.graph.paths import DestinationPlan, plan
from holdfast.operate.cli.gateway_options import config_argument
from holdfast.operate.cli.groups import CommandGroup
from holdfast.operate.cli.output import counted, json_option, printable
from holdfast.quiver import Position
from holdfast.signals.event import Event
from holdfast.signals.openlineage.signal import OPENLINEAGE, SLOT


@click.group(cls=CommandGroup)
def command() -> None:
    """Try the processors of a graph file on events."""


class Tried(NamedTuple):
    """What one destination gets of one event: the event, or the processor that stopped it."""

    line: int
    destination: str
    event: Any
    stopped_by: str | None


@command.command("test")
@config_argument
@click.argument("events", type=click.File("rb"), default="-")
@click.option("--destination", help="Look at this destination only.")
@json_option
def test_command(config: str, events: IO[bytes], destination: str | None, as_json: bool) -> None:
    """Run the processors of CONFIG on EVENTS, a JSON document in each line (by default standard
    input), and print what each destination would get.

    Nothing is stored or sent. An event that a destination does not get is named on standard error,
    with the processor that stopped it; with --json, each line says both.
    """
    destinations = [one for quiver in plan(load(config).graph) for one in quiver.destinations]
    if destination is not None:
        names = ", ".join(sorted(one.name for one in destinations))
        destinations = [one for one in destinations if one.name == destination]
        if not destinations:
            raise BadInput(f"there is no destination {destination!r}", hint=f"known: {names}")
    passed = stopped = 0
    for tried in _tried(events, destinations):
        passed, stopped = passed + (not tried.stopped_by), stopped + bool(tried.stopped_by)
        if as_json:
            click.echo(json.dumps(tried._asdict(), ensure_ascii=False))
        elif tried.stopped_by is None:
            text = json.dumps(tried.event, ensure_ascii=False)
            click.echo(f"{tried.destination}  {printable(text)}")
        else:
            why = f"line {tried.line}: {tried.destination} does not get it"
            click.echo(f"{why}: stopped by {tried.stopped_by!r}", err=True)
    if not as_json:
        click.echo(f"{counted(passed, 'event')} passed, {stopped} stopped", err=True)


def _tried(events: IO[bytes], destinations: list[DestinationPlan]) -> Iterator[Tried]:
    for number, line in enumerate(events, start=1):
        if not line.strip():
            continue
        try:
            orjson.loads(line)
        except orjson.JSONDecodeError as error:
            hint = "write one JSON document in each line"
            raise BadInput(f"line {number} is not JSON: {error}", hint=hint) from None
        for one in destinations:
            yield _sent(number, line.strip(), one)


def _sent(line: int, payload: bytes, destination: DestinationPlan) -> Tried:
    """Try the chains in order, as a delivery does: the first that lets an event through counts."""
    stopped_by = None
    for chain in destination.chains:
        # Each chain gets an event of its own: the parsed form is cached in it.
        event: Any = Event("", Position(line, 0), SLOT, payload, {}, 0, OPENLINEAGE.name)
        for step in chain:
            event = chain_of((step,)).process(event)
            if event is None:
                stopped_by = stopped_by or step.node.name
                break
        if event is not None:
            return Tried(line, destination.name, event.document, None)
    return Tried(line, destination.name, None, stopped_by)
