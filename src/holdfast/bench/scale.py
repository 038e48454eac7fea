"""How much is measured: enough to mean something, or (quick) just enough to see it run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Sizes of all measurements."""

    rounds: int
    # Appends of each of the 64 producers.
    burst_batches_each: int
    sustained_batches_each: int
    small_each: int
    # WAL sizes to recover from. An open buffer holds 256 MB, envelope included, so these fit.
    recovery_mb: tuple[int, ...]
    # The larger store; the other has as many segments of half the size.
    startup_segments: int
    startup_segment_mb: int


FULL = Scale(
    rounds=7,
    burst_batches_each=32,
    sustained_batches_each=100,
    small_each=1_000,
    recovery_mb=(64, 128, 192),
    startup_segments=320,
    startup_segment_mb=32,
)

QUICK = Scale(
    rounds=2,
    burst_batches_each=2,
    sustained_batches_each=12,
    small_each=20,
    recovery_mb=(1, 3),
    startup_segments=3,
    startup_segment_mb=2,
)
