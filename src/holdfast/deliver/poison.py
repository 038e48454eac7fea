"""Events that make a destination fail: told from a destination that is down by a look at others.

The event at the head of a lane has failed with a server error `attempts_max` times in a row. Now
the next one of the lane is tried at once, before the destination has had time to recover. If it is
taken, the head is poison, and becomes a dead letter; it is never sent again by itself, so order
cannot invert. If it fails too, the destination is down, and the head is tried on; after as many
failures again, so is the next one. Where other lanes are at work, no probe is needed: what they
delivered between two failures of the head tells the same.
"""

from __future__ import annotations

import re

from holdfast.deliver.exporter import Failure, FailureClass
from holdfast.quiver import Position

# How failures of the exporter itself are coded: an exception names what it could not handle, and
# that may well be one event.
EXCEPTION_CODE = "exception "

_SERVER_ERROR = re.compile(r"5\d\d")
# By its meaning it is about the server; one that sheds load says it to some and not to others.
_UNAVAILABLE = "503"


def is_suspect(failure: Failure) -> bool:
    """Whether a failure may be the event's doing: a server error, or an exception while sending."""
    if failure.kind is not FailureClass.TRANSIENT or failure.code == _UNAVAILABLE:
        return False
    is_server_error = _SERVER_ERROR.fullmatch(failure.code) is not None
    return is_server_error or failure.code.startswith(EXCEPTION_CODE)


class Streak:
    """How often the head of one lane failed in a row, sent alone or answered by itself."""

    def __init__(self, attempts_max: int) -> None:
        self.position: Position | None = None
        self.failure: Failure | None = None
        self._attempts_max = attempts_max
        self._failures = 0
        self._probed_at = 0
        self._delivered_total = 0
        self._others_worked = False

    def failed(self, position: Position, failure: Failure, delivered_total: int) -> None:
        """Note a failure of the head; `delivered_total` counts what anybody delivered so far."""
        if position != self.position:
            self.position, self._failures, self._probed_at = position, 0, 0
            self._delivered_total = delivered_total
        self._failures += 1
        self.failure = failure
        self._others_worked = delivered_total > self._delivered_total
        self._delivered_total = delivered_total

    @property
    def is_proven(self) -> bool:
        """Whether it failed often enough, and others were delivered before its last failure."""
        return self._failures >= self._attempts_max and self._others_worked

    @property
    def is_probe_due(self) -> bool:
        """Whether to try the next event now."""
        return self._failures >= self._probed_at + self._attempts_max

    def probed(self) -> None:
        """Note that the next one was tried."""
        self._probed_at = self._failures
