"""One call of an exporter that always comes back: in time, and with an answer that makes sense.

An exporter that raises has a bug; its events are not lost, and nothing else stops because of it. An
exporter that does not end is cancelled. One that does not even heed that is not called again until
it does: two sends of one lane at once would mix up their order. (Code that blocks the whole event
loop is beyond help here.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from holdfast.deliver.exporter import Answer, Exporter, Failure, FailureClass, all_failed
from holdfast.deliver.poison import EXCEPTION_CODE
from holdfast.deliver.timer import Timer
from holdfast.signals.event import Unit

# How long a send that was cancelled may take to end.
CANCEL_GRACE_S = 5.0


class Sender:
    """Calls one exporter."""

    def __init__(self, exporter: Exporter, timer: Timer, timeout_s: float) -> None:
        self._exporter = exporter
        self._timer = timer
        self._timeout_s = timeout_s
        # Sends that did not end when they were told to.
        self._stuck: set[asyncio.Task[Answer]] = set()

    async def send(self, events: Sequence[Unit]) -> Answer:
        """Send once, and say what became of each event; raises nothing."""
        if self._stuck:
            await self._timer.wait(self._stuck, self._timeout_s)
            if self._stuck:
                return all_failed(len(events), _stuck(self._timeout_s))
        task = asyncio.get_running_loop().create_task(self._call(events))
        try:
            await self._timer.wait({task}, self._timeout_s)
            if not task.done():
                task.cancel()
                await self._timer.wait({task}, CANCEL_GRACE_S)
        finally:
            if not task.done():
                task.cancel()
                self._stuck.add(task)
                task.add_done_callback(self._stuck.discard)
        if not task.done() or task.cancelled():
            return all_failed(len(events), _timed_out(self._timeout_s))
        return task.result()

    async def _call(self, events: Sequence[Unit]) -> Answer:
        try:
            answer = await self._exporter.send(events)
            if not isinstance(answer, Answer):
                raise TypeError("an exporter must return an Answer")
            if any(not 0 <= index < len(events) for index in answer.failed):
                raise IndexError("an exporter named an event that it was not given")
        except Exception as error:
            return all_failed(len(events), _raised(error))
        return answer


def _raised(error: Exception) -> Failure:
    # Not its text: that may hold anything, also a payload or a secret.
    name = type(error).__name__
    return Failure(
        FailureClass.TRANSIENT,
        f"the exporter raised {name}",
        code=EXCEPTION_CODE + name,
        maybe_delivered=True,
    )


def _timed_out(timeout_s: float) -> Failure:
    return Failure(
        FailureClass.TRANSIENT,
        f"no answer within {timeout_s:g} s (send_timeout_s)",
        code="timeout",
        maybe_delivered=True,
    )


def _stuck(timeout_s: float) -> Failure:
    return Failure(
        FailureClass.TRANSIENT,
        f"the last send was cancelled, and has not ended for {timeout_s:g} s",
        code="stuck",
    )
