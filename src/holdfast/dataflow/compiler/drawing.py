"""A plan as a drawing: one line per edge, or an SVG with a frame around each query."""

from __future__ import annotations

from html import escape
from typing import NamedTuple

from holdfast.dataflow.compiler.explain import describe
from holdfast.dataflow.compiler.plan import Plan
from holdfast.dataflow.spec.edges import Edge

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
        told = [_tags(edge)] if edge.tags is not None else []
        told += ["through a quiver"] if index in cut else []
        lines.append(f"{edge}" + (f"  ({', '.join(told)})" if told else ""))
    return "\n".join(lines) + "\n"


def _tags(edge: Edge) -> str:
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
    """Return where each vertex stands: queries below each other, columns by distance."""
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


def _arrow(edge: Edge, boxes: dict[str, _Box], *, is_cut: bool) -> str:
    start, end = boxes[edge.vertex], boxes[edge.target]
    x1, y1 = start.x + BOX_WIDTH, start.y + BOX_HEIGHT // 2
    x2, y2 = end.x, end.y + BOX_HEIGHT // 2
    middle = (x1 + x2) // 2
    style = 'stroke-width="3" stroke="#b45309"' if is_cut else 'stroke="#374151"'
    told = [edge.port] if edge.port else []
    told += [_tags(edge)] if edge.tags is not None else []
    label = escape(", ".join([*told, *(["quiver"] if is_cut else [])]))
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
