"""What is wrong with a pipeline is found, all at once, and each thing at its place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from pydantic import ValidationError
from tests.dataflow.spec.pipelines import WINDOW, pipeline, pipelines, same

from holdfast.dataflow.spec import Pipeline, PipelineSettings, check
from holdfast.dataflow.spec.checks import plausible
from holdfast.dataflow.spec.pipeline import TagCondition
from holdfast.errors import BadConfig

GOOD = {"a": "source", "b": "map", "c": "sink"}
ASIDE = {"reduce": {**WINDOW, "late": "side_output"}}


def found(*edges: Any, **vertices: Any) -> list[tuple[tuple[str | int, ...], str]]:
    return [(one.path, one.message) for one in check(pipeline(*edges, **vertices))]


def test_a_good_pipeline_has_no_findings() -> None:
    assert found("a -> b", "b -> c", **GOOD) == []
    assert found("a -> b", "b -> c", "b.late -> d", a="source", b=ASIDE, c="sink", d="sink") == []


@given(pipelines())
@settings(deadline=None)
def test_good_random_pipelines_have_no_findings(one: PipelineSettings) -> None:
    assert check(one) == []


def test_an_unknown_vertex_is_told_with_the_one_that_was_meant() -> None:
    (one,) = check(pipeline("a -> b", "b -> c", "a -> sinc", a="source", b="map", c="sink"))
    assert one.path == ("edges", 2)
    assert one.message == "there is no vertex 'sinc'"
    (two,) = check(pipeline("events -> out", "evnts -> out", events="source", out="sink"))
    assert two.hint == "did you mean 'events'?"


def test_a_circle_is_told_once_at_an_edge_of_it() -> None:
    kinds = {"a": "source", "b": "map", "c": "map", "d": "sink"}
    one = found("a -> b", "b -> c", "c -> b", "c -> d", **kinds)
    assert one == [(("edges", 1), "the edge b -> c closes a circle")]
    assert found("a -> b", "b -> b", "b -> c", **GOOD) == [
        (("edges", 1), "the edge b -> b closes a circle")
    ]


def test_dead_ends_and_vertices_that_get_nothing_are_told() -> None:
    assert found("a -> c", a="source", b="map", c="sink") == [
        (("vertices", "b"), "nothing leads to 'b'"),
        (("vertices", "b"), "the rows of 'b' go nowhere"),
    ]
    assert found("b -> c", b="map", c="sink") == [
        (("vertices", "b"), "nothing leads to 'b'"),
        (("vertices", "c"), "no source reaches 'c'"),
    ]


@pytest.mark.parametrize(
    ("edge", "message"),
    [
        ("c -> b", "'c' is a sink: it has no output"),
        ("b -> a", "'a' is a source: it has no input"),
        ("b.later -> c", "there is no output 'later'"),
        ("b.late -> c", "'b' has no late rows to send"),
        ("b.failed -> c", "'b' has no failed rows to send"),
        ("a -> b", "the edge a -> b is here twice"),
    ],
)
def test_an_edge_that_does_not_fit_is_told(edge: str, message: str) -> None:
    assert (("edges", 2), message) in found("a -> b", "b -> c", edge, **GOOD)


@pytest.mark.parametrize(
    ("reduce", "path", "message"),
    [
        ({"aggregate": {"n": "count(*)"}}, (), "the reduce 'b' has no window"),
        ({**WINDOW, "late": "side_output"}, ("late",), "late rows are sent nowhere"),
        ({**WINDOW, "key": ["k", "k"]}, ("key",), "a column is in the key twice"),
        ({**WINDOW, "key": ["_wm"]}, ("key", 0), "'_wm' cannot be a key"),
        ({**WINDOW, "key": ["rows"]}, ("aggregate", "rows"), "'rows' is a column of the key, too"),
        (
            {**WINDOW, "window": {"fixed": 0.0015}},
            ("window", "fixed"),
            "windows have whole milliseconds",
        ),
        (
            {**WINDOW, "aggregate": {"window_end": "max(x)"}},
            ("aggregate", "window_end"),
            "'window_end' is a column of Holdfast's own",
        ),
        (
            {"window": {"fixed": "1m"}, "fold": same, "returns": "x int"},
            ("fold",),
            "it has no start, add, end",
        ),
        (
            {**WINDOW, "aggregate": {"n": "sum(x"}},
            ("aggregate", "n"),
            "this is not an SQL expression: a bracket is not closed",
        ),
    ],
)
def test_a_wrong_reduce_is_told(
    reduce: dict[str, Any], path: tuple[str | int, ...], message: str
) -> None:
    kinds = {"a": "source", "b": {"reduce": reduce}, "c": "sink"}
    told = check(pipeline("a -> b", "b -> c", **kinds), imports=True)
    wrong = [(one.path, one.message) for one in told]
    assert wrong == [(("vertices", "b", "reduce", *path), message)]


@pytest.mark.parametrize(
    ("settings", "path", "message"),
    [
        ({"map": {"add": {"_wm": "1"}}}, ("map", "add", "_wm"), "is a column of Holdfast's own"),
        ({"map": {"select": {"x": "explode(y)"}}}, ("map", "select", "x"), "many rows of one"),
        ({"filter": "x = 'a"}, ("filter", "where"), "a ' is not closed"),
        ({"flat_map": {"explode": " "}}, ("flat_map", "explode"), "it is empty"),
    ],
)
def test_a_wrong_step_is_told(
    settings: dict[str, Any], path: tuple[str | int, ...], message: str
) -> None:
    (one,) = check(pipeline("a -> b", "b -> c", a="source", b=settings, c="sink"))
    assert one.path == ("vertices", "b", *path)
    assert message in one.message


def test_a_parser_is_asked_for_every_expression() -> None:
    asked: list[str] = []

    def parse(text: str) -> str | None:
        asked.append(text)
        return "no" if text == "x > 1" else None

    kinds = {"a": "source", "b": {"filter": "x > 1"}, "r": {"reduce": WINDOW}, "c": "sink"}
    (one,) = check(pipeline("a -> b", "b -> r", "r -> c", **kinds), parse=parse)
    assert one.path == ("vertices", "b", "filter", "where")
    assert asked == ["x > 1", "count(*)"]


def test_functions_are_imported_if_that_is_asked() -> None:
    kinds = {
        "a": "source",
        "b": {"map": {"python": "tests.dataflow.spec.pipelines:nobody"}},
        "c": {"sink": {"python": "no.such.module:f"}},
    }
    assert found("a -> b", "b -> c", **kinds) == []
    told = check(pipeline("a -> b", "b -> c", **kinds), imports=True)
    assert [one.path for one in told] == [
        ("vertices", "b", "map", "python"),
        ("vertices", "c", "sink", "python"),
    ]


def test_two_sinks_do_not_share_a_place() -> None:
    kinds = {"a": "source", "b": {"sink": {"files": "x"}}, "c": {"sink": {"files": "x"}}}
    assert found("a -> b", "a -> c", **kinds) == [
        (("vertices", "c", "sink"), "'b' writes to 'x', too")
    ]


def test_oddities_are_warnings() -> None:
    tagged = {"from": "b", "to": "c", "tags": {"or": ["even"]}}
    kinds = {"a": "source", "b": "map", "c": "sink"}
    assert found("a -> b", tagged, **kinds) == []  # the source may have tags
    patient = {"reduce": {**WINDOW, "allowed_lateness": "5s"}}
    told = check(
        pipeline("a -> b", "b -> d", "d -> c", a="source", b="reduce", c="sink", d=patient)
    )
    assert [(one.severity, one.path) for one in told] == [("warning", ("vertices", "b", "reduce"))]


@pytest.mark.parametrize(
    "vertex",
    [
        {},
        {"map": {"add": {"x": "1"}}, "filter": "x"},
        {"map": {}},
        {"map": {"add": {"x": "1"}, "python": same}},
        {"map": {"python": "no colon"}},
        {"map": {"python": 7}},
        {"reduce": {**WINDOW, "window": {"fixed": "1m", "session": "1m"}}},
        {"reduce": {**WINDOW, "window": {"fixed": 0}}},
        {"reduce": {**WINDOW, "window": {"sliding": {"size": "1m", "every": "2m"}}}},
        {"reduce": {"window": {"fixed": "1m"}, "aggregate": {}}},
        {"reduce": {**WINDOW, "python": same, "returns": "x int"}},
        {"reduce": {"window": {"fixed": "1m"}, "python": same}},
        {"reduce": {"window": {"fixed": "1m"}, "fold": same}},
        {"reduce": {"window": {"session": "1m"}, "fold": same, "returns": "x int"}},
        {"reduce": {"window": {"session": "1m"}, "arrow": same, "returns": "x int"}},
        {"reduce": {**WINDOW, "arrow": same, "returns": "x int"}},
        {"filter": {"where": "x", "arrow": same}},
        {"flat_map": {"python": same, "arrow": same}},
        {"sink": {}},
        {"sink": {"files": "x", "quiver": "y"}},
        {"sink": {"files": "x", "fallback": {"python": same}}},
        {"source": {"quiver": []}},
    ],
)
def test_a_vertex_of_no_shape_is_refused(vertex: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PipelineSettings.model_validate({"vertices": {"a": vertex}})


@pytest.mark.parametrize("edge", ["a", "a - b", "a -> b -> c", {"from": "a"}, 7])
def test_an_edge_of_no_shape_is_refused(edge: Any) -> None:
    with pytest.raises(ValidationError):
        pipeline(edge, **GOOD)


def test_tag_conditions_are_and_or_not() -> None:
    one = TagCondition.model_validate({"or": ["a", "b"], "and": ["c"], "not": ["d"]})
    assert one.admits(frozenset("ac"))
    assert not one.admits(frozenset("ab"))
    assert not one.admits(frozenset("c"))
    assert not one.admits(frozenset("acd"))
    with pytest.raises(ValidationError):
        TagCondition.model_validate({})


@pytest.mark.parametrize(
    ("text", "wrong"),
    [("a(b)'('", False), ("a)", True), ("'a", True), ("(", True), ("", True), ("`a(`", False)],
)
def test_what_cannot_be_sql_is_known_without_spark(text: str, wrong: bool) -> None:
    assert (plausible(text) is not None) == wrong


def test_the_builder_makes_what_a_file_says() -> None:
    built = (
        Pipeline(max_delay="5s", trigger="1s")
        .source("events", quiver="q")
        .map(add={"n": "1"}, name="one")
        .filter("n > 0")
        .window(size="1m", every="10s")
        .aggregate("sums", key="k", total="sum(n)", late="side_output")
        .sink(files="out", name="out")
        .after("sums", "late")
        .sink(quiver="late", name="late")
        .after("one")
        .tagged(any_of=["x"])
        .union("events")
        .durable()
        .sink(console=True, name="shown")
    ).settings
    reduce = {
        "window": {"sliding": {"size": "1m", "every": "10s"}},
        "key": "k",
        "aggregate": {"total": "sum(n)"},
        "late": "side_output",
    }
    written = PipelineSettings.model_validate(
        {
            "watermark": {"max_delay": "5s"},
            "trigger": "1s",
            "vertices": {
                "events": {"source": {"quiver": "q"}},
                "one": {"map": {"add": {"n": "1"}}},
                "filter": {"filter": "n > 0"},
                "sums": {"reduce": reduce},
                "out": {"sink": {"files": "out"}},
                "late": {"sink": {"quiver": "late"}},
                "shown": {"sink": {"console": True}},
            },
            "edges": [
                "events -> one",
                "one -> filter",
                "filter -> sums",
                "sums -> out",
                "sums.late -> late",
                {"from": "one", "to": "shown", "tags": {"or": ["x"]}, "durable": True},
                {"from": "events", "to": "shown", "tags": {"or": ["x"]}, "durable": True},
            ],
        }
    )
    assert built == written


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Pipeline().source(quiver="q").aggregate(n="count(*)").settings, "no window"),
        (lambda: Pipeline().source(quiver="q").settings, "go nowhere"),
        (lambda: Pipeline().source(quivr="q").settings, "quivr"),
        (lambda: Pipeline().source("a", quiver="q").sink(files="x", name="a"), "already"),
        (
            lambda: Pipeline().source(quiver="q").window(fixed="1m").sink(files="x"),
            "followed by an aggregate",
        ),
    ],
)
def test_the_builder_refuses_what_a_file_would(build: Any, message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        build()
