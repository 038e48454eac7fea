"""`holdfast init`: write a graph file to begin with, for one of five cases, explained line by line.

The files are in `operate/cases`. They are what `holdfast up` runs where there is no graph file yet:
one that can be read and changed, rather than defaults that nobody sees.
"""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.operate.cli.base.cases import CASES, DEFAULT_CASE, DEFAULT_FILE, write_case
from holdfast.operate.cli.base.output import json_option, print_json, print_table


@click.command()
@click.argument("case", type=click.Choice(list(CASES)), default=DEFAULT_CASE)
@click.option("--file", "path", type=click.Path(path_type=Path), default=Path(DEFAULT_FILE))
@click.option("--list", "list_cases", is_flag=True, help="List the cases; write nothing.")
@json_option
def command(case: str, path: Path, list_cases: bool, as_json: bool) -> None:
    """Write a commented graph file for CASE, by default `openlineage` into ./holdfast.yaml.

    A file that is there already is left alone.
    """
    if list_cases:
        rows = [(name, what, extra) for name, (what, extra) in CASES.items()]
        if as_json:
            print_json([{"case": n, "what": w, "extra": e} for n, w, e in rows])
        else:
            print_table("cases", ("case", "what it is for", "extra"), rows)
        return
    write_case(case, path)
    if as_json:
        print_json({"written": str(path), "case": case})
    else:
        click.echo(f"wrote {path}; next: holdfast up {path}")
