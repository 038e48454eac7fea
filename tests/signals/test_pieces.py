"""Large events are explained piece by piece: the same is told, and never more than is needed."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.examples import examples

from holdfast.signals.openlineage import validation
from holdfast.signals.openlineage.validation import (
    PIECE_BYTES_MAX,
    EventKind,
    JsonPiece,
    ValidationSettings,
    Validator,
    failures_of,
    pieces_of,
)

BASE = {"_producer": "https://example.com/p", "_schemaURL": "https://example.com/s.json"}
DATASETS = 150
STANDARD = Validator()


def large_event() -> dict[str, Any]:
    """Return a valid event that is more than one piece."""
    fields = [{"name": f"column_{number}", "type": "string"} for number in range(20)]
    facets = {"schema": {**BASE, "fields": fields}}
    return {
        "eventTime": "2026-11-15T10:00:00Z",
        "producer": "https://example.com/p",
        "schemaURL": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent",
        "eventType": "START",
        "run": {
            "runId": "0193c3f6-0000-7000-8000-000000000000",
            "facets": {f"mine_{number}": {**BASE, "value": "x" * 1000} for number in range(100)},
        },
        "job": {"namespace": "n", "name": "j", "facets": {}},
        "inputs": [{"namespace": "n", "name": f"i{n}", "facets": facets} for n in range(DATASETS)],
        "outputs": [{"namespace": "n", "name": f"o{n}", "facets": facets} for n in range(DATASETS)],
    }


@pytest.mark.parametrize("kind", EventKind)
@pytest.mark.parametrize("level", ["core", "standard", "strict"])
def test_what_is_around_a_piece_is_sound(kind: EventKind, level: Any) -> None:
    around = list(pieces_of({"inputs": [{}], "x": "x" * PIECE_BYTES_MAX}, kind))[-1].document
    verdict = Validator(ValidationSettings(level=level)).check({**around, "inputs": []})
    assert (verdict.kind, verdict.errors, verdict.warnings) == (kind, (), ())


def test_a_valid_event_has_valid_pieces() -> None:
    found = list(pieces_of(large_event(), "run"))
    assert len(found) == 1 + 2 + 3 + 3
    assert all(STANDARD.check(piece.document) == STANDARD.check(large_event()) for piece in found)


LIST_THAT_IS_NONE = "a list that is none"
BREAKS: dict[str, Any] = {
    "a dataset without a name": lambda e, n: e["inputs"][n].pop("name"),
    "a facet without a producer": lambda e, n: e["outputs"][n]["facets"]["schema"].pop("_producer"),
    "a field of the wrong type": lambda e, n: e["inputs"][n]["facets"]["schema"].update(fields=[5]),
    "an odd address": lambda e, n: e["inputs"][n]["facets"]["schema"].update(_schemaURL="odd"),
    "a facet of the run": lambda e, n: e["run"]["facets"][f"mine_{n % 100}"].pop("_schemaURL"),
    "the event itself": lambda e, n: e.pop("producer", None),
    "the job": lambda e, n: e["job"].pop("name", None),
    LIST_THAT_IS_NONE: lambda e, n: e.update(outputs={}),
}


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(BREAKS)), st.integers(0, DATASETS - 1)),
        max_size=8,
        unique=True,
    )
)
@settings(max_examples=examples(60))
def test_the_same_is_told_in_pieces_and_at_once(breaks: list[tuple[str, int]]) -> None:
    event = copy.deepcopy(large_event())
    # The one that takes away a list comes last, after everything that breaks what is in it.
    for name, number in sorted(breaks, key=lambda each: each[0] == LIST_THAT_IS_NONE):
        # Every dataset shares its facets with the others, until it is broken.
        for side in ("inputs", "outputs"):
            if isinstance(event[side], list):
                event[side][number] = copy.deepcopy(event[side][number])
        try:
            BREAKS[name](event, number)
        except KeyError:
            continue
    in_pieces = STANDARD.check(event)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(validation, "PIECE_BYTES_MAX", 1 << 40)
        at_once = STANDARD.check(event)
    assert set(in_pieces.errors) == set(at_once.errors)
    assert set(in_pieces.warnings) == set(at_once.warnings)
    assert len(in_pieces.errors) == len(at_once.errors)


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many failures were listed, call by call."""
    counts: list[int] = []

    def count(
        checker: jsonschema_rs.Validator, piece: JsonPiece, *, only_first: bool
    ) -> Iterable[jsonschema_rs.ValidationError]:
        found = list(failures_of(checker, piece, only_first=only_first))
        counts.append(len(found))
        return found

    monkeypatch.setattr(validation, "failures_of", count)
    return counts


def test_few_failures_are_listed_of_an_event_in_which_all_is_wrong(listed: list[int]) -> None:
    wrong = {"namespace": "n", "facets": {"schema": {}, "dataSource": {}, "version": {}}}
    verdict = STANDARD.check({**large_event(), "inputs": [wrong] * 20_000})
    assert len(verdict.errors) == 51
    assert sum(listed) < 5000


def test_few_failures_are_listed_of_an_event_in_which_all_is_odd(listed: list[int]) -> None:
    odd = {"namespace": "n", "name": "d", "facets": {"schema": {**BASE, "_schemaURL": "odd"}}}
    verdict = STANDARD.check({**large_event(), "inputs": [odd] * 20_000})
    assert verdict.ok
    assert len(verdict.warnings) == 51
    assert sum(listed) < 5000


def test_an_error_behind_very_many_oddities_is_found(listed: list[int]) -> None:
    odd = {"namespace": "n", "name": "d", "facets": {"schema": {**BASE, "_schemaURL": "odd"}}}
    verdict = STANDARD.check({**large_event(), "inputs": [odd] * 5000, "outputs": [{}]})
    assert not verdict.ok
    assert verdict.errors[0].pointer == "/outputs/0"


def test_a_giant_facet_is_judged_by_its_first_failure(listed: list[int]) -> None:
    fields = [{"name": f"f{number}", "type": 5} for number in range(20_000)]
    event = large_event()
    event["inputs"][3] = {
        "namespace": "n",
        "name": "d",
        "facets": {"schema": {**BASE, "fields": fields}},
    }
    verdict = STANDARD.check(event)
    assert [error.pointer for error in verdict.errors] == ["/inputs/3/facets/schema/fields/0/type"]
    assert max(listed) == 1
