"""Bodies that are no JSON, or odd JSON: a clear problem each, and never an exception."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.signals.events import FACET, event_with, full_event, run_event

from holdfast.errors import BadInput
from holdfast.signals.openlineage.json_text import MAX_DEPTH, elements_of
from holdfast.signals.openlineage.validation import ValidationSettings, Validator

VALIDATOR = Validator()
OFF = Validator(ValidationSettings(level="off"))
EVENT = json.dumps(run_event()).encode()
FULL_EVENT = json.dumps(full_event()).encode()


def told(raw: bytes) -> tuple[str, str]:
    """Return the rule and the message of the only error."""
    document, verdict = VALIDATOR.parse_and_check(raw)
    assert document is None
    assert verdict.kind is None
    (problem,) = verdict.errors
    assert problem.pointer == ""
    assert problem.hint
    return problem.rule, problem.message


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "empty"),
        (b" \r\n\t", "empty"),
        (EVENT[:-1], "ends too early"),
        (EVENT[: len(EVENT) // 2], "ends too early"),
        (EVENT + b"x", "follows the JSON document"),
        (EVENT + b"\n" + EVENT, "follows the JSON document at line 2"),
        (b"\xef\xbb\xbf" + EVENT, "byte order mark"),
        (EVENT.decode().encode("utf-16"), "UTF-16"),
        (EVENT.decode().encode("utf-16-le"), "UTF-16"),
        (EVENT.decode().encode("utf-32"), "UTF-32"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (b'{"a": NaN}', "NaN or Infinity at line 1 column 7"),
        (b'{"a": Infinity}', "NaN or Infinity"),
        (b'{"a": -Infinity}', "NaN or Infinity"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a": "\\ud800"}', "lone surrogate"),
        (b'{"a": "\xed\xa0\x80"}', "lone surrogate"),
        (b'{"a": "\xff"}', "byte 7 is not UTF-8"),
        (b"{'a': 1}", "no valid JSON"),
        (b'{"a": 1,}', "no valid JSON"),
        (b'{"a": 01}', "no valid JSON"),
        (b"<html>", "no valid JSON"),
        (b"{\n\n}}", "follows the JSON document at line 3 column 2"),
    ],
)
def test_what_is_no_json_is_told(raw: bytes, words: str) -> None:
    rule, message = told(raw)
    assert rule == "json"
    assert words in message


def nested(depth: int) -> bytes:
    """Return an event that is as deep as asked for, by a custom facet."""
    # The event, its run, the facets and the facet are levels too.
    facet = FACET | {"x": "@"}
    inner = "[" * (depth - 4) + "]" * (depth - 4)
    return json.dumps(event_with("run", {"deep": facet})).replace('"@"', inner).encode()


def test_an_event_may_be_as_deep_as_the_bound_and_no_deeper() -> None:
    _, verdict = VALIDATOR.parse_and_check(nested(MAX_DEPTH))
    assert verdict.ok
    # So deep an event can still be written again by whatever changes it.
    assert orjson.dumps(orjson.loads(nested(MAX_DEPTH)))
    for validator in (VALIDATOR, OFF):
        document, verdict = validator.parse_and_check(nested(MAX_DEPTH + 1))
        assert document is None
        assert [problem.rule for problem in verdict.errors] == ["depth"]
        assert str(MAX_DEPTH) in verdict.errors[0].message


@pytest.mark.parametrize("depth", [1_000, 1_025, 100_000])
def test_very_deep_nesting_is_refused(depth: int) -> None:
    for raw in (b"[" * depth, b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth):
        assert told(raw)[0] in ("depth", "json")
    assert told(b"[" * depth + b"]" * depth)[0] == "depth"


def test_a_key_that_stands_twice_is_a_warning() -> None:
    raw = EVENT.replace(b'"runId"', b'"runId" : "0", "runId"')
    document, verdict = VALIDATOR.parse_and_check(raw)
    assert document == json.loads(EVENT)
    assert verdict.ok
    assert [(each.pointer, each.rule) for each in verdict.warnings] == [
        ("/run/runId", "equal_keys")
    ]


@pytest.mark.parametrize("raw", [EVENT, EVENT.replace(b" ", b"\n\t "), b'{"a,b": "c,d", "e": 1}'])
def test_without_equal_keys_there_is_no_warning(raw: bytes) -> None:
    assert OFF.parse_and_check(raw)[1].warnings == ()
    assert OFF.parse_and_check(raw, thorough=True)[1].warnings == ()


def test_an_escaped_comma_is_no_equal_key() -> None:
    assert OFF.parse_and_check(b'{"a": "\\u002c"}')[1].warnings == ()


def with_number(digits: str) -> bytes:
    """Return an event with a number in a standard field, and in one of the producer's own."""
    event = event_with("output", {"outputStatistics": {**FACET, "rowCount": "@", "own": "@"}})
    return json.dumps(event).replace('"@"', digits).encode()


