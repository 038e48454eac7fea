"""Asks one data node how it is, and keeps what it said of itself.

A node's statement is the ground for three things: whether it is up (`Monitor`), whether it is the
node that is bound to the name (`Membership`), and which seqs it holds. From the last follows what
it has to be told: ranges that are none of its own, so that its intervals grow together.

Nothing is dropped on the ground of what a node said some time ago: it may have removed the part
since, or be another node by now. Whoever wants to drop asks `vouches`. The first time the answer is
no, and the node is asked at once; only what it says then counts, and for a moment.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

from holdfast.errors import HoldfastError
from holdfast.handoff.calls import Probe, Result, TellNotOwned
from holdfast.handoff.membership import Membership
from holdfast.handoff.monitor import Monitor, NodeState
from holdfast.handoff.worker import Worker
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.replica.messages import Holding, NodeHealth
from holdfast.seam.clock import Clock

# Told at once; the rest comes with the next statement.
RANGES_MAX = 1000
# Telling is not urgent: it only makes a node's intervals fewer.
TELL_EVERY_S = 60.0
# A statement that was asked for in order to drop something counts for so long: whoever waits for it
# looks every 50 ms.
VOUCHED_S = 1.0


class Prober:
    """Watches one data node. The caller holds one lock around it."""

    def __init__(
        self,
        worker: Worker,
        clock: Clock,
        monitor: Monitor,
        membership: Membership,
        not_owned: Callable[[str, IntervalSet], Iterator[tuple[int, int]]],
        quiver_id: str,
    ) -> None:
        self.health: NodeHealth | None = None
        # What the node said that it holds, by quiver; kept while its digest stays the same.
        self.holdings: dict[str, Holding] = {}
        self._worker = worker
        self._name = worker.name
        self._clock = clock
        self._monitor = monitor
        self._membership = membership
        # What of a quiver's seqs is none of a node's, apart from what it has seen.
        self._not_owned = not_owned
        self._quiver_id = quiver_id
        self._is_calling = False
        # It asks the node that was bound before a rebind.
        self._is_outdated = False
        self._to_tell: TellNotOwned | None = None
        self._tell_s = -math.inf
        # How often somebody came to want to drop something; which of that the probe under way, and
        # the last good one, came after; and when that was answered.
        self._wishes = self._asked_wishes = self._answered_wishes = 0
        self._answered_s = -math.inf

    @property
    def is_over(self) -> bool:
        """Whether its worker is."""
        return self._worker.is_over

    def due_s(self) -> float:
        """Return when to ask again; infinity while a call is under way."""
        if self.is_over or self._is_calling:
            return math.inf
        # One that did not answer last is asked at its usual time: misses are counted by that.
        is_awaited = self._wishes != self._answered_wishes
        if is_awaited and self._monitor.state(self._name) in (NodeState.UP, NodeState.BUSY):
            return -math.inf
        return self._monitor.next_probe_s(self._name)

    def begin(self) -> Probe | TellNotOwned | None:
        """Return what to ask now, if anything."""
        if self.is_over or self._is_calling:
            return None
        if self._to_tell is not None:
            call, self._to_tell = self._to_tell, None
            self._is_calling = True
            return call
        if self.due_s() > self._clock.monotonic_s():
            return None
        self._monitor.begin_probe(self._name)
        self._is_calling = True
        self._asked_wishes = self._wishes
        known = "" if self.health is None else self.health.digest
        return Probe(known, self._monitor.settings.probe_timeout_s)

    def end(self, call: Probe | TellNotOwned, result: Result) -> None:
        """Take what came of a call."""
        self._is_calling = False
        is_outdated, self._is_outdated = self._is_outdated, False
        if self.is_over or is_outdated:
            return
        if isinstance(result, HoldfastError):
            if isinstance(call, Probe):
                self._monitor.missed(self._name, str(result))
        elif isinstance(result, NodeHealth):
            self._met(result)
            self._answered_wishes = self._asked_wishes
            self._answered_s = self._clock.monotonic_s()

    def rebound(self) -> None:
        """Let the next statement bind, and none that was asked for before."""
        self._is_outdated = self._is_calling
        self._to_tell = None
        self._worker.rebound()

    def _met(self, health: NodeHealth) -> None:
        known = self.health
        if known is None or not health.digest or health.digest != known.digest:
            self.holdings = {one.quiver_id: one for one in health.holdings}
        self.health = health
        is_new = self._monitor.good(
            self._name, is_writable=health.is_writable, boot_id=health.boot_id
        )
        refusal = self._membership.refusal(self._name, health.node_id)
        if refusal is None:
            # Durable before anything is sent: a part that arrived tells who was meant.
            try:
                self._membership.bind(self._name, health.node_id)
            except OSError as error:
                refusal = f"it could not be bound to its name: {error.strerror}"
        self._worker.met(health, refusal, is_new_process=is_new)
        if refusal is None and self._clock.monotonic_s() >= self._tell_s:
            self._plan_to_tell(health.node_id)

    def _plan_to_tell(self, node_id: str) -> None:
        holding = self.holdings.get(self._quiver_id)
        seen = IntervalSet() if holding is None else holding.seen
        ranges = IntervalSet(itertools.islice(self._not_owned(self._name, seen), RANGES_MAX))
        if ranges:
            self._to_tell = TellNotOwned(node_id, self._quiver_id, ranges)
            self._tell_s = self._clock.monotonic_s() + TELL_EVERY_S

    @property
    def is_bound(self) -> bool:
        """Whether the node that answers is the one that its name stands for."""
        return self.health is not None and self._worker.refusal is None

    def stores(self, quiver_id: str, first_seq: int, end_seq: int) -> bool:
        """Whether the node said, last, that it has all of a range: stored, not only seen."""
        holding = self.holdings.get(quiver_id)
        return holding is not None and holding.stored.covers(first_seq, end_seq)

    def vouches(self) -> bool:
        """Whether its last statement is ground enough to drop what it stores; takes no lock.

        That is, it was asked for after somebody came to want that, and answered just now. If not,
        the node is to be asked, and the caller comes again.
        """
        if self._answered_wishes != self._wishes:
            return False  # it is being asked, or will be
        is_fresh = self._clock.monotonic_s() - self._answered_s <= VOUCHED_S
        if self._wishes and is_fresh:
            return True
        self._wishes += 1
        return False
