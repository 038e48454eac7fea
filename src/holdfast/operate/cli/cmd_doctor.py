"""`holdfast doctor`: say what this machine has, and what it lacks."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from holdfast.operate.cli.output import json_option, print_json, print_table
from holdfast.operate.doctor import examine


@click.command()
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    default=lambda: Path(tempfile.gettempdir()),
    help="The disk to look at; by default that of the temporary folder.",
)
@json_option
def command(directory: Path, as_json: bool) -> int:
    """Examine this machine; exits with 1 if something must be fixed."""
    findings = examine(directory)
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        print_table("doctor", ("what", "health", "found", "advice"), findings)
    return 1 if any(finding.health == "fail" for finding in findings) else 0
