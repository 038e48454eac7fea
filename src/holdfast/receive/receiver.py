"""What a receiver is: something that listens, answers, and puts what it accepted into a quiver."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol

import pyarrow as pa

from holdfast.dead_letters.queue import DeadLetterQueue
from holdfast.quiver import AckLevel, Receipt
from holdfast.seam import Seam
from holdfast.seam.clock import Clock

# A quiver that takes nothing, or a fault of ours, is logged this often.
_WARNING_INTERVAL_S = 60.0

log = logging.getLogger("holdfast.receive")


class LeftPayload(NamedTuple):
    """What processors before the buffer leave of a payload; empty if nothing."""

    payload: bytes
    # Spans, data points, log records; or the event, where it is not made of items.
    dropped_items: int


# Leads a payload of a slot, with its headers, through processors (before_buffer.py).
LeadThrough = Callable[[str, bytes, Mapping[str, str] | None], Awaitable[LeftPayload]]


class FastIntake(Protocol):
    """A way in for single events that need not wait."""

    def offer(
        self,
        payload: bytes,
        headers: Mapping[str, str] | None,
        on_answer: Callable[[Receipt | BaseException], None],
    ) -> bool:
        """Take an event and call back later, once; or return False, nothing done."""


class Inlet(Protocol):
    """What a receiver needs of a quiver, or of what sends on without one (deliver/direct.py)."""

    @property
    def quiver_id(self) -> str:
        """What positions in it begin with."""

    def intake(self, *, slot: str, level: AckLevel | None = None) -> FastIntake:
        """Return a way in for single events of a slot."""

    async def append_raw_async(
        self,
        payloads: bytes | Sequence[bytes],
        *,
        slot: str,
        headers: Sequence[Mapping[str, str] | None] | None = None,
        level: AckLevel,
    ) -> Receipt:
        """Return when payloads are taken; raises `NotAccepted`."""

    async def append_async(self, data: Mapping[str, pa.RecordBatch], *, level: AckLevel) -> Receipt:
        """Return when record batches are taken; raises `NotAccepted`."""


@dataclass(frozen=True)
class ReceiverContext:
    """What a receiver needs of the gateway around it."""

    # The name of its node: it stands in dead letters and in metrics.
    name: str
    # Where it puts what it takes: it answers when that is done.
    quiver: Inlet
    dead_letters: DeadLetterQueue
    seam: Seam
    # The folder of the configuration file; paths in it are relative to this.
    base_dir: Path
    # Several gateway processes listen on one port, and the kernel spreads connections over them.
    reuse_port: bool = False
    # Processors that everything passes before it is stored; None: there are none.
    before: LeadThrough | None = None


@dataclass
class ItemCounts:
    """What became of the items of one signal: spans, data points, log records."""

    accepted: int = 0
    # Of requests that were read, and not stored.
    refused: int = 0
    # By processors before the buffer; their senders were told that all is well.
    dropped_before_buffer: int = 0
    # Left out of requests of which the rest was stored; their senders were told.
    rejected: int = 0


class ReceiverStatistics(NamedTuple):
    """A receiver at this moment. Totals count since it was made, in events unless they say other.

    Every event that was received and is no longer in flight was accepted, rejected, or dropped
    before the buffer. A request that was refused before its events could be counted counts as one.
    """

    received: int
    accepted: int
    # By reason, see docs/reference/http-api.md.
    rejected: dict[str, int]
    # Bytes of request bodies as they came, and of the events that were accepted.
    received_bytes: int
    accepted_bytes: int
    requests: int
    # Now.
    in_flight_requests: int
    in_flight_bytes: int
    connections: int
    # By signal, where an event holds several items. Totals.
    items: Mapping[str, ItemCounts] = MappingProxyType({})
    # Events of which processors before the buffer left nothing.
    dropped_before_buffer: int = 0


class Receiver(Protocol):
    """A way in."""

    @property
    def addresses(self) -> list[str]:
        """Where it listens, such as `http://127.0.0.1:5000`; empty before `start`."""

    async def start(self) -> None:
        """Listen. Raises a `HoldfastError` if that cannot be."""

    async def stop(self, drain_s: float) -> None:
        """Refuse what is new, finish what is under way for at most `drain_s`, and close."""

    def statistics(self) -> ReceiverStatistics:
        """Return a picture of this moment."""


class RareWarnings:
    """Logs what goes wrong with requests, each kind of it now and then."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._warned_s: dict[type[BaseException], float] = {}

    def warn(self, message: str, error: BaseException, *, with_traceback: bool = False) -> None:
        """Log it, unless the same kind was logged a moment ago."""
        now_s = self._clock.monotonic_s()
        warned_s = self._warned_s.get(type(error))
        if warned_s is None or now_s - warned_s >= _WARNING_INTERVAL_S:
            self._warned_s[type(error)] = now_s
            exc_info = error if with_traceback else None
            log.warning("%s: %s", self._name, message, exc_info=exc_info)
