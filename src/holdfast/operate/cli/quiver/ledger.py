"""`holdfast quiver ledger | replay | drop-subscriber`: what became of what, and what is due.

Looking reads the files themselves, whether the quiver is open or not. Changing is different: only
the owner may write its ledger, so a running one is asked over its control socket, and without one
this process becomes the owner for a moment (quiver/tools/changes.py).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

import click
import pyarrow as pa

from holdfast.errors import Damaged, UnknownSubscriber
from holdfast.operate.cli.base.asking import ask
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
from holdfast.operate.cli.base.target import (
    as_ns,
    quiver_argument,
    time_option,
)
from holdfast.quiver import Outcome
from holdfast.quiver.base.frame import Totals
from holdfast.quiver.tools.changes import balances, drop_subscriber, replay
from holdfast.quiver.tools.history import Line, LineFilter, lines
from holdfast.quiver.tools.inspect import Inventory, inspect
from holdfast.seam import Seam

# Lines that a table shows without --limit.
TABLE_LINES = 100
_PARQUET_BATCH_LINES = 65_536
_PARQUET_SCHEMA = pa.schema(
    [
        ("time", pa.timestamp("us", tz="UTC")),
        ("file", pa.string()),
        ("line", pa.string()),
        ("subscriber", pa.string()),
        ("what", pa.string()),
        ("generation", pa.uint32()),
        ("first_seq", pa.uint64()),
        ("first_row", pa.uint32()),
        ("end_seq", pa.uint64()),
        ("end_row", pa.uint32()),
        ("bundles", pa.uint64()),
        ("events", pa.uint64()),
        ("reason", pa.string()),
    ]
)


@click.command("ledger")
@quiver_argument
@click.option("--subscriber", help="Only this one.")
@click.option(
    "--outcome",
    "outcomes",
    multiple=True,
    type=click.Choice([outcome.name.lower() for outcome in Outcome]),
    help="Only this outcome; may be given several times.",
)
@click.option("--seq", type=click.IntRange(min=0), help="Only lines about this bundle.")
@time_option("--since", "Written at this time or later.")
@time_option("--until", "Written before this time.")
@click.option("--limit", type=click.IntRange(min=1), help="Only this many lines, the newest.")
@click.option("--balance", is_flag=True, help="The equation for every subscriber, instead.")
@parquet_option
@json_option
def ledger_command(  # noqa: PLR0913, PLR0917  (its options)
    directory: PurePath,
    subscriber: str | None,
    outcomes: tuple[str, ...],
    seq: int | None,
    since: datetime | None,
    until: datetime | None,
    limit: int | None,
    balance: bool,
    parquet: Path | None,
    as_json: bool,
) -> int:
    """Print the ledger's lines, oldest first, closed files included."""
    seam = Seam()
    inventory = inspect(seam.disk, directory)
    if balance:
        return _tell_balance(seam, inventory, subscriber, as_json=as_json)
    kinds = frozenset(Outcome[name.upper()] for name in outcomes) if outcomes else None
    wanted = LineFilter(subscriber, kinds, seq, as_ns(since), as_ns(until))
    found: Iterable[Line] = lines(seam.disk, inventory, wanted)
    # The newest are at the end, behind all others; the lines are passed through, never held.
    if limit is not None:
        found = deque(found, maxlen=limit)
    if parquet is not None:
        written = write_parquet(parquet, _PARQUET_SCHEMA, _batches(found))
        click.echo(counted(written, "line"), err=True)
    elif as_json:
        _print_json_lines(found)
    else:
        _print_lines(found)
    return 0


def _print_json_lines(found: Iterable[Line]) -> None:
    """Print one JSON array, a line at a time: a ledger may have millions."""
    separator = "[\n"
    for line in found:
        click.echo(separator + json.dumps(line.fields(), ensure_ascii=False), nl=False)
        separator = ",\n"
    click.echo("[]" if separator == "[\n" else "\n]")


def _print_lines(found: Iterable[Line]) -> None:
    """Print a table of the newest lines; without --limit at most `TABLE_LINES`."""
    newest: deque[Line] = deque(maxlen=TABLE_LINES)
    count = 0
    limited = isinstance(found, deque)
    for count, line in enumerate(found, start=1):  # noqa: B007
        newest.append(line)
    shown = found if limited else newest
    columns = ("time", "subscriber", "what", "seqs", "bundles", "events", "reason")
    print_table("ledger", columns, [_row(line.fields()) for line in shown])
    left_out = 0 if limited else count - len(newest)
    if left_out:
        click.echo(f"{counted(left_out, 'older line')} not shown; --limit {count} shows all")


