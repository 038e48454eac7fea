"""Commands about graph files and what they are made of; nothing is started.

`holdfast validate | print-config | config | graph | components | processors`
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import IO, Any, NamedTuple

import click
import orjson

from holdfast.errors import BadConfig, BadInput
from holdfast.extras import install_command, missing_modules, need
from holdfast.graph.delivery import chain_of
from holdfast.graph.environment import caps_beyond_disks, missing_packages
from holdfast.graph.loader import load
from holdfast.graph.paths import DestinationPlan, form_changes, plan
from holdfast.graph.printing import arrows, as_mermaid, as_text, as_yaml, pipeline_label, printed
from holdfast.graph.registry import Component, Registry
from holdfast.graph.schema import Setting, graph_schema, settings_of
from holdfast.graph.validation import nearest
from holdfast.operate.cli.base.groups import CommandGroup
from holdfast.operate.cli.base.output import (
    counted,
    json_option,
    print_json,
    print_table,
    printable,
    report_validation,
)
from holdfast.operate.cli.base.target import config_argument
from holdfast.quiver import Position
from holdfast.signals.event import Event
from holdfast.signals.openlineage.names import SLOT
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.registry import OPENLINEAGE, signal_named


@click.group("config", cls=CommandGroup)
def config_group() -> None:
    """Describe graph files."""


@config_group.command("schema")
@json_option
def schema_command(as_json: bool) -> None:
    """Print the JSON Schema of graph files, with the settings of every component, for editors."""
    print_json(graph_schema(Registry.standard()))


@click.command()
@config_argument
@json_option
def validate_command(config: str, as_json: bool) -> int:
    """Check CONFIG and report what is wrong with it, with line and column.

    First everything about keys, values and types; when that is right, everything about how nodes
    are connected.

    Environment variables and files that it refers to are looked up. A package that it needs and
    that is not installed here is a warning; `holdfast up --check` looks at the whole machine. Ends
    with 78 if anything is wrong; warnings alone end with 0.
    """
    try:
        loaded = load(config)
        here = (*missing_packages(loaded), *caps_beyond_disks(loaded))
        findings, ok = (*loaded.warnings, *here), True
        notes = tuple(map(str, form_changes(loaded.graph)))
    except BadConfig as error:
        findings, ok, notes = error.findings, False, ()
    return report_validation(config, findings, ok, as_json, notes)


@click.command()
@config_argument
@json_option
def print_config_command(config: str, as_json: bool) -> None:
    """Print CONFIG with every default filled in and every secret hidden.

    A secret that CONFIG takes from a variable or a file is printed as that reference, and then what
    is printed means the same as CONFIG. One that stands in it literally is hidden, and so are all
    literal values of `client_config`: put them back before you run what was printed.
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


@click.command("components")
@click.argument("name", required=False)
@json_option
def components_command(name: str | None, as_json: bool) -> None:
    """List receivers, processors and exporters, or the settings of one."""
    registry = list(Registry.standard())
    if name is None:
        _list(registry, as_json)
        return
    found = [one for one in registry if name in (one.type, *one.aliases)]
    if not found:
        hint = nearest(name, [one.type for one in registry], "known components")
        raise BadInput(f"there is no component {name!r}", hint=hint)
    settings = {one: _settings(one) for one in found}
    if as_json:
        print_json(
            [{**_fields(one), "settings": [s._asdict() for s in settings[one]]} for one in found]
        )
        return
    for one in found:
        click.echo(f"{one.kind} {one.type}: {one.summary}")
        columns = ("key", "type", "default", "what it is")
        print_table("settings", columns, settings[one])


def _list(registry: list[Component], as_json: bool) -> None:
    if as_json:
        print_json([_fields(one) for one in registry])
        return
    rows = [(one.kind, one.type, one.summary, "yes" if _installed(one) else _how(one))
            for one in registry]  # fmt: skip
    print_table("components", ("kind", "type", "what it does", "installed"), rows)


