"""Batches taken apart without parsing them: every event keeps the very bytes it came in.

A JSON parser gives values, not the bytes they were written as, and writing them again would change
numbers, key order and escapes. So the array is only walked: strings are skipped, brackets counted.
Whether an element is sound JSON is judged when it is parsed by itself; a bad one (a `NaN`, say)
then costs itself alone, and not the batch.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator

# What stands between two brackets, strings included. Possessive: nothing is tried twice.
_BETWEEN_BRACKETS = re.compile(rb'[^"{}\[\]]*+(?:"(?:[^"\\]++|\\.)*+"[^"{}\[\]]*+)*+', re.DOTALL)
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_SCALAR = re.compile(rb"[^\s,:\[\]{}\"]+")
_SPACE = re.compile(rb"[ \t\r\n]*+")
_EVENTS_KEY = b'"events"'


class NotABatch(Exception):
    """The body cannot be taken apart. The message is for the sender."""


def split_json(body: bytes) -> Iterator[bytes]:
    """Yield the elements of a JSON array, or of the array `events` of a JSON object."""
    start = _skip_space(body, 0)
    first = body[start : start + 1]
    if first == b"[":
        end = yield from _elements(body, start)
    elif first == b"{":
        end = yield from _events_of_object(body, start)
    else:
        raise NotABatch("the body is neither a JSON array nor an object")
    if _skip_space(body, end) != len(body):
        raise NotABatch("something follows the end of the batch")


def split_lines(body: bytes) -> Iterator[bytes]:
    """Yield the lines that are not blank."""
    for line in body.split(b"\n"):
        event = line.strip(b" \t\r")
        if event:
            yield event


def _events_of_object(body: bytes, start: int) -> Generator[bytes, None, int]:
    """Yield the elements of `events`; return where the object ends."""
    position = _skip_space(body, start + 1)
    found = False
    while body[position : position + 1] != b"}":
        key_end = _value_end(body, position)
        is_events = body[position:key_end] == _EVENTS_KEY
        position = _skip_space(body, key_end)
        if body[position : position + 1] != b":":
            raise NotABatch("a key of the batch has no value")
        position = _skip_space(body, position + 1)
        if is_events and body[position : position + 1] == b"[":
            if found:
                raise NotABatch('the object has two arrays "events"')
            found = True
            position = yield from _elements(body, position)
        else:
            position = _value_end(body, position)
        position = _behind_comma(body, position, b"}")
    if not found:
        raise NotABatch('the object has no array "events"')
    return position + 1


def _elements(body: bytes, start: int) -> Generator[bytes, None, int]:
    """Yield the elements of the array that starts here; return where it ends."""
    position = _skip_space(body, start + 1)
    while body[position : position + 1] != b"]":
        end = _value_end(body, position)
        yield body[position:end]
        position = _behind_comma(body, end, b"]")
    return position + 1


def _behind_comma(body: bytes, position: int, closing: bytes) -> int:
    """Return where the next element starts, or the closing bracket stands."""
    position = _skip_space(body, position)
    mark = body[position : position + 1]
    if mark == b",":
        position = _skip_space(body, position + 1)
        if body[position : position + 1] != closing:
            return position
        raise NotABatch("a comma stands before the end of the batch")
    if mark != closing:
        raise NotABatch("the batch ends too early, or a comma is missing")
    return position


def _value_end(body: bytes, start: int) -> int:
    """Return where the value that starts here ends."""
    first = body[start : start + 1]
    if first in (b"{", b"["):
        return _bracket_end(body, start)
    found = (_STRING if first == b'"' else _SCALAR).match(body, start)
    if found is None:
        raise NotABatch("the batch ends too early, or a value is missing")
    return found.end()


def _bracket_end(body: bytes, start: int) -> int:
    depth = 0
    position = start
    while position < len(body):
        depth += 1 if body[position] in b"{[" else -1
        position += 1
        if depth == 0:
            return position
        found = _BETWEEN_BRACKETS.match(body, position)
        assert found is not None, "BUG: a pattern that may be empty did not match"
        position = found.end()
        if body[position : position + 1] == b'"':
            break
    raise NotABatch("the batch ends too early")


def _skip_space(body: bytes, position: int) -> int:
    found = _SPACE.match(body, position)
    assert found is not None, "BUG: a pattern that may be empty did not match"
    return found.end()
