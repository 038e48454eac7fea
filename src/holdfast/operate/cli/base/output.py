"""How commands print: JSON when asked, tables on a terminal, plain text elsewhere.

Results go to standard output and everything about the work itself to standard error, so that a pipe
gets nothing but results. JSON has all fields and exact numbers; a table is for eyes, and rounds,
shortens and groups.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.errors import BadConfig, BadInput, ConfigFinding

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console

    from holdfast.store.objects.local import Leftovers

Command = TypeVar("Command", bound=Callable[..., Any])

json_option: Callable[[Command], Command] = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON and nothing else."
)


def print_json(value: object) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; numbers are right-aligned. In a pipe, each row is one line."""
    content = [list(row) for row in rows]
    cells = [[printable(_shown(value)) for value in row] for row in content]
    numbers = [
        bool(content) and all(isinstance(row[index], int | float) for row in content)
        for index in range(len(columns))
    ]
    # Two forms of the same table. In a pipe lines are for `grep` and `awk`: one line per row, no
    # frames, no wrapping at a width that nobody sees.
    if sys.stdout.isatty():
        _draw_table(title, columns, cells, numbers)
        return
    lines = [list(columns), *([" ".join(cell.split("\n")) for cell in row] for row in cells)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
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
    """Draw a table on a terminal; what does not fit is wrapped, never cut."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", title_style="bold")
    for name, is_number in zip(columns, numbers, strict=True):
        # Half a timestamp says nothing; the text beside it can be wrapped.
        is_time = name in ("time", "when")
        table.add_column(
            name, justify="right" if is_number else "left", no_wrap=is_time, overflow="fold"
        )
    for row in cells:
        # As Text: what is printed may contain brackets that are no markup.
        table.add_row(*map(Text, row))
    stdout().print(table)


def _shown(value: object) -> str:
    """Return a value as people read it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3g}"
    return "" if value is None else str(value)


def printable(text: str) -> str:
    """Return a text without characters that a terminal would obey.

    A payload or a name of a stranger's choice may hold escape sequences: printed raw, it could
    clear the screen, change its title or hide lines from whoever investigates.
    """
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\u{ord(c):04x}" for c in text)


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number of things: `1 event`, `2 events`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def short_hash(hash_: bytes) -> str | None:
    """Return enough of a hash to know it by; JSON has all of it."""
    return f"{hash_.hex()[:16]}…" if hash_ else None


def size(size_bytes: int) -> str:
    """Return bytes as people write them: in powers of 1024, as settings are."""
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


# In a pipe or a log there is no width to keep to, and the text may be searched for.
PIPE_COLUMNS = 240


@functools.cache
def stdout() -> Console:
    """Return standard output as a console; rich is imported here, as that takes 0.1 s."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=PIPE_COLUMNS)


@functools.cache
def stderr() -> Console:
    """Return standard error as a console."""
    from rich.console import Console

    return Console(stderr=True)


parquet_option: Callable[[Command], Command] = click.option(
    "--parquet", type=click.Path(path_type=Path), help="Write a Parquet file instead."
)


def write_parquet(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Write a Parquet file, under a temporary name first; return the number of rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.exists():
        raise BadInput("the file exists", hint="name a new one, or remove it", path=str(path))
    # Under its own name only when it is whole: Parquet has its index at the end, and half a file
    # is none.
    temporary, rows = path.with_name(path.name + ".tmp"), 0
    try:
        with pq.ParquetWriter(temporary, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
                rows += batch.num_rows
        temporary.rename(path)
    except pa.ArrowNotImplementedError as error:
        raise BadInput(
            f"Parquet cannot hold a column: {error}", hint="leave it out with --columns"
        ) from error
    except OSError as error:
        raise BadInput(
            f"the file cannot be written: {error.strerror}",
            hint="check the folder and the space on its disk",
            path=str(path),
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return rows


def finding_line(found: ConfigFinding) -> str:
    """Return a finding as compilers write theirs, so that editors can jump to it."""
    color = "red" if found.severity == "error" else "yellow"
    where = f"{found.file}:{found.line}:{found.column}: {click.style(found.severity, fg=color)}"
    return f"{where}: {found.message}" + (f"; {found.hint}" if found.hint else "")


def leftover_rows(found: Leftovers) -> list[tuple[str, str]]:
    """Return what to say of temporary files that killed processes left, if there are any."""
    counts = (
        ("temporary files removed", found.removed, found.removed_bytes),
        ("temporary files of others, left alone", found.kept, found.kept_bytes),
    )
    return [(what, f"{count:,}, {size(size_bytes)}") for what, count, size_bytes in counts if count]


def report_validation(
    file: str,
    findings: Sequence[ConfigFinding],
    ok: bool,
    as_json: bool,
    notes: Sequence[str] = (),
) -> int:
    """Print what is wrong with a file; return the exit code. Warnings alone end with 0.

    `notes` say how the file is read where nothing is wrong.
    """
    if as_json:
        found_fields = [found._asdict() for found in findings]
        print_json({"ok": ok, "findings": found_fields, **({"notes": notes} if notes else {})})
    else:
        for found in findings:
            click.echo(finding_line(found))
        for note in notes:
            click.echo(f"{file}: note: {note}")
        errors = sum(found.severity == "error" for found in findings)
        warnings = counted(len(findings) - errors, "warning")
        click.echo(f"{file}: {counted(errors, 'error')}, {warnings}")
    return 0 if ok else BadConfig.exit_code
