"""An attached subscriber: what cursor and lease have in common.

Attaching begins a generation. Everything said with an older one is refused, so that two readers
under one name cannot undo each other's work; the newer one wins.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, Self

from holdfast.errors import Fenced, StorageFailed
from holdfast.quiver.base.frame import Totals
from holdfast.quiver.ledger.ledger import Ledger
from holdfast.quiver.ledger.subscriber import Outcome, Position, Resolution, Subscriber
from holdfast.quiver.log.wakeup import Wakeup
from holdfast.quiver.read.readable_bundles import ReadableBundles
from holdfast.quiver.segments.segment import BundleRef
from holdfast.seam.clock import Clock
from holdfast.seam.process import bind_to_process


class ReadableQuiver(Protocol):
    """What readers need of the quiver they read."""

    readable: ReadableBundles
    ledger: Ledger
    arrivals: Wakeup

    @property
    def clock(self) -> Clock:
        """The quiver's clock."""

    def freed(self) -> None:
        """Something was resolved: data may be removed, and appends that wait for room try again."""

    def let_go(self) -> None:
        """Remove what nobody waits for any more."""

    def seal_soon(self) -> None:
        """A reader waits for sealed data: do not wait for the buffer to fill up."""


class Attachment:
    """A subscriber in use by one reader."""

    def __init__(self, store: ReadableQuiver, name: str, resumed: int | None = None) -> None:
        self.name = name
        self._store = store
        self._ledger = store.ledger
        self._closed = False
        bind_to_process(self)
        self.generation = store.ledger.attach(name, resumed)
        # Whoever waits under this name is fenced off, and should know.
        store.arrivals.notify()

    @property
    def subscriber(self) -> Subscriber:
        """The ledger's state of it."""
        return self._ledger.subscriber(self.name)

    @property
    def arrivals(self) -> Wakeup:
        """News: data arrived, the subscriber was resumed, or a reader attached or closed."""
        return self._store.arrivals

    def pause(self) -> None:
        """Stop handing out data, also after a restart, until `resume`."""
        with self._ledger.lock:
            self._require_current()
            self._ledger.change("pause", self.name)

    def resume(self) -> None:
        """Hand out data again."""
        with self._ledger.lock:
            self._require_current()
            self._ledger.change("resume", self.name)
        self._store.arrivals.notify()

    def leased(self) -> Collection[int]:
        """Return the seqs that are in somebody's hands; retention leaves them alone."""
        return ()

    def close(self) -> None:
        """Detach; the subscriber stays registered and keeps its place."""
        if self._closed:
            return
        self._closed = True
        self._store.arrivals.notify()
        try:
            self._ledger.detach(self.name, self.generation)
        except StorageFailed:
            return  # the next attach replaces this generation anyway

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _require_current(self) -> None:
        if self._closed:
            raise Fenced(f"the reader of {self.name!r} is closed", hint="attach again")
        self._ledger.check_generation(self.name, self.generation)

    def _make_room(self) -> None:
        """On a full disk without a reserve, let go what is done with before more is recorded.

        To be called without a lock. A removal takes a line of the ledger, too, and acknowledgements
        are faster than the keeper: they would take the last block from it, and nothing could go.
        """
        if self._ledger.is_short:
            self._store.let_go()

    def _record(
        self, start: Position, end: Position, outcome: Outcome, counts: Totals, reason: str
    ) -> None:
        now_ns = self._store.clock.wall_ns()
        line = Resolution(now_ns, self.name, self.generation, start, end, outcome, counts, reason)
        self._ledger.resolve([line])
        # Under the ledger's lock, and allowed to be: it sets a flag and notifies a condition under
        # which nothing else is taken (the lock order is in engine.py).
        self._store.freed()

    def _damaged(self, ref: BundleRef, reason: str) -> None:
        """Record that a bundle cannot be read any more, unless it is resolved.

        Decided here, by whoever finds it, instead of being raised for ever: a reader that stops at
        a damaged bundle would hold back everything behind it, and with it the disk.
        """
        with self._ledger.lock:
            subscriber = self.subscriber
            if ref.seq in subscriber.resolved:
                return
            counts = Totals(1, ref.events - subscriber.partial.get(ref.seq, 0))
            start, end = Position(ref.owned_from), Position(ref.seq + 1)
            self._record(start, end, Outcome.DAMAGED, counts, reason)
