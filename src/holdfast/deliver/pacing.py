"""When to send again: the pause after a failure, and the breaker of a destination that is down.

Every pause is drawn evenly from zero to a limit that doubles with each failure. Many gateways that
lost the same destination at the same moment then come back spread out over the whole pause, and not
as a wave.

The breaker stops all sending to a destination that does not work, and tries it with one event:

    closed ──failures, or a reason to stop at once──▶ open ──time, or resume──▶ half open
       ▲                                               ▲                           │ one probe
       └────────────────── success ────────────────────┼───────────────────────────┤
                                                       └────────── failure ────────┘

Failures count over all lanes: with many keys each of them would otherwise hammer a dead
destination by itself. Refused credentials open it at once, for a time of their own.
"""

from __future__ import annotations

import math
import random
from enum import StrEnum

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


class BreakerState(StrEnum):
    """Whether anything is sent."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Cause(StrEnum):
    """Why it opened."""

    # It did not answer, or not well, several times in a row.
    FAILURES = "failures"
    # It refused our credentials.
    AUTH = "auth"


class Breaker:
    """The state; a sender asks it first, and reports the result."""

    def __init__(self, failures_max: int, open_s: float) -> None:
        self.state = BreakerState.CLOSED
        self.cause: Cause | None = None
        # How often it opened.
        self.opened_total = 0
        self._failures_max = failures_max
        self._open_s = open_s
        self._failures = 0
        self._open_until_s = -math.inf
        self._probing = False

    def seconds_closed_off(self, now_s: float) -> float | None:
        """Return how long nothing may be sent, 0 if it may; None: until the probe is back."""
        if self.state is BreakerState.OPEN and now_s >= self._open_until_s:
            self.state = BreakerState.HALF_OPEN
        if self.state is BreakerState.OPEN:
            return self._open_until_s - now_s
        if self.state is BreakerState.HALF_OPEN and self._probing:
            return None
        return 0.0

    def begin(self) -> bool:
        """Note that a send begins, which must be allowed; return whether it is the probe."""
        assert self.state is not BreakerState.OPEN, "BUG: a send through an open breaker"
        if self.state is BreakerState.CLOSED:
            return False
        assert not self._probing, "BUG: a second probe"
        self._probing = True
        return True

    def end(self, *, was_probe: bool) -> None:
        """Note that a send ended, whatever came of it."""
        if was_probe:
            self._probing = False

    def succeeded(self) -> None:
        """Note that the destination works."""
        self.state, self.cause, self._failures = BreakerState.CLOSED, None, 0

    def failed(self, now_s: float) -> None:
        """Note a failure that may be the destination's; opens after some in a row."""
        self._failures += 1
        is_too_much = self.state is BreakerState.CLOSED and self._failures >= self._failures_max
        if is_too_much or self.state is BreakerState.HALF_OPEN:
            self._open(Cause.FAILURES, now_s + self._open_s)

    def trip(self, cause: Cause, now_s: float, open_s: float) -> None:
        """Open at once."""
        self._open(cause, now_s + open_s)

    def try_now(self) -> None:
        """Do not wait any longer for the next probe."""
        self._open_until_s = -math.inf

    def _open(self, cause: Cause, until_s: float) -> None:
        self.opened_total += self.state is not BreakerState.OPEN
        self.state, self.cause, self._open_until_s = BreakerState.OPEN, cause, until_s
