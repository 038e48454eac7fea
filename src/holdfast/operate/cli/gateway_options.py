"""Arguments that the commands about gateways share, and how they find a running one."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Any

import click

from holdfast.errors import CannotOpen
from holdfast.graph.loader import load
from holdfast.graph.model import GraphFile
from holdfast.quiver.control import ask

config_argument = click.argument("config", type=click.Path(dir_okay=False))
where_argument = click.argument(
    "where",
    metavar="[CONFIG|DIR]",
    type=click.Path(path_type=Path),
    default=GraphFile.model_fields["data_dir"].default,
)


def data_directory(where: Path) -> PurePath:
    """Return the data directory that a configuration names, or that was named itself."""
    return PurePath(load(where).graph.data_dir if where.is_file() else where.absolute())


def ask_gateway(where: Path, verb: str, **fields: Any) -> dict[str, Any]:
    """Ask a running gateway; raises what it answers, and if nobody is there."""
    directory = data_directory(where)
    answer = ask(directory, verb, **fields)
    if answer is None:
        raise CannotOpen(
            "no gateway runs with this data directory",
            hint="start one with `holdfast up CONFIG`, or name its configuration or data directory",
            path=str(directory),
        )
    return answer
