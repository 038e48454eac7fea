"""Conditions on an event: patterns for its job, its datasets, its producer and its type.

Patterns are globs as in a shell (`*`, `?`, `[abc]`), compared as a whole and with case. Several
patterns of a field are alternatives; several fields must all hold.

Regular expressions are RE2, as it comes with Arrow: they cannot run away. Python's own take
exponential time on some texts, and the texts here are other people's. RE2 takes time in proportion
to the text, whatever the expression; in return it has no look-around and no back-references, and
says so when the configuration is read.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Self

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from holdfast.processors.document import ANY, values_at
from holdfast.settings import Settings


def checked_regex(expression: str) -> str:
    """Return an expression that RE2 takes; raises ValueError."""
    try:
        matches_empty = pc.match_substring_regex(pa.array([""]), pattern=expression)[0].as_py()
    except pa.ArrowInvalid as error:
        raise ValueError(f"not an RE2 expression: {error}") from None
    # Such an expression is nearly always a slip (`a*` for `a+`), and as a substitution it would
    # put a marker between any two characters.
    if matches_empty:
        raise ValueError("the expression matches nothing at all, and so everywhere")
    return expression


class RegexSubstitution:
    """An expression and what takes its place; `\\1` is its first group, `\\0` the whole match."""

    def __init__(self, expression: str, replacement: str, *, whole: bool = False) -> None:
        self.expression = rf"\A(?:{expression})\z" if whole else expression
        self._replacement = replacement
        try:
            self.apply("")
        except pa.ArrowInvalid as error:
            raise ValueError(f"the expression cannot be used: {error}") from None

    def matches(self, text: str) -> bool:
        """Whether the expression is found."""
        found = pc.match_substring_regex(pa.array([text]), pattern=self.expression)
        return bool(found[0].as_py())

    def apply(self, text: str) -> str:
        """Return a text with everything replaced."""
        replaced: str = self.apply_all(pa.array([text], pa.string()))[0].as_py()
        return replaced

    def apply_all(self, texts: pa.Array) -> pa.Array:
        """Return many texts with everything replaced."""
        return pc.replace_substring_regex(
            texts, pattern=self.expression, replacement=self._replacement
        )


PATTERNS_MAX = 1000
PATTERN_CHARACTERS_MAX = 512

Pattern = Annotated[str, Field(min_length=1, max_length=PATTERN_CHARACTERS_MAX)]
Patterns = Annotated[tuple[Pattern, ...], Field(max_length=PATTERNS_MAX)]

_DATASETS = (("dataset",), ("inputs", ANY), ("outputs", ANY))


class Condition(Settings):
    """What an event must be like. At least one field must be given."""

    job_namespace: Patterns = ()
    """The namespace of the job."""
    job_name: Patterns = ()
    """The name of the job."""
    dataset_namespace: Patterns = ()
    """The namespace of one of its datasets."""
    dataset_name: Patterns = ()
    """The name of one of its datasets; the same one, if a namespace is asked for as well."""
    producer: Patterns = ()
    """The producer's URI."""
    event_type: Patterns = ()
    """START, RUNNING, COMPLETE, ABORT, FAIL or OTHER."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not any(getattr(self, name) for name in Condition.model_fields):
            raise ValueError(f"give at least one of {', '.join(Condition.model_fields)}")
        return self


class Matcher:
    """A condition with its patterns compiled."""

    def __init__(self, condition: Condition) -> None:
        self._job = [
            (field, glob(patterns))
            for field, patterns in (
                ("namespace", condition.job_namespace),
                ("name", condition.job_name),
            )
            if patterns
        ]
        self._dataset = [
            (field, glob(patterns))
            for field, patterns in (
                ("namespace", condition.dataset_namespace),
                ("name", condition.dataset_name),
            )
            if patterns
        ]
        self._event = [
            (field, glob(patterns))
            for field, patterns in (
                ("producer", condition.producer),
                ("eventType", condition.event_type),
            )
            if patterns
        ]

    def holds(self, document: dict[str, Any]) -> bool:
        """Whether an event is like that.

        A field that is missing, or of another type, does not match: a condition never raises,
        because an exception in a processor makes a dead letter of the event.
        """
        return (
            _all_hold(self._event, document)
            and (not self._job or _all_hold(self._job, document.get("job")))
            # One and the same dataset must have both, namespace and name: two that have one each
            # are no match.
            and (not self._dataset or any(_all_hold(self._dataset, d) for d in _datasets(document)))
        )


def glob(patterns: Sequence[str], flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
    """Return one expression for all patterns.

    What `fnmatch` makes of a glob does not backtrack from one `*` into the one before it, so the
    longest text costs its length times the number of stars, not a power of it.
    """
    return re.compile("|".join(f"(?:{fnmatch.translate(one)})" for one in patterns), flags)


def _all_hold(conditions: Iterable[tuple[str, re.Pattern[str]]], found: object) -> bool:
    if not isinstance(found, dict):
        return False
    for field, pattern in conditions:
        value = found.get(field)
        if not isinstance(value, str) or not pattern.match(value):
            return False
    return True


def _datasets(document: dict[str, Any]) -> Iterable[object]:
    for path in _DATASETS:
        yield from values_at(document, path)
