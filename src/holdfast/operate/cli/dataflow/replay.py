"""`holdfast dataflow replay | redrive`: stored data or dead letters once more.

They are opposites. A replay computes everything again from what quivers still hold, into a folder
of its own, and changes nothing. A redrive gives rows that failed another try within the pipeline
itself: what comes of them goes to its sinks.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.dataflow.driver.session import start_session
from holdfast.errors import BadInput
from holdfast.operate.cli.base.output import json_option, print_json
from holdfast.operate.cli.base.target import config_argument
from holdfast.operate.cli.dataflow.run import (
    conf_option,
    master_option,
    print_progress,
    spark_settings,
)
from holdfast.operate.cli.dataflow.show import (
    choose,
    name_argument,
    state_option,
)

if TYPE_CHECKING:
    from holdfast.dataflow.driver.replay import StoredRange


def _range(context: click.Context, parameter: click.Parameter, text: str) -> StoredRange:
    """Return what is on either side of two dots: timestamps, or numbers of bundles."""
    from holdfast.dataflow.driver.replay import StoredRange

    parts = text.split("..")
    if len(parts) != len(("since", "until")):
        raise _wrong(text)
    if all(part.isdecimal() for part in parts if part):
        since_seq, until_seq = (int(part) if part else None for part in parts)
        return StoredRange(since_seq=since_seq, until_seq=until_seq)
    try:
        since, until = (datetime.fromisoformat(part) if part else None for part in parts)
    except ValueError:
        raise _wrong(text) from None
    return StoredRange(_in_utc(since), _in_utc(until))


def _in_utc(moment: datetime | None) -> datetime | None:
    is_local = moment is not None and moment.tzinfo is None
    return moment.replace(tzinfo=UTC) if moment is not None and is_local else moment


def _wrong(text: str) -> BadInput:
    return BadInput(
        f"{text!r} is not a range",
        hint="write 2026-05-01T10:00Z..2026-05-01T11:00Z, or bundles 100..200; "
        "either side may be left out",
    )


@click.command("replay")
@config_argument
@name_argument
@click.option(
    "--into",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="A new folder: the results of each sink, as Parquet files, in a folder of its name.",
)
@click.option(
    "--batch", is_flag=True, help="All rows as one batch: nothing is late. Else as they came."
)
@click.option(
    "--range",
    "wanted",
    default="..",
    callback=_range,
    metavar="FROM..TO",
    help="Only events of these times, or bundles of these numbers; TO is not included.",
)
@master_option
@conf_option
@json_option
def replay_command(
    config: str,
    name: str | None,
    into: Path,
    batch: bool,
    wanted: StoredRange,
    master: str | None,
    settings: Sequence[str],
    as_json: bool,
) -> None:
    """Run a pipeline of CONFIG over what its quivers still hold, into a folder of its own.

    Nothing else changes: no subscriber, no state and no sink of the pipeline is touched.
    """
    from holdfast.dataflow.driver.replay import replay

    chosen = choose(config, name, reach=True)
    given = {**chosen.spark.conf, **spark_settings(settings)}
    session = start_session(master or chosen.spark.master, given, name=f"{chosen.name}-replay")
    queries = replay(
        chosen.name, chosen.pipeline, chosen.places, session, into, wanted, as_batch=batch
    )
    if as_json:
        print_json({"into": str(into), "queries": [one.to_fields() for one in queries]})
    else:
        print_progress(queries)


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
