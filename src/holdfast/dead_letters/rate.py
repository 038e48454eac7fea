"""A bound on how fast dead letters are taken: events and bytes per second, with some burst."""

from __future__ import annotations

from holdfast.seam.clock import Clock
from holdfast.seam.rate import TokenBucket


class RateLimit:
    """A bucket of events and one of bytes, each filled at its rate up to `burst_s` seconds' worth.

    A letter is taken while both hold something, and what it takes may leave a debt: so one that is
    larger than the whole bucket is taken too, and those behind it wait the longer.
    """

    def __init__(
        self, clock: Clock, events_per_s: float, bytes_per_s: float, burst_s: float
    ) -> None:
        self._events = TokenBucket(events_per_s, max(1.0, events_per_s * burst_s), clock)
        self._bytes = TokenBucket(bytes_per_s, max(1.0, bytes_per_s * burst_s), clock)

    def take(self, size_bytes: int) -> bool:
        """Take one letter, if the rates allow it now."""
        if self._events.wait_s() > 0 or self._bytes.wait_s() > 0:
            return False
        self._events.charge(1)
        self._bytes.charge(size_bytes)
        return True
