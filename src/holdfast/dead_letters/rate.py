"""A bound on how fast dead letters are taken: events and bytes per second, with some burst."""

from __future__ import annotations

from holdfast.seam.clock import Clock


class RateLimit:
    """A bucket of events and one of bytes, each filled at its rate up to `burst_s` seconds' worth.

    A letter is taken while both hold something, and what it takes may leave a debt: so one that is
    larger than the whole bucket is taken too, and those behind it wait the longer.
    """

    def __init__(
        self, clock: Clock, events_per_s: float, bytes_per_s: float, burst_s: float
    ) -> None:
        self._clock = clock
        self._rates = (events_per_s, bytes_per_s)
        self._limits = (max(1.0, events_per_s * burst_s), max(1.0, bytes_per_s * burst_s))
        self._events, self._bytes = self._limits
        self._filled_s = clock.monotonic_s()

    def take(self, size_bytes: int) -> bool:
        """Take one letter, if the rates allow it now."""
        self._fill()
        if self._events < 1 or self._bytes <= 0:
            return False
        self._events -= 1
        self._bytes -= size_bytes
        return True

    def _fill(self) -> None:
        now_s = self._clock.monotonic_s()
        passed_s, self._filled_s = now_s - self._filled_s, now_s
        self._events = min(self._limits[0], self._events + passed_s * self._rates[0])
        self._bytes = min(self._limits[1], self._bytes + passed_s * self._rates[1])
