"""Tests of pipelines: rows in, rows out, and a clock that the test turns.

    harness = PipelineHarness(pipeline, tmp_path)
    harness.feed("events", [{"event_time": at(3), "key": "a", "number": 1}])
    harness.close()
    assert harness.rows("out") == [...]

What runs is the pipeline itself, on Spark, with its own queries, watermark and sinks; only its
quivers are temporary ones, and its sinks are folders that the harness reads.

Tests in a file (`CasesFile`) say what is fed, when the clock is turned, and what must come out:

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

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import AwareDatetime, Field, model_validator

from holdfast.dataflow.compiler.places import SINK_CONFIG, Places
from holdfast.dataflow.driver.redrive import redrive_pipeline
from holdfast.dataflow.driver.run import PipelineRun
from holdfast.dataflow.driver.session import start_session
from holdfast.dataflow.driver.wire import QueryStatistics
from holdfast.dataflow.sink.options import EVENT_TIME, SLOT
from holdfast.dataflow.spec import Pipeline, PipelineSettings
from holdfast.dataflow.spec.vertices import SinkSettings, SourceSettings, TargetSettings
from holdfast.errors import BadInput, DirectoryLocked
from holdfast.quiver import Quiver
from holdfast.quiver.base.envelope import TIME_TYPE
from holdfast.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIG_NAME = "holdfast.dataflow.compiler.places:SINK_CONFIG"
# Who promises a watermark to the sources: the test.
_PRODUCER = "kit"
_MASTER = "local[2]"
FREE_TIMEOUT_S = 60.0
_POLL_S = 0.05

Row = Mapping[str, Any]


class PipelineHarness:
    """Runs a pipeline on rows that a test gives it. One thread."""

    def __init__(
        self,
        pipeline: Pipeline | PipelineSettings,
        folder: str | Path,
        *,
        session: SparkSession | None = None,
        name: str = "bench",
    ) -> None:
        """Use `folder` for everything; without a session one is started, and left running."""
        settings = pipeline.settings if isinstance(pipeline, Pipeline) else pipeline
        self._folder = Path(folder).absolute()
        self._name = name
        self._session = session
        self._max_delay_us = settings.watermark.max_delay_us
        self._columns: dict[str, pa.Schema] = {}
        self._clock_us = 0
        self.settings = self._redirected(settings)
        # What the queries counted, in all runs so far.
        self.counts: Counter[str] = Counter()
        self.statistics: tuple[QueryStatistics, ...] = ()

    # --------------------------------------------------------------------- feeding

    def feed(self, source: str, rows: Iterable[Row] | pa.RecordBatch) -> None:
        """Append rows to a source, as one bundle; each has an `event_time`.

        A RecordBatch is appended as it is: so a test can change columns, and their types.

        The clock goes to the newest of them, if that is later: the watermark follows it by
        `max_delay`.
        """
        given = rows.to_pylist() if isinstance(rows, pa.RecordBatch) else rows
        kept = [dict(row) for row in given]
        if any(not isinstance(row.get(EVENT_TIME), datetime) for row in kept):
            raise BadInput(
                "a row has no event_time", hint="give every row one, a datetime with a time zone"
            )
        batch = rows if isinstance(rows, pa.RecordBatch) else self._batch(source, kept)
        with self._quiver(source) as quiver:
            quiver.append({SLOT: batch})
        newest = max((row[EVENT_TIME] for row in kept), default=None)
        if newest is not None:
            self.advance(newest)

    def advance(self, to: datetime) -> None:
        """Turn the clock: no row will come that is more than `max_delay` older."""
        self._clock_us = max(self._clock_us, int(to.timestamp() * 1_000_000))
        promise_ns = (self._clock_us - self._max_delay_us) * 1000
        for source in self.settings.of_kind("source"):
            with self._quiver(source) as quiver:
                if promise_ns > quiver.statement().producer_watermarks.get(_PRODUCER, 0):
                    quiver.heartbeat(_PRODUCER, promise_ns)

    def _batch(self, source: str, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        """Return rows as Arrow; columns keep the types they had when they were first fed."""
        schema = self._columns.get(source)
        if schema is None:
            schema = pa.RecordBatch.from_pylist(rows).schema
            place = schema.get_field_index(EVENT_TIME)
            schema = schema.set(place, pa.field(EVENT_TIME, TIME_TYPE))
            self._columns[source] = schema
        return pa.RecordBatch.from_pylist(rows, schema)

    def _quiver(self, source: str) -> Quiver:
        """Open a source's quiver; the process that planned a query lets go a little after it."""
        give_up_s = time.monotonic() + FREE_TIMEOUT_S
        while True:
            try:
                return Quiver.open(self._folder / "quivers" / source, SINK_CONFIG)
            except DirectoryLocked:
                if time.monotonic() > give_up_s:
                    raise
                time.sleep(_POLL_S)

    # --------------------------------------------------------------------- running

    def run(self) -> None:
        """Let the pipeline read everything that was fed so far."""
        self._drain(close=False)

    def close(self) -> None:
        """Let it read everything, and close all windows: nothing more will come."""
        self._drain(close=True)

    def _drain(self, *, close: bool) -> None:
        """Run the pipeline over everything that was fed, and add up its counts."""
        session = self._session or start_session(_MASTER)
        places = Places(self._folder / "state", self._folder)
        with PipelineRun(self._name, self.settings, places, session) as run:
            run.drain(close=close)
        self.statistics = run.statistics()
        for query in self.statistics:
            self.counts.update(query.counts)

    def redrive(self) -> int:
        """Let dead letters come again, with the next run; return how many."""
        places = Places(self._folder / "state", self._folder)
        found = redrive_pipeline(self._name, self.settings, places)
        return sum(one.sent for one in found.values())

    # --------------------------------------------------------------------- results

    def rows(self, sink: str) -> list[dict[str, Any]]:
        """Return what a sink has, in order of all its columns; `out.fallback`, `out.on_success`."""
        tables = [
            pq.read_table(path)
            for path in sorted((self._folder / "sinks" / sink).glob("part-*.parquet"))
        ]
        found = [row for table in tables for row in table.to_pylist()]
        return sorted(found, key=lambda row: [str(value) for value in row.values()])

    def dead_letters(self) -> list[dict[str, Any]]:
        """Return the rows that failed and that no edge took: vertex, error, attempts, row."""
        found: list[dict[str, Any]] = []
        for folder in sorted((self._folder / "state").glob("*/dead_letters")):
            with Quiver.open(folder, SINK_CONFIG) as quiver:
                names = ["vertex", "error", "attempts", "row"]
                found += quiver.scan(names, slot=SLOT).read_all().to_pylist()
        return found

    # ------------------------------------------------------------------ redirecting

    def _redirected(self, settings: PipelineSettings) -> PipelineSettings:
        """Return the pipeline between quivers that a test fills and folders that it reads.

        Everything between the ends stays as it is: a test is of the pipeline that will run.
        """
        vertices = {}
        for name, vertex in settings.vertices.items():
            change: dict[str, Any] = {}
            if vertex.source is not None:
                change = {"source": self._source(name, vertex.source)}
            if vertex.sink is not None:
                change = {"sink": self._sink(name, vertex.sink)}
            vertices[name] = vertex.model_copy(update=change)
        return settings.model_copy(update={"vertices": vertices})

    def _source(self, name: str, source: SourceSettings) -> SourceSettings:
        """Return a source that reads the rows of a test.

        Its watermark is the promise of one producer, which `advance` moves: so time passes only
        when the test says so, and not by the clock of the machine.
        """
        return source.model_copy(
            update={
                "quiver": [str(self._folder / "quivers" / name)],
                "slot": SLOT,
                "table": None,
                "decode": None,
                "quiver_config": CONFIG_NAME,
                "producers": [_PRODUCER],
            }
        )

    def _sink(self, name: str, sink: SinkSettings) -> SinkSettings:
        """Return a sink that writes files; one that is a function is called all the same."""
        place: dict[str, Any] = {} if sink.python is not None else self._target(name)
        for key in ("fallback", "on_success"):
            if getattr(sink, key) is not None:
                place[key] = TargetSettings(files=self._target(f"{name}.{key}")["files"])
        return sink.model_copy(update=place)

    def _target(self, name: str) -> dict[str, Any]:
        return {"files": str(self._folder / "sinks" / name), "quiver": None, "console": None}


# Its former name.
Bench = PipelineHarness


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
    """Do one step of a test."""
    for source, rows in (step.feed or {}).items():
        harness.feed(source, [{**row, EVENT_TIME: _moment(row.get(EVENT_TIME))} for row in rows])
    if step.advance is not None:
        harness.advance(step.advance)
    if step.run:
        harness.run()
    if step.close:
        harness.close()


def _moment(value: Any) -> datetime:
    """Return an event time as a test writes it; without a zone it is UTC."""
    try:
        moment = datetime.fromisoformat(value)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (TypeError, ValueError):
        raise BadInput(
            f"{value!r} is not an event_time", hint="write it as 2026-05-01T10:00:03Z"
        ) from None


def _compare(harness: PipelineHarness, sink: str, expected: list[dict[str, Any]]) -> list[str]:
    """Return what a sink lacks and what it has too much, by the columns that are expected."""
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
