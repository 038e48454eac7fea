"""When the batches of a query were planned and done, by the times of the files in its checkpoint.

Spark writes `offsets/N` when batch N is planned and `commits/N` when it is done, and keeps the last
hundred. So what is measured is what was durable when, not what the engine tells about itself; how
long a query takes to start is not part of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from holdfast.bench.process_tree import TreeStopwatch
from holdfast.errors import CheckFailed


class TimedRun(NamedTuple):
    """One run of a query over some rows."""

    rows: int
    # From the first plan to the last commit.
    batches_s: float
    # Of all processes, start and end of the query included.
    wall_s: float
    cpu_s: float

    @property
    def per_s(self) -> float:
        """Rows per second."""
        return self.rows / self.batches_s


def measured(checkpoint: Path, rows: int, watch: TreeStopwatch) -> TimedRun:
    """Return what a query that has ended took."""
    offsets, commits = _times(checkpoint, "offsets"), _times(checkpoint, "commits")
    batches_s = max(commits.values()) - min(offsets.values())
    return TimedRun(rows, batches_s, watch.wall_s, watch.cpu_s)


def batch_times_ms(checkpoint: Path) -> list[float]:
    """Return how long after the one before it each batch was done, from the second on."""
    commits = _times(checkpoint, "commits")
    return [
        (commits[number] - commits[number - 1]) * 1e3
        for number in sorted(commits)
        if number - 1 in commits
    ]


def batches_done(checkpoint: Path) -> int:
    """Return how many batches a query has done."""
    commits = checkpoint / "commits"
    return max((int(p.name) for p in commits.glob("*") if p.name.isdigit()), default=-1) + 1


def _times(checkpoint: Path, log: str) -> dict[int, float]:
    files = [path for path in (checkpoint / log).glob("*") if path.name.isdigit()]
    if not files:
        raise CheckFailed("a query did no batch", hint="the figures mean nothing")
    return {int(path.name): path.stat().st_mtime_ns / 1e9 for path in files}
