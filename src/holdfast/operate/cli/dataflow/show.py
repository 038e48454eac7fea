"""`holdfast dataflow validate | graph | explain | watermark`: no Spark is started.

What a pipeline becomes is decided without Spark: the plan says which vertices are one query, and
why. So a file can be checked in a second, in CI, on a machine without Java; only `--spark` lets the
SQL be parsed by Spark itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import click

from holdfast.dataflow.compiler.continuation import planned
from holdfast.dataflow.compiler.explain import as_fields, as_svg, as_text, explain
from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.driver.settings import SparkSettings
from holdfast.dataflow.source.notes import read_explanations
from holdfast.dataflow.spec import PipelineSettings
from holdfast.errors import BadConfig, BadInput
from holdfast.graph.pipelines import LoadedPipelines, ask_for_access, load_pipelines
from holdfast.operate.cli.base.output import (
    json_option,
    print_json,
    report_validation,
)
from holdfast.operate.cli.base.target import config_argument

name_argument = click.argument("name", required=False)
state_option = click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where progress and state are kept; by default `pipelines` in the data directory.",
)


class Chosen(NamedTuple):
    """One pipeline of a file."""

    name: str
    pipeline: PipelineSettings
    places: Places
    spark: SparkSettings
    # Whether there is a gateway in the file.
    has_gateway: bool


def choose(
    config: str, name: str | None, state_dir: Path | None = None, *, reach: bool = False
) -> Chosen:
    """Return the pipeline that was named, or the only one.

    With `reach`, quivers of a gateway that runs are read where it serves them.
    """
    loaded = load_pipelines(config)
    if reach and loaded.has_gateway:
        access = ask_for_access(loaded.data_dir)
        loaded = loaded if access is None else loaded.reaching(access)
    names = list(loaded.pipelines)
    if name is None and len(names) == 1:
        name = names[0]
    if name is None or name not in loaded.pipelines:
        asked = "name one of them" if name is None else f"there is no pipeline {name!r}"
        raise BadInput(f"{config} has {len(names)}: {asked}", hint=f"there are {', '.join(names)}")
    places = places_of(loaded, name, state_dir)
    return Chosen(name, loaded.pipelines[name], places, loaded.spark, loaded.has_gateway)


def places_of(loaded: LoadedPipelines, name: str, state_dir: Path | None) -> Places:
    """Return where a pipeline keeps things."""
    state = loaded.state_dir(name) if state_dir is None else state_dir / name
    return Places(state.absolute(), loaded.base_dir, loaded.quivers)


@click.command("validate")
@config_argument
@click.option("--imports", is_flag=True, help="Also import the Python functions that are named.")
@click.option("--spark", is_flag=True, help="Also let Spark parse the SQL; takes some seconds.")
@json_option
def validate_command(config: str, imports: bool, spark: bool, as_json: bool) -> int:
    """Check the pipelines of CONFIG, and report what is wrong, with line and column.

    First everything about keys and values; when that is right, how vertices are connected.
    """
    parse = None
    if spark:
        from holdfast.dataflow.driver.session import spark_parser, start_session

        parse = spark_parser(start_session("local[1]"))
    try:
        findings, ok = load_pipelines(config, parse=parse, imports=imports).warnings, True
    except BadConfig as error:
        findings, ok = error.findings, False
    return report_validation(config, findings, ok, as_json)


@click.command("graph")
@config_argument
@name_argument
@click.option(
    "--format", "form", type=click.Choice(["text", "svg"]), default="text", show_default=True
)
def graph_command(config: str, name: str | None, form: str) -> None:
    """Draw a pipeline of CONFIG: its vertices, and which of them are one query."""
    chosen = choose(config, name)
    plan = planned(chosen.name, chosen.pipeline, chosen.places.state_dir)
    click.echo(as_svg(plan) if form == "svg" else as_text(plan), nl=False)


@click.command("explain")
@config_argument
@name_argument
@json_option
def explain_command(config: str, name: str | None, as_json: bool) -> None:
    """Explain how a pipeline of CONFIG becomes queries of Spark, and why."""
    chosen = choose(config, name)
    plan = planned(chosen.name, chosen.pipeline, chosen.places.state_dir)
    if as_json:
        print_json(as_fields(plan))
    else:
        click.echo(explain(plan), nl=False)


@click.command("watermark")
@config_argument
@name_argument
@state_option
@json_option
def watermark_command(config: str, name: str | None, state_dir: Path | None, as_json: bool) -> None:
    """Show where the watermark of a pipeline is, and what holds it there."""
    chosen = choose(config, name, state_dir)
    plan = planned(chosen.name, chosen.pipeline, chosen.places.state_dir)
    notes: dict[str, dict[str, Any]] = {}
    for query in plan.queries:
        notes |= read_explanations(str(chosen.places.checkpoint(query)))
    if as_json:
        print_json(notes)
        return
    for subscriber, note in notes.items():
        click.echo(f"{subscriber}: {note['explanation']}")
    if not notes:
        click.echo(f"{chosen.name}: nothing is claimed yet")
