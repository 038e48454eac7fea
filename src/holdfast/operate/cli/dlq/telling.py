"""Letters as people and programs read them; nothing that others sent moves a cursor."""

from __future__ import annotations

import base64
import json
from typing import Any

import click
import orjson

from holdfast.dead_letters.stored import StoredLetter
from holdfast.operate.cli.output import moment, printable, size
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
