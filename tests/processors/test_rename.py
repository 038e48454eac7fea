"""Renaming: everywhere the specification has a namespace, and nowhere else."""

from __future__ import annotations

import copy
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.processors.passing import DOCUMENTS, event_of, made, members, whole_event
from tests.signals.events import dataset_event, own

from holdfast.processors import rename
from holdfast.signals.event import Event


def renamed(event: Event, *rules: dict[str, str]) -> dict[str, Any]:
    processor = made(rename, namespaces=rules)
    passed = processor.process(event)
    assert passed is not None
    document: dict[str, Any] = orjson.loads(passed.payload)
    return document


def namespaces(document: Any) -> list[str]:
    return [value for _, step, value in members(document) if step == "namespace"]


def test_every_namespace_of_the_specification_is_renamed() -> None:
    # Every field that the installed client's classes have is in it, so a new place is missed here.
    document = whole_event()
    for number, (container, step, _) in enumerate(list(members(document))):
        if step == "namespace":
            container[step] = f"old/{number}"
    assert len(namespaces(document)) > 20
    found = renamed(event_of(document), {"prefix": "old/", "to": "new/"})
    for container, step, value in list(members(document)):
        if step == "namespace":
            container[step] = value.replace("old/", "new/")
    assert found == document


@pytest.mark.parametrize("path", [".".join(path) for path in rename.PLACES])
def test_every_place_counts_alone(path: str) -> None:
    def build(steps: list[str]) -> Any:
        if not steps:
            return {"namespace": "a", "name": "n"}
        inner = build(steps[1:])
        if steps[0] != "*":
            return {steps[0]: inner}
        return {"column": inner} if steps[1:2] in (["inputFields"], ["inputs"]) else [inner]

    document = build(path.split("."))
    assert namespaces(renamed(event_of(document), {"exact": "a", "to": "b"})) == ["b"]


def test_the_facets_of_a_dataset_event_are_renamed() -> None:
    symlinks = {"identifiers": [{"namespace": "data", "name": "x", "type": "TABLE"}]}
    document = dataset_event()
    document["dataset"]["facets"] = {"symlinks": symlinks}
    found = renamed(event_of(document), {"exact": "data", "to": "lake"})
    assert set(namespaces(found)) == {"lake"}


def test_a_column_may_be_called_like_a_wildcard() -> None:
    field = {"inputFields": [{"namespace": "a", "name": "n", "field": "*"}]}
    fields = {"*": field, "other": field}
    document = {"inputs": [{"namespace": "a", "facets": {"columnLineage": {"fields": fields}}}]}
    found = renamed(event_of(document), {"exact": "a", "to": "b"})
    assert namespaces(found) == ["b", "b", "b"]


def test_facets_outside_the_specification_are_left() -> None:
    document = {"job": {"namespace": "a", "facets": {"my_own": {"namespace": "a"}}}}
    found = renamed(event_of(document), {"exact": "a", "to": "b"})
    assert found == {"job": {"namespace": "b", "facets": {"my_own": {"namespace": "a"}}}}


@pytest.mark.parametrize(
    ("namespace", "expected"),
    [
        ("prod", "live"),
        ("prod-eu", "live/eu"),
        ("prod-", "live/"),
        ("production", "production"),
        ("s3://bucket-7", "lake/7"),
        ("s3://bucket-7/x", "s3://bucket-7/x"),
        ("xs3://bucket-7", "xs3://bucket-7"),
        ("s3://bucket-7\n", "s3://bucket-7\n"),
        ("", ""),
        ("gone", "gone"),
        ("p" * 5000, "q" + "p" * 4999),
    ],
)
def test_the_first_rule_that_holds_decides(namespace: str, expected: str) -> None:
    rules = (
        {"exact": "prod", "to": "live"},
        {"prefix": "prod-", "to": "live/"},
        {"prefix": "prod-eu", "to": "never"},
        {"regex": r"s3://bucket-(\d+)", "to": r"lake/\1"},
        {"prefix": "gone", "to": ""},
        {"prefix": "pp", "to": "qp"},
    )
    found = renamed(event_of({"job": {"namespace": namespace}}), *rules)
    assert found["job"]["namespace"] == expected


@given(document=DOCUMENTS.filter(lambda d: isinstance(d, dict)))
def test_only_namespaces_change(document: dict[str, Any]) -> None:
    found = renamed(event_of(document), {"regex": "(?s).+", "to": "x"})
    after, before = copy.deepcopy(found), own(document)
    for version in (after, before):
        for container, step, value in list(members(version)):
            if step == "namespace" and isinstance(value, str):
                container[step] = ""
    assert after == before


@given(namespace=st.text(st.characters(codec="utf-8"), max_size=20))
def test_any_namespace_is_compared_as_it_is(namespace: str) -> None:
    rule = {"exact": "a", "to": "b"}
    found = renamed(event_of({"job": {"namespace": namespace}}), rule)
    assert found["job"]["namespace"] == ("b" if namespace == "a" else namespace)


@pytest.mark.parametrize(
    "rule",
    [
        {"to": "b"},
        {"exact": "a", "prefix": "a", "to": "b"},
        {"exact": "a"},
        {"exact": "a", "to": ""},
        {"regex": "(a", "to": "b"},
        {"regex": "a(?=b)", "to": "b"},
        {"regex": r"(a)\1", "to": "b"},
        {"regex": "a*", "to": "b"},
        {"regex": "(a)", "to": r"\2"},
        {"regex": "a", "to": "\\"},
    ],
)
def test_a_rule_that_cannot_work_is_refused(rule: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        rename.Config.model_validate({"namespaces": [rule]})
