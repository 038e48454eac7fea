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
    # Delivery: bytes in large bundles, number of small ones.
    deliver_mb: int
    deliver_bundles: int
    idle_events: int
    acks: int
    stream_batches: int
    ledger_acks: int


FULL = Scale(
    rounds=7,
    burst_batches_each=32,
    sustained_batches_each=100,
    small_each=1_000,
    recovery_mb=(64, 128, 192),
    startup_segments=320,
    startup_segment_mb=32,
    deliver_mb=200,
    deliver_bundles=20_000,
    idle_events=100,
    acks=20_000,
    stream_batches=500,
    ledger_acks=1_000_000,
)

QUICK = Scale(
    rounds=2,
    burst_batches_each=2,
    sustained_batches_each=12,
    small_each=20,
    recovery_mb=(1, 3),
    startup_segments=3,
    startup_segment_mb=2,
    deliver_mb=2,
    deliver_bundles=50,
    idle_events=3,
    acks=50,
    stream_batches=10,
    ledger_acks=500,
)
