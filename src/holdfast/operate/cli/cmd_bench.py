"""`holdfast bench`: measure speed on this machine."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import click

from holdfast import bench
from holdfast.operate.cli.base.output import json_option, print_json, print_table, stderr


@click.command()
@click.argument("name", type=click.Choice(list(bench.NAMES)), required=False)
@click.option("--list", "list_names", is_flag=True, help="List the benchmarks.")
@click.option("--quick", is_flag=True, help="Few and small rounds: to see it run, not to measure.")
@click.option("--dir", "directory", type=click.Path(path_type=PurePath), help="Where to write.")
@json_option
def command(
    name: str | None, list_names: bool, quick: bool, directory: PurePath | None, as_json: bool
) -> None:
    """Measure NAME and print medians and spread."""
    if list_names or name is None:
        _list(as_json)
        return

    def progress(text: str) -> None:
        stderr().print(f"[dim]{text}[/dim]")

    result = bench.run(name, quick=quick, progress=progress, directory=directory)
    if as_json:
        print_json(result)
    else:
        print_table(f"bench {name}", ("figure", "value"), _rows(result))


def _list(as_json: bool) -> None:
    if as_json:
        print_json(bench.NAMES)
    else:
        print_table("benchmarks", ("name", "measures"), bench.NAMES.items())


def _rows(result: dict[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    # Single rounds are in the JSON; a table has room for medians and spread.
    rows: list[tuple[str, object]] = []
    for key, value in result.items():
        if isinstance(value, dict):
            rows += _rows(value, f"{prefix}{key}.")
        elif not isinstance(value, list):
            rows.append((f"{prefix}{key}", value))
    return rows
