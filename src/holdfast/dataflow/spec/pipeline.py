"""A pipeline as it is written, and its edges seen from each vertex.

An edge is `a -> b`, `a.late -> b`, or a mapping that says which tags go that way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from holdfast.dataflow.spec.vertices import VertexSettings
from holdfast.dataflow.watermark.claims import WatermarkSettings
from holdfast.settings import DurationS, Settings

MAIN, LATE, FAILED = "", "late", "failed"
PORTS = (MAIN, LATE, FAILED)
_TEXT = re.compile(r"\s*(?P<source>\S+)\s*->\s*(?P<target>\S+)\s*")


class TagCondition(Settings):
    """Which rows take an edge, by the array column `_tags`; all that are given must hold."""

    # `print-config` prints the names that Python can have.
    model_config = ConfigDict(populate_by_name=True)

    any_of: list[str] = Field(default_factory=list, alias="or")
    """At least one of these."""
    all_of: list[str] = Field(default_factory=list, alias="and")
    """Every one of these."""
    none_of: list[str] = Field(default_factory=list, alias="not")
    """None of these."""

    @model_validator(mode="after")
    def _says_something(self) -> TagCondition:
        if not (self.any_of or self.all_of or self.none_of):
            raise ValueError("name tags under `or`, `and` or `not`")
        return self

    def admits(self, tags: frozenset[str]) -> bool:
        """Whether a row with these tags takes the edge."""
        return (
            (not self.any_of or not tags.isdisjoint(self.any_of))
            and tags.issuperset(self.all_of)
            and tags.isdisjoint(self.none_of)
        )


class PipelineEdge(Settings):
    """Rows go from one vertex to another."""

    model_config = ConfigDict(populate_by_name=True)

    source: str = Field(alias="from")
    """The vertex, or one of its other outputs: `name.late`, `name.failed`."""
    target: str = Field(alias="to")
    """The vertex behind."""
    tags: TagCondition | None = None
    """Only rows with such tags; by default all."""
    durable: bool = False
    """Keep the rows in a quiver between the two: they become two queries."""

    @property
    def vertex(self) -> str:
        """The vertex that the rows come from."""
        return self.source.partition(".")[0]

    @property
    def port(self) -> str:
        """Which of its outputs: "" is its results."""
        return self.source.partition(".")[2]

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"


def _edge(value: Any) -> Any:
    """Return a short edge as the mapping it stands for."""
    if not isinstance(value, str):
        return value
    found = _TEXT.fullmatch(value)
    if found is None:
        raise ValueError("write an edge as `a -> b` or `a.late -> b`")
    return {"from": found["source"], "to": found["target"]}


WrittenEdge = Annotated[PipelineEdge, BeforeValidator(_edge)]

_VERTEX_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-]{0,47}")


def _vertex_name(name: str) -> str:
    if not _VERTEX_NAME.fullmatch(name):
        raise ValueError("a vertex has a name of 1 to 48 letters, digits, '_' or '-'")
    return name


VertexName = Annotated[str, AfterValidator(_vertex_name)]


class BufferSettings(Settings):
    """How much may wait in a quiver between two queries, and in a retry lane."""

    max_rows: int = Field(default=10_000_000, ge=1)
    """With more rows than this the sources before it wait, after the current batch …"""
    resume: float = Field(default=0.8, gt=0, le=1)
    """… until this fraction of it is left."""


class PipelineSettings(Settings):
    """Vertices, and the edges between them."""

    vertices: dict[VertexName, VertexSettings] = Field(min_length=1)
    """Sources, maps, filters, flat maps, reduces and sinks, by name."""
    edges: list[WrittenEdge] = Field(default_factory=list)
    """`a -> b`, `a.late -> b`, or `{from: a, to: b, tags: {or: [even]}}`."""
    watermark: WatermarkSettings = WatermarkSettings()
    """How far the watermark follows the events, and what holds it."""
    trigger: DurationS = 0.0
    """The shortest time between the starts of two batches; 0: no pause."""
    shuffle_partitions: int | None = Field(default=None, ge=1, le=10_000)
    """Parts of a reduce's state; by default one for each core of Spark, at least 2. Fixed when a
    pipeline first runs."""
    push_down: bool = True
    """Add up what can be in the tasks that read a source, for windows of fixed length: far fewer
    rows for Spark, the same results. `explain` says of which windows."""
    buffers: BufferSettings = BufferSettings()
    """How much may wait between two queries."""
    worker_attempts: int = Field(default=4, ge=1, le=100)
    """How often in a row to start a query whose Python process does not come up in time."""

    def into(self, vertex: str) -> list[PipelineEdge]:
        """Return the edges that lead to a vertex."""
        return [edge for edge in self.edges if edge.target == vertex]

    def out_of(self, vertex: str, port: str | None = None) -> list[PipelineEdge]:
        """Return the edges that begin at a vertex, or at one of its outputs."""
        return [e for e in self.edges if e.vertex == vertex and port in (None, e.port)]

    def of_kind(self, *kinds: str) -> Iterator[str]:
        """Yield the names of the vertices of some kinds."""
        return (name for name, vertex in self.vertices.items() if vertex.kind in kinds)

    def ordered(self) -> list[str]:
        """Return the vertices so that every edge points forward; those in a circle are left out."""
        waiting = {name: {edge.vertex for edge in self.into(name)} for name in self.vertices}
        ordered: list[str] = []
        while ready := [name for name, before in waiting.items() if before <= set(ordered)]:
            ordered += ready
            waiting = {name: before for name, before in waiting.items() if name not in ready}
        return ordered

    def behind(self, vertex: str) -> set[str]:
        """Return all vertices that rows of a vertex may reach."""
        found: set[str] = set()
        edge_of = [vertex]
        while edge_of:
            for edge in self.out_of(edge_of.pop()):
                if edge.target not in found:
                    found.add(edge.target)
                    edge_of.append(edge.target)
        return found
