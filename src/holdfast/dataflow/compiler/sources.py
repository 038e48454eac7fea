"""The streams that a query begins with: quivers of others, and those between queries.

There are three kinds. A source vertex reads what somebody else fills, and its watermark is a guess
by event times (`max_delay`), or a promise where producers are named. A quiver between two queries
is filled by one of ours, which promises how far its results are complete, so nothing is guessed.
The retry lane brings rows back that failed; they belong to times long past, and carry their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BooleanType, StructField, StructType, TimestampType

from holdfast.dataflow.compiler.calls import LANE_TYPE, parse_columns
from holdfast.dataflow.compiler.places import (
    OWN_PRODUCER,
    Places,
    lane_subscriber,
    source_options,
    stream_options,
)
from holdfast.dataflow.compiler.plan import LANE, Output, Plan, Query
from holdfast.dataflow.sink.options import EVENT_TIME, SLOT
from holdfast.dataflow.source.partials import PartialSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_TIME = StructField("_event_time", TimestampType())
_CLAIMS = (
    StructField("_wm", TimestampType()),
    StructField("_wm_prev", TimestampType()),
    StructField("_control", BooleanType()),
)
# What the receiver's extractor adds to a payload (signals/openlineage/names.py).
_LINEAGE = "payload binary, run_id string, job string"
# What a generator makes (source/intake.py).
_GENERATED = "event_time timestamp, number bigint, key string, value double"
_LINEAGE_COLUMNS = {
    "event_type": "$.eventType",
    "namespace": "$.job.namespace",
    "job": "$.job.name",
    "run_id": "$.run.runId",
    "producer": "$.producer",
}


class Buffered(NamedTuple):
    """A quiver between queries, as the query behind it has to know it."""

    address: str
    # As it is stored, and whether its `event_time` is ours alone.
    schema: StructType
    is_time_ours: bool
    # Who writes it: its promises are the watermark.
    producer: str


def streams(
    session: SparkSession,
    plan: Plan,
    query: Query,
    places: Places,
    buffers: Mapping[Output, Buffered],
    *,
    close: bool,
    waits: bool = False,
    lane: str = "",
) -> dict[Output, DataFrame]:
    """Return what the sources of a query, other queries, and its retry lane put out.

    With `waits` the sources wait while too much is behind them; `lane` is the lane's address.
    """
    found = {}
    wait = waiting(query, places) if waits else {}
    for name in query.vertices:
        if plan.pipeline.vertices[name].source is not None:
            options = {**source_options(plan, query, name, places, close=close), **wait}
            found[Output(name)] = _source(session, plan, query, name, options)
    for output in query.reads:
        options = stream_options(plan, query, f"{query.name}.{output}", places, close=close)
        options |= places.own_access | wait
        found[output] = _buffer(session, query, buffers[output], options)
    if query.has_lane:
        found[LANE] = _lane(session, plan, query, places, lane)
    return found


def waiting(query: Query, places: Places) -> dict[str, str]:
    """Return the option of a stream that waits while too much is behind it."""
    return {"wait_while": str(places.wait_file(query))}


def pushed(
    session: SparkSession, options: Mapping[str, str], spec: PartialSpec, schema: StructType
) -> DataFrame:
    """Return the stream of a source vertex of which a reduce is given partial aggregates."""
    reader = session.readStream.format("holdfast").options(**options)
    return reader.option("partials", spec.to_option()).schema(schema).load()


def _lane(
    session: SparkSession, plan: Plan, query: Query, places: Places, address: str
) -> DataFrame:
    """Return the rows that come again, as `FunctionRun` wants them."""
    columns = from_arrow_schema(pa.schema(list(LANE_TYPE)))
    rows = (
        session.readStream.format("holdfast")
        .option("quiver", address)
        .option("slot", SLOT)
        .option("subscriber", lane_subscriber(plan, query))
        .option("checkpoint", str(places.checkpoint(query)))
        .options(**places.own_access)
        .schema(StructType([*columns.fields, _TIME]))
        .load()
    )
    return rows.select(F.struct(*columns.names).alias("_lane"), "_event_time")


def _source(
    session: SparkSession, plan: Plan, query: Query, name: str, options: dict[str, str]
) -> DataFrame:
    """Return the stream of a source vertex, decoded if it is lineage.

    Columns that are declared are given to the reader, so that a pipeline can start before its
    quivers hold any data; else the reader finds them in what is stored.
    """
    settings = plan.pipeline.vertices[name].source
    assert settings is not None, "BUG: not a source"
    reader = session.readStream.format("holdfast").options(**options)
    known = settings.columns_are or (_LINEAGE if settings.decode else "")
    if settings.generator is not None:
        known = _GENERATED
    if known:
        reader = reader.schema(
            _with_claims(parse_columns(known, f"`columns_are` of {name}"), query)
        )
    elif settings.columns:
        names = dict.fromkeys((*settings.columns, _TIME.name))
        reader = reader.option("columns", ",".join(names))
    frame = reader.load()
    if settings.decode != "openlineage":
        return frame
    decoded = _decoded(frame)
    return decoded if settings.own_runs else decoded.where(_of_others())


def _of_others() -> Column:
    """Return whether an event is not of a pipeline of Holdfast (lineage.py) about its own runs.

    Most payloads do not have its name anywhere: looking for that is much faster than parsing JSON.
    """
    is_named = F.contains(F.col("payload"), F.lit(OWN_PRODUCER.encode()))
    is_own = F.coalesce(F.col("producer") == OWN_PRODUCER, F.lit(False))
    return F.col("payload").isNull() | ~is_named | ~is_own


def _with_claims(schema: StructType, query: Query) -> StructType:
    """Return declared columns with the event time and, if the query claims, with the claim."""
    # Control rows have nothing in the columns of events, whatever Spark knew about those.
    own = [StructField(field.name, field.dataType) for field in schema]
    return StructType([*own, _TIME, *(_CLAIMS if query.claims else ())])


def _decoded(frame: DataFrame) -> DataFrame:
    """Return lineage events with the fields that pipelines use most, taken from the JSON."""
    text = F.col("payload").cast("string")
    columns: dict[str, Column] = {
        name: F.get_json_object(text, path) for name, path in _LINEAGE_COLUMNS.items()
    }
    return frame.withColumns(columns)


def _buffer(
    session: SparkSession, query: Query, buffer: Buffered, options: dict[str, str]
) -> DataFrame:
    """Return what another query put out, with the watermark that it promised.

    The query that writes is the producer: what it has promised is complete, so this query claims no
    more than that, instead of `max_delay` behind the newest row.
    """
    if query.claims:
        options["producers"] = buffer.producer
    reader = session.readStream.format("holdfast").option("quiver", buffer.address)
    reader = reader.option("slot", SLOT).options(**options)
    frame = reader.schema(_with_claims(buffer.schema, query)).load()
    return frame.drop(EVENT_TIME) if buffer.is_time_ours else frame
