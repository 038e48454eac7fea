"""`holdfast completion`: what a shell needs to complete our commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print a script with which SHELL completes commands and options.

    Write it where your shell looks for completions, or evaluate it in its start-up file.
    """
    kind = get_completion_class(shell)
    assert kind is not None, f"BUG: click does not know {shell}"
    click.echo(kind(ctx.find_root().command, {}, "holdfast", "_HOLDFAST_COMPLETE").source())
