"""A lane: events that have to stay in order among themselves, and how their sending goes.

With `order: received` there is one lane; with `order: key` one for each key that has something to
send. A lane has one send under way at most.

A lane exists while it has something to send: one task each (`DeliveryLoop._drive`), made with the
first event of a key and gone with the last. Idle keys cost nothing, which matters when the key is
a run id.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from holdfast.deliver.exporter import Failure, FailureClass
from holdfast.deliver.sending import EXCEPTION_CODE, Bell
from holdfast.deliver.settings import PoisonSettings
from holdfast.deliver.window import Decision, DeliveryWindow, Item
from holdfast.quiver import Position

_SERVER_ERROR = re.compile(r"5\d\d")
# By its meaning it is about the server; one that sheds load says it to some and not to others.
_UNAVAILABLE = "503"


class Round(StrEnum):
    """With what the head of a lane is compared."""

    # It has not failed often enough.
    NONE = "none"
    # With an event that was taken before.
    REPEATED = "repeated"
    # With an event that comes behind it.
    NEW = "new"


def is_suspect(failure: Failure) -> bool:
    """Whether a failure may be the event's doing: a server error, or an exception while sending."""
    if failure.kind is not FailureClass.TRANSIENT or failure.code == _UNAVAILABLE:
        return False
    is_server_error = _SERVER_ERROR.fullmatch(failure.code) is not None
    return is_server_error or failure.code.startswith(EXCEPTION_CODE)


class Trial:
    """What speaks against the head of one lane: a fair test tells poison apart from chance.

    Only with `poison:`; without it an event that fails is tried for ever. The test must not be
    faked by a destination that fails at random, whatever the share: for every request, for a
    connection, or because one of its replicas is broken. So nothing is concluded from how often the
    head of a lane failed. Once that was `attempts` times, it is tried in pairs: the head and
    another event, one right after the other, in an order that is drawn by lot. A pair speaks
    against the head if the head fails and the other one is taken.

        The destination did not see the lot. If it does not care which event it is sent, then of all
        pairs of which exactly one is taken, each is as likely to be for the head as against it:
        however it fails, and whatever it makes of two requests in a row. The first pair for the
        head ends the test, because the head is delivered then. So `pairs` pairs against it, and
        none for it, have a probability of at most 2 ** -pairs.

    There are two rounds. In the first the other event is one that was taken before, sent once more:
    it costs a duplicate, and no order. But a destination may know what it has already, and take it
    without doing any work. So the second round compares with the events behind the head, each of
    them new: they overtake it, for which the first round has shown good reason. If nothing is
    behind the head, it holds up nobody, and stays. Both rounds together take at least `held_s`, so
    that a part of the destination that only some events need (a shard, a table) has time to come
    back.
    """

    def __init__(self, settings: PoisonSettings) -> None:
        self._position: Position | None = None
        self._settings = settings
        self._failures = 0
        self._since_s = 0.0
        self._against = {Round.REPEATED: 0, Round.NEW: 0}

    def failed(self, position: Position, now_s: float) -> None:
        """Note that the head failed, sent alone, in a way that may be its own doing."""
        # Another head: whatever was held against the last one says nothing about this one.
        if position != self._position:
            self._position, self._failures, self._since_s = position, 0, now_s
            self._against = dict.fromkeys(self._against, 0)
        self._failures += 1

    def round_of(self, position: Position) -> Round:
        """With what the head of the lane is to be compared when it is sent next."""
        if position != self._position or self._failures < self._settings.attempts:
            return Round.NONE
        # Cheap pairs first. The dear ones, which overtake, come only once these are all against
        # the head.
        is_first = self._against[Round.REPEATED] < self._settings.pairs
        return Round.REPEATED if is_first else Round.NEW

    def compared(self, in_round: Round) -> None:
        """Note a pair against the head."""
        self._against[in_round] += 1

    def is_proven(self, now_s: float) -> bool:
        """Whether it is the head, and not the destination."""
        if now_s < self._since_s + self._settings.held_s:
            return False
        return all(count >= self._settings.pairs for count in self._against.values())


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
        # None unless `poison:` is set.
        self.trial = None if poison is None else Trial(poison)
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
        # Others decide events in the middle of a lane (retention, an operator, a trial); they are
        # dropped here, when they reach the front, and not searched for.
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
        # Slow start after trouble, like a TCP window: back to full batches in a few sends, and one
        # more bad event costs little.
        self.limit_events = min(self._max_batch_events, 2 * self.limit_events)


class Lanes(dict[str, DeliveryLane]):
    """The lanes that have something to send, by key, and the window that their events are in."""

    def __init__(self, window: DeliveryWindow) -> None:
        super().__init__()
        self.window = window

    def decide(self, item: Item, decision: Decision) -> None:
        """Note what became of an event, and wake its lane."""
        self.window.decide(item, decision)
        lane = self.get(item.key)
        if lane is not None:
            lane.bell.ring()
