"""`holdfast quiver metrics`: every figure of a quiver, as Prometheus text or as JSON."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath

import click

from holdfast.errors import CannotOpen
from holdfast.operate.cli.output import json_option, print_json
from holdfast.operate.metrics import records, render
from holdfast.quiver import LedgerConfig, Quiver, QuiverConfig, RetentionConfig, Statistics
from holdfast.quiver.base import names
from holdfast.quiver.base.config import AGE_MAX_S, WAIT_MAX_S
from holdfast.quiver.cores import core_ids
from holdfast.quiver.tools.inspect import inspect
from holdfast.seam.disk import RealDisk

# Whoever only looks does not know the owner's bounds, and must not delete by bounds of its own.
_UNBOUNDED = 1 << 60
_ONLY_LOOKING = QuiverConfig(
    retention=RetentionConfig(
        size_cap_bytes=_UNBOUNDED,
        max_segments=_UNBOUNDED,
        steady_state_headroom_bytes=_UNBOUNDED,
        orphan_ttl_s=None,
        tick_s=WAIT_MAX_S,
    ),
    ledger=LedgerConfig(retain_s=AGE_MAX_S, retain_bytes=_UNBOUNDED),
)


@click.command("metrics")
@click.argument("directory", type=click.Path(path_type=PurePath))
@click.option("--name", help="The label `quiver`; by default the name of the directory.")
@click.option(
    "--size-cap-bytes",
    type=click.IntRange(min=1),
    default=RetentionConfig().size_cap_bytes,
    show_default=True,
    help="The cap to compare with: the directory does not know its owner's.",
)
@json_option
def command(directory: PurePath, name: str | None, size_cap_bytes: int, as_json: bool) -> None:
    """Print every figure of a quiver that nobody has open, or of all cores under a root."""
    found = {name or directory.name: _look(directory, size_cap_bytes)}
    if as_json:
        print_json([record._asdict() for record in records(found)])
    else:
        click.echo(render(found), nl=False)


def _look(directory: PurePath, size_cap_bytes: int) -> list[Statistics]:
    disk = RealDisk()
    if disk.exists(directory / names.WAL_DIR):
        paths = {0: directory}
    else:
        found = core_ids(disk, directory) if disk.exists(directory) else []
        paths = {core_id: directory / names.core_dir(core_id) for core_id in found}
    if not paths:
        raise CannotOpen("there is no quiver", hint="name its directory", path=str(directory))
    told = []
    for core_id, path in paths.items():
        if inspect(disk, path).unsealed:
            # Opening it would seal them, and without the owner's extractors.
            raise CannotOpen(
                "its log holds bundles that only its owner can seal as they should be",
                hint="start its owner and take its own figures, or let it close cleanly first",
                path=str(path),
            )
        with Quiver.open(path, _ONLY_LOOKING) as quiver:
            told.append(replace(quiver.statistics(), core_id=core_id))
    return [replace(one, size_cap_bytes=size_cap_bytes // len(told)) for one in told]
