"""What the writer begins with, what it counts, and whom it asks for room."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast.errors import NotAccepted
from holdfast.quiver.base.frame import Totals
from holdfast.quiver.base.held_bundle import HeldBundle
from holdfast.quiver.log.buffer import OpenBuffer
from holdfast.quiver.log.producers import Producers
from holdfast.seam.clock import Clock


@dataclass
class WriterCounters:
    """What the writer did so far. Written by its thread only."""

    appends: int = 0
    bundles: int = 0
    events: int = 0
    payload_bytes: int = 0
    groups: int = 0
    syncs: int = 0
    sync_seconds: float = 0.0
    sync_seconds_max: float = 0.0
    write_failures: int = 0
    sync_failures: int = 0
    stall_seconds: float = 0.0
    stall_seconds_max: float = 0.0
    # Appends waited this long for room: for the sealer, or because a cap was reached.
    blocked_seconds: float = 0.0

    def count(self, appends: int, bundles: Sequence[HeldBundle]) -> int:
        """Count a group; at once, because the writer's time per append is short."""
        events = sum([held.events for held in bundles])
        self.appends += appends
        self.bundles += len(bundles)
        self.events += events
        self.payload_bytes += sum([len(held.payload) for held in bundles])
        return events

    def synced(self, took_s: float) -> None:
        """Count a sync."""
        self.syncs += 1
        self.sync_seconds += took_s
        self.sync_seconds_max = max(self.sync_seconds_max, took_s)

    def stalled(self, took_s: float) -> None:
        """Count that the writer waited for the sealer."""
        self.stall_seconds += took_s
        self.stall_seconds_max = max(self.stall_seconds_max, took_s)

    @contextlib.contextmanager
    def blocked(self, clock: Clock) -> Iterator[float]:
        """Count how long appends wait for room, however that ends."""
        started_s = clock.monotonic_s()
        try:
            yield started_s
        finally:
            self.blocked_seconds += clock.monotonic_s() - started_s


@dataclass(frozen=True)
class WriterStart:
    """Where recovery ended and the writer begins."""

    quiver_id: str
    next_seq: int
    next_wal_number: int
    # Number of the newest WAL file of the last process, how far it counts, what it holds there.
    previous: tuple[int, int, Totals]
    # What the old files hold, but not on stable storage for certain.
    copied: list[list[HeldBundle]]
    # How far the newest file may count if there is no room for copies, and what it holds there.
    trusted: tuple[int, Totals] | None
    # What the quiver ever accepted.
    accepted: Totals
    producers: Producers
    buffer: OpenBuffer


class Room(Protocol):
    """Who says whether there is room for more."""

    def refusal(self, size_bytes: int) -> NotAccepted | None:
        """Return why an append of this size must wait, None if it need not."""

    def earliest_seal_s(self) -> float:
        """Return the age before which a buffer is not sealed for its age alone."""

    def make_room(self) -> bool:
        """Remove something for an append that the disk refused; return whether that was so."""

    def refused(self, size_bytes: int) -> None:
        """Remember that a producer was refused because the disk is full."""

    def wait_freed(self, timeout_s: float) -> None:
        """Wait until there may be room again."""

    def throttled(self) -> None:
        """Count that an append had to wait."""
