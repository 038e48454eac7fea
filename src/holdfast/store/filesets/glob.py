"""Glob patterns: `*` and `?` within a folder, `**` across folders, `[a-z]`, `{one,other}`."""

from __future__ import annotations

import re

from holdfast.errors import BadInput

_SPECIAL = re.compile(r"[*?\[{]")
# Alternatives may stand in alternatives; deeper is nobody's pattern.
_DEPTH_MAX = 8


def literal_prefix(pattern: str) -> str:
    """Return what every path that matches begins with."""
    found = _SPECIAL.search(pattern)
    return pattern[: found.start()] if found else pattern


def compile_glob(pattern: str) -> re.Pattern[str]:
    """Return the pattern as a regular expression for whole paths."""
    translated, end = _translate(pattern, 0, 0)
    if end != len(pattern):
        raise _bad(pattern, "a '}' closes nothing")
    return re.compile(translated, re.DOTALL)


def _translate(pattern: str, at: int, depth: int) -> tuple[str, int]:
    """Return the expression up to the end, or up to what ends an alternative."""
    parts = []
    while at < len(pattern):
        character = pattern[at]
        if depth and character in ",}":
            break
        if character == "}":
            break
        if pattern.startswith("**/", at) and (at == 0 or pattern[at - 1] == "/"):
            parts.append("(?:[^/]+/)*")
            at += 3
        elif pattern.startswith("**", at):
            parts.append(".*")
            at += 2
        elif character in "*?":
            parts.append("[^/]*" if character == "*" else "[^/]")
            at += 1
        elif character == "[":
            expression, at = _characters(pattern, at)
            parts.append(expression)
        elif character == "{":
            expression, at = _alternatives(pattern, at, depth)
            parts.append(expression)
        else:
            parts.append(re.escape(character))
            at += 1
    return "".join(parts), at


def _characters(pattern: str, at: int) -> tuple[str, int]:
    end = pattern.find("]", at + 2)
    if end < 0:
        raise _bad(pattern, "a '[' is not closed")
    inner = pattern[at + 1 : end]
    negated = inner[0] in "!^"
    ranges = _ranges(inner[1:] if negated else inner)
    expression = f"(?!/)[{'^' if negated else ''}{ranges}]"
    try:
        re.compile(expression)
    except re.error:
        raise _bad(pattern, f"[{inner}] is not a range of characters") from None
    return expression, end + 1


def _ranges(inner: str) -> str:
    """Return single characters and ranges; whatever else `re` would see in them is escaped."""
    parts, at = [], 0
    while at < len(inner):
        is_range = inner[at + 1 : at + 2] == "-" and at + 2 < len(inner)
        parts.append(re.escape(inner[at]) + ("-" + re.escape(inner[at + 2]) if is_range else ""))
        at += 3 if is_range else 1
    return "".join(parts)


def _alternatives(pattern: str, at: int, depth: int) -> tuple[str, int]:
    if depth == _DEPTH_MAX:
        raise _bad(pattern, "there are too many '{' within each other")
    options = []
    while True:
        option, at = _translate(pattern, at + 1, depth + 1)
        options.append(option)
        if at >= len(pattern):
            raise _bad(pattern, "a '{' is not closed")
        if pattern[at] == "}":
            return f"(?:{'|'.join(options)})", at + 1


def _bad(pattern: str, why: str) -> BadInput:
    return BadInput(
        f"the pattern {pattern!r} cannot be read: {why}",
        hint="Use *, ?, **, [a-z] and {one,other}; put a special character into brackets: [*].",
    )
