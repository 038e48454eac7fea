"""JSON as text: what is wrong with a body that cannot be read, and what is odd about one that can.

A JSON reader keeps the last of two equal keys and rounds an integer beyond 64 bits, and says
nothing. Others keep the first, or refuse. The bytes are stored and forwarded as they came, so that
is no error, but a producer wants to know.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from holdfast.errors import BadInput
from holdfast.signals.openlineage.problem import Problem, pointer_to
from holdfast.signals.openlineage.schema import INT64_MAX, INT64_MIN

# How deeply an event may be nested. It is the depth to which orjson writes: an event that is nested
# deeper could be read, but not be written again by whatever changes it on its way.
MAX_DEPTH = 254

# How many values an event may have: objects, arrays and what stands between commas. Read, one of
# so many takes some hundred megabytes.
MAX_VALUES = 500_000

# Any integer of so few digits fits into 64 bits.
_SAFE_DIGITS = 18

_JSON_HINT = "Send one JSON object, encoded in UTF-8."


def too_deep() -> Problem:
    """Return the problem of a document nested beyond MAX_DEPTH."""
    message = f"the event is nested more than {MAX_DEPTH} levels deep"
    return Problem(
        "", None, "depth", message, "Send a flatter facet, or its content as one string."
    )


def values_in(raw: bytes, first: int = 0, end: int | None = None) -> int:
    """Return about how many values a document has, by counting; commas in strings count, too."""
    return sum(raw.count(mark, first, end) for mark in (b",", b"[", b"{"))


def too_many_values() -> Problem:
    """Return the problem of a document with more than MAX_VALUES."""
    message = f"the event has more than {MAX_VALUES} values"
    hint = "Send several events, or the content of a large facet as one string."
    return Problem("", None, "values", message, hint)


def unreadable(raw: bytes, error: orjson.JSONDecodeError) -> Problem:
    """Return what is wrong with a body that is no JSON, without showing any of it."""
    if "depth" in error.msg:
        return too_deep()
    message, hint = _wrong_encoding(raw) or _wrong_syntax(error)
    return Problem("", None, "json", message, hint)


def _wrong_encoding(raw: bytes) -> tuple[str, str] | None:
    if not raw.strip():
        return "the body is empty", _JSON_HINT
    if raw.startswith(b"\x1f\x8b"):
        return "the body is compressed with gzip", "Send the header `Content-Encoding: gzip` too."
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in raw[:4]:
        return "the body is encoded in UTF-16 or UTF-32", _JSON_HINT
    if raw.startswith(b"\xef\xbb\xbf"):
        return "the body begins with a byte order mark", "Send UTF-8 without a byte order mark."
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        if raw[error.start] == 0xED:  # noqa: PLR2004
            return f"byte {error.start} begins a lone surrogate", _SURROGATE_HINT
        return f"byte {error.start} is not UTF-8", _JSON_HINT
    return None


_SURROGATE_HINT = "Half a character cannot be stored; send the whole one, or U+FFFD in its place."


def _wrong_syntax(error: orjson.JSONDecodeError) -> tuple[str, str]:
    place = f"line {error.lineno} column {error.colno}"
    if error.doc.startswith(("NaN", "Infinity"), error.pos):
        hint = "JSON has no NaN and no Infinity: leave the field out, or send a number."
        return f"NaN or Infinity at {place}", hint
    if "surrogate" in error.msg:
        return f"a lone surrogate at {place}", _SURROGATE_HINT
    if "after document" in error.msg:
        hint = "Send one event per request; several go to the batch endpoint."
        return f"something follows the JSON document at {place}", hint
    if "end of data" in error.msg:
        hint = "The body was cut off on its way, or a bracket or quote is missing."
        return f"the JSON document ends too early, at {place}", hint
    if "infinity" in error.msg:
        hint = "Send a number that a 64-bit float can hold."
        return f"a number that is too large at {place}", hint
    return f"no valid JSON: {error.msg}, at {place}", _JSON_HINT


@dataclass(frozen=True)
class _Pairs:
    """An object as it is written: every key, in order, also twice."""

    pairs: list[tuple[str, Any]]


class _LargeInteger:
    """An integer beyond 64 bits."""


def oddities(raw: bytes) -> Iterator[Problem]:
    """Yield the equal keys and the large integers of a valid document no deeper than MAX_DEPTH."""
    top = json.loads(raw, object_pairs_hook=_Pairs, parse_int=_read_integer)
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), top)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, _LargeInteger):
            yield large_integer(pointer_to(path), None)
        elif isinstance(value, list):
            waiting += [((*path, place), item) for place, item in enumerate(value)]
        elif isinstance(value, _Pairs):
            seen = set()
            for key, item in value.pairs:
                if key in seen:
                    yield _equal_keys(pointer_to((*path, key)))
                seen.add(key)
                waiting.append(((*path, key), item))


def may_have_oddities(raw: bytes, written: bytes) -> bool:
    """Whether a document may have equal keys, given how it is written after it was read.

    Then a comma is missing; unless another one came by an escape, which reading takes out.
    """
    if written == raw:
        return False
    # Searched for a single byte first: that is far faster, and most documents have no escape.
    has_escaped_comma = b"\\" in raw and b"\\u002" in raw
    return has_escaped_comma or written.count(b",") != raw.count(b",")


def has_equal_keys(raw: bytes, document: object) -> bool:
    """Whether an object has a duplicate key, in a valid document no deeper than MAX_DEPTH."""
    if not may_have_oddities(raw, orjson.dumps(document)):
        return False
    return any(problem.rule == "equal_keys" for problem in oddities(raw))


def _read_integer(text: str) -> int | _LargeInteger:
    digits = len(text.lstrip("-"))
    if digits <= _SAFE_DIGITS or (digits == _SAFE_DIGITS + 1 and is_int64(int(text))):
        return 0
    return _LargeInteger()


def is_int64(number: int) -> bool:
    """Say whether an integer fits into 64 bits with a sign."""
    return INT64_MIN <= number <= INT64_MAX


def large_integer(pointer: str, facet: str | None) -> Problem:
    """Return the problem of an integer that most readers cannot hold."""
    message = "an integer beyond 64 bits; most readers round it or refuse it"
    return Problem(
        pointer, facet, "large_integer", message, "Send it as a string, or in a larger unit."
    )


def _equal_keys(pointer: str) -> Problem:
    message = "duplicate key in one object; the last one was checked"
    return Problem(
        pointer,
        None,
        "equal_keys",
        message,
        "Send each key once: readers differ in which they keep.",
    )


def elements_of(raw: bytes) -> list[bytes]:
    """Return the elements of a JSON array, each exactly as it is written.

    What is between the elements is checked, what is inside them only as far as needed to find
    their ends. Raises `BadInput`.
    """
    try:
        text = raw.decode()
        return [element.encode() for element in _split(text)]
    except (ValueError, RecursionError) as error:
        message = "not a JSON array"
        raise BadInput(message, hint="Send `[event, event, …]`, encoded in UTF-8.") from error


_BLANKS = " \t\n\r"


def _split(text: str) -> Iterator[str]:
    # Numbers are not needed, and may be longer than Python reads.
    decode = json.JSONDecoder(parse_int=len, parse_float=len, parse_constant=len).raw_decode
    text = text.strip(_BLANKS)
    if text[:1] != "[" or text[-1:] != "]" or len(text) == 1:
        raise ValueError("no array")
    last = len(text) - 1
    place = _after_blanks(text, 1)
    while place < last:
        _, end = decode(text, place)
        yield text[place:end]
        place = _after_blanks(text, end)
        if place < last:
            if text[place] != ",":
                raise ValueError("no comma between elements")
            place = _after_blanks(text, place + 1)
            if place == last:
                raise ValueError("no element after a comma")
    if place != last:
        raise ValueError("an element that does not end")


def _after_blanks(text: str, place: int) -> int:
    while place < len(text) and text[place] in _BLANKS:
        place += 1
    return place
