"""The stores that a gateway's file names: where its pipelines read commits, or make them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.dataflow.spec.vertices import FileSetSource, FileSetTarget
from holdfast.graph.model import Graph
from holdfast.settings import Secret


@dataclass(frozen=True)
class NamedStore:
    """One store; `used_by` are vertices of pipelines."""

    url: str
    database: Secret | None
    used_by: tuple[str, ...]


def named_stores(graph: Graph) -> tuple[NamedStore, ...]:
    """Return each store once, in the order of the file."""
    found: dict[tuple[str, str], NamedStore] = {}
    for user, fileset in _filesets(graph):
        named, database = fileset.store, fileset.database
        url = named if "://" in named else str(graph.base_dir / named)
        key = (url, database.get_secret_value() if database else "")
        before = found[key].used_by if key in found else ()
        found[key] = NamedStore(url, database, tuple(dict.fromkeys((*before, user))))
    return tuple(found.values())


def _filesets(graph: Graph) -> Iterator[tuple[str, FileSetSource | FileSetTarget]]:
    for pipeline, settings in graph.settings.pipelines.items():
        for vertex, one in settings.vertices.items():
            sink = one.sink
            places = (one.source, sink, sink and sink.fallback, sink and sink.on_success)
            for place in places:
                if place is not None and place.fileset is not None:
                    yield f"{pipeline}.{vertex}", place.fileset
