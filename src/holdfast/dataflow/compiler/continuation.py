"""Going on: the plan of a file that was edited, so that it fits what a pipeline has on disk.

First each vertex of the file gets its identity: that of the recorded vertex it is, whether or not
it has another name now. From there on it is planned under that. Then the order of edges and of
vertices is the recorded one, with what is new behind it, so that whatever follows from the order of
lines is as it was. Last it is looked whether every state finds its reduce again. What would move
state to another reduce, or leave it to nobody, is refused: nothing is lost without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from holdfast.dataflow.compiler.plan import Output, Plan, Query, make_plan, unused
from holdfast.dataflow.compiler.recorded import (
    RecordedPlan,
    RecordedQuery,
    RecordedReduce,
    RecordedVertex,
    essence_of,
)
from holdfast.dataflow.spec.edges import LATE, PipelineEdge
from holdfast.dataflow.spec.pipeline import PipelineSettings
from holdfast.dataflow.spec.vertices import VertexSettings
from holdfast.errors import BadConfig


def continued(
    name: str, pipeline: PipelineSettings, recorded: RecordedPlan | None, state_dir: Path
) -> Plan:
    """Return the plan of a pipeline that goes on; raise `BadConfig` if its state cannot."""
    if recorded is None:
        return make_plan(name, pipeline)
    identities = find_identities(pipeline, recorded)
    plan = make_plan(name, _as_recorded(pipeline, recorded, identities), recorded, identities)
    wrong = list(_mismatches(plan, recorded))
    if wrong:
        raise refusal(name, wrong, state_dir)
    return plan


def refusal(name: str, wrong: list[str], state_dir: Path) -> BadConfig:
    """Return the error for a file that the state of a pipeline cannot go on with."""
    return BadConfig(
        f"the state of {name} does not fit this file: {'; '.join(wrong)}",
        hint="either undo that, or finish with the former file: "
        f"`holdfast dataflow drain FILE {name} --close` writes all open windows, then "
        f"`mv {state_dir} {state_dir}.closed`: the next start resumes after what was read",
        path=str(state_dir),
    )


# --------------------------------------------------------------------- identities


def find_identities(pipeline: PipelineSettings, recorded: RecordedPlan) -> dict[str, str]:
    """Return the identity of each vertex of a file, by its name there."""
    matching = _Matching(pipeline, recorded)
    matching.by_name(same=True)
    while matching.by_place() or matching.by_essence():
        pass
    matching.by_name(same=False)
    taken = {*recorded.vertices, *(query.name for query in recorded.queries)}
    found = dict(matching.found)
    for name in pipeline.vertices:
        if name not in found:
            found[name] = unused(name, taken)
            taken.add(found[name])
    return found


class _Matching:
    """Finds for each vertex of a file the recorded one that it is."""

    def __init__(self, pipeline: PipelineSettings, recorded: RecordedPlan) -> None:
        self._pipeline = pipeline
        self._recorded = recorded
        # Identities by name in the file.
        self.found: dict[str, str] = {}

    def by_name(self, *, same: bool) -> None:
        """Match vertices whose names are as they were, and with `same` all else, too."""
        known = {vertex.name: identity for identity, vertex in self._recorded.vertices.items()}
        for name in self._left():
            identity = known.get(name)
            if identity is None or identity in self.found.values():
                continue
            is_same = self._is_same(self._pipeline.vertices[name], identity)
            kind = self._recorded.vertices[identity].kind
            if is_same or (not same and kind == self._pipeline.vertices[name].kind):
                self.found[name] = identity

    def by_place(self) -> bool:
        """Match vertices with new names that stand where a recorded one stood; whether any did."""
        return self._match(self._stands)

    def by_essence(self) -> bool:
        """Match what stands elsewhere now; no reduce: it would have the state of other rows."""
        return self._match(lambda name, _: self._pipeline.vertices[name].reduce is None)

    def _match(self, admits: Callable[[str, str], bool]) -> bool:
        gone = [one for one in self._recorded.vertices if one not in self.found.values()]
        candidates = {
            name: [
                one
                for one in gone
                if self._is_same(self._pipeline.vertices[name], one) and admits(name, one)
            ]
            for name in self._left()
        }
        wanted = [one for several in candidates.values() for one in several]
        # Only where there is no doubt: one candidate, and nobody else's.
        sure = {
            name: several[0]
            for name, several in candidates.items()
            if len(several) == 1 and wanted.count(several[0]) == 1
        }
        self.found |= sure
        return bool(sure)

    def _left(self) -> list[str]:
        return [name for name in self._pipeline.vertices if name not in self.found]

    def _is_same(self, vertex: VertexSettings, identity: str) -> bool:
        known = self._recorded.vertices[identity]
        return known.kind == vertex.kind and known.essence in (None, essence_of(vertex))

    def _stands(self, name: str, identity: str) -> bool:
        """Whether the same edges lead to it, and at least one neighbour is known."""
        before = {self._renamed(edge.source) for edge in self._pipeline.into(name)}
        was = {source for source, target in self._recorded.edges if target == identity}
        after = {self.found.get(edge.target) for edge in self._pipeline.out_of(name)} - {None}
        behind = {t for source, t in self._recorded.edges if source.partition(".")[0] == identity}
        return before == was if before or was else bool(after & behind)

    def _renamed(self, source: str) -> str:
        vertex, dot, port = source.partition(".")
        return f"{self.found.get(vertex, '?')}{dot}{port}"


# -------------------------------------------------------------------- translating


def _as_recorded(
    pipeline: PipelineSettings, recorded: RecordedPlan, identities: Mapping[str, str]
) -> PipelineSettings:
    """Return a pipeline by identities, in the recorded order, with what is new behind."""
    vertices = {
        identities[name]: _ordered_state(vertex, recorded.reduces.get(identities[name]))
        for name, vertex in pipeline.vertices.items()
    }
    known = [name for name in recorded.vertices if name in vertices]
    ordered = {name: vertices[name] for name in dict.fromkeys((*known, *vertices))}
    edges = [_edge(edge, identities) for edge in pipeline.edges]
    renamed = pipeline.model_copy(update={"vertices": ordered, "edges": edges})
    place = {edge: number for number, edge in enumerate(recorded.edges)}
    ranks, homes = recorded.ranks(), recorded.homes
    last = len(ranks), len(place)

    def key(edge: PipelineEdge) -> tuple[int, int]:
        # A union must have the parts with state in the order of their operators.
        before = {edge.vertex} - ({edge.vertex} if edge.port == LATE else set())
        before |= {name for name in vertices if edge.vertex in renamed.behind(name)}
        mine = [ranks[n] for n in before if n in ranks and homes[n] == homes.get(edge.target)]
        return min(mine, default=last[0]), place.get((edge.source, edge.target), last[1])

    return renamed.model_copy(update={"edges": sorted(edges, key=key)})


def _ordered_state(vertex: VertexSettings, known: RecordedReduce | None) -> VertexSettings:
    """Return a reduce with its keys and columns in the order in which its state has them."""
    reduce = vertex.reduce
    if reduce is None or known is None or known.differences(RecordedReduce.of(reduce)):
        return vertex
    update = {"key": list(known.key), "aggregate": dict(known.aggregate)}
    return vertex.model_copy(update={"reduce": reduce.model_copy(update=update)})


def _edge(edge: PipelineEdge, identities: Mapping[str, str]) -> PipelineEdge:
    source = Output(identities[edge.vertex], edge.port)
    return edge.model_copy(update={"source": str(source), "target": identities[edge.target]})


# ----------------------------------------------------------------------- checking


def _mismatches(plan: Plan, recorded: RecordedPlan) -> Iterator[str]:
    """Yield what would leave a state, or a place in a source, to nobody or to somebody else."""
    for query in recorded.queries:
        gone = _changed(plan, recorded, query.operators)
        yield from gone
        now = next((one for one in plan.queries if one.name == query.name), None)
        fits = now is not None and _goes_on(plan, query.operators, now.operators)
        if query.operators and not gone and not fits:
            was = ", ".join(dict.fromkeys(query.operators))
            yield f"{was} have their state in one query, which this file would take apart"
        for source in query.sources:
            if source in plan.pipeline.vertices and plan.query_of(source).name != query.name:
                yield f"{plan.name_of(source)} is read by another query than before"


def _goes_on(plan: Plan, before: list[str], now: Sequence[str]) -> bool:
    """Whether operators are those of before, perhaps some of them once more.

    Those get a copy of the state (`copied_states`). That of a function is more than Spark's.
    """
    vertices = [plan.pipeline.vertices[name].reduce for name in now[len(before) :]]
    are_native = all(one is not None and not one.is_python for one in vertices)
    is_known = set(now[len(before) :]) <= set(before)
    return list(now[: len(before)]) == before and is_known and (are_native or not before)


def copied_states(plan: Plan, recorded: RecordedPlan) -> Iterator[tuple[Query, int, int]]:
    """Yield which operators of a query are there once more, and whose state they begin with."""
    for query in plan.queries:
        known = recorded.query(query.name)
        before = [] if known is None else known.operators
        for place in range(len(before), len(query.operators)) if before else ():
            yield query, before.index(query.operators[place]), place


def _changed(plan: Plan, recorded: RecordedPlan, names: list[str]) -> list[str]:
    found = []
    for name in dict.fromkeys(names):
        vertex = plan.pipeline.vertices.get(name)
        if vertex is None or vertex.reduce is None:
            found.append(f"{name} was removed, but has state")
            continue
        differences = recorded.reduces[name].differences(RecordedReduce.of(vertex.reduce))
        if differences:
            found.append(f"{plan.name_of(name)} has other {' and '.join(differences)} than before")
    return found


def record_of(plan: Plan) -> RecordedPlan:
    """Return what is to be written down of a plan."""
    pipeline = plan.pipeline
    return RecordedPlan(
        vertices={
            name: RecordedVertex(
                name=plan.name_of(name), kind=vertex.kind, essence=essence_of(vertex)
            )
            for name, vertex in pipeline.vertices.items()
        },
        reduces={
            name: RecordedReduce.of(vertex.reduce)
            for name, vertex in pipeline.vertices.items()
            if vertex.reduce is not None
        },
        edges=[(edge.source, edge.target) for edge in pipeline.edges],
        queries=[_recorded_query(pipeline, query) for query in plan.queries],
    )


def _recorded_query(pipeline: PipelineSettings, query: Query) -> RecordedQuery:
    return RecordedQuery(
        name=query.name,
        vertices=list(query.vertices),
        operators=list(query.operators),
        sources=[name for name in query.vertices if pipeline.vertices[name].source is not None],
        reads=[str(output) for output in query.reads],
        writes=[str(output) for output in query.writes],
        has_lane=query.has_lane,
        shuffle_partitions=query.shuffle_partitions if query.stateful else None,
    )
