"""A limit on the objects and bytes that are deleted per second, each kept by a bucket of tokens."""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.seam.clock import Clock
from holdfast.seam.rate import TokenBucket

# What may be deleted in one go: as much as the rate allows in this time.
BURST_S = 1.0


class DeleteRate:
    """How fast a collector may delete; safe for several threads."""

    def __init__(
        self,
        objects_per_s: float | None,
        bytes_per_s: float | None,
        clock: Clock,
        wait: Callable[[float], object],
    ) -> None:
        self._objects = _bucket(objects_per_s, clock) if objects_per_s else None
        self._bytes = _bucket(bytes_per_s, clock) if bytes_per_s else None
        self._burst_objects = max(1, int(objects_per_s * BURST_S)) if objects_per_s else None
        self._wait = wait
        self._lock = threading.Lock()

    def batch(self, objects: int) -> int:
        """Return how many objects to delete with one request, if there are that many."""
        return objects if self._burst_objects is None else min(objects, self._burst_objects)

    def wait_for(self, objects: int, size_bytes: int) -> None:
        """Wait until this much may be deleted."""
        with self._lock:
            wait_s = max(
                self._objects.take(objects) if self._objects else 0.0,
                self._bytes.take(size_bytes) if self._bytes else 0.0,
            )
        if wait_s > 0:
            self._wait(wait_s)


def _bucket(per_s: float, clock: Clock) -> TokenBucket:
    return TokenBucket(per_s, per_s * BURST_S, clock)
