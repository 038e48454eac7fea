"""Settling: what was decided becomes durable. Dead letters first, then the lines of the ledger.

Both wait for a disk, and a disk may be full or fail for hours. Nothing is given up because of that:
the same is tried again until it succeeds, and meanwhile the destination says what is in its way.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable

from holdfast.dead_letters.letter import Letter
from holdfast.deliver.context import DeliveryContext, DeliveryPoint
from holdfast.deliver.feed import Feed
from holdfast.deliver.judge import Judge
from holdfast.deliver.lanes import Lanes
from holdfast.deliver.sending import Bell, Timer, wait_for
from holdfast.deliver.statistics import DeliveryCounters
from holdfast.deliver.window import Decision, Item
from holdfast.errors import HoldfastError, ReaderError
from holdfast.quiver import Outcome

# Dead letters that are stored together.
LETTERS_MAX = 100
# Of a reason in the ledger.
REASON_CHARACTERS_MAX = 200

log = logging.getLogger("holdfast.deliver")


class Settlement:
    """Writes for all lanes of one destination, one lane at a time."""

    def __init__(
        self,
        context: DeliveryContext,
        feed: Feed,
        lanes: Lanes,
        judge: Judge,
        counters: DeliveryCounters,
        timer: Timer,
        bell: Bell,
        on_settled: Callable[[], None],
    ) -> None:
        # What does not take what has to be written, and what it says.
        self.blocked: dict[str, str] = {}
        self.is_stopping = False
        self._context = context
        self._feed = feed
        self._lanes = lanes
        self._window = lanes.window
        self._judge = judge
        self._counters = counters
        self._timer = timer
        # Ends a pause early.
        self._bell = bell
        self._on_settled = on_settled
        self._reached = context.seam.reached
        # One lane writes at a time: `pieces` computes lines from the whole window, and two lanes
        # that did so at once would write the same line twice.
        self._writing = asyncio.Lock()

    @property
    def is_writing(self) -> bool:
        """Whether something is being written."""
        return self._writing.locked()

    async def settle(self) -> None:
        """Store dead letters that are due, then write to the ledger what was decided.

        Letters first, outcomes second, under one lock; a crash in between stores the letter twice,
        which a reader of letters can see, and never loses the event.
        """
        async with self._writing:
            if not self._judge.due or await self._bury():
                await self._record()
        self._on_settled()

    async def _bury(self) -> bool:
        """Make dead letters of the events whose verdicts stand; False if that cannot be.

        Before anything else is written: what was delivered behind such an event must not be known
        without its letter, or a restart would send the event after it.
        """
        due = self._judge.due
        while due:
            some = due[:LETTERS_MAX]
            letters = [letter_of(item, self._context.name) for item in some]
            store = functools.partial(self._context.dead_letters.undelivered, letters)
            if not await self.persist("the dead letters do not take it", store):
                return False
            self._reached(DeliveryPoint.DEAD_LETTER_STORED)
            del due[: len(some)]
            for item in some:
                assert item.verdict is not None, "BUG: a dead letter without a verdict"
                self._counters.dead_lettered[item.verdict.word] += item.event.rows
                word, code, message = item.verdict
                self._judge.log.set_aside(f"{word} {code}: {message}", self._timer.now_s())
                reason = ": ".join(item.verdict)[:REASON_CHARACTERS_MAX]
                self._lanes.decide(item, Decision(Outcome.DEAD_LETTERED, reason))
        return True

    async def _record(self) -> None:
        """Write what was decided to the ledger; nothing is sent before that."""
        pieces = self._window.pieces()
        if not pieces:
            return

        async def write() -> None:
            while pieces:
                # Some lines may be written before one fails. What is done is taken off at once, so
                # that the retry does not commit it again.
                done = await self._feed.commit(pieces)
                self._window.recorded(pieces[:done])
                del pieces[:done]

        if await self.persist("the ledger cannot be written", write):
            self._reached(DeliveryPoint.COMMITTED)

    async def persist(self, what: str, work: Callable[[], Awaitable[None]]) -> bool:
        """Do something until it is done; False if it cannot be, and we are stopping."""
        failures = 0
        while True:
            try:
                await work()
            # The subscriber is somebody else's now, or gone. Trying again would fight the new
            # reader.
            except ReaderError:
                raise
            except Exception as error:
                # A disk that fails must not keep the gateway from ending; what is not recorded
                # comes again.
                if self.is_stopping:
                    return False
                failures += 1
                says = str(error) if isinstance(error, HoldfastError) else type(error).__name__
                self.blocked[what] = self._counters.last_error = f"{what}: {says}"
                if failures == 1:
                    log.warning("%s: %s", self._context.name, self.blocked[what])
                pause_s = self._judge.backoff.pause_s(failures)
                await wait_for(self._timer, pause_s, self._bell)
            else:
                self.blocked.pop(what, None)
                return True


def letter_of(item: Item, destination: str) -> Letter:
    """Return the dead letter of an event: as it was accepted, not as processors left it."""
    assert item.verdict is not None, "BUG: a dead letter without a verdict"
    word, code, message = item.verdict
    return Letter.of_event(
        item.event,
        reason=word,
        destination=destination,
        attempts=item.attempts,
        problems=[{"rule": code, "message": message}],
    )
