"""Figures: named results, each a median with its spread, or a plain fact."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from holdfast.bench.rounds import Spread, rounded


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
            reached, best = spread.median >= self.at_least, spread.max >= self.at_least
            return {"at_least": self.at_least, "reached": reached, "within_spread": best}
        assert self.at_most is not None, "BUG: a bar without a bound"
        reached, best = spread.median <= self.at_most, spread.min <= self.at_most
        return {"at_most": self.at_most, "reached": reached, "within_spread": best}
