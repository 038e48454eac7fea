"""Which store a command works with, and how its commands show that they are busy."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from holdfast.operate.cli.output import Command, printable, size
from holdfast.seam.names import disk_name, stored_name

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from holdfast.store.filesets import FileSet
    from holdfast.store.filesets.selection import OutsideLinks
    from holdfast.store.gc.leases import Job
    from holdfast.store.objects.local import Leftovers
    from holdfast.store.store import Store

# What a command returns: its exit code, or nothing.
Result = TypeVar("Result", int, None)

# It was done, except for some files, which are told: as other tools of this kind end then.
INCOMPLETE_EXIT_CODE = 3

STORE_VARIABLE = "HOLDFAST_STORE"
DATABASE_VARIABLE = "HOLDFAST_STORE_DATABASE"

_store_option: Callable[[Command], Command] = click.option(
    "--store",
    "url",
    required=True,
    envvar=STORE_VARIABLE,
    show_envvar=True,
    metavar="PLACE",
    help="The store: a folder, or a bucket as s3://bucket/prefix.",
)
_database_option: Callable[[Command], Command] = click.option(
    "--database",
    envvar=DATABASE_VARIABLE,
    show_envvar=True,
    metavar="URL",
    help="Its database, such as postgresql+psycopg://user@host/name; a folder has one of its own.",
)


@dataclass(frozen=True)
class ChosenStore:
    """The store that a command was told."""

    url: str
    database: str | None

    def open(self) -> Store:
        """Open the store."""
        from holdfast.store.store import Store

        return Store.open(self.url, database=self.database)

    def create(self) -> Store:
        """Make the store."""
        from holdfast.store.store import Store

        return Store.create(self.url, database=self.database)


def place_options(command: Callable[..., Result]) -> Callable[..., Result]:
    """Let a command be told its store, as `place`."""

    @functools.wraps(command)
    def with_place(url: str, database: str | None, **others: object) -> Result:
        return command(place=ChosenStore(url, database), **others)

    return _store_option(_database_option(with_place))


def outside_links_option(default: OutsideLinks) -> Callable[[Command], Command]:
    """Let a command be told what becomes of links that lead out of the folder."""
    return click.option(
        "--outside-links",
        type=click.Choice(["keep", "skip", "refuse"]),
        default=default,
        show_default=True,
        help="What becomes of links that lead out of the folder.",
    )


class _StoredPath(click.ParamType):  # type: ignore[type-arg]
    """A path in a commit as a shell gives it: its bytes may be any."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return stored_name(value)


STORED_PATH = _StoredPath()


def shown_path(path: str) -> str:
    """Return a path for a terminal; bytes that are not UTF-8 are spelled."""
    return "".join(
        f"\\x{ord(c) - 0xDC00:02x}" if 0xDC80 <= ord(c) <= 0xDCFF else printable(c)  # noqa: PLR2004
        for c in disk_name(path)
    )


def leftover_rows(found: Leftovers) -> list[tuple[str, str]]:
    """Return what to say of temporary files that killed processes left, if there are any."""
    told = (
        ("temporary files removed", found.removed, found.removed_bytes),
        ("temporary files of others, left alone", found.kept, found.kept_bytes),
    )
    return [(what, f"{count:,}, {size(size_bytes)}") for what, count, size_bytes in told if count]


@contextlib.contextmanager
def opened_commit(store: Store, name: str) -> Iterator[FileSet]:
    """Give the files of a commit, which stays readable meanwhile."""
    from holdfast.store.filesets import Commits

    with Commits(store).open(name) as files:
        yield files


@contextlib.contextmanager
def opened_parent(store: Store, name: str | None) -> Iterator[FileSet | None]:
    """Give the files of a parent commit, if there is to be one."""
    if name is None:
        yield None
        return
    with opened_commit(store, name) as files:
        yield files


@contextlib.contextmanager
def opened_job(store: Store, what: str) -> Iterator[Job]:
    """Give a lease to write under."""
    with store.references.open_job(f"holdfast files {what}") as job:
        yield job


@contextlib.contextmanager
def status(what: str) -> Iterator[None]:
    """Show on a terminal that something goes on, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield
        return
    from holdfast.operate.cli.consoles import stderr

    with stderr.status(what):
        yield


@contextlib.contextmanager
def progress(what: str, total_bytes: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal, and nothing elsewhere; what is given is told the bytes done."""
    if not sys.stderr.isatty():
        yield lambda done_bytes: None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TransferSpeedColumn,
    )

    from holdfast.operate.cli.consoles import stderr

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
        console=stderr,
        transient=True,
    )
    with bar:
        task = bar.add_task(what, total=total_bytes)
        yield lambda done_bytes: bar.advance(task, done_bytes)


class CountedReader:
    """A file that tells how much was read of it."""

    def __init__(self, file: IO[bytes], tell: Callable[[int], None]) -> None:
        self._file = file
        self._tell = tell

    def read(self, size: int = -1, /) -> bytes:
        """Read from the file."""
        data = self._file.read(size)
        self._tell(len(data))
        return data


class CountedWriter:
    """A file that tells how much was written to it."""

    def __init__(self, file: IO[bytes], tell: Callable[[int], None]) -> None:
        self._file = file
        self._tell = tell

    def write(self, data: Buffer, /) -> Any:
        """Write to the file."""
        self._tell(memoryview(data).nbytes)
        return self._file.write(data)
