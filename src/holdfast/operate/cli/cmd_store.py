"""`holdfast store`: make a store, show its totals, check and repair it.

There are three checks, by what they cost. `fsck` reads indexes and lists objects, and finds what is
missing, left over or counted wrongly. `scrub` reads every byte and finds what has rotted. `rebuild`
makes the database again from the objects, and is for stores that lost it. The first two change
nothing unless they are told to repair.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.errors import BadInput, Damaged, DatabaseLost
from holdfast.operate.cli.base.groups import CommandGroup
from holdfast.operate.cli.base.output import (
    counted,
    json_option,
    leftover_rows,
    print_json,
    print_table,
    printable,
    short_hash,
    size,
    write_parquet,
)
from holdfast.operate.cli.base.target import Target, store_options
from holdfast.operate.cli.base.work import (
    BYTES_PER_MB,
    engine_option,
    progress,
    spare_the_collector,
    spark_session,
    stop_on_signals,
)

if TYPE_CHECKING:
    from holdfast.store.fsck.check import CheckEngine
    from holdfast.store.fsck.findings import FsckReport, StoreFinding
    from holdfast.store.fsck.repair import Repaired, RepairReport
    from holdfast.store.fsck.scrub import ScrubReport
    from holdfast.store.gc.rebuild import RebuildReport
    from holdfast.store.objects.local import Leftovers
    from holdfast.store.store import Store


@click.group(cls=CommandGroup)
def command() -> None:
    """Create a store, show its totals, check and repair it.

    A store is a folder, or a bucket with a database beside it. `holdfast files` works with its
    files; `holdfast gc` collects what nothing refers to any more.
    """
    spare_the_collector()


@command.command("create")
@store_options
@json_option
def create_command(chosen: Target, as_json: bool) -> None:
    """Create a store, and its database."""
    with chosen.create_store() as store:
        if as_json:
            print_json({"url": store.url, "store_id": store.id})
        else:
            click.echo(f"made store {store.id} in {store.url}")


@command.command("info")
@store_options
@json_option
def info_command(chosen: Target, as_json: bool) -> None:
    """Show what a store holds, by state of its chunks; `files ls` lists its commits."""
    with chosen.open_store() as store:
        found = store.references.statistics()
        chunking = store.chunks.chunking
        fields = {
            "url": store.url,
            "store_id": store.id,
            "commits": found.commits,
            "jobs": found.jobs,
            "pins": found.pins,
            "chunks": {state.value: totals.chunks for state, totals in found.states.items()},
            "plain_bytes": {
                state.value: totals.size_bytes for state, totals in found.states.items()
            },
            "chunking": dataclasses.asdict(chunking),
        }
    if as_json:
        print_json(fields)
        return
    click.echo(f"store {store.id} in {store.url}")
    click.echo(f"commits: {sum(found.commits.values()):,}, jobs: {found.jobs}, pins: {found.pins}")
    click.echo(
        f"chunks of about {size(chunking.average_bytes)}, at most {size(chunking.max_bytes)}"
    )
    rows = [
        (state.value, totals.chunks, size(totals.size_bytes))
        for state, totals in found.states.items()
    ]
    print_table("chunks, before compression", ("state", "chunks", "bytes"), rows)


FINDINGS_SHOWN = 200

_report_option = click.option(
    "--report",
    "report_folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write findings.parquet and summary.json into this folder, which is made.",
)
_repair_option = click.option("--repair", is_flag=True, help="Repair what was found.")


@command.command("fsck")
@store_options
@_repair_option
@click.option("--scrub", "also_scrub", is_flag=True, help="Read every chunk, too.")
@engine_option("Where the indexes are read and everything is compared.")
@_report_option
@json_option
def fsck_command(
    chosen: Target,
    repair: bool,
    also_scrub: bool,
    engine: str,
    report_folder: Path | None,
    as_json: bool,
) -> int:
    """Compare commits, chunks, rows and objects with each other; exits with 65 if any are wrong.

    Others may work with the store meanwhile. With --repair, what is wrong is repaired as far as it
    can be, and checked again; a lost database is rebuilt first.
    """
    from holdfast.store.fsck.findings import without_known

    rebuilt = None
    try:
        store = chosen.open_store()
    except DatabaseLost:
        if not repair:
            raise
        rebuilt = _rebuild(chosen)
        # A repair ends with a collection, which would take what only a lost index led to.
        repair = not rebuilt.damaged_commits
        # Opened again: the database that was rebuilt is another one.
        store = chosen.open_store()
    with store:
        # Before the check, from the first chunk on: what is damaged is then repaired together with
        # the rest, and `sound` at the end means all of it.
        damaged = _scrub(store, None, restart=True).findings if also_scrub else []
        with ENGINES[engine](store) as checking:
            result = _run(store, checking, damaged, repair=repair)
    if also_scrub and not repair:
        result.before.findings += without_known(damaged, result.before.findings)
    left = store.leftovers
    return _tell_result(
        result, rebuilt, left, report_folder, contents_read=also_scrub, as_json=as_json
    )


@command.command("scrub")
@store_options
@click.option("--max-mb-s", type=click.FloatRange(min=0.001), help="Read at most this many MB/s.")
@click.option("--restart", is_flag=True, help="Begin at the first chunk again.")
@_repair_option
@_report_option
@json_option
def scrub_command(
    chosen: Target,
    max_mb_s: float | None,
    restart: bool,
    repair: bool,
    report_folder: Path | None,
    as_json: bool,
) -> int:
    """Read every chunk and compare it with its name; exits with 65 if any is damaged.

    An interrupted scrub is resumed. With --repair, damaged chunks are set aside, and come
    back from another stored generation if there is one.
    """
    with chosen.open_store() as store:
        report = _scrub(store, max_mb_s, restart=restart)
        repaired = _repair_damaged(store, report.findings) if repair else None
    fields = {
        "ok": report.ok or (repaired is not None and not repaired.left),
        "complete": report.complete,
        "objects": report.objects,
        "size_bytes": report.size_bytes,
        "resumed_after": report.resumed_after,
        "repair": _repair_fields([repaired]) if repaired else None,
    }
    _write_report(report_folder, report.findings, fields)
    if as_json:
        print_json({**fields, "findings": [one.to_json() for one in report.findings]})
    else:
        _print_findings("found", report.findings)
        _print_repairs([repaired] if repaired else [])
        end = "" if report.complete else ", interrupted: the next one resumes here"
        click.echo(f"{counted(report.objects, 'chunk')}, {size(report.size_bytes)} read{end}")
    return 0 if fields["ok"] else Damaged.exit_code


@command.command("rebuild")
@store_options
@json_option
def rebuild_command(chosen: Target, as_json: bool) -> int:
    """Rebuild the database from the store's objects, if it is lost, or an old copy.

    An old one is set aside, not deleted; one that is up to date is left alone.
    """
    report = _rebuild(chosen)
    if as_json:
        print_json(dataclasses.asdict(report))
    else:
        _print_rebuilt(report)
    return Damaged.exit_code if report.damaged_commits else 0


@contextmanager
def _local_engine(store: Store) -> Iterator[CheckEngine]:
    from holdfast.store.fsck.check import LocalEngine

    with tempfile.TemporaryDirectory(prefix="holdfast-fsck-") as scratch:
        yield LocalEngine(store, Path(scratch))


@contextmanager
def _spark_engine(store: Store) -> Iterator[CheckEngine]:
    with spark_session("holdfast-fsck") as session:
        from holdfast.dataflow.filesets.audit import SparkEngine

        yield SparkEngine(session, store)


ENGINES: dict[str, Callable[[Store], AbstractContextManager[CheckEngine]]] = {
    "local": _local_engine,
    "spark": _spark_engine,
}


def _run(
    store: Store, engine: CheckEngine, damaged: Sequence[StoreFinding], *, repair: bool
) -> Repaired:
    """Check the store, and repair it if that was asked for."""
    from holdfast.store.fsck.check import check
    from holdfast.store.fsck.repair import Repaired, check_and_repair

    if repair:
        return check_and_repair(store, engine, damaged=damaged)
    report = check(store, engine)
    return Repaired(report, after=report)


def _scrub(store: Store, max_mb_s: float | None, *, restart: bool) -> ScrubReport:
    """Read every chunk; Ctrl-C ends it after the chunk at hand, where the next one resumes."""
    from holdfast.store.fsck.scrub import scrub
    from holdfast.store.fsck.tables import FsckSettings

    rate = int(max_mb_s * BYTES_PER_MB) if max_mb_s else None
    settings = FsckSettings(scrub_bytes_per_s=rate)
    stop = threading.Event()
    with progress("scrub") as done, stop_on_signals(stop.set):
        return scrub(store, settings=settings, restart=restart, stop=stop, progress=done)


def _repair_damaged(store: Store, findings: Sequence[StoreFinding]) -> RepairReport:
    from holdfast.store.fsck.repair import Repair, plan_repair

    return Repair(store).execute(plan_repair(findings))


def _rebuild(chosen: Target) -> RebuildReport:
    from holdfast.store.fsck.repair import rebuild_database

    return rebuild_database(chosen.named, database=chosen.database)


def _tell_result(
    result: Repaired,
    rebuilt: RebuildReport | None,
    leftovers: Leftovers,
    report_folder: Path | None,
    *,
    contents_read: bool,
    as_json: bool,
) -> int:
    """Write the report, print what was found, done and left, and return the exit code."""
    before, after = result.before, result.after
    fields = {
        "ok": after.ok,
        "commits": before.commits,
        "chunks": before.chunks,
        "objects": before.objects,
        "references": before.references,
        "contents_read": contents_read,
        "sizes_unknown": before.sizes_unknown,
        "unknown_names": before.unknown_names,
        "temporary_files": leftovers._asdict(),
        "found": before.counts(),
        "omitted": before.omitted,
        "rebuilt": dataclasses.asdict(rebuilt) if rebuilt else None,
        "repair": _repair_fields(result.repairs) if result.repairs else None,
        "left": [one.to_json() for one in after.findings] if result.repairs else None,
        "released": result.released,
    }
    _write_report(report_folder, before.findings, fields)
    if as_json:
        print_json({**fields, "findings": [one.to_json() for one in before.findings]})
    else:
        if rebuilt:
            _print_rebuilt(rebuilt)
        _print_findings("found", before.findings)
        _print_repairs(result.repairs)
        if result.released:
            click.echo(f"given to the collector, held back since a rebuild: {result.released:,}")
        if result.repairs:
            _print_findings("left", after.findings)
        click.echo(
            f"{counted(before.commits, 'commit')}, {counted(before.chunks, 'chunk')}, "
            f"{counted(before.objects, 'object')}, {counted(before.references, 'reference')}: "
            + ("sound" if after.ok else "SOMETHING IS WRONG, see above")
        )
        if not contents_read:
            click.echo(_not_read(before))
        for what, how_much in leftover_rows(leftovers):
            click.echo(f"{what}: {how_much}")
    return 0 if after.ok else Damaged.exit_code


def _not_read(report: FsckReport) -> str:
    """Say what a check without --scrub has not seen, so that `sound` is not taken for more."""
    unknown = f", but of {report.sizes_unknown:,}, whose size is not known yet"
    return (
        "files' contents were not read, only the sizes of objects compared"
        f"{unknown if report.sizes_unknown else ''}: --scrub reads everything"
    )


def _repair_fields(repairs: Sequence[RepairReport]) -> dict[str, Any]:
    return {
        "done": [{"what": a.what, **a.finding.to_json()} for one in repairs for a in one.done],
        "left": [
            {"what": action.what, "why": why, **action.finding.to_json()}
            for one in repairs
            for action, why in one.left
        ],
        "set_aside": [name for one in repairs for name in one.set_aside],
    }


def _print_findings(title: str, findings: Sequence[StoreFinding]) -> None:
    from holdfast.store.fsck.findings import MEANING

    if not findings:
        return
    rows = [
        (
            one.kind.value,
            short_hash(one.hash),
            one.generation,
            printable(one.commit),
            printable(one.path),
            printable("; ".join(filter(None, (MEANING[one.kind], one.detail, one.source)))),
        )
        for one in findings[:FINDINGS_SHOWN]
    ]
    print_table(title, ("what", "chunk", "number", "commit", "path", "meaning"), rows)
    if len(findings) > FINDINGS_SHOWN:
        click.echo(f"and {len(findings) - FINDINGS_SHOWN:,} more: --report writes all of them")


def _print_repairs(repairs: Sequence[RepairReport]) -> None:
    rows = [
        (
            action.finding.kind.value,
            short_hash(action.finding.hash) or action.finding.commit,
            what,
            why,
        )
        for one in repairs
        for action, what, why in [
            *((action, action.what, "done") for action in one.done),
            *((action, action.what, why) for action, why in one.left),
        ]
    ]
    if rows:
        columns = ("what was wrong", "of", "what to do", "how it went")
        print_table("repair", columns, rows[:FINDINGS_SHOWN])
    for name in [name for one in repairs for name in one.set_aside]:
        click.echo(f"set aside: {printable(name)}")


def _print_rebuilt(report: RebuildReport) -> None:
    if report.set_aside:
        click.echo(f"set aside the old database: {report.set_aside}")
    click.echo(
        f"rebuilt the database: {counted(report.commits, 'commit')}, "
        f"{counted(report.chunks, 'chunk')}, {counted(report.references, 'reference')}"
    )
    for name, why in report.damaged_commits.items():
        click.echo(f"commit {printable(name)} is not whole: {printable(why)}")
    if report.damaged_commits:
        click.echo(
            f"held back from the collector: {counted(report.quarantined, 'unreferenced chunk')}"
        )
        click.echo(
            "bring back what is missing, or delete these commits; then run "
            "`holdfast store fsck --repair`, which lets go of them"
        )


def _write_report(
    folder: Path | None, findings: Sequence[StoreFinding], fields: dict[str, Any]
) -> None:
    """Write findings as Parquet and the rest as JSON, if a folder was named."""
    from holdfast.store.fsck.findings import to_table
    from holdfast.store.fsck.tables import FINDINGS

    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "summary.json").write_text(json.dumps(fields, indent=2, default=str) + "\n")
    except OSError as error:
        raise BadInput(
            f"the report cannot be written: {error.strerror}",
            hint="name another folder",
            path=str(folder),
        ) from error
    write_parquet(folder / "findings.parquet", FINDINGS, to_table(findings).to_batches())
