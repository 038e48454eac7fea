"""A clock that moves only when a test says so."""

from __future__ import annotations

# 2026-01-02 03:04:05 UTC.
START_NS = 1_767_323_045_000_000_000


class VirtualClock:
    """Wall and monotonic time that pass together, when told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.wall_offset_ns = START_NS

    def wall_ns(self) -> int:
        return self.wall_offset_ns + int((self.now_s - 1000.0) * 1e9)

    def monotonic_s(self) -> float:
        return self.now_s

    def pass_s(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds
