"""How commands do long work: with a progress bar, at a limited rate, until a signal, on Spark.

A bar is drawn on standard error and only on a terminal: in a log it would be a thousand lines.
"""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import IO, TYPE_CHECKING, Any

import click

from holdfast.errors import NotInstalled
from holdfast.extras import install_command
from holdfast.operate.cli.base.output import Command, stderr

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from typing_extensions import Buffer

# As drives and networks are sold.
BYTES_PER_MB = 1_000_000


# Objects that are made before Python looks for cycles among them. A command that lists or stores a
# million files makes as many entries, and hardly any cycle.
NEW_OBJECTS = 100_000


def spare_the_collector() -> None:
    """Let Python's collector look seldom, and never again at what was imported so far.

    Looking through it again and again took up to a seventh of a command's time.
    """
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, 10, 10)


def engine_option(what: str) -> Callable[[Command], Command]:
    """Return an option that says where the work is done, passed as `engine`."""
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


@contextmanager
def status(what: str) -> Iterator[None]:
    """Show on a terminal that something is under way, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield
        return
    with stderr().status(what):
        yield


@contextmanager
def progress(
    what: str,
    total_bytes: int | None = None,
    *,
    max_mb_s: float | None = None,
    quiet: bool = False,
) -> Iterator[Callable[[int], None]]:
    """Give a function that is called with the bytes of each piece of work that is done.

    On a terminal it moves a bar. With `max_mb_s` it sleeps, so that the work is no faster.
    """
    with contextlib.ExitStack() as held:
        advance = _no_bar if quiet or not sys.stderr.isatty() else _bar(what, total_bytes, held)
        started_s, done_bytes = time.monotonic(), 0

        def done(size_bytes: int) -> None:
            nonlocal done_bytes
            done_bytes += size_bytes
            advance(size_bytes)
            if max_mb_s is not None:
                # Paced from the beginning and not from piece to piece: a pause of the caller is
                # caught up with, and the average over the whole is what was asked for.
                due_s = started_s + done_bytes / (max_mb_s * BYTES_PER_MB)
                time.sleep(max(0.0, due_s - time.monotonic()))

        yield done


def _no_bar(size_bytes: int) -> None:
    """Show nothing: there is no terminal, or its reader wants JSON."""


def _bar(what: str, total_bytes: int | None, held: contextlib.ExitStack) -> Callable[[int], None]:
    """Start a progress bar that ends with `held`, and return what advances it."""
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
    task = held.enter_context(bar).add_task(what, total=total_bytes)
    return lambda size_bytes: bar.advance(task, size_bytes)


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on Ctrl-C and SIGTERM, so that work ends after the piece it is at.

    What was begun is finished; an exception in the middle of it would leave it to the next run.
    """
    before = {
        number: signal.signal(number, lambda *_: stop())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# A signal is noticed at the latest after so long.
_SIGNAL_LOOK_S = 0.5


def wait_for_signal(stop: threading.Event) -> None:
    """Wait until a signal's handler sets an event.

    A handler runs in the main thread, and the kernel may hand the signal to another: right after
    SIGCONT, for one. Then nothing wakes a main thread that waits without end.
    """
    while not stop.wait(_SIGNAL_LOOK_S):
        pass


class CountedReader:
    """A file that reports how much was read from it."""

    def __init__(self, file: IO[bytes], report: Callable[[int], None]) -> None:
        self._file = file
        self._report = report

    def read(self, size: int = -1, /) -> bytes:
        """Read from the file."""
        data = self._file.read(size)
        self._report(len(data))
        return data


class CountedWriter:
    """A file that reports how much was written to it."""

    def __init__(self, file: IO[bytes], report: Callable[[int], None]) -> None:
        self._file = file
        self._report = report

    def write(self, data: Buffer, /) -> Any:
        """Write to the file."""
        self._report(memoryview(data).nbytes)
        return self._file.write(data)
