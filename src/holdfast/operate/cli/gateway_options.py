"""Arguments that the commands about gateways share, and how they find a running one."""

from __future__ import annotations

import os
from pathlib import Path, PurePath
from typing import Any

import click

from holdfast.errors import BadInput, CannotOpen
from holdfast.graph.document import read_document
from holdfast.graph.model import GraphFile
from holdfast.graph.substitution import BadReference, Substitution
from holdfast.quiver.engine.control import ask

DATA_DIR: str = GraphFile.model_fields["data_dir"].default

config_argument = click.argument("config", type=click.Path(dir_okay=False))
where_argument = click.argument(
    "where",
    metavar="[CONFIG|DIR]",
    type=click.Path(path_type=Path),
    default=DATA_DIR,
)


class _WhatThereIs(Substitution):
    """Replaces references as far as they are known here: a tool has no need of secrets."""

    def apply(self, text: str) -> str:
        try:
            return super().apply(text)
        except BadReference:
            return text


def data_directory(where: Path) -> PurePath:
    """Return the data directory that a configuration names, or that was named itself.

    Nothing else of the configuration is looked at: its variables may be set for the gateway alone.
    """
    if not where.is_file():
        return PurePath(where.absolute())
    file = where.absolute()
    tree = read_document(file, _WhatThereIs(os.environ, file.parent)).value
    named = tree.get("data_dir", DATA_DIR) if isinstance(tree, dict) else None
    if not isinstance(named, str) or "${" in named:
        raise BadInput(
            "the configuration does not say what its data directory is",
            hint="name that directory instead of the configuration",
            path=str(where),
        )
    return PurePath(file.parent / named)


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
