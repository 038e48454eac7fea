"""`holdfast files`: versioned trees of files in a store."""

from __future__ import annotations

import importlib

import click

from holdfast.operate.cli.base.groups import CommandGroup
from holdfast.operate.cli.base.work import spare_the_collector

# Command: its module here, and its name there. Each is loaded when it is called.
COMMANDS = {
    "ls": "show:list_command",
    "cat": "show:cat_command",
    "tags": "show:tags_command",
    "put": "transfer:put_command",
    "get": "transfer:get_command",
    "cp": "edit:copy_command",
    "rm": "edit:remove_command",
    "forget": "edit:forget_command",
    "diff": "show:diff_command",
    "log": "show:log_command",
    "commit": "edit:commit_command",
    "compact": "edit:compact_command",
    "export": "transfer:export_command",
    "import": "transfer:import_command",
    "index": "show:index_group",
}


class FilesGroup(CommandGroup):
    """The commands of the table above."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(COMMANDS)

    def find(self, name: str) -> click.Command | None:
        """Import a command's module."""
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name].partition(":")
        found: click.Command = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
        return found


@click.group(cls=FilesGroup)
def command() -> None:
    """Keep versions of files: list commits, store files, restore them, compare them.

    The store is named with --store, or with HOLDFAST_STORE in the environment.
    """
    spare_the_collector()
