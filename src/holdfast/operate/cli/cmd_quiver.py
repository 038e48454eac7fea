"""`holdfast quiver`: look into a data directory, beside its owner or without one."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import PurePath
from typing import Any

import click
import pyarrow as pa

from holdfast.errors import BadInput
from holdfast.operate.cli.output import json_option, moment, print_json, print_table, size
from holdfast.quiver import QuiverConfig
from holdfast.quiver.inspect import Inventory, inspect
from holdfast.quiver.scan import TimeRange, scan
from holdfast.quiver.segment import Segment
from holdfast.quiver.segment_table import TableMaker
from holdfast.seam.disk import RealDisk

directory_argument = click.argument("directory", type=click.Path(path_type=PurePath))


@click.group()
def command() -> None:
    """Look into a data directory."""


@command.command("ls")
@directory_argument
@json_option
def list_command(directory: PurePath, as_json: bool) -> None:
    """List segments, write-ahead log and quarantine."""
    inventory = inspect(RealDisk(), directory)
    if as_json:
        print_json(_inventory_fields(inventory))
        return
    identity = inventory.identity
    click.echo(f"quiver {identity.quiver_id if identity else '(FORMAT is damaged)'}")
    print_table(
        "segments",
        ("segment", "seqs", "bundles", "events", "size", "slots", "ingested until"),
        (_segment_row(segment) for segment in inventory.segments),
    )
    wal = [(f.name, size(f.size_bytes), f.fault or "") for f in inventory.wal_files]
    print_table("write-ahead log", ("file", "size", "fault"), wal)
    click.echo(f"unsealed bundles: {len(inventory.unsealed)}")
    damages = [*inventory.wal_damages, *inventory.quarantined]
    if damages:
        rows = [(d.source, d.reason, d.first_seq, d.last_seq, size(d.size_bytes)) for d in damages]
        print_table("damaged", ("source", "reason", "first seq", "last seq", "size"), rows)


@command.command("show")
@directory_argument
@click.argument("segment_seq", type=int)
@json_option
def show_command(directory: PurePath, segment_seq: int, as_json: bool) -> None:
    """Show one segment: its summary, and its bundles."""
    found = [
        segment
        for segment in inspect(RealDisk(), directory).segments
        if segment.summary.segment_seq == segment_seq
    ]
    if not found:
        raise BadInput(f"no segment {segment_seq}", hint="`holdfast quiver ls` lists them")
    summary, bundles = found[0].summary, found[0].bundle_table.to_pylist()
    if as_json:
        print_json({"summary": asdict(summary), "bundles": bundles})
        return
    rows = [(key, value) for key, value in asdict(summary).items() if key != "files"]
    print_table(f"segment {segment_seq}", ("field", "value"), rows)
    files = [(f.name, f.slot, f.kind, f.rows, size(f.size_bytes)) for f in summary.files]
    print_table("files", ("file", "slot", "kind", "rows", "size"), files)
    columns = ("seq", "events", "payload_bytes", "producer", "epoch")
    print_table("bundles", columns, ([b[name] for name in columns] for b in bundles))


@command.command("cat")
@directory_argument
@click.option("--slot", help="Needed when there are several.")
@click.option("--columns", help="Comma separated; all by default.")
@click.option("--since", type=datetime.fromisoformat, help="Event time, inclusive, with a zone.")
@click.option("--until", type=datetime.fromisoformat, help="Event time, exclusive, with a zone.")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many rows.")
@click.option("--skip-damaged", is_flag=True, help="Leave damaged batches out instead of failing.")
def cat_command(
    directory: PurePath,
    slot: str | None,
    columns: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int | None,
    skip_damaged: bool,
) -> None:
    """Print the rows of a slot, sealed or not, as JSON lines."""
    inventory = inspect(RealDisk(), directory)
    reader = scan(
        inventory.segments,
        list(TableMaker(QuiverConfig()).tables(inventory.unsealed)),
        slot,
        columns.split(",") if columns else None,
        TimeRange.of(since, until),
        "skip" if skip_damaged else "fail",
    )
    for place, row in enumerate(_rows(reader)):
        if limit is not None and place >= limit:
            return
        click.echo(json.dumps(row, default=_as_text, ensure_ascii=False))


def _rows(reader: pa.RecordBatchReader) -> Iterator[dict[str, Any]]:
    for batch in reader:
        yield from batch.to_pylist()


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
        "segments": [asdict(segment.summary) for segment in inventory.segments],
        "unreadable_segments": inventory.unreadable,
        "wal_files": [asdict(file) for file in inventory.wal_files],
        "unsealed_bundles": len(inventory.unsealed),
        "unsealed_events": sum(held.events for held in inventory.unsealed),
        "wal_damages": [asdict(damage) for damage in inventory.wal_damages],
        "quarantined": [asdict(damage) for damage in inventory.quarantined],
    }
