"""The graph as a picture: boxes in columns from receivers to destinations, lines between them.

A box stands one column behind the last of those that lead to it; inside a column, boxes are ordered
by where their neighbours are, in a few sweeps, which leaves few crossings in graphs of the size
that people write. Everything is computed here: the browser gets finished SVG, and live figures
replace texts in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean

from holdfast.graph.model import Graph
from holdfast.graph.paths import IMPLICIT_QUIVER, plan, readers

BOX_WIDTH = 158
BOX_HEIGHT = 54
# Between the left edges of two columns, and the tops of two rows.
COLUMN_WIDTH = 296
ROW_HEIGHT = 84
MARGIN = 8
SWEEPS = 4


@dataclass(frozen=True)
class GraphBox:
    """One component; `shows` is the destination or reader whose figures it has."""

    name: str
    kind: str
    type: str
    shows: str
    # The quiver whose reader it is, if it is one.
    quiver: str = ""


@dataclass(frozen=True)
class PlacedBox:
    """A box and its upper left corner."""

    box: GraphBox
    x: int
    y: int


@dataclass(frozen=True)
class PlacedLine:
    """A line, as SVG draws it, and where its label is."""

    start: GraphBox
    end: GraphBox
    path: str
    label_x: int
    label_y: int
    # Whose figures stand on it: "accepted" of a receiver, "read" by what is behind it, or "".
    label: str


@dataclass(frozen=True)
class Drawing:
    """The whole picture."""

    width: int
    height: int
    boxes: tuple[PlacedBox, ...]
    lines: tuple[PlacedLine, ...]


def draw(graph: Graph) -> Drawing:
    """Return the picture of a graph."""
    boxes, lines = _topology(graph)
    columns = _columns(boxes, lines)
    # A line over several columns passes through a place of its own in each: no box lies on it.
    ways = {line: _way(line, columns) for line in lines}
    rows = _rows(columns, [hop for way in ways.values() for hop in pairwise(way)])
    tallest = max(len(names) for names in rows)
    corners: dict[str, tuple[int, int]] = {}
    for column, names in enumerate(rows):
        # Each column is centred beside the tallest one.
        top = MARGIN + (tallest - len(names)) * ROW_HEIGHT // 2
        for row, name in enumerate(names):
            corners[name] = (MARGIN + column * COLUMN_WIDTH, top + row * ROW_HEIGHT)
    return Drawing(
        width=2 * MARGIN + (len(rows) - 1) * COLUMN_WIDTH + BOX_WIDTH,
        height=2 * MARGIN + (tallest - 1) * ROW_HEIGHT + BOX_HEIGHT,
        boxes=tuple(PlacedBox(box, *corners[name]) for name, box in boxes.items()),
        lines=tuple(_placed_lines(ways, boxes, corners)),
    )


def _topology(graph: Graph) -> tuple[dict[str, GraphBox], list[tuple[str, str]]]:
    """Return the boxes by name, and who leads to whom."""
    shows: dict[str, tuple[str, str]] = {}
    for quiver in plan(graph):
        for destination in quiver.destinations:
            for exporter in destination.exporters:
                shows[exporter.name] = (destination.name, quiver.name)
        if quiver.to_nodes is not None:
            shows[quiver.to_nodes.name] = (quiver.to_nodes.name, quiver.name)
    boxes = {
        node.name: GraphBox(
            node.name,
            "quiver" if node.is_quiver else "nodes" if node.sends_parts else node.kind,
            node.component.type,
            *shows.get(node.name, (node.name, "")),
        )
        for node in graph.nodes.values()
    }
    lines = [(node.name, name) for node in graph.nodes.values() for name in node.destinations]
    if not graph.quivers and not graph.keeps_nothing:
        lines = _through_the_buffer(graph, boxes, lines)
    for reader in readers(graph):
        name = f"pipeline {reader.pipeline}"
        boxes.setdefault(
            name, GraphBox(name, "pipeline", "pipeline", reader.subscriber, reader.quiver)
        )
        lines.append((reader.quiver, name))
    return boxes, list(dict.fromkeys(lines))


def _through_the_buffer(
    graph: Graph, boxes: dict[str, GraphBox], lines: Iterable[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Put the quiver that every file has between receivers and what they lead to."""
    name = IMPLICIT_QUIVER
    boxes[name] = GraphBox(name, "quiver", "quiver", name)
    receivers = {node.name for node in graph.of_kind("receiver")}
    return [
        pair
        for start, end in lines
        for pair in ([(start, name), (name, end)] if start in receivers else [(start, end)])
    ]


