"""Replaying: a pipeline run again over what is stored, into a separate folder.

The queries, the watermark and the functions are those of the pipeline. Its ends differ: sources
read what is stored, processed or not, without a subscriber (source/stored.py), and every
sink is a folder of Parquet files. So a replay changes nothing: neither the quivers, nor the state
of the pipeline, nor its results. Functions of sinks are not called.

As one batch nothing is late: all rows are there before the first window closes. As a stream the
rows come in the pipeline's own batches, and what comes behind the watermark is late again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.dataflow.compiler.places import Places
from holdfast.dataflow.driver.run import PipelineRun
from holdfast.dataflow.driver.wire import QueryStatistics
from holdfast.dataflow.spec import PipelineSettings
from holdfast.dataflow.spec.vertices import (
    ReadLimit,
    SinkSettings,
    SourceSettings,
    VertexSettings,
)
from holdfast.errors import BadConfig, BadInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# For progress and state while it runs, and for rows that failed.
STATE_DIR = "_state"
# More than any quiver holds.
_EVERYTHING = ReadLimit(rows=2**62, bytes=2**62)


@dataclass(frozen=True)
class StoredRange:
    """What to replay: by event time, or by the numbers of one quiver's bundles; ends are open."""

    since: datetime | None = None
    until: datetime | None = None
    since_seq: int | None = None
    until_seq: int | None = None

    @property
    def options(self) -> dict[str, str]:
        """The options that it gives to sources."""
        seqs = {"since_seq": self.since_seq, "until_seq": self.until_seq}
        return {"stored": "true"} | {k: str(v) for k, v in seqs.items() if v is not None}


def replay(
    name: str,
    pipeline: PipelineSettings,
    places: Places,
    session: SparkSession,
    into: Path,
    wanted: StoredRange | None = None,
    *,
    as_batch: bool = True,
) -> Sequence[QueryStatistics]:
    """Run a pipeline over a stored range to its end; results are in `into/SINK`."""
    wanted = wanted or StoredRange()
    _check_range(pipeline, wanted)
    into = into.absolute()
    if into.exists() and any(into.iterdir()):
        raise BadInput(
            "the folder of a replay is not empty",
            hint="name a new one: results of two replays would be taken for one",
            path=str(into),
        )
    redirected = _redirected(pipeline, into, wanted, as_batch=as_batch)
    own = replace(places, state_dir=into / STATE_DIR, reading=wanted.options)
    with PipelineRun(name, redirected, own, session) as run:
        run.drain(close=True)
    return run.statistics()


def _check_range(pipeline: PipelineSettings, wanted: StoredRange) -> None:
    """Refuse numbers of bundles where they would mean several quivers."""
    if wanted.since_seq is None and wanted.until_seq is None:
        return
    sources = [pipeline.vertices[name].source for name in pipeline.of_kind("source")]
    quivers = [quiver for source in sources if source for quiver in source.quiver]
    if len(quivers) != 1:
        raise BadConfig(
            f"each quiver has numbers of its own, and the pipeline reads {len(quivers)}",
            hint="name the range by event time",
        )


def _redirected(
    pipeline: PipelineSettings, into: Path, wanted: StoredRange, *, as_batch: bool
) -> PipelineSettings:
    """Return the pipeline between other ends."""
    vertices: dict[str, VertexSettings] = {}
    for name, vertex in pipeline.vertices.items():
        change: dict[str, object] = {}
        if vertex.source is not None:
            change = {"source": _source(vertex.source, wanted, as_batch=as_batch)}
        if vertex.sink is not None:
            change = {"sink": SinkSettings(files=str(into / name))}
        vertices[name] = vertex.model_copy(update=change)
    return pipeline.model_copy(update={"vertices": vertices})


def _source(source: SourceSettings, wanted: StoredRange, *, as_batch: bool) -> SourceSettings:
    """Return a source that reads the wanted part of what it may read at all."""
    since = [moment for moment in (source.since, wanted.since) if moment is not None]
    until = [moment for moment in (source.until, wanted.until) if moment is not None]
    return source.model_copy(
        update={
            "since": max(since, default=None),
            "until": min(until, default=None),
            "read_limit": _EVERYTHING if as_batch else source.read_limit,
        }
    )
