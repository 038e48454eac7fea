"""A lane: events that have to stay in order among themselves, and how their sending goes.

With `order: received` there is one lane; with `order: key` one for each key that has something to
send. A lane has one send under way at most.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.deliver.exporter import Failure
from holdfast.deliver.poison import Trial
from holdfast.deliver.settings import PoisonSettings
from holdfast.deliver.timer import Bell
from holdfast.deliver.window import Decision, DeliveryWindow, Item
from holdfast.quiver import Position


@dataclass(frozen=True)
class Skip:
    """Somebody wants the head of a lane to be set aside; done as soon as it is not being sent."""

    position: Position
    reason: str
    # Whether it was set aside.
    done: asyncio.Future[bool]


class DeliveryLane:
    """The events of one key that are not decided, oldest first."""

    def __init__(self, key: str, max_batch_events: int, poison: PoisonSettings | None) -> None:
        self.key = key
        # Rung when something comes, or is decided by others.
        self.bell = Bell()
        # Failures of the head in a row, the last one, since when, and when it may be tried again.
        self.failures = 0
        self.failure: Failure | None = None
        self.failing_since_s = 0.0
        self.retry_at_s = 0.0
        self.trial = Trial(poison)
        # By hand; see `Skip`.
        self.skip: Skip | None = None
        self.limit_events = max_batch_events
        self._max_batch_events = max_batch_events
        self._items: deque[Item] = deque()

    def add(self, item: Item) -> None:
        """Take an event behind all others."""
        self._items.append(item)

    def __len__(self) -> int:
        """How many events it has, at most: some may be decided already."""
        return len(self._items)

    @property
    def is_empty(self) -> bool:
        """Whether all of it is decided."""
        while self._items and self._items[0].decision is not None:
            self._items.popleft()
        return not self._items

    def sendable(self) -> Iterator[Item]:
        """Yield what may be sent, in order: neither decided nor about to be a dead letter."""
        if self.is_empty:
            return
        for item in self._items:
            if item.decision is None and item.verdict is None:
                yield item

    def head(self) -> Item | None:
        """Return the first event that may be sent."""
        return next(self.sendable(), None)

    def failed(self, failure: Failure, now_s: float) -> None:
        """Note that the head was not taken, and waits."""
        if self.failures == 0:
            self.failing_since_s = now_s
        self.failures += 1
        self.failure = failure

    def went_on(self) -> None:
        """Note that the head has an outcome."""
        self.failures, self.failure = 0, None

    def shrink(self, events: int) -> None:
        """Send so many at once, because it is not known which of them is at fault."""
        self.limit_events = max(1, events)

    def grow(self) -> None:
        """Send twice as many at once again, because a send went through."""
        self.limit_events = min(self._max_batch_events, 2 * self.limit_events)


class Lanes(dict[str, DeliveryLane]):
    """The lanes that have something to send, by key, and the window that their events are in."""

    def __init__(self, window: DeliveryWindow) -> None:
        super().__init__()
        self._window = window

    def decide(self, item: Item, decision: Decision) -> None:
        """Note what became of an event, and wake its lane."""
        self._window.decide(item, decision)
        lane = self.get(item.key)
        if lane is not None:
            lane.bell.ring()
