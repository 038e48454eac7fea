"""A destination: an exporter, its subscriber, and the task that brings the two together.

    destination = Destination(context, quiver)
    destination.start()
    …
    await destination.stop(drain_s=10.0)

Making one registers its subscriber and attaches to it, which touches the disk: do it before the
event loop has other work, and before anything is received. From then on everything accepted waits
for it.

There are two lives. A `DeliveryLoop` lasts from one attachment to the quiver until that ends:
somebody else attached, or an operator dropped the subscriber. The destination continues, and
attaches again when it is resumed. If a bug ends a loop, exporter and attachment are made once more
after a pause, so that one destination's bug is not everyone's; progress is in the ledger.

The lives nest, and each layer handles one kind of end:

    Sender         a send that hangs, raises or answers nonsense: a failure of those events
    DeliveryLoop   failures of the destination, the disk, the dead letters: waits and tries again
    Destination    a lost attachment: waits for `resume`. A bug: makes exporter and attachment anew

Nothing that a destination does reaches the other destinations or the receivers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from holdfast.deliver.context import DeliveryContext
from holdfast.deliver.delivery import DeliveryLoop
from holdfast.deliver.exporter import Answer, Failure, FailureClass
from holdfast.deliver.feed import Feed
from holdfast.deliver.judge import FILTERED_LETTER, NOT_TAKEN
from holdfast.deliver.sending import Backoff, Bell, BreakerState, Cause, LoopTimer, Timer
from holdfast.deliver.settings import DeliverySettings
from holdfast.deliver.statistics import DeliveryCounters, DestinationStatistics, State
from holdfast.errors import BadInput, HoldfastError, ReaderError
from holdfast.quiver import Position, Quiver, Statistics
from holdfast.signals.event import ArrowData, Unit
from holdfast.signals.registry import signal_named, signal_of_slot
from holdfast.signals.signal import Form

__all__ = ["DeliverySettings", "Destination", "DestinationStatistics", "State"]

# How long an exporter may take to close.
CLOSE_TIMEOUT_S = 5.0
# Before a delivery that ended because of a bug is restarted: doubles from the first to the second,
# and is the first again for one that ran longer than the second.
RESTART_MIN_S = 1.0
RESTART_MAX_S = 60.0

log = logging.getLogger("holdfast.deliver")


class Destination:
    """Delivers everything in a quiver to one exporter. Used from one event loop."""

    def __init__(self, context: DeliveryContext, quiver: Quiver) -> None:
        self.name = context.name
        # By what it waits; a test sets another before it runs.
        self.timer: Timer = LoopTimer()
        self._context = context
        self._quiver = quiver
        self._backoff = Backoff(context.settings, context.seam.randomness)
        self._counters = DeliveryCounters()
        self._exporter = context.make_exporter()
        self._feed: Feed | None = self._attach()
        self._delivery: DeliveryLoop | None = None
        # Why it is not attached any more.
        self._detached_by: str | None = None
        self._bell = Bell()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self._restarting: asyncio.Task[None] | None = None

    def _attach(self) -> Feed:
        return Feed(self._quiver, self.name, self._context.settings, self._context.refusal_of)

    # --------------------------------------------------------------------- running

    def start(self) -> None:
        """Deliver until `stop`, whatever happens."""
        self._restarting = asyncio.create_task(
            self._run_and_restart(), name=f"destination {self.name}"
        )

    async def _run_and_restart(self) -> None:
        """Run again after a bug, with a pause that grows while it dies young."""
        pause_s = RESTART_MIN_S
        while True:
            started_s = self.timer.now_s()
            try:
                await self.run()
            except Exception as error:
                self._counters.last_error = f"the delivery ended with {type(error).__name__}"
                log.exception("%s: the delivery ended because of a bug; restarting it", self.name)
            if self._stopping:
                return
            # It ran long enough for this to be another bug, or the same one by another event.
            if self.timer.now_s() - started_s > RESTART_MAX_S:
                pause_s = RESTART_MIN_S
            pause_s = await self._make_again(pause_s)

    async def _make_again(self, pause_s: float) -> float:
        """Make exporter and attachment once more, as often as it takes: the disk may be full."""
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RESTART_MAX_S)
            try:
                # In a thread: making one reads files (certificates, a journal), and attaching
                # syncs the ledger.
                self._exporter = await asyncio.to_thread(self._context.make_exporter)
                self._feed = await asyncio.to_thread(self._attach)
            except Exception:
                log.exception("%s: cannot be restarted; trying again", self.name)
            else:
                return pause_s

    async def run(self) -> None:
        """Deliver until `stop`; raises what ended it otherwise."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        try:
            await asyncio.wait({self._task})
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.wait({self._task})
            raise
        if not self._task.cancelled():
            self._task.result()

    async def stop(self, drain_s: float) -> None:
        """Finish what is under way within `drain_s`, then cut it off; the rest waits on disk."""
        self._stopping = True
        self._bell.ring()
        if self._delivery is not None:
            self._delivery.stop()
        try:
            if self._task is None:
                await self._detach()
            else:
                # The loop has been told to stop and ends by itself once its sends are settled; the
                # cancellation below is for those that are not by then. Their events come again
                # after the next start.
                await self.timer.wait({self._task}, drain_s)
                self._task.cancel()
                await asyncio.wait({self._task})
        finally:
            if self._restarting is not None:
                self._restarting.cancel()
                await asyncio.wait({self._restarting})

    async def _run(self) -> None:
        """Start the exporter, then deliver, attachment after attachment, until `stop`."""
        try:
            await self._start_exporter()
            while not self._stopping:
                try:
                    await self._deliver()
                except ReaderError as error:
                    await self._lost_place(error)
        finally:
            await self._detach()
            await self._close_exporter()

    async def _deliver(self) -> None:
        if self._feed is None:
            self._feed, self._detached_by = self._attach(), None
        self._delivery = DeliveryLoop(
            self._context, self._exporter, self._feed, self.timer, self._counters
        )
        await self._delivery.run()

    async def _lost_place(self, error: ReaderError) -> None:
        """Wait to be resumed after somebody dropped the subscriber, or attached in our place."""
        log.error("%s: %s", self.name, error)
        self._detached_by = self._counters.last_error = str(error)
        await self._detach()
        while self._is_detached and not self._stopping:
            with self._bell.listening() as rung:
                await self.timer.wait({rung}, None)

    @property
    def _is_detached(self) -> bool:
        return self._detached_by is not None

    async def _detach(self) -> None:
        feed, self._feed, self._delivery = self._feed, None, None
        if feed is not None:
            await feed.close()

    async def _start_exporter(self) -> None:
        """Start the exporter as often as it takes: what it needs may come later."""
        failures = 0
        while not self._stopping:
            try:
                await self._exporter.start()
            except Exception as error:
                failures += 1
                told = str(error) if isinstance(error, HoldfastError) else repr(error)
                self._counters.last_error = f"the exporter did not start: {told}"
                log.warning("%s: %s", self.name, self._counters.last_error)
                with self._bell.listening() as rung:
                    await self.timer.wait({rung}, self._backoff.pause_s(failures))
            else:
                return

    async def _close_exporter(self) -> None:
        """Close the exporter, and do not wait for one that hangs: the gateway has to end."""
        closing = asyncio.get_running_loop().create_task(self._exporter.close())
        await asyncio.wait({closing}, timeout=CLOSE_TIMEOUT_S)
        if not closing.done():
            closing.cancel()
            log.warning("%s: the exporter did not close in %g s", self.name, CLOSE_TIMEOUT_S)
        elif not closing.cancelled() and (error := closing.exception()) is not None:
            log.warning("%s: the exporter failed to close: %s", self.name, type(error).__name__)

    # ------------------------------------------------------------------- operating

    def pause(self) -> None:
        """Send nothing more, also after a restart, until `resume`."""
        if self._feed is not None:
            self._feed.pause()

    def resume(self) -> None:
        """Go on after a pause; after a failure, try at once.

        Also the way back from a lost attachment: the operator says that the other reader is gone.
        """
        self._detached_by = None
        if self._feed is not None:
            self._feed.resume()
        if self._delivery is not None:
            self._delivery.try_now()
        self._bell.ring()

    def holds(self, position: Position) -> bool:
        """Whether an event is the first of those that wait, and fails."""
        return self._delivery is not None and self._delivery.holds(position)

    async def skip(self, position: Position, reason: str) -> bool:
        """Make a dead letter of an event that `holds` tells of; False if it was taken meanwhile."""
        return self._delivery is not None and await self._delivery.skip(position, reason)

    async def redrive(self, events: Sequence[Unit]) -> Answer:
        """Send events once, through the processors, besides everything else and out of order.

        For dead letters that somebody replays. Nothing is tried again, and nothing is written.
        """
        delivery = self._delivery
        if delivery is None:
            raise BadInput(
                f"destination {self.name!r} is not running", hint="start it, then try again"
            )
        failed: dict[int, Failure] = {}
        for index, event in enumerate(events):
            failure = await self._redrive_one(delivery, event)
            if failure is not None:
                failed[index] = failure
        return Answer(failed)

    async def _redrive_one(self, delivery: DeliveryLoop, event: Unit) -> Failure | None:
        """Send one letter as if it came now: through the processors, if it can be taken."""
        form = Form.ARROW if isinstance(event, ArrowData) else None
        signal = signal_named(event.signal, form)
        if signal is None:
            refusal: str | None = f"there is no signal {event.signal!r}"
        else:
            refusal = self._context.refusal_of(signal)
        if refusal is not None:
            return Failure(FailureClass.PERMANENT, refusal, code=NOT_TAKEN)
        try:
            if self._context.converts(event):
                ready = await asyncio.to_thread(self._context.process, event)
            else:
                ready = self._context.process(event)
        except Exception as error:
            reason = f"a processor raised {type(error).__name__}"
            return Failure(FailureClass.PERMANENT, reason, code="processor")
        if ready is None:
            return FILTERED_LETTER
        if self._context.tap is not None:
            self._context.tap(ready)
        return (await delivery.redrive([ready])).failed.get(0)

    def statistics(self, of_quiver: Statistics | None = None) -> DestinationStatistics:
        """Return a snapshot; `of_quiver` saves counting the quiver once more."""
        whole = of_quiver or self._quiver.statistics()
        account = next((one for one in whole.subscribers if one.name == self.name), None)
        counters, delivery = self._counters, self._delivery
        breaker = None if delivery is None else delivery.judge.breaker
        return DestinationStatistics(
            name=self.name,
            state=self._state(),
            stalled_by=self._stalled_by(),
            stuck_key=self._stuck_key(),
            held=None if delivery is None else delivery.held,
            last_error=counters.last_error,
            breaker=BreakerState.CLOSED if breaker is None else breaker.state,
            breaker_opened_total=0 if breaker is None else breaker.opened_total,
            sends=counters.sends,
            sent_events=counters.sent_events,
            sent_bytes=counters.sent_bytes,
            failed=dict(counters.failed),
            filtered=counters.filtered,
            dead_lettered=sum(counters.dead_lettered.values()),
            dead_lettered_by_reason=dict(counters.dead_lettered),
            lost_events={} if account is None else account.lost_events,
            lag_events=0 if account is None else account.pending.events,
            lag_bytes=0 if account is None else account.pending_bytes,
            oldest_age_s=None if account is None else account.oldest_age_s,
            in_flight_events=0 if delivery is None else delivery.in_flight_events,
            active_lanes=0 if delivery is None else len(delivery.lanes),
            items={signal: replace(counts) for signal, counts in counters.items.items()},
            queue_age_s={} if account is None else _by_signal(account.oldest_age_s_by_slot),
        )

    def _state(self) -> State:
        """Return the first that holds: several may, and people can act on the earlier ones."""
        # Between a bug and its restart `_task` is done and `_restarting` is not: that is backing
        # off, not stopped.
        tasks = (self._task, self._restarting)
        if self._stopping or all(task is None or task.done() for task in tasks):
            return State.STOPPED
        if self._is_paused():
            return State.PAUSED
        delivery = self._delivery
        if delivery is not None and delivery.judge.breaker.cause is Cause.AUTH:
            return State.AUTH_FAILED
        if self._stalled_by() is not None:
            return State.STALLED
        if delivery is None or delivery.is_backing_off:
            return State.BACKING_OFF
        return State.RUNNING

    def _is_paused(self) -> bool:
        try:
            return self._feed is not None and self._feed.is_paused
        except ReaderError:
            return False

    def _stalled_by(self) -> str | None:
        """Say what somebody has to do something about."""
        delivery = self._delivery
        if self._detached_by is not None or delivery is None:
            return self._detached_by
        if delivery.blocked:
            return "; ".join(delivery.blocked.values())
        if delivery.refused is not None:
            return delivery.refused
        key = self._stuck_key()
        return None if key is None else f"the others are `read_ahead_size` ahead of key {key!r}"

    def _stuck_key(self) -> str | None:
        return None if self._delivery is None else self._delivery.stuck_key


def _by_signal(by_slot: Mapping[str, float]) -> dict[str, float]:
    """Return the greatest of each signal: it may have several slots."""
    signals, found = signal_of_slot(), dict[str, float]()
    for slot, value in by_slot.items():
        if (signal := signals.get(slot)) is not None:
            found[signal] = max(value, found.get(signal, 0.0))
    return found
