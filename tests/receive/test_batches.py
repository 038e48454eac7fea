"""Batches come apart into the very bytes of their events."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.receive.batches import TURN_WORK, NotABatch, split_json, split_lines

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(), v, max_size=4)
)
SPACE = st.text(" \t\r\n", max_size=3).map(str.encode)


@st.composite
def written(draw: st.DrawFn) -> bytes:
    """One value, as one of the many ways to write it."""
    indent = draw(st.sampled_from([None, 0, 2]))
    text = json.dumps(draw(VALUES), ensure_ascii=draw(st.booleans()), indent=indent)
    return text.encode("utf-8", "surrogatepass")


@given(st.lists(written(), max_size=6), SPACE)
def test_elements_of_an_array_keep_their_bytes(elements: list[bytes], space: bytes) -> None:
    body = space + b"[" + space + (space + b"," + space).join(elements) + space + b"]" + space
    assert list(split_json(body)) == elements


@given(st.lists(written(), max_size=4), st.lists(written(), max_size=3), SPACE)
def test_elements_of_events_keep_their_bytes(
    elements: list[bytes], others: list[bytes], space: bytes
) -> None:
    array = b"[" + b",".join(elements) + b"]"
    fields = [b'"k%d":' % n + other for n, other in enumerate(others)]
    fields.insert(len(fields) // 2, b'"events"' + space + b":" + space + array)
    body = b"{" + space + (b"," + space).join(fields) + space + b"}"
    assert list(split_json(body)) == elements


@given(st.binary(max_size=40) | st.text('[]{},:"\\ eventsu0', max_size=40).map(str.encode))
def test_anything_either_comes_apart_or_is_refused(body: bytes) -> None:
    try:
        pieces = [piece for piece in split_json(body) if piece is not None]
    except NotABatch:
        pieces = []
    try:
        whole = json.loads(body)
    except ValueError:
        return
    if isinstance(whole, list):
        assert [json.loads(piece) for piece in pieces] == whole


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  ",
        b"3",
        b'"text"',
        b"[",
        b"[1,]",
        b"[,1]",
        b"[1 2]",
        b"[1]]",
        b"[1] x",
        b'["open',
        b'[{"a": "open]',
        b'[{"a": 1]',
        b"{}",
        b'{"events": 3}',
        b'{"events": {}}',
        b'{"events"}',
        b'{"events": [}',
        b'{"events": []',
        b'{"events": [],}',
        b'{"events": [1], "events": [2]}',
        b"\xef\xbb\xbf[]",
    ],
)
def test_what_is_no_batch_is_refused(body: bytes) -> None:
    with pytest.raises(NotABatch):
        list(split_json(body))


def test_a_bad_element_does_not_take_others_along() -> None:
    assert list(split_json(b'[{"a": NaN}, {"b": \xff}, {"c": 1}]')) == [
        b'{"a": NaN}',
        b'{"b": \xff}',
        b'{"c": 1}',
    ]


def test_an_event_that_is_nested_too_deep_costs_itself_alone() -> None:
    deep = b"[" * 1000 + b"]" * 1000
    assert list(split_json(b"[1," + deep + b",2]")) == [b"1", deep, b"2"]


def turns_of(body: bytes) -> Iterator[bytes | None]:
    """Go as far as a batch can be taken apart."""
    try:
        yield from split_json(body)
    except NotABatch:
        return


def test_a_body_of_brackets_is_given_up_at_once() -> None:
    """One step for each of 32 million brackets stopped the gateway for 21 seconds."""
    brackets = b"[" * 16_000_001 + b"]" * 16_000_001
    assert len(list(turns_of(brackets))) <= 4, "it was counted, some megabytes of it, not walked"
    below_the_count = b"[" * 1_900_000
    with pytest.raises(NotABatch, match="nested more than 2540 levels"):
        list(split_json(below_the_count))


@pytest.mark.parametrize(
    "inside",
    [
        b"[]," * 400_000 + b"1",
        b'"",' * 1_000_000 + b"1",
        b'"' + b"\\n" * 2_000_000 + b'"',
        b'"' + b"x" * 4_000_000 + b'"',
        b"1," * 1_000_000 + b"1",
    ],
    ids=["brackets", "strings", "escapes", "long", "numbers"],
)
def test_a_large_event_is_walked_in_turns(inside: bytes) -> None:
    body = b"[[" + inside + b"]]"
    found = list(split_json(body))
    assert [event for event in found if event is not None] == [body[1:-1]]
    # No more than a few hundred kilobytes, or ten thousand brackets, between two turns.
    assert found.count(None) >= len(body) // (1024 * 1024) + inside.count(b"[") // TURN_WORK


def test_blank_lines_cost_no_memory_and_take_turns() -> None:
    body = b"{}\n" + b" \n" * 1_000_000 + b"\n" * 1_000_000 + b"{}"
    found = list(split_lines(body))
    assert [event for event in found if event is not None] == [b"{}", b"{}"]
    assert found.count(None) == 1_000_002 // TURN_WORK


def test_a_long_string_without_an_end_is_refused() -> None:
    with pytest.raises(NotABatch):
        list(split_json(b'["' + b'\\"a' * 200_000))


@given(st.lists(written().map(lambda v: v.replace(b"\n", b"")), max_size=5))
def test_lines_keep_their_bytes(events: list[bytes]) -> None:
    kept = [event.strip(b" \t\r") for event in events if event.strip(b" \t\r")]
    assert list(split_lines(b"\r\n".join(events))) == kept
    assert list(split_lines(b"\n\n  \n" + b"\n\n".join(events) + b"\n")) == kept
