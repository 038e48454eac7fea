"""Delivering: from one attachment to the quiver until it ends. The rules of order are kept here.

    feed ──▶ window ──▶ lanes ──pause?──▶ exporter ──▶ judge ──▶ settle: dead letters, the ledger

Every lane is a task that does one thing after another: wait until it may send, send, judge the
answer, settle. It sends again only when what was decided is in the ledger, so that a crash repeats
no more than what was under way.

Order. Events of a lane are sent in order, and a send begins after the last one was answered. Three
things may still come out of order: when the destination takes a batch in part, what it took behind
a failed event is before it; what was set aside as a dead letter comes when somebody replays it; and
with `poison:` events overtake one that is almost certain to be at fault (`Trial`). Nothing that
was delivered, or set aside, is sent again by itself, but for the last one, to compare with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence

from holdfast.deliver.context import DeliveryContext, DeliveryPoint
from holdfast.deliver.exporter import Answer, Exporter, Failure, FailureClass, all_failed
from holdfast.deliver.feed import Feed
from holdfast.deliver.judge import Judge, Taken
from holdfast.deliver.lanes import DeliveryLane, Lanes, Round, Skip, Trial
from holdfast.deliver.sending import Bell, BreakerState, Sender, Timer, wait_for
from holdfast.deliver.settling import Settlement
from holdfast.deliver.statistics import DeliveryCounters, HeldEvent
from holdfast.deliver.window import Decision, DeliveryWindow, Item, TrackedBundle
from holdfast.quiver import Outcome, Position
from holdfast.signals.event import Event, Unit

# Fewer events than this in hand, for every send that may be under way: read more. And while the
# destination does not work: one to try, and one to compare it with.
LOW_WATER_EVENTS = 32
LOW_WATER_WHEN_DOWN_EVENTS = 2
# Events that processors are given at once, so that a filter that takes nothing does not keep
# everyone else from the event loop.
PREPARED_EVENTS_MAX = 100
# A request of telemetry that is larger is led through the processors in a thread: it is read and
# written as a whole, which for one of some megabytes takes tens of milliseconds.
PREPARED_INLINE_BYTES = 256 * 1024
# What is led through them in a thread at once, before it is looked at what can be sent.
PREPARED_AT_ONCE_BYTES = 4 * 1024 * 1024
# After a wait this long since the last look: is what we hold still wanted?
LOOK_AGAIN_S = 1.0

_BUSY = Failure(FailureClass.TRANSIENT, "it is busy with other events", code="busy")


class DeliveryLoop:
    """One destination while it is attached."""

    def __init__(
        self,
        context: DeliveryContext,
        exporter: Exporter,
        feed: Feed,
        timer: Timer,
        counters: DeliveryCounters,
    ) -> None:
        settings, randomness = context.settings, context.seam.randomness
        self.window = DeliveryWindow()
        self.lanes = Lanes(self.window)
        self.judge = Judge(context.name, settings, randomness, counters, self.lanes.decide)
        self.in_flight_events = 0
        self._context = context
        self._settings = settings
        self._exporter = exporter
        self._reached = context.seam.reached
        self._feed = feed
        self._timer = timer
        self._counters = counters
        self._sender = Sender(context.name, exporter, timer, settings.send_timeout_s)
        # Computed once: they are asked for with every event.
        self._ahead_bytes, self._parallel_sends = settings.ahead_bytes, settings.parallel_sends
        # What bounds the load on a destination: lanes are as many as there are keys, sends are
        # not.
        self._slots = asyncio.Semaphore(self._parallel_sends)
        self._has_processors = any(chain.steps for chain in context.chains)
        self._paced_until_s = timer.now_s()
        # Rung when something changed that all lanes look at; and when there may be room for more.
        self._bell, self._room = Bell(), Bell()
        self._settlement = Settlement(
            context, feed, self.lanes, self.judge, counters, timer, self._bell, self._made_room
        )
        self._looked_s = timer.now_s()
        # Keys of events that were taken, and are being sent again to compare others with them.
        self._repeating: set[str] = set()
        self._stopping = False
        self._group: asyncio.TaskGroup | None = None
        self._feeder: asyncio.Task[None] | None = None

    # --------------------------------------------------------------------- running

    async def run(self) -> None:
        """Deliver until `stop`; raises what ended it otherwise."""
        try:
            async with asyncio.TaskGroup() as self._group:
                self._feeder = self._group.create_task(self._keep_fed())
                if self._stopping:
                    self._feeder.cancel()
        except BaseExceptionGroup as several:
            # The first to fail is the cause; the others were cancelled because of it. Callers
            # catch `ReaderError`, which a group would hide.
            raise next(_leaves(several)) from several

    def stop(self) -> None:
        """Begin no more sends; `run` returns when those under way are settled."""
        self._stopping = self._settlement.is_stopping = True
        if self._feeder is not None:
            self._feeder.cancel()
        self.look_again()

    def look_again(self) -> None:
        """Let every lane see whether it may send."""
        self._bell.ring()
        self._room.ring()

    def try_now(self) -> None:
        """Do not wait any longer after a failure."""
        self.judge.breaker.try_now()
        for lane in self.lanes.values():
            lane.retry_at_s = self._timer.now_s()
        self.look_again()

    @property
    def blocked(self) -> Mapping[str, str]:
        """What does not take what has to be written or read, and what it says."""
        return self._settlement.blocked

    @property
    def is_backing_off(self) -> bool:
        """Whether there is something to send, and all of it waits after failures."""
        now_s = self._timer.now_s()
        if self.judge.breaker.state is not BreakerState.CLOSED:
            return True
        lanes = self.lanes.values()
        return bool(lanes) and all(lane.retry_at_s > now_s for lane in lanes)

    @property
    def stuck_key(self) -> str | None:
        """The key that others are as far ahead of as they may be."""
        if self._settings.order != "key" or self.window.ahead_bytes < self._ahead_bytes:
            return None
        oldest = self.window.oldest()
        lane = None if oldest is None else self.lanes.get(oldest.key)
        return lane.key if lane is not None and lane.failures else None

    async def redrive(self, events: Sequence[Unit]) -> Answer:
        """Send events besides the others, once, and out of order; decides nothing.

        Takes a slot like any other send, so that an operator who redrives ten thousand letters
        does not multiply the load on a destination that is only just back.
        """
        slot = asyncio.ensure_future(self._slots.acquire())
        try:
            await self._timer.wait({slot}, self._settings.send_timeout_s)
            if not slot.done():
                return all_failed(len(events), _BUSY)
            return await self._sender.send(events)
        finally:
            if slot.done() and not slot.cancelled():
                self._slots.release()
            slot.cancel()

    async def _keep_fed(self) -> None:
        """Read ahead whenever there is room, so that a lane never waits for the disk."""
        while True:
            while not self._wants_more():
                await wait_for(self._timer, None, self._room)
            bundles = await self._load()
            self._deal(self.window.add(bundles))
            if any(bundle.whole for bundle in bundles):
                self._settle_unsendable(bundles)

    def _made_room(self) -> None:
        """Wake the feeder if it would read on: to look for itself costs it a step of the loop."""
        if self._wants_more():
            self._room.ring()

    async def _load(self) -> list[TrackedBundle]:
        """Read some more; waits until there is something, and until it can be read."""
        loaded: list[TrackedBundle] = []

        async def load() -> None:
            # Inside, because it is computed again for each attempt: lanes go on deciding while the
            # disk fails.
            room_bytes = self._ahead_bytes - self.window.ahead_bytes
            room_events = self._settings.window_events - self.window.pending_events
            loaded.extend(await self._feed.load(max(1, room_events), max(1, room_bytes)))

        await self._settlement.persist("the quiver cannot be read", load)
        return loaded

    def _wants_more(self) -> bool:
        """Whether to read on: not further than allowed, and in large steps, for each costs."""
        if self.window.ahead_bytes >= self._ahead_bytes:
            return False
        if self.window.pending_events >= self._settings.window_events:
            return False
        sendable = self.window.pending_events
        if self.judge.breaker.state is not BreakerState.CLOSED:
            # During an outage memory is better left to receivers; the probe needs one event, not a
            # window.
            return sendable < LOW_WATER_WHEN_DOWN_EVENTS
        each = max(LOW_WATER_EVENTS, 2 * self._exporter.max_batch_events)
        low_water = each * self._parallel_sends
        if sendable < low_water or self._settings.order == "received":
            return sendable < low_water
        # What waits behind a failure is no work for the other keys.
        stuck = sum(len(lane) for lane in self.lanes.values() if lane.failures)
        return sendable - stuck < low_water

    def _deal(self, items: Sequence[Item]) -> None:
        """Give events to their lanes."""
        assert self._group is not None, "BUG: not running"
        for item in items:
            lane = self.lanes.get(item.key)
            if lane is None:
                batch_events = max(1, self._exporter.max_batch_events)
                lane = DeliveryLane(item.key, batch_events, self._settings.poison)
                self.lanes[item.key] = lane
                self._group.create_task(self._drive(lane))
            lane.add(item)
            lane.bell.ring()

    def _settle_unsendable(self, bundles: Sequence[TrackedBundle]) -> None:
        """Write the outcomes of bundles of which nothing is sent: heartbeats, unwanted signals."""
        assert self._group is not None, "BUG: not running"
        for bundle in bundles:
            if bundle.whole is not None and bundle.whole.outcome is Outcome.FILTERED:
                self._counters.filtered += bundle.events - bundle.recorded
        # Not by the feeder, which a stop cancels: others may rely on what it writes.
        self._group.create_task(self._settlement.settle())

    # ---------------------------------------------------------------------- a lane

    async def _drive(self, lane: DeliveryLane) -> None:
        """Send everything in a lane, then end."""
        while not self._stopping:
            # Before the lane may end: whoever asked waits for an answer, also if the event was
            # taken meanwhile and was the last one.
            if lane.skip is not None:
                await self._skip(lane, lane.skip)
                continue
            if lane.is_empty:
                del self.lanes[lane.key]
                return
            # Looked at here and once more after whatever takes time before the send: the breaker
            # may have opened meanwhile.
            pause_s = self._pause_s(lane)
            if pause_s is None or pause_s > 0:
                await wait_for(self._timer, pause_s, lane.bell, self._bell)
                # Waiting is when others get time to decide what we hold: an operator purges,
                # retention expires.
                await self._forget_gone()
            # All that is left has a verdict and only waits for its letter to be stored.
            elif (head := lane.head()) is None:
                await self._settlement.settle()
            elif head.refusal is not None:
                # Nothing is sent: only a change of the configuration, or an operator, helps.
                self.judge.cannot_take(lane, head, head.refusal, self._timer.now_s())
            else:
                await self._take_turn(lane)

    def _pause_s(self, lane: DeliveryLane) -> float | None:
        """Return how long a lane may not send; None: until something happens."""
        now_s = self._timer.now_s()
        if self._feed.is_paused:
            return None
        closed_off_s = self.judge.breaker.seconds_closed_off(now_s)
        if closed_off_s is None or closed_off_s > 0:
            return closed_off_s
        if lane.key in self._repeating:
            return None  # or what is repeated might come after what follows it
        return max(0.0, max(lane.retry_at_s, self._paced_until_s) - now_s)

    async def _take_turn(self, lane: DeliveryLane) -> None:
        """Send once from a lane, if nothing came between, and settle what came of it."""
        has_waited = self._slots.locked()
        async with self._slots:
            if has_waited and not self._may_send(lane):
                return  # other lanes may have opened the breaker meanwhile
            if large := self._large_ahead(lane):
                await self._prepare_beside(large)
                if not self._may_send(lane):
                    return
            batch = self._next_batch(lane)
            other = None
            if batch and lane.trial is not None:
                other = self._other_than(batch[0], lane, lane.trial)
            if other is not None:
                await self._send_pair(lane, batch[0], other)
            elif batch:
                await self._send_batch(lane, batch)
            # With the slot still taken: so many sends, and no more, are answered and not recorded.
            await self._settlement.settle()

    def _may_send(self, lane: DeliveryLane) -> bool:
        return not self._stopping and self._pause_s(lane) == 0

    async def _send_batch(self, lane: DeliveryLane, batch: Sequence[Item]) -> None:
        """Send from one lane; wake the others if that opened or closed the breaker."""
        breaker = self.judge.breaker
        was_probe = breaker.begin()
        try:
            answer = await self._send(batch)
        finally:
            breaker.end(was_probe=was_probe)
        before = breaker.state
        self.judge.judge(lane, batch, answer, self._timer.now_s())
        if was_probe or breaker.state is not before:
            self._bell.ring()
            if before is not breaker.state is BreakerState.CLOSED:
                self._feed.outage_ended()

    def _next_batch(self, lane: DeliveryLane) -> list[Item]:
        """Return what to send next; may decide events on the way, and leave nothing to send."""
        # The probe is one event: if the destination is still down, one request more finds it out.
        alone = self.judge.breaker.state is BreakerState.HALF_OPEN
        limit_events = 1 if alone else lane.limit_events
        batch: list[Item] = []
        size_bytes, looked_at = 0, 0
        for item in lane.sendable():
            looked_at += 1
            if item.refusal is not None:
                break  # what is behind it waits with it
            if batch and self._is_large(item):
                break  # it is prepared when it is the head
            if item.ready is None and not self._prepare(item):
                # Everything so far was filtered. Settle and come back: the loop has other
                # destinations to serve.
                if looked_at >= PREPARED_EVENTS_MAX:
                    break
                continue
            assert item.ready is not None, "BUG: prepared, and not ready"
            size_bytes += item.ready.size_bytes
            # One event may exceed the limit by itself: whether it is too large is for the
            # destination to say.
            if batch and size_bytes > self._exporter.max_batch_bytes:
                break
            batch.append(item)
            if len(batch) == limit_events:
                break
        return batch

    def _is_large(self, item: Item) -> bool:
        """Whether processors, or a conversion, would keep the event loop from others for long."""
        if item.ready is not None:
            return False
        if not isinstance(item.event, Event):
            return self._context.converts(item.event)
        return (
            self._has_processors
            and item.event.size_bytes > PREPARED_INLINE_BYTES
            and item.event.count is not None
        )

    def _large_ahead(self, lane: DeliveryLane) -> list[Item]:
        """Return the first of a lane, if it is large, and what is as large behind it."""
        first: list[Item] = []
        size_bytes = 0
        for item in lane.sendable():
            if item.refusal is not None or not self._is_large(item):
                break
            size_bytes += item.event.size_bytes
            is_enough = len(first) == lane.limit_events or size_bytes > PREPARED_AT_ONCE_BYTES
            if first and is_enough:
                break
            first.append(item)
        return first

    async def _prepare_beside(self, large: Sequence[Item]) -> None:
        """Lead some of a lane through the processors beside the event loop."""
        prepared = await asyncio.to_thread(self._process_all, [item.event for item in large])
        for item, left in zip(large, prepared, strict=True):
            if item.decision is not None:
                continue  # an operator, or retention, was faster
            if isinstance(left, Exception):
                self.judge.cannot_process(item, left)
            else:
                self._prepared(item, left)

    def _process_all(self, events: Sequence[Unit]) -> list[Unit | Exception | None]:
        """Return what processors leave of some events, or raise for them. In any thread."""
        left: list[Unit | Exception | None] = []
        for event in events:
            try:
                left.append(self._context.process(event))
            except Exception as error:
                left.append(error)
        return left

    def _prepare(self, item: Item) -> bool:
        """Lead an event through the processors; False if it is not to be sent."""
        try:
            ready = self._context.process(item.event)
        except Exception as error:
            self.judge.cannot_process(item, error)
            return False
        self._prepared(item, ready)
        return ready is not None

    def _prepared(self, item: Item, ready: Unit | None) -> None:
        """Note what processors left of an event."""
        item.ready = ready
        if ready is not item.event and (before := item.event.items) is not None:
            left = 0 if ready is None else ready.items or 0
            self._counters.items[item.event.signal].filtered += before - left
        if ready is None:
            self._counters.filtered += item.event.rows
            self.lanes.decide(item, Decision(Outcome.FILTERED))
        elif self._context.tap is not None:
            self._context.tap(ready)

    async def _send(self, batch: Sequence[Item]) -> Answer:
        """Count and send a batch; a crash behind `SENT` is what at-least-once is about."""
        events = 0
        ready: list[Unit] = []
        for item in batch:
            item.attempts += 1
            events += item.event.rows
            assert item.ready is not None, "BUG: sent, and not ready"
            ready.append(item.ready)
        self.in_flight_events += events
        self._counters.sends += 1
        if (limit := self._settings.max_bytes_per_s) is not None:
            paused_s = sum(unit.size_bytes for unit in ready) / limit
            self._paced_until_s = max(self._paced_until_s, self._timer.now_s()) + paused_s
        try:
            answer = await self._sender.send(ready)
        finally:
            self.in_flight_events -= events
        self._reached(DeliveryPoint.SENT)
        return answer

    # ------------------------------------------------- an event that may be poison

    def _other_than(self, head: Item, lane: DeliveryLane, trial: Trial) -> Taken | Item | None:
        """Return an event to compare the head of a lane with; None if that is not due, or cannot
        be."""
        in_round = trial.round_of(head.position)
        if in_round is Round.REPEATED:
            taken = self.judge.last_taken
            # From the lane that is being tried: nothing else of it is under way, so nothing can
            # overtake.
            if taken is None or taken.key == lane.key:
                return taken
            # What follows it must not be under way: it would come before what it follows.
            is_busy = taken.key in self.lanes or taken.key in self._repeating
            return None if is_busy else taken
        if in_round is Round.NEW:
            behind = (i for i in lane.sendable() if i is not head and i.refusal is None)
            return next((item for item in behind if item.ready or self._prepare(item)), None)
        return None

    async def _send_pair(self, lane: DeliveryLane, head: Item, other: Taken | Item) -> None:
        """Send the head and another event, in an order that is drawn by lot; see `Trial`."""
        breaker, before = self.judge.breaker, self.judge.breaker.state
        was_probe = breaker.begin()
        try:
            if self._context.seam.randomness.random() < 0.5:  # noqa: PLR2004
                answer = await self._send([head])
                # The head was taken: the pair is decided, and there is no need to send a
                # duplicate.
                is_other_taken = bool(answer.failed) and await self._takes(other)
            else:
                is_other_taken = await self._takes(other)
                answer = await self._send([head])
        finally:
            breaker.end(was_probe=was_probe)
        judge = self.judge.judge_pair if is_other_taken else self._judge_head
        judge(lane, head, answer, self._timer.now_s())
        if was_probe or breaker.state is not before:
            self._bell.ring()

    def _judge_head(self, lane: DeliveryLane, head: Item, answer: Answer, now_s: float) -> None:
        self.judge.judge(lane, [head], answer, now_s)

    async def _takes(self, other: Taken | Item) -> bool:
        """Send an event to compare with; return whether it was taken."""
        if isinstance(other, Item):
            answer = await self._send([other])
            self.judge.judge_other(other, answer, self._timer.now_s())
            return not answer.failed
        self._repeating.add(other.key)
        self._counters.sends += 1
        try:
            return not (await self._sender.send([other.event])).failed
        finally:
            self._repeating.discard(other.key)
            self._bell.ring()

    # ---------------------------------------------------------------------- by hand

    @property
    def held(self) -> HeldEvent | None:
        """The event that fails for longest, and what is behind it waits for."""
        failing = [lane for lane in self.lanes.values() if lane.failures and lane.head()]
        lane = min(failing, key=lambda one: one.failing_since_s, default=None)
        head = None if lane is None else lane.head()
        if lane is None or head is None or lane.failure is None:
            return None
        age_s = self._timer.now_s() - lane.failing_since_s
        return HeldEvent(
            *head.position, lane.failure.code, lane.failure.reason, head.attempts, age_s
        )

    @property
    def refused(self) -> str | None:
        """What the destination cannot take, and holds; None if there is nothing."""
        for lane in self.lanes.values():
            head = lane.head()
            if head is not None and head.refusal is not None:
                seq, row = head.position
                return f"event {seq}/{row} is held: {head.refusal}"
        return None

    def holds(self, position: Position) -> bool:
        """Whether an event fails, and holds up others."""
        return self._held_at(position) is not None

    async def skip(self, position: Position, reason: str) -> bool:
        """Make a dead letter of an event that fails; False if it was taken after all."""
        lane = self._held_at(position)
        if lane is None:
            return False
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        lane.skip = skip = Skip(position, reason, done)
        lane.bell.ring()
        try:
            return await done
        finally:
            # The caller may have given up waiting. Then nobody wants the event set aside any more.
            if lane.skip is skip:
                lane.skip = None

    def _held_at(self, position: Position) -> DeliveryLane | None:
        """Return the lane whose head is the event at a position, and fails."""
        for lane in self.lanes.values():
            head = lane.head() if lane.failures else None
            if head is not None and head.position == position:
                return lane
        return None

    async def _skip(self, lane: DeliveryLane, skip: Skip) -> None:
        """Set the head of a lane aside; by its own task, so that it is not under way."""
        lane.skip, head = None, lane.head()
        is_held = lane.failures > 0 and head is not None and head.position == skip.position
        if is_held and head is not None:
            self.judge.skip(lane, head, skip.reason, self._timer.now_s())
            await self._settlement.settle()
        if not skip.done.done():
            skip.done.set_result(is_held)

    async def _forget_gone(self) -> None:
        """After a long wait: leave out what retention, or an operator, has decided meanwhile."""
        now_s = self._timer.now_s()
        if now_s < self._looked_s + LOOK_AGAIN_S:
            return
        self._looked_s = now_s
        ranges = self.window.ranges()
        waiting = await self._feed.waiting(ranges)
        # What is under way has an outcome of its own soon, and the ledger keeps the first.
        # While something is under way the ledger's answer may already be stale for it. The next
        # wait comes soon enough: this is housekeeping, and nothing depends on its being prompt.
        if not self.in_flight_events and not self._settlement.is_writing:
            self.window.forget_all_but(waiting, of=ranges)
            self.judge.forget_decided()
            self._room.ring()


def _leaves(several: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in several.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