def _row(fields: dict[str, Any]) -> tuple[object, ...]:
    first, end, row = fields["first_seq"], fields["end_seq"], fields["end_row"]
    seqs = ""
    if first is not None:
        last = end - 1 if end is not None and not row else end
        seqs = str(first) if last in (None, first) else f"{first}-{last}"
        seqs += f" up to event {row}" if row else ""
    return (
        moment(fields["time_ns"]),
        fields["subscriber"],
        fields["what"],
        seqs,
        fields["bundles"],
        fields["events"],
        fields["reason"],
    )


def _batches(found: Iterable[Line]) -> Iterator[pa.RecordBatch]:
    """Yield lines as batches for Parquet: a ledger may have more than fit into memory."""
    iterator = iter(found)
    while rows := [line.fields() for line in islice(iterator, _PARQUET_BATCH_LINES)]:
        for row in rows:
            row["time"] = row.pop("time_ns") // 1000
        yield pa.RecordBatch.from_pylist(rows, _PARQUET_SCHEMA)


# ----------------------------------------------------------------------- balance


def _tell_balance(
    seam: Seam, inventory: Inventory, subscriber: str | None, *, as_json: bool
) -> int:
    accounts = balances(seam, inventory)
    if subscriber is not None:
        accounts = [account for account in accounts if account["subscriber"] == subscriber]
    if as_json:
        print_json(accounts)
    else:
        print_balances(accounts)
    return 0 if all(account["holds"] for account in accounts) else Damaged.exit_code


def print_balances(accounts: list[dict[str, Any]]) -> None:
    """Print the equation of every subscriber."""
    for account in accounts:
        counts = {**account["outcomes"], "pending": account["pending"]}
        rows = [("accepted", *_in_both(account["accepted"]))]
        for place, (name, found) in enumerate(counts.items()):
            rows.append((f"{'+' if place else '='} {name}", *_in_both(found)))
        verdict = "adds up" if account["holds"] else "DOES NOT ADD UP"
        title = f"{account['subscriber']}: what became of everything accepted ({verdict})"
        print_table(title, ("", "bundles", "events"), rows)


def _in_both(counts: dict[str, int]) -> tuple[int, int]:
    return counts["bundles"], counts["events"]


@click.command("replay")
@quiver_argument
@click.option("--subscriber", required=True, help="Who gets it again.")
@click.option("--from", "first_seq", type=click.IntRange(min=0), required=True, help="First seq.")
@click.option("--to", "last_seq", type=click.IntRange(min=0), required=True, help="Last seq, too.")
@json_option
def replay_command(
    directory: PurePath, subscriber: str, first_seq: int, last_seq: int, as_json: bool
) -> None:
    """Hand out again, to one subscriber, what is still there of a range."""
    again = replay(Seam(), directory, subscriber, first_seq, last_seq + 1)
    if as_json:
        print_json({"subscriber": subscriber, **again._asdict()})
    else:
        click.echo(f"{_count(again)} will be handed out again to {subscriber}")


@click.command("drop-subscriber")
@quiver_argument
@click.argument("subscriber")
@click.option("--reason", default="dropped by an operator", show_default=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def drop_subscriber_command(
    directory: PurePath, subscriber: str, reason: str, yes: bool, as_json: bool
) -> None:
    """Forget a subscriber; what still waited for it is recorded as given up."""
    if not yes:
        _ask(directory, subscriber)
    given_up = drop_subscriber(Seam(), directory, subscriber, reason)
    if as_json:
        print_json({"subscriber": subscriber, "given_up": given_up._asdict()})
    else:
        click.echo(f"{subscriber} is forgotten, {_count(given_up)} given up")


def _ask(directory: PurePath, subscriber: str) -> None:
    """Say what would be lost, and let a person decide."""
    account = _account(directory, subscriber)
    waiting = f"{_count(Totals(**account['pending']))} ({size(account['pending_bytes'])})"
    ask(f"{waiting} still wait for {subscriber}. Give them up?")


def _account(directory: PurePath, subscriber: str) -> dict[str, Any]:
    seam = Seam()
    accounts = {a["subscriber"]: a for a in balances(seam, inspect(seam.disk, directory))}
    if subscriber not in accounts:
        raise UnknownSubscriber(
            f"no subscriber {subscriber!r}",
            hint=f"registered subscribers: {', '.join(accounts) or 'none'}",
        )
    return accounts[subscriber]


def _count(totals: Totals) -> str:
    return f"{counted(totals.bundles, 'bundle')} with {counted(totals.events, 'event')}"
