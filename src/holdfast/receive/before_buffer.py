"""Processors between a receiver and its quiver: what they drop is never stored.

Behind the buffer a processor has all the time it needs, and what it filters is in the ledger. Here
it works while a client waits, for a smaller buffer, and there is no account but a count. So there
are three rules:

    dropped   is answered with success, and counted in items as `dropped_before_buffer`; it is in no
              ledger, and no part of what was accepted
    changed   is what is stored: nobody can have the original again
    raised    is a 503: whether it should be kept is not known, and the sender still has it
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.quiver import Position
from holdfast.quiver.base.frame import FrameKind
from holdfast.receive.receiver import LeftPayload, RareWarnings
from holdfast.receive.responses import Reason, Refused
from holdfast.seam.clock import Clock
from holdfast.signals.event import INLINE_BYTES, NO_HEADERS, Event
from holdfast.signals.registry import signal_of


class BeforeBuffer:
    """The processors of one receiver."""

    def __init__(self, name: str, process: Callable[[Any], Any], clock: Clock) -> None:
        """`process` returns an event as it leaves them, or None."""
        self._process = process
        self._clock = clock
        self._warnings = RareWarnings(name, clock)

    async def passed(
        self, slot: str, payload: bytes, headers: Mapping[str, str] | None
    ) -> LeftPayload:
        """Lead a payload through them; raises `Refused` if one of them fails."""
        event = self._event(slot, payload, headers)
        try:
            if len(payload) > INLINE_BYTES:
                return await asyncio.to_thread(self._led_through, event)
            return self._led_through(event)
        except Exception as error:
            message = f"a processor before the buffer raised {type(error).__name__}"
            self._warnings.warn(message, error, with_traceback=True)
            hint = "send it again; the gateway's log says what happened"
            raise Refused(Reason.UNAVAILABLE, message, hint) from error

    def _event(self, slot: str, payload: bytes, headers: Mapping[str, str] | None) -> Event:
        """Return the payload as processors know it. It has no place in a quiver yet."""
        signal = signal_of(FrameKind.RAW, (slot,))
        return Event(
            quiver_id="",
            position=Position(0),
            slot=slot,
            payload=payload,
            headers=headers or NO_HEADERS,
            ingestion_ns=self._clock.wall_ns(),
            signal=signal.name,
            read=signal.read,
            count=signal.count,
        )

    def _led_through(self, event: Event) -> LeftPayload:
        left: Event | None = self._process(event)
        if left is None:
            return LeftPayload(b"", 1 if event.items is None else event.items)
        if left is event or event.items is None:
            return LeftPayload(left.payload, 0)
        return LeftPayload(left.payload, event.items - (left.items or 0))