@pytest.mark.parametrize("digits", [str(2**63), str(-(2**63) - 1), str(2**64), "1" + "0" * 300])
def test_an_integer_beyond_64_bits_is_a_warning(digits: str) -> None:
    raw = with_number(digits)
    facet = "/outputs/0/outputFacets/outputStatistics"
    found = {
        thorough: [
            (each.pointer, each.rule)
            for each in VALIDATOR.parse_and_check(raw, thorough=thorough)[1].warnings
        ]
        for thorough in (False, True)
    }
    # A field of the standard is always looked at, one of the producer's own when asked for.
    assert found[False] == [(f"{facet}/rowCount", "large_integer")]
    assert sorted(found[True]) == [
        (f"{facet}/own", "large_integer"),
        (f"{facet}/rowCount", "large_integer"),
    ]


@pytest.mark.parametrize("zeros", [400, 10_000])
def test_an_integer_beyond_a_float_is_no_json_to_us(zeros: int) -> None:
    rule, message = told(with_number("1" + "0" * zeros))
    assert rule == "json"
    assert "too large" in message


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), 0, -1, 10**18])
def test_an_integer_of_64_bits_is_fine(number: int) -> None:
    _, verdict = VALIDATOR.parse_and_check(with_number(str(number)), thorough=True)
    assert verdict.ok
    assert verdict.warnings == ()


@given(st.binary(max_size=50) | st.text(max_size=50).map(lambda text: text.encode()))
def test_any_bytes_have_a_verdict(raw: bytes) -> None:
    document, verdict = VALIDATOR.parse_and_check(raw)
    try:
        expected = orjson.loads(raw)
    except orjson.JSONDecodeError:
        assert document is None
        assert len(verdict.errors) == 1
    else:
        assert document == expected


@given(st.data())
def test_a_damaged_event_has_a_verdict(data: st.DataObject) -> None:
    raw = bytearray(data.draw(st.sampled_from([EVENT, FULL_EVENT])))
    for _ in range(data.draw(st.integers(1, 5))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    _, verdict = VALIDATOR.parse_and_check(bytes(raw), thorough=True)
    assert all(problem.message and problem.hint for problem in verdict.errors + verdict.warnings)


# Arrays.

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)


@given(st.lists(JSON, max_size=5), st.sampled_from([None, 1]), st.booleans())
def test_elements_are_cut_out_as_they_are_written(
    items: list[Any], indent: int | None, ascii_only: bool
) -> None:
    whole = json.dumps(items, indent=indent, ensure_ascii=ascii_only)
    elements = elements_of(whole.encode())
    assert [json.loads(element) for element in elements] == items
    place = 0
    for element in elements:
        place = whole.encode().index(element, place) + len(element)


@pytest.mark.parametrize(
    ("raw", "elements"),
    [
        (b"[]", []),
        (b" [ ] ", []),
        (b'[{"a" : 1.50}, [NaN] ,2]', [b'{"a" : 1.50}', b"[NaN]", b"2"]),
        (b'[{"a":1,"a":2}]', [b'{"a":1,"a":2}']),
        (b"[" + b"9" * 10_000 + b"]", [b"9" * 10_000]),
    ],
)
def test_elements_keep_their_text(raw: bytes, elements: list[bytes]) -> None:
    assert elements_of(raw) == elements


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[",
        b"]",
        b"{}",
        b"[1",
        b"[1,]",
        b"[,1]",
        b"[1 2]",
        b"[1]]",
        b"[1],[2]",
        b'["]',
        b"[tru]",
        b"\xff",
        b"[" * 100_000 + b"]" * 100_000,
    ],
)
def test_what_is_no_array_is_refused(raw: bytes) -> None:
    with pytest.raises(BadInput, match="not a JSON array"):
        elements_of(raw)
