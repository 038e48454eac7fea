"""Plans: every vertex in one query, every edge in one or in a quiver, no cut without a need."""

from __future__ import annotations

from hypothesis import given
from tests.dataflow.spec.pipelines import KINDS, WINDOW, pipeline, pipelines, same

from holdfast.dataflow.compiler.cuts import ASKED, MEETS, REJECTS, USED_TWICE, components
from holdfast.dataflow.compiler.explain import explain
from holdfast.dataflow.compiler.plan import EVERY, LANE, Output, Plan, Query, make_plan
from holdfast.dataflow.spec import PipelineSettings


def only(plan: Plan) -> Query:
    (query,) = plan.queries
    return query


# ------------------------------------------------------------------- random graphs


@given(pipelines())
def test_every_vertex_and_every_edge_has_its_place(one: PipelineSettings) -> None:
    plan = make_plan("p", one)
    placed = [name for query in plan.queries for name in query.vertices]
    assert sorted(placed) == sorted(one.vertices)
    cut = {cut.edge for cut in plan.cuts}
    for index, edge in enumerate(one.edges):
        source, target = plan.query_of(edge.vertex), plan.query_of(edge.target)
        assert (source is target) == (index not in cut)
        if index in cut:
            output = Output(edge.vertex, edge.port)
            assert output in source.writes
            assert output in target.reads


@given(pipelines())
def test_queries_come_after_those_they_read(one: PipelineSettings) -> None:
    written: set[Output] = set()
    for query in make_plan("p", one).queries:
        assert set(query.reads) <= written
        written |= set(query.writes)


@given(pipelines())
def test_no_edge_is_cut_without_a_need(one: PipelineSettings) -> None:
    plan = make_plan("p", one)
    cut = {cut.edge for cut in plan.cuts}
    for index, reason in plan.cuts:
        edge = one.edges[index]
        if reason == ASKED:
            assert edge.durable
        elif reason == REJECTS:
            assert one.vertices[edge.vertex].sets_aside
            assert any(one.vertices[n].reduce for n in {edge.target, *one.behind(edge.target)})
        elif reason == USED_TWICE:
            before = [n for n in one.vertices if edge.vertex in {n, *one.behind(n)}]
            behind = {edge.target, *one.behind(edge.target)}
            assert any(one.vertices[n].reduce for n in before)
            assert any(one.vertices[n].reduce for n in behind)
        else:
            assert reason == MEETS
            assert waits_for_itself(one, cut - {index})
    assert not waits_for_itself(one, cut)


def waits_for_itself(one: PipelineSettings, cut: set[int]) -> bool:
    groups = components(one, cut)
    place = {name: number for number, group in enumerate(groups) for name in group}
    arrows = {(place[one.edges[i].vertex], place[one.edges[i].target]) for i in cut}
    reached = set(arrows)
    for _ in groups:
        reached |= {(a, d) for a, b in reached for c, d in arrows if b == c}
    return any(a == b for a, b in reached)


@given(pipelines())
def test_no_results_of_a_reduce_are_used_twice_in_a_streaming_plan(one: PipelineSettings) -> None:
    """Spark would keep its state twice."""
    plan = make_plan("p", one)
    for query in plan.queries:
        stateful: set[str] = set()
        for name in query.vertices:
            inputs = {e.vertex for e in one.into(name) if e.vertex in query.vertices}
            if one.vertices[name].reduce is not None or inputs & stateful:
                stateful.add(name)
        for name in stateful & set(query.trunk):
            inside = [e for e in one.out_of(name) if e.target in query.trunk]
            taps = [tap for tap in query.taps if tap.vertex == name]
            assert len(inside) + (1 if taps else 0) <= 1


