"""Sharing bounds among several quivers under one root.

A configuration of cores describes the root as a whole. What bounds the whole is divided by their
number; what shapes one file, one bundle or one wait stays as it is:

    divided      disk     retention.size_cap_bytes, .reserve_bytes, .steady_state_headroom_bytes,
                          .max_segments; wal.max_size_bytes; ledger.retain_bytes
                 memory   append.max_pending_bytes; transactions.max_staged_bytes
    not divided           segment.target_size_bytes (so memory holds two buffers per core),
                          wal.file_size_bytes (unless the log itself became smaller than a file),
                          ledger.rotate_bytes, all times, and the caps of subscribers, which are
                          registered with each core

The size cap is the one that must hold for the root at any time, also when the number of cores
changed and some hold more than a share is now: see `fair_share`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from holdfast.errors import BadInput
from holdfast.quiver.base.config import QuiverConfig

# Each has three threads and a handful of open files.
CORES_MAX = 1000


def check_count(count: int, config: QuiverConfig) -> None:
    """Refuse a number of cores that cannot work."""
    if type(count) is not int or not 1 <= count <= CORES_MAX:
        raise BadInput(f"{count!r} cores", hint=f"use a whole number from 1 to {CORES_MAX}")
    share, smallest = config.retention.size_cap_bytes // count, 4 * config.segment.target_size_bytes
    if share < smallest:
        raise BadInput(
            f"retention.size_cap_bytes divided by {count} cores is {share}, less than four "
            f"segments ({smallest} bytes)",
            hint="raise the cap, lower segment.target_size_bytes (to 1 MB), or use fewer cores",
        )


def share_of(config: QuiverConfig, count: int) -> QuiverConfig:
    """Return the configuration of one of `count` cores."""
    kept, wal, ledger = config.retention, config.wal, config.ledger
    wal_bytes = wal.max_size_bytes // count
    reserve_bytes = None if kept.reserve_bytes is None else kept.reserve_bytes // count
    append, staging = config.append, config.transactions
    return replace(
        config,
        retention=replace(
            kept,
            size_cap_bytes=kept.size_cap_bytes // count,
            reserve_bytes=reserve_bytes,
            steady_state_headroom_bytes=kept.steady_state_headroom_bytes // count,
            max_segments=max(1, kept.max_segments // count),
        ),
        wal=replace(
            wal,
            max_size_bytes=wal_bytes,
            file_size_bytes=min(wal.file_size_bytes, wal_bytes),
        ),
        ledger=replace(ledger, retain_bytes=ledger.retain_bytes // count),
        append=replace(append, max_pending_bytes=max(1, append.max_pending_bytes // count)),
        transactions=replace(staging, max_staged_bytes=max(1, staging.max_staged_bytes // count)),
    )


class CapClaim(NamedTuple):
    """What one core needs of the size cap: at least this, and at most that."""

    least_bytes: int
    most_bytes: int


def fair_share(size_cap_bytes: int, claims: Sequence[CapClaim]) -> int:
    """Return the largest share that everyone may have without exceeding the cap together.

    A core that already holds more keeps what it has; one that wants less leaves the rest to the
    others. The shares are those of water in connected vessels with raised floors and low lids.
    """

    def taken_bytes(share: int) -> int:
        return sum(max(least, min(share, most)) for least, most in claims)

    low, high = 0, size_cap_bytes
    while low < high:
        middle = (low + high + 1) // 2
        if taken_bytes(middle) <= size_cap_bytes:
            low = middle
        else:
            high = middle - 1
    return low
