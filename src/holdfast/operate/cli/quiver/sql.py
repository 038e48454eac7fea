"""`holdfast quiver sql`: a question in SQL about what is stored, beside a running owner or without.

Every slot is a table, and so are the items of telemetry: `spans`, `logs` and `points`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

from holdfast.errors import BadInput
from holdfast.extras import need
from holdfast.operate.cli.base.output import (
    counted,
    json_option,
    parquet_option,
    print_table,
    write_parquet,
)
from holdfast.operate.cli.base.target import Target, target_argument, time_option
from holdfast.query.datasets import open_tables
from holdfast.query.kept import KeptTables
from holdfast.query.sql import SqlLimits, answer
from holdfast.units import parse_size_bytes

# Rows of an answer that are printed as a table; more are of no use to eyes.
SHOWN_ROWS = 1000


class _Size(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes as settings have them: `512MB`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes."""
        try:
            return parse_size_bytes(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command("sql")
@target_argument
@click.argument("query", metavar="SQL")
@click.option(
    "--archive", "archives", multiple=True, metavar="ADDRESS",
    help="Also what is in this archive, s3://bucket/prefix or a folder, and no longer here.",
)  # fmt: skip
@time_option("--since", "Only items and events of this time or later.")
@time_option("--until", "Only items and events before this time.")
@click.option("--skip-damaged", is_flag=True, help="Leave damaged batches out instead of failing.")
@click.option(
    "--partial", is_flag=True,
    help="As --skip-damaged, and name in `_damaged_slots` what the bundle of a row lacks.",
)  # fmt: skip
@click.option(
    "--memory", "memory_bytes", type=_Size(), default="1GB", show_default=True,
    help="What the query may hold in memory.",
)  # fmt: skip
@click.option(
    "--spill", "spill_bytes", type=_Size(), default="10GB", show_default=True,
    help="What it may write to a temporary folder when memory is not enough.",
)  # fmt: skip
@click.option(
    "--keep", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
    help="Keep tables of sealed segments there, at most 10 GB, for the next queries.",
)  # fmt: skip
@parquet_option
@json_option
def sql_command(  # noqa: PLR0913, PLR0917  (its options)
    target: Target,
    query: str,
    archives: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    skip_damaged: bool,
    partial: bool,
    memory_bytes: int,
    spill_bytes: int,
    keep: Path | None,
    parquet: Path | None,
    as_json: bool,
) -> None:
    """Answer a query in SQL (duckdb) over the slots and tables of a quiver.

    Of a gateway's graph file or data directory: of all its quivers; or of an archive of segments,
    s3://bucket/prefix or file:///folder. Tables are `spans`, `logs` and `points`, a row for each
    item, and every slot under its own name. With --json each row is a line of JSON; bytes, such as
    ids, are in hexadecimal digits.
    """
    need("query")
    if "://" in target.named:
        directories, archives = [], (target.named, *archives)
    else:
        directories = [one.directory for one in target.quivers()] or [target.path]
    datasets = open_tables(
        *directories,
        archives=archives,
        since=since,
        until=until,
        on_damage="flag" if partial else "skip" if skip_damaged else "fail",
        keep=None if keep is None else KeptTables(keep),
    )
    limits = SqlLimits(memory_bytes, spill_bytes)
    with answer(datasets, query, limits) as reader:
        if parquet is not None:
            click.echo(counted(write_parquet(parquet, reader.schema, reader), "row"), err=True)
        elif as_json:
            for row in readable_rows(reader):
                click.echo(json.dumps(row, default=str, ensure_ascii=False))
        else:
            _print(reader)


def _print(reader: pa.RecordBatchReader) -> None:
    names, shown, more = reader.schema.names, list[list[object]](), False
    if len(set(names)) < len(names):
        raise BadInput("two columns have one name", hint="name them apart with `as`")
    for row in readable_rows(reader):
        if len(shown) == SHOWN_ROWS:
            more = True
            break
        shown.append([_cell(row.get(name)) for name in names])
    print_table(counted(len(shown), "row"), names, shown)
    if more:
        click.echo(f"there are more than {SHOWN_ROWS}; --json and --parquet have all", err=True)


def readable_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """Yield rows as JSON has them: maps as objects, bytes in hexadecimal digits."""
    for batch in batches:
        for row in batch.to_pylist(maps_as_pydicts="lossy"):
            yield {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it.

    Members of a struct that are null are left out: of an attribute's value all but one are.
    """
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal):  # such as every sum of whole numbers
        return int(value) if value == int(value) else float(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items() if one is not None}
    return value


def _cell(value: Any) -> object:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
