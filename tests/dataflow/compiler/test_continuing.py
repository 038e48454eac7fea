"""Edited files: what a pipeline has on disk finds its vertex again, or the file is refused."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from tests.dataflow.spec.pipelines import KINDS, pipeline

from holdfast.dataflow.compiler.continuation import (
    continued,
    find_identities,
    record_of,
    recorded_plan,
)
from holdfast.dataflow.compiler.cuts import APART, REJECTS, USED_TWICE
from holdfast.dataflow.compiler.plan import PARTITIONS_MIN, Output, Plan, make_plan
from holdfast.dataflow.compiler.recorded import RecordedPlan, read_record, write_record
from holdfast.dataflow.driver.run import with_partitions
from holdfast.dataflow.source.checkpoint import Offset
from holdfast.dataflow.spec import PipelineSettings
from holdfast.errors import BadConfig

STATE = Path("state")
TENS = {"reduce": {"window": {"fixed": "10s"}, "key": "k", "aggregate": {"n": "count(*)"}}}
MINUTES = {"reduce": {"window": {"fixed": "60s"}, "key": "k", "aggregate": {"n": "count(*)"}}}
EVENTS = {"source": {"quiver": "q"}}
MORE = {"source": {"quiver": "more"}}
TWO = {"ev": EVENTS, "ra": TENS, "rb": MINUTES, "fa": "sink", "fb": "sink"}
TWO_EDGES = ("ev -> ra", "ev -> rb", "ra -> fa", "rb -> fb")


def begun(one: PipelineSettings) -> RecordedPlan:
    """Return what is recorded of a pipeline that has run."""
    return record_of(continued("p", one, None, STATE))


def after(recorded: RecordedPlan, *edges: Any, **kinds: Any) -> Plan:
    return continued("p", pipeline(*edges, **kinds), recorded, STATE)


def refused(recorded: RecordedPlan, *edges: Any, **kinds: Any) -> str:
    with pytest.raises(BadConfig) as refused:
        after(recorded, *edges, **kinds)
    assert "holdfast dataflow drain FILE p --close" in refused.value.hint
    return refused.value.message


def cuts_of(plan: Plan) -> list[tuple[str, str, str]]:
    edges = plan.pipeline.edges
    return [(edges[n].source, edges[n].target, reason) for n, reason in plan.cuts]


# ------------------------------------------------------------------ what must run


def test_two_reduces_in_another_order_keep_their_states() -> None:
    recorded = begun(pipeline(*TWO_EDGES, **TWO))
    assert recorded.queries[0].operators == ["ra", "rb"]
    swapped = dict(reversed(TWO.items()))
    (query,) = after(recorded, *reversed(TWO_EDGES), **swapped).queries
    assert (query.name, query.operators) == ("ev", ("ra", "rb"))


def test_a_source_on_top_does_not_take_the_query_away() -> None:
    recorded = begun(pipeline("ev -> ra", "ra -> fa", ev=EVENTS, ra=TENS, fa="sink"))
    kinds = {"aa": MORE, "ev": EVENTS, "ra": TENS, "fa": "sink"}
    (query,) = after(recorded, "aa -> ra", "ev -> ra", "ra -> fa", **kinds).queries
    assert (query.name, query.operators) == ("ev", ("ra",))


def test_a_longer_way_to_a_reduce_does_not_move_it_behind_another() -> None:
    """Vertices are sorted by how far they are from a source: operators must not be."""
    recorded = begun(pipeline(*TWO_EDGES, **TWO))
    kinds = {**TWO, "s": MORE, "m": "map"}
    (query,) = after(recorded, *TWO_EDGES, "s -> m", "m -> ra", **kinds).queries
    assert query.operators == ("ra", "rb")


def test_parts_of_a_union_stay_in_the_order_of_their_operators() -> None:
    kinds = {"ev": EVENTS, "ra": TENS, "rb": MINUTES, "m": "map", "z": "sink"}
    recorded = begun(pipeline("ev -> ra", "ev -> rb", "rb -> m", "ra -> m", "m -> z", **kinds))
    assert recorded.queries[0].operators == ["rb", "ra"]
    edges = ("ra -> m", "ev -> rb", "ev -> ra", "rb -> m", "m -> z")
    (query,) = after(recorded, *edges, **kinds).queries
    assert query.operators == ("rb", "ra")
    # Another sink takes the union apart: now they are two ways out of the stream.
    (query,) = after(recorded, *edges, "ra -> y", **kinds, y="sink").queries
    assert query.taps == (Output("rb"), Output("ra"))
    assert query.operators == ("rb", "ra")


def test_a_new_reduce_gets_a_query_of_its_own() -> None:
    recorded = begun(pipeline("ev -> ra", "ra -> fa", ev=EVENTS, ra=TENS, fa="sink"))
    plan = after(recorded, *TWO_EDGES, **TWO)
    assert [(q.name, q.operators) for q in plan.queries] == [("ev", ("ra",)), ("rb", ("rb",))]
    assert [cut.reason for cut in plan.cuts] == [APART]
    assert plan.queries[1].reads == (Output("ev"),)
    # And keeps it.
    again = continued("p", pipeline(*TWO_EDGES, **TWO), record_of(plan), STATE)
    assert [q.name for q in again.queries] == ["ev", "rb"]


def test_a_new_reduce_far_behind_a_function_leaves_the_query_whole() -> None:
    """Its own edge is cut: that behind the function would take a source and a sink elsewhere."""
    kinds: dict[str, Any] = {"a": EVENTS, "b": MORE, "f": "python", "m": "map", "z": "sink"}
    edges = ("a -> f", "f -> m", "b -> m", "m -> z")
    recorded = begun(pipeline(*edges, **kinds))
    plan = after(recorded, *edges, "m -> r", "r -> y", **kinds, r=TENS, y="sink")
    assert [(q.name, set(q.vertices)) for q in plan.queries] == [("a", {*kinds}), ("r", {"r", "y"})]
    assert cuts_of(plan) == [("m", "r", APART)]
    # And that is how it goes on; a file that begins so is cut as early as can be.
    assert cuts_of(continued("p", plan.pipeline, record_of(plan), STATE)) == cuts_of(plan)
    assert cuts_of(make_plan("p", plan.pipeline)) == [("f", "m", REJECTS)]


def test_a_new_reduce_behind_results_used_twice_leaves_the_query_whole() -> None:
    kinds: dict[str, Any] = {"a": EVENTS, "b": MORE, "r": TENS, "m": "map"}
    kinds |= {"y": "sink", "z": "sink"}
    edges = ("a -> r", "r -> m", "b -> m", "m -> z", "r -> y")
    recorded = begun(pipeline(*edges, **kinds))
    plan = after(recorded, *edges, "m -> r2", "r2 -> x", **kinds, r2=MINUTES, x="sink")
    assert [set(q.vertices) for q in plan.queries] == [{*kinds}, {"r2", "x"}]
    assert plan.queries[0].operators == ("r",)
    assert cuts_of(plan) == [("m", "r2", USED_TWICE)]


def test_a_new_source_for_two_queries_joins_neither() -> None:
    kinds = {"a": EVENTS, "b": MORE, "ra": TENS, "rb": MINUTES, "fa": "sink", "fb": "sink"}
    edges = ("a -> ra", "b -> rb", "ra -> fa", "rb -> fb")
    recorded = begun(pipeline(*edges, **kinds))
    new = {"source": {"quiver": "new"}}
    plan = after(recorded, *edges, "s -> ra", "s -> rb", **kinds, s=new)
    assert sorted((q.name, q.operators) for q in plan.queries) == [
        ("a", ("ra",)), ("b", ("rb",)), ("s", ()),
    ]  # fmt: skip


def test_renamed_vertices_keep_their_identity() -> None:
    python = {"map": {"python": "m:f", "returns": "k string"}}
    kinds = {"ev": EVENTS, "m": python, "ra": TENS, "fa": {"sink": {"files": "out"}}}
    recorded = begun(pipeline("ev -> m", "m -> ra", "ra -> fa", **kinds))
    new = {"events": EVENTS, "better": python, "tens": TENS, "out": {"sink": {"files": "out"}}}
    plan = after(recorded, "events -> better", "better -> tens", "tens -> out", **new)
    assert [q.vertices for q in plan.queries] == [("ev", "m"), ("ra", "fa")]
    assert plan.name_of("m") == "better"
    assert record_of(plan).vertices["m"].name == "better"


def test_names_that_were_exchanged_are_told_apart() -> None:
    recorded = begun(pipeline(*TWO_EDGES, **TWO))
    kinds = {**TWO, "ra": MINUTES, "rb": TENS}
    found = find_identities(
        pipeline("ev -> ra", "ev -> rb", "rb -> fa", "ra -> fb", **kinds), recorded
    )
    assert found == {"ev": "ev", "ra": "rb", "rb": "ra", "fa": "fa", "fb": "fb"}


def test_a_new_vertex_with_the_old_name_of_another_is_not_it() -> None:
    recorded = begun(pipeline("ev -> ra", "ra -> fa", ev=EVENTS, ra=TENS, fa="sink"))
    renamed = after(recorded, "events -> ra", "ra -> fa", events=EVENTS, ra=TENS, fa="sink")
    kinds = {"ev": MORE, "events": EVENTS, "ra": TENS, "fa": "sink"}
    one = pipeline("ev -> ra", "events -> ra", "ra -> fa", **kinds)
    found = find_identities(one, record_of(renamed))
    assert (found["events"], found["ev"]) == ("ev", "ev-2")


def test_columns_and_keys_in_another_order_are_the_same_state() -> None:
    def reduce(key: list[str], aggregate: dict[str, str]) -> dict[str, Any]:
        return {"reduce": {"window": {"fixed": "10s"}, "key": key, "aggregate": aggregate}}

    first = reduce(["a", "b"], {"n": "count(*)", "s": "sum(x)"})
    recorded = begun(pipeline("ev -> r", "r -> z", ev=EVENTS, r=first, z="sink"))
    other = reduce(["b", "a"], {"s": "sum(x)", "n": "count(*)"})
    plan = after(recorded, "ev -> r", "r -> z", ev=EVENTS, r=other, z="sink")
    made = plan.pipeline.vertices["r"].reduce
    assert made is not None
    assert (made.key, list(made.aggregate)) == (["a", "b"], ["n", "s"])


def test_parts_of_a_state_stay_as_many_as_they_are() -> None:
    one = pipeline("ev -> r", "r -> z", ev=EVENTS, r=TENS, z="sink")
    recorded = begun(one)
    more = one.model_copy(update={"shuffle_partitions": 8})
    (query,) = continued("p", more, recorded, STATE).queries
    assert query.shuffle_partitions == PARTITIONS_MIN


def test_a_new_state_has_a_part_for_each_core() -> None:
    one = pipeline("ev -> r", "r -> z", ev=EVENTS, r=TENS, z="sink")
    assert with_partitions(one, 1).shuffle_partitions == PARTITIONS_MIN
    assert with_partitions(one, 96).shuffle_partitions == 96
    said = one.model_copy(update={"shuffle_partitions": 3})
    assert with_partitions(said, 96).shuffle_partitions == 3
    (query,) = continued("p", with_partitions(one, 96), begun(one), STATE).queries
    assert query.shuffle_partitions == PARTITIONS_MIN


# --------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"window": {"fixed": "20s"}, "key": "k", "aggregate": {"n": "count(*)"}}, "window"),
        ({"window": {"fixed": "10s"}, "key": "j", "aggregate": {"n": "count(*)"}}, "keys"),
        ({"window": {"fixed": "10s"}, "key": "k", "aggregate": {"n": "sum(x)"}}, "aggregates"),
    ],
)
def test_changed_state_is_refused_with_the_command_that_closes_it(
    changed: dict[str, Any], what: str
) -> None:
    recorded = begun(pipeline("ev -> ra", "ra -> fa", ev=EVENTS, ra=TENS, fa="sink"))
    kinds = {"ev": EVENTS, "ra": {"reduce": changed}, "fa": "sink"}
    assert f"ra has other {what} than before" in refused(recorded, "ev -> ra", "ra -> fa", **kinds)


def test_a_function_keeps_what_its_state_was_begun_with() -> None:
    """Rows that wait in the state are not folded later, and Arrow is not taken for rows."""

    def made(kind: str) -> dict[str, Any]:
        window = {"window": {"fixed": "10s"}, "key": "k", "returns": "n bigint"}
        return {"reduce": {**window, kind: "builtins:dict"}}

    edges = ("ev -> ra", "ra -> fa")
    kinds = ("python", "fold", "arrow")
    for before, now in itertools.permutations(kinds, 2):
        recorded = begun(pipeline(*edges, ev=EVENTS, ra=made(before), fa="sink"))
        vertices = {"ev": EVENTS, "ra": made(now), "fa": "sink"}
        assert "ra has other kept rows than before" in refused(recorded, *edges, **vertices)
    # A plan file of an earlier version knows nothing of this.
    recorded = begun(pipeline(*edges, ev=EVENTS, ra=made("python"), fa="sink"))
    assert "keeps" not in json.dumps(recorded.model_dump(mode="json"))


def test_a_reduce_that_is_gone_is_refused() -> None:
    recorded = begun(pipeline(*TWO_EDGES, **TWO))
    kinds = {"ev": EVENTS, "ra": TENS, "fa": "sink"}
    assert "rb was removed, but has state" in refused(recorded, "ev -> ra", "ra -> fa", **kinds)


def test_an_equal_reduce_of_other_rows_does_not_inherit_state() -> None:
    recorded = begun(pipeline(*TWO_EDGES, **TWO))
    kinds = {"ev": EVENTS, "aa": MORE, "ra": TENS, "fa": "sink", "rc": MINUTES, "fb": "sink"}
    edges = ("ev -> ra", "aa -> rc", "ra -> fa", "rc -> fb")
    assert "rb was removed, but has state" in refused(recorded, *edges, **kinds)


def test_reduces_of_one_query_are_not_taken_apart() -> None:
    recorded = begun(pipeline(*TWO_EDGES, **TWO))
    edges = ("ev -> ra", {"from": "ev", "to": "rb", "durable": True}, "ra -> fa", "rb -> fb")
    assert "ra, rb have their state in one query" in refused(recorded, *edges, **TWO)


def test_a_function_is_not_put_before_a_reduce_of_its_own_query() -> None:
    """In one plan it would be called once for either way; and a cut takes the query apart."""
    kinds: dict[str, Any] = {"a": EVENTS, "f": "python", "m": "map", "z": "sink"}
    kinds |= {"r": TENS, "y": "sink"}
    edges = ("a -> r", "r -> y", "a -> f", "f -> m", "m -> z")
    recorded = begun(pipeline(*edges, **kinds))
    assert "a is read by another query" in refused(recorded, *edges, "m -> r", **kinds)


# ------------------------------------------------------------------- on the disk


def test_the_plan_file_says_what_it_was_given(tmp_path: Path) -> None:
    recorded = begun(pipeline(*TWO_EDGES, **TWO, m=KINDS["python"], z="sink"))
    assert read_record(tmp_path) is None
    write_record(tmp_path, recorded)
    assert read_record(tmp_path) == recorded


def test_a_plan_file_of_a_later_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({"version": 2}))
    with pytest.raises(BadConfig, match="of a later version"):
        read_record(tmp_path)


def test_state_without_a_plan_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ev" / "checkpoint" / "offsets").mkdir(parents=True)
    one = pipeline("ev -> ra", "ra -> fa", ev=EVENTS, ra=TENS, fa="sink")
    with pytest.raises(BadConfig, match="the plan file of p is missing"):
        recorded_plan("p", one, tmp_path)


def test_a_query_that_never_began_is_free(tmp_path: Path) -> None:
    one = pipeline("ev -> ra", "ra -> fa", ev=EVENTS, ra=TENS, fa="sink")
    write_record(tmp_path, begun(one))
    found = recorded_plan("p", one, tmp_path)
    assert found is not None
    assert (found.queries, found.vertices, found.reduces) == ([], {}, {})


def test_the_state_of_a_pipeline_with_another_name_is_refused(tmp_path: Path) -> None:
    """Its sources counted as added ones: they began anew, beside state that held their rows."""
    one = pipeline("ev -> ra", "ra -> fa", ev=EVENTS, ra=TENS, fa="sink")
    write_record(tmp_path, begun(one))
    (query,) = begun(one).queries
    offsets = tmp_path / query.name / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    of_ours = json.dumps(Offset("p.ev", {}).to_fields())
    (offsets / "0").write_text("\n".join(("v1", "{}", of_ours)))
    assert recorded_plan("p", one, tmp_path) is not None
    with pytest.raises(BadConfig, match=r"the checkpoint is of subscriber 'p\.ev'"):
        recorded_plan("q", one, tmp_path)
