"""How commands do long work: with a bar, at a rate, on Spark where they can do without it, too."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import IO, TYPE_CHECKING, Any, Self, TypeVar

import click

from holdfast.errors import NotInstalled
from holdfast.extras import install_command
from holdfast.operate.cli.base.output import Command, stderr

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from typing_extensions import Buffer

    from holdfast.store.store import Store


def engine_option(what: str) -> Callable[[Command], Command]:
    """Let a command be told where it does its work, as `engine`."""
    return click.option(
        "--engine",
        type=click.Choice(["local", "spark"]),
        default="local",
        show_default=True,
        help=what,
    )


@contextmanager
def spark_session(name: str) -> Iterator[SparkSession]:
    """Give a session where `spark-submit` says, or on all cores of this machine."""
    if find_spec("pyspark") is None:
        hint = f"{install_command('spark')}, or use --engine local"
        raise NotInstalled("Spark is not installed", hint=hint)
    from holdfast.dataflow.driver.session import start_session, stop_session

    session = start_session(name=name)
    try:
        yield session
    finally:
        stop_session(session)


@contextlib.contextmanager
def status(what: str) -> Iterator[None]:
    """Show on a terminal that something goes on, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield
        return
    with stderr().status(what):
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

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
        console=stderr(),
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


class ThrottledProgress:
    """Told of every piece of work in bytes: shows how far it is, and slows it down if asked to."""

    def __init__(self, what: str, total_bytes: int, *, max_mb_s: float | None, quiet: bool) -> None:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._max_bytes_s = None if max_mb_s is None else max_mb_s * 1e6
        self._done_bytes = 0
        self._started_s = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=stderr(),
            transient=True,
            disable=quiet or not stderr().is_terminal,
        )
        self._task = self._progress.add_task(what, total=total_bytes)

    def __call__(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        self._progress.advance(self._task, size_bytes)
        if self._max_bytes_s is not None:
            due_s = self._started_s + self._done_bytes / self._max_bytes_s
            time.sleep(max(0.0, due_s - time.monotonic()))

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()


# What a command returns: its exit code, or nothing.
Result = TypeVar("Result", int, None)


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
