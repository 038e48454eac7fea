"""How long a test waits for what should happen: the same everywhere, scaled by one variable.

Nothing takes that long; a test that runs out of patience has found that something does not happen.
On a machine that is busy with something else, `HOLDFAST_PATIENCE=5` makes all of it five times as
long, pytest's own time-outs included (`tests/conftest.py`).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

SCALE = float(os.environ.get("HOLDFAST_PATIENCE", "1"))
PATIENCE_S = 60.0 * SCALE
# Spark takes seconds to start, and minutes where everything else runs at once.
SPARK_PATIENCE_S = 400.0 * SCALE
# How long an append may take that is to be refused: its writer waits for room half as long. On a
# simulated machine the answer itself may come later (tests/quiver/machine.py).
APPEND_S = 0.8 * SCALE


def until(
    holds: Callable[[], object],
    what: str = "it",
    log: Callable[[], str] = str,
    *,
    patience_s: float = PATIENCE_S,
) -> None:
    """Wait until something holds."""
    give_up_s = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < give_up_s, f"{what} did not happen\n{log()}"
        time.sleep(0.01)


def until_spark(
    holds: Callable[[], object], what: str = "it", log: Callable[[], str] = str
) -> None:
    """Wait until something holds that Spark has to do."""
    until(holds, what, log, patience_s=SPARK_PATIENCE_S)


async def until_async(
    holds: Callable[[], bool] | Callable[[], Awaitable[bool]],
    what: str = "it",
    patience_s: float = PATIENCE_S,
) -> None:
    """Let other tasks run until something holds."""
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + patience_s
    while True:
        answer = holds()
        if answer if isinstance(answer, bool) else await answer:
            return
        assert loop.time() < give_up_s, f"{what} did not happen"
        await asyncio.sleep(0.01)
