"""`holdfast quiver ls | show | cat | metrics`: look into a data directory.

The files are read as they are, beside a running owner or without one; nothing is locked. What an
owner removes while it is looked at is told from damage, because only damage is worth an alarm.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path, PurePath
from typing import Any

import click
import pyarrow as pa

from holdfast.errors import BadInput, CannotOpen, Damaged
from holdfast.operate.cli.base.output import (
    counted,
    json_option,
    moment,
    parquet_option,
    print_json,
    print_table,
    size,
    write_parquet,
)
from holdfast.operate.cli.base.target import Target, quiver_argument, target_argument, time_option
from holdfast.operate.metrics import records, render
from holdfast.quiver import LedgerConfig, Quiver, QuiverConfig, RetentionConfig, Statistics
from holdfast.quiver.base import names
from holdfast.quiver.base.config import AGE_MAX_S, WAIT_MAX_S
from holdfast.quiver.cores import core_ids
from holdfast.quiver.read.scan import OnDamage, TimeRange, only_slot, scan
from holdfast.quiver.read.segment_progress import segment_progress
from holdfast.quiver.segments.manifest import OPAQUE
from holdfast.quiver.segments.rows import GroupTable, TableMaker
from holdfast.quiver.segments.segment import Segment
from holdfast.quiver.tools.changes import ask_owner, balances
from holdfast.quiver.tools.inspect import Inventory, inspect, removed_meanwhile
from holdfast.seam import Seam
from holdfast.seam.disk import RealDisk
from holdfast.signals.registry import readers


@click.command("ls")
@quiver_argument
@json_option
def list_command(directory: PurePath, as_json: bool) -> None:
    """List segments, write-ahead log, subscribers and quarantine."""
    seam = Seam()
    inventory = inspect(seam.disk, directory)
    owner = ask_owner(seam, directory, "ping")
    accounts = [_with_progress(one, inventory) for one in balances(seam, inventory)]
    if as_json:
        print_json({**_inventory_fields(inventory), "owner": owner, "subscribers": accounts})
        return
    # Also of a quiver whose FORMAT cannot be read: then this is all that somebody has to go by.
    identity = inventory.identity
    whose = f"owned by process {owner['process']}" if owner else "no process has it open"
    click.echo(f"quiver {identity.quiver_id if identity else '(FORMAT is damaged)'}, {whose}")
    print_table(
        "segments",
        ("segment", "seqs", "bundles", "events", "size", "slots", "ingested until", "outstanding"),
        (
            (*_segment_row(segment), len(_waiting_for(segment, inventory)))
            for segment in inventory.segments
        ),
    )
    wal = [(f.name, size(f.size_bytes), f.fault or "") for f in inventory.wal_files]
    print_table("write-ahead log", ("file", "size", "fault"), wal)
    click.echo(f"unsealed bundles: {len(inventory.unsealed)}")
    _print_subscribers(inventory, accounts)
    damages = [*inventory.wal_damages, *inventory.quarantined]
    if damages:
        rows = [(d.source, d.reason, d.first_seq, d.last_seq, size(d.size_bytes)) for d in damages]
        print_table("damaged", ("source", "reason", "first seq", "last seq", "size"), rows)


def _print_subscribers(inventory: Inventory, accounts: list[dict[str, Any]]) -> None:
    """Print how far each subscriber is, and whether its account adds up."""
    known = inventory.ledger.state.subscribers
    rows = []
    for account in accounts:
        subscriber = known.get(account["subscriber"])
        since = "attached"
        if subscriber is None:
            since = "new"
        elif subscriber.absent_since_ns is not None:
            since = f"none since {moment(subscriber.absent_since_ns)}"
        rows.append(
            (
                account["subscriber"],
                subscriber.high_water_seq if subscriber else None,
                account.get("high_water_segment"),
                account.get("gap_segments"),
                account["pending"]["bundles"],
                account["pending"]["events"],
                size(account["pending_bytes"]),
                since,
                account["holds"],
            )
        )
    columns = (
        *("subscriber", "next seq", "segments until", "segments beyond"),
        *("bundles", "events", "size", "reader", "adds up"),
    )
    print_table("waiting for subscribers", columns, rows)


def _with_progress(account: dict[str, Any], inventory: Inventory) -> dict[str, Any]:
    """Return the account of a subscriber with its progress in segments, as the files have it."""
    state = inventory.ledger.state
    subscriber = state.subscribers.get(account["subscriber"])
    if subscriber is None:
        return account
    progress = segment_progress(inventory.segments, subscriber, state.deleted_segments)
    return {**account, **progress._asdict()}


def _waiting_for(segment: Segment, inventory: Inventory) -> list[str]:
    """Return the subscribers for which something of a segment is not resolved."""
    first_seq, end_seq = segment.summary.first_seq, segment.summary.last_seq + 1
    subscribers = inventory.ledger.state.subscribers.values()
    return [one.name for one in subscribers if one.unresolved(first_seq, end_seq)]


@click.command("show")
@quiver_argument
@click.argument("segment_seq", type=int)
@json_option
def show_command(directory: PurePath, segment_seq: int, as_json: bool) -> None:
    """Show one segment: its summary, who it waits for, and its bundles."""
    inventory = inspect(Seam().disk, directory)
    found = [
        segment for segment in inventory.segments if segment.summary.segment_seq == segment_seq
    ]
    if not found:
        raise BadInput(f"no segment {segment_seq}", hint="`holdfast quiver ls` lists them")
    try:
        summary, bundles = found[0].summary, found[0].bundle_table.to_pylist()
    except Damaged as damage:
        raise removed_meanwhile(RealDisk(), damage) from None
    waiting = _waiting_for(found[0], inventory)
    if as_json:
        told = {"outstanding": len(waiting), "waits_for": waiting}
        print_json({"summary": summary.to_fields(), **told, "bundles": bundles})
        return
    rows = [(key, value) for key, value in summary.to_fields().items() if key != "files"]
    rows.append(("outstanding", f"{len(waiting)}: {', '.join(waiting)}" if waiting else 0))
    print_table(f"segment {segment_seq}", ("field", "value"), rows)
    files = [(f.name, f.slot, f.kind, f.rows, size(f.size_bytes)) for f in summary.files]
    print_table("files", ("file", "slot", "kind", "rows", "size"), files)
    columns = ("seq", "events", "payload_bytes", "producer", "epoch")
    print_table("bundles", columns, ([b[name] for name in columns] for b in bundles))


@click.command("cat")
@quiver_argument
@click.option("--slot", help="Needed when there are several.")
@click.option("--table", help="Items instead of a slot: spans, logs or points.")
@click.option("--columns", help="Comma separated; all by default.")
@time_option("--since", "Event time, inclusive.")
@time_option("--until", "Event time, exclusive.")
@click.option("--limit", type=click.IntRange(min=1), help="At most this many rows.")
@click.option("--skip-damaged", is_flag=True, help="Leave damaged batches out instead of failing.")
@click.option(
    "--partial",
    is_flag=True,
    help="As --skip-damaged, and name in `_damaged_slots` what the bundle of a row lacks.",
)
@parquet_option
@json_option
def cat_command(  # noqa: PLR0913, PLR0917  (its options)
    directory: PurePath,
    slot: str | None,
    table: str | None,
    columns: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int | None,
    skip_damaged: bool,
    partial: bool,
    parquet: Path | None,
    as_json: bool,
) -> None:
    """Print the rows of a slot, sealed or not, as JSON lines (with or without --json).

    With --table they are spans, log records or data points, of requests of OTLP and of tables of
    OTAP alike: a row of an OTAP slot alone says little.
    """
    if table is not None:
        if slot is not None:
            raise BadInput("both a slot and a table", hint="name one; a table has its own slots")
        how: OnDamage = "flag" if partial else "skip" if skip_damaged else "fail"
        _print_table_of(directory, table, columns, since, until, limit, how, parquet)
        return
    inventory = inspect(Seam().disk, directory)
    on_damage: OnDamage = "flag" if partial else "skip" if skip_damaged else "fail"
    try:
        tail = list(TableMaker(QuiverConfig()).tables(inventory.unsealed))
        slot = _known(slot, inventory, tail) or only_slot(inventory.segments, tail, on_damage)
        reader = scan(
            inventory.segments,
            tail,
            slot,
            columns.split(",") if columns else None,
            TimeRange.of(since, until),
            on_damage,
        )
        batches = _limited(reader, limit)
        if parquet is not None:
            click.echo(counted(write_parquet(parquet, reader.schema, batches), "row"), err=True)
            return
        read = readers().get(slot)
        for batch in batches:
            for row in batch.to_pylist():
                if read is not None and "payload" in row:
                    row["payload"] = read(row["payload"])
                click.echo(json.dumps(row, default=_as_text, ensure_ascii=False))
    except Damaged as damage:
        raise removed_meanwhile(RealDisk(), damage) from None


def _print_table_of(
    directory: PurePath,
    table: str,
    columns: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int | None,
    on_damage: OnDamage,
    parquet: Path | None,
) -> None:
    """Print items of telemetry, a line for each."""
    from holdfast.operate.cli.quiver.sql import readable_rows
    from holdfast.query.datasets import open_tables
    from holdfast.signals.registry import tables

    if table not in tables():
        known = ", ".join(sorted(tables()))
        raise BadInput(f"there is no table {table!r}", hint=f"there is {known}")
    dataset = open_tables(directory, since=since, until=until, on_damage=on_damage)[table]
    reader = dataset.scanner(columns.split(",") if columns else None).to_reader()
    batches = _limited(reader, limit)
    try:
        if parquet is not None:
            click.echo(counted(write_parquet(parquet, reader.schema, batches), "row"), err=True)
            return
        for row in readable_rows(batches):
            click.echo(json.dumps(row, default=str, ensure_ascii=False))
    except Exception:
        # What stopped the reading, in words; Arrow wraps it.
        if dataset.failure is not None:
            raise dataset.failure from None
        raise


def _known(slot: str | None, inventory: Inventory, tail: list[GroupTable]) -> str | None:
    """Return the slot that was named; one that no bundle has is a mistake, not an empty answer."""
    known = {name for segment in inventory.segments for name in segment.summary.slots}
    for made in tail:
        known |= set(made.group.slots) if made.group.kind == OPAQUE else {made.group.slot}
    if slot is not None and known and slot not in known:
        raise BadInput(
            f"there is no slot {slot!r}"[:200], hint=f"there is {', '.join(sorted(known))}"
        )
    return slot


def _limited(reader: pa.RecordBatchReader, limit: int | None) -> Iterator[pa.RecordBatch]:
    """Yield batches until there are `limit` rows; the last batch is cut."""
    left = limit
    for batch in reader:
        if left is None:
            yield batch
        elif left > 0:
            yield batch.slice(0, left)
            left -= batch.num_rows
        else:
            return


def _as_text(value: object) -> str:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return "base64:" + base64.b64encode(value).decode()
    return str(value)


def _segment_row(segment: Segment) -> tuple[object, ...]:
    s = segment.summary
    return (
        s.segment_seq,
        f"{s.first_seq}-{s.last_seq}",
        s.bundles,
        s.events,
        size(s.size_bytes),
        " ".join(s.slots),
        moment(s.max_ingestion_ns),
    )


def _inventory_fields(inventory: Inventory) -> dict[str, object]:
    return {
        "quiver_id": inventory.identity.quiver_id if inventory.identity else None,
        "segments": [segment.summary.to_fields() for segment in inventory.segments],
        "unreadable_segments": inventory.unreadable,
        "wal_files": [asdict(file) for file in inventory.wal_files],
        "unsealed_bundles": len(inventory.unsealed),
        "unsealed_events": sum(held.events for held in inventory.unsealed),
        "ledger_files": [path.name for path, _, _ in inventory.ledger.files],
        "wal_damages": [asdict(damage) for damage in inventory.wal_damages],
        "quarantined": [asdict(damage) for damage in inventory.quarantined],
    }


# A tool does not know the owner's limits, and must not delete by limits of its own.
_UNBOUNDED = 1 << 60
_READ_ONLY = QuiverConfig(
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
@target_argument
@click.option("--name", help="The label `quiver`, if there is one; by default its directory's.")
@click.option(
    "--size-cap-bytes",
    type=click.IntRange(min=1),
    default=RetentionConfig().size_cap_bytes,
    show_default=True,
    help="The cap to compare with: the directory does not know its owner's.",
)
@json_option
def metrics_command(target: Target, name: str | None, size_cap_bytes: int, as_json: bool) -> None:
    """Print every figure of quivers that are not open; a running gateway has /metrics."""
    # A root and the cores under it are one quiver; what has no such root is one itself.
    roots = list(dict.fromkeys(one.directory.parent for one in target.quivers())) or [target.path]
    if name and len(roots) > 1:
        raise BadInput(
            f"{len(roots)} quivers cannot have one name",
            hint=f"name one of {', '.join(map(str, roots))}",
        )
    found = {name or root.name: _closed_statistics(root, size_cap_bytes) for root in roots}
    if as_json:
        print_json([record._asdict() for record in records(found)])
    else:
        click.echo(render(found), nl=False)


def _closed_statistics(directory: PurePath, size_cap_bytes: int) -> list[Statistics]:
    """Open each quiver for a moment and take its statistics.

    Its owner counts in memory; without one the figures are made from the files, as an owner makes
    them when it opens the directory.
    """
    disk = RealDisk()
    if disk.exists(directory / names.WAL_DIR):
        paths = {0: directory}
    else:
        found = core_ids(disk, directory) if disk.exists(directory) else []
        paths = {core_id: directory / names.core_dir(core_id) for core_id in found}
    if not paths:
        raise CannotOpen("there is no quiver", hint="name its directory", path=str(directory))
    statistics = []
    for core_id, path in paths.items():
        if inspect(disk, path).unsealed:
            # Opening it would seal them, and without the owner's extractors.
            raise CannotOpen(
                "its log holds bundles that only its owner can seal as they should be",
                hint="start its owner and take its own figures, or let it close cleanly first",
                path=str(path),
            )
        with Quiver.open(path, _READ_ONLY) as quiver:
            statistics.append(replace(quiver.statistics(), core_id=core_id))
    return [replace(one, size_cap_bytes=size_cap_bytes // len(statistics)) for one in statistics]
