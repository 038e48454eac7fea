"""The lease: single bundles, each acknowledged or given back.

    with quiver.lease("archive") as deliveries:
        for delivery in deliveries:       # waits for more
            delivery.ack()                # or .nack(retry_after_s=…) or .reject("why")

A delivery is leased for `lease_s`; `extend()` renews it, up to `max_lease_s` in all; one that
lapses is given to somebody again, like a nack. Attempts that failed are in the ledger, with their
reasons, and go on counting after a restart; with `SubscriberOptions.max_attempts` a bundle that was
handed out so often becomes a dead letter. The first terminal outcome wins, whoever says it. At
most `max_in_flight` deliveries are out at a time. When to retry is up to the caller: policy is
not here.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
from collections.abc import AsyncIterator, Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from holdfast.errors import BadInput, NotAccepted, UnknownPosition
from holdfast.quiver.base.frame import Totals
from holdfast.quiver.ledger.subscriber import Outcome, Position, Subscriber
from holdfast.quiver.read.attachment import Attachment, ReadableQuiver
from holdfast.quiver.segments.segment import Bundle, BundleRef

Order = Literal["fifo", "newest_first"]

# What is kept of the reason of a nack.
NACK_REASON_CHARS_MAX = 1000
# How many references are looked up at once.
LOOKAHEAD_BUNDLES = 256


@dataclass(frozen=True)
class LeaseOptions:
    """How bundles are handed out."""

    order: Order = "fifo"
    max_in_flight: int = 64
    lease_s: float = 30.0
    max_lease_s: float = 600.0

    def __post_init__(self) -> None:
        if self.order not in ("fifo", "newest_first"):
            raise BadInput(f"order is {self.order!r}", hint="use 'fifo' or 'newest_first'")
        if self.max_in_flight < 1:
            raise BadInput(f"max_in_flight is {self.max_in_flight}", hint="use at least 1")
        if not 0 < self.lease_s <= self.max_lease_s:
            raise BadInput(
                f"lease_s is {self.lease_s}, max_lease_s {self.max_lease_s}",
                hint="both must be positive, and the first not above the second",
            )


@dataclass
class _InFlight:
    ref: BundleRef
    attempt: int
    handed_out_s: float
    lapses_s: float
    delivery: int


class LeasedBundle:
    """One bundle in somebody's hands."""

    def __init__(self, lease: Lease, bundle: Bundle, flight: _InFlight) -> None:
        self.bundle = bundle
        # 1 for the first time.
        self.attempt = flight.attempt
        self._lease = lease
        self._number = flight.delivery

    @property
    def seq(self) -> int:
        """The bundle's number."""
        return self.bundle.seq

    def ack(self) -> bool:
        """Say that it arrived. False if its outcome had been decided before."""
        return self.resolve(Outcome.ACKED)

    def reject(self, reason: str) -> bool:
        """Say that it will never be delivered: a dead letter."""
        return self.resolve(Outcome.DEAD_LETTERED, reason)

    def resolve(self, outcome: Outcome, reason: str = "") -> bool:
        """Decide its outcome, once and for all."""
        return self._lease.resolve(self.seq, outcome, reason)

    def nack(self, retry_after_s: float = 0.0, reason: str = "") -> None:
        """Give it back, to be handed out again after a while, with the attempt on record.

        At the subscriber's `max_attempts` it is dead-lettered instead.
        """
        self._lease.give_back(self.seq, self._number, retry_after_s, reason)

    def extend(self) -> bool:
        """Renew the lease while working on it. False if it has lapsed, for good."""
        return self._lease.extend(self.seq, self._number)


