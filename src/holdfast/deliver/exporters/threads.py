"""Running what blocks in a thread that nobody waits for at the end.

The pool of `asyncio.to_thread` is joined when the process ends, so one call that never returns (a
user's function, a terminal that does not read) would keep it alive. These threads are daemons.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


async def in_thread(name: str, function: Callable[[], Result]) -> Result:
    """Return what `function` returns, or raise what it raises; cancelling leaves it running."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def run() -> None:
        try:
            result = function()
        except BaseException as error:
            failure = error if isinstance(error, Exception) else RuntimeError(type(error).__name__)
            report(lambda: done.set_exception(failure))
        else:
            report(lambda: done.set_result(result))

    def report(settle: Callable[[], None]) -> None:
        try:
            loop.call_soon_threadsafe(lambda: None if done.done() else settle())
        except RuntimeError:  # the loop has ended; nobody waits for this any more
            return

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done
