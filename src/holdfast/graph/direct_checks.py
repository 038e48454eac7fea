"""What a graph that keeps nothing (`persistence: none`) cannot have."""

from __future__ import annotations

from holdfast.graph.document import Document
from holdfast.graph.model import Graph


def check_keeps_nothing(graph: Graph, document: Document) -> None:
    """Write down everything that needs a quiver where the file says that there is none."""
    if not graph.keeps_nothing:
        return
    for node in graph.nodes.values():
        place = document.key_place(("nodes", node.name))
        if node.is_quiver:
            message = f"{node.name!r} is a quiver, and the file says `persistence: none`"
            document.find(place, message, "remove one of the two")
        elif node.sends_parts:
            message = f"{node.name!r} sends segments, and the file says `persistence: none`"
            document.find(place, message, "data nodes need a quiver")
    if graph.settings.flight is not None:
        message = "there is nothing to be served: the file says `persistence: none`"
        document.find(document.key_place(("flight",)), message, "remove `flight`")
