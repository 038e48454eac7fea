"""What a command works on: one kind of argument for files, directories, gateways and stores.

`TARGET` may be a graph file, the data directory of a gateway, or the directory of one quiver: a
tool finds what it needs from any of them, beside a running owner or without one. A target that is
required is the first argument; one that may be left out is the last. A store is named by `--store`
(or `HOLDFAST_STORE`), because commands of `files` already have two or three paths of their own.

Graph files are read with pydantic, quivers with pyarrow. Both are imported where they are needed:
a command on a store needs neither, and a quiver can be looked into where pydantic is not installed.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from holdfast.errors import BadInput, CannotOpen
from holdfast.operate.cli.base.output import Command
from holdfast.units import parse_duration_s

if TYPE_CHECKING:
    from holdfast.graph.model import Graph
    from holdfast.store.store import Store

# What a command returns: its exit code, or nothing.
Result = TypeVar("Result", int, None)

STORE_VARIABLE = "HOLDFAST_STORE"
DATABASE_VARIABLE = "HOLDFAST_STORE_DATABASE"


class NamedQuiver(NamedTuple):
    """The directory of a quiver, and a name by which it is told from others of the same target."""

    name: str
    directory: PurePath


@dataclass(frozen=True)
class Target:
    """What the user named. Nothing is read before a method asks for it."""

    named: str
    # Of a store in a bucket. A folder has its own.
    database: str | None = None

    @property
    def path(self) -> PurePath:
        """The path without links and dots, so that two of them can be compared."""
        return PurePath(Path(self.named).resolve())

    @functools.cached_property
    def graph(self) -> Graph | None:
        """The graph of the file that was named; None if it was not a file."""
        if not Path(self.named).is_file():
            return None
        from holdfast.graph.loader import load

        return load(Path(self.named)).graph

    # ----------------------------------------------------------------- a gateway

    def data_dir(self) -> PurePath:
        """Return the data directory that a graph file names, or that was named itself.

        Nothing else of the file is looked at: its variables may be set for the gateway alone.

        Tools such as `pause` only need to find a socket. Loading the whole file would ask for
        secrets that are set for the service and not in the operator's shell.
        """
        from holdfast.graph.document import Substitution, read_document

        file = Path(self.named).absolute()
        if not file.is_file():
            return PurePath(file)
        known = Substitution(os.environ, file.parent, keep_unknown=True)
        tree = read_document(file, known).value
        named = tree.get("data_dir", default_data_dir()) if isinstance(tree, dict) else None
        if not isinstance(named, str) or "${" in named:
            raise BadInput(
                "the configuration does not say what its data directory is",
                hint="name that directory instead of the configuration",
                path=self.named,
            )
        return PurePath(file.parent / named)

    def ask_gateway(self, verb: str, **fields: Any) -> dict[str, Any]:
        """Ask the running gateway; raises what it answers, or that there is none."""
        from holdfast.quiver.engine.control import ask

        directory = self.data_dir()
        answer = ask(directory, verb, **fields)
        if answer is None:
            raise CannotOpen(
                "no gateway is running with this data directory",
                hint="start one with `holdfast up CONFIG`, or name its graph file or directory",
                path=str(directory),
            )
        return answer

    # ------------------------------------------------------------------- quivers

    def quiver(self) -> PurePath:
        """Return the directory of the only quiver; a new directory is returned as it is."""
        found = self.quivers()
        if len(found) > 1:
            raise CannotOpen(
                f"there are {len(found)} quivers here",
                hint=f"name one of {', '.join(str(one.directory) for one in found)}",
                path=str(self.path),
            )
        if not found and Path(self.path).is_file():
            raise CannotOpen(
                "there is no quiver of this graph yet",
                hint="start it once with `holdfast up`",
                path=str(self.path),
            )
        return found[0].directory if found else self.path

    def quivers(self) -> list[NamedQuiver]:
        """Return the quivers of a graph file, a data directory or a root; a quiver has none."""
        from holdfast.quiver.base import names
        from holdfast.seam.disk import RealDisk

        disk = RealDisk()
        if self.graph is not None:
            from holdfast.graph.paths import plan

            roots = [(one.name, PurePath(one.directory)) for one in plan(self.graph)]
        # A directory with a FORMAT is a quiver itself; one that does not exist may be about to
        # become one.
        elif not disk.exists(self.path) or disk.exists(self.path / names.FORMAT):
            return []
        else:
            roots = [(self.path.name, self.path)]
            if not _cores(*roots[0]):
                folders = sorted(entry.name for entry in disk.list(self.path) if entry.is_dir)
                roots = [(name, self.path / name) for name in folders]
        return [quiver for name, root in roots for quiver in _cores(name, root)]

    def dead_letter_quivers(self) -> list[NamedQuiver]:
        """Return the quivers that hold the dead letters of all workers; a quiver has none."""
        from holdfast.quiver.base import names

        if self.graph is None and Path(self.path, names.FORMAT).exists():
            return []
        from holdfast.dead_letters.stored import STORES
        from holdfast.graph.paths import DEAD_LETTERS_DIR, dead_letters_directory

        first = (
            Path(self.path, DEAD_LETTERS_DIR)
            if self.graph is None
            else dead_letters_directory(self.graph)
        )
        queues = [first, *sorted(first.parent.glob(f"{first.name}-[0-9][0-9]"))]
        found = [
            NamedQuiver(f"{queue.name}/{store}", PurePath(queue) / store)
            for queue in queues
            for store in STORES
        ]
        return [quiver for quiver in found if Path(quiver.directory).exists()]

    # ------------------------------------------------------------------- a store

    def open_store(self) -> Store:
        """Open the store."""
        from holdfast.store.store import Store

        return Store.open(self.named, database=self.database)

    def create_store(self) -> Store:
        """Make the store."""
        from holdfast.store.store import Store

        return Store.create(self.named, database=self.database)


def default_data_dir() -> str:
    """Return the data directory of a graph file that does not name one."""
    from holdfast.graph.model import GraphFile

    found: str = GraphFile.model_fields["data_dir"].default
    return found


def nearest() -> str:
    """Return the current directory if it is a quiver, or else the data directory below it."""
    from holdfast.quiver.base import names

    below = "." if Path(names.FORMAT).exists() else default_data_dir()
    return below if Path(below).exists() else "."


def _cores(name: str, root: PurePath) -> list[NamedQuiver]:
    """Return the quivers that lie directly under a root, one for each core."""
    from holdfast.quiver.base import names
    from holdfast.quiver.cores import core_ids
    from holdfast.seam.disk import RealDisk

    disk = RealDisk()
    folders = (
        [names.core_dir(number) for number in core_ids(disk, root)] if disk.exists(root) else []
    )
    return [NamedQuiver(f"{name}/{folder}", root / folder) for folder in folders]


# ----------------------------------------------------------------------- arguments


class TargetType(click.ParamType):  # type: ignore[type-arg]
    """The type of every argument and option that names what a command works on."""

    name = "target"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Target:
        """Return the target, without a look at it."""
        return value if isinstance(value, Target) else Target(value)


TARGET = TargetType()

target_argument = click.argument("target", metavar="TARGET", type=TARGET)
gateway_argument = click.argument(
    "target", metavar="[TARGET]", type=TARGET, default=default_data_dir
)
quiver_argument = click.argument(
    "directory",
    metavar="TARGET",
    type=TARGET,
    callback=lambda context, parameter, target: target.quiver(),
)
config_argument = click.argument("config", type=click.Path(dir_okay=False))


class Directory(click.Path):
    """A directory that need not exist, as an absolute path."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> PurePath:
        """Return the path without links and dots."""
        return PurePath(Path(value).resolve())


