"""Cuts: edges that become durable quivers between two queries. As few as can be.

An edge within one query costs nothing; one that is cut costs a transaction, a batch of delay and a
subscriber. So an edge is cut for one of five reasons only:

- the pipeline says so (`durable: true`);
- a function before it may set rows aside, and a reduce is behind it. In one plan Spark would call
  the function once for either way, and one that fails only now and then would fail on both, or on
  none. And a row that comes again later has to find its windows open, in a query that goes on;
- what is behind a reduce is used twice, and one of the uses is another reduce. Spark has no way
  to use the results of a stateful operator twice in one plan: it would keep the state twice. Only
  where both have run in one query, and a use was added since, it does: their state cannot be
  taken apart;
- the two queries of another cut would be one again, because rows meet further down. A query that
  waits for its own watermark waits for ever;
- the pipeline has run, and the two ends are of different queries, or would be: a query that has a
  checkpoint can take up sources and sinks, but neither another reduce nor another query.

The second reason cuts right behind the function, and the third right behind the state. Not within a
query that has begun if the reduce is of another one: then the fifth cuts further on, where the way
leaves that query, and is enough. A cut within would take the query apart.

The fourth kind is found by looking at the graph of queries: it must have no circle. Within one,
edges that lead from earlier to later stages are cut, and those that turn out not to be needed are
mended again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from holdfast.dataflow.spec.pipeline import LATE, MAIN, PipelineEdge, PipelineSettings

ASKED = "the pipeline says `durable: true`"
REJECTS = "a function rejects rows here that may be retried, and a reduce follows"
USED_TWICE = "results of a reduce are used more than once, and once by another reduce"
APART = "the pipeline has run: a query that has started cannot take in a reduce or another query"
MEETS = "its rows meet those of another cut: in one query it would wait for its own watermark"


class Cut(NamedTuple):
    """An edge, by its place in the pipeline, and why it cannot stay within a query."""

    edge: int
    reason: str


def find_cuts(
    pipeline: PipelineSettings, homes: Mapping[str, str] | None = None
) -> tuple[Cut, ...]:
    """Return the edges that must be cut, in their order; vertices that have run have homes."""
    reasons: dict[int, str] = {}
    for index, edge in enumerate(pipeline.edges):
        if edge.durable:
            reasons[index] = ASKED
    for index in _rejecting(pipeline, homes or {}):
        reasons.setdefault(index, REJECTS)
    for index in _used_twice(pipeline, set(reasons), homes or {}):
        reasons[index] = USED_TWICE
    for index in _apart(pipeline, set(reasons), homes or {}):
        reasons[index] = APART
    while circle := _circle(pipeline, set(reasons)):
        reasons |= dict.fromkeys(_between_stages(pipeline, set(reasons), circle), MEETS)
    for index in [index for index, reason in reasons.items() if reason == MEETS]:
        if not _circle(pipeline, set(reasons) - {index}):
            del reasons[index]
    return tuple(Cut(index, reasons[index]) for index in sorted(reasons))


def components(pipeline: PipelineSettings, cut: Iterable[int]) -> list[frozenset[str]]:
    """Return the vertices that hang together by edges that are not cut, in the order written."""
    groups = {name: {name} for name in pipeline.vertices}
    left_out = set(cut)
    for index, edge in enumerate(pipeline.edges):
        one, other = groups[edge.vertex], groups[edge.target]
        if index not in left_out and one is not other:
            one |= other
            groups |= dict.fromkeys(other, one)
    return list(dict.fromkeys(frozenset(groups[name]) for name in pipeline.vertices))


def reduces_behind(pipeline: PipelineSettings, edge: PipelineEdge) -> bool:
    """Whether an edge leads to a reduce."""
    reached = {edge.target, *pipeline.behind(edge.target)}
    return any(pipeline.vertices[name].reduce is not None for name in reached)


def _rejecting(pipeline: PipelineSettings, homes: Mapping[str, str]) -> list[int]:
    """Return the edges behind a function that may reject rows, with a reduce further on."""
    return [
        index
        for index, edge in enumerate(pipeline.edges)
        if edge.port != LATE
        and pipeline.vertices[edge.vertex].sets_aside
        and reduces_behind(pipeline, edge)
        and not _is_cut_behind(pipeline, edge, homes)
    ]


def _is_cut_behind(
    pipeline: PipelineSettings, edge: PipelineEdge, homes: Mapping[str, str]
) -> bool:
    """Whether an edge is of a query that has begun, and all reduces behind it are of others.

    Then there is a cut on every way to them, where it leaves the query (`_apart`). One here as well
    would take the query apart: what is behind it would read and write under another name, and a
    source there would have to be refused.
    """
    home = homes.get(edge.vertex)
    is_within = home is not None and homes.get(edge.target) == home
    return is_within and not _in_one_query(pipeline, edge, homes)


def _used_twice(pipeline: PipelineSettings, cut: set[int], homes: Mapping[str, str]) -> list[int]:
    """Return the edges that lead from state to another reduce while the same state has other uses.

    Vertices are walked in the order of the edges: whatever is behind a reduce and not cut off from
    it has its state in the plan, too. Cutting the edge to the next reduce leaves one use for Spark.
    """
    found: list[int] = []
    stateful: set[str] = set()
    for name in pipeline.ordered():
        inputs = {
            edge.vertex
            for index, edge in enumerate(pipeline.edges)
            if edge.target == name and edge.port == MAIN and index not in {*cut, *found}
        }
        if pipeline.vertices[name].reduce is not None or inputs & stateful:
            stateful.add(name)
        if name in stateful and len(pipeline.out_of(name, MAIN)) > 1:
            found += [
                index
                for index, edge in enumerate(pipeline.edges)
                if edge.vertex == name
                and edge.port == MAIN
                and index not in cut
                and reduces_behind(pipeline, edge)
                and not _is_cut_behind(pipeline, edge, homes)
                and not _in_one_query(pipeline, edge, homes)
            ]
    return found


def _in_one_query(pipeline: PipelineSettings, edge: PipelineEdge, homes: Mapping[str, str]) -> bool:
    """Whether an edge leads from a query that has begun to a reduce that has its state in it."""
    home, reached = homes.get(edge.vertex), {edge.target, *pipeline.behind(edge.target)}
    reduces = [name for name in reached if pipeline.vertices[name].reduce is not None]
    return home is not None and any(homes.get(name) == home for name in reduces)


def _apart(pipeline: PipelineSettings, cut: set[int], homes: Mapping[str, str]) -> list[int]:
    """Return the edges that would lead from one query that has begun to another, or to state."""
    edges = [(index, edge) for index, edge in enumerate(pipeline.edges) if index not in cut]
    joins = [index for index, e in edges if (e.vertex in homes) != (e.target in homes)]
    found = [
        index
        for index, edge in edges
        if edge.vertex in homes and edge.target in homes
        and homes[edge.vertex] != homes[edge.target]
    ]  # fmt: skip
    for group in components(pipeline, {*cut, *joins, *found}):
        if group & homes.keys():
            continue
        mine = [(i, e) for i, e in edges if i in joins and {e.vertex, e.target} & group]
        touched = {homes.get(edge.vertex) or homes[edge.target] for _, edge in mine}
        has_state = any(pipeline.vertices[name].reduce is not None for name in group)
        if has_state or len(touched) > 1:
            found += [index for index, _ in mine]
    return found


def _circle(pipeline: PipelineSettings, cut: set[int]) -> set[str]:
    """Return the vertices of queries that wait for each other, or for themselves."""
    of = {name: group for group in components(pipeline, cut) for name in group}
    after: dict[frozenset[str], set[frozenset[str]]] = {group: set() for group in of.values()}
    for index in cut:
        edge = pipeline.edges[index]
        after[of[edge.vertex]].add(of[edge.target])
    waiting = {group: {one for one in after if group in after[one]} for group in after}
    while ready := {group for group, before in waiting.items() if not before}:
        waiting = {g: before - ready for g, before in waiting.items() if g not in ready}
    # What is only behind a circle is not in it.
    while ends := {group for group in waiting if not after[group] & waiting.keys()}:
        waiting = {group: before for group, before in waiting.items() if group not in ends}
    return {name for group in waiting for name in group}


def _between_stages(pipeline: PipelineSettings, cut: set[int], circle: set[str]) -> list[int]:
    """Return edges that lead to a later stage; a stage is how many cuts are before a vertex."""
    stage = dict.fromkeys(pipeline.vertices, 0)
    inside = [
        (index, edge)
        for index, edge in enumerate(pipeline.edges)
        if edge.vertex in circle and edge.target in circle
    ]
    for name in pipeline.ordered():
        before = [stage[e.vertex] + (index in cut) for index, e in inside if e.target == name]
        stage[name] = max(before, default=0)
    return [
        index
        for index, edge in inside
        if index not in cut and stage[edge.vertex] < stage[edge.target]
    ]
