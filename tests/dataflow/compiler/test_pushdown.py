"""Which windows are added up where rows are read, and in which form their state is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.dataflow.spec.pipelines import pipeline, same

from holdfast.dataflow.compiler.continuation import continued, record_of
from holdfast.dataflow.compiler.explain import as_fields, explain
from holdfast.dataflow.compiler.plan import Plan, Query, make_plan
from holdfast.dataflow.compiler.pushdown import PushDown, aggregates_of, pane_us
from holdfast.dataflow.compiler.recorded import read_record, write_record
from holdfast.dataflow.source.partial_steps import Step
from holdfast.dataflow.spec import PipelineSettings
from holdfast.dataflow.spec.vertices import ReduceSettings

STATE = Path("state")
SUMS = {"n": "count(*)", "total": "sum(number)"}


def tens(**more: Any) -> dict[str, Any]:
    """Return a reduce that counts and adds up."""
    return {"reduce": {"window": {"fixed": "10s"}, "key": "k", "aggregate": SUMS, **more}}


def plain(*edges: Any, push_down: bool = True, **kinds: Any) -> PipelineSettings:
    """Return a source, a reduce and a sink, and what else is given."""
    given: dict[str, Any] = {"ev": "source", "tens": tens(), "out": "sink", **kinds}
    made = pipeline(*(edges or ("ev -> tens", "tens -> out")), **given)
    return made.model_copy(update={"push_down": push_down})


def only(plan: Plan) -> Query:
    (query,) = plan.queries
    return query


def how(settings: PipelineSettings) -> PushDown | str:
    """Return how the reduce of a new pipeline is added up."""
    plan = make_plan("p", settings)
    query = plan.query_of("tens")
    assert ("tens" in query.partials) == isinstance(query.push_downs["tens"], PushDown)
    return query.push_downs["tens"]


def test_filters_and_projections_in_sql_are_passed_on_the_way() -> None:
    made = {"number": "-1", "z": "a || b"}
    kinds: dict[str, Any] = {"f": {"filter": "number > 1"}, "m": {"map": {"add": made}}}
    found = how(plain("ev -> m", "m -> f", "f -> tens", "tens -> out", **kinds))
    assert found == PushDown("ev", (Step(made=made, adds=True), Step(where="number > 1")))


SELECT = {"select": {"k": "k", "number": "number", "_event_time": "at"}}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (plain(push_down=False), "push_down is off"),
        (plain(tens=tens(window={"session": "10s"})), "depend on the rows"),
        (plain(tens=tens(aggregate={"n": "count(distinct number)"})), "not all of its columns"),
        (plain(tens=tens(aggregate={"n": "sum(a) / sum(b)"})), "not all of its columns"),
        (plain(tens=tens(aggregate={"n": "sum(number % 2)"})), "not given all of SQL"),
        (plain(tens=tens(key=["_tags"])), "column of ours"),
        (
            plain("ev -> tens", "tens -> out", "tens.late -> late", late="sink",
                  tens=tens(late="side_output")),
            "late rows",
        ),
        (plain("ev -> tens", "tens -> out", "ev -> raw", raw="sink"), "used elsewhere"),
        (plain("ev -> tens", "b -> tens", "tens -> out", b="source"), "several inputs"),
        (plain({"from": "ev", "to": "tens", "tags": {"or": ["x"]}}, "tens -> out"), "inputs"),
        (plain({"from": "ev", "to": "tens", "durable": True}, "tens -> out"), "inputs"),
        (plain("ev -> m", "m -> tens", "tens -> out", m={"map": SELECT}), "no projection"),
        (plain("ev -> m", "m -> tens", "tens -> out", m={"filter": {
            "python": same, "on_failure": "drop"}}), "no filter"),
        (plain("ev -> f", "f -> tens", "tens -> out", f={"filter": "k like 'a%'"}), "of SQL"),
        (plain(ev={"source": {"quiver": "q", "decode": "openlineage"}}), "decodes"),
    ],
)  # fmt: skip
def test_whatever_else_is_left_to_spark_and_explained(settings: PipelineSettings, why: str) -> None:
    found = how(settings)
    assert isinstance(found, str)
    assert why in found
    assert f"tens adds up in Spark: {found}" in explain(make_plan("p", settings))


def test_explain_says_which_runs() -> None:
    plan = make_plan("p", plain())
    assert "tens adds up where ev is read" in explain(plan)
    fields = as_fields(plan)["queries"][0]
    assert fields["push_down"] == {"tens": {"runs": True, "source": "ev"}}


@pytest.mark.parametrize(
    ("text", "argument"),
    [("SUM( a )", "a"), ("count(1)", ""), ("count(*)", ""), ("avg(f(a, b))", "f(a, b)")],
)
def test_calls_of_one_argument_are_read(text: str, argument: str) -> None:
    found = aggregates_of(ReduceSettings(window={"fixed": "1s"}, aggregate={"c": text}))  # type: ignore[arg-type]
    assert found is not None
    assert found[0].argument == argument


def test_a_pane_divides_the_windows_and_their_distance() -> None:
    def of(**window: Any) -> int:
        reduce = ReduceSettings(window=window, aggregate={"n": "count(*)"})  # type: ignore[arg-type]
        assert reduce.window is not None
        return pane_us(reduce.window)

    assert of(fixed="10s") == 10_000_000
    assert of(sliding={"size": "30s", "every": "10s"}) == 10_000_000
    assert of(sliding={"size": "25s", "every": "10s"}) == 5_000_000
    assert of(sliding={"size": "100ms", "every": "7ms"}) == 1_000


# ------------------------------------------------------------------------- state


def test_state_that_began_by_rows_goes_on_by_rows(tmp_path: Path) -> None:
    recorded = record_of(make_plan("p", plain(push_down=False)))
    write_record(tmp_path, recorded)
    assert "partials" not in (tmp_path / "plan.json").read_text()
    query = only(continued("p", plain(), read_record(tmp_path), tmp_path))
    assert (query.partials, query.push_downs["tens"]) == (frozenset(), "its state began by rows")


def test_state_of_partial_aggregates_goes_on_whatever_becomes_of_the_file(tmp_path: Path) -> None:
    write_record(tmp_path, record_of(make_plan("p", plain())))
    recorded = read_record(tmp_path)
    assert recorded is not None
    assert recorded.reduces["tens"].partials
    off = continued("p", plain(push_down=False), recorded, STATE)
    assert only(off).partials == {"tens"}
    assert "tens adds up in Spark, as before where rows are read: push_down is off" in explain(off)
    again = continued("p", plain(), record_of(off), STATE)
    assert isinstance(only(again).push_downs["tens"], PushDown)
    renamed = {"ev": "source", "sums": tens(), "out": "sink"}
    moved = continued("p", pipeline("ev -> sums", "sums -> out", **renamed), recorded, STATE)
    assert only(moved).partials == {"tens"}
