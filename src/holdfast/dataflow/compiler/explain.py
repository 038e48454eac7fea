"""A plan in words: which queries there are, what is cut, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.dataflow.compiler.plan import Plan, Query
from holdfast.dataflow.spec.vertices import ReduceSettings, VertexSettings


def explain(plan: Plan) -> str:
    """Return the plan as text, for people."""
    count = f"{len(plan.queries)} queries" if len(plan.queries) > 1 else "one query"
    lines = [f"{plan.name}: {len(plan.pipeline.vertices)} vertices, {count}"]
    for query in plan.queries:
        lines += ["", f"query {query.name}", *(f"  {line}" for line in _query(plan, query))]
    if plan.cuts:
        lines += ["", "quivers between queries"]
        for cut in plan.cuts:
            lines.append(f"  {plan.pipeline.edges[cut.edge]}: {cut.reason}")
    else:
        lines += ["", "no quiver is needed between vertices"]
    if plan.identities:
        lines += ["", "vertices that are known by the names they had when the pipeline first ran"]
        lines += [f"  {name}: {identity}" for name, identity in plan.identities.items()]
    return "\n".join(lines) + "\n"


def as_fields(plan: Plan) -> dict[str, Any]:
    """Return the plan as data, for programs."""
    return {
        "pipeline": plan.name,
        "queries": [
            {
                "name": query.name,
                "vertices": list(query.vertices),
                "trunk": list(query.trunk),
                "taps": [str(tap) for tap in query.taps],
                "tail": list(query.tail),
                "python_runs": [list(run) for run in query.runs],
                "reads": [str(output) for output in query.reads],
                "writes": [str(output) for output in query.writes],
                "terminal": query.terminal,
                "why_batches": query.why_batches,
                "stateful": query.stateful,
                "horizon_s": query.horizon_s,
                "allowed_lateness_s": query.allowed_lateness_s,
                "operators": list(query.operators),
            }
            for query in plan.queries
        ],
        "identities": dict(plan.identities),
        "cuts": [
            {"edge": str(plan.pipeline.edges[cut.edge]), "reason": cut.reason} for cut in plan.cuts
        ],
    }


def _query(plan: Plan, query: Query) -> Iterator[str]:
    for name in query.vertices:
        place = "stream" if name in query.trunk else "batch "
        yield f"{place}  {name}: {describe(plan.pipeline.vertices[name])}"
    for output in query.reads:
        yield f"reads what {output} puts out, from a quiver"
    for output in query.writes:
        yield f"keeps what {output} puts out in a quiver, for other queries"
    if query.has_lane:
        yield "rows that fail come again, from its retry lane"
    for run in query.runs:
        if len(run) > 1:
            yield f"{', '.join(run)} are called together, rows cross to Python once"
    if query.terminal == "writer":
        yield "Spark's own writer writes the results"
    else:
        yield f"every batch is handed over, because {query.why_batches}"
    if query.stateful:
        yield f"windows may be open for {query.horizon_s:g} s after an event"
    if query.stateful and len(query.taps) > 1:
        yield "its sources are read once for each way out of the stream"


def describe(vertex: VertexSettings) -> str:
    """Return what a vertex is, in a few words."""
    if vertex.source is not None:
        source = vertex.source
        if source.files is not None:
            return f"source of the files in {source.files}"
        if source.fileset is not None:
            return f"source of the commit {source.fileset.commit}"
        return f"source of {', '.join(source.quiver) or 'made-up rows'}"
    if vertex.reduce is not None:
        return _reduce(vertex.reduce)
    if vertex.sink is not None:
        kinds = ("quiver", "files", "fileset", "console", "python")
        return f"sink to {next(kind for kind in kinds if getattr(vertex.sink, kind))}"
    how = "in Python" if vertex.is_python else "in SQL"
    if vertex.map is not None and vertex.map.arrow is not None:
        how = "in Python, by batches"
    return f"{vertex.kind.replace('_', ' ')} {how}"


def _reduce(reduce: ReduceSettings) -> str:
    window = reduce.window
    key = f" by {', '.join(reduce.key)}" if reduce.key else ""
    if window is None:
        return f"process in Python{key}, with state and timers"
    if window.sliding is not None:
        how = f"sliding {window.sliding.size:g} s every {window.sliding.every:g} s"
    elif window.session is not None:
        how = f"sessions of {window.session:g} s"
    else:
        how = f"windows of {window.fixed:g} s"
    return f"reduce in {how}{key}" + (", rows are kept" if reduce.python is not None else "")
