"""`holdfast files`: versioned trees of files in a store."""

from __future__ import annotations

import click

from holdfast.operate.cli.base.groups import CommandGroup
from holdfast.operate.cli.files import edit, show, transfer


@click.group(cls=CommandGroup)
def command() -> None:
    """Keep versions of files: look at commits, bring files in, take them out, compare them.

    The store is named with --store, or with HOLDFAST_STORE in the environment.
    """


for subcommand in (
    show.list_command,
    show.cat_command,
    show.tags_command,
    transfer.put_command,
    transfer.get_command,
    edit.copy_command,
    edit.remove_command,
    show.diff_command,
    show.log_command,
    edit.commit_command,
    edit.compact_command,
    transfer.export_command,
    transfer.import_command,
    show.index_group,
):
    command.add_command(subcommand)
