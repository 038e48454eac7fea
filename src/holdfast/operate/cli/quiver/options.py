"""Arguments and options that the commands of `holdfast quiver` share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path, PurePath
from typing import Any

import click

from holdfast.errors import BadInput, CannotOpen
from holdfast.operate.cli.output import Command
from holdfast.operate.cli.quiver_places import quivers_at
from holdfast.seam import Seam


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
