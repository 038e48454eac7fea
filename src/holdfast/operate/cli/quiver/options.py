"""Arguments that the commands of `holdfast quiver` share, and which quivers are meant."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import click

from holdfast.dead_letters.stored import STORES
from holdfast.errors import BadInput, CannotOpen
from holdfast.graph.loader import load
from holdfast.graph.paths import DEAD_LETTERS_DIR, dead_letters_directory, plan
from holdfast.operate.cli.output import Command
from holdfast.quiver.base import names
from holdfast.quiver.cores import core_ids
from holdfast.seam import Seam
from holdfast.seam.disk import Disk


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