def _columns(boxes: Iterable[str], lines: list[tuple[str, str]]) -> dict[str, int]:
    """Return the column of each box: one behind the last of those that lead to it."""
    before: dict[str, list[str]] = {name: [] for name in boxes}
    for start, end in lines:
        before[end].append(start)
    found: dict[str, int] = {}

    def column(name: str) -> int:
        if name not in found:
            found[name] = 0  # a circle was refused before; a bug there is no endless loop here
            found[name] = max((column(one) + 1 for one in before[name]), default=0)
        return found[name]

    for name in before:
        column(name)
    # What ends a path stands in the last column, whatever its length.
    last = max(found.values())
    starts = {start for start, _ in lines}
    return {name: last if name not in starts and at else at for name, at in found.items()}


def _rows(columns: Mapping[str, int], lines: list[tuple[str, str]]) -> list[list[str]]:
    """Return the boxes of each column, from top to bottom."""
    rows: list[list[str]] = [[] for _ in range(max(columns.values()) + 1)]
    for name, column in columns.items():
        rows[column].append(name)
    near: dict[str, list[str]] = {name: [] for name in columns}
    for start, end in lines:
        near[start].append(end)
        near[end].append(start)
    height = {name: row for names in rows for row, name in enumerate(names)}
    for _ in range(SWEEPS):
        for names in rows:
            # Stable: what nothing distinguishes stays in the order of the file.
            names.sort(key=lambda name: mean([height[one] for one in near[name]] or [0]))
            height |= {name: row for row, name in enumerate(names)}
    return rows


def _way(line: tuple[str, str], columns: dict[str, int]) -> list[str]:
    """Return what a line passes, from box to box; places between them are added to the columns."""
    start, end = line
    between = range(columns[start] + 1, columns[end])
    places = {f"{start} > {end} in {column}": column for column in between}
    columns |= places
    return [start, *places, end]


def _placed_lines(
    ways: Mapping[tuple[str, str], list[str]],
    boxes: Mapping[str, GraphBox],
    corners: Mapping[str, tuple[int, int]],
) -> Iterable[PlacedLine]:
    labelled: set[str] = set()
    for (start_name, end_name), way in ways.items():
        start, end = boxes[start_name], boxes[end_name]
        hops = [_hop(corners[one], corners[other]) for one, other in pairwise(way)]
        label = ""
        if start.kind == "receiver":
            label = "accepted"
        elif end.kind in ("exporter", "nodes", "pipeline") and end_name not in labelled:
            # Whoever is reached in several ways has its figures once.
            labelled.add(end_name)
            label = "read"
        # On the last hop, in the middle: that is the one which ends where the figures belong.
        x1, y1, x2, y2 = hops[-1]
        path = "L".join(_curve(*hop) for hop in hops)
        yield PlacedLine(start, end, f"M{path}", (x1 + x2) // 2, (y1 + y2) // 2, label)


def _hop(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return where a line leaves one place and reaches the next."""
    half = BOX_HEIGHT // 2
    return one[0] + BOX_WIDTH, one[1] + half, other[0], other[1] + half


def _curve(x1: int, y1: int, x2: int, y2: int) -> str:
    bend = (x2 - x1) // 2
    return f"{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"
