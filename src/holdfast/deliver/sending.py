"""Sending: when it may be tried again, and a call of an exporter that always comes back.

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

A call comes back in time, and with an answer that makes sense. An exporter that raises has a bug;
its events are not lost, and nothing else stops because of it. An exporter that does not end is
cancelled. One that does not even heed that is not called again until it does: two sends of one lane
at once would mix up their order. (Code that blocks the whole event loop is beyond help here.)
For that a call is a task of its own, which its sender can leave behind; where one event is sent at
a time, that costs each of them three turns of the loop. An exporter that says of itself that it
`ends_when_cancelled` is called by the task that sends.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Collection, Coroutine, Iterator, Sequence
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from holdfast import self_watch
from holdfast.deliver.exporter import Answer, Exporter, Failure, FailureClass, all_failed
from holdfast.deliver.settings import DeliverySettings
from holdfast.signals.event import Unit

# 2 ** 64 times anything is above every ceiling; more would only make large numbers.
DOUBLINGS_MAX = 64
# How failures of the exporter itself are coded: an exception names what it could not handle, and
# that may well be one event.
EXCEPTION_CODE = "exception "
# How long a send that was cancelled may take to end.
CANCEL_GRACE_S = 5.0

Result = TypeVar("Result")


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
        # `not … > 0` and not `<= 0`: a server may send NaN, which compares false either way.
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
        """Return how long nothing may be sent, 0 if it may; None: until the probe is back.

        Time alone opens the way for the probe, and it is whoever asks next that notices: there is
        no timer that could fire after the delivery has ended.
        """
        if self.state is BreakerState.OPEN and now_s >= self._open_until_s:
            self.state = BreakerState.HALF_OPEN
        if self.state is BreakerState.OPEN:
            return self._open_until_s - now_s
        # All other lanes wait for the probe's answer, which rings their bell; a pause in seconds
        # would be a guess.
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
        # While it is open, sends that were under way still come back. Their failures are no news
        # and must not push the next probe further away.
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


class Timer(Protocol):
    """By what a delivery waits. Tests let time pass as they like."""

    def now_s(self) -> float:
        """Return seconds since some fixed moment; never jumps."""

    async def wait(self, futures: Collection[asyncio.Future[Any]], timeout_s: float | None) -> None:
        """Return when one of the futures is done, or the time is over. Cancels none of them."""


class LoopTimer:
    """The event loop's own clock; used from one loop."""

    def __init__(self) -> None:
        # Looked up once: that is a system call, and the time is asked for with every event.
        self._loop: asyncio.AbstractEventLoop | None = None

    def now_s(self) -> float:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop.time()

    async def wait(self, futures: Collection[asyncio.Future[Any]], timeout_s: float | None) -> None:
        await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


class Bell:
    """Wakes everyone who listens at the moment; they look again at what they wait for.

    A `Condition` would do, but each wait would then be a task of its own. These are plain futures,
    so that one `asyncio.wait` listens to several bells and a clock.
    """

    def __init__(self) -> None:
        self._listeners: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        """Wake all listeners."""
        for listener in self._listeners:
            if not listener.done():
                listener.set_result(None)
        # A ring is for those who listen now. Whoever waits looks at the state first and listens
        # second, both without an await in between, so nothing is missed.
        self._listeners.clear()

    @contextlib.contextmanager
    def listening(self) -> Iterator[asyncio.Future[None]]:
        """Yield a future that the next ring completes."""
        listener: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)


async def wait_for(timer: Timer, timeout_s: float | None, *bells: Bell) -> None:
    """Wait until one of the bells rings, or the time is over."""
    with contextlib.ExitStack() as stack:
        await timer.wait([stack.enter_context(bell.listening()) for bell in bells], timeout_s)


class TimeLimit:
    """Cancels tasks that take too long, with one timer for all: a task that is in time moves none.

    As `asyncio.timeout`, which sets up a timer of its own each time.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        # When each is over, the first that began first.
        self._ends_s: dict[asyncio.Task[Any], float] = {}
        self._late: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def keep(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Return what comes of some work, which ends when it is cancelled; or `TimeoutError`."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None, "BUG: not in a task"
        self._ends_s[task] = end_s = loop.time() + self._limit_s
        if self._timer is None:
            self._timer = loop.call_at(end_s, self._look)
        cancelled_before = task.cancelling()
        try:
            return await work
        except asyncio.CancelledError:
            # Somebody else may have cancelled it, too: then it has to end.
            if task in self._late and task.cancelling() - 1 <= cancelled_before:
                raise TimeoutError from None
            raise
        finally:
            if task in self._late:
                self._late.discard(task)
                task.uncancel()
            else:
                del self._ends_s[task]

    def _look(self) -> None:
        """Cancel what is late; come back when the next may be."""
        self._timer, loop = None, asyncio.get_running_loop()
        for task, end_s in list(self._ends_s.items()):
            if end_s > loop.time():
                self._timer = loop.call_at(end_s, self._look)
                return
            del self._ends_s[task]
            self._late.add(task)
            task.cancel()


class Sender:
    """Calls one exporter."""

    def __init__(self, name: str, exporter: Exporter, timer: Timer, timeout_s: float) -> None:
        # Of the destination.
        self._name = name
        self._exporter = exporter
        self._timer = timer
        self._timeout_s = timeout_s
        self._limit = TimeLimit(timeout_s)
        self._ends_when_cancelled = bool(getattr(exporter, "ends_when_cancelled", False))
        # Sends that did not end when they were told to.
        self._stuck: set[asyncio.Task[Answer]] = set()

    def send(self, events: Sequence[Unit]) -> Coroutine[Any, Any, Answer]:
        """Send once, and say what became of each event; raises nothing."""
        began_ns = self_watch.begin()
        return self._send_and_tell(events, began_ns) if began_ns else self._send(events)

    async def _send_and_tell(self, events: Sequence[Unit], began_ns: int) -> Answer:
        answer = await self._send(events)
        size_bytes = sum(event.size_bytes for event in events)
        told: dict[str, str | int] = {"destination": self._name}
        told |= {"events": len(events), "bytes": size_bytes}
        failure = next((str(one) for one in answer.failed.values()), "")
        self_watch.end(self_watch.OwnSpan("send", False, began_ns, told, failure))
        return answer

    async def _send(self, events: Sequence[Unit]) -> Answer:
        # An exporter that ignores cancellation still holds its connection and may yet deliver.
        # Calling it again meanwhile could put a later event before an earlier one.
        if self._stuck:
            await self._timer.wait(self._stuck, self._timeout_s)
            if self._stuck:
                return all_failed(len(events), _stuck(self._timeout_s))
        if self._ends_when_cancelled:
            try:
                return await self._limit.keep(self._call(events))
            except TimeoutError:
                return all_failed(len(events), _timed_out(self._timeout_s))
        # A task of its own, so that cancelling the send does not cancel the lane that waits for
        # it.
        task = asyncio.get_running_loop().create_task(self._call(events))
        try:
            await self._timer.wait({task}, self._timeout_s)
            if not task.done():
                task.cancel()
                await self._timer.wait({task}, CANCEL_GRACE_S)
        # Also when this coroutine is cancelled itself, at a stop: the send must not go on unseen.
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
    """Code, not text: exporters of other packages raise what they like, and a message that ends up
    in the ledger, in metrics and in logs must not carry a payload there.
    """
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
