"""`holdfast validate`: check a graph file."""

from __future__ import annotations

import click

from holdfast.errors import BadConfig
from holdfast.graph.environment import caps_beyond_disks, missing_packages
from holdfast.graph.loader import load
from holdfast.operate.cli import finding_line
from holdfast.operate.cli.gateway_options import config_argument
from holdfast.operate.cli.output import counted, json_option, print_json


@click.command()
@config_argument
@json_option
def command(config: str, as_json: bool) -> int:
    """Check CONFIG and report everything that is wrong with it in one pass, with line and column.

    Environment variables and files that it refers to are looked up. A package that it needs and
    that is not installed here is a warning; `holdfast up --check` looks at the whole machine. Ends
    with 78 if anything is wrong; warnings alone end with 0.
    """
    try:
        loaded = load(config)
        here = (*missing_packages(loaded), *caps_beyond_disks(loaded))
        findings, ok = (*loaded.warnings, *here), True
    except BadConfig as error:
        findings, ok = error.findings, False
    if as_json:
        print_json({"ok": ok, "findings": [found._asdict() for found in findings]})
    else:
        for found in findings:
            click.echo(finding_line(found))
        errors = sum(found.severity == "error" for found in findings)
        warnings = len(findings) - errors
        click.echo(f"{config}: {counted(errors, 'error')}, {counted(warnings, 'warning')}")
    return 0 if ok else BadConfig.exit_code
