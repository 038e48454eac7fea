"""`holdfast dataflow redrive`: dead letters of a pipeline come again."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.errors import BadInput
from holdfast.operate.cli.dataflow.arguments import (
    choose,
    config_argument,
    name_argument,
    state_option,
)
from holdfast.operate.cli.output import json_option, print_json


@click.command("redrive")
@config_argument
@name_argument
@click.option("--vertex", help="Only dead letters of this vertex; by default of all with a lane.")
@state_option
@json_option
def redrive_command(
    config: str, name: str | None, vertex: str | None, state_dir: Path | None, as_json: bool
) -> None:
    """Put dead letters of a pipeline of CONFIG into the retry lane again.

    They come with its next run, with all attempts once more. No driver may run it meanwhile.
    """
    from holdfast.dataflow.driver.redrive import redrive_pipeline

    chosen = choose(config, name, state_dir)
    found = redrive_pipeline(chosen.name, chosen.pipeline, chosen.places, vertex)
    sent, left = (sum(counts) for counts in zip(*found.values(), strict=True))
    if not sent:
        raise BadInput(
            f"no dead letter of {', '.join(found)} can come again"
            + (f": {left} failed before there was a retry lane" if left else ""),
            hint="those that were sent before are not sent twice",
            path=str(chosen.places.state_dir),
        )
    if as_json:
        vertices = {one: counts._asdict() for one, counts in found.items()}
        print_json({"sent": sent, "left": left, "vertices": vertices})
        return
    for one, counts in found.items():
        kept = f", {counts.left} of before its retry lane cannot" if counts.left else ""
        click.echo(f"{one}: {counts.sent} dead letters will come again{kept}")
