"""`holdfast lineage`: look at OpenLineage events without sending them anywhere.

The rules are those of the receiver, so that what passes here is accepted there; thorough, as a dry
run is, because nobody waits for an answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import click

from holdfast.errors import BadInput
from holdfast.operate.cli.base.groups import CommandGroup
from holdfast.operate.cli.base.output import counted, json_option, print_json
from holdfast.signals.openlineage.json_text import elements_of
from holdfast.signals.openlineage.problem import Problem
from holdfast.signals.openlineage.validation import ValidationSettings, Validator, Verdict


@click.group(cls=CommandGroup)
def command() -> None:
    """Check OpenLineage events."""


@dataclass(frozen=True)
class _FileFindings:
    """One event of the input: what it is called there, and what was found."""

    place: str
    verdict: Verdict

    def as_dict(self) -> dict[str, object]:
        verdict = self.verdict
        return {
            "place": self.place,
            "kind": verdict.kind,
            "valid": verdict.ok,
            "errors": [problem.to_fields() for problem in verdict.errors],
            "warnings": [problem.to_fields() for problem in verdict.warnings],
        }


@command.command()
@click.argument("file", type=click.File("rb"))
@click.option(
    "--level",
    type=click.Choice(["off", "core", "standard", "strict"]),
    default="standard",
    show_default=True,
    help="How much is checked; strict is the whole specification.",
)
@click.option(
    "--facet-dir",
    "facet_dirs",
    multiple=True,
    type=click.Path(exists=True, file_okay=False),
    help="A folder with JSON Schema files of your own facets; may be repeated.",
)
@json_option
def lint(file: BinaryIO, level: str, facet_dirs: tuple[str, ...], as_json: bool) -> int:
    """Check the events in FILE (- is standard input); exits with 1 if one is invalid.

    FILE holds one event, a JSON array of events, or one event per line.
    """
    settings = ValidationSettings.model_validate({"level": level, "facet_dirs": facet_dirs})
    validator = Validator(settings)
    found = [
        _FileFindings(place, validator.parse_and_check(raw, thorough=True)[1])
        for place, raw in _events_in(file.read())
    ]
    invalid = sum(not each.verdict.ok for each in found)
    if as_json:
        summary = {"level": level, "notices": validator.notices, "invalid": invalid}
        print_json({**summary, "events": [each.as_dict() for each in found]})
    else:
        for notice in validator.notices:
            click.echo(f"{click.style('notice', fg='cyan')}: {notice}")
        for each in found:
            _tell(each)
        _tell_summary(found, level)
    return 1 if invalid else 0


def _events_in(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the place and the bytes of every event, as they stand in the input."""
    lines = [(n, line) for n, line in enumerate(content.splitlines(), start=1) if line.strip()]
    if elements := _elements_in(content):
        for number, element in enumerate(elements):
            yield f"element {number}", element
    elif len(lines) > 1 and all(line.lstrip().startswith(b"{") for _, line in lines[:2]):
        for number, line in lines:
            yield f"line {number}", line
    else:
        yield "event", content


def _elements_in(content: bytes) -> list[bytes]:
    """Return the elements of an array; of one that cannot be read none: its error tells more."""
    try:
        return elements_of(content) if content.lstrip().startswith(b"[") else []
    except BadInput:
        return []


def _tell(found: _FileFindings) -> None:
    verdict = found.verdict
    for problem in verdict.errors:
        _tell_problem(found.place, click.style("error", fg="red"), problem)
    for problem in verdict.warnings:
        _tell_problem(found.place, click.style("warning", fg="yellow"), problem)


def _tell_problem(place: str, severity: str, problem: Problem) -> None:
    where = _printable(problem.pointer) or "the whole event"
    click.echo(f"{place}: {severity}: {where}: {problem.message} ({problem.rule})")
    click.echo(f"    {problem.hint}")


def _printable(text: str) -> str:
    """Return text that moves no cursor: a pointer holds whatever keys an event has."""
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def _tell_summary(found: list[_FileFindings], level: str) -> None:
    counts = Counter("valid" if each.verdict.ok else "invalid" for each in found)
    warnings = sum(bool(each.verdict.warnings) for each in found)
    click.echo(
        f"{counted(len(found), 'event')} at level {level}: {counts['valid']} valid,"
        f" {counts['invalid']} invalid, {warnings} with warnings"
    )
