"""`holdfast quiver`: look into a data directory, check it, change it, copy it."""

from __future__ import annotations

import click

from holdfast.operate.cli.base.groups import CommandGroup
from holdfast.operate.cli.quiver.ledger import (
    drop_subscriber_command,
    ledger_command,
    replay_command,
)
from holdfast.operate.cli.quiver.maintain import (
    backup_command,
    fsck_command,
    restore_command,
    salvage_command,
    scrub_command,
)
from holdfast.operate.cli.quiver.show import (
    cat_command,
    list_command,
    metrics_command,
    show_command,
)
from holdfast.operate.cli.quiver.sql import sql_command


@click.group(cls=CommandGroup)
def command() -> None:
    """Inspect a data directory, check it, change it, copy it.

    TARGET is the directory of a quiver, or the graph file or data directory of a gateway that has
    only one. All commands work beside a running owner, and without one.
    """


for subcommand in (
    list_command,
    show_command,
    cat_command,
    sql_command,
    ledger_command,
    metrics_command,
    fsck_command,
    scrub_command,
    replay_command,
    drop_subscriber_command,
    backup_command,
    restore_command,
    salvage_command,
):
    command.add_command(subcommand)
