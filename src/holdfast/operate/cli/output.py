"""How commands speak: JSON when asked, tables on a terminal, plain text elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

json_option: Callable[[Command], Command] = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON and nothing else."
)


def print_json(value: object) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; numbers are set to the right."""
    from rich.table import Table
    from rich.text import Text

    from holdfast.operate.cli.consoles import stdout

    table = Table(title=title, title_justify="left", title_style="bold")
    content = [list(row) for row in rows]
    for place, name in enumerate(columns):
        numbers = content and all(isinstance(row[place], int | float) for row in content)
        # A moment that is cut short tells nothing; the text beside it can be broken.
        moments = name in ("time", "when")
        table.add_column(
            name, justify="right" if numbers else "left", no_wrap=moments, overflow="fold"
        )
    for row in content:
        # As Text: what is printed may contain brackets that are no markup.
        table.add_row(*(Text(_shown(value)) for value in row))
    stdout.print(table)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3g}"
    return "" if value is None else str(value)


def printable(text: str) -> str:
    """Return a text without characters that a terminal would obey."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\u{ord(c):04x}" for c in text)


def size(size_bytes: int) -> str:
    """Return bytes as people write them."""
    amount = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1024:  # noqa: PLR2004
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TB"


def moment(time_ns: int) -> str:
    """Return a time in UTC, to the millisecond."""
    when = datetime.fromtimestamp(time_ns // 1_000_000 / 1000, tz=UTC)
    return when.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")
