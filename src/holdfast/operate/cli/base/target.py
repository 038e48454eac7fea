"""Arguments that the commands about gateways share, and how they find a running one."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import click

from holdfast.dead_letters.stored import STORES
from holdfast.errors import BadInput, CannotOpen
from holdfast.graph.document import read_document
from holdfast.graph.loader import load
from holdfast.graph.model import GraphFile
from holdfast.graph.paths import DEAD_LETTERS_DIR, dead_letters_directory, plan
from holdfast.graph.substitution import BadReference, Substitution
from holdfast.operate.cli.base.output import Command
from holdfast.quiver.base import names
from holdfast.quiver.cores import core_ids
from holdfast.quiver.engine.control import ask
from holdfast.seam import Seam
from holdfast.seam.disk import Disk

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


class Directory(click.Path):
    """A directory as an absolute path, so that two of them can be compared."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> PurePath:
        """Return the path without links and dots."""
        return PurePath(Path(value).resolve())


class QuiverDirectory(Directory):
    """The directory of a quiver, also by what has only one: a graph file, a gateway's data."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> PurePath:
        """Return where the quiver is that is meant."""
        where = super().convert(value, param, ctx)
        places = quivers_at(Seam(), where)
        if len(places) > 1:
            raise CannotOpen(
                f"there are {len(places)} quivers here",
                hint=f"name one of {', '.join(str(place.directory) for place in places)}",
                path=str(where),
            )
        if not places and Path(where).is_file():
            raise CannotOpen(
                "there is no quiver of this graph yet",
                hint="start it once with `holdfast up`",
                path=str(where),
            )
        return places[0].directory if places else where


directory_argument = click.argument("directory", metavar="DIRECTORY|CONFIG", type=QuiverDirectory())
target_argument = click.argument("target", type=Directory())
parquet_option = click.option(
    "--parquet", type=click.Path(path_type=Path), help="Write a Parquet file instead."
)


def as_ns(moment: datetime | None) -> int | None:
    """Return a moment as nanoseconds since 1970."""
    if moment is None:
        return None
    if moment.tzinfo is None:
        raise BadInput(f"{moment} has no time zone", hint="write it like 2026-11-15T10:00:00+00:00")
    return int(moment.timestamp() * 1_000_000) * 1000


def time_option(flag: str, text: str) -> Callable[[Command], Command]:
    """Return an option that takes a moment."""
    return click.option(flag, type=datetime.fromisoformat, metavar="TIME", help=text)


class NamedQuiver(NamedTuple):
    """The directory of a quiver; the name is for whoever has several."""

    name: str
    directory: PurePath


def quivers_at(seam: Seam, where: PurePath) -> list[NamedQuiver]:
    """Return the quivers of a graph file, of a data directory, under a root; none: look here."""
    disk = seam.disk
    if Path(where).is_file():
        graph = load(where).graph
        return [
            place
            for one in plan(graph)
            for place in _cores(disk, one.name, PurePath(one.directory))
        ]
    if not disk.exists(where) or disk.exists(where / names.FORMAT):
        return []
    folders = [where / entry.name for entry in disk.list(where) if entry.is_dir]
    return _cores(disk, where.name, where) or [
        place for folder in sorted(folders) for place in _cores(disk, folder.name, folder)
    ]


def dead_letters_at(seam: Seam, where: PurePath) -> list[NamedQuiver]:
    """Return the quivers of dead letters, of all workers, of a graph file or a data directory."""
    is_file = Path(where).is_file()
    letters = (
        dead_letters_directory(load(where).graph) if is_file else Path(where, DEAD_LETTERS_DIR)
    )
    offices = [letters, *sorted(letters.parent.glob(f"{letters.name}-[0-9][0-9]"))]
    places = [
        NamedQuiver(f"{office.name}/{store}", PurePath(office) / store)
        for office in offices
        for store in STORES
    ]
    return [place for place in places if seam.disk.exists(place.directory)]


def _cores(disk: Disk, name: str, root: PurePath) -> list[NamedQuiver]:
    found = core_ids(disk, root) if disk.exists(root) else []
    return [
        NamedQuiver(f"{name}/{names.core_dir(one)}", root / names.core_dir(one)) for one in found
    ]