class Lease(Attachment):
    """Hands out single bundles. Safe to use from many threads."""

    def __init__(self, store: ReadableQuiver, name: str, options: LeaseOptions) -> None:
        super().__init__(store, name)
        self._options = options
        self._lock = threading.RLock()
        self._flights: dict[int, _InFlight] = {}
        # Given back: reference and attempts so far; and when each is due, earliest first.
        self._given_back: dict[int, tuple[BundleRef, int]] = {}
        self._retries: list[tuple[float, int]] = []
        self._deliveries = 0
        self._begin()

    def _begin(self) -> None:
        """Look at everything that is not resolved, again."""
        subscriber = self.subscriber
        self._reopened = subscriber.reopened
        # What was looked up and not handed out yet, the next one last.
        self._ahead: list[BundleRef] = []
        # Everything from here on was never looked at, and (newest first) everything before that.
        self._next_seq = subscriber.position.seq
        if self._options.order == "newest_first":
            self._next_seq = max(subscriber.start_seq, self._store.readable.newest_seq() + 1)
        # Newest first works from a middle outwards: `_next_seq` moves up with arrivals,
        # `_older_than` down through what was there. Both start at the same number, so no bundle is
        # seen twice or missed.
        self._older_than = self._next_seq

    # --------------------------------------------------------------- handing out

    def __iter__(self) -> Iterator[LeasedBundle]:
        while not self._closed:
            delivery = self.poll(timeout_s=1.0)
            if delivery is not None:
                yield delivery

    async def __aiter__(self) -> AsyncIterator[LeasedBundle]:
        while not self._closed:
            delivery = await self.poll_async(timeout_s=1.0)
            if delivery is not None:
                yield delivery

    def poll(self, timeout_s: float = 0.0) -> LeasedBundle | None:
        """Return the next delivery; None if there is none within `timeout_s`."""
        clock = self._store.clock
        deadline_s = clock.monotonic_s() + timeout_s
        while not self._closed:
            seen = self._store.arrivals.version
            delivery = self._next()
            remaining_s = deadline_s - clock.monotonic_s()
            if delivery is not None or remaining_s <= 0:
                return delivery
            self._store.arrivals.wait(seen, min(remaining_s, self._patience_s()))
        return None

    async def poll_async(self, timeout_s: float = 0.0) -> LeasedBundle | None:
        """As `poll`, awaitable."""
        clock = self._store.clock
        deadline_s = clock.monotonic_s() + timeout_s
        while not self._closed:
            seen = self._store.arrivals.version
            delivery = self._next()
            remaining_s = deadline_s - clock.monotonic_s()
            if delivery is not None or remaining_s <= 0:
                return delivery
            await self._store.arrivals.wait_async(seen, min(remaining_s, self._patience_s()))
        return None

    def leased(self) -> Collection[int]:
        """Return the seqs that are in somebody's hands; retention leaves them alone."""
        with self._lock:
            if self._closed:
                return ()
            now_s = self._store.clock.monotonic_s()
            return {seq for seq, flight in self._flights.items() if flight.lapses_s > now_s}

    @property
    def in_flight(self) -> int:
        """How many deliveries are out."""
        return len(self._flights)

    def _next(self) -> LeasedBundle | None:
        """Hand out one bundle, if there is one and fewer than `max_in_flight` are out."""
        with self._lock:
            if self._closed:
                return None
            self._require_current()
            self._take_back_lapsed()
            if self._reopened != self.subscriber.reopened:
                self._begin()
            while len(self._flights) < self._options.max_in_flight:
                if self.subscriber.paused:
                    return None
                chosen = self._choose()
                if chosen is None:
                    return None
                delivery = self._hand_out(*chosen)
                if delivery is not None:
                    return delivery
            return None

    def _choose(self) -> tuple[BundleRef, int] | None:
        """Return the next bundle to hand out and how often it was, skipping what is resolved."""
        subscriber = self.subscriber
        resolved = subscriber.resolved
        now_s = self._store.clock.monotonic_s()
        while self._retries and self._retries[0][0] <= now_s:
            _, seq = heapq.heappop(self._retries)
            given_back = self._given_back.pop(seq, None)
            if given_back is not None and seq not in resolved:
                return given_back
        look_ahead = self._oldest if self._options.order == "fifo" else self._newest
        while look_ahead():
            ref = self._ahead.pop()
            # After `_begin` the scan passes over everything again, in-flight bundles included.
            is_out = ref.seq in self._flights or ref.seq in self._given_back
            if ref.seq not in resolved and not is_out:
                return ref, subscriber.attempts.get(ref.seq, 0)
        return None

    def _oldest(self) -> bool:
        """Have the oldest bundle that was never looked at at the end of the list."""
        if not self._ahead:
            refs = self._store.readable.refs(self._next_seq)
            self._ahead = list(itertools.islice(refs, LOOKAHEAD_BUNDLES))[::-1]
            if self._ahead:
                self._next_seq = self._ahead[0].seq + 1
        return bool(self._ahead)

    def _newest(self) -> bool:
        """Have the newest bundle that was never looked at at the end of the list."""
        readable, ahead = self._store.readable, self._ahead
        # Arrivals go on top. Only when there are none does the scan reach further back, below.
        if readable.newest_seq() >= self._next_seq:
            ahead += readable.refs(self._next_seq)
            self._next_seq = max(self._next_seq, ahead[-1].seq + 1) if ahead else self._next_seq
        if len(ahead) > LOOKAHEAD_BUNDLES:
            # The oldest of them are looked up again when their turn comes.
            self._older_than = ahead[-LOOKAHEAD_BUNDLES].seq
            del ahead[:-LOOKAHEAD_BUNDLES]
        if not ahead:
            ahead += itertools.islice(readable.refs_back(self._older_than), LOOKAHEAD_BUNDLES)
            ahead.reverse()
            start_seq = self.subscriber.start_seq
            ahead[:] = [
                ref._replace(owned_from=max(ref.owned_from, start_seq))
                for ref in ahead
                if ref.seq >= start_seq
            ]
            self._older_than = ahead[0].seq if ahead else start_seq
        return bool(ahead)

    def _hand_out(self, ref: BundleRef, attempts: int) -> LeasedBundle | None:
        """Lease a bundle; None if it is gone or damaged meanwhile, or has no attempt left."""
        # References are looked up many at a time, data one bundle at a time, when it is due: at
        # most `max_in_flight` bundles are in memory, however far the lookahead reaches.
        bundle = self._store.readable.bundle(ref.seq)
        if bundle is None:
            return None  # dropped since it was looked up; the ledger has it
        if bundle.damage is not None:
            self._damaged(ref, str(bundle.damage))
            return None
        most = self.subscriber.options.max_attempts
        if most is not None:
            if self._has_no_attempt_left(ref, attempts, most, "the reader ended with it"):
                return None
            # Written down before, because it may be what ends the reader.
            self._ledger.change("attempt", self.name, seq=ref.seq, attempt=attempts + 1)
        now_s = self._store.clock.monotonic_s()
        self._deliveries += 1
        lapses_s = now_s + self._options.lease_s
        flight = _InFlight(ref, attempts + 1, now_s, lapses_s, self._deliveries)
        self._flights[ref.seq] = flight
        return LeasedBundle(self, bundle, flight)

    def _take_back_lapsed(self) -> None:
        now_s = self._store.clock.monotonic_s()
        for seq in [seq for seq, flight in self._flights.items() if flight.lapses_s <= now_s]:
            with contextlib.suppress(NotAccepted):  # it counts all the same, until a restart
                self._failed(seq, now_s, "the lease lapsed")

    def _failed(self, seq: int, due_s: float, reason: str) -> None:
        """Put a delivery back that came to nothing, or give it up, and write that down.

        Put back before it is written down: if the ledger cannot be written the bundle is still
        handed out again by this process, and only the count of attempts may be short after a
        restart.
        """
        flight = self._flights[seq]
        self._put_back(seq, due_s)
        known = self._ledger.state.subscribers.get(self.name)
        if self._closed or known is None or known.generation != self.generation:
            return  # somebody else's word counts now
        most = known.options.max_attempts
        if self._has_no_attempt_left(flight.ref, flight.attempt, most, reason):
            return
        shortened = reason[:NACK_REASON_CHARS_MAX]
        self._ledger.change("nack", self.name, seq=seq, attempt=flight.attempt, reason=shortened)

    def _has_no_attempt_left(
        self, ref: BundleRef, attempts: int, most: int | None, reason: str
    ) -> bool:
        """Whether a bundle was handed out often enough; then it becomes a dead letter."""
        if most is None or attempts < most:
            return False
        why = f"{attempts} attempts failed (max_attempts); the last: {reason or 'no reason given'}"
        with self._ledger.lock:
            self._decide(self.subscriber, ref, Outcome.DEAD_LETTERED, why)
        return True

    def _put_back(self, seq: int, due_s: float) -> None:
        flight = self._flights.pop(seq)
        self._given_back[seq] = flight.ref, flight.attempt
        heapq.heappush(self._retries, (due_s, seq))

    def _patience_s(self) -> float:
        """Return how long until something may be due by time alone."""
        with self._lock:
            now_s = self._store.clock.monotonic_s()
            due = [flight.lapses_s for flight in self._flights.values()]
            due += [self._retries[0][0]] if self._retries else []
            # Never zero: what is due and cannot be handed out (the subscriber is paused, or
            # `max_in_flight` is reached) must not turn the wait into a busy loop.
            return max(0.001, min(due, default=now_s + 60.0) - now_s)

    # ------------------------------------------------------------------ deciding

    def resolve(self, seq: int, outcome: Outcome, reason: str = "") -> bool:
        """Decide the outcome of a bundle that was handed out; False if it had been decided."""
        self._make_room()
        with self._lock, self._ledger.lock:
            self._require_current()
            subscriber = self.subscriber
            if seq in subscriber.resolved:
                return False
            self._decide(subscriber, self._out(seq), outcome, reason)
        self._store.arrivals.notify()
        return True

    def _decide(
        self, subscriber: Subscriber, ref: BundleRef, outcome: Outcome, reason: str
    ) -> None:
        """Write an outcome, unless there is one; inside the ledger's lock.

        Also for bundles that are back in the queue: a consumer that was slow, whose lease lapsed,
        and that then acknowledges has delivered. Its word counts as long as nobody else's did.
        """
        if ref.seq not in subscriber.resolved:
            counts = Totals(1, ref.events - subscriber.partial.get(ref.seq, 0))
            start, end = Position(ref.owned_from), Position(ref.seq + 1)
            self._record(start, end, outcome, counts, reason)
        self._flights.pop(ref.seq, None)
        self._given_back.pop(ref.seq, None)

    def _out(self, seq: int) -> BundleRef:
        """Return what was handed out, and may have been given back since."""
        if seq in self._flights:
            return self._flights[seq].ref
        if seq in self._given_back:
            return self._given_back[seq][0]
        raise UnknownPosition(
            f"bundle {seq} is not out", hint="only what was handed out can be decided"
        )

    def give_back(self, seq: int, delivery: int, retry_after_s: float, reason: str) -> None:
        """Take a delivery back, to be handed out again after a while."""
        try:
            with self._lock:
                flight = self._flights.get(seq)
                # The number of the delivery tells two holders of the same bundle apart: a nack by
                # the one whose lease lapsed must not take the bundle from the one who has it now.
                if flight is None or flight.delivery != delivery:
                    return  # it lapsed, and is somebody else's now
                self._failed(seq, self._store.clock.monotonic_s() + retry_after_s, reason)
        finally:
            self._store.arrivals.notify()

    def extend(self, seq: int, delivery: int) -> bool:
        """Renew a lease; False if it has lapsed or was renewed for `max_lease_s` already."""
        with self._lock:
            flight = self._flights.get(seq)
            now_s = self._store.clock.monotonic_s()
            limit_s = self._options.max_lease_s
            if flight is None or flight.delivery != delivery or flight.lapses_s <= now_s:
                return False
            latest_s = flight.handed_out_s + limit_s
            if now_s >= latest_s:
                return False
            flight.lapses_s = min(now_s + self._options.lease_s, latest_s)
            return True
