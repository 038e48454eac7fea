"""Going on: the plan of a file that was edited, so that it fits what a pipeline has on disk.

First each vertex of the file gets its identity: that of the recorded vertex it is, whether or not
it has another name now. From there on it is planned under that. Then the order of edges and of
vertices is the recorded one, with what is new behind it, so that whatever follows from the order of
lines is as it was. Last, every state must find its reduce again. What would move
state to another reduce, or leave it without one, is refused: nothing is lost silently.

The version before plan files left `shape.json` beside each checkpoint, with the reduces of the
query in the order of the file, and named folders and subscribers after vertices. What can be told
from that is written down as a plan (`earlier_record`). The numbers of operators followed from the
order of lines: they are worked out as that version did, on the file as it is now, if the order of
the reduces is still the recorded one or can be made so; and compared with what Spark has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.dataflow.compiler.places import subscriber
from holdfast.dataflow.compiler.plan import Output, Plan, Query, make_plan, unused
from holdfast.dataflow.compiler.recorded import (
    RecordedPlan,
    RecordedQuery,
    RecordedReduce,
    RecordedVertex,
    essence_of,
    read_record,
)
from holdfast.dataflow.source.checkpoint import Checkpoint
from holdfast.dataflow.spec.pipeline import LATE, PipelineEdge, PipelineSettings
from holdfast.dataflow.spec.vertices import ReduceSettings, VertexSettings
from holdfast.errors import BadConfig

SHAPE = "shape.json"


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
        """Match vertices with new names in the place of a recorded one; whether any did."""
        return self._match(self._stands)

    def by_essence(self) -> bool:
        """Match what was moved; no reduce: it would have the state of other rows."""
        return self._match(lambda name, _: self._pipeline.vertices[name].reduce is None)

    def _match(self, admits: Callable[[str, str], bool]) -> bool:
        """Match what fits exactly one recorded vertex, which no other fits; whether there was any.

        A wrong match would give a vertex the state or the position of another one. So whatever
        leaves a doubt stays unmatched, and what is left over is refused later if it has state.
        """
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
        # Only where there is no doubt: one candidate, and of no other vertex.
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
        """Whether a vertex does what a recorded one did, whatever its name is."""
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
    """Yield what would leave a state, or a position in a source, unused or to another vertex."""
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
    """Return which reduces that have state are gone, or are not what their state is of."""
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
            name: _recorded_reduce(plan, name, vertex.reduce)
            for name, vertex in pipeline.vertices.items()
            if vertex.reduce is not None
        },
        edges=[(edge.source, edge.target) for edge in pipeline.edges],
        queries=[_recorded_query(pipeline, query) for query in plan.queries],
    )


def _recorded_reduce(plan: Plan, name: str, reduce: ReduceSettings) -> RecordedReduce:
    """Return what is written down of a reduce: of what it makes its state."""
    of_partials = name in plan.query_of(name).partials
    return RecordedReduce.of(reduce).model_copy(update={"partials": of_partials})


def _recorded_query(pipeline: PipelineSettings, query: Query) -> RecordedQuery:
    """Return what is written down of a query: what its state and its positions depend on."""
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


def planned(name: str, pipeline: PipelineSettings, state_dir: Path) -> Plan:
    """Return the plan of a pipeline as it would run now; raise if its state cannot go on."""
    return continued(name, pipeline, recorded_plan(name, pipeline, state_dir), state_dir)


def recorded_plan(name: str, pipeline: PipelineSettings, state_dir: Path) -> RecordedPlan | None:
    """Return what is recorded of the queries that have begun; None if none has."""
    found = read_record(state_dir) or earlier_record(name, pipeline, state_dir)
    if found is None:
        return None
    idle = set()
    for query in found.queries:
        checkpoint = Checkpoint(str(state_dir / query.name / "checkpoint"))
        newest = checkpoint.last_planned()
        if newest is None:
            idle.add(query.name)
        else:
            _check_owner(name, checkpoint.offsets(newest), state_dir)
    return found.without(idle)


def _check_owner(name: str, subscribers: Iterable[str], state_dir: Path) -> None:
    """Refuse the state of a pipeline with another name.

    Its sources would count as added ones and begin anew, beside windows that hold their rows.
    """
    for one in subscribers:
        if not one.startswith(subscriber(name, "")):
            raise BadConfig(
                f"the checkpoint is of subscriber {one!r}, which is not a source of {name}",
                hint=f"give the pipeline its former name, or move {state_dir} away: a pipeline "
                "without state resumes where its subscribers are",
                path=str(state_dir),
            )


def earlier_record(name: str, pipeline: PipelineSettings, state_dir: Path) -> RecordedPlan | None:
    """Return what is known of a state directory without a plan file; None if it has no state."""
    folders = sorted(path.parent.parent for path in state_dir.glob("*/checkpoint/offsets"))
    without = [folder for folder in folders if not (folder / SHAPE).exists()]
    if without:
        raise BadConfig(
            f"the plan file of {name} is missing, but {without[0].name} has state",
            hint="restore `plan.json` in the state directory: it alone says whose state it is",
            path=str(state_dir),
        )
    shapes = {folder.name: json.loads((folder / SHAPE).read_text("utf-8")) for folder in folders}
    queries = [_query(name, one, shape, state_dir) for one, shape in shapes.items()]
    _check_once(name, queries, state_dir)
    if not queries:
        return None
    sources = [vertex for query in queries for vertex in query.sources]
    reduces = {
        vertex: RecordedReduce(**reduce)
        for shape in shapes.values()
        for vertex, reduce in shape["reduces"].items()
    }
    vertices = {vertex: RecordedVertex(name=vertex, kind="source") for vertex in sources}
    vertices |= {vertex: RecordedVertex(name=vertex, kind="reduce") for vertex in reduces}
    found = RecordedPlan(vertices=vertices, reduces=reduces, edges=[], queries=queries)
    orders = {query.name: _operators(query, found, pipeline, state_dir) for query in queries}
    known = [one.model_copy(update={"operators": orders[one.name]}) for one in queries]
    return found.model_copy(update={"queries": known})


def _query(name: str, query: str, shape: Mapping[str, Any], state_dir: Path) -> RecordedQuery:
    """Return what the version before plan files left of a query, in its shape and its offsets."""
    checkpoint = Checkpoint(str(state_dir / query / "checkpoint"))
    batch = checkpoint.last_planned()
    subscribers = [] if batch is None else list(checkpoint.offsets(batch))
    names = [one.removeprefix(f"{name}.") for one in subscribers]
    sources = [one for one in names if "." not in one]
    return RecordedQuery(
        name=query,
        vertices=[*sources, *shape["reduces"]],
        operators=list(shape["reduces"]),
        sources=sources,
        reads=[one.partition(".")[2] for one in names if "." in one and one != f"{query}.lane"],
        writes=[],
        has_lane=(state_dir / query / "lane").exists(),
        shuffle_partitions=shape["shuffle_partitions"],
    )


def _check_once(name: str, queries: Sequence[RecordedQuery], state_dir: Path) -> None:
    """Refuse state that an edited file left behind already, with the version before."""
    for query in queries:
        for other in queries:
            if query.name < other.name and (both := set(query.vertices) & set(other.vertices)):
                raise refusal(
                    name,
                    [f"{', '.join(sorted(both))} has state in {query.name} and in {other.name}"],
                    state_dir,
                )


def _operators(
    query: RecordedQuery, found: RecordedPlan, pipeline: PipelineSettings, state_dir: Path
) -> list[str]:
    """Return the reduces of a query as Spark numbers them."""
    order = query.operators
    given = sum(one.name.isdigit() for one in (state_dir / query.name).glob("checkpoint/state/*"))
    # Ranks must not decide anything: they are what is asked for.
    blank = [one.model_copy(update={"operators": []}) for one in found.queries]
    free = found.model_copy(update={"queries": blank})
    for tried in (pipeline, _reordered(pipeline, order)):
        plan = make_plan("", tried, free)
        now = next((one for one in plan.queries if one.name == query.name), None)
        if now is None or set(now.operators) != set(order):
            return order  # changed or gone: the comparison with the file will say so
        trunk = [name for name in now.trunk if name in order]
        if trunk == order and (not given or len(now.operators) == given):
            return list(now.operators)
    raise refusal(
        query.name,
        ["its reduces are in another order than when it last ran, and were not recorded"],
        state_dir,
    )


def _reordered(pipeline: PipelineSettings, order: Sequence[str]) -> PipelineSettings:
    """Return a pipeline with some vertices in another order, in the places that they have."""
    following = iter([name for name in order if name in pipeline.vertices])
    names = [next(following) if name in order else name for name in pipeline.vertices]
    return pipeline.model_copy(
        update={"vertices": {name: pipeline.vertices[name] for name in names}}
    )
