"""The inbox: appends on their way from producers to the writer, bounded in bytes.

A producer waits twice: for room (here), and for its answer (`Append`). Both waits end at the same
deadline. Threads wait on a lock each; coroutines wait on a future of their own loop, or give a
function that is called in it (`Intake`), and every loop is woken once per group, not once per
append. One timer serves all that wait in a loop (`Deadlines`): they have the same time-out, so the
one that came first is the first to give up.

**The intake** takes single events from one event loop, with as little as possible for each of them.
`append_raw_async` costs an event two coroutines, a future and a step of its loop. Here it is handed
over immediately or not at all, and a function is called in the loop when its group is answered: all
events of one group in one step of the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

from holdfast.errors import HoldfastError, NotAccepted, Overloaded, QuiverClosed, StorageFailed
from holdfast.quiver.base.bundle import Encoded, Headers, OneEvent
from holdfast.quiver.base.config import AckLevel
from holdfast.quiver.base.frame import NO_WATERMARK
from holdfast.seam.clock import Clock
from holdfast.seam.process import bind_to_process


class AppendOptions(TypedDict, total=False):
    """What may be said with an append; `Append` has what follows from it.

    producer, epoch   make it idempotent: the same epoch again is answered with the receipt of the
                      first time, an older one raises `StaleEpoch`
    watermark_ns      the producer's promise that no earlier event time is still to come
    level             what the answer promises; without it, `append.level` of the configuration
    """

    producer: str | None
    epoch: int | None
    watermark_ns: int | None
    level: AckLevel | None


class Receipt(NamedTuple):
    """The answer to an append: where its bundles are."""

    quiver_id: str
    seq: int
    bundles: int
    events: int
    level: AckLevel
    # The same producer and epoch had been appended before; this is that receipt.
    duplicate: bool = False


AppendResult = Receipt | BaseException
OnAnswer = Callable[[AppendResult], None]


class Append:
    """One append in flight: all its bundles are accepted, or none."""

    __slots__ = (
        "_claim", "_done", "_future", "_loop", "_on_answer", "bundles", "epoch", "level", "outcome",
        "producer", "size_bytes", "watermark_ns",
    )  # fmt: skip

    def __init__(
        self,
        bundles: list[Encoded],
        level: AckLevel,
        producer: str | None,
        epoch: int,
        watermark_ns: int,
        loop: asyncio.AbstractEventLoop | None = None,
        on_answer: OnAnswer | None = None,
    ) -> None:
        self.bundles = bundles
        self.level = level
        self.producer = producer
        self.epoch = epoch
        self.watermark_ns = watermark_ns
        self.size_bytes = (
            len(bundles[0].payload) if len(bundles) == 1 else sum([len(b.payload) for b in bundles])
        )
        self.outcome: AppendResult | None = None
        # A lock that is taken once and never released: the cheapest compare-and-set there is in
        # Python.
        self._claim = threading.Lock()
        self._loop = loop
        # A coroutine waits for the future or is called, a thread waits for the lock.
        self._future: asyncio.Future[None] | None = None
        self._on_answer = on_answer
        if on_answer is not None:
            return
        if loop is not None:
            self._future = loop.create_future()
        else:
            self._done = threading.Lock()
            self._done.acquire()

    def claim(self) -> bool:
        """Take the append for writing, or give it up; only the first caller gets it."""
        return self._claim.acquire(blocking=False)

    def wait(self, timeout_s: float) -> Receipt:
        """Block until answered. On time-out an append nobody claimed is certainly not stored."""
        if not self._done.acquire(timeout=max(0.0, timeout_s)):
            self._give_up()
        return self._result()

    async def answered(self) -> Receipt:
        """Await the answer, or that `notify` is called without one: then the time is over.

        Cancelled, it is withdrawn if that is still possible.
        """
        assert self._future is not None
        try:
            await self._future
        except asyncio.CancelledError:
            if self.claim():  # the writer has not taken it yet, and never does
                self.outcome = asyncio.CancelledError()
            raise
        if self.outcome is None:
            self._give_up()
        return self._result()

    async def wait_async(self, timeout_s: float) -> Receipt:
        """Await the answer; as `wait`, by a timer of its own: those of asyncio cost far more."""
        assert self._loop is not None
        timer = self._loop.call_later(max(0.0, timeout_s), self.notify)
        try:
            return await self.answered()
        finally:
            timer.cancel()

    def notify(self) -> None:
        """Let whoever waits in a loop have the outcome; runs in that loop, works once."""
        on_answer, self._on_answer = self._on_answer, None
        if on_answer is not None:
            on_answer(self._too_late() if self.outcome is None else self.outcome)
        elif self._future is not None and not self._future.done():
            self._future.set_result(None)

    def _give_up(self) -> None:
        if self.outcome is None:
            raise self._too_late()

    def _too_late(self) -> Overloaded:
        """Return the error for a time-out.

        Whoever claims the append first decides: if the writer has it, it may still be stored.
        """
        stored = "no" if self.claim() else "maybe"
        return Overloaded(
            "the append was not answered in time",
            hint="the disk or the sealer is too slow; see statistics(), then try again",
            stored=stored,  # type: ignore[arg-type]
            retry_after_s=1.0,
        )

    def _result(self) -> Receipt:
        outcome = self.outcome
        assert outcome is not None, "BUG: answered without an outcome"
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


Answered = tuple[Append, AppendResult]


def answer(appends: Iterable[Answered]) -> None:
    """Answer many appends, each only the first time; wakes every event loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Append]] = {}
    for append, outcome in appends:
        if append.outcome is not None:
            continue
        append.outcome = outcome
        # A lock as a one-shot event: an `Event` allocates a condition and a lock of its own for
        # each append.
        loop = append._loop
        if loop is None:
            append._done.release()
        elif (waiting := by_loop.get(loop)) is not None:
            waiting.append(append)
        else:
            by_loop[loop] = [append]
    for loop, answered in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed while somebody waited in it
            # Per loop, not per append: each call writes to the loop's self-pipe.
            loop.call_soon_threadsafe(_notify, answered)


