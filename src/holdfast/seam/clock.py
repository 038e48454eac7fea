"""Time: the machine's clocks, a wall clock that a test sets, and time that does not jump.

`SteadyTime` is what ages and waits are measured by, whatever is done to the machine's clock.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Wall time dates events; monotonic time measures waits and never jumps."""

    def wall_ns(self) -> int:
        """Return nanoseconds since 1970, UTC."""

    def monotonic_s(self) -> float:
        """Return seconds since some fixed moment."""


class RealClock:
    """The machine's clocks."""

    def wall_ns(self) -> int:
        return time.time_ns()

    def monotonic_s(self) -> float:
        return time.monotonic()


class JumpingClock:
    """A wall clock that stands still until a test moves it, forward or back.

    Monotonic time stays real: threads that wait must still wake up.
    """

    def __init__(self, wall_ns: int) -> None:
        self._lock = threading.Lock()
        self._wall_ns = wall_ns

    def wall_ns(self) -> int:
        with self._lock:
            return self._wall_ns

    def monotonic_s(self) -> float:
        return time.monotonic()

    def jump(self, seconds: float) -> None:
        """Move the wall clock; negative moves it back."""
        with self._lock:
            self._wall_ns += int(seconds * 1e9)


class SteadyTime:
    """Wall time as it was when the process began, and as much later as really passed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_ns = clock.wall_ns()
        self._began_s = clock.monotonic_s()
        self._doubted_ns = 0
        self._believed_s = self._began_s

    def now_ns(self) -> int:
        """Return nanoseconds since 1970, UTC, if the clock was right when the process began."""
        return self._began_ns + int((self._clock.monotonic_s() - self._began_s) * 1e9)

    def doubt(self, newest_ns: int, grace_s: float) -> None:
        """Do not believe at once in a clock that is far ahead of everything it dated before.

        A dead battery or a restored machine may have set it; what expires by it is gone. Whoever
        watches has `grace_s` to set it right; then it is believed.
        """
        ahead_ns = self._began_ns - newest_ns
        if ahead_ns > grace_s * 1e9:
            self._doubted_ns = ahead_ns
            self._believed_s = self._began_s + grace_s

    @property
    def doubted_s(self) -> float:
        """How much longer the clock is not believed; 0 if it is."""
        return max(0.0, self._believed_s - self._clock.monotonic_s())

    def age_now_ns(self) -> int:
        """Return the time by which data expires: while the clock is doubted, a cautious one."""
        now_ns = self.earliest_now_ns()
        return min(now_ns, self.now_ns() - self._doubted_ns) if self.doubted_s else now_ns

    def earliest_now_ns(self) -> int:
        """Return the earlier of steady time and the clock.

        By this the age of something that the clock dated is never overstated because the clock
        jumped after that, forward or back.
        """
        return min(self.now_ns(), self._clock.wall_ns())
