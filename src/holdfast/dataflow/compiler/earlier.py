"""State of the version before plan files: what can be told from it is written down as a plan.

That version left `shape.json` beside each checkpoint, with the reduces of the query in the order of
the file, and named folders and subscribers after vertices. The numbers of operators followed from
the order of lines: they are worked out as it did, on the file as it is now, if the order of the
reduces is still the recorded one or can be made so; and compared with what Spark has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.dataflow.compiler.continuation import continued, refusal
from holdfast.dataflow.compiler.plan import Plan, make_plan
from holdfast.dataflow.compiler.recorded import (
    RecordedPlan,
    RecordedQuery,
    RecordedReduce,
    RecordedVertex,
    read_record,
)
from holdfast.dataflow.source.checkpoint import Checkpoint
from holdfast.dataflow.spec.pipeline import PipelineSettings
from holdfast.errors import BadConfig

SHAPE = "shape.json"


def planned(name: str, pipeline: PipelineSettings, state_dir: Path) -> Plan:
    """Return the plan of a pipeline as it would run now; raise if its state cannot go on."""
    return continued(name, pipeline, recorded_plan(name, pipeline, state_dir), state_dir)


def recorded_plan(name: str, pipeline: PipelineSettings, state_dir: Path) -> RecordedPlan | None:
    """Return what is recorded of the queries that have begun; None if none has."""
    found = read_record(state_dir) or earlier_record(name, pipeline, state_dir)
    if found is None:
        return None
    idle = {
        query.name
        for query in found.queries
        if Checkpoint(str(state_dir / query.name / "checkpoint")).last_planned() is None
    }
    return found.without(idle)


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
            return order  # changed or gone: whoever compares it with the file will say so
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
