"""`holdfast init`: write a graph file to begin with, for one of five cases, explained line by line.

The files are in `operate/cases`. They are what `holdfast up` runs where there is no graph file yet:
one that can be read and changed, rather than defaults that nobody sees.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import click

from holdfast.errors import BadInput
from holdfast.operate.cli.base.output import json_option, print_json, print_table

DEFAULT_FILE = "holdfast.yaml"
# Case, what it is for, and the extra that it needs.
CASES = {
    "openlineage": ("lineage of Airflow, Spark or dbt, to Marquez and to files", "gateway"),
    "telemetry": ("traces, metrics and logs of OpenTelemetry, to a collector and to files", "otel"),
    "kafka": ("lineage to Kafka, secrets removed on the way", "kafka"),
    "copies": ("lineage to a backend, and copies on two data nodes", "gateway"),
    "pipelines": ("lineage to files, and counted in windows on Spark", "spark"),
}
DEFAULT_CASE = "openlineage"


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


def write_case(case: str, path: Path) -> None:
    """Write the graph file of a case; never over another one."""
    text = files("holdfast.operate").joinpath("cases", f"{case}.yaml").read_text("utf-8")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        hint = f"run it with `holdfast up {path}`, or name another with --file"
        raise BadInput("the file is there already", hint=hint, path=str(path)) from None
    except OSError as error:
        message = f"the file cannot be written: {error.strerror}"
        raise BadInput(message, hint="name another with --file", path=str(path)) from error