@given(pipelines())
def test_trunks_hold_all_state_and_tails_none(one: PipelineSettings) -> None:
    for query in make_plan("p", one).queries:
        for name in query.tail:
            assert one.vertices[name].reduce is None
            assert one.vertices[name].kind != "source"
        for name in query.trunk:
            assert not one.vertices[name].sets_aside
        for name in query.tail:
            assert not set(query.trunk) & one.behind(name) & set(query.vertices)
        entering = [
            Output(e.vertex, e.port) for name in query.tail for e in one.into(name)
            if e.vertex not in query.tail
        ]  # fmt: skip
        assert set(entering) <= set(query.taps)


# ------------------------------------------------------------------------- by name


def test_a_chain_is_one_query_and_spark_writes_it() -> None:
    kinds = {"a": "source", "b": "map", "r": "reduce", "m": "map", "z": "sink"}
    query = only(make_plan("p", pipeline("a -> b", "b -> r", "r -> m", "m -> z", **kinds)))
    assert query.trunk == ("a", "b", "r", "m")
    assert query.taps == (Output("m"),)
    assert (query.terminal, query.stateful, query.tail) == ("writer", True, ("z",))


def test_fan_out_without_state_is_one_query_without_a_quiver() -> None:
    kinds = {"a": "source", "b": "map", "c": "map", "y": "sink", "z": "sink"}
    query = only(make_plan("p", pipeline("a -> b", "b -> y", "b -> c", "c -> z", **kinds)))
    assert query.trunk == ("a", "b")
    assert query.taps == (Output("b"),)
    assert query.why_batches == "rows take several paths"


def test_late_rows_leave_the_plan_beside_the_results() -> None:
    aside = {"reduce": {**WINDOW, "late": "side_output"}}
    kinds = {"a": "source", "r": aside, "y": "sink", "z": "sink"}
    query = only(make_plan("p", pipeline("a -> r", "r -> y", "r.late -> z", **kinds)))
    assert query.taps == (Output("r"), Output("r", "late"))
    assert query.terminal == "batches"


def test_chained_reduces_are_one_query() -> None:
    kinds = {"a": "source", "r": "reduce", "s": "reduce", "z": "sink"}
    plan = make_plan("p", pipeline("a -> r", "r -> s", "s -> z", **kinds))
    assert only(plan).horizon_s == 20
    assert plan.cuts == ()


def test_results_that_are_used_twice_are_cut_where_the_other_reduce_is() -> None:
    kinds = {"a": "source", "r": "reduce", "s": "reduce", "y": "sink", "z": "sink"}
    plan = make_plan("p", pipeline("a -> r", "r -> s", "r -> y", "s -> z", **kinds))
    assert [(cut.edge, cut.reason) for cut in plan.cuts] == [(1, USED_TWICE)]
    first, second = plan.queries
    assert (first.vertices, second.vertices) == (("a", "r", "y"), ("s", "z"))
    assert (first.writes, second.reads) == ((Output("r"),), (Output("r"),))
    assert [buffer.name for buffer in plan.buffers] == ["r"]
    assert (first.horizon_s, second.horizon_s) == (20, 10)


def test_a_cut_whose_ends_meet_again_takes_another_with_it() -> None:
    kinds = {"a": "source", "r": "reduce", "s": "reduce", "z": "sink"}
    plan = make_plan("p", pipeline("a -> r", "r -> s", "r -> z", "s -> z", **kinds))
    assert {cut.reason for cut in plan.cuts} == {USED_TWICE, MEETS}
    assert [query.vertices for query in plan.queries] == [("a", "r"), ("s", "z")]


def test_another_source_before_a_cut_vertex_stays_in_its_query() -> None:
    kinds = {"a": "source", "b": "source", "m": "map", "z": "sink"}
    durable = {"from": "a", "to": "m", "durable": True}
    plan = make_plan("p", pipeline(durable, "b -> m", "m -> z", **kinds))
    assert [query.vertices for query in plan.queries] == [("a",), ("b", "m", "z")]
    assert plan.queries[1].trunk == ("b", "m")


