"""Tests of pipelines in a file: what is fed, when the clock is turned, what must come out.

    tests:
      a job that fails is counted:
        pipeline: lineage-stats
        steps:
          - feed: {events: [{event_time: 2026-05-01T10:00:03Z, job: a, event_type: FAIL}]}
          - advance: 2026-05-01T10:02:00Z
        expect:
          out: [{job: a, failed: 1}]

Rows are compared without their order, by the columns that are expected. A case that has no `run`
among its steps is run and closed after the last one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import AwareDatetime, Field, model_validator

from holdfast.dataflow.compiler.places import EVENT_TIME
from holdfast.dataflow.kit.harness import PipelineHarness
from holdfast.dataflow.spec import PipelineSettings
from holdfast.errors import BadInput
from holdfast.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class CaseStep(Settings):
    """One thing that happens; exactly one of these."""

    feed: dict[str, list[dict[str, Any]]] | None = None
    """Rows for sources, each with an `event_time`."""
    advance: AwareDatetime | None = None
    """Turn the clock."""
    run: bool | None = None
    """Let the pipeline read what is there, and go on."""
    close: bool | None = None
    """Let it read what is there, and close all windows."""

    @model_validator(mode="after")
    def _is_one_thing(self) -> CaseStep:
        if len(self.model_fields_set) != 1:
            raise ValueError("give one of feed, advance, run, close")
        return self


class Case(Settings):
    """One test."""

    pipeline: str
    """The pipeline that is tested."""
    steps: list[CaseStep] = Field(min_length=1)
    """What happens, in this order."""
    expect: dict[str, list[dict[str, Any]]] = Field(default_factory=dict)
    """The rows of sinks, in any order; columns that are not named are not compared."""
    counts: dict[str, int] = Field(default_factory=dict)
    """What became of other rows, such as `late.perjob: 1`."""


class CasesFile(Settings):
    """A file of tests."""

    tests: dict[str, Case] = Field(min_length=1)
    """The tests, by name."""


class CaseOutcome(NamedTuple):
    """How a test ended; nothing is wrong if it passed."""

    name: str
    wrong: tuple[str, ...]


def run_case(
    name: str,
    case: Case,
    pipelines: Mapping[str, PipelineSettings],
    folder: Path,
    session: SparkSession,
) -> CaseOutcome:
    """Run one test in a folder of its own."""
    if case.pipeline not in pipelines:
        raise BadInput(
            f"the test {name!r} names the pipeline {case.pipeline!r}, which does not exist",
            hint=f"there are {', '.join(sorted(pipelines))}",
        )
    harness = PipelineHarness(pipelines[case.pipeline], folder, session=session)
    for step in case.steps:
        _take(harness, step)
    if not any(step.run or step.close for step in case.steps):
        harness.close()
    wrong = [line for sink, rows in case.expect.items() for line in _compare(harness, sink, rows)]
    for what, expected in case.counts.items():
        if harness.counts[what] != expected:
            wrong.append(f"{what} is {harness.counts[what]}, not {expected}")
    return CaseOutcome(name, tuple(wrong))


def _take(harness: PipelineHarness, step: CaseStep) -> None:
    for source, rows in (step.feed or {}).items():
        harness.feed(source, [{**row, EVENT_TIME: _moment(row.get(EVENT_TIME))} for row in rows])
    if step.advance is not None:
        harness.advance(step.advance)
    if step.run:
        harness.run()
    if step.close:
        harness.close()


def _moment(value: Any) -> datetime:
    try:
        moment = datetime.fromisoformat(value)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (TypeError, ValueError):
        raise BadInput(
            f"{value!r} is not an event_time", hint="write it as 2026-05-01T10:00:03Z"
        ) from None


def _compare(harness: PipelineHarness, sink: str, expected: list[dict[str, Any]]) -> list[str]:
    columns = sorted({name for row in expected for name in row})
    found = Counter(_key(row, columns) for row in harness.rows(sink))
    wanted = Counter(_key(row, columns) for row in expected)
    missing, more = wanted - found, found - wanted
    if not columns and found:
        return [f"{sink} has {found.total()} rows, and none was expected"]
    return [
        *(f"{sink} lacks {_shown(row, columns)}" for row in missing.elements()),
        *(f"{sink} has {_shown(row, columns)} too much" for row in more.elements()),
    ]


def _key(row: Mapping[str, Any], columns: list[str]) -> tuple[str, ...]:
    return tuple(_text(row.get(name)) for name in columns)


def _text(value: Any) -> str:
    """Return a value as it is compared: times in one form, however they are written."""
    moment = value
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return value
    if isinstance(moment, datetime):
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return aware.astimezone(UTC).isoformat()
    return str(value)


def _shown(row: tuple[str, ...], columns: list[str]) -> str:
    return "{" + ", ".join(f"{n}: {v}" for n, v in zip(columns, row, strict=True)) + "}"
