"""Partial aggregates: windows that are added up where rows are read, before Spark has them.

What a native window costs is mostly the way of a row from Python into Spark's Java, through its
projection and its shuffle; adding a number is next to nothing. A task of the source has the rows as
Arrow, which groups tens of millions a second. So for the aggregates that can be added up (sum,
count, min, max, mean), the task groups its rows, and one row for each pane and key goes on
(source/partials.py). A *pane* is what the length of windows and the distance of their beginnings
divide time into; of fixed windows it is the window. Two rows of a pane are in the same windows.

**The same results.** Nothing that decides moves out of Spark. The partial aggregate has the first
moment of its pane as event time; Spark finds its windows, judges by the claim in force whether it
is late, and drops or keeps it, all by the same plan as for rows. Because the last window of all
rows of a pane is the same, the verdict on the partial aggregate is that on each of its rows, and
the late ones are counted by the number of rows that each is of. Where Arrow and Spark would come to
different sums or extremes, or where their types differ, rows go on one by one. Sums of doubles
depend on the order of addition, here as in Spark, where the order of tasks is left to chance.

**State.** A count of rows and a sum of counts are different states to Spark, and so is a mean. So
two questions are kept apart:

- In which form does a reduce aggregate? By rows, or by partial aggregates (`partials`). That is
  written in the plan file when the reduce first runs, and stays as long as it has state. A pipeline
  that began before there were partial aggregates goes on by rows.
- Who makes the partial aggregates? The source's tasks, if it can be (`PushDown`). Else Spark makes
  one of each row, which comes to the same state. So a file may be edited, and `push_down` switched,
  between any two runs: a reduce whose rows now pass a function has lost nothing but speed.

**When it can be.** One source; from there to the reduce only SQL filters and columns made by SQL,
each with that one way in and out, so that nobody else wants the rows; no conditions by tags, no
decoding; no edge for late rows, who are wanted one by one; and expressions that Arrow understands
(source/arrow_sql.py). Types are known when the query starts: then a trial with no rows says whether
Arrow's types are Spark's, and what is refused there is left to Spark. Rows that do not fit their
columns are judged before any of this, as ever.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from holdfast.dataflow.source.arrow_sql import Unsupported
from holdfast.dataflow.source.partial_steps import Partial, PartialFunction, Step, needed
from holdfast.dataflow.spec.pipeline import LATE, PipelineEdge, PipelineSettings
from holdfast.dataflow.spec.vertices import (
    SETTABLE,
    FilterSettings,
    MapSettings,
    ReduceSettings,
    WindowSettings,
)

_CALL = re.compile(r"\s*(?P<function>\w+)\s*\((?P<argument>.*)\)\s*", re.DOTALL)
_WORDS = re.compile(r"'[^'\\]*'|`[^`]*`|\"[^\"\\]*\"|\w+|[(),]|\S")
_FUNCTIONS: dict[str, tuple[PartialFunction, ...]] = {
    "sum": ("sum",),
    "count": ("count",),
    "min": ("min",),
    "max": ("max",),
    "avg": ("sum_as_double", "count"),
    "mean": ("sum_as_double", "count"),
}


class Aggregate(NamedTuple):
    """A column of results that can be made of partial aggregates."""

    column: str
    # As it is written.
    text: str
    function: str
    # "" where rows are counted.
    argument: str
    # What it is made of; nothing where rows are counted.
    partials: tuple[Partial, ...]


class PushDown(NamedTuple):
    """How the source of a reduce makes its partial aggregates."""

    source: str
    steps: tuple[Step, ...]


def aggregates_of(reduce: ReduceSettings) -> tuple[Aggregate, ...] | None:
    """Return the aggregates of a reduce, if all of them can be made of partial ones."""
    found = list[Aggregate]()
    for column, text in reduce.aggregate.items():
        call = _CALL.fullmatch(text)
        functions = None if call is None else _FUNCTIONS.get(call["function"].lower())
        if call is None or functions is None or not _is_one(call["argument"]):
            return None
        function, argument = call["function"].lower(), call["argument"].strip()
        if function == "count" and argument in ("*", "1"):
            argument, functions = "", ()
        made = [
            Partial(f"_part{len(found)}_{place}", part, argument)
            for place, part in enumerate(functions)
        ]
        found.append(Aggregate(column, text, function, argument, tuple(made)))
    return tuple(found)


def _is_one(arguments: str) -> bool:
    """Whether what stands between the outer parentheses of a call is one plain argument."""
    depth, words = 0, _WORDS.findall(arguments)
    for word in words:
        depth += (word == "(") - (word == ")")
        if depth < 0 or (word == "," and not depth):
            return False
    return bool(words) and depth == 0 and words[0].lower() not in ("distinct", "all")


def pane_us(window: WindowSettings) -> int:
    """Return the length of a pane."""
    size_s = window.fixed or (window.sliding.size if window.sliding else 0.0)
    every_s = window.sliding.every if window.sliding else size_s
    # Spark is given whole milliseconds.
    return math.gcd(round(size_s * 1000), round(every_s * 1000)) * 1000


def find_push_downs(
    pipeline: PipelineSettings, cut: frozenset[int]
) -> Mapping[str, PushDown | str]:
    """Return for each native reduce how its source makes partial aggregates, or why it does not."""
    edges = [edge for number, edge in enumerate(pipeline.edges) if number not in cut]
    found = dict[str, PushDown | str]()
    for name, vertex in pipeline.vertices.items():
        if vertex.reduce is not None and vertex.reduce.aggregate:
            try:
                found[name] = _push_down(pipeline, edges, name, vertex.reduce)
            except Unsupported as error:
                found[name] = str(error)
    return found


def _push_down(
    pipeline: PipelineSettings, edges: list[PipelineEdge], name: str, reduce: ReduceSettings
) -> PushDown:
    if not pipeline.push_down:
        raise Unsupported("push_down is off")
    window, aggregates = reduce.window, aggregates_of(reduce)
    if window is None or window.session is not None:
        raise Unsupported("its windows depend on the rows")
    if aggregates is None:
        raise Unsupported("not all of its columns are a sum, count, min, max or mean")
    if pipeline.out_of(name, LATE):
        raise Unsupported("late rows are wanted one by one")
    if any(key.startswith("_") for key in reduce.key):
        raise Unsupported("a key has the name of a column of ours")
    source, steps = _way(pipeline, edges, name)
    used = [one.argument for one in aggregates if one.argument]
    try:
        needed(steps, [*used, *(f"`{key}`" for key in reduce.key)])
    except Unsupported as error:
        raise Unsupported(f"Arrow is not given all of SQL: {error}") from error
    return PushDown(source, steps)


def _way(
    pipeline: PipelineSettings, edges: list[PipelineEdge], name: str
) -> tuple[str, tuple[Step, ...]]:
    """Return the source of a reduce, and the steps between."""
    steps: list[Step] = []
    here = name
    while True:
        into = pipeline.into(here)
        if len(into) != 1 or into[0] not in edges or into[0].port or into[0].tags:
            raise Unsupported(f"{here} has several inputs, or one that is not all of a vertex")
        here = into[0].vertex
        vertex = pipeline.vertices[here]
        if len(pipeline.out_of(here)) != 1:
            raise Unsupported(f"rows of {here} are used elsewhere, too")
        if vertex.source is not None:
            if vertex.source.decode:
                raise Unsupported(f"{here} decodes its rows")
            return here, tuple(reversed(steps))
        if vertex.step is None or vertex.is_python:
            raise Unsupported(f"{here} is no filter and no projection in SQL")
        steps += _step(here, vertex.step)


def _step(name: str, step: object) -> Iterator[Step]:
    """Yield what a vertex does, as the source's tasks do it."""
    if isinstance(step, FilterSettings):
        yield Step(where=step.where)
        return
    if not isinstance(step, MapSettings) or set(SETTABLE) & {*step.select, *step.add}:
        raise Unsupported(f"{name} is no filter and no projection in SQL")
    yield Step(made={**step.select, **step.add}, adds=bool(step.add))
