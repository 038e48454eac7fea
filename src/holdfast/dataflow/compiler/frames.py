"""Vertices as DataFrames: the trunk of a query as streams, its tail as ordinary batches.

Rows of a stream carry system columns (spec/vertices.py). Two of them need care, because Spark's
optimizer moves filters towards the source: control rows pass every filter, and a filter behind a
reduce is kept from moving below the watermark, where it would drop them (`_pinned`).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from holdfast.dataflow.compiler.calls import FAILED_DDL, LANE_DDL, parse_columns
from holdfast.dataflow.compiler.partial_frames import (
    PartialColumns,
    asked_of_source,
    partial_columns,
)
from holdfast.dataflow.compiler.plan import EVERY, LANE, Output, Plan, Query
from holdfast.dataflow.compiler.pushdown import PushDown
from holdfast.dataflow.compiler.python import ALWAYS_LATE_US, Call, FunctionRun
from holdfast.dataflow.compiler.reduces import (
    DELAY_KEY,
    Reduced,
    claimed,
    keep_control,
    marked,
    metric,
    reduce_frame,
)
from holdfast.dataflow.source.arrow_sql import Unsupported
from holdfast.dataflow.source.partials import PartialSpec
from holdfast.dataflow.spec.pipeline import FAILED, LATE, PipelineEdge, TagCondition
from holdfast.dataflow.spec.vertices import (
    SYSTEM_COLUMNS,
    FlatMapSettings,
    FunctionStep,
    MapSettings,
    ReduceSettings,
)
from holdfast.errors import BadConfig

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Made = TypeVar("Made")
# Returns the partial aggregates that a source vertex makes.
Pushing = Callable[[str, PartialSpec, StructType], "DataFrame"]

log = logging.getLogger("holdfast.dataflow")


class Frames:
    """The vertices of a query, on top of some frames that are given: its sources, or its taps."""

    def __init__(
        self,
        plan: Plan,
        query: Query,
        given: Mapping[Output, DataFrame],
        *,
        is_stream: bool,
        batch: int = 0,
        pushing: Pushing | None = None,
    ) -> None:
        self._plan = plan
        self._pipeline = plan.pipeline
        self._query = query
        self._given = dict(given)
        self._is_stream = is_stream
        self._batch = batch
        self._pushing = pushing
        self._lateness_ms = round(query.allowed_lateness_s * 1000)
        self._run_of = {name: run for run in query.runs for name in run}
        self._outputs: dict[Output, DataFrame] = {}
        self._runs: dict[tuple[str, ...], DataFrame] = {}
        self._reduced: dict[str, Reduced] = {}

    def output(self, output: Output) -> DataFrame:
        """Return what a vertex puts out."""
        if output not in self._outputs:
            made = self._given.get(output)
            self._outputs[output] = self._make(output) if made is None else made
        return self._outputs[output]

    def rows_into(self, vertex: str) -> DataFrame:
        """Return everything that edges lead to a vertex."""
        return _union([self._along(edge) for edge in self._pipeline.into(vertex)])

    def tap(self, output: Output) -> DataFrame:
        """Return an output of the trunk, of events only, with its watermark in the plan.

        Behind a tap there are no windows, so control rows and claims have done their work there.
        """
        frame = self.output(output)
        if "_wm" in frame.columns:
            frame = claimed(frame, allowed_lateness_ms=self._lateness_ms)
        return frame.drop("_wm_prev")

    # -------------------------------------------------------------------- vertices

    def _make(self, output: Output) -> DataFrame:
        """Return an output of a vertex: of a reduce, of SQL, or of a run of functions.

        A run is one `mapInArrow` for several vertices, so only the last of them has results of its
        own. Rows that failed come out of the same frame, marked in `_failed`; here they part:
        results have no mark, and the port `failed` has those that no retry lane takes.
        """
        vertex = self._pipeline.vertices[output.vertex]
        if vertex.reduce is not None:
            return self._of_reduce(output)
        step = vertex.step
        assert step is not None, f"BUG: {output} was not given"
        if not step.is_python:
            return _naming(output.vertex, lambda: self._sql(step, self.rows_into(output.vertex)))
        run = self.run(self._run_of[output.vertex])
        if output.port == FAILED:
            return rejected_rows(self.failures(output.vertex).where("_failed.lane IS NULL"))
        assert output.vertex == self._run_of[output.vertex][-1], "BUG: a run is used in its middle"
        return run.where("_failed IS NULL").drop("_failed", "_lane")

    def failures(self, vertex: str) -> DataFrame:
        """Return the rows that failed in a vertex, whatever becomes of them."""
        if self._pipeline.vertices[vertex].reduce is not None:
            return self.output(Output(vertex, EVERY)).where("_failed IS NOT NULL")
        run = self.run(self._run_of[vertex])
        return run.where(F.col("_failed.vertex") == vertex)

    def _of_reduce(self, output: Output) -> DataFrame:
        """Return an output of a reduce: results, late rows, or failed calls.

        Late rows never enter the reduce, so they are a frame of their own. Failed calls of a
        function come out among its results (`EVERY` has both), because Spark's operator has one
        output.
        """
        settings = self._pipeline.vertices[output.vertex].reduce
        assert settings is not None, "BUG: not a reduce"
        if output.port == LATE:
            return self._reduce(output.vertex).late
        if not settings.is_python or output.port == EVERY:
            return self._reduce(output.vertex).results
        every = self.output(Output(output.vertex, EVERY))
        if output.port == FAILED:
            return rejected_rows(self.failures(output.vertex))
        return every.where("_failed IS NULL").drop("_failed")

    def _along(self, edge: PipelineEdge) -> DataFrame:
        """Return the rows that take an edge."""
        frame = self.output(Output(edge.vertex, edge.port))
        if edge.tags is None:
            return frame
        return self._where(frame, _admitted(edge.tags, frame))

    def _reduce(self, name: str) -> Reduced:
        if name not in self._reduced:
            self._reduced[name] = _naming(name, lambda: self._made_reduce(name))
        return self._reduced[name]

    def _made_reduce(self, name: str) -> Reduced:
        """Return a reduce over the union of all edges that lead to it.

        Each edge gets the claim as its own watermark before the union. Spark takes the least of
        several watermarks, so the source that is behind holds the windows for all.
        """
        settings = self._pipeline.vertices[name].reduce
        assert settings is not None, "BUG: not a reduce"
        if name in self._query.partials and settings.aggregate:
            rows = self.rows_into(name)
            columns = partial_columns(settings, rows)
            if columns is not None:
                made = self._partials(name, settings, columns, rows)
                return reduce_frame(made, settings, name, self._lateness_ms, partials=columns)
        parts = [self._with_claim(self._along(edge)) for edge in self._pipeline.into(name)]
        returns = (
            None
            if settings.returns is None
            else parse_columns(settings.returns, f"`returns` of {name}")
        )
        return reduce_frame(_union(parts), settings, name, self._lateness_ms, returns)

    def _partials(
        self, name: str, settings: ReduceSettings, columns: PartialColumns, rows: DataFrame
    ) -> DataFrame:
        """Return the partial aggregates of a reduce: from its source, or of each row one."""
        push_down = self._query.push_downs[name]
        if isinstance(push_down, PushDown) and self._pushing is not None:
            stored = self.output(Output(push_down.source)).schema
            try:
                spec, schema = asked_of_source(columns, push_down, settings, stored, rows.schema)
                return self._with_claim(self._pushing(push_down.source, spec, schema))
            except Unsupported as error:
                log.info("%s is aggregated by rows: %s", name, error)
        parts = [self._with_claim(self._along(edge)) for edge in self._pipeline.into(name)]
        return columns.of_rows(_union(parts))

    def _with_claim(self, frame: DataFrame) -> DataFrame:
        if "_wm" in frame.columns:
            return claimed(frame, allowed_lateness_ms=self._lateness_ms)
        # Results of another reduce.
        return frame.withColumn("_wm_prev", F.lit(None).cast("timestamp"))

    def _sql(self, step: FunctionStep, frame: DataFrame) -> DataFrame:
        """Return a frame after a step that is written in SQL.

        Control rows have to come through: an `explode` of an empty or missing array would drop
        them, and with them the claim of the batch. They get an array of one null instead.
        """
        if isinstance(step, MapSettings):
            return _with_expressions(frame, step)
        if isinstance(step, FlatMapSettings):
            items = F.expr(step.explode)
            if "_control" in frame.columns:
                nothing = F.array(F.lit(None).cast(_element(frame, step.explode)))
                items = F.when(F.col("_control"), nothing).otherwise(items)
            return frame.withColumn(step.into, F.explode(items))
        return self._where(frame, F.expr(step.where))

    def _where(self, frame: DataFrame, condition: Column) -> DataFrame:
        if "_control" in frame.columns:
            return frame.where(keep_control(condition))
        return frame.where(_pinned(condition) if self._is_stream else condition)

    # ------------------------------------------------------------------------ runs

    def run(self, run: tuple[str, ...]) -> DataFrame:
        """Return the rows after a whole run, those that failed included."""
        if run not in self._runs:
            self._runs[run] = _naming(run[0], lambda: self._made_run(run))
        return self._runs[run]

    def _made_run(self, run: tuple[str, ...]) -> DataFrame:
        """Return the rows after a run of functions, called in one pass through Python.

        The columns that one function returns are those that the next is called with, so the calls
        are made in order. Rows that a function drops are counted by Spark while it runs the plan
        (`observe`): nothing behind the run ever sees them.
        """
        frame = self.with_lane(self.rows_into(run[0]), run)
        calls, schema = [], without_system(frame.schema)
        for name in run:
            call = self._call(name, schema)
            calls.append(call)
            schema = from_arrow_schema(call.returns)
        done = call_python(frame, calls, schema, self._batch)
        for name in run:
            step = self._pipeline.vertices[name].step
            if step is not None and step.on_failure == "drop" and self._is_stream:
                failed = F.count_if(F.col("_failed.vertex") == name).alias("rows")
                done = done.observe(metric("failed", name), failed)
        return self._marked_again(frame, done)

    def with_lane(self, frame: DataFrame, vertices: tuple[str, ...]) -> DataFrame:
        """Return rows for some functions, with those that come again to them."""
        frame = frame.withColumn("_failed", F.lit(None).cast(FAILED_DDL))
        lane = self._given.get(LANE)
        if self._is_stream or lane is None:
            return frame
        mine = lane.where(F.col("_lane.vertex").isin(*vertices)).select("_lane", "_event_time")
        asked = frame.withColumn("_lane", F.lit(None).cast(LANE_DDL))
        return asked.unionByName(mine, allowMissingColumns=True)

    def _call(self, name: str, schema: StructType) -> Call:
        """Return a function of a run as workers need it: without the pipeline around it."""
        vertex = self._pipeline.vertices[name]
        step = vertex.step
        assert step is not None, "BUG: not a step"
        function = step.arrow or step.python
        assert function is not None, "BUG: not a function"
        returns = schema
        if step.returns is not None:
            kept = [field for field in schema if field.name in step.keep]
            returns = StructType([*kept, *parse_columns(step.returns, f"`returns` of {name}")])
        return Call(
            vertex=name,
            kind=vertex.kind,  # type: ignore[arg-type]
            takes_arrow=step.arrow is not None,
            function=function,
            returns=to_arrow_schema(returns, timezone="UTC"),
            timeout_s=step.timeout,
            retry=step.retry,
            is_fatal=step.on_failure == "fail",
            keep=tuple(step.keep) if step.returns is not None else (),
            lane=step.retry_lane,
        )

    def _marked_again(self, before: DataFrame, after: DataFrame) -> DataFrame:
        """Return rows from Python with the mark by which windows close, if they had one."""
        if DELAY_KEY not in before.schema["_event_time"].metadata or not self._is_stream:
            return after
        return after.withColumns({"_event_time": marked(F.col("_event_time"), self._lateness_ms)})


def rejected_rows(failed: DataFrame, *more: str) -> DataFrame:
    """Return rows that failed as they are sent on, or with more of them as they are kept."""
    parts = ("vertex", "error", "attempts", "row", *more)
    return failed.select(*(f"_failed.{part}" for part in parts), "_event_time")


def call_python(
    frame: DataFrame, calls: list[Call], schema: StructType, batch: int = 0
) -> DataFrame:
    """Return the rows of a frame after some functions; `_failed` is among its columns."""
    system = [StructField(f.name, f.dataType) for f in frame.schema if f.name in SYSTEM_COLUMNS]
    if "_tags" not in frame.columns:
        system.append(StructField("_tags", ArrayType(StringType())))
    full = StructType([*schema.fields, *system])
    return frame.mapInArrow(FunctionRun(calls, to_arrow_schema(full, timezone="UTC"), batch), full)


def without_system(schema: StructType) -> StructType:
    """Return the user's columns, without what Spark knows about them beside their types."""
    mine = [field for field in schema if field.name not in SYSTEM_COLUMNS]
    return StructType([StructField(field.name, field.dataType) for field in mine])


