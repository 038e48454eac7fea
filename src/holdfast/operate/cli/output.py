"""How commands speak: JSON when asked, tables on a terminal, plain text elsewhere."""

from __future__ import annotations

import json
import sys
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
    """Print a table; numbers are set to the right. In a pipe, each row is one line of its own."""
    content = [list(row) for row in rows]
    cells = [[printable(_shown(value)) for value in row] for row in content]
    numbers = [
        bool(content) and all(isinstance(row[place], int | float) for row in content)
        for place in range(len(columns))
    ]
    if sys.stdout.isatty():
        _draw_table(title, columns, cells, numbers)
        return
    lines = [list(columns), *([" ".join(cell.split("\n")) for cell in row] for row in cells)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    click.echo(title)
    for line in lines:
        set_out = (
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(line, widths, numbers, strict=True)
        )
        click.echo("  ".join(set_out).rstrip())


def _draw_table(
    title: str, columns: Sequence[str], cells: Sequence[Sequence[str]], numbers: Sequence[bool]
) -> None:
    from rich.table import Table
    from rich.text import Text

    from holdfast.operate.cli.consoles import stdout

    table = Table(title=title, title_justify="left", title_style="bold")
    for name, is_number in zip(columns, numbers, strict=True):
        # A moment that is cut short tells nothing; the text beside it can be broken.
        moments = name in ("time", "when")
        table.add_column(
            name, justify="right" if is_number else "left", no_wrap=moments, overflow="fold"
        )
    for row in cells:
        # As Text: what is printed may contain brackets that are no markup.
        table.add_row(*map(Text, row))
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


def counted(count: int, noun: str) -> str:
    """Return a number of things: `1 event`, `2 events`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def short_hash(hash_: bytes) -> str | None:
    """Return enough of a hash to know it by; JSON has all of it."""
    return f"{hash_.hex()[:16]}…" if hash_ else None


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
