"""Work beside the test, and waiting for it without guessing how long it takes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any


def in_thread(work: Callable[[], Any]) -> Future[Any]:
    """Run something in a thread of its own and return what becomes of it."""
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done


def run_loop(work: Coroutine[Any, Any, Any]) -> Future[Any]:
    """Run a coroutine in an event loop of its own, in a thread of its own."""
    return in_thread(lambda: asyncio.run(work))
