"""Time that passes when nothing else happens, so that no test of a delivery waits for real."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable, Collection
from typing import Any

import pytest
from tests.patience import PATIENCE_S

from holdfast.deliver.feed import Feed

# So many turns of the event loop without anything under way: nothing will happen by itself.
QUIET_TURNS = 12


class VirtualTimer:
    """Jumps to the next deadline when it is told to."""

    def __init__(self, on_advance: Callable[[float], None] = lambda seconds: None) -> None:
        self._now_s = 1000.0
        self._on_advance = on_advance
        self._numbers = itertools.count()
        self._deadlines: list[tuple[float, int, asyncio.Future[None]]] = []
        # What is done in threads; see `watch_threads`.
        self.busy = 0

    def now_s(self) -> float:
        return self._now_s

    async def wait(self, futures: Collection[asyncio.Future[Any]], timeout_s: float | None) -> None:
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if timeout_s is not None:
            entry = (self._now_s + timeout_s, next(self._numbers), over)
            heapq.heappush(self._deadlines, entry)
        try:
            await asyncio.wait({*futures, over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()

    def advance(self) -> bool:
        """Let time pass until the next deadline; False if there is none."""
        if self._next_deadline_s() is None:
            return False
        deadline_s, _, over = heapq.heappop(self._deadlines)
        self._on_advance(max(0.0, deadline_s - self._now_s))
        self._now_s = max(self._now_s, deadline_s)
        over.set_result(None)
        return True

    def _next_deadline_s(self) -> float | None:
        while self._deadlines and self._deadlines[0][2].done():
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    async def quiet(self) -> None:
        """Return when nothing is under way but waits for time."""
        give_up_s = time.monotonic() + PATIENCE_S
        turns = 0
        while turns < QUIET_TURNS:
            await asyncio.sleep(0 if not self.busy else 0.0005)
            turns = 0 if self.busy else turns + 1
            assert time.monotonic() < give_up_s, "it never gets quiet"

    async def until(self, holds: Callable[[], bool], max_s: float = 10_000_000.0) -> None:
        """Let time pass until something holds."""
        give_up_s, latest_s = time.monotonic() + PATIENCE_S, self._now_s + max_s
        while True:
            await self.quiet()
            if holds():
                return
            assert time.monotonic() < give_up_s, "it does not come true"
            assert self._now_s <= latest_s, "it does not come true in time"
            if not self.advance():
                await asyncio.sleep(0.001)

    async def pass_s(self, seconds: float) -> None:
        """Let so much time pass, and everything happen that is due by then."""
        end_s = self._now_s + seconds
        await self.quiet()
        while (deadline_s := self._next_deadline_s()) is not None and deadline_s <= end_s:
            self.advance()
            await self.quiet()
        self._on_advance(end_s - self._now_s)
        self._now_s = end_s


async def really(holds: Callable[[], bool]) -> None:
    """Wait in real time until something holds; the timer's time stands still."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up_s, "it does not come true"
        await asyncio.sleep(0.001)


def watch_threads(patch: pytest.MonkeyPatch, timer: VirtualTimer) -> None:
    """Let a timer know of the work that destinations give to their threads."""
    in_thread = Feed._in_thread

    async def watched(feed: Feed, work: Callable[[], Any]) -> Any:
        timer.busy += 1
        try:
            return await in_thread(feed, work)
        finally:
            timer.busy -= 1

    patch.setattr(Feed, "_in_thread", watched)
