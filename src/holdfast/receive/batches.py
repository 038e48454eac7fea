"""Batches taken apart without parsing them: every event keeps the very bytes it came in.

A JSON parser gives values, not the bytes they were written as, and writing them again would change
numbers, key order and escapes. So the array is only walked: strings are skipped, brackets counted.
The walk of a body of many megabytes takes seconds, and is for the event loop: it yields `None` now
and then, so that others get their turn. Whether an element is sound JSON is judged when it is
parsed by itself; a bad one (a `NaN`, say) then costs itself alone, and not the batch.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator

from holdfast.signals.openlineage.json_text import MAX_DEPTH

# Others get their turn after so much work: a bracket, a line or 64 bytes are one unit.
TURN_WORK = 10_000
_BYTES_OF_WORK = 64
# What one pattern may look at before that is counted.
_SLICE_BYTES = 64 * 1024
# Objects and arrays in a batch, and how deep one may be: an event that is nested too deep is a bad
# event, as long as finding its end costs no more than that.
BATCH_BRACKETS_MAX = 2_000_000
WALK_DEPTH_MAX = 10 * MAX_DEPTH
# How much is counted at once.
_COUNT_BYTES = 1024 * 1024

# What stands between two brackets, strings included. Possessive: nothing is tried twice.
_BETWEEN_BRACKETS = re.compile(rb'[^"{}\[\]]*+(?:"(?:[^"\\]++|\\.)*+"[^"{}\[\]]*+)*+', re.DOTALL)
_IN_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_LINE = re.compile(rb"[^\n]++")
_SCALAR = re.compile(rb"[^\s,:\[\]{}\"]+")
_SPACE = re.compile(rb"[ \t\r\n]*+")
_EVENTS_KEY = b'"events"'
_QUOTE = ord('"')


class NotABatch(Exception):
    """The body cannot be taken apart. The message is for the sender."""


BatchSplit = Generator[bytes | None, None, int]


def split_json(body: bytes) -> Iterator[bytes | None]:
    """Yield the elements of a JSON array, or of the array `events` of a JSON object.

    In between, `None` is a good moment to do something else.
    """
    brackets = 0
    for first in range(0, len(body), _COUNT_BYTES):
        brackets += sum(body.count(mark, first, first + _COUNT_BYTES) for mark in (b"[", b"{"))
        if brackets > BATCH_BRACKETS_MAX:
            raise NotABatch(f"the batch has more than {BATCH_BRACKETS_MAX} objects and arrays")
        if first:
            yield None
    start = _skip_space(body, 0)
    opening = body[start : start + 1]
    if opening == b"[":
        end = yield from _elements(body, start)
    elif opening == b"{":
        end = yield from _events_of_object(body, start)
    else:
        raise NotABatch("the body is neither a JSON array nor an object")
    if _skip_space(body, end) != len(body):
        raise NotABatch("something follows the end of the batch")


def split_lines(body: bytes) -> Iterator[bytes | None]:
    """Yield the lines that are not blank; `None` as above."""
    for number, line in enumerate(_LINE.finditer(body), start=1):
        event = line[0].strip(b" \t\r")
        if event:
            yield event
        if number % TURN_WORK == 0:
            yield None


def _events_of_object(body: bytes, start: int) -> BatchSplit:
    """Yield the elements of `events`; return where the object ends."""
    position = _skip_space(body, start + 1)
    found = False
    while body[position : position + 1] != b"}":
        key_end = yield from _value_end(body, position)
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
            position = yield from _value_end(body, position)
        position = _behind_comma(body, position, b"}")
    if not found:
        raise NotABatch('the object has no array "events"')
    return position + 1


def _elements(body: bytes, start: int) -> BatchSplit:
    """Yield the elements of the array that starts here; return where it ends."""
    position = _skip_space(body, start + 1)
    while body[position : position + 1] != b"]":
        end = yield from _value_end(body, position)
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


def _value_end(body: bytes, start: int) -> BatchSplit:
    """Return where the value that starts here ends."""
    first = body[start : start + 1]
    if first in (b"{", b"["):
        return (yield from _bracket_end(body, start))
    if first == b'"':
        return (yield from _string_end(body, start))
    found = _SCALAR.match(body, start)
    if found is None:
        raise NotABatch("the batch ends too early, or a value is missing")
    return found.end()


def _bracket_end(body: bytes, start: int) -> BatchSplit:
    """Return where an object or array ends, by looking at brackets and strings alone.

    Yields None after some work, so that one huge batch does not keep everyone else waiting.
    """
    depth = work = 0
    position = start
    while position < len(body):
        before = position
        if body[position] == _QUOTE:
            # It goes beyond the slice that was looked at, or has no end.
            position = yield from _string_end(body, position)
        else:
            depth += 1 if body[position] in b"{[" else -1
            position += 1
            if depth == 0:
                return position
            if depth > WALK_DEPTH_MAX:
                raise NotABatch(f"an event is nested more than {WALK_DEPTH_MAX} levels deep")
        position = yield from _next_mark(body, position)
        work += 1 + (position - before) // _BYTES_OF_WORK
        if work >= TURN_WORK:
            work = 0
            yield None
    raise NotABatch("the batch ends too early")


def _next_mark(body: bytes, position: int) -> BatchSplit:
    """Return where the next bracket stands, or a string that has no end nearby."""
    while True:
        end = min(len(body), position + _SLICE_BYTES)
        found = _BETWEEN_BRACKETS.match(body, position, end)
        assert found is not None, "BUG: a pattern that may be empty did not match"
        position = found.end()
        if position < end or end == len(body):
            return position
        yield None


def _string_end(body: bytes, start: int) -> BatchSplit:
    position = start + 1
    while True:
        end = min(len(body), position + _SLICE_BYTES)
        found = _IN_STRING.match(body, position, end)
        assert found is not None, "BUG: a pattern that may be empty did not match"
        position = found.end()
        if body[position : position + 1] == b'"':
            return position + 1
        if end == len(body):
            raise NotABatch("the batch ends too early: a string has no end")
        yield None


def _skip_space(body: bytes, position: int) -> int:
    found = _SPACE.match(body, position)
    assert found is not None, "BUG: a pattern that may be empty did not match"
    return found.end()
