"""Clocks that tests move."""

from __future__ import annotations

from holdfast.seam.clock import JumpingClock


class ManualClock:
    """Time that passes only when a test says so, for waits as well as for dates."""

    def __init__(self, now_s: float = 100.0) -> None:
        self.now_s = now_s

    def wall_ns(self) -> int:
        return int(self.now_s * 1e9)

    def monotonic_s(self) -> float:
        return self.now_s


class SteppingClock(JumpingClock):
    """Real time for waits, to which a test adds; threads that wait still wake up by themselves."""

    def __init__(self, wall_ns: int) -> None:
        super().__init__(wall_ns)
        self._passed_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self._passed_s

    def pass_time(self, seconds: float) -> None:
        """Let time pass; `jump` only sets the wall clock."""
        self._passed_s += seconds
        self.jump(seconds)
