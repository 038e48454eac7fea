"""How long to wait before another try: full jitter, doubling, with a ceiling.

Every pause is drawn evenly from zero to a limit that doubles with each failure. Many gateways that
lost the same destination at the same moment then come back spread out over the whole pause, and not
as a wave.
"""

from __future__ import annotations

import random

from holdfast.deliver.settings import DeliverySettings

# 2 ** 64 times anything is above every ceiling; more would only make large numbers.
DOUBLINGS_MAX = 64


class Backoff:
    """Draws pauses for one destination."""

    def __init__(self, settings: DeliverySettings, randomness: random.Random) -> None:
        self._initial_s = settings.retry_initial_s
        self._max_s = settings.retry_max_s
        self._max_retry_after_s = settings.max_retry_after_s
        self._randomness = randomness

    def pause_s(self, failures: int, retry_after_s: float | None = None) -> float:
        """Return the pause after so many failures in a row; at least what was asked for."""
        doublings = min(max(failures, 1) - 1, DOUBLINGS_MAX)
        ceiling_s = min(self._max_s, self._initial_s * 2.0**doublings)
        pause_s = self._randomness.uniform(0.0, ceiling_s)
        if retry_after_s is None or not retry_after_s > 0:
            return pause_s
        return max(pause_s, min(retry_after_s, self._max_retry_after_s))
