"""Calls that may never return, made from an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

Result = TypeVar("Result")


async def in_thread(name: str, function: Callable[[], Result]) -> Result:
    """Return what `function` returns, or raise what it raises; cancelling leaves it running.

    In a thread that nobody waits for at the end. The pool of `asyncio.to_thread` is joined when the
    process ends, so one call that never returns (a user's function, a terminal that does not read)
    would keep it alive. These threads are daemons.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def run() -> None:
        try:
            settle = partial(done.set_result, function())
        except BaseException as error:
            failure = error if isinstance(error, Exception) else RuntimeError(type(error).__name__)
            settle = partial(done.set_exception, failure)
        with contextlib.suppress(RuntimeError):  # the loop has ended; nobody waits for it any more
            loop.call_soon_threadsafe(report, settle)

    def report(settle: Callable[[], None]) -> None:
        if not done.done():
            settle()

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done
