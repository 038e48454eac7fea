"""How Spark numbers stateful operators, written a second time, from its plan and not from ours.

A plan is a tree: the ways out of the stream below one union, a reduce above all that leads to it.
Spark's rule transforms that tree from the top down, and each stateful operator takes the next
number when it is met. The tree is built whole, then walked with a stack: the code under test never
builds one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.dataflow.compiler.plan import LANE, Output, Plan, Query


@dataclass
class Node:
    """An operator of a physical plan."""

    # The reduce or the source that it is; a union, a map or a filter has none.
    reduce: str = ""
    source: str = ""
    children: list[Node] = field(default_factory=list)


def tree(plan: Plan, query: Query) -> Node:
    """Return the plan that Spark gets of a query."""
    return Node(children=[_tree(plan, query, tap) for tap in query.taps if tap != LANE])


def _tree(plan: Plan, query: Query, output: Output) -> Node:
    if output.vertex not in query.vertices or plan.pipeline.vertices[output.vertex].source:
        return Node(source=str(output))
    cut = {cut.edge for cut in plan.cuts}
    below = [
        _tree(plan, query, Output(edge.vertex, edge.port))
        for index, edge in enumerate(plan.pipeline.edges)
        if edge.target == output.vertex
        and (index not in cut or Output(edge.vertex, edge.port) in query.reads)
    ]
    is_reduce = plan.pipeline.vertices[output.vertex].reduce is not None
    name = output.vertex if is_reduce and output.port != "late" else ""
    return Node(reduce=name, children=below)


def numbered(plan: Plan, query: Query) -> tuple[list[str], list[str]]:
    """Return the reduces by their numbers, and the sources by their lines in the offset log."""
    reduces, sources = [], []
    waiting = [tree(plan, query)]
    while waiting:
        node = waiting.pop()
        reduces += [node.reduce] if node.reduce else []
        sources += [node.source] if node.source else []
        waiting += reversed(node.children)
    return reduces, sources
