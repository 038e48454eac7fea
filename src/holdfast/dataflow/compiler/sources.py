"""The streams that a query begins with: quivers of others, and those between queries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BooleanType, StructField, StructType, TimestampType

from holdfast.dataflow.compiler.places import (
    EVENT_TIME,
    SLOT,
    Places,
    source_options,
    stream_options,
)
from holdfast.dataflow.compiler.plan import Output, Plan, Query
from holdfast.errors import BadConfig

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_TIME = StructField("_event_time", TimestampType())
_CLAIMS = (
    StructField("_wm", TimestampType()),
    StructField("_wm_prev", TimestampType()),
    StructField("_control", BooleanType()),
)
# What the receiver's extractor adds to a payload (signals/openlineage/envelope.py).
_LINEAGE = "payload binary, run_id string, job string"
_LINEAGE_COLUMNS = {
    "event_type": "$.eventType",
    "namespace": "$.job.namespace",
    "job": "$.job.name",
    "run_id": "$.run.runId",
    "producer": "$.producer",
}


class Buffered(NamedTuple):
    """A quiver between queries, for whoever reads it."""

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
) -> dict[Output, DataFrame]:
    """Return what the sources of a query, and other queries, put out."""
    found = {}
    for name in query.vertices:
        if plan.pipeline.vertices[name].source is not None:
            options = source_options(plan, query, name, places, close=close)
            found[Output(name)] = _source(session, plan, query, name, options)
    for output in query.reads:
        found[output] = _buffer(session, plan, query, output, places, buffers[output], close)
    return found


def _source(
    session: SparkSession, plan: Plan, query: Query, name: str, options: dict[str, str]
) -> DataFrame:
    settings = plan.pipeline.vertices[name].source
    assert settings is not None, "BUG: not a source"
    reader = session.readStream.format("holdfast").options(**options)
    known = settings.columns_are or (_LINEAGE if settings.decode else "")
    if known:
        reader = reader.schema(_with_claims(_parsed(known, name), query))
    elif settings.columns:
        names = dict.fromkeys((*settings.columns, _TIME.name))
        reader = reader.option("columns", ",".join(names))
    frame = reader.load()
    return _decoded(frame) if settings.decode == "openlineage" else frame


def _with_claims(schema: StructType, query: Query) -> StructType:
    return StructType([*schema.fields, _TIME, *(_CLAIMS if query.claims else ())])


def _parsed(ddl: str, name: str) -> StructType:
    from pyspark.errors import AnalysisException, ParseException

    try:
        parsed = StructType.fromDDL(ddl)
    except (ParseException, AnalysisException) as error:
        raise BadConfig(
            f"`columns_are` of {name} is not understood: {str(error).strip().splitlines()[0]}",
            hint="write names and types of Spark: key string, number bigint",
        ) from error
    assert isinstance(parsed, StructType), "BUG: columns are a struct"
    return parsed


def _decoded(frame: DataFrame) -> DataFrame:
    text = F.col("payload").cast("string")
    columns: dict[str, Column] = {
        name: F.get_json_object(text, path) for name, path in _LINEAGE_COLUMNS.items()
    }
    return frame.withColumns(columns)


def _buffer(
    session: SparkSession,
    plan: Plan,
    query: Query,
    output: Output,
    places: Places,
    buffer: Buffered,
    close: bool,
) -> DataFrame:
    vertex = f"{query.name}.{output}"
    options = stream_options(plan, query, vertex, places, close=close)
    if query.claims:
        options["producers"] = buffer.producer
    reader = session.readStream.format("holdfast").option("quiver", buffer.address)
    reader = reader.option("slot", SLOT).options(**options)
    frame = reader.schema(_with_claims(buffer.schema, query)).load()
    return frame.drop(EVENT_TIME) if buffer.is_time_ours else frame
