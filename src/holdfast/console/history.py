"""An hour of figures in memory: what the charts show.

One point per `STEP_S`, `POINTS_MAX` of them, in arrays of doubles; `SERIES_MAX` series at most, so
that a file with very many destinations costs no more than 600 kB. What is beyond that bound has no
chart; all figures are in the metrics, for a system that keeps them for longer.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping

STEP_S = 10.0
POINTS_MAX = 360
SERIES_MAX = 200


class History:
    """A ring of points, the oldest overwritten; a series that has no figure at a time has a gap."""

    def __init__(self) -> None:
        self._times_s = _empty()
        self._series: dict[str, array[float]] = {}
        self._next = 0
        self._count = 0

    def add(self, time_s: float, figures: Mapping[str, float]) -> None:
        """Take one point of every series."""
        place = self._next
        self._times_s[place] = time_s
        for name, values in self._series.items():
            values[place] = figures.get(name, math.nan)
        for name, value in figures.items():
            if name not in self._series and len(self._series) < SERIES_MAX:
                self._series[name] = _empty()
                self._series[name][place] = value
        self._next = (place + 1) % POINTS_MAX
        self._count = min(POINTS_MAX, self._count + 1)

    def times_s(self) -> list[float]:
        """Return the times of all points, oldest first, in seconds since 1970."""
        return self._ordered(self._times_s)

    def series(self) -> dict[str, list[float | None]]:
        """Return every series, oldest point first; None is a gap."""
        return {
            name: [None if math.isnan(value) else value for value in self._ordered(values)]
            for name, values in self._series.items()
        }

    def _ordered(self, values: array[float]) -> list[float]:
        if self._count < POINTS_MAX:
            return values[: self._count].tolist()
        return (values[self._next :] + values[: self._next]).tolist()


def _empty() -> array[float]:
    return array("d", [math.nan]) * POINTS_MAX
