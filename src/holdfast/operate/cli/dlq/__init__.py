"""`holdfast dlq`: events that were not accepted, or that a destination will never take."""

from __future__ import annotations

import click

from holdfast.operate.cli.base.groups import CommandGroup
from holdfast.operate.cli.dlq.change import fix_command, purge_command, redrive_command
from holdfast.operate.cli.dlq.show import list_command, show_command


@click.group(cls=CommandGroup)
def command() -> None:
    """Inspect dead letters: correct them, send them again, purge them.

    TARGET is a graph file, its data directory, or the directory of the letters. All commands work
    beside a running gateway; all but redriving undelivered letters without one.
    """


for subcommand in (list_command, show_command, fix_command, redrive_command, purge_command):
    command.add_command(subcommand)
# What it was called: `replay` is for what is stored, everywhere else.
command.add_command(redrive_command, "replay")
