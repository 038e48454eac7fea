"""A plan in words (which queries there are, what is cut, and why) and as a drawing.

Whoever asks why a pipeline became three queries gets the answer from the plan itself: every cut
carries its reason, and this only puts it into words. Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any, NamedTuple

from holdfast.dataflow.compiler.plan import Plan, Query
from holdfast.dataflow.spec.pipeline import PipelineEdge
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
                "push_down": {
                    name: {"runs": not isinstance(how, str)}
                    | ({"why_not": how} if isinstance(how, str) else {"source": how.source})
                    for name, how in query.push_downs.items()
                },
            }
            for query in plan.queries
        ],
        "identities": dict(plan.identities),
        "cuts": [
            {"edge": str(plan.pipeline.edges[cut.edge]), "reason": cut.reason} for cut in plan.cuts
        ],
    }


def _query(plan: Plan, query: Query) -> Iterator[str]:
    """Yield what a query does, and why it is run as it is, a line each."""
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
    yield from _partials(query)
    if query.terminal == "writer":
        yield "Spark's own writer writes the results"
    else:
        yield f"every batch is handed over, because {query.why_batches}"
    if query.stateful:
        yield f"windows may be open for {query.horizon_s:g} s after an event"
    if query.stateful and len(query.taps) > 1:
        yield "its sources are read once for each output of the stream"


def _partials(query: Query) -> Iterator[str]:
    """Yield where each native reduce adds up."""
    for name, how in query.push_downs.items():
        if not isinstance(how, str):
            yield f"{name} adds up where {how.source} is read, as far as types of columns allow"
        elif name in query.partials:
            yield f"{name} adds up in Spark, as before where rows are read: {how}"
        else:
            yield f"{name} adds up in Spark: {how}"


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
    if getattr(vertex.step, "arrow", None) is not None:
        how = "in Python, by batches"
    return f"{vertex.kind.replace('_', ' ')} {how}"


def _reduce(reduce: ReduceSettings) -> str:
    """Return a reduce in a few words."""
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
    kept = "" if reduce.aggregate else ", rows are kept"
    if reduce.keeps is not None:
        kept = {"arrow": ", rows are kept as Arrow", "state": ", folded"}[reduce.keeps]
    return f"reduce in {how}{key}{kept}"


BOX_WIDTH, BOX_HEIGHT = 170, 46
GAP_X, GAP_Y, MARGIN = 70, 26, 24
_TITLE_HEIGHT = 18
_COLOURS = {"source": "#dbeafe", "sink": "#dcfce7", "reduce": "#fef3c7"}
_PLAIN = "#f3f4f6"
_LETTERS_MAX = 26
_ARROWHEAD = (
    '<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" '
    'markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="#374151"/></marker></defs>'
)


def as_text(plan: Plan) -> str:
    """Return one line per edge; those that are cut say so."""
    cut = {one.edge for one in plan.cuts}
    lines = []
    for index, edge in enumerate(plan.pipeline.edges):
        notes = [_tags(edge)] if edge.tags is not None else []
        notes += ["through a quiver"] if index in cut else []
        lines.append(f"{edge}" + (f"  ({', '.join(notes)})" if notes else ""))
    return "\n".join(lines) + "\n"


def _tags(edge: PipelineEdge) -> str:
    assert edge.tags is not None
    words = {"or": edge.tags.any_of, "and": edge.tags.all_of, "not": edge.tags.none_of}
    return "; ".join(f"{word} {', '.join(tags)}" for word, tags in words.items() if tags)


class _Box(NamedTuple):
    x: int
    y: int


def as_svg(plan: Plan) -> str:
    """Return a picture: vertices from left to right, a frame around each query."""
    boxes = _placed(plan)
    width = max(box.x for box in boxes.values()) + BOX_WIDTH + MARGIN
    height = max(box.y for box in boxes.values()) + BOX_HEIGHT + MARGIN
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        _ARROWHEAD,
        f"<title>{escape(plan.name)}</title>",
        *(_frame(query.name, [boxes[name] for name in query.vertices]) for query in plan.queries),
    ]
    cut = {one.edge for one in plan.cuts}
    for index, edge in enumerate(plan.pipeline.edges):
        parts.append(_arrow(edge, boxes, is_cut=index in cut))
    parts += [_vertex(plan, name, box) for name, box in boxes.items()]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _placed(plan: Plan) -> dict[str, _Box]:
    """Return where each vertex stands: queries below each other, columns by distance.

    A column is the longest way from a source, over all queries, so that every arrow leads to the
    right, also those between queries.
    """
    columns: dict[str, int] = {}
    for name in plan.pipeline.ordered():
        before = [columns[edge.vertex] for edge in plan.pipeline.into(name)]
        columns[name] = max(before, default=-1) + 1
    boxes, top = {}, MARGIN + _TITLE_HEIGHT
    for query in plan.queries:
        rows: dict[int, int] = {}
        for name in query.vertices:
            row = rows.get(columns[name], 0)
            rows[columns[name]] = row + 1
            x = MARGIN + columns[name] * (BOX_WIDTH + GAP_X)
            boxes[name] = _Box(x, top + row * (BOX_HEIGHT + GAP_Y))
        top += max(rows.values()) * (BOX_HEIGHT + GAP_Y) + GAP_Y + _TITLE_HEIGHT
    return boxes


def _frame(name: str, boxes: list[_Box]) -> str:
    pad = 10
    x, y = min(box.x for box in boxes) - pad, min(box.y for box in boxes) - pad - _TITLE_HEIGHT // 2
    width = max(box.x for box in boxes) + BOX_WIDTH + pad - x
    height = max(box.y for box in boxes) + BOX_HEIGHT + pad - y
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="none" '
        f'stroke="#9ca3af" stroke-dasharray="4 3"/>'
        f'<text x="{x + 6}" y="{y - 4}" fill="#6b7280">query {escape(name)}</text>'
    )


def _arrow(edge: PipelineEdge, boxes: dict[str, _Box], *, is_cut: bool) -> str:
    start, end = boxes[edge.vertex], boxes[edge.target]
    x1, y1 = start.x + BOX_WIDTH, start.y + BOX_HEIGHT // 2
    x2, y2 = end.x, end.y + BOX_HEIGHT // 2
    middle = (x1 + x2) // 2
    style = 'stroke-width="3" stroke="#b45309"' if is_cut else 'stroke="#374151"'
    notes = [edge.port] if edge.port else []
    notes += [_tags(edge)] if edge.tags is not None else []
    label = escape(", ".join([*notes, *(["quiver"] if is_cut else [])]))
    return (
        f'<path d="M{x1} {y1}C{middle} {y1} {middle} {y2} {x2} {y2}" fill="none" {style} '
        f'marker-end="url(#end)"/><text x="{middle}" y="{(y1 + y2) // 2 - 4}" '
        f'text-anchor="middle" fill="#374151">{label}</text>'
    )


def _vertex(plan: Plan, name: str, box: _Box) -> str:
    vertex = plan.pipeline.vertices[name]
    middle = box.x + BOX_WIDTH // 2
    words = describe(vertex)
    words = words if len(words) <= _LETTERS_MAX else words[: _LETTERS_MAX - 1] + "…"
    return (
        f'<rect x="{box.x}" y="{box.y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" '
        f'fill="{_COLOURS.get(vertex.kind, _PLAIN)}" stroke="#374151"/>'
        f'<text x="{middle}" y="{box.y + 19}" text-anchor="middle" font-weight="bold">'
        f"{escape(name)}</text>"
        f'<text x="{middle}" y="{box.y + 36}" text-anchor="middle" fill="#4b5563">'
        f"{escape(words)}</text>"
    )
