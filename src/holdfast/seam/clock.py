"""Time: the machine's clocks, and a wall clock that a test sets."""

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