def _naming(vertex: str, make: Callable[[], Made]) -> Made:
    """Return what is made; an error of Spark's becomes one that names the vertex.

    Spark's message has a position in a plan that no user has ever seen.
    """
    try:
        return make()
    except (AnalysisException, ParseException) as error:
        raise BadConfig(
            f"{vertex} cannot be run: {str(error).strip().splitlines()[0]}",
            hint="correct its SQL, or the columns that lead to it",
        ) from error


def _union(frames: list[DataFrame]) -> DataFrame:
    """Return the rows of all frames; columns that one of them lacks are null there."""
    return functools.reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), frames)


def _pinned(condition: Column) -> Column:
    """Return a condition that the optimizer does not move: it is not deterministic, it seems."""
    return condition | (F.rand() < 0)


def _admitted(tags: TagCondition, frame: DataFrame) -> Column:
    """Return the condition of an edge with tags; a row without tags has an empty list of them."""
    none = F.array().cast("array<string>")
    own = F.coalesce(F.col("_tags"), none) if "_tags" in frame.columns else none

    def some(names: list[str]) -> Column:
        return F.arrays_overlap(own, F.array(*map(F.lit, names)))

    conditions = [F.array_contains(own, name) for name in tags.all_of]
    conditions += [some(tags.any_of)] if tags.any_of else []
    conditions += [~some(tags.none_of)] if tags.none_of else []
    return functools.reduce(lambda a, b: a & b, conditions)


