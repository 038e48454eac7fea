"""The keeper: one thread that syncs the ledger, keeps the bounds, and sweeps."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable

from holdfast.quiver.base.config import RetentionConfig
from holdfast.quiver.keep.retention import Retention
from holdfast.quiver.ledger.ledger import Ledger
from holdfast.seam.clock import Clock

# How often the account of used bytes is compared with the disk.
LOOK_EVERY_S = 30.0
# After something was resolved it looks at once, which takes time in proportion to the segments; and
# then not again before so many times that long, so that it never takes more than a tenth.
RESTS_PER_TICK = 9

log = logging.getLogger("holdfast.quiver")


class Keeper:
    """Does what is due by time. Its failures are told, and tried again at the next tick."""

    def __init__(
        self, clock: Clock, config: RetentionConfig, ledger: Ledger, retention: Retention
    ) -> None:
        self.last_error: str | None = None
        self._clock = clock
        self._config = config
        self._ledger = ledger
        self._retention = retention
        self._condition = threading.Condition()
        self._resolved = False
        self._closing = False
        self._looked_s = clock.monotonic_s()
        self._thread = threading.Thread(target=self._run, name="quiver-keeper", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._ledger.on_dirty = self.wake
        self._thread.start()

    def wake(self) -> None:
        """Look at the clock again: something may be due earlier than it was."""
        with self._condition:
            self._condition.notify_all()

    def freed(self) -> None:
        """Something was resolved: segments may go at the next opportunity."""
        self._resolved = True

    def close(self) -> None:
        """End the thread."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            self._keep()
        except BaseException as error:
            self.last_error = f"the keeper ended: {type(error).__name__}: {error}"

    def _keep(self) -> None:
        next_tick_s = self._clock.monotonic_s() + self._config.tick_s
        rested_s = -math.inf
        while True:
            with self._condition:
                if self._closing:
                    return
                due_s = self._ledger.seconds_until_due()
                tick_s = min(next_tick_s, rested_s) if self._resolved else next_tick_s
                patience_s = max(0.0, tick_s - self._clock.monotonic_s())
                self._condition.wait(patience_s if due_s is None else min(due_s, patience_s))
            now_s = self._clock.monotonic_s()
            self._try(self._ledger.sync_if_due)
            if now_s >= (min(next_tick_s, rested_s) if self._resolved else next_tick_s):
                self._resolved = False
                next_tick_s = now_s + self._config.tick_s
                self._try(self._tick)
                ended_s = self._clock.monotonic_s()
                rested_s = ended_s + RESTS_PER_TICK * (ended_s - now_s)

    def _try(self, work: Callable[[], None]) -> None:
        """Do some work; whatever happens, the keeper goes on, because nobody else does it."""
        try:
            work()
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            if told != self.last_error:
                log.warning("the keeper failed and will try again: %s", told)
            self.last_error = told

    def _tick(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now_s
            self._retention.look_at_disk()
        self._retention.tick()
