"""How much is measured: enough to mean something, or (quick) just enough to see it run.

A scale is data and nothing else, so that a measurement cannot do something else when it is quick:
the same code runs, on less. Rounds are odd numbers where there is time, because the median is then
a round that was really measured.
"""

from __future__ import annotations

from dataclasses import dataclass

MB = 1024 * 1024


@dataclass(frozen=True)
class QuiverScale:
    """Sizes of the measurements of the quiver."""

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


# Seven rounds: enough for quartiles, and the median is a round that was really measured.
QUIVER_FULL = QuiverScale(
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

# Figures of a quick run mean nothing; that every section runs to its end does.
QUIVER_QUICK = QuiverScale(
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


@dataclass(frozen=True)
class GatewayScale:
    """Sizes of the measurements of the gateway."""

    rounds: int
    # Of each load.
    seconds: float
    idle_events: int
    backlog_events: int
    backlog_mb: int
    # Events per second while a second destination is dead, or absent.
    neighbour_rate_per_s: float
    validated_events: int


GATEWAY_FULL = GatewayScale(
    rounds=7,
    seconds=3.0,
    idle_events=50,
    backlog_events=20_000,
    backlog_mb=2_000,
    neighbour_rate_per_s=200.0,
    validated_events=2_000,
)

GATEWAY_QUICK = GatewayScale(
    rounds=1,
    seconds=0.3,
    idle_events=3,
    backlog_events=200,
    backlog_mb=2,
    neighbour_rate_per_s=50.0,
    validated_events=50,
)


@dataclass(frozen=True)
class StoreScale:
    """Sizes of the measurements of the store."""

    rounds: int
    # Of the installed environment's files, a sample of about this many bytes.
    corpus_bytes: int
    # Of this many files of the corpus, one is edited, one added, one removed for the changed copy.
    changed_every: int
    # Files of the large file set, and of the one that shows how a comparison grows.
    many_files: int
    fewer_files: int
    # Files that differ between two commits that are compared.
    differing_files: int
    # Files that become garbage, each at least a chunk, and how many times as many live ones there
    # are beside them for the slope.
    garbage_chunks: int
    live_factor: int


STORE_FULL = StoreScale(
    rounds=7,
    corpus_bytes=400 * MB,
    changed_every=100,
    many_files=1_000_000,
    fewer_files=100_000,
    differing_files=100,
    garbage_chunks=6_000,
    live_factor=4,
)
STORE_QUICK = StoreScale(
    rounds=1,
    corpus_bytes=4 * MB,
    changed_every=20,
    many_files=3_000,
    fewer_files=600,
    differing_files=10,
    garbage_chunks=300,
    live_factor=2,
)


@dataclass(frozen=True)
class HandoffScale:
    """Sizes of the measurements of handoff."""

    rounds: int
    # The backlog that is drained, and in how many quanta when three nodes take turns.
    parts: int
    part_mb: int
    fairness_quanta: int
    # What waits for nodes that are down.
    down_mb: int
    # A start with so many bundles waiting, and one with so many segments.
    startup_rounds: int
    waiting_bundles: int
    waiting_segments: int


HANDOFF_FULL = HandoffScale(
    rounds=7,
    parts=24,
    part_mb=2,
    fairness_quanta=24,
    down_mb=100,
    startup_rounds=3,
    waiting_bundles=1_000_000,
    waiting_segments=100_000,
)
HANDOFF_QUICK = HandoffScale(
    rounds=1,
    parts=4,
    part_mb=1,
    fairness_quanta=4,
    down_mb=2,
    startup_rounds=1,
    waiting_bundles=2_000,
    waiting_segments=100,
)


@dataclass(frozen=True)
class DataflowScale:
    """Sizes of the measurements of the dataflow."""

    rounds: int
    # After so long no other round of a comparison begins.
    enough_s: float
    # Rows of the large quiver; fewer where each of them costs more.
    rows: int
    fewer_rows: int
    # Rows that go through Python functions.
    python_rows: int
    # Micro-batches of each round.
    batches: int
    # How long an idle query is watched.
    idle_s: float
    # How long events come one after the other, after those that only warm up.
    latency_s: float
    warm_up_s: float


DATAFLOW_FULL = DataflowScale(
    rounds=7,
    enough_s=600.0,
    rows=10_000_000,
    fewer_rows=3_000_000,
    python_rows=200_000,
    batches=16,
    idle_s=20.0,
    latency_s=30.0,
    warm_up_s=10.0,
)
DATAFLOW_QUICK = DataflowScale(
    rounds=1,
    enough_s=600.0,
    rows=60_000,
    fewer_rows=60_000,
    python_rows=20_000,
    batches=3,
    idle_s=2.0,
    latency_s=2.0,
    warm_up_s=1.0,
)


@dataclass(frozen=True)
class OtelScale:
    """Sizes of the measurements of telemetry."""

    rounds: int
    # Of each load.
    seconds: float
    # Requests of 100 spans that wait for a destination.
    backlog_requests: int
    # Requests that are answered before a server is killed.
    answered_before_kill: int
    # Requests of 1,000 spans that are asked about.
    queried_requests: int


OTEL_FULL = OtelScale(
    rounds=7,
    seconds=1.5,
    backlog_requests=1_500,
    answered_before_kill=500,
    queried_requests=400,
)
OTEL_QUICK = OtelScale(
    rounds=2, seconds=0.5, backlog_requests=200, answered_before_kill=20, queried_requests=20
)
