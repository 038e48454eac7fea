"""How commands are grouped."""

from __future__ import annotations

import click


class InThisOrder(click.Group):
    """A group that lists its commands as they were added: in the order of their story."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names as they were added."""
        return list(self.commands)
