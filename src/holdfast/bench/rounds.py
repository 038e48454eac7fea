"""Rounds: contenders run in turn, again and again, and what is made of their results."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True)
class Spread:
    """How the rounds of one figure differ."""

    median: float
    min: float
    lower_quartile: float
    upper_quartile: float
    max: float
    rounds: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Return the spread of one value per round."""
        ordered = sorted(values)
        if len(ordered) == 1:
            only = ordered[0]
            return cls(only, only, only, only, only, 1)
        lower, median, upper = statistics.quantiles(ordered, n=4, method="inclusive")
        return cls(median, ordered[0], lower, upper, ordered[-1], len(ordered))

    def as_dict(self) -> dict[str, float]:
        """Return it for JSON, with four significant digits."""
        return {name: rounded(value) for name, value in asdict(self).items()}


def rounded(value: float) -> float:
    """Return a number without digits that mean nothing."""
    return value if isinstance(value, int) else float(f"{value:.4g}")


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` of an ordered sequence do not exceed."""
    index = max(0, -(-len(ordered) * percent // 100) - 1)
    return ordered[int(index)]


def interleave(
    contenders: Mapping[str, Callable[[], Result]], rounds: int, *, warm_up: bool = True
) -> dict[str, list[Result]]:
    """Run all contenders in turn, `rounds` times: A B C A B C …; return the results by name.

    Whatever slows the machine for a while then slows all of them. One more round runs first and
    is discarded: caches are cold and memory is fresh for the first contender.
    """
    results: dict[str, list[Result]] = {name: [] for name in contenders}
    for number in range(-1 if warm_up else 0, rounds):
        for name, contend in contenders.items():
            result = contend()
            if number >= 0:
                results[name].append(result)
    return results
