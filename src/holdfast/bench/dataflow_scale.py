"""How much of the dataflow is measured: enough to mean something, or just enough to see it run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DataflowScale:
    """Sizes of all measurements."""

    rounds: int
    # Rows of the large quiver, for reading alone.
    rows: int
    # Rows that go through Python functions.
    python_rows: int
    # Micro-batches of each round.
    batches: int
    # How long an idle query is watched.
    idle_s: float


FULL = DataflowScale(rounds=7, rows=3_000_000, python_rows=200_000, batches=16, idle_s=20.0)
QUICK = DataflowScale(rounds=1, rows=60_000, python_rows=20_000, batches=3, idle_s=2.0)
