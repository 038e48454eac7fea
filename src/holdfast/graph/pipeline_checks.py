"""What is wrong with the pipelines of a file, at the lines that have to change.

What a pipeline says of itself is checked by `dataflow.spec`, which knows no file; here its findings
get their lines. Then comes what only the file as a whole shows: which quivers there are, whether
anybody serves them, and who takes the pipelines' own lineage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast.dataflow.driver.settings import TO_GATEWAY
from holdfast.dataflow.spec import PipelineSettings, check
from holdfast.dataflow.spec.checks import Parse
from holdfast.graph import quiver_node
from holdfast.graph.document import Document, TreePath
from holdfast.graph.model import Graph
from holdfast.graph.paths import IMPLICIT_QUIVER, quiver_directory
from holdfast.graph.validation import nearest


def check_pipelines(
    pipelines: Mapping[str, PipelineSettings],
    document: Document,
    *,
    parse: Parse | None = None,
    imports: bool = False,
) -> None:
    """Write down everything that is wrong with pipelines, at their lines."""
    for name, pipeline in pipelines.items():
        for found in check(pipeline, parse=parse, imports=imports):
            at: TreePath = ("pipelines", name, *found.path)
            place = document.key_place(at) if found.at_key else document.value_place(at)
            is_warning = found.severity == "warning"
            document.find(place, found.message, found.hint, is_warning=is_warning)


def check_beside_gateway(graph: Graph, document: Document) -> None:
    """Write down what is wrong with pipelines beside the gateway of the same file."""
    if not graph.settings.pipelines:
        return
    _check_names(graph, document)
    _check_lineage(graph, document)
    flight = graph.settings.flight
    if graph.settings.spark.run and flight and flight.tls and flight.tls.client_ca_file:
        place = document.value_place(("flight", "tls", "client_ca_file"))
        hint = "use tokens instead, or run them elsewhere: `spark: {run: false}`"
        document.find(place, "pipelines beside the gateway have no certificate to show", hint)
    _check_served(graph, document)


def _check_served(graph: Graph, document: Document) -> None:
    """Warn of pipelines that are run elsewhere, and read quivers that are served to nobody."""
    owned = _owned(graph)
    if graph.settings.spark.run or graph.settings.flight is not None:
        return
    for at, _, named in _named(graph):
        if named in owned:
            message = f"no other process can use the quiver {named!r} while the gateway runs"
            hint = "add `flight: {}`, and `dataflow run` finds it there"
            document.find(document.value_place(at), message, hint, is_warning=True)
            return


def _check_names(graph: Graph, document: Document) -> None:
    """A source names a quiver of the file, a directory that is nobody else's, or an address.

    A name without a slash is meant to be a quiver of this file, so a mistyped one is an error and
    not a new folder. A sink may name what does not exist yet: it makes it.
    """
    owned = _owned(graph)
    written = {named for _, is_source, named in _named(graph) if not is_source}
    for at, is_source, named in _named(graph):
        directory = (graph.base_dir / named).resolve()
        owner = next((n for n, path in owned.items() if _is_inside(directory, path)), None)
        place = document.value_place(at)
        if named in owned or "://" in named:
            continue
        if owner is not None:
            message = f"this is the directory of the quiver {owner!r}, which the gateway has open"
            document.find(place, message, f"name it: {owner}")
        elif is_source and "/" not in named and named not in written and not directory.exists():
            hint = nearest(named, owned, "quivers of this file") + f"; a folder is ./{named}"
            document.find(place, f"there is no quiver {named!r}", hint)


def _owned(graph: Graph) -> dict[str, Path]:
    """Return the directories of the gateway's quivers; the graph may be wrong elsewhere.

    Resolved, so that a link or a `..` does not hide that two names are one directory: the driver
    would find it locked, long after the file was accepted.
    """
    owned = {
        node.name: quiver_directory(graph, node.name, node.config).resolve()
        for node in graph.quivers
        if isinstance(node.config, quiver_node.Config)
    }
    hidden = quiver_directory(graph, IMPLICIT_QUIVER, quiver_node.Config())
    return owned or {IMPLICIT_QUIVER: hidden.resolve()}


def _is_inside(path: Path, folder: Path) -> bool:
    return path == folder or folder in path.parents


def _named(graph: Graph) -> Iterator[tuple[TreePath, bool, str]]:
    """Yield every quiver that a pipeline names: where, whether to read it, and its name."""
    for name, pipeline in graph.settings.pipelines.items():
        for vertex, settings in pipeline.vertices.items():
            at: TreePath = ("pipelines", name, "vertices", vertex)
            if settings.source is not None:
                for quiver in settings.source.quiver:
                    yield (*at, "source", "quiver"), True, quiver
            if settings.sink is not None and settings.sink.quiver is not None:
                yield (*at, "sink", "quiver"), False, settings.sink.quiver


def _check_lineage(graph: Graph, document: Document) -> None:
    lineage = graph.settings.spark.lineage
    if lineage is None or lineage.to != TO_GATEWAY:
        return
    if not any(node.component.type == "openlineage" for node in graph.of_kind("receiver")):
        place = document.value_place(("spark", "lineage"))
        hint = "add a receiver of type openlineage, or name another address with `to`"
        document.find(place, "this gateway does not take lineage", hint)
