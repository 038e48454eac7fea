"""What can be wrong with a pipeline as a whole; all in one pass, each with its location.

SQL is parsed by Spark where a Spark is there (`parse`); without one only what no dialect allows is
found here, and the rest when the pipeline is started.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

from holdfast.dataflow.spec.functions import load_function
from holdfast.dataflow.spec.pipeline import FAILED, LATE, PORTS, PipelineEdge, PipelineSettings
from holdfast.dataflow.spec.vertices import (
    SETTABLE,
    SYSTEM_COLUMNS,
    WINDOW_COLUMNS,
    ReduceSettings,
    TargetSettings,
    VertexSettings,
)
from holdfast.errors import BadConfig

PipelinePath = tuple[str | int, ...]


class PipelineFinding(NamedTuple):
    """One thing; the path begins at the pipeline."""

    path: PipelinePath
    message: str
    hint: str = ""
    severity: Literal["error", "warning"] = "error"
    # Whether the key is meant, and not its value.
    at_key: bool = False


# What is wrong with an SQL expression; None if nothing is.
Parse = Callable[[str], str | None]

FOLD_METHODS = ("start", "add", "end")
_MS_S = 0.001
_MANY_ROWS = re.compile(
    r"\b(explode|posexplode|inline|stack|json_tuple)(_outer)?\s*\(", re.IGNORECASE
)


def check(
    pipeline: PipelineSettings, *, parse: Parse | None = None, imports: bool = False
) -> list[PipelineFinding]:
    """Return everything that is wrong or odd; `imports` looks whether functions exist."""
    checker = _PipelineChecker(pipeline, parse or plausible)
    found = [*checker.edges(), *checker.vertices(), *checker.targets()]
    # With an edge that leads nowhere, circles and dead ends would be reported that are only its
    # echo.
    if not any(finding.path[:1] == ("edges",) and finding.severity == "error" for finding in found):
        found += checker.shape()
    return [*found, *(checker.functions() if imports else ())]


def plausible(text: str) -> str | None:
    """Say what is wrong with an expression that cannot be SQL: quotes and brackets.

    Less than a parser, on purpose: without Spark nobody here knows its dialect, and a wrong error
    would keep a good pipeline from being run.
    """
    if not text.strip():
        return "it is empty"
    depth, quote = 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"`":
            quote = letter
        elif letter in "()":
            depth += 1 if letter == "(" else -1
            if depth < 0:
                return "a bracket is closed that was not opened"
    if quote:
        return f"a {quote} is not closed"
    return "a bracket is not closed" if depth else None


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint: what was probably meant, or all there is."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names)}"


def _at(name: str, *path: str | int) -> PipelinePath:
    return ("vertices", name, *path)


class _PipelineChecker:
    """Finds what a model cannot check field by field: what settings mean beside each other.

    Each method yields all its findings, so that one pass over a file reports everything; what
    depends on a sound graph (`shape`) is left to the last.
    """

    def __init__(self, pipeline: PipelineSettings, parse: Parse) -> None:
        self._pipeline = pipeline
        self._parse = parse

    # ---------------------------------------------------------------------- edges

    def edges(self) -> Iterator[PipelineFinding]:
        """Both ends of every edge are there, and fit."""
        seen: set[tuple[str, str]] = set()
        for index, edge in enumerate(self._pipeline.edges):
            at: PipelinePath = ("edges", index)
            known = self._pipeline.vertices
            for name in (edge.vertex, edge.target):
                if name not in known:
                    yield PipelineFinding(at, f"there is no vertex {name!r}", nearest(name, known))
            if edge.vertex in known and edge.target in known:
                yield from self._ends(edge, at)
            if (edge.source, edge.target) in seen:
                hint = "its rows would come twice; put all tags on one edge"
                yield PipelineFinding(at, f"the edge {edge} is here twice", hint)
            seen.add((edge.source, edge.target))

    def _ends(self, edge: PipelineEdge, at: PipelinePath) -> Iterator[PipelineFinding]:
        """Find ends that do not fit: outputs that a vertex does not have, inputs of sources."""
        source, target = (self._pipeline.vertices[name] for name in (edge.vertex, edge.target))
        if source.kind == "sink":
            hint = "use `on_success` and `fallback` of the sink"
            yield PipelineFinding(at, f"{edge.vertex!r} is a sink: it has no output", hint)
        if target.kind == "source":
            yield PipelineFinding(at, f"{edge.target!r} is a source: it has no input")
        if edge.port not in PORTS:
            yield PipelineFinding(
                at, f"there is no output {edge.port!r}", nearest(edge.port, PORTS[1:])
            )
        elif edge.port == LATE and (source.reduce is None or source.reduce.late != "side_output"):
            hint = "write `late: side_output` in the reduce"
            yield PipelineFinding(at, f"{edge.vertex!r} has no late rows to send", hint)
        elif edge.port == FAILED and not source.keeps_failures:
            hint = "only vertices with a Python function and `on_failure: dead_letters` do"
            yield PipelineFinding(at, f"{edge.vertex!r} has no failed rows to send", hint)

    # ------------------------------------------------------------------- vertices

    def vertices(self) -> Iterator[PipelineFinding]:
        """Each vertex by itself."""
        for name, vertex in self._pipeline.vertices.items():
            if vertex.retry_lane is not None and vertex.step and vertex.step.on_failure == "fail":
                hint = "leave it out, or let the row be a dead letter in the end"
                path = _at(name, vertex.kind, "retry_lane")
                yield PipelineFinding(path, "a row that ends the query does not come again", hint)
            if vertex.reduce is not None:
                yield from self._reduce(name, vertex.reduce)
            if vertex.map is not None:
                for key in ("select", "add"):
                    for column, text in getattr(vertex.map, key).items():
                        yield from self._column(_at(name, "map", key, column), column, text)
            if vertex.filter is not None and vertex.filter.where:
                yield from self._sql(_at(name, "filter", "where"), vertex.filter.where)
            if vertex.flat_map is not None and vertex.flat_map.explode:
                yield from self._sql(_at(name, "flat_map", "explode"), vertex.flat_map.explode)
                yield from self._name(_at(name, "flat_map", "into"), vertex.flat_map.into)

    def _reduce(self, name: str, reduce: ReduceSettings) -> Iterator[PipelineFinding]:
        """Find what Spark would refuse in a reduce, or would run without ever closing a window."""
        at = _at(name, "reduce")
        if reduce.window is None and reduce.process is None:
            hint = "add `window: {fixed: 1m}`, or sliding, or session: without it it never ends"
            yield PipelineFinding(at, f"the reduce {name!r} has no window", hint, at_key=True)
        elif reduce.window is not None:
            yield from self._durations((*at, "window"), reduce)
        if len(set(reduce.key)) < len(reduce.key):
            yield PipelineFinding((*at, "key"), "a column is in the key twice")
        for index, column in enumerate(reduce.key):
            if column in (*WINDOW_COLUMNS, *SYSTEM_COLUMNS):
                yield PipelineFinding((*at, "key", index), f"{column!r} cannot be a key")
        for column, text in reduce.aggregate.items():
            path = (*at, "aggregate", column)
            yield from self._name(path, column, (*WINDOW_COLUMNS, *SETTABLE))
            if column in reduce.key:
                yield PipelineFinding(path, f"{column!r} is a column of the key, too", at_key=True)
            yield from self._sql(path, text)
        if reduce.late == "side_output" and not self._pipeline.out_of(name, LATE):
            hint = f"add an edge `{name}.late -> …`"
            yield PipelineFinding((*at, "late"), "late rows are sent nowhere", hint)

    def _durations(self, at: PipelinePath, reduce: ReduceSettings) -> Iterator[PipelineFinding]:
        """Find windows with parts of a millisecond: Spark's windows and watermark have none."""
        window = reduce.window
        assert window is not None
        sliding = window.sliding
        given = {"fixed": window.fixed, "session": window.session}
        if sliding is not None:
            given |= {"sliding.size": sliding.size, "sliding.every": sliding.every}
        for name, length_s in given.items():
            if length_s is not None and abs(round(length_s, 3) - length_s) > _MS_S / 1000:
                path = (*at, *name.split("."))
                yield PipelineFinding(path, "windows have whole milliseconds", "round it")

    def _column(self, at: PipelinePath, column: str, text: str) -> Iterator[PipelineFinding]:
        """Find a column that is taken, or whose expression makes several rows.

        Spark allows `explode` in a select. Here it would lose control rows, and with them the
        claim.
        """
        yield from self._name(at, column)
        if _MANY_ROWS.search(text):
            hint = "use a flat_map: {explode: …, into: …}"
            yield PipelineFinding(at, "this makes many rows of one", hint)
        yield from self._sql(at, text)

    def _name(
        self, at: PipelinePath, column: str, reserved: tuple[str, ...] = ()
    ) -> Iterator[PipelineFinding]:
        """Find names that belong to Holdfast: a column of the user would overwrite its own."""
        taken = {*(set(SYSTEM_COLUMNS) - set(SETTABLE)), *reserved}
        if column in taken:
            yield PipelineFinding(
                at, f"{column!r} is a column of Holdfast's own", "rename it", at_key=True
            )

    def _sql(self, at: PipelinePath, text: str) -> Iterator[PipelineFinding]:
        wrong = self._parse(text)
        if wrong is not None:
            yield PipelineFinding(at, f"this is not an SQL expression: {wrong}")

    def functions(self) -> Iterator[PipelineFinding]:
        """Every function that is named can be imported."""
        for name, vertex in self._pipeline.vertices.items():
            settings = vertex.step or vertex.reduce or vertex.sink
            for key in ("python", "arrow", "fold", "process"):
                function = getattr(settings, key, None)
                if function is None:
                    continue
                path = _at(name, vertex.kind, key)
                try:
                    found = load_function(function)
                except BadConfig as error:
                    yield PipelineFinding(path, error.message, error.hint)
                    continue
                lacking = [one for one in FOLD_METHODS if not hasattr(found, one)]
                if key == "fold" and lacking:
                    hint = "a fold is a class with start, add and end"
                    yield PipelineFinding(path, f"it has no {', '.join(lacking)}", hint)

    # -------------------------------------------------------------------- targets

    def targets(self) -> Iterator[PipelineFinding]:
        """No two sinks write to one place: a batch counts once there, whosever it is."""
        seen: dict[str, str] = {}
        for name in self._pipeline.of_kind("sink"):
            sink = self._pipeline.vertices[name].sink
            assert sink is not None
            for key in ("", "fallback", "on_success"):
                target: TargetSettings | None = getattr(sink, key) if key else sink
                place = None if target is None else _place_of(target)
                if place is None:
                    continue
                # Exactly once rests on a record of which batches a place has. Two sinks with one
                # record would each take the other's batches for their own.
                if place in seen:
                    message = f"{seen[place]!r} writes to {place!r}, too"
                    path = _at(name, "sink", *([key] if key else []))
                    yield PipelineFinding(path, message, "let one sink have several edges")
                seen.setdefault(place, name)

    # ---------------------------------------------------------------------- shape

    def shape(self) -> Iterator[PipelineFinding]:
        """What only the whole shows: circles, dead ends, vertices that get nothing."""
        pipeline = self._pipeline
        circle = set(pipeline.vertices) - set(pipeline.ordered())
        for index, edge in enumerate(pipeline.edges):
            if edge.vertex in circle and edge.vertex in {
                edge.target,
                *pipeline.behind(edge.target),
            }:
                hint = "rows that fail are tried again by `retry`; leave this edge out"
                yield PipelineFinding(("edges", index), f"the edge {edge} closes a circle", hint)
                break
        yield from self._dead_ends()
        if not circle:
            yield from self._tags()
            yield from self._lateness()

    def _dead_ends(self) -> Iterator[PipelineFinding]:
        """Find vertices without rows, and rows without a way out: a typing mistake, most likely."""
        pipeline = self._pipeline
        fed = {name for source in pipeline.of_kind("source") for name in pipeline.behind(source)}
        for name, vertex in pipeline.vertices.items():
            if vertex.kind != "source" and not pipeline.into(name):
                message = f"nothing leads to {name!r}"
                yield PipelineFinding(_at(name), message, f"add an edge `… -> {name}`", at_key=True)
            elif vertex.kind != "source" and name not in fed:
                yield PipelineFinding(_at(name), f"no source reaches {name!r}", at_key=True)
            if vertex.kind != "sink" and not pipeline.out_of(name, ""):
                message = f"the rows of {name!r} go nowhere"
                yield PipelineFinding(_at(name), message, f"add an edge `{name} -> …`", at_key=True)

    def _tags(self) -> Iterator[PipelineFinding]:
        """Warn about an edge whose tags no vertex before it can have set: no row would take it."""
        for index, edge in enumerate(self._pipeline.edges):
            if edge.tags is not None and not any(
                _sets_tags(self._pipeline.vertices[name]) and edge.vertex in {name, *behind}
                for name, behind in (
                    (name, self._pipeline.behind(name)) for name in self._pipeline.vertices
                )
            ):
                message = "no vertex before this edge sets `_tags`"
                hint = "add a map with `add: {_tags: \"array('…')\"}`"
                yield PipelineFinding(("edges", index), message, hint, "warning")

    def _lateness(self) -> Iterator[PipelineFinding]:
        """Reduces of one query close together, as the most patient one does."""
        reduces = {
            name: vertex.reduce
            for name, vertex in self._pipeline.vertices.items()
            if vertex.reduce is not None
        }
        longest = max((one.allowed_lateness for one in reduces.values()), default=0.0)
        for name, one in reduces.items():
            if one.allowed_lateness < longest:
                message = f"{name!r} closes its windows {longest:g} s after the watermark"
                hint = "reduces of one query have one allowed_lateness, the largest"
                yield PipelineFinding(_at(name, "reduce"), message, hint, "warning", at_key=True)


def _place_of(target: TargetSettings) -> str | None:
    """Return where a target writes, in words that two targets of one place share."""
    if target.fileset is not None:
        return f"{target.fileset.store} {target.fileset.commit}"
    return target.quiver or target.files


def _sets_tags(vertex: VertexSettings) -> bool:
    if vertex.map is not None and "_tags" in {**vertex.map.select, **vertex.map.add}:
        return True
    # What a function returns is not known; a source may have such a column.
    return vertex.is_python or vertex.kind == "source"
