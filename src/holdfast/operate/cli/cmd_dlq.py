"""`holdfast dlq`: events that were not accepted, or that a destination will never take."""

from __future__ import annotations

import click

from holdfast.operate.cli.dlq.changing import fix_command, purge_command, replay_command
from holdfast.operate.cli.dlq.looking import list_command, show_command
from holdfast.operate.cli.groups import CommandGroup


@click.group(cls=CommandGroup)
def command() -> None:
    """Look at dead letters, correct them, try them again, give them up.

    All commands work beside a running gateway; all but replaying undelivered letters without one.
    """


for subcommand in (list_command, show_command, fix_command, replay_command, purge_command):
    command.add_command(subcommand)
