"""`holdfast prove`: prove durability on this machine's disk, with real kills.

A user should not have to believe us: whether acknowledged data survives depends on the disk, its
cache and its filesystem, and those are here. A seed repeats the choices of a run, what is killed
and where. It cannot repeat its timing, so a run that failed leaves its folder behind: the journals
in it are the evidence.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import click

from holdfast import prove
from holdfast.errors import BadInput
from holdfast.extras import need
from holdfast.operate.cli.base.output import json_option, print_json, print_table, stderr
from holdfast.prove.cables import check_partitions
from holdfast.prove.small_disk import check_small_disk
from holdfast.units import parse_size_bytes


class _Asked(NamedTuple):
    """A proof, as it was asked for."""

    name: str
    kills: int
    seed: int
    seconds: float
    small_disk_bytes: int | None
    partitions: bool


@click.command()
@click.argument("name", metavar="NAME|CONFIG")
@click.option("--kills", default=20, show_default=True, type=click.IntRange(1, 100_000))
@click.option(
    "--seconds",
    default=0.0,
    type=click.FloatRange(0, 86_400),
    help="Run at least this long, even when all kills are done.",
)
@click.option("--seed", type=int, help="Repeat a run's choices (not its timing).")
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Keep everything here.")
@click.option("--small-disk", metavar="SIZE", help="On a disk of this size, such as 60MB; as root.")
@click.option(
    "--partitions", is_flag=True, help="Cut data nodes off the network, too (handoff); as root."
)
@click.option("--list", "list_points", is_flag=True, help="List the named fault points.")
@json_option
def command(
    name: str,
    seed: int | None,
    directory: Path | None,
    small_disk: str | None,
    list_points: bool,
    as_json: bool,
    **bounds: Any,
) -> int:
    """Kill the process behind NAME again and again, and check what it promised.

    NAME is quiver, gateway, otel, otap, dataflow, telemetry, handoff or store. CONFIG is a graph
    file of yours: its receiver and its buffer are proven, in a copy beside its data directory; what
    it sends to is replaced by two local backends, and what runs is not touched.
    """
    is_file = name not in prove.NAMES
    if is_file and not Path(name).is_file():
        known = ", ".join(prove.NAMES)
        raise click.BadParameter(f"{name!r} is neither a graph file nor one of {known}")
    if is_file and list_points:
        raise click.UsageError("--list is for the names of proofs")
    if list_points:
        _list(name, as_json)
        return 0
    # Chosen here and always told: a run without a seed can be repeated, too.
    chosen = random.SystemRandom().getrandbits(32) if seed is None else seed
    if bounds["partitions"]:
        _check_partitions(name)
    small_disk_bytes = _small_disk_bytes(name, small_disk)
    asked = _Asked(name=name, seed=chosen, small_disk_bytes=small_disk_bytes, **bounds)
    if directory is not None:
        if directory.exists() and any(directory.iterdir()):
            raise BadInput("the directory is not empty", hint="name a new one", path=str(directory))
        return _run(asked, directory, as_json)
    return _run_aside(asked, as_json, _disk_of(name) if is_file else None)


def _disk_of(config: str) -> Path:
    """Return where a copy of a graph file is proven: on the disk that it names."""
    need("gateway")
    from holdfast.prove.own_config import disk_of

    return disk_of(Path(config))


def _check_partitions(name: str) -> None:
    if name not in prove.WITH_PARTITIONS:
        known = " and ".join(prove.WITH_PARTITIONS)
        raise BadInput(f"{name} is not proven with partitions", hint=f"only {known} is")
    check_partitions()


def _small_disk_bytes(name: str, size: str | None) -> int | None:
    if size is None:
        return None
    if name not in prove.ON_SMALL_DISK:
        known = " and ".join(prove.ON_SMALL_DISK)
        raise BadInput(f"{name} is not proven on a small disk", hint=f"only {known} are")
    try:
        size_bytes = parse_size_bytes(size)
    except ValueError as error:
        raise BadInput(str(error), hint="--small-disk 60MB") from error
    check_small_disk(size_bytes)
    return size_bytes


def _run_aside(asked: _Asked, as_json: bool, beside: Path | None) -> int:
    """Run in a folder of its own, which stays if there is something to look for in it."""
    directory = Path(tempfile.mkdtemp(prefix="holdfast-prove-", dir=beside))
    is_done_with = False
    try:
        code = _run(asked, directory, as_json)
        is_done_with = code == 0
    except KeyboardInterrupt:
        # Whoever stops it is not looking for anything in it.
        is_done_with = True
        raise
    finally:
        if is_done_with or not any(directory.iterdir()):
            shutil.rmtree(directory, ignore_errors=True)
        else:
            stderr().print(f"everything is kept in {directory}", soft_wrap=True)
    return code


def _run(asked: _Asked, directory: Path, as_json: bool) -> int:
    with stderr().status(f"proving {asked.name}, seed {asked.seed}") as status:
        result = prove.run(**asked._asdict(), directory=directory, progress=status.update)
    if as_json:
        print_json(result)
    else:
        print_table(f"prove {asked.name}", ("finding", "value"), _rows(result))
    return 0 if result["ok"] else 3


def _rows(result: dict[str, Any]) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for key, value in result.items():
        if isinstance(value, dict):
            rows += [(f"{key}: {site}", count) for site, count in value.items()]
        elif isinstance(value, list):
            rows += [(key, text) for text in value]
        else:
            rows.append((key, value))
    return rows


def _list(name: str, as_json: bool) -> None:
    points = prove.points(name)
    if as_json:
        print_json([{"point": point, "step": step} for point, step in points])
    else:
        print_table(f"fault points of {name}", ("point", "step"), points)
