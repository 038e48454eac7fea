"""`holdfast quiver fsck | scrub`: is everything as it should be?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import PurePath
from typing import Self

import click
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from holdfast.errors import Damaged
from holdfast.operate.cli.consoles import stderr
from holdfast.operate.cli.output import json_option, print_json, print_table, size
from holdfast.operate.cli.quiver.options import directory_argument
from holdfast.quiver.tools.fsck import fsck
from holdfast.quiver.tools.inspect import QuiverFinding, Report
from holdfast.quiver.tools.scrub import scrub, total_bytes
from holdfast.seam import Seam


@click.command("fsck")
@directory_argument
@json_option
def fsck_command(directory: PurePath, as_json: bool) -> int:
    """Check names, sizes, summaries, logs, accounts. Changes nothing; exits with 65 on errors."""
    report = fsck(Seam(), directory)
    return tell_report(report, f"{report.files:,} files and folders checked", as_json=as_json)


@click.command("scrub")
@directory_argument
@click.option("--max-mb-s", type=click.FloatRange(min=0.001), help="Read at most this many MB/s.")
@json_option
def scrub_command(directory: PurePath, max_mb_s: float | None, as_json: bool) -> int:
    """Compare every byte with its checksum. Changes nothing; exits with 65 on errors."""
    disk = Seam().disk
    total = total_bytes(disk, directory) if disk.exists(directory) else 0
    with ThrottledProgress("scrub", total, max_mb_s=max_mb_s, quiet=as_json) as pace:
        report = scrub(disk, directory, pace)
    done = f"{report.files:,} files, {size(report.size_bytes)} read"
    return tell_report(report, done, as_json=as_json)


def tell_report(report: Report, done: str, *, as_json: bool) -> int:
    """Print what was found; return the exit code."""
    if as_json:
        print_json(
            {
                "ok": report.ok,
                "files": report.files,
                "size_bytes": report.size_bytes,
                "findings": [finding._asdict() for finding in report.findings],
            }
        )
    else:
        print_findings(report.findings)
        click.echo(f"{done}: " + ("sound" if report.ok else "SOMETHING IS LOST, see above"))
    return 0 if report.ok else Damaged.exit_code


def print_findings(findings: Sequence[QuiverFinding]) -> None:
    """Print findings as a table, if there are any."""
    if findings:
        rows = [(f.severity, f.where, f.what, show_ranges(f.seqs), f.next) for f in findings]
        print_table("found", ("severity", "where", "what", "seqs", "next"), rows)


def show_ranges(ranges: Sequence[tuple[int, int]]) -> str:
    """Return ranges of seqs as people write them."""
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


class ThrottledProgress:
    """Told of every piece of work in bytes: shows how far it is, and slows it down if asked to."""

    def __init__(self, what: str, total_bytes: int, *, max_mb_s: float | None, quiet: bool) -> None:
        self._max_bytes_s = None if max_mb_s is None else max_mb_s * 1e6
        self._done_bytes = 0
        self._started_s = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=stderr,
            transient=True,
            disable=quiet or not stderr.is_terminal,
        )
        self._task = self._progress.add_task(what, total=total_bytes)

    def __call__(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        self._progress.advance(self._task, size_bytes)
        if self._max_bytes_s is not None:
            due_s = self._started_s + self._done_bytes / self._max_bytes_s
            time.sleep(max(0.0, due_s - time.monotonic()))

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()
