"""Orphans: subscribers that nobody reads any more, given up if the configuration says after when.

Only time in which the quiver was open counts, when somebody could have attached: a device in a
drawer, or a site that is closed for two weeks, loses nobody. What was counted is written to the
ledger from time to time and when the quiver is closed, so that it goes on after a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import PurePath

from holdfast.quiver.base.config import RetentionConfig
from holdfast.quiver.base.frame import Totals
from holdfast.quiver.ledger.ledger import Ledger
from holdfast.quiver.ledger.subscriber import Subscriber
from holdfast.seam.clock import Clock

# For so long after a start nobody is given up, and an absence is noted so often in the time to
# live: a crash forgets at most that part of it.
ORPHAN_GRACE_S = 600.0
ABSENCE_NOTES = 20

log = logging.getLogger("holdfast.quiver")


class Orphans:
    """Counts how long nobody was attached to whom. Used under the lock of retention."""

    def __init__(
        self,
        clock: Clock,
        root: PurePath,
        config: RetentionConfig,
        ledger: Ledger,
        unregister: Callable[[str, str], Totals],
    ) -> None:
        self._clock = clock
        self._root = root
        self._ttl_s = config.orphan_ttl_s
        self._ledger = ledger
        self._unregister = unregister
        self._began_s = clock.monotonic_s()

    def give_up(self) -> None:
        """Unregister whoever was absent for too long."""
        if self._ttl_s is None:
            return
        # Nobody is given up before it could attach after a start.
        open_s = self._clock.monotonic_s() - self._began_s
        # What was counted before a restart may already exceed the limit. The grace keeps a
        # consumer that is merely slower to boot than the gateway from being given up in the first
        # tick.
        may_go = open_s >= min(self._ttl_s, ORPHAN_GRACE_S)
        for subscriber in list(self._ledger.state.subscribers.values()):
            with self._ledger.lock:  # or it may attach meanwhile
                absent_s = self._absence_s(subscriber)
                if absent_s > self._ttl_s and may_go:
                    counts = self._unregister(subscriber.name, "orphaned")
                    log.warning(
                        "%s: no reader attached to %r for %.0f s (retention.orphan_ttl_s): it is "
                        "unregistered, and %d bundles are given up",
                        self._root,
                        subscriber.name,
                        absent_s,
                        counts.bundles,
                    )
                elif absent_s - subscriber.absent_s >= self._ttl_s / ABSENCE_NOTES:
                    self._note(subscriber, absent_s)

    def note_all(self) -> None:
        """Write down how long nobody was attached to whom, if that counts: the quiver closes."""
        if self._ttl_s is None:
            return
        with self._ledger.lock:
            for subscriber in self._ledger.state.subscribers.values():
                if subscriber.absent_since_ns is not None:
                    self._note(subscriber, self._absence_s(subscriber))

    def _absence_s(self, subscriber: Subscriber) -> float:
        """Return for how long nobody is attached, as far as the quiver was open."""
        since_ns = subscriber.absent_since_ns
        if since_ns is None:
            return 0.0
        return subscriber.absent_s + (self._ledger.steady.now_ns() - since_ns) / 1e9

    def _note(self, subscriber: Subscriber, absent_s: float) -> None:
        now_ns = self._ledger.steady.now_ns()
        self._ledger.change("absent", subscriber.name, absent_s=absent_s, since_ns=now_ns)
