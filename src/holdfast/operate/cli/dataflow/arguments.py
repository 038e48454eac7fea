"""Arguments that the commands about pipelines share."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import click

from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.spec import PipelineSettings
from holdfast.errors import BadInput
from holdfast.graph.pipelines import LoadedPipelines, load_pipelines

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


def choose(config: str, name: str | None, state_dir: Path | None = None) -> Chosen:
    """Return the pipeline that was named, or the only one."""
    loaded = load_pipelines(config)
    names = list(loaded.pipelines)
    if name is None and len(names) == 1:
        name = names[0]
    if name is None or name not in loaded.pipelines:
        asked = "name one of them" if name is None else f"there is no pipeline {name!r}"
        raise BadInput(f"{config} has {len(names)}: {asked}", hint=f"there are {', '.join(names)}")
    return Chosen(name, loaded.pipelines[name], places_of(loaded, name, state_dir))


def places_of(loaded: LoadedPipelines, name: str, state_dir: Path | None) -> Places:
    """Return where a pipeline keeps things."""
    state = loaded.data_dir / "pipelines" if state_dir is None else state_dir
    return Places((state / name).absolute(), loaded.base_dir, loaded.quivers)