def _notify(appends: list[Append]) -> None:
    for append in appends:
        future = append._future
        if future is None:
            _tell(append)
        elif not future.done():
            future.set_result(None)


def _tell(append: Append) -> None:
    """Notify one; a fault of one that waited is not one of the others."""
    try:
        append.notify()
    except Exception as error:
        context = {"message": "an answer was not taken", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)


def answer_when_sealed(
    answers: list[Answered],
) -> Callable[[HoldfastError | None], None]:
    """Return what tells these answers, or the error that took their place."""

    def answer_now(error: HoldfastError | None) -> None:
        answer(answers if error is None else [(append, error) for append, _ in answers])

    return answer_now


def resolve_futures(futures: list[asyncio.Future[None]]) -> None:
    """Wake the coroutines behind some futures; runs in their loop."""
    for future in futures:
        if not future.done():
            future.set_result(None)


class Deadlines:
    """Ends the waiting of the appends of one event loop, with one timer for all of them.

    They have the same time-out, and are answered in the order in which they came.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # In the order of their deadlines; the first is one that is not answered.
        self._waiting: deque[tuple[float, Append]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, append: Append, timeout_s: float) -> None:
        """Notify this append after so many seconds, if it is not answered by then."""
        # Here as well as in the timer: under load the front of the queue is always answered, and
        # it must not grow by one entry per append until the next time-out.
        self._forget_answered()
        self._waiting.append((self._loop.time() + timeout_s, append))
        if self._timer is None:
            self._set_timer()

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
            _tell(append)
        self._forget_answered()
        if self._waiting:
            self._set_timer()


@dataclass(frozen=True)
class WriterRequest:
    """Something else the writer is asked to do, in order with the appends."""

    run: Callable[[], None]


class Inbox:
    """A queue of appends with a bound in bytes and one reader."""

    def __init__(self, max_pending_bytes: int, clock: Clock) -> None:
        self._max_pending_bytes = max_pending_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._items: deque[Append | WriterRequest] = deque()
        self._pending_bytes = 0
        self._closed_by: NotAccepted | None = None
        # Set only around the wait in `take`: a busy writer will look again anyway, and producers
        # save themselves the `notify`.
        self._reader_waits = False
        self._loops_waiting: dict[asyncio.Future[None], asyncio.AbstractEventLoop] = {}
        self._deadlines: dict[asyncio.AbstractEventLoop, Deadlines] = {}

    @property
    def pending_bytes(self) -> int:
        """Payload bytes handed over and not yet written."""
        return self._pending_bytes

    def put(self, append: Append, deadline_s: float) -> None:
        """Hand over an append; blocks while the inbox is full."""
        with self._lock:
            while not self._try_put(append):
                remaining = deadline_s - self._clock.monotonic_s()
                if remaining <= 0 or not self._room.wait(remaining):
                    raise self._full()

    def offer(self, append: Append) -> bool:
        """Hand over an append if there is room for it now."""
        with self._lock:
            return self._try_put(append)

    def send(self, append: Append, timeout_s: float) -> Awaitable[Receipt]:
        """Hand over an append of the running loop; to be awaited at once, within the time.

        Most are handed over in the call itself: a coroutine less for each of them. They wait by one
        timer. It serves them only because they are answered in the order
        in which they came: one whose time runs already, or that waits for a segment, would keep
        all that were answered behind it in memory.
        """
        if append.level is not AckLevel.SEGMENT and self.offer(append):
            self._deadlines_here().add(append, timeout_s)
            return append.answered()
        return self._send_patiently(append, timeout_s)

    async def _send_patiently(self, append: Append, timeout_s: float) -> Receipt:
        deadline_s = self._clock.monotonic_s() + timeout_s
        await self.put_async(append, deadline_s)
        return await append.wait_async(deadline_s - self._clock.monotonic_s())

    def _deadlines_here(self) -> Deadlines:
        """Return those of the running loop; those of loops that are closed go."""
        loop = asyncio.get_running_loop()
        found = self._deadlines.get(loop)
        if found is None:
            with self._lock:
                known = self._deadlines.items()
                self._deadlines = {one: its for one, its in known if not one.is_closed()}
                found = self._deadlines[loop] = Deadlines(loop)
        return found

    async def put_async(self, append: Append, deadline_s: float) -> None:
        """Hand over an append; awaits room."""
        while True:
            with self._lock:
                if self._try_put(append):
                    return
                loop = asyncio.get_running_loop()
                room: asyncio.Future[None] = loop.create_future()
                self._loops_waiting[room] = loop
            try:
                async with asyncio.timeout(deadline_s - self._clock.monotonic_s()):
                    await room
            except TimeoutError:
                raise self._full() from None
            finally:
                with self._lock:
                    self._loops_waiting.pop(room, None)

    def request(self, run: Callable[[], None]) -> None:
        """Ask the writer to call something, after all appends handed over before."""
        with self._lock:
            if self._closed_by is not None:
                raise self._closed_by.for_later()
            self._items.append(WriterRequest(run))
            self._work.notify()

    def take(self, max_bytes: int, timeout_s: float | None) -> list[Append | WriterRequest]:
        """Return what waits, at most `max_bytes` (or one larger append); may be empty."""
        with self._lock:
            patient = self._closed_by is None and (timeout_s is None or timeout_s > 0)
            if patient and not self._items:
                self._reader_waits = True
                self._work.wait(timeout_s)
                self._reader_waits = False
            taken: list[Append | WriterRequest] = []
            taken_bytes = 0
            while self._items:
                head = self._items[0]
                if isinstance(head, Append):
                    # Room is given back by `written`, after the group is on disk, not here: what
                    # the writer has in hand is still in memory.
                    taken_bytes += head.size_bytes
                    if taken and taken_bytes > max_bytes:
                        break
                taken.append(self._items.popleft())
            return taken

    def written(self, size_bytes: int) -> None:
        """Give back the room of appends that are written or refused."""
        with self._lock:
            self._pending_bytes -= size_bytes
            self._room.notify_all()
            self._wake_loops()

    def close(self, reason: NotAccepted | None = None) -> None:
        """Refuse everything from now on; what was handed over before stays."""
        reason = reason or closed_error()
        with self._lock:
            self._closed_by = reason
            self._work.notify()
            self._room.notify_all()
            self._wake_loops()

    def end(
        self, reason: NotAccepted, error: BaseException, taken: Iterable[Append | WriterRequest]
    ) -> None:
        """Refuse everything, and answer what was handed over, or taken and not done."""
        self.close(reason)
        for item in (*taken, *self.take(1 << 62, 0.0)):
            answer([(item, error)]) if isinstance(item, Append) else item.run()

    def _try_put(self, append: Append) -> bool:
        """Take an append if it fits, under the lock.

        One that is larger than the bound is taken alone.
        """
        if self._closed_by is not None:
            raise self._closed_by.for_later()
        too_much = self._pending_bytes + append.size_bytes > self._max_pending_bytes
        if too_much and self._pending_bytes > 0:
            return False
        self._pending_bytes += append.size_bytes
        # An append above the bound is admitted when nothing else is pending. It must be possible
        # to send what `max_bundle_bytes` allows, however the two are configured.
        self._items.append(append)
        if self._reader_waits:
            self._work.notify()
        return True

    def _wake_loops(self) -> None:
        """Everyone is woken and tries again; there is no fair queue. A waiter that loses the race
        waits once more until its own deadline, and the writer frees room in large steps.
        """
        waiting, self._loops_waiting = self._loops_waiting, {}
        by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for future, loop in waiting.items():
            by_loop.setdefault(loop, []).append(future)
        for loop, futures in by_loop.items():
            with contextlib.suppress(RuntimeError):  # the loop was closed while somebody waited
                loop.call_soon_threadsafe(resolve_futures, futures)

    def _full(self) -> Overloaded:
        return Overloaded(
            f"{self._pending_bytes} bytes wait to be written, the bound is "
            f"{self._max_pending_bytes} (append.max_pending_bytes)",
            hint="the disk is slower than the producers; try again",
            retry_after_s=1.0,
        )


def closed_error() -> QuiverClosed:
    """Return the error for whoever comes after `close`."""
    return QuiverClosed("the quiver is closed", hint="open it again before appending")


def ended_error(error: BaseException) -> StorageFailed:
    """Return the error for whoever comes after something has ended the writer."""
    return StorageFailed(
        f"the writer ended: {type(error).__name__}: {error}",
        hint="open the quiver again; if it happens again, report it",
        stored="maybe",
    )


class Intake:
    """A way into one slot of a quiver, for one event loop."""

    def __init__(self, inbox: Inbox, event: OneEvent, level: AckLevel, timeout_s: float) -> None:
        """Use `Quiver.intake`, within the loop."""
        self._inbox = inbox
        self._event = event
        self._level = level
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._deadlines = Deadlines(self._loop)
        bind_to_process(self)

    def offer(self, payload: bytes, header: Headers | None, on_answer: OnAnswer) -> bool:
        """Hand over an event; `on_answer` is called in the loop, once, with a receipt or an error.

        False: there is no room now, or the quiver takes nothing. Nothing was handed over then; to
        wait, or to learn why, append it. Raises `BundleTooLarge`.
        """
        encoded = self._event.encode(payload, header)
        append = Append([encoded], self._level, None, 0, NO_WATERMARK, self._loop, on_answer)
        try:
            if not self._inbox.offer(append):
                return False
        except NotAccepted:
            return False
        self._deadlines.add(append, self._timeout_s)
        return True
