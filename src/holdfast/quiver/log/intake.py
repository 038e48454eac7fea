"""The intake: single events from one event loop, with as little as possible for each of them.

`append_raw_async` costs an event a coroutine, a future, a timer and a step of its loop. Here it is
handed over at once or not at all, and a function is called in the loop when its group is answered.
All of one group are told in one step of the loop, and one timer stands for all that wait: they have
the same patience, so the one that came first is the first to give up.
"""

from __future__ import annotations

import asyncio
from collections import deque

from holdfast.errors import NotAccepted
from holdfast.quiver.base.bundle import Headers, OneEvent
from holdfast.quiver.base.config import AckLevel
from holdfast.quiver.base.frame import NO_WATERMARK
from holdfast.quiver.log.inbox import Append, Inbox, Told
from holdfast.seam.process import bind_to_process


class Intake:
    """A way into one slot of a quiver, for one event loop."""

    def __init__(self, inbox: Inbox, event: OneEvent, level: AckLevel, timeout_s: float) -> None:
        """Use `Quiver.intake`, within the loop."""
        self._inbox = inbox
        self._event = event
        self._level = level
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        # In the order of their deadlines; the first is one that is not answered.
        self._waiting: deque[tuple[float, Append]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        bind_to_process(self)

    def offer(self, payload: bytes, header: Headers | None, told: Told) -> bool:
        """Hand over an event; `told` is called in the loop, once, with a receipt or an error.

        False: there is no room now, or the quiver takes nothing. Nothing was handed over then; to
        wait, or to learn why, append it. Raises `BundleTooLarge`.
        """
        encoded = self._event.encode(payload, header)
        append = Append([encoded], self._level, None, 0, NO_WATERMARK, self._loop, told)
        try:
            if not self._inbox.offer(append):
                return False
        except NotAccepted:
            return False
        self._forget_answered()
        self._waiting.append((self._loop.time() + self._timeout_s, append))
        if self._timer is None:
            self._set_timer()
        return True

    def _forget_answered(self) -> None:
        waiting = self._waiting
        while waiting and waiting[0][1].outcome is not None:
            waiting.popleft()

    def _set_timer(self) -> None:
        self._timer = self._loop.call_at(self._waiting[0][0], self._give_up)

    def _give_up(self) -> None:
        """Tell those whose time is over, and look again when the next one's is."""
        self._timer = None
        now_s = self._loop.time()
        self._forget_answered()
        while self._waiting and self._waiting[0][0] <= now_s:
            _, append = self._waiting.popleft()
            append.tell()
        self._forget_answered()
        if self._waiting:
            self._set_timer()
