"""The lease: single bundles, each acknowledged or given back.

    with quiver.lease("archive") as deliveries:
        for delivery in deliveries:       # waits for more
            delivery.ack()                # or .nack(retry_after_s=…) or .reject("why")

A delivery is leased for `lease_s`; `extend()` renews it, up to `max_lease_s` in all; one that
lapses is given to somebody again, like a nack. The first terminal outcome wins, whoever says it. At
most `max_in_flight` deliveries are out at a time. When to retry is told by the caller: policy is
not here.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Literal

from holdfast.errors import BadInput, Damaged, UnknownPosition
from holdfast.quiver.attachment import Attachment, Store
from holdfast.quiver.frame import Totals
from holdfast.quiver.outcome import Outcome, Position
from holdfast.quiver.segment import Bundle, Ref

Order = Literal["fifo", "newest_first"]

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
    ref: Ref
    attempt: int
    handed_out_s: float
    lapses_s: float
    delivery: int


class Delivery:
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
        """Give it back, to be handed out again after a while."""
        self._lease.give_back(self.seq, self._number, retry_after_s)

    def extend(self) -> bool:
        """Renew the lease while working on it. False if it has lapsed, for good."""
        return self._lease.extend(self.seq, self._number)


class Lease(Attachment):
    """Hands out single bundles. Safe to use from many threads."""

    def __init__(self, store: Store, name: str, options: LeaseOptions) -> None:
        super().__init__(store, name)
        self._options = options
        self._lock = threading.RLock()
        self._flights: dict[int, _InFlight] = {}
        # Given back: when due, seq, reference, attempts so far.
        self._retries: list[tuple[float, int, Ref, int]] = []
        self._deliveries = 0
        # What was looked up and not handed out yet.
        self._ahead: list[Ref] = []
        first = self.subscriber.position.seq
        # Everything from here on was never looked at, and (newest first) everything before this.
        self._next_seq = first
        self._older_than = first
        if options.order == "newest_first":
            self._next_seq = self._older_than = self._newest_seq() + 1

    # --------------------------------------------------------------- handing out

    def __iter__(self) -> Iterator[Delivery]:
        while not self._closed:
            delivery = self.poll(timeout_s=1.0)
            if delivery is not None:
                yield delivery

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        while not self._closed:
            delivery = await self.poll_async(timeout_s=1.0)
            if delivery is not None:
                yield delivery

    def poll(self, timeout_s: float = 0.0) -> Delivery | None:
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

    async def poll_async(self, timeout_s: float = 0.0) -> Delivery | None:
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

    def leased(self) -> list[int]:
        """Return the seqs that are out; retention leaves them alone."""
        with self._lock:
            return [*self._flights, *(seq for _, seq, _, _ in self._retries)]

    @property
    def in_flight(self) -> int:
        """How many deliveries are out."""
        return len(self._flights)

    def _next(self) -> Delivery | None:
        with self._lock:
            self._require_current()
            self._take_back_lapsed()
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

    def _choose(self) -> tuple[Ref, int] | None:
        """Return the next bundle to hand out and how often it was, skipping what is resolved."""
        resolved = self.subscriber.resolved
        now_s = self._store.clock.monotonic_s()
        while self._retries and self._retries[0][0] <= now_s:
            _, seq, ref, attempts = heapq.heappop(self._retries)
            if seq not in resolved:
                return ref, attempts
        while self._ahead or self._look_ahead():
            ref = self._ahead.pop()
            if ref.seq not in resolved and ref.seq not in self._flights:
                return ref, 0
        return None

    def _look_ahead(self) -> bool:
        """Look up more bundles, the next one to hand out last in the list."""
        if self._options.order == "fifo":
            found = []
            for ref in self._store.shelf.refs(self._next_seq):
                found.append(ref)
                self._next_seq = ref.seq + 1
                if len(found) >= LOOKAHEAD_BUNDLES:
                    break
            self._ahead = found[::-1]
            return bool(found)
        fresh = list(self._store.shelf.refs(self._next_seq))
        if fresh:
            self._next_seq = fresh[-1].seq + 1
            self._ahead = fresh
            return True
        for ref in self._store.shelf.refs_back(self._older_than):
            if ref.seq < self.subscriber.start_seq:
                return False
            self._older_than = ref.seq
            self._ahead = [ref]
            return True
        return False

    def _newest_seq(self) -> int:
        return next((r.seq for r in self._store.shelf.refs_back(1 << 62)), -1)

    def _hand_out(self, ref: Ref, attempts: int) -> Delivery | None:
        bundle = self._store.shelf.bundle(ref.seq)
        if bundle is None:
            return None  # dropped since it was looked up; the ledger has it
        try:
            _ = bundle.slots
        except Damaged as damage:
            self._damaged(bundle, ref.owned_from, str(damage))
            return None
        now_s = self._store.clock.monotonic_s()
        self._deliveries += 1
        lapses_s = now_s + self._options.lease_s
        flight = _InFlight(ref, attempts + 1, now_s, lapses_s, self._deliveries)
        self._flights[ref.seq] = flight
        return Delivery(self, bundle, flight)

    def _take_back_lapsed(self) -> None:
        now_s = self._store.clock.monotonic_s()
        for seq in [seq for seq, flight in self._flights.items() if flight.lapses_s <= now_s]:
            flight = self._flights.pop(seq)
            heapq.heappush(self._retries, (now_s, seq, flight.ref, flight.attempt))

    def _patience_s(self) -> float:
        """Return how long until something may be due by time alone."""
        with self._lock:
            now_s = self._store.clock.monotonic_s()
            due = [flight.lapses_s for flight in self._flights.values()]
            due += [self._retries[0][0]] if self._retries else []
            return max(0.001, min(due, default=now_s + 60.0) - now_s)

    # ------------------------------------------------------------------ deciding

    def resolve(self, seq: int, outcome: Outcome, reason: str = "") -> bool:
        """Decide the outcome of a bundle that was handed out; False if it had been decided."""
        with self._lock, self._ledger.lock:
            self._require_current()
            subscriber = self.subscriber
            if seq in subscriber.resolved:
                return False
            flight = self._flights.get(seq)
            ref = flight.ref if flight else self._given_back(seq)
            counts = Totals(1, ref.events - subscriber.partial.get(seq, 0))
            start, end = Position(ref.owned_from), Position(seq + 1)
            self._record(start, end, outcome, counts, reason)
            self._flights.pop(seq, None)
        self._store.arrivals.notify()
        return True

    def _given_back(self, seq: int) -> Ref:
        for _, waiting_seq, ref, _ in self._retries:
            if waiting_seq == seq:
                return ref
        raise UnknownPosition(
            f"bundle {seq} is not out", hint="only what was handed out can be decided"
        )

    def give_back(self, seq: int, delivery: int, retry_after_s: float) -> None:
        """Take a delivery back, to be handed out again after a while."""
        with self._lock:
            flight = self._flights.get(seq)
            if flight is None or flight.delivery != delivery:
                return  # it lapsed, and is somebody else's now
            del self._flights[seq]
            due_s = self._store.clock.monotonic_s() + retry_after_s
            heapq.heappush(self._retries, (due_s, seq, flight.ref, flight.attempt))
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
