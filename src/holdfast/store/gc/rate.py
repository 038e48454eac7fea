"""A limit on objects and bytes per second, kept by two buckets of tokens.

A bucket fills at its rate and holds one second's worth. Whoever takes more than it holds leaves a
debt and waits it out before the next, so that one large batch is paid for like many small ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.seam.clock import Clock

BURST_S = 1.0


class TokenBucket:
    """Tokens that come at a rate."""

    def __init__(self, per_s: float, clock: Clock) -> None:
        self._per_s = per_s
        self._clock = clock
        self._tokens = per_s * BURST_S
        self._filled_s = clock.monotonic_s()

    def take(self, tokens: float) -> float:
        """Take tokens, and return for how many seconds to wait before using them."""
        now_s = self._clock.monotonic_s()
        gained = (now_s - self._filled_s) * self._per_s
        self._tokens = min(self._per_s * BURST_S, self._tokens + gained) - tokens
        self._filled_s = now_s
        return max(0.0, -self._tokens / self._per_s)


class DeleteRate:
    """How fast a collector may delete; safe for several threads."""

    def __init__(
        self,
        objects_per_s: float | None,
        bytes_per_s: float | None,
        clock: Clock,
        wait: Callable[[float], object],
    ) -> None:
        self._objects = TokenBucket(objects_per_s, clock) if objects_per_s else None
        self._bytes = TokenBucket(bytes_per_s, clock) if bytes_per_s else None
        self._burst_objects = max(1, int(objects_per_s * BURST_S)) if objects_per_s else None
        self._wait = wait
        self._lock = threading.Lock()

    def batch(self, objects: int) -> int:
        """Return how many objects to delete with one request, if there are so many."""
        return objects if self._burst_objects is None else min(objects, self._burst_objects)

    def wait_for(self, objects: int, size_bytes: int) -> None:
        """Wait until so much may be deleted."""
        with self._lock:
            wait_s = max(
                self._objects.take(objects) if self._objects else 0.0,
                self._bytes.take(size_bytes) if self._bytes else 0.0,
            )
        if wait_s > 0:
            self._wait(wait_s)