def _with_expressions(frame: DataFrame, step: MapSettings) -> DataFrame:
    """Return the rows with new columns, all made of the old ones."""
    given = {**step.select, **step.add}
    kept = [
        name for name in frame.columns if name not in given and (step.add or name in SYSTEM_COLUMNS)
    ]
    made = {name: F.expr(text) for name, text in given.items()}
    if "_tags" in made:
        made["_tags"] = made["_tags"].cast("array<string>")
    if "_event_time" in made:
        new = F.coalesce(made["_event_time"].cast("timestamp"), F.col("_event_time"))
        made["_event_time"] = new
        if "_wm_prev" in kept:
            kept.remove("_wm_prev")
            made["_wm_prev"] = F.when(
                new < F.col("_event_time"), F.timestamp_micros(F.lit(ALWAYS_LATE_US))
            ).otherwise(F.col("_wm_prev"))
    columns = [F.col(f"`{name}`") for name in kept]
    return frame.select(*columns, *(column.alias(name) for name, column in made.items()))


def _element(frame: DataFrame, expression: str) -> DataType:
    """Return the type of the elements of an array expression; raises `BadConfig` if it is none."""
    kind = frame.select(F.expr(expression)).schema[0].dataType
    if not isinstance(kind, ArrayType):
        raise BadConfig(
            f"{expression!r} is {kind.simpleString()}, not an array", hint="name an array"
        )
    return kind.elementType
