"""Waiting: for something to happen, or for time to pass. Tests let time pass as they like."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterator
from typing import Any, Protocol


class Timer(Protocol):
    """By what a delivery waits."""

    def now_s(self) -> float:
        """Return seconds since some fixed moment; never jumps."""

    async def wait(self, futures: Collection[asyncio.Future[Any]], timeout_s: float | None) -> None:
        """Return when one of the futures is done, or the time is over. Cancels none of them."""


class LoopTimer:
    """The event loop's own clock."""

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def wait(self, futures: Collection[asyncio.Future[Any]], timeout_s: float | None) -> None:
        await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


class Bell:
    """Wakes everyone who listens at the moment; they look again at what they wait for."""

    def __init__(self) -> None:
        self._listeners: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        """Wake all listeners."""
        for listener in self._listeners:
            if not listener.done():
                listener.set_result(None)
        self._listeners.clear()

    @contextlib.contextmanager
    def listening(self) -> Iterator[asyncio.Future[None]]:
        """Yield a future that the next ring completes."""
        listener: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
