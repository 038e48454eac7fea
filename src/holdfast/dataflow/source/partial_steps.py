"""What a task may do with rows before Spark has them: steps, and partial aggregates behind them.

Plans are made where neither Spark nor NumPy is installed, so what carries them out is apart
(`partials.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from holdfast.dataflow.source.arrow_sql import Unsupported, parse

PartialFunction = Literal["sum", "sum_as_double", "count", "min", "max"]

EVENT_TIME = "_event_time"
# How many rows a partial aggregate is made of.
ROWS = "_rows"


class Step(NamedTuple):
    """A filter, or columns that are made of those before, in SQL."""

    # "" where it is no filter.
    where: str = ""
    made: Mapping[str, str] = {}
    # Whether the columns before stay beside those that are made.
    adds: bool = True


class Partial(NamedTuple):
    """A column of a partial aggregate."""

    name: str
    function: PartialFunction
    argument: str


def needed(steps: Sequence[Step], expressions: Iterable[str]) -> frozenset[str]:
    """Return the stored columns that some expressions behind steps are made of.

    Raises `Unsupported` for whatever of it is not understood; a column that is made and not used is
    not looked at.
    """
    names = frozenset[str]().union(*(parse(text).names for text in expressions))
    for step in reversed(steps):
        if step.where:
            names |= parse(step.where).names
            continue
        made = [parse(step.made[name]).names for name in names if name in step.made]
        kept = names - set(step.made)
        if not step.adds and kept - {EVENT_TIME}:
            raise Unsupported(f"there is no column {', '.join(sorted(kept))}")
        names = kept.union(*made)
    return names
