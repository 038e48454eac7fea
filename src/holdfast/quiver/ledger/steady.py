"""Time that does not jump: what ages and waits are measured by, whatever becomes of the clock."""

from __future__ import annotations

from holdfast.seam.clock import Clock


class SteadyTime:
    """Wall time as it was when the process began, and as much later as really passed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ns = clock.wall_ns()
        self._began_s = clock.monotonic_s()

    def now_ns(self) -> int:
        """Return nanoseconds since 1970, UTC, if the clock was right when the process began."""
        return self._began_ns + int((self._clock.monotonic_s() - self._began_s) * 1e9)

    def earliest_now_ns(self) -> int:
        """Return the earlier of steady time and the clock.

        By this the age of something that the clock dated is never overstated because the clock
        jumped after that, forward or back.
        """
        return min(self.now_ns(), self._clock.wall_ns())