def _fields(one: Component) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "type": one.type,
        "aliases": list(one.aliases),
        "summary": one.summary,
        "installed": _installed(one),
    }


def _installed(one: Component) -> bool:
    if one.extra is not None and missing_modules(one.extra):
        return False
    return _importable(one)


def _importable(one: Component) -> bool:
    try:
        return one.config_model is not None
    except ImportError:
        return False


def _how(one: Component) -> str:
    return install_command(one.extra) if one.extra else "no"


def _settings(one: Component) -> list[Setting]:
    return settings_of(one.config_model) if _importable(one) else []


@click.group("processors", cls=CommandGroup)
def processors_group() -> None:
    """Try the processors of a graph file on events."""


class Tried(NamedTuple):
    """What one destination gets of one event: the event, or the processor that stopped it."""

    line: int
    destination: str
    event: Any
    stopped_by: str | None


@processors_group.command("test")
@config_argument
@click.argument("events", type=click.File("rb"), default="-")
@click.option("--destination", help="Look at this destination only.")
@json_option
def test_command(config: str, events: IO[bytes], destination: str | None, as_json: bool) -> None:
    """Run the processors of CONFIG on EVENTS, a JSON document in each line (by default standard
    input), and print what each destination would get.

    A document is an OpenLineage event, or a request of OTLP in JSON, which its `resourceSpans`,
    `resourceMetrics` or `resourceLogs` tell; `holdfast quiver cat` prints such lines.
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
    """Stops at a line that is not JSON instead of passing it over: a file that is cut in the middle
    of an event would otherwise look as if a processor had stopped it.
    """
    for number, line in enumerate(events, start=1):
        if not line.strip():
            continue
        try:
            document = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            hint = "write one JSON document in each line"
            raise BadInput(f"line {number} is not JSON: {error}", hint=hint) from None
        event = _event_of(number, document, line.strip())
        for one in destinations:
            yield _sent(event, one)


def _event_of(line: int, document: object, text: bytes) -> Event:
    """Return the event that a line stands for, as its receiver would store it."""
    keys = document.keys() if isinstance(document, dict) else ()
    kind = next((kind for kind in OtlpKind if kind.json_field in keys), None)
    if kind is None:
        return Event("", Position(line, 0), SLOT, text, {}, 0, OPENLINEAGE.name)
    need("otel")
    from holdfast.signals.otlp.json_form import to_protobuf
    from holdfast.signals.otlp.problem import NotOtlp

    try:
        payload = to_protobuf(kind, text)
    except NotOtlp as error:
        hint = f"write {kind.items} as OTLP's JSON has them"
        raise BadInput(f"line {line} is not OTLP: {error}", hint=hint) from None
    signal = signal_named(kind.value)
    assert signal is not None, "BUG: a kind of OTLP without a signal"
    position = Position(line, 0)
    return Event("", position, kind.slot, payload, {}, 0, signal.name, signal.read, signal.count)


def _sent(given: Event, destination: DestinationPlan) -> Tried:
    """Try the chains in order, as a delivery does: the first that lets an event through counts."""
    line, stopped_by = given.position.seq, None
    wanted = destination.delivery.signals
    if wanted is not None and given.signal not in wanted:
        return Tried(line, destination.name, None, "delivery.signals")
    signal = signal_named(given.signal)
    if signal is not None and (refusal := destination.refusal_of(signal)) is not None:
        raise BadInput(
            f"line {line}: {destination.name!r} cannot take {given.signal}: {refusal}",
            hint="leave the line out, or look at another one with --destination",
        )
    for chain in destination.chains:
        # Each chain gets an event of its own: the parsed form is cached in it.
        event: Any = replace(given)
        for step in chain:
            event = chain_of((step,)).process(event)
            if event is None:
                # The first chain's culprit: where several lead to a destination, that is the one
                # people look for.
                stopped_by = stopped_by or step.node.name
                break
        if event is not None:
            return Tried(line, destination.name, event.document, None)
    return Tried(line, destination.name, None, stopped_by)
