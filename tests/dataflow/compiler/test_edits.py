"""A machine that edits a pipeline file between runs, without Spark: whose state is whose after it.

The machine knows which vertex is which, whatever it is called. A disk that is only a table says
what was written under which name and number. After every edit that is not refused, each number must
be that of the reduce whose state is there. Whoever numbers them here does not use the code under
test (numbering.py), and was compared with Spark (test_edited_pipelines.py).
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.dataflow.compiler.numbering import numbered
from tests.dataflow.spec.pipelines import KINDS, pipelines

from holdfast.dataflow.compiler.continuation import continued, record_of
from holdfast.dataflow.compiler.plan import Plan, Query
from holdfast.dataflow.compiler.recorded import RecordedPlan
from holdfast.dataflow.spec import PipelineSettings
from holdfast.dataflow.spec.vertices import VertexSettings
from holdfast.errors import BadConfig

# What was tried, and how often it was refused.
TRIED: Counter[str] = Counter()
REFUSED: Counter[str] = Counter()
INNER = st.sampled_from(["map", "python", "dropping", "reduce"])


def reduce(window_s: int = 10, key: str = "k", aggregate: str = "count(*)") -> dict[str, Any]:
    """Return a reduce as a file has it."""
    settings = {"window": {"fixed": f"{window_s}s"}, "key": key, "aggregate": {"n": aggregate}}
    return {"reduce": settings}


class Edits(RuleBasedStateMachine):
    """A file, what it runs as, and what that has left on disk."""

    def __init__(self) -> None:
        super().__init__()
        self.vertices: dict[str, dict[str, Any]] = {}
        self.edges: list[dict[str, Any]] = []
        # Who a vertex is, by its name in the file.
        self.who: dict[str, int] = {}
        self.made = 0
        self.recorded: RecordedPlan | None = None
        self.plan: Plan | None = None
        # By query: who has the state of each number; by identity: who wrote under it.
        self.states: dict[str, list[int]] = {}
        self.written: dict[str, int] = {}
        # By identity: its query. None of the edits here is a reason to move it to another.
        self.homes: dict[int, str] = {}

    @initialize(one=pipelines())
    def write(self, one: PipelineSettings) -> None:
        """Begin with some pipeline."""
        for name, vertex in one.vertices.items():
            kind = vertex.kind
            if vertex.reduce is not None:
                self._add(name, reduce())
            elif kind in ("source", "sink"):
                self._add(name, self._place(kind))
            else:
                found = next(key for key, value in KINDS.items() if _kind(value, vertex))
                self._add(name, KINDS[found])
        self.edges = [
            {"from": edge.source, "to": edge.target, "durable": edge.durable} for edge in one.edges
        ]
        self._run("begin", dict(self.vertices), list(self.edges), dict(self.who))

    # ---------------------------------------------------------------- must run

    @rule(seed=st.integers(0, 2**16))
    def reorder(self, seed: int) -> None:
        """Write the same lines in another order."""
        shuffled = random.Random(seed)
        names, edges = list(self.vertices), list(self.edges)
        shuffled.shuffle(names)
        shuffled.shuffle(edges)
        self._run("reorder", {name: self.vertices[name] for name in names}, edges, dict(self.who))

    @rule(data=st.data(), on_top=st.booleans())
    def add_source(self, data: st.DataObject, on_top: bool) -> None:
        """Add a source that leads to one or two vertices."""
        others = [name for name, one in self.vertices.items() if "source" not in one]
        targets = data.draw(st.sets(st.sampled_from(others), min_size=1, max_size=2))
        name = self._fresh()
        new = {name: self._place("source")}
        vertices = {**new, **self.vertices} if on_top else {**self.vertices, **new}
        edges = [{"from": name, "to": target} for target in sorted(targets)]
        edges = [*edges, *self.edges] if on_top else [*self.edges, *edges]
        self._run("add a source", vertices, edges, {**self.who, name: self.made})

    @rule(data=st.data(), inner=st.one_of(st.just(""), INNER), on_top=st.booleans())
    def add_branch(self, data: st.DataObject, inner: str, on_top: bool) -> None:
        """Add a sink, or a vertex with a sink behind it."""
        before = [name for name, one in self.vertices.items() if "sink" not in one]
        end, who = data.draw(st.sampled_from(before)), dict(self.who)
        new: dict[str, Any] = {}
        edges = []
        for settings_of in ([] if not inner else [inner]) + ["sink"]:
            name = self._fresh()
            own = reduce(data.draw(st.sampled_from([10, 60]))) if settings_of == "reduce" else None
            place = self._place("sink") if settings_of == "sink" else None
            new[name] = own or place or KINDS[settings_of]
            edges.append({"from": end, "to": name})
            end, who[name] = name, self.made
        vertices = {**new, **self.vertices} if on_top else {**self.vertices, **new}
        edges = [*edges, *self.edges] if on_top else [*self.edges, *edges]
        self._run("add a branch" if inner else "add a sink", vertices, edges, who)

    @rule(data=st.data())
    def rename(self, data: st.DataObject) -> None:
        """Call a vertex without state something else, sometimes what another was called once."""
        free = [name for name, one in self.vertices.items() if "reduce" not in one]
        old = data.draw(st.sampled_from(free))
        known = {one.name for one in self.recorded.vertices.values()} if self.recorded else set()
        once = sorted(
            {*(self.recorded.vertices if self.recorded else ()), *known} - {*self.vertices}
        )
        new = data.draw(st.sampled_from([self._fresh(), *once]))
        vertices = {(new if name == old else name): one for name, one in self.vertices.items()}
        edges = [
            {end: new if edge.get(end) == old else edge[end] for end in edge} for edge in self.edges
        ]
        who = {(new if name == old else name): one for name, one in self.who.items()}
        self._run("rename", vertices, edges, who)

    # ------------------------------------------------------------- may be refused

    @precondition(lambda self: any("reduce" in one for one in self.vertices.values()))
    @rule(data=st.data(), what=st.sampled_from(["window", "key", "aggregate", "remove"]))
    def change_state(self, data: st.DataObject, what: str) -> None:
        """Change what a state is made of, or take it away: that must not run."""
        reduces = [name for name, one in self.vertices.items() if "reduce" in one]
        name = data.draw(st.sampled_from(reduces))
        changed = {"window": reduce(77), "key": reduce(key="j"), "aggregate": reduce(77, "j", "x")}
        vertices = {**self.vertices, name: changed.get(what, KINDS["map"])}
        TRIED["change state"] += 1
        with pytest.raises(BadConfig):
            self._planned(vertices, self.edges)
        REFUSED["change state"] += 1

    # ----------------------------------------------------------------- checking

    @invariant()
    def everything_is_whose_it_was(self) -> None:
        """Compare the plan with the disk."""
        if self.plan is None:
            return
        names = {self.plan.name_of(one): one for one in self.plan.pipeline.vertices}
        assert sorted(names) == sorted(self.vertices)
        for name, identity in names.items():
            assert self.written.setdefault(identity, self.who[name]) == self.who[name]
        for query in self.plan.queries:
            reduces, _ = numbered(self.plan, query)
            assert list(query.operators) == reduces
            state = [self.who[self.plan.name_of(one)] for one in reduces]
            known = self.states.setdefault(query.name, state)
            # One that is used in one more place begins with a copy of what it has.
            assert state[: len(known)] == known
            assert set(state) == set(known)
            self.states[query.name] = state
            for name in query.vertices:
                who = self.who[self.plan.name_of(name)]
                assert self.homes.setdefault(who, query.name) == query.name
            assert not list(self._rejecting(query))
        assert self.states.keys() == {query.name for query in self.plan.queries}

    # ------------------------------------------------------------------ helping

    def _run(
        self,
        edit: str,
        vertices: dict[str, Any],
        edges: list[dict[str, Any]],
        who: dict[str, int],
    ) -> None:
        """Start the pipeline with an edited file; keep the edit if it runs."""
        TRIED[edit] += 1
        plan = self._planned(vertices, edges)
        if self.plan is not None:
            before = {output for query in self.plan.queries for output in query.writes}
            assert before <= {output for query in plan.queries for output in query.writes}
        self.plan, self.recorded = plan, record_of(plan)
        self.vertices, self.edges, self.who = vertices, edges, who

    def _rejecting(self, query: Query) -> Iterator[str]:
        """Yield functions that may reject rows, with a reduce behind them in their own query."""
        assert self.plan is not None
        cut, pipeline = {one.edge for one in self.plan.cuts}, self.plan.pipeline
        kept = [edge for number, edge in enumerate(pipeline.edges) if number not in cut]
        within = pipeline.model_copy(update={"edges": kept})
        for name in query.vertices:
            leads_on = any(pipeline.vertices[one].reduce for one in within.behind(name))
            if leads_on and pipeline.vertices[name].sets_aside:
                yield name

    def _planned(self, vertices: dict[str, Any], edges: list[dict[str, Any]]) -> Plan:
        one = PipelineSettings.model_validate({"vertices": vertices, "edges": edges})
        return continued("p", one, self.recorded, Path("state"))

    def _add(self, name: str, settings_of: dict[str, Any]) -> None:
        self.made += 1
        self.vertices[name], self.who[name] = settings_of, self.made

    def _fresh(self) -> str:
        self.made += 1
        return f"n{self.made}"

    def _place(self, kind: str) -> dict[str, Any]:
        return {kind: {"quiver" if kind == "source" else "files": f"place{self.made}"}}


def _kind(value: dict[str, Any], vertex: VertexSettings) -> bool:
    return PipelineSettings.model_validate({"vertices": {"v": value}}).vertices["v"] == vertex


@pytest.mark.parametrize(
    "examples", [8, pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_edited_files_find_their_state(examples: int, capsys: pytest.CaptureFixture[str]) -> None:
    TRIED.clear()
    REFUSED.clear()
    run_state_machine_as_test(
        Edits,
        settings=settings(
            max_examples=examples,
            stateful_step_count=8,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    told = [f"{edit} {REFUSED[edit]} of {tried}" for edit, tried in TRIED.items()]
    wanted = sum(n for edit, n in TRIED.items() if edit != "change state")
    refused = sum(n for edit, n in REFUSED.items() if edit != "change state")
    with capsys.disabled():
        sys.stdout.write(f"\nrefused: {', '.join(told)}; of what must run {refused / wanted:.1%}\n")
