"""A wake-up that is never lost: for threads and for event loops.

A waiter names the version it has seen. If the version moved on meanwhile, it does not wait at all,
so it does not matter whether the news came before or after it began to wait.
"""

from __future__ import annotations

import asyncio
import threading

from holdfast.quiver.log.inbox import resolve_futures
from holdfast.seam.process import bind_to_process


class Wakeup:
    """Counts news and wakes whoever waits for some."""

    def __init__(self) -> None:
        self.version = 0
        self._condition = threading.Condition()
        self._loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        bind_to_process(self)

    def notify(self) -> None:
        """Tell everyone that there is news."""
        with self._condition:
            self.version += 1
            self._condition.notify_all()
            loops, self._loops = self._loops, []
        for loop, future in loops:
            try:
                loop.call_soon_threadsafe(resolve_futures, [future])
            except RuntimeError:  # the loop was closed while it waited
                continue

    def wait(self, seen: int, timeout_s: float) -> int:
        """Wait for news beyond version `seen`; return the version now."""
        with self._condition:
            if self.version == seen and timeout_s > 0:
                self._condition.wait(timeout_s)
            return self.version

    async def wait_async(self, seen: int, timeout_s: float) -> int:
        """As `wait`, awaitable."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._condition:
            if self.version != seen or timeout_s <= 0:
                return self.version
            self._loops.append((loop, future))
        try:
            # Not `wait_for`: before Python 3.12 it forgets a cancellation that meets the news.
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            pass
        finally:
            with self._condition:
                if (loop, future) in self._loops:  # it gave up, or was cancelled
                    self._loops.remove((loop, future))
        return self.version