_store_option: Callable[[Command], Command] = click.option(
    "--store",
    "store_url",
    required=True,
    envvar=STORE_VARIABLE,
    show_envvar=True,
    metavar="STORE",
    help="The store: a folder, or a bucket as s3://bucket/prefix.",
)
_database_option: Callable[[Command], Command] = click.option(
    "--database",
    envvar=DATABASE_VARIABLE,
    show_envvar=True,
    metavar="URL",
    help="Its database, such as postgresql+psycopg://user@host/name; a folder has one of its own.",
)


def store_options(command: Callable[..., Result]) -> Callable[..., Result]:
    """Pass a command the store that it works on, as `chosen`."""

    @functools.wraps(command)
    def with_store(store_url: str, database: str | None, **others: object) -> Result:
        return command(chosen=Target(store_url, database), **others)

    return _store_option(_database_option(with_store))


class MomentType(click.ParamType):  # type: ignore[type-arg]
    """The type of every option that names a moment: a timestamp, or how long ago it was."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """Return the moment, which always has a time zone."""
        if isinstance(value, datetime):
            return value
        try:
            # A plain number would be read as seconds; it may as well be a year.
            ago_s = 0.0 if value.strip().isdecimal() else parse_duration_s(value)
        except ValueError:
            ago_s = 0.0
        try:
            if ago_s:
                return datetime.now(UTC) - timedelta(seconds=ago_s)
            moment = datetime.fromisoformat(value)
        except (ValueError, OverflowError):
            raise BadInput(f"{value!r} is not a time", hint=MOMENT_HINT) from None
        if moment.tzinfo is None:
            raise BadInput(f"{value} has no time zone", hint=MOMENT_HINT)
        return moment


MOMENT_HINT = "write it as 2026-11-15T10:00:00Z or 2026-11-15T10:00:00+01:00, or 24h for a day ago"


def time_option(flag: str, text: str) -> Callable[[Command], Command]:
    """Return an option that takes a moment."""
    text += " As 2026-11-15T10:00:00Z, or 24h for a day ago."
    return click.option(flag, type=MomentType(), metavar="TIME", help=text)


def as_ns(moment: datetime | None) -> int | None:
    """Return a moment as nanoseconds since 1970."""
    return None if moment is None else int(moment.timestamp() * 1_000_000) * 1000
