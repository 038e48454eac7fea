"""The question before something that cannot be undone.

A script must say so itself, with --yes: a question that nobody sees would be answered by whatever
is on its standard input.
"""

from __future__ import annotations

import sys

import click

from holdfast.errors import BadInput


def ask(question: str) -> None:
    """Go on if a person says yes, and only then."""
    if not sys.stdin.isatty():
        raise BadInput(
            f'there is no terminal to ask on: "{question}"', hint="use --yes if you mean it"
        )
    click.confirm(question, abort=True, err=True)
