"""Delivery without a buffer (`persistence: none`): what is received is sent before it is answered.

A receiver puts what it takes into a `DirectInlet` where it would else append to a quiver, and
answers when every destination has it:

    acknowledged by all    success
    refused for good       a dead letter, as with a buffer; it counts as done
    anything else          503: the sender keeps it and sends it again, also to those that had it

Nothing is tried again here and nothing waits: whoever sends has the only copy. A destination gets
one request after another (`order: key`: as many at once as it has `lanes`). One that is busy for
longer than `send_timeout` is an answer, too, so that no sender waits for ever.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from holdfast.dead_letters.letter import Letter
from holdfast.deliver.context import DeliveryContext
from holdfast.deliver.exporter import Answer, Failure, FailureClass
from holdfast.deliver.judge import FILTERED_LETTER
from holdfast.deliver.sending import BreakerState, LoopTimer, Sender
from holdfast.deliver.statistics import DeliveryCounters, DestinationStatistics, State
from holdfast.errors import NotAccepted, Overloaded
from holdfast.quiver import AckLevel, Position, Receipt
from holdfast.quiver.base.frame import FrameKind
from holdfast.quiver.segments.segment import Bundle, SlotsRead
from holdfast.seam.clock import Clock
from holdfast.signals.event import INLINE_BYTES, NO_HEADERS, Event, Unit
from holdfast.signals.registry import signal_of
from holdfast.signals.signal import Signal

# How long an exporter may take to close.
CLOSE_TIMEOUT_S = 5.0
RETRY_AFTER_S = 1.0
_REFUSALS = (FailureClass.PERMANENT, FailureClass.TOO_LARGE)


class DirectDestination:
    """One destination that nothing waits for. Used from one event loop."""

    def __init__(self, context: DeliveryContext) -> None:
        self.name = context.name
        self._context = context
        self._exporter = context.make_exporter()
        self._counters = DeliveryCounters()
        settings = context.settings
        self._sender = Sender(self.name, self._exporter, LoopTimer(), settings.send_timeout_s)
        self._places = asyncio.Semaphore(settings.parallel_sends)
        self._state = State.STOPPED

    async def start(self) -> None:
        """Get ready."""
        await self._exporter.start()
        self._state = State.RUNNING

    async def stop(self, drain_s: float) -> None:
        """Let go of connections; receivers have ended, so nothing is under way."""
        self._state = State.STOPPED
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await self._exporter.close()

    async def take(self, units: Sequence[Unit], signal: Signal) -> None:
        """Return when the destination has them; raises `NotAccepted` if it has not."""
        wanted = self._context.settings.signals
        if wanted is not None and signal.name not in wanted:
            return
        refusal = self._context.refusal_of(signal)
        if refusal is not None:
            raise NotAccepted(refusal, hint="use an exporter that takes it")
        ready = [(unit, left) for unit in units if (left := await self._processed(unit))]
        try:
            async with asyncio.timeout(self._context.settings.send_timeout_s):
                await self._places.acquire()
        except TimeoutError:
            raise Overloaded(
                f"the destination {self.name} is busy",
                hint="send it again",
                retry_after_s=RETRY_AFTER_S,
            ) from None
        try:
            for batch in self._batches(ready):
                await self._send(batch)
        finally:
            self._places.release()

    async def _processed(self, unit: Unit) -> Unit | None:
        try:
            is_large = unit.size_bytes > INLINE_BYTES and self._context.chains
            if is_large or self._context.converts(unit):
                left = await asyncio.to_thread(self._context.process, unit)
            else:
                left = self._context.process(unit)
        except Exception as error:
            message = f"a processor before {self.name} raised {type(error).__name__}"
            raise NotAccepted(message, hint="send it again", retry_after_s=RETRY_AFTER_S) from error
        if left is None:
            self._counters.filtered += unit.rows
        elif self._context.tap is not None:
            self._context.tap(left)
        if unit.items is not None:
            kept = 0 if left is None else left.items or 0
            self._counters.items[unit.signal].filtered += unit.items - kept
        return left

    def _batches(self, ready: Sequence[tuple[Unit, Unit]]) -> list[list[tuple[Unit, Unit]]]:
        """Cut what is sent into what the exporter takes at once, at least one unit each."""
        batches: list[list[tuple[Unit, Unit]]] = []
        size_bytes = 0
        for pair in ready:
            size_bytes += pair[1].size_bytes
            is_full = batches and len(batches[-1]) >= self._exporter.max_batch_events
            if not batches or is_full or size_bytes > self._exporter.max_batch_bytes:
                batches.append([])
                size_bytes = pair[1].size_bytes
            batches[-1].append(pair)
        return batches

    async def _send(self, batch: Sequence[tuple[Unit, Unit]]) -> None:
        """Send a batch; what is refused with others is sent alone, for only that tells."""
        answer = await self._sender.send([ready for _, ready in batch])
        self._counters.sends += 1
        for signal, items in answer.rejected_items.items():
            self._counters.items[signal].rejected += items
        for index, (_, ready) in enumerate(batch):
            failure = answer.failed.get(index)
            if failure is None:
                self._counters.sent_events += ready.rows
                self._counters.sent_bytes += ready.size_bytes
                self._state = State.RUNNING
            else:
                self._counters.failed[failure.kind.value] += ready.rows
            if ready.items is not None:
                counts = self._counters.items[ready.signal]
                counts.sent += ready.items if failure is None else 0
                counts.failed += 0 if failure is None else ready.items
        for index, failure in answer.failed.items():
            if failure.kind not in _REFUSALS:
                self._fails(failure)
            elif len(batch) > 1:
                await self._send([batch[index]])
            else:
                await self._set_aside(batch[index][0], failure)

    def _fails(self, failure: Failure) -> None:
        self._state = State.AUTH_FAILED if failure.kind is FailureClass.AUTH else State.BACKING_OFF
        self._counters.last_error = str(failure)
        raise NotAccepted(
            f"the destination {self.name} did not take it: {failure}",
            hint="send it again",
            stored="maybe" if failure.maybe_delivered else "no",
            retry_after_s=failure.retry_after_s or RETRY_AFTER_S,
        )

    async def _set_aside(self, unit: Unit, failure: Failure) -> None:
        """Make a dead letter of what the destination will never take."""
        letter = Letter.of_event(
            unit,
            reason=failure.kind.value,
            destination=self.name,
            attempts=1,
            problems=[{"rule": failure.code, "message": failure.reason}],
        )
        await self._context.dead_letters.undelivered([letter])
        self._counters.dead_lettered[failure.kind.value] += unit.rows
        self._counters.last_error = str(failure)

    async def redrive(self, events: Sequence[Unit]) -> Answer:
        """Send dead letters once more, each alone, through the processors; nothing is written."""
        failed: dict[int, Failure] = {}
        for index, event in enumerate(events):
            ready = await self._processed(event)
            if ready is None:
                failed[index] = FILTERED_LETTER
                continue
            async with self._places:
                answer = await self._sender.send([ready])
            if 0 in answer.failed:
                failed[index] = answer.failed[0]
        return Answer(failed)

    def statistics(self) -> DestinationStatistics:
        """Return a snapshot; nothing ever waits."""
        counters = self._counters
        return DestinationStatistics(
            name=self.name,
            state=self._state,
            stalled_by=None,
            stuck_key=None,
            held=None,
            last_error=counters.last_error,
            breaker=BreakerState.CLOSED,
            breaker_opened_total=0,
            sends=counters.sends,
            sent_events=counters.sent_events,
            sent_bytes=counters.sent_bytes,
            failed=dict(counters.failed),
            filtered=counters.filtered,
            dead_lettered=sum(counters.dead_lettered.values()),
            dead_lettered_by_reason=dict(counters.dead_lettered),
            lost_events={},
            lag_events=0,
            lag_bytes=0,
            oldest_age_s=None,
            in_flight_events=0,
            active_lanes=0,
            items={signal: replace(counts) for signal, counts in counters.items.items()},
            queue_age_s={},
        )


class NoIntake:
    """The fast way into a quiver, which is not there."""

    def offer(self, *_: object) -> bool:
        """Take nothing: the long way can wait for destinations."""
        return False


class DirectInlet:
    """Has what receivers use of a quiver, and keeps nothing."""

    def __init__(self, destinations: Sequence[DirectDestination], clock: Clock) -> None:
        self._destinations = destinations
        self._seqs = itertools.count()
        self._clock = clock
        # A position in it is unique, and means nothing after a restart.
        self.quiver_id = uuid.uuid4().hex

    def intake(self, *, slot: str, level: AckLevel | None = None) -> NoIntake:
        """Return a way in that refers to the long way."""
        return NoIntake()

    async def append_raw_async(
        self,
        payloads: bytes | Sequence[bytes],
        *,
        slot: str,
        headers: Sequence[Mapping[str, str] | None] | None = None,
        level: AckLevel = AckLevel.FSYNCED,
    ) -> Receipt:
        """Return when every destination has the payloads."""
        seq, rows = next(self._seqs), [payloads] if isinstance(payloads, bytes) else payloads
        signal = signal_of(FrameKind.RAW, (slot,))
        known, now_ns = headers or [None] * len(rows), self._clock.wall_ns()
        events = [
            Event(
                quiver_id=self.quiver_id,
                position=Position(seq, row),
                slot=slot,
                payload=payload,
                headers=of_row or NO_HEADERS,
                ingestion_ns=now_ns,
                signal=signal.name,
                read=signal.read,
                count=signal.count,
            )
            for row, (payload, of_row) in enumerate(zip(rows, known, strict=True))
        ]
        return await self._hand_over(events, signal, seq, len(rows), level)

    async def append_async(
        self, data: Mapping[str, pa.RecordBatch], *, level: AckLevel = AckLevel.FSYNCED
    ) -> Receipt:
        """Return when every destination has the record batches."""
        seq, signal = next(self._seqs), signal_of(FrameKind.ARROW, tuple(data))
        rows, found = sum(batch.num_rows for batch in data.values()), SlotsRead({**data}, {})
        bundle = Bundle(
            seq, FrameKind.ARROW, self._clock.wall_ns(), None, None, 0, rows, lambda: found
        )
        units = signal.units(bundle, self.quiver_id, 0)
        return await self._hand_over(units, signal, seq, rows, level)

    async def _hand_over(
        self, units: Sequence[Unit], signal: Signal, seq: int, rows: int, level: AckLevel
    ) -> Receipt:
        # Each destination has units of its own: what is parsed of one is remembered in it.
        taken = await asyncio.gather(
            *(one.take([replace(unit) for unit in units], signal) for one in self._destinations),
            return_exceptions=True,
        )
        for failure in taken:
            if isinstance(failure, BaseException):
                raise failure
        return Receipt(self.quiver_id, seq, 1, rows, level)
