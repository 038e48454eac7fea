"""Admission: how much may be under way at once, and how fast one producer may send.

Nothing waits here. Over a bound the sender is asked at once to come again, and keeps its event; a
queue of requests would only hold memory until their senders have timed out.

Bytes are counted when they have arrived, not when they are announced: otherwise two clients that
announce large bodies and send nothing could keep everybody else out.
"""

from __future__ import annotations

from holdfast.receive.responses import Reason, Refused
from holdfast.seam.rate import TokenBucket


class Admission:
    """Counts requests and body bytes in flight, each with a bound."""

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self.in_flight_requests = 0
        self.in_flight_bytes = 0
        self.received_bytes = 0

    def enter(self, announced_bytes: int) -> Admitted:
        """Return a place for a request; the caller must leave it again."""
        if self.in_flight_requests >= self._max_requests:
            raise _busy("too many requests are under way")
        if self.in_flight_bytes + announced_bytes > self._max_bytes:
            raise _busy("too many bytes are under way")
        self.in_flight_requests += 1
        return Admitted(self)

    def _take(self, size_bytes: int) -> None:
        if self.in_flight_bytes + size_bytes > self._max_bytes:
            raise _busy("too many bytes are under way")
        self.in_flight_bytes += size_bytes

    def _give_back(self, size_bytes: int) -> None:
        self.in_flight_requests -= 1
        self.in_flight_bytes -= size_bytes


class Admitted:
    """One request in flight, and the bytes it holds."""

    __slots__ = ("_admission", "_held_bytes")

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._held_bytes = 0

    def received(self, size_bytes: int) -> None:
        """Count bytes as they came, and hold them, or raise `Refused`."""
        self._admission.received_bytes += size_bytes
        self._admission._take(size_bytes)
        self._held_bytes += size_bytes

    def hold(self, size_bytes: int) -> None:
        """Hold some more bytes, or raise `Refused`."""
        self._admission._take(size_bytes)
        self._held_bytes += size_bytes

    def leave(self) -> None:
        """Give everything back; called once."""
        self._admission._give_back(self._held_bytes)
        self._held_bytes = 0


def _busy(message: str) -> Refused:
    return Refused(Reason.BUSY, message, "send it again after the seconds in Retry-After")


class ClientRate(TokenBucket):
    """How fast one producer may send. May be overdrawn by one batch.

    A batch is only counted once it is read; refusing it then would refuse it for ever if it is
    larger than the burst.
    """

    def hold_to_rate(self) -> None:
        """Count one event, or raise `Refused`."""
        wait_s = self.wait_s()
        if wait_s > 0:
            raise Refused(
                Reason.RATE,
                "this producer sends faster than it may",
                "send it again after the seconds in Retry-After; see tokens.events_per_s",
                retry_after_s=wait_s,
            )
        self.charge(1)
