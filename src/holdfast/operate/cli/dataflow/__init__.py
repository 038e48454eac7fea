"""`holdfast dataflow`: pipelines on Spark."""

from __future__ import annotations

import click

from holdfast.operate.cli.base.groups import CommandGroup
from holdfast.operate.cli.dataflow.replay import redrive_command, replay_command
from holdfast.operate.cli.dataflow.run import drain_command, run_command, test_command
from holdfast.operate.cli.dataflow.show import (
    explain_command,
    graph_command,
    validate_command,
    watermark_command,
)


@click.group(cls=CommandGroup)
def command() -> None:
    """Run pipelines on Spark: sources, maps, windows and sinks, each event counted once."""


for subcommand in (
    validate_command,
    graph_command,
    explain_command,
    test_command,
    run_command,
    watermark_command,
    drain_command,
    redrive_command,
    replay_command,
):
    command.add_command(subcommand)
