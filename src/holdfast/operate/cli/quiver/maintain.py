"""`holdfast quiver fsck | scrub | backup | restore | salvage`: check a quiver, or copy it.

None of them writes into the quiver that is named, so they may be run beside its owner and on a disk
that is failing. What has to be repaired is made anew elsewhere: `salvage` reads what is sound into
a new quiver, under a new id, because positions in the old one can no longer be trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import PurePath

import click

from holdfast.errors import Damaged
from holdfast.operate.cli.base.output import counted, json_option, print_json, print_table, size
from holdfast.operate.cli.base.target import (
    Directory,
    quiver_argument,
)
from holdfast.operate.cli.base.work import progress
from holdfast.operate.cli.quiver.ledger import print_balances
from holdfast.quiver.tools.backup import Copied, backup, restore
from holdfast.quiver.tools.fsck import fsck
from holdfast.quiver.tools.inspect import QuiverFinding, Report, Severity
from holdfast.quiver.tools.salvage import salvage
from holdfast.quiver.tools.scrub import scrub, total_bytes
from holdfast.seam import Seam

rate_option = click.option(
    "--max-mb-s", type=click.FloatRange(min=0.001), help="Read at most this many MB/s."
)
copy_argument = click.argument("copy", metavar="NEW_DIRECTORY", type=Directory())


@click.command("fsck")
@quiver_argument
@json_option
def fsck_command(directory: PurePath, as_json: bool) -> int:
    """Check names, sizes, summaries, logs, accounts. Changes nothing; exits with 65 on errors."""
    report = fsck(Seam(), directory)
    return report_findings(report, f"{report.files:,} files and folders checked", as_json=as_json)


@click.command("scrub")
@quiver_argument
@rate_option
@json_option
def scrub_command(directory: PurePath, max_mb_s: float | None, as_json: bool) -> int:
    """Compare every byte with its checksum. Changes nothing; exits with 65 on errors."""
    disk = Seam().disk
    total = total_bytes(disk, directory) if disk.exists(directory) else 0
    with progress("scrub", total, max_mb_s=max_mb_s, quiet=as_json) as pace:
        report = scrub(disk, directory, pace)
    done = f"{counted(report.files, 'file')}, {size(report.size_bytes)} read"
    return report_findings(report, done, as_json=as_json)


def report_findings(report: Report, done: str, *, as_json: bool) -> int:
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


@click.command("backup")
@quiver_argument
@copy_argument
@rate_option
@json_option
def backup_command(
    directory: PurePath, copy: PurePath, max_mb_s: float | None, as_json: bool
) -> int:
    """Copy a quiver to NEW_DIRECTORY, consistently, also while its owner is running."""
    with _paced("backup", directory, max_mb_s, quiet=as_json) as (seam, pace):
        made = backup(seam, directory, copy, pace)
    return _report_copy(made, f"backup in {copy}", as_json=as_json)


@click.command("restore")
@click.argument("directory", metavar="BACKUP", type=Directory())
@copy_argument
@rate_option
@json_option
def restore_command(
    directory: PurePath, copy: PurePath, max_mb_s: float | None, as_json: bool
) -> int:
    """Make a quiver in NEW_DIRECTORY of a backup, under a new id: old positions end."""
    with _paced("restore", directory, max_mb_s, quiet=as_json) as (seam, pace):
        made = restore(seam, directory, copy, pace)
    return _report_copy(made, f"restored to {copy}", as_json=as_json)


@click.command("salvage")
@quiver_argument
@copy_argument
@rate_option
@json_option
def salvage_command(
    directory: PurePath, copy: PurePath, max_mb_s: float | None, as_json: bool
) -> int:
    """Read what is sound of a damaged quiver into a new one. Exits with 65 if anything is lost."""
    with _paced("salvage", directory, max_mb_s, quiet=as_json) as (seam, pace):
        made = salvage(seam, directory, copy, pace)
    if as_json:
        print_json(_plain(asdict(made)))
    else:
        print_findings(made.findings)
        rows = [
            ("saved", *made.saved),
            ("  out of damaged segments", *made.from_damaged_segments),
            ("  out of the write-ahead log", *made.from_log),
            ("  without checksums to prove them", *made.unverified),
            ("  in part: with damaged slots", *made.in_part),
            ("lost, as far as is known", *made.lost),
        ]
        print_table(f"salvaged to {copy}", ("", "bundles", "events"), rows)
        click.echo(f"quiver {made.quiver_id}; subscribers: {', '.join(made.subscribers) or 'none'}")
    return _exit_code(made.findings)


@contextmanager
def _paced(
    what: str, directory: PurePath, max_mb_s: float | None, *, quiet: bool
) -> Iterator[tuple[Seam, Callable[[int], None]]]:
    """Give what reports the progress of a copy, and slows it down if that was asked for."""
    seam = Seam()
    # Everything is read twice: copied and read back, or checked and copied.
    total = 2 * total_bytes(seam.disk, directory)
    with progress(what, total, max_mb_s=max_mb_s, quiet=quiet) as pace:
        yield seam, pace


def _report_copy(made: Copied, title: str, *, as_json: bool) -> int:
    if as_json:
        print_json(_plain(asdict(made)))
    else:
        print_findings(made.findings)
        rows = [
            ("quiver_id", made.quiver_id),
            ("segments", made.segments),
            ("bundles", made.bundles),
            ("events", made.events),
            ("files", made.files),
            ("size", size(made.size_bytes)),
        ]
        print_table(title, ("", ""), rows)
        print_balances(made.balances)
    return _exit_code(made.findings)


def _exit_code(findings: list[QuiverFinding]) -> int:
    lost = any(finding.severity is Severity.ERROR for finding in findings)
    return Damaged.exit_code if lost else 0


def _plain(fields: dict[str, object]) -> dict[str, object]:
    """Return fields whose named tuples are objects, not lists."""
    return {name: _as_fields(value) for name, value in fields.items()}


def _as_fields(value: object) -> object:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()
    return [_as_fields(item) for item in value] if isinstance(value, list) else value
