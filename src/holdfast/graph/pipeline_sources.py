"""Which quivers of a gateway its own pipelines read and write, and under which names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from holdfast.dataflow.compiler.places import subscriber
from holdfast.dataflow.spec import PipelineSettings
from holdfast.graph.model import Graph
from holdfast.graph.paths import plan
from holdfast.quiver.engine.verbs import StartPosition

# Of the data directory.
PIPELINES_DIR = "pipelines"


class Reader(NamedTuple):
    """A source of a pipeline that reads a quiver of the same file."""

    pipeline: str
    vertex: str
    quiver: str
    subscriber: str
    start: StartPosition


def state_dir(graph: Graph, pipeline: str) -> Path:
    """Return where a pipeline that runs beside its gateway keeps its progress."""
    return graph.data_dir / PIPELINES_DIR / pipeline


def named_sources(pipelines: Mapping[str, PipelineSettings]) -> Iterator[tuple[str, str]]:
    """Yield pipeline and quiver of every source, as they are named."""
    for name, pipeline in pipelines.items():
        for vertex in pipeline.vertices.values():
            for quiver in vertex.source.quiver if vertex.source else ():
                yield name, quiver


def readers(graph: Graph) -> Iterator[Reader]:
    """Yield every reading of the file's own quivers by its own pipelines."""
    names = {one.name for one in plan(graph)}
    for name, pipeline in graph.settings.pipelines.items():
        for vertex, settings in pipeline.vertices.items():
            source = settings.source
            for quiver in () if source is None else source.quiver:
                if source is not None and quiver in names:
                    called = subscriber(name, vertex)
                    yield Reader(name, vertex, quiver, called, source.start)


def writers(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """Yield pipeline, vertex and quiver of every sink that writes into the file's own quivers."""
    names = {one.name for one in plan(graph)}
    for name, pipeline in graph.settings.pipelines.items():
        for vertex, settings in pipeline.vertices.items():
            if settings.sink is not None and settings.sink.quiver in names:
                yield name, vertex, settings.sink.quiver


def reads_own_quivers(graph: Graph) -> bool:
    """Whether a pipeline of the file needs its gateway to serve a quiver."""
    if not graph.settings.spark.run:
        return False
    return any(True for _ in readers(graph)) or any(True for _ in writers(graph))
