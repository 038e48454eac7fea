"""`holdfast bench`: measure speed on this machine."""

from __future__ import annotations

import sys
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
@click.option("--only", multiple=True, metavar="SECTION", help="Only this section; repeat it.")
@click.option("--against", metavar="COMMIT", help="Compare with a commit of this git checkout.")
@click.option(
    "--at-least",
    type=float,
    default=bench.AT_LEAST,
    show_default=True,
    help="With --against: exit with 1 if a figure is below this part in every round.",
)
@json_option
def command(
    name: str | None,
    list_names: bool,
    quick: bool,
    directory: PurePath | None,
    only: tuple[str, ...],
    against: str | None,
    at_least: float,
    as_json: bool,
) -> None:
    """Measure NAME and print medians and spread."""
    if list_names or name is None:
        _list(as_json)
        return

    def progress(text: str) -> None:
        stderr().print(f"[dim]{text}[/dim]")

    options: Any = {"quick": quick, "progress": progress, "directory": directory, "only": only}
    if against is not None:
        result = bench.run_against(name, against, **options, at_least=at_least)
        _print_ratios(result, as_json)
        sys.exit(1 if result["missed"] else 0)
    result = bench.run(name, **options)
    if as_json:
        print_json(result)
    else:
        print_table(f"bench {name}", ("figure", "value"), _rows(result))


def _list(as_json: bool) -> None:
    if as_json:
        print_json(bench.NAMES)
    else:
        print_table("benchmarks", ("name", "measures"), bench.NAMES.items())


def _print_ratios(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    columns = ("figure", "before", "after", "after \N{DIVISION SIGN} before", "control", "CPU")
    rows = [
        (
            name,
            one["before"]["median"],
            one["after"]["median"],
            *(_with_range(one[part]) for part in ("ratio", "control", "cpu_ratio")),
        )
        for name, one in result["ratios"].items()
    ]
    print_table(f"{result['bench']} against {result['against'][:12]}", columns, rows)
    for name, reason in result["not_compared"].items():
        stderr().print(f"{name} was not compared: {reason}", markup=False)
    if result["missed"]:
        told = ", ".join(result["missed"])
        stderr().print(f"below {result['at_least']} in every round: {told}", markup=False)


def _with_range(spread: dict[str, float] | None) -> str:
    if spread is None:
        return ""
    return f"{spread['median']:.2f} ({spread['min']:.2f} \N{EN DASH} {spread['max']:.2f})"


def _rows(result: dict[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    # Single rounds are in the JSON; a table has room for medians and spread.
    rows: list[tuple[str, object]] = []
    for key, value in result.items():
        if isinstance(value, dict):
            rows += _rows(value, f"{prefix}{key}.")
        elif not isinstance(value, list):
            rows.append((f"{prefix}{key}", value))
    return rows
