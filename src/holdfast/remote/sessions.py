"""Subscribers attached from afar: their cursors, found by name and generation.

A client names its generation in every call. If the owner was restarted meanwhile, the cursor went
with the process but the generation is in the ledger: it is resumed without the client noticing. If
another reader attached under the name, the generation is not the current one, and the client is
fenced off, as it would be on the spot.

A client also says where a plan begins, so that a call whose answer was lost can be repeated; and
names the range it commits. The bundles of a range are remembered here for a while, and planned
again if need be.

A client that is gone does not say so. Whoever has not called for `detach_after` is detached: from
then on its time as an orphan runs (`retention.orphan_ttl_s`). Its next call attaches it again.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator

from holdfast.errors import Overloaded
from holdfast.quiver import Cursor, Outcome, Position, Quiver, Range
from holdfast.quiver.read.cursor import OnDataLoss
from holdfast.seam.clock import Clock

# Ranges of one subscriber whose bundles are remembered.
RANGES_MAX = 16
# How often a call that waits looks whether its client is still there.
LOOK_S = 1.0


class Session:
    """One attached subscriber. Safe to use from many threads."""

    def __init__(self, cursor: Cursor) -> None:
        # Kept by `Sessions`: calls that go on, and when the last one ended.
        self.calls = 0
        self.idle_since_s = 0.0
        self._cursor = cursor
        self._lock = threading.Lock()
        self._ranges: OrderedDict[tuple[Position, Position], Range] = OrderedDict()

    @property
    def generation(self) -> int:
        """Its generation."""
        return self._cursor.generation

    @property
    def position(self) -> Position:
        """The first event that is not committed."""
        return self._cursor.position

    def plan(
        self,
        start: Position | None,
        max_events: int,
        max_bytes: int,
        goes_on: Callable[[], float],
    ) -> Range | None:
        """Return the next sealed range, from `start` or from the position on.

        Waits as long as `goes_on` says, in seconds.
        """
        arrivals = self._cursor.arrivals
        while True:
            # Before the plan, and without the lock while waiting: a commit of the same subscriber
            # must get in.
            seen = arrivals.version
            with self._lock:
                planned = self._cursor.plan(
                    max_events=max_events,
                    max_bytes=max_bytes,
                    start=self.position if start is None else start,
                    sealed_only=True,
                )
                if planned is not None:
                    return self._remember(planned)
            remaining_s = goes_on()
            if remaining_s <= 0:
                return None
            arrivals.wait(seen, min(remaining_s, LOOK_S))

    def replan(self, start: Position, end: Position) -> Range:
        """Return exactly this range, pinned anew."""
        with self._lock:
            return self._remember(self._cursor.replan(start, end))

    def commit(
        self, start: Position, end: Position, through: Position, outcome: Outcome, reason: str
    ) -> None:
        """Resolve a range up to `through`; what is resolved already stays so."""
        with self._lock:
            done = self._cursor.position
            planned = self._ranges.get((start, end))
            if planned is None:
                if through <= done:
                    return
                # The range is not remembered any more, or was planned by a process before this
                # one. Planned again from the first event that is not resolved: a commit that is
                # repeated resolves what is left, or nothing.
                planned = self._remember(self._cursor.replan(max(start, done), end))
            since = max(planned.start, done)
            if since < through:
                self._cursor.commit(
                    planned, since=since, through=through, outcome=outcome, reason=reason
                )

    def check(self, start: Position, end: Position) -> int:
        """Read a range on the spot; return how many of its events can be.

        Bundles that cannot be read are recorded as damaged: only the owner can do that.
        """
        with self._lock:
            planned = self._ranges.get((start, end)) or self._cursor.replan(start, end)
            return sum(bundle.events for bundle in self._cursor.read(planned))

    def accept_losses(self) -> None:
        """Go on behind what was lost."""
        with self._lock:
            self._cursor.accept_losses()

    def close(self) -> None:
        """Detach."""
        self._cursor.close()

    def _remember(self, planned: Range) -> Range:
        self._ranges[planned.start, planned.end] = planned
        while len(self._ranges) > RANGES_MAX:
            self._ranges.popitem(last=False)
        return planned


class Sessions:
    """All subscribers of one quiver that are attached from afar."""

    def __init__(self, quiver: Quiver, max_count: int, detach_after_s: float, clock: Clock) -> None:
        self._quiver = quiver
        self._max_count = max_count
        self._detach_after_s = detach_after_s
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def attach(self, name: str, make: Callable[[], Cursor]) -> Session:
        """Attach under a name; whoever was attached before is fenced off."""
        with self._lock:
            return self._add(name, make)

    @contextlib.contextmanager
    def using(self, name: str, generation: int, on_data_loss: OnDataLoss) -> Iterator[Session]:
        """Give an attached subscriber out for a call; one that was detached is resumed."""
        with self._lock:
            session = self._sessions.get(name)
            if session is None or session.generation != generation:
                session = self._add(
                    name,
                    lambda: self._quiver.cursor(
                        name, generation=generation, on_data_loss=on_data_loss
                    ),
                )
            # Under the lock that `sweep` takes: a session in use is never closed, however long its
            # call waits.
            session.calls += 1
        try:
            yield session
        finally:
            with self._lock:
                session.calls -= 1
                session.idle_since_s = self._clock.monotonic_s()

    def detach(self, name: str, generation: int) -> None:
        """Detach; doing it again changes nothing."""
        with self._lock:
            session = self._sessions.get(name)
            if session is not None and session.generation == generation:
                self._sessions.pop(name).close()

    def forget(self, name: str) -> None:
        """Take note that a subscriber is no longer registered."""
        with self._lock:
            self._sessions.pop(name, None)

    def sweep(self) -> None:
        """Detach whoever has not called for a while."""
        with self._lock:
            since_s = self._clock.monotonic_s() - self._detach_after_s
            for name, session in list(self._sessions.items()):
                if not session.calls and session.idle_since_s < since_s:
                    self._sessions.pop(name).close()

    def _add(self, name: str, make: Callable[[], Cursor]) -> Session:
        if name not in self._sessions and len(self._sessions) >= self._max_count:
            raise Overloaded(
                f"{len(self._sessions)} subscribers are attached, the bound is max_attachments",
                hint="detach some, or raise it",
                retry_after_s=1.0,
            )
        session = self._sessions[name] = Session(make())
        session.idle_since_s = self._clock.monotonic_s()
        return session
