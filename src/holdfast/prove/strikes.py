"""Kills, one after another, every other one at a named point; and what a proof reports of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

# How a kill at a random time is reported: this, and which process it was.
RANDOM = "random"

OnProgress = Callable[[str], None]


class Strikes:
    """Counts the kills of a proof by where they struck."""

    def __init__(self) -> None:
        self._sites: Counter[str] = Counter()
        self._not_reached = 0

    def run(
        self,
        kills: int,
        at_random: Callable[[], str],
        at_point: Callable[[], str | None],
        progress: OnProgress,
    ) -> None:
        """Kill `kills` processes; `at_point` returns None if none reached its point in time."""
        done = 0
        while done < kills:
            site = at_point() if done % 2 == 1 else at_random()
            if site is None:
                self._not_reached += 1
                continue
            self._sites[site] += 1
            done += 1
            progress(f"kill {done}/{kills} at {site}")

    def as_dict(self) -> dict[str, object]:
        """Return the counts for the report."""
        at_points = [n for site, n in self._sites.items() if not site.startswith(RANDOM)]
        return {
            "kills": self._sites.total(),
            "kills_at_points": sum(at_points),
            "kill_sites": dict(sorted(self._sites.items())),
            "points_not_reached": self._not_reached,
        }
