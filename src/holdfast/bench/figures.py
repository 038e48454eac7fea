"""Figures: contenders run in turn, round by round; each result is a median with its spread.

A bar is what a figure must reach. Machines are noisy, so a bar is missed for sure only if no round
reaches it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TypeVar


@dataclass
class Figures:
    """What a benchmark found, in the order it was found."""

    spreads: dict[str, Spread] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)

    def add(self, name: str, values: Iterable[float]) -> Spread:
        """Take one value per round."""
        self.spreads[name] = Spread.of(values)
        return self.spreads[name]

    def note(self, name: str, value: object) -> None:
        """Take a fact that has no spread."""
        self.facts[name] = value

    def as_dict(self) -> dict[str, object]:
        """Return medians and facts by name, and under "spread" what is behind each median."""
        medians = {name: rounded(spread.median) for name, spread in self.spreads.items()}
        spreads = {name: spread.as_dict() for name, spread in self.spreads.items()}
        return {**medians, **self.facts, "spread": spreads}

    def result(
        self, name: str, *, quick: bool, machine: Mapping[str, object], bars: Iterable[Bar]
    ) -> dict[str, object]:
        """Return the report: where it ran, all figures, and the bars of those it has.

        A figure may be missing: a peer that is not installed is not compared with.
        """
        judged = {
            bar.figure: bar.judge(self.spreads[bar.figure])
            for bar in bars
            if bar.figure in self.spreads
        }
        head = {"bench": name, "quick": quick, "machine": machine}
        return {**head, **self.as_dict(), "bars": judged}


@dataclass(frozen=True)
class Bar:
    """What a figure must reach. Noise is no failure: only a spread wholly beyond it is."""

    figure: str
    at_least: float | None = None
    at_most: float | None = None

    def judge(self, spread: Spread) -> dict[str, object]:
        """Return the bar, whether the median reaches it, and whether any round does."""
        if self.at_least is not None:
            # Both are reported. A median below the bar with one round above it is a machine that
            # was busy; no round above it is a regression.
            reached, best = spread.median >= self.at_least, spread.max >= self.at_least
            return {"at_least": self.at_least, "reached": reached, "within_spread": best}
        assert self.at_most is not None, "BUG: a bar without a bound"
        reached, best = spread.median <= self.at_most, spread.min <= self.at_most
        return {"at_most": self.at_most, "reached": reached, "within_spread": best}


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
        # A benchmark with one round (memory, for instance) has a figure, too, but no quartiles.
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

    The order within a round is fixed. Contenders are neighbours of the same ones in each round, so
    whatever one leaves behind (a full page cache, a disk that still writes) weighs on the same
    next one: keep pairs that are compared next to each other.
    """
    results: dict[str, list[Result]] = {name: [] for name in contenders}
    for number in range(-1 if warm_up else 0, rounds):
        for name, contend in contenders.items():
            result = contend()
            if number >= 0:
                results[name].append(result)
    return results


def rotated(
    contenders: Mapping[str, Callable[[], Result]],
    rounds: int,
    *,
    warm_up: bool = False,
    enough_s: float = math.inf,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, list[Result]]:
    """Run all contenders once a round, each round beginning with the next: A B C, B C A, C A B …

    Nobody always follows the same one, whose leftovers it would pay for. Contenders that are not
    made ready outside of what they measure have a round before the first, which is discarded.

    After `enough_s` no other round begins: a busy machine has fewer, and the spread says how many.
    """
    names, began_s = list(contenders), time.monotonic()
    results: dict[str, list[Result]] = {name: [] for name in names}
    if warm_up:
        progress("warming up")
        for contend in contenders.values():
            contend()
    for number in range(rounds):
        if number and time.monotonic() - began_s > enough_s:
            progress(f"slow: {number} of {rounds} rounds have to do")
            break
        progress(f"round {number + 1} of {rounds}")
        first = number % len(names)
        for name in names[first:] + names[:first]:
            results[name].append(contenders[name]())
    return results
