"""How commands are grouped: in the order of their story, with an example and a guess for each."""

from __future__ import annotations

import difflib

import click

from holdfast.operate.cli.examples import EXAMPLES


class CommandGroup(click.Group):
    """Lists commands as they were added, with an example in each help; guesses mistyped ones."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names as they were added."""
        return list(self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, with its example."""
        command = self.find(cmd_name)
        if command is not None and command.epilog is None:
            path = f"{ctx.command_path} {cmd_name}".partition(" ")[2]
            if path in EXAMPLES:
                command.epilog = f"\b\nExample:\n  holdfast {EXAMPLES[path]}"
        return command

    def find(self, name: str) -> click.Command | None:
        """Return the command of a name, if there is one."""
        return self.commands.get(name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is meant by the first argument, or say which one may be."""
        known = self.list_commands(ctx)
        if args and args[0] not in known and self.find(args[0]) is None:
            close = difflib.get_close_matches(args[0], known, n=2)
            if close:
                guess = " or ".join(repr(name) for name in close)
                ctx.fail(f"No such command {args[0]!r}. Did you mean {guess}?")
        return super().resolve_command(ctx, args)
