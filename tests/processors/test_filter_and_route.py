"""Conditions: globs over job, datasets, producer and type; keep, drop, and ports."""

from __future__ import annotations

import fnmatch
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.processors.passing import event_of

from holdfast.processors import filter as filter_module
from holdfast.processors import route
from holdfast.processors.match import Condition, Matcher, glob

EVENT: dict[str, Any] = {
    "eventType": "COMPLETE",
    "producer": "https://github.com/OpenLineage/OpenLineage/tree/1.40.0/integration/spark",
    "run": {"runId": "x"},
    "job": {"namespace": "prod-eu", "name": "orders.daily"},
    "inputs": [{"namespace": "s3://raw", "name": "orders"}],
    "outputs": [{"namespace": "postgres://db:5432", "name": "public.orders"}],
}


def holds(**fields: list[str]) -> bool:
    return Matcher(Condition.model_validate(fields)).holds(EVENT)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"job_namespace": ["prod-*"]}, True),
        ({"job_namespace": ["prod"]}, False),
        ({"job_namespace": ["PROD-*"]}, False),
        ({"job_namespace": ["test", "prod-??"]}, True),
        ({"job_name": ["orders.*"]}, True),
        ({"job_name": ["*.daily"], "job_namespace": ["test"]}, False),
        ({"dataset_namespace": ["s3://*"]}, True),
        ({"dataset_namespace": ["postgres://*"], "dataset_name": ["public.*"]}, True),
        ({"dataset_namespace": ["s3://*"], "dataset_name": ["public.*"]}, False),
        ({"producer": ["*/integration/spark"]}, True),
        ({"event_type": ["START", "COMPLETE"]}, True),
        ({"event_type": ["START"]}, False),
    ],
)
def test_a_condition_holds_by_globs(fields: dict[str, list[str]], expected: bool) -> None:
    assert holds(**fields) is expected


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"job": None},
        {"job": []},
        {"job": {"namespace": 3}},
        {"inputs": [3, None]},
        {"inputs": {}},
    ],
)
def test_what_is_not_there_does_not_match(document: dict[str, Any]) -> None:
    for field in ("job_namespace", "dataset_name", "event_type"):
        assert not Matcher(Condition.model_validate({field: ["*"]})).holds(document)


def test_the_dataset_of_a_dataset_event_counts() -> None:
    condition = Condition(dataset_name=("orders",))
    assert Matcher(condition).holds({"dataset": {"namespace": "s3://raw", "name": "orders"}})


@given(
    patterns=st.lists(st.text("ab*?[]!.", min_size=1, max_size=8), min_size=1, max_size=4),
    text=st.text("ab.*[", max_size=8),
)
def test_globs_together_mean_what_each_means_alone(patterns: list[str], text: str) -> None:
    alone = any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns)
    assert (glob(patterns).match(text) is not None) is alone


def test_a_glob_with_many_stars_does_not_run_away() -> None:
    # Backtracking from star to star would take longer than anybody waits.
    assert glob(["*a" * 20 + "b"]).match("a" * 5000) is None


@pytest.mark.parametrize(
    ("keep", "drop", "passes"),
    [
        ([{"job_namespace": ["prod-*"]}], [], True),
        ([{"job_namespace": ["test-*"]}], [], False),
        ([{"job_namespace": ["test-*"]}, {"event_type": ["COMPLETE"]}], [], True),
        ([], [{"job_namespace": ["test-*"]}], True),
        ([], [{"job_namespace": ["prod-*"]}], False),
        ([{"job_namespace": ["prod-*"]}], [{"event_type": ["COMPLETE"]}], False),
    ],
)
def test_a_filter_keeps_and_drops(keep: list[Any], drop: list[Any], passes: bool) -> None:
    config = filter_module.Config.model_validate({"keep": keep, "drop": drop})
    event = event_of(EVENT)
    assert filter_module.make(config).process(event) is (event if passes else None)


def test_the_first_rule_that_holds_is_the_way() -> None:
    rules = [
        {"job_namespace": ["test-*"], "port": "nowhere"},
        {"event_type": ["COMPLETE"], "port": "done"},
        {"job_namespace": ["prod-*"], "port": "all"},
    ]
    router = route.make(route.Config.model_validate({"rules": rules, "default": "rest"}))
    assert router.port(event_of(EVENT)) == "done"
    assert router.port(event_of({**EVENT, "eventType": "START"})) == "all"
    assert router.port(event_of({})) == "rest"
    assert router.ports == {"nowhere", "done", "all", "rest"}


def test_without_a_default_the_rest_goes_nowhere() -> None:
    rules = [{"event_type": ["FAIL"], "port": "alarms"}]
    router = route.make(route.Config.model_validate({"rules": rules}))
    assert router.port(event_of(EVENT)) is None
    assert router.ports == {"alarms"}


@pytest.mark.parametrize(
    ("model", "config"),
    [
        (filter_module.Config, {}),
        (filter_module.Config, {"keep": [{}]}),
        (filter_module.Config, {"keep": [{"job_namespace": [""]}]}),
        (filter_module.Config, {"keep": [{"namespace": ["a"]}]}),
        (route.Config, {"rules": []}),
        (route.Config, {"rules": [{"port": "a"}]}),
        (route.Config, {"rules": [{"port": "a b", "job_name": ["x"]}]}),
        (route.Config, {"rules": [{"job_name": ["x"]}]}),
    ],
)
def test_a_configuration_that_says_nothing_is_refused(model: Any, config: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        model.model_validate(config)
