"""`holdfast dlq ls | show`: look at dead letters.

What others sent is printed so that nothing in it moves a terminal's cursor.
"""

from __future__ import annotations

import base64
import heapq
import itertools
import json
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

import click
import orjson

from holdfast.dead_letters.stored import LetterId, LetterSelection, StoredLetter
from holdfast.operate.cli.base.output import (
    Command,
    json_option,
    moment,
    print_json,
    print_table,
    printable,
    size,
)
from holdfast.operate.cli.base.target import Target, as_ns, target_argument, time_option
from holdfast.operate.cli.dlq.target import (
    STORES,
    DeadLetterTarget,
    level_option,
    worker_option,
)
from holdfast.signals.openlineage.names import SLOT
from holdfast.signals.openlineage.validation import Verdict


def letter_fields(stored: StoredLetter) -> dict[str, Any]:
    """Return a letter for JSON, without its payload."""
    letter = stored.letter
    return {
        "letter": str(stored.id),
        "filed": moment(stored.filed_ns),
        "reason": letter.reason,
        "origin": letter.origin,
        "destination": letter.destination,
        "position": letter.position,
        "attempts": letter.attempts,
        "received": moment(letter.received_ns) if letter.received_ns else None,
        "slot": letter.slot,
        "size_bytes": len(letter.payload),
        "problems": [dict(problem) for problem in letter.problems],
        "headers": dict(letter.headers),
    }


def payload_fields(payload: bytes) -> dict[str, str]:
    """Return a payload for JSON: as text if it is some, else in base64."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


def verdict_fields(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict for JSON."""
    return {
        "valid": verdict.ok,
        "errors": [problem.to_fields() for problem in verdict.errors],
        "warnings": [problem.to_fields() for problem in verdict.warnings],
    }


def letter_row(stored: StoredLetter) -> tuple[object, ...]:
    """Return a letter as one row of a table."""
    letter = stored.letter
    problem = letter.problems[0] if letter.problems else {}
    what = " ".join(str(problem[name]) for name in ("pointer", "message") if problem.get(name))
    return (
        str(stored.id),
        moment(stored.filed_ns),
        letter.reason,
        letter.destination or letter.origin,
        letter.attempts,
        size(len(letter.payload)),
        what,
    )


ROW_COLUMNS = ("letter", "time", "reason", "for", "attempts", "size", "first problem")


def echo_payload(payload: bytes) -> None:
    """Print a payload: JSON with indents, anything else as text."""
    try:
        shown = json.dumps(orjson.loads(payload), indent=2, ensure_ascii=False)
    except orjson.JSONDecodeError:
        shown = payload.decode("utf-8", "backslashreplace")
    click.echo(printable(shown))


def echo_verdict(verdict: Verdict) -> None:
    """Print what is wrong with an event."""
    if verdict.ok:
        click.echo(click.style("valid", fg="green") + " by the present rules")
    for problem in verdict.errors:
        where = printable(problem.pointer) or "the whole event"
        click.echo(f"{click.style('invalid', fg='red')}: {where}: {problem.message}")
        click.echo(f"    {problem.hint}")


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
@target_argument
@store_option
@destination_option
@reason_option
@time_option("--since", "Filed at this time or later.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True)
@worker_option
@json_option
def list_command(
    target: Target,
    store: str | None,
    destination: str | None,
    reason: str | None,
    since: datetime | None,
    limit: int,
    worker: int,
    as_json: bool,
) -> None:
    """List letters, oldest first."""
    queue = DeadLetterTarget.find(target, worker)
    selection = LetterSelection(destination=destination, reason=reason, since_ns=as_ns(since))
    stores = [store] if store else STORES
    # Each store has its letters by age already: merged, none of them is held.
    found = heapq.merge(
        *(queue.letters(one, selection) for one in stores), key=lambda letter: letter.filed_ns
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
@target_argument
@click.argument("letter")
@level_option
@click.option("--raw", is_flag=True, help="Write the payload's bytes, and nothing else.")
@worker_option
@json_option
def show_command(
    target: Target, letter: str, level: str | None, raw: bool, worker: int, as_json: bool
) -> None:
    """Show one letter, such as `rejected/12`: why, from where, its payload, and today's verdict."""
    queue = DeadLetterTarget.find(target, worker)
    stored = queue.letter(LetterId.parse(letter))
    payload = stored.letter.payload
    if raw:
        sys.stdout.buffer.write(payload)
        return
    # Judged anew, by the rules of today: they may have changed since, and then the letter can just
    # be sent again.
    verdict = None
    if stored.letter.slot == SLOT:
        validator = queue.validator(level, stored.letter.origin)
        _, verdict = validator.parse_and_check(payload, thorough=True)
    fields = letter_fields(stored)
    if as_json:
        judged = verdict_fields(verdict) if verdict is not None else None
        print_json({**fields, "verdict": judged, **payload_fields(payload)})
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
