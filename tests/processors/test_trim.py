"""Trimming: what is too large goes, a marker says so, and the event stays valid."""

from __future__ import annotations

import math
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.processors.passing import event_of, made, members, spaced, whole_event
from tests.signals.events import FACET, run_event
from tests.support.examples import examples

from holdfast.processors import trim
from holdfast.signals.openlineage.validation import ValidationSettings, Validator

STRICT = Validator(ValidationSettings(level="strict"))
SLOTS = [
    ("run", "facets"),
    ("job", "facets"),
    ("inputs", "facets"),
    ("inputs", "inputFacets"),
    ("outputs", "facets"),
    ("outputs", "outputFacets"),
]


def trimmed(document: Any, **config: Any) -> dict[str, Any]:
    processor = made(trim, **{"max_facet_bytes": 1024, **config})
    passed = processor.process(event_of(document))
    assert passed is not None
    found: dict[str, Any] = orjson.loads(passed.payload)
    return found


def large(size_bytes: int = 5000) -> dict[str, Any]:
    return {**FACET, "plan": "x" * size_bytes}


def facets_of(document: dict[str, Any], holder: str, field: str) -> dict[str, Any]:
    held = document[holder][0] if isinstance(document[holder], list) else document[holder]
    facets: dict[str, Any] = held.setdefault(field, {})
    return facets


@pytest.mark.parametrize(("holder", "field"), SLOTS)
def test_a_large_facet_goes_from_every_place_and_a_marker_says_so(holder: str, field: str) -> None:
    dataset = {"namespace": "data", "name": "d"}
    document = run_event(inputs=[dataset], outputs=[dataset])
    facets_of(document, holder, field).update({"spark.logicalPlan": large(), "other": large()})
    found = trimmed(document, facets=["spark.*"])
    facets = facets_of(found, holder, field)
    assert facets.keys() == {"other", trim.MARKER}
    size_bytes = len(orjson.dumps(large()))
    assert facets[trim.MARKER]["facets"] == [{"name": "spark.logicalPlan", "bytes": size_bytes}]
    assert STRICT.check(found).ok


def test_a_dataset_event_is_trimmed_too() -> None:
    document = {"dataset": {"namespace": "a", "name": "b", "facets": {"columnLineage": large()}}}
    assert trim.MARKER in trimmed(document, facets=["columnLineage"])["dataset"]["facets"]


@settings(max_examples=examples(20))
@given(
    patterns=st.lists(
        st.sampled_from(["*", "schema", "columnLineage", "s*", "parent", "my_own"]), min_size=1
    ),
    max_facet_bytes=st.integers(1024, 6000),
    data=st.data(),
)
def test_whatever_is_trimmed_the_event_stays_valid_and_nothing_large_is_left(
    patterns: list[str], max_facet_bytes: int, data: st.DataObject
) -> None:
    document = whole_event()
    assert STRICT.check(document).ok
    maps = [value for _, step, value in members(document) if str(step).lower().endswith("facets")]
    for facets in maps:
        for facet in facets.values():
            if isinstance(facet, dict) and "_producer" in facet and data.draw(st.booleans()):
                facet["padding"] = "x" * data.draw(st.sampled_from([100, 2000, 8000]))
    found = trimmed(document, facets=patterns, max_facet_bytes=max_facet_bytes)
    assert STRICT.check(found).ok
    again = trimmed(found, facets=patterns, max_facet_bytes=max_facet_bytes)
    assert again == found


@pytest.mark.parametrize("size_bytes", [1024, 1025])
def test_the_limit_itself_is_not_too_large(size_bytes: int) -> None:
    facet = {"plan": "x" * (size_bytes - len(orjson.dumps({"plan": ""})))}
    assert len(orjson.dumps(facet)) == size_bytes
    document = run_event()
    document["run"]["facets"] = {"big": facet}
    found = trimmed(document, facets=["big"])
    assert (trim.MARKER in found["run"]["facets"]) is (size_bytes > 1024)


def test_only_events_over_a_size_are_looked_at() -> None:
    document = run_event()
    document["run"]["facets"] = {"big": large(5000)}
    processor = made(trim, facets=["big"], max_facet_bytes=1024, when_over_bytes=100_000)
    event = event_of(spaced(document))
    assert processor.process(event) is event
    document["run"]["facets"]["small"] = large(100_000)
    passed = processor.process(event_of(document))
    assert passed is not None
    assert passed.document["run"]["facets"].keys() == {"small", trim.MARKER}


def test_a_marker_holds_no_more_of_a_name_than_it_must() -> None:
    document = run_event()
    document["run"]["facets"] = {"k" * 100_000: large()}
    assert len(orjson.dumps(trimmed(document, facets=["k*"]))) < 2000


@pytest.mark.parametrize("facets", [3, None, [], "x", [large()]])
def test_facets_that_are_none_are_left(facets: Any) -> None:
    document = {"run": {"facets": facets}, "padding": "x" * 3000}
    assert trimmed(document, facets=["*"]) == document


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"facets": []},
        {"facets": ["a"], "max_facet_bytes": 10},
        {"facets": ["a"], "max_facet_bytes": math.inf},
        {"facets": [""]},
    ],
)
def test_a_configuration_that_cannot_work_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        trim.Config.model_validate(config)
