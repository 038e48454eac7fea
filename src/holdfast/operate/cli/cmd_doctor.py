"""`holdfast doctor`: say what this machine has, and what it lacks.

It looks by doing: a folder is writable if something can be written, a sync takes as long as it
takes here. What a machine lacks is a warning as long as something useful works without it; only
what stops a quiver from being opened is a failure.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Literal, NamedTuple

import click

from holdfast import __version__
from holdfast.dataflow.driver.java import JAVA_MIN, find_java
from holdfast.errors import HoldfastError
from holdfast.extras import MODULES, install_command, missing_modules
from holdfast.operate.cli.base.output import json_option, print_json, print_table
from holdfast.quiver import Quiver
from holdfast.quiver.base import identity
from holdfast.seam.disk import RealDisk, write_all


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
    """Check this machine; exits with 1 if something must be fixed."""
    findings = examine(directory)
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        print_table("doctor", ("what", "health", "found", "advice"), findings)
    return 1 if any(finding.health == "fail" for finding in findings) else 0


Health = Literal["ok", "warn", "fail"]

PYTHON_MIN = (3, 11)
FREE_BYTES_LOW = 1 << 30
SYNC_SLOW_MS = 20.0
SPARK_SERIES = "4.3"


class MachineFinding(NamedTuple):
    """One thing that was looked at."""

    name: str
    health: Health
    found: str
    advice: str = ""


def examine(directory: Path) -> list[MachineFinding]:
    """Look at everything, writing only into a temporary folder below `directory`."""
    findings = [*_software(), _java(), _spark(), *_extras(), *_disk(directory)]
    return [f._replace(advice="") if f.health == "ok" else f for f in findings]


def _software() -> Iterator[MachineFinding]:
    yield MachineFinding("holdfast", "ok", __version__)
    good = sys.version_info[:2] >= PYTHON_MIN
    yield MachineFinding(
        "python", "ok" if good else "fail", platform.python_version(), "3.11 or newer"
    )
    known = sys.platform == "linux"
    advice = "Linux is the reference; elsewhere only the embedded Quiver is supported"
    yield MachineFinding("system", "ok" if known else "warn", platform.platform(terse=True), advice)
    good = identity.machine_order() == identity.BYTE_ORDER
    advice = "data directories are for little-endian machines"
    yield MachineFinding("byte order", "ok" if good else "fail", identity.machine_order(), advice)
    for package in ("pyarrow", "xxhash"):
        yield MachineFinding(package, "ok", importlib.metadata.version(package))


def _extras() -> Iterator[MachineFinding]:
    for extra in MODULES:
        if extra == "spark":
            continue  # has a line of its own
        missing = missing_modules(extra)
        found = f"missing: {', '.join(missing)}" if missing else "installed"
        health: Health = "warn" if missing else "ok"
        yield MachineFinding(f"extra {extra}", health, found, install_command(extra))
    if not missing_modules("otel"):
        yield _flat_tables()


def _flat_tables() -> MachineFinding:
    """Say who writes requests of tables: both ways give the same, at another speed."""
    from holdfast.signals.otlp.flat.nested import Converter, converter

    package = "ptars" if converter() is Converter.PTARS else "protobuf"
    found = f"by {package} {importlib.metadata.version(package)}"
    health: Health = "ok" if converter() is Converter.PTARS else "warn"
    advice = f"back to requests several times slower than by ptars: {install_command('otel')}"
    return MachineFinding("flat tables", health, found, advice)


def _java() -> MachineFinding:
    java = find_java()
    if java is None:
        advice = f"only pipelines on Spark need it: {install_command('spark')}"
        return MachineFinding("java", "warn", "none", advice)
    found = f"{java.version} from {java.origin} ({java.executable})"
    return MachineFinding("java", "ok" if java.is_good else "warn", found, f"{JAVA_MIN} or newer")


def _spark() -> MachineFinding:
    """Say which Spark there is: the watermark rests on its internals, so not any will do."""
    if importlib.util.find_spec("pyspark") is None:
        advice = f"only pipelines need it: {install_command('spark')}"
        return MachineFinding("spark", "warn", "none", advice)
    version = importlib.metadata.version("pyspark")
    health: Health = "ok" if version.startswith(f"{SPARK_SERIES}.") else "warn"
    advice = f"pipelines are tested on {SPARK_SERIES} alone: {install_command('spark')}"
    return MachineFinding("spark", health, version, advice)


def _disk(directory: Path) -> Iterator[MachineFinding]:
    """Look at free space, measure a sync, and open a quiver in a temporary folder."""
    if not directory.is_dir() or not os.access(directory, os.W_OK):
        yield MachineFinding(
            "disk", "fail", f"{directory} is not writable", "name another with --dir"
        )
        return
    disk = RealDisk()
    free_bytes = disk.free_bytes(directory)
    health: Health = "ok" if free_bytes >= FREE_BYTES_LOW else "warn"
    yield MachineFinding("free space", health, f"{free_bytes / 1e9:.1f} GB in {directory}")
    with tempfile.TemporaryDirectory(prefix="holdfast-doctor-", dir=directory) as temporary:
        sync_ms = _sync_ms(disk, PurePath(temporary))
        speed: Health = "ok" if sync_ms <= SYNC_SLOW_MS else "warn"
        advice = "every acknowledgement waits for one sync"
        yield MachineFinding("sync", speed, f"{sync_ms:.2f} ms (median)", advice)
        yield _quiver(PurePath(temporary) / "quiver")


def _quiver(folder: PurePath) -> MachineFinding:
    try:
        with Quiver.open(folder) as quiver:
            quiver.append_raw(b"hello")
            quiver.flush()
    except HoldfastError as error:
        return MachineFinding("quiver", "fail", error.message, error.hint)
    return MachineFinding("quiver", "ok", "opened, appended, sealed, closed")


def _sync_ms(disk: RealDisk, folder: PurePath) -> float:
    """Return the median time of a small write and its sync, in milliseconds."""
    handle = disk.create(folder / "probe", "doctor")
    times_s = []
    try:
        for _ in range(20):
            started_s = time.perf_counter()
            write_all(disk, handle, [bytes(4096)], "doctor")
            disk.sync(handle, "doctor")
            times_s.append(time.perf_counter() - started_s)
    finally:
        disk.close(handle)
    return statistics.median(times_s) * 1000
