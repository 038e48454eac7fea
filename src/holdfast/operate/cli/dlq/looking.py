"""`holdfast dlq ls | show`: look at dead letters."""

from __future__ import annotations

import heapq
import itertools
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import click

from holdfast.dead_letters.stored import LetterId, LetterSelection
from holdfast.operate.cli.dlq.place import (
    STORES,
    DeadLetterTarget,
    level_option,
    place_argument,
    worker_option,
)
from holdfast.operate.cli.dlq.telling import (
    ROW_COLUMNS,
    echo_payload,
    echo_verdict,
    letter_fields,
    letter_row,
    payload_fields,
    verdict_fields,
)
from holdfast.operate.cli.output import Command, json_option, print_json, print_table
from holdfast.operate.cli.quiver.options import as_ns, time_option

store_option: Callable[[Command], Command] = click.option(
    "--store", type=click.Choice(STORES), help="Only these: never accepted, or never delivered."
)
destination_option: Callable[[Command], Command] = click.option(
    "--destination", metavar="NAME", help="Only what this destination did not take."
)
reason_option: Callable[[Command], Command] = click.option(
    "--reason", metavar="WORD", help="Only with this reason: invalid, permanent, skipped, …"
)


@click.command("ls")
@place_argument
@store_option
@destination_option
@reason_option
@time_option("--since", "Filed at this time or later, with a zone.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True)
@worker_option
@json_option
def list_command(
    place: Path,
    store: str | None,
    destination: str | None,
    reason: str | None,
    since: datetime | None,
    limit: int,
    worker: int,
    as_json: bool,
) -> None:
    """List letters, oldest first. PLACE is a configuration, a data directory, or theirs."""
    office = DeadLetterTarget.find(place, worker)
    selection = LetterSelection(destination=destination, reason=reason, since_ns=as_ns(since))
    stores = [store] if store else STORES
    found = heapq.merge(
        *(office.letters(one, selection) for one in stores), key=lambda letter: letter.filed_ns
    )
    letters = list(itertools.islice(found, limit))
    more = next(found, None) is not None
    if as_json:
        print_json({"letters": [letter_fields(letter) for letter in letters], "more": more})
        return
    if not letters:
        click.echo("there are none")
        return
    print_table("dead letters", ROW_COLUMNS, (letter_row(letter) for letter in letters))
    if more:
        click.echo(f"and more than these {limit}; say --limit")


@click.command("show")
@place_argument
@click.argument("letter")
@level_option
@click.option("--raw", is_flag=True, help="Write the payload's bytes, and nothing else.")
@worker_option
@json_option
def show_command(
    place: Path, letter: str, level: str | None, raw: bool, worker: int, as_json: bool
) -> None:
    """Show one letter, such as `rejected/12`: why, from where, its payload, and today's verdict."""
    office = DeadLetterTarget.find(place, worker)
    stored = office.letter(LetterId.parse(letter))
    payload = stored.letter.payload
    if raw:
        sys.stdout.buffer.write(payload)
        return
    verdict = None
    if stored.letter.slot == "openlineage":
        validator = office.validator(level, stored.letter.origin)
        _, verdict = validator.parse_and_check(payload, thorough=True)
    fields = letter_fields(stored)
    if as_json:
        told = verdict_fields(verdict) if verdict is not None else None
        print_json({**fields, "verdict": told, **payload_fields(payload)})
        return
    rows = [(name, value) for name, value in fields.items() if not isinstance(value, list | dict)]
    print_table(str(stored.id), ("field", "value"), rows)
    problems = [
        tuple(problem.get(name, "") for name in ("pointer", "rule", "message", "hint"))
        for problem in stored.letter.problems
    ]
    if problems:
        print_table("problems", ("pointer", "rule", "message", "hint"), problems)
    if stored.letter.headers:
        print_table("headers", ("name", "value"), stored.letter.headers.items())
    echo_payload(payload)
    if verdict is not None:
        echo_verdict(verdict)
