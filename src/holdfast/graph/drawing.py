"""A graph as text or as a Mermaid chart."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.graph.model import Graph, Node
from holdfast.graph.paths import IMPLICIT_QUIVER, takes_turns
from holdfast.graph.pipeline_sources import readers, writers

_SHAPES = {
    "receiver": ("([", "])"),
    "processor": ("[", "]"),
    "exporter": ("[/", "/]"),
    "pipeline": ("{{", "}}"),
}


def arrows(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """Yield every connection: from, to, and what there is to say about it."""
    hidden = None if graph.quivers else IMPLICIT_QUIVER
    for node in graph.nodes.values():
        if hidden is not None and node.kind == "receiver":
            yield node.name, hidden, ""
    for node in _sources(graph):
        for port_name, port in node.ports.items():
            label = port_name if len(node.ports) > 1 else ""
            if takes_turns(port):
                label = f"{label} in turns".strip()
            for target in port.destinations:
                yield hidden if hidden and node.kind == "receiver" else node.name, target, label
    for quiver, pipeline in sorted({(one.quiver, one.pipeline) for one in readers(graph)}):
        yield quiver, pipeline_label(pipeline), ""
    for pipeline, quiver in sorted({(name, quiver) for name, _, quiver in writers(graph)}):
        yield pipeline_label(pipeline), quiver, ""


def pipeline_label(name: str) -> str:
    """Return how a pipeline is called in a drawing: a node may have its name."""
    return f"pipeline {name}"


def _sources(graph: Graph) -> list[Node]:
    """Return the nodes whose connections are drawn; receivers before a hidden quiver share one."""
    receivers = graph.of_kind("receiver")
    others = [node for node in graph.nodes.values() if node.kind != "receiver"]
    return [*(receivers if graph.quivers else receivers[:1]), *others]


def as_text(graph: Graph) -> str:
    """Return one line per connection, and one per node without any."""
    lines = [
        f"{source} -> {target}" + (f"  ({label})" if label else "")
        for source, target, label in arrows(graph)
    ]
    connected = {name for source, target, _ in arrows(graph) for name in (source, target)}
    names = [*graph.nodes, *map(pipeline_label, graph.settings.pipelines)]
    lines += [name for name in names if name not in connected]
    return "\n".join(lines) + "\n"


def as_mermaid(graph: Graph) -> str:
    """Return a flowchart that GitHub and many editors draw."""
    drawn: dict[str, tuple[str, str]] = {
        name: (node.kind, node.component.type) for name, node in graph.nodes.items()
    }
    if not graph.quivers:
        drawn[IMPLICIT_QUIVER] = ("processor", "quiver")
    for name in graph.settings.pipelines:
        drawn[pipeline_label(name)] = ("pipeline", "Spark")
    # Mermaid has words of its own, such as `end`: nodes are numbered, and named by their label.
    ids = {name: f"n{number}" for number, name in enumerate(drawn)}
    lines = ["flowchart LR"]
    for name, (kind, component) in drawn.items():
        left, right = ("[(", ")]") if component == "quiver" else _SHAPES[kind]
        lines.append(f'    {ids[name]}{left}"{name}<br/><small>{component}</small>"{right}')
    for source, target, label in arrows(graph):
        arrow = f"-- {label} -->" if label else "-->"
        lines.append(f"    {ids[source]} {arrow} {ids[target]}")
    return "\n".join(lines) + "\n"
