"""A rate, kept by a bucket of tokens: it fills at the rate, up to the burst it may hold.

Taking more than the bucket holds leaves a debt, which is paid off before the next: one large batch
costs as much as many small ones, and a batch larger than the burst is not refused for ever. The
caller decides what a wait means: to sleep, or to refuse and name the time.
"""

from __future__ import annotations

from holdfast.seam.clock import Clock


class TokenBucket:
    """Tokens that come at a rate. Not for several threads."""

    def __init__(self, per_s: float, burst: float, clock: Clock) -> None:
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._tokens = burst
        self._filled_s = clock.monotonic_s()

    def wait_s(self, tokens: float = 1.0) -> float:
        """Return in how many seconds the bucket holds this many tokens; 0 if it does now."""
        now_s = self._clock.monotonic_s()
        gained = (now_s - self._filled_s) * self._per_s
        self._tokens = min(self._burst, self._tokens + gained)
        self._filled_s = now_s
        return max(0.0, (tokens - self._tokens) / self._per_s)

    def charge(self, tokens: float) -> None:
        """Take tokens, also those that are not there yet."""
        self._tokens -= tokens

    def take(self, tokens: float) -> float:
        """Take tokens, and return how many seconds to wait before using them."""
        wait_s = self.wait_s(tokens)
        self.charge(tokens)
        return wait_s
