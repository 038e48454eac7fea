"""Arguments that the commands about pipelines share."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import click

from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.driver.settings import SparkSettings
from holdfast.dataflow.spec import PipelineSettings
from holdfast.errors import BadInput
from holdfast.graph.pipelines import LoadedPipelines, ask_for_access, load_pipelines

config_argument = click.argument("config", type=click.Path(dir_okay=False))
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
