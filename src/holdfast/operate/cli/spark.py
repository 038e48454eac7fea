"""Spark for a command that can also do without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from holdfast.errors import NotInstalled
from holdfast.extras import install_command
from holdfast.operate.cli.output import Command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
