"""The plan of a pipeline: its queries, what each reads, keeps state for, and does with a batch.

Plain data, decided without Spark, so that it can be shown, tested and compared. The words:

- *trunk*: the vertices of a query that are part of its streaming plan. All reduces and what leads
  to them; beyond the last one also whatever follows in a straight line.
- *tap*: an output of a trunk vertex that is used outside of the trunk.
- *tail*: the vertices behind the taps. They are run on each batch as it comes.
- *lane*: rows that failed and come again; a tap of their own.
- *run*: Python functions that follow each other directly; they become one `mapInArrow`.
- *operators*: the reduces of a query as Spark numbers them, each time that its plan has them. It
  counts from the top: a reduce before those that feed it, and the parts of a union in their order.

A pipeline that has run is planned on what is recorded of it (recorded.py, continuation.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from holdfast.dataflow.compiler.cuts import Cut, components, find_cuts
from holdfast.dataflow.compiler.pushdown import PushDown, find_push_downs
from holdfast.dataflow.spec.pipeline import FAILED, LATE, MAIN, PipelineEdge, PipelineSettings
from holdfast.dataflow.spec.vertices import SinkSettings

if TYPE_CHECKING:
    from holdfast.dataflow.compiler.recorded import RecordedPlan, RecordedQuery


class Output(NamedTuple):
    """What a vertex puts out: its results, its late rows or those that failed."""

    vertex: str
    port: str = MAIN

    def __str__(self) -> str:
        return f"{self.vertex}.{self.port}" if self.port else self.vertex


# A port of reduces by a function: results and calls that failed, which a tail takes apart.
EVERY = "every"
# Parts of a query's state, where neither the file nor Spark's cores say more.
PARTITIONS_MIN = 2
# Rows of a query that come again.
LANE = Output("", "lane")
# Folders of a state directory that are no query's.
_RESERVED = ("buffers", "intakes")
_NAME_MAX = 48


class QueryBuffer(NamedTuple):
    """A quiver between two queries: what one puts out, for all others that use it."""

    output: Output
    reason: str

    @property
    def name(self) -> str:
        """Its name among the quivers of the pipeline."""
        return str(self.output).replace(".", "-")


@dataclass(frozen=True)
class Query:
    """One Structured Streaming query."""

    name: str
    # In an order in which every edge points forward.
    vertices: tuple[str, ...]
    trunk: tuple[str, ...]
    taps: tuple[Output, ...]
    # Python functions that are called together, each a run; single ones too.
    runs: tuple[tuple[str, ...], ...]
    # Outputs of other queries that it reads, and outputs of its own that others read.
    reads: tuple[Output, ...]
    writes: tuple[Output, ...]
    # Whether Spark's own writer takes the only tap, or every batch is handed to us.
    terminal: Literal["writer", "batches"]
    why_batches: str
    stateful: bool
    # How long after an event its windows may be open, here and in the queries behind.
    horizon_s: float
    allowed_lateness_s: float
    operators: tuple[str, ...]
    # Parts of its state.
    shuffle_partitions: int
    # Reduces that aggregate partial aggregates, in their state, too.
    partials: frozenset[str] = frozenset()
    # For each native reduce how its source makes those, or why it does not.
    push_downs: Mapping[str, PushDown | str] = field(default_factory=dict)

    @property
    def tail(self) -> tuple[str, ...]:
        """The vertices that are run on each batch."""
        return tuple(name for name in self.vertices if name not in self.trunk)

    @property
    def has_lane(self) -> bool:
        """Whether rows that failed come again."""
        return LANE in self.taps

    @property
    def claims(self) -> bool:
        """Whether it needs a watermark: for its windows, or for those of whoever reads it."""
        return self.stateful or bool(self.writes)


@dataclass(frozen=True)
class Plan:
    """All queries of a pipeline, each after those it reads from."""

    name: str
    pipeline: PipelineSettings
    queries: tuple[Query, ...]
    cuts: tuple[Cut, ...]
    # The identity of each vertex by its name in the file, where they differ.
    identities: Mapping[str, str] = field(default_factory=dict)

    def name_of(self, identity: str) -> str:
        """Return what the file calls a vertex."""
        found = (name for name, known in self.identities.items() if known == identity)
        return next(found, identity)

    def identity_of(self, name: str) -> str:
        """Return what is on disk of a vertex goes by."""
        return self.identities.get(name, name)

    @property
    def buffers(self) -> tuple[QueryBuffer, ...]:
        """The quivers between queries."""
        found: dict[Output, str] = {}
        for cut in self.cuts:
            edge = self.pipeline.edges[cut.edge]
            found.setdefault(Output(edge.vertex, edge.port), cut.reason)
        return tuple(QueryBuffer(output, reason) for output, reason in found.items())

    def query_of(self, vertex: str) -> Query:
        """Return the query that a vertex belongs to."""
        return next(query for query in self.queries if vertex in query.vertices)


def make_plan(
    name: str,
    pipeline: PipelineSettings,
    recorded: RecordedPlan | None = None,
    identities: Mapping[str, str] | None = None,
) -> Plan:
    """Return the plan of a pipeline that was checked, on what is recorded of it."""
    cuts = find_cuts(pipeline, {} if recorded is None else recorded.homes)
    cut = frozenset(one.edge for one in cuts)
    groups = components(pipeline, cut)
    names = _names(pipeline, groups, recorded)
    drafts = [
        _QueryDraft(
            pipeline,
            cut,
            group,
            names[group],
            None if recorded is None else recorded.query(names[group]),
        )
        for group in groups
    ]
    partials, push_downs = _partials(pipeline, cut, recorded)
    ordered = _in_order(drafts)
    horizons: dict[str, float] = {}
    for draft in reversed(ordered):
        behind = [horizons[one.name] for one in ordered if set(one.reads) & set(draft.writes)]
        horizons[draft.name] = draft.span_s() + max(behind, default=0.0)
    queries = tuple(
        replace(
            draft.query(horizons[draft.name]),
            partials=partials & set(draft.vertices),
            push_downs={one: how for one, how in push_downs.items() if one in draft.vertices},
        )
        for draft in ordered
    )
    renamed = {one: known for one, known in (identities or {}).items() if one != known}
    return Plan(name, pipeline, queries, cuts, renamed)


def _partials(
    pipeline: PipelineSettings, cut: frozenset[int], recorded: RecordedPlan | None
) -> tuple[frozenset[str], dict[str, PushDown | str]]:
    """Return which reduces aggregate partial aggregates, and how sources make them, or why not.

    A reduce that has state goes on in the form that this is in.
    """
    found = dict(find_push_downs(pipeline, cut))
    known = {} if recorded is None else recorded.reduces
    for name in found.keys() & known.keys():
        if not known[name].partials:
            found[name] = "its state began by rows"
    begun = {name for name, reduce in known.items() if reduce.partials}
    fresh = {name for name, how in found.items() if isinstance(how, PushDown)}
    return frozenset((begun | fresh) & found.keys()), found


def _names(
    pipeline: PipelineSettings, groups: list[frozenset[str]], recorded: RecordedPlan | None
) -> dict[frozenset[str], str]:
    """Return the name of each query: the recorded one, or that of its first vertex."""
    found: dict[frozenset[str], str] = {}
    for query in () if recorded is None else recorded.queries:
        mine = [group for group in groups if group & set(query.vertices) and group not in found]
        # Where its state is, else where its sources are.
        for kept in (query.operators, query.sources, query.vertices):
            mine = [group for group in mine if group & set(kept)] or mine
        if mine:
            found[mine[0]] = query.name
    taken = {*_RESERVED, *(query.name for query in (recorded.queries if recorded else ()))}
    ordered = pipeline.ordered()
    for group in groups:
        if group not in found:
            # One of its vertices that has nothing of the query before it.
            found[group] = unused(next(name for name in ordered if name in group), taken)
            taken.add(found[group])
    return found


def unused(name: str, taken: Iterable[str]) -> str:
    """Return a name like this one that nobody has, or had."""
    known, number, made = set(taken), 1, name
    while made in known:
        number += 1
        made = f"{name[: _NAME_MAX - len(str(number)) - 1]}-{number}"
    return made


def _in_order(drafts: list[_QueryDraft]) -> list[_QueryDraft]:
    waiting, ordered = list(drafts), list[_QueryDraft]()
    while waiting:
        written = {output for draft in ordered for output in draft.writes}
        ready = [draft for draft in waiting if set(draft.reads) <= written]
        assert ready, "BUG: queries wait for each other"
        ordered += ready
        waiting = [draft for draft in waiting if draft not in ready]
    return ordered


class _QueryDraft:
    """Works out one query."""

    def __init__(
        self,
        pipeline: PipelineSettings,
        cut: frozenset[int],
        group: frozenset[str],
        name: str,
        recorded: RecordedQuery | None,
    ) -> None:
        self._pipeline = pipeline
        self.vertices = [name for name in pipeline.ordered() if name in group]
        self.name = name
        self._recorded = recorded
        edges = list(enumerate(pipeline.edges))
        self._edges = [edge for i, edge in edges if i not in cut and edge.target in group]
        self._read_edges = [edge for i, edge in edges if i in cut and edge.target in group]
        self.reads = _outputs(self._read_edges)
        self.writes = _outputs(edge for i, edge in edges if i in cut and edge.vertex in group)

    def span_s(self) -> float:
        """Return how long after an event the query's windows may be open."""
        longest = dict.fromkeys(self.vertices, 0.0)
        for name in self.vertices:
            reduce = self._pipeline.vertices[name].reduce
            before = [longest[edge.vertex] for edge in self._edges if edge.target == name]
            longest[name] = max(before, default=0.0) + (0.0 if reduce is None else reduce.span_s)
        return max(longest.values()) + self._lateness_s()

    def _lateness_s(self) -> float:
        reduces = [self._pipeline.vertices[name].reduce for name in self.vertices]
        return max((one.allowed_lateness for one in reduces if one is not None), default=0.0)

    def query(self, horizon_s: float) -> Query:
        """Return the query."""
        stateful = [n for n in self.vertices if self._pipeline.vertices[n].reduce is not None]
        trunk = self._ancestors(stateful)
        while further := self._straight_on(trunk):
            trunk.add(further)
        taps = [*self._taps(trunk), *self._lane()]
        why = self._why_batches(taps, trunk)
        known = None if self._recorded is None else self._recorded.shuffle_partitions
        return Query(
            name=self.name,
            vertices=tuple(self.vertices),
            trunk=tuple(name for name in self.vertices if name in trunk),
            taps=tuple(taps),
            runs=tuple(self._runs(trunk)),
            reads=self.reads,
            writes=self.writes,
            terminal="batches" if why else "writer",
            why_batches=why,
            stateful=bool(stateful),
            horizon_s=horizon_s,
            allowed_lateness_s=self._lateness_s(),
            operators=tuple(name for tap in taps for name in self._operators(tap)),
            shuffle_partitions=known or self._pipeline.shuffle_partitions or PARTITIONS_MIN,
        )

    def _ancestors(self, stateful: list[str]) -> set[str]:
        """Return the sources, the reduces, and everything that leads to one."""
        found = {n for n in self.vertices if self._pipeline.vertices[n].kind == "source"}
        found |= set(stateful)
        for name in reversed(self.vertices):
            if any(edge.vertex == name and edge.target in found for edge in self._edges):
                found.add(name)
        return found

    def _leaving(self, trunk: set[str]) -> list[PipelineEdge]:
        """Return the edges from the trunk, or from another query, to vertices behind the trunk."""
        own = [edge for edge in self._edges if edge.vertex in trunk]
        return [edge for edge in (*own, *self._read_edges) if edge.target not in trunk]

    def _straight_on(self, trunk: set[str]) -> str | None:
        """Return the only vertex behind the trunk, if it can be a part of it."""
        leaving = self._leaving(trunk)
        targets = {edge.target for edge in leaving}
        is_used_once = len(self._taps(trunk)) == len(leaving)
        if len(targets) != 1 or not is_used_once or set(_outputs(leaving)) & set(self.writes):
            return None
        (target,) = targets
        vertex = self._pipeline.vertices[target]
        is_all = len(self._pipeline.into(target)) == len(leaving)
        is_plain = all(tap.port != EVERY for tap in self._taps(trunk))
        return target if is_all and is_plain and vertex.step and not vertex.sets_aside else None

    def _taps(self, trunk: set[str]) -> list[Output]:
        wanted = {
            *_outputs(self._leaving(trunk)),
            *(output for output in self.writes if output.vertex in trunk),
        }
        order = self._pipeline.ordered()
        taps = {self._undivided(output) for output in wanted}
        known = [] if self._recorded is None else self._recorded.operators

        def place(output: Output) -> tuple[int, int, str]:
            ranks = [known.index(name) for name in self._operators(output) if name in known]
            return min(ranks, default=len(known)), order.index(output.vertex), output.port

        return self._as_known(sorted(taps, key=place), known)

    def _as_known(self, taps: list[Output], known: list[str]) -> list[Output]:
        """Return taps so that their operators are the known ones, and behind them what is new.

        An operator may be there once more. Which one that is does not matter: their states are
        copies of each other.
        """
        left, ordered, place = list(taps), list[Output](), 0
        while place < len(known):
            parts = {tap: list(self._operators(tap)) for tap in left}
            fitting = [
                tap for tap, mine in parts.items() if mine and mine == known[place:][: len(mine)]
            ]
            if not fitting:
                return taps
            ordered.append(fitting[0])
            left.remove(fitting[0])
            place += len(parts[fitting[0]])
        return [*ordered, *left]

    def _operators(self, output: Output) -> Iterator[str]:
        """Yield the reduces in the streaming plan of an output, as Spark numbers them."""
        if output.vertex not in self.vertices:
            return
        if self._pipeline.vertices[output.vertex].reduce is not None and output.port != LATE:
            yield output.vertex
        for edge in self._edges:
            if edge.target == output.vertex:
                yield from self._operators(Output(edge.vertex, edge.port))

    def _undivided(self, output: Output) -> Output:
        """Return what leaves the trunk for an output: of a function's results all in one."""
        reduce = self._pipeline.vertices[output.vertex].reduce
        is_made = reduce is not None and reduce.is_python and output.port in (MAIN, FAILED)
        return Output(output.vertex, EVERY) if is_made else output

    def _lane(self) -> list[Output]:
        lanes = [self._pipeline.vertices[name].retry_lane for name in self.vertices]
        return [LANE] if any(lane is not None for lane in lanes) else []

    def _why_batches(self, taps: list[Output], trunk: set[str]) -> str:
        if len(taps) != 1:
            return "rows leave the streaming plan in several places"
        (tap,) = taps
        if tap.port == EVERY:
            return f"failed calls of {tap.vertex} are kept as rejected rows"
        edges = [edge for edge in self._leaving(trunk) if Output(edge.vertex, edge.port) == tap]
        if self.writes:
            return "rows are used here and by another query" if edges else ""
        if len(edges) != 1:
            return "rows take several paths"
        sink = self._pipeline.vertices[edges[0].target].sink
        if sink is None:
            return f"{edges[0].target} may reject rows, or has other inputs"
        return _why_not_written(sink)

    def _runs(self, trunk: set[str]) -> Iterator[tuple[str, ...]]:
        python = [name for name in self.vertices if self._pipeline.vertices[name].is_python]
        following = {name: self._next_of_run(name, trunk) for name in python}
        for name in python:
            if name in following.values():
                continue
            run, further = [name], following[name]
            while further is not None:
                run.append(further)
                further = following[further]
            yield tuple(run)

    def _next_of_run(self, name: str, trunk: set[str]) -> str | None:
        edges = self._pipeline.out_of(name, MAIN)
        if len(edges) != 1 or edges[0] not in self._edges or edges[0].tags is not None:
            return None
        target = edges[0].target
        is_alone = len(self._pipeline.into(target)) == 1
        is_together = (name in trunk) == (target in trunk)
        is_python = self._pipeline.vertices[target].is_python
        return target if is_alone and is_together and is_python else None


def _outputs(edges: Iterable[PipelineEdge]) -> tuple[Output, ...]:
    return tuple(dict.fromkeys(Output(edge.vertex, edge.port) for edge in edges))


def _why_not_written(sink: SinkSettings) -> str:
    """Return why Spark's own writer cannot write to a sink; "" if it can."""
    if sink.python is not None:
        return "a Python function takes each row"
    if sink.console:
        return "the console is not a sink of Spark"
    if sink.fallback is not None or sink.on_success is not None or sink.retry.attempts > 1:
        return "the sink has retries, a fallback or an on_success"
    return ""
