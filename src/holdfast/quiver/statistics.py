"""What a quiver tells about itself: the one source for metrics, tools and tests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Statistics:
    """A moment's picture of one quiver. Totals count since it was opened."""

    quiver_id: str
    next_seq: int
    synced_seq: int
    accepting: bool
    # Ever accepted by this quiver, over all its openings.
    accepted_bundles: int
    accepted_events: int
    # Totals.
    appends_total: int
    bundles_total: int
    events_total: int
    payload_bytes_total: int
    groups_total: int
    syncs_total: int
    sync_seconds_total: float
    sync_seconds_max: float
    write_failures_total: int
    sync_failures_total: int
    seals_total: int
    seal_failures_total: int
    seal_seconds_total: float
    stall_seconds_total: float
    stall_seconds_max: float
    extractor_failures_total: int
    opaque_rows_total: int
    # Gauges.
    pending_bytes: int
    staged_bytes: int
    open_bundles: int
    open_bytes: int
    sealing_bytes: int
    wal_bytes: int
    wal_files: int
    segments: int
    segment_bytes: int
    segment_events: int
    producers: int
    quarantined_bytes: int
    last_seal_error: str | None
