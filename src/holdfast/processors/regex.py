"""Regular expressions that cannot run away: RE2, as it comes with Arrow.

Python's own expressions take exponential time on some texts, and the texts here are other people's.
RE2 takes time in proportion to the text, whatever the expression; in return it has no look-around
and no back-references, and says so when the configuration is read.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def checked_regex(expression: str) -> str:
    """Return an expression that RE2 takes; raises ValueError."""
    try:
        matches_empty = pc.match_substring_regex(pa.array([""]), pattern=expression)[0].as_py()
    except pa.ArrowInvalid as error:
        raise ValueError(f"not an RE2 expression: {error}") from None
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
