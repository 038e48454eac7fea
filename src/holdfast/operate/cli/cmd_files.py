"""`holdfast files`: versioned trees of files in a store."""

from __future__ import annotations

import click

from holdfast.operate.cli.files import changing, index, looking, moving, putting
from holdfast.operate.cli.groups import CommandGroup


@click.group(cls=CommandGroup)
def command() -> None:
    """Keep versions of files: look at commits, bring files in, take them out, compare them.

    The store is named with --store, or with HOLDFAST_STORE in the environment.
    """


for subcommand in (
    looking.list_command,
    looking.cat_command,
    looking.tags_command,
    putting.put_command,
    moving.get_command,
    changing.copy_command,
    changing.remove_command,
    looking.diff_command,
    looking.log_command,
    changing.commit_command,
    changing.compact_command,
    moving.export_command,
    moving.import_command,
    index.index_group,
):
    command.add_command(subcommand)