def test_python_steps_that_follow_each_other_are_one_run() -> None:
    kinds = {"a": "source", "b": "python", "c": "dropping", "d": "map", "e": "python", "z": "sink"}
    edges = ["a -> b", "b -> c", "c -> d", "d -> e", "e -> z"]
    query = only(make_plan("p", pipeline(*edges, **kinds)))
    assert query.runs == (("b", "c"), ("e",))
    # Rows that fail are set aside: each row is looked at once, so outside of the streaming plan.
    assert query.trunk == ("a",)
    dropping = {**kinds, "b": "dropping", "e": "dropping"}
    query = only(make_plan("p", pipeline(*edges, **dropping)))
    assert (query.trunk, query.terminal) == (("a", "b", "c", "d", "e"), "writer")


def test_a_run_ends_where_rows_go_two_ways() -> None:
    kinds = {"a": "source", "b": "python", "c": "python", "y": "sink", "z": "sink"}
    query = only(make_plan("p", pipeline("a -> b", "b -> c", "b -> y", "c -> z", **kinds)))
    assert query.runs == (("b",), ("c",))


def test_a_sink_with_a_fallback_gets_batches() -> None:
    careful = {"sink": {"files": "x", "fallback": {"files": "y"}}}
    query = only(make_plan("p", pipeline("a -> z", a="source", z=careful)))
    assert "fallback" in query.why_batches
    called = {"sink": {"python": same}}
    assert only(make_plan("p", pipeline("a -> z", a="source", z=called))).terminal == "batches"
    assert KINDS["sink"] == {"sink": {"files": "out"}}


def test_results_of_a_function_leave_the_plan_with_its_failures_in_one() -> None:
    called = {"reduce": {"window": {"fixed": "10s"}, "python": same, "returns": "x int"}}
    kinds = {"a": "source", "r": called, "y": "sink", "z": "sink"}
    query = only(make_plan("p", pipeline("a -> r", "r -> y", "r.failed -> z", **kinds)))
    assert query.vertices == ("a", "r", "y", "z")
    assert (query.trunk, query.taps) == (("a", "r"), (Output("r", EVERY),))
    assert query.terminal == "batches"


def test_a_function_that_sets_rows_aside_is_never_in_the_plan_of_a_reduce() -> None:
    """It would be called twice for each row: once for its results, once for what failed."""
    kinds = {"a": "source", "f": "python", "m": "map", "r": "reduce", "y": "sink", "z": "sink"}
    plan = make_plan("p", pipeline("a -> f", "f -> y", "f -> m", "m -> r", "r -> z", **kinds))
    assert [(cut.edge, cut.reason) for cut in plan.cuts] == [(2, REJECTS)]
    assert [query.vertices for query in plan.queries] == [("a", "f", "y"), ("m", "r", "z")]
    dropping = {**kinds, "f": "dropping"}
    edges = ["a -> f", "f -> m", "m -> r", "r -> z"]
    del dropping["y"]
    assert only(make_plan("p", pipeline(*edges, **dropping))).trunk == ("a", "f", "m", "r")


def test_results_of_a_function_reach_another_reduce_through_a_quiver() -> None:
    called = {"reduce": {"process": same, "returns": "x int", "timer_span": "30s"}}
    kinds = {"a": "source", "r": called, "s": "reduce", "z": "sink"}
    plan = make_plan("p", pipeline("a -> r", "r -> s", "s -> z", **kinds))
    assert [cut.reason for cut in plan.cuts] == [REJECTS]
    assert [query.horizon_s for query in plan.queries] == [40, 10]


def test_a_query_has_a_lane_where_a_vertex_or_a_sink_says_so() -> None:
    again = {"map": {"python": same, "retry_lane": {}, "on_failure": "drop"}}
    query = only(make_plan("p", pipeline("a -> f", "f -> z", a="source", f=again, z="sink")))
    assert (query.taps, query.has_lane, query.terminal) == ((Output("a"), LANE), True, "batches")
    taking = {"sink": {"python": same, "retry_lane": {"attempts": 1}}}
    assert only(make_plan("p", pipeline("a -> z", a="source", z=taking))).has_lane
    assert "come again" in explain(make_plan("p", pipeline("a -> z", a="source", z=taking)))
