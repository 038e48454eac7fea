"""Who of the data nodes that have a backlog sends next, and how much.

Catch-up is what a node missed while it was away. It must neither slow down new parts nor let one
node with large parts, or with many, keep the others waiting. So catch-up needs a *sending permit*,
and permits go round by deficit round robin, counted in bytes: each round gives every node that
waits a quantum, and one whose credit covers its next part sends as much as it covers (at most
`parts_max` parts). Of those that may, the one goes first that went longest ago, then the one whose
data is oldest. A node that stops waiting loses its credit: nobody saves up.

New parts need no permit and wait for no rate. They are charged all the same, so that catch-up
yields to them: what catch-up may use of a rate is what new parts leave.

A node that comes back is not flooded. Its catch-up begins at `slow_start_bytes_s` and doubles with
every clean quantum; BUSY halves it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from holdfast.errors import BadInput
from holdfast.seam.clock import Clock
from holdfast.seam.rate import TokenBucket

MIB = 1 << 20


@dataclass(frozen=True)
class SchedulerSettings:
    """Bounds of catch-up."""

    # Nodes that catch up at the same time.
    permits: int = 4
    quantum_bytes: int = 8 * MIB
    parts_max: int = 16
    # Bytes a second, new parts included. None: no limit.
    node_bytes_s: float | None = None
    total_bytes_s: float | None = None
    slow_start_bytes_s: float = 1.0 * MIB
    # From here on a node is not slowed down any more.
    slow_start_end_bytes_s: float = 256.0 * MIB
    # BUSY never slows a node down below this.
    slowest_bytes_s: float = MIB / 8

    def __post_init__(self) -> None:
        for name in ("permits", "quantum_bytes", "parts_max", "slow_start_bytes_s"):
            if getattr(self, name) <= 0:
                raise BadInput(f"{name} is {getattr(self, name)}", hint="use a positive number")


@dataclass
class _Waiting:
    """What a node that waits for a permit wants to send first."""

    head_bytes: int
    oldest_ns: int


class _NodeAccount:
    """The account of one node."""

    def __init__(self, clock: Clock, settings: SchedulerSettings) -> None:
        self.waiting: _Waiting | None = None
        self.credit_bytes = 0
        self.is_sending = False
        # The number of its last grant.
        self.turn = 0
        self.rate = _Rate(clock, settings.node_bytes_s)
        self.pace = _Rate(clock, settings.slow_start_bytes_s)

    def wait_s(self) -> float:
        return max(self.rate.wait_s(), self.pace.wait_s())

    def charge(self, size_bytes: int) -> None:
        self.rate.charge(size_bytes)
        self.pace.charge(size_bytes)


class _Rate:
    """A rate that can be changed while it is used; a debt goes with it."""

    def __init__(self, clock: Clock, bytes_s: float | None) -> None:
        self._clock = clock
        self._bucket = None if bytes_s is None else self._full(bytes_s)
        self.bytes_s = bytes_s

    def _full(self, bytes_s: float) -> TokenBucket:
        # A hundredth of a second's worth at once: a limit is meant as one.
        return TokenBucket(bytes_s, bytes_s / 100, self._clock)

    def wait_s(self) -> float:
        """Return in how many seconds something may be sent again."""
        return 0.0 if self._bucket is None else self._bucket.wait_s(0.0)

    def charge(self, size_bytes: int) -> None:
        if self._bucket is not None:
            self._bucket.wait_s(0.0)
            self._bucket.charge(size_bytes)

    def change(self, bytes_s: float | None) -> None:
        """Go on at another rate, in effect at once: what is owed is owed in bytes."""
        owed_bytes = self.wait_s() * (self.bytes_s or 0.0)
        self.bytes_s = bytes_s
        self._bucket = None if bytes_s is None else self._full(bytes_s)
        self.charge(int(owed_bytes))


class Scheduler:
    """Hands out permits. The caller holds one lock around it."""

    def __init__(self, clock: Clock, settings: SchedulerSettings | None = None) -> None:
        self.settings = settings or SchedulerSettings()
        self._clock = clock
        self._nodes: dict[str, _NodeAccount] = {}
        self._total = _Rate(clock, self.settings.total_bytes_s)
        self._turns = 0

    def add(self, name: str) -> None:
        """Let a node take part."""
        self._nodes.setdefault(name, _NodeAccount(self._clock, self.settings))

    def remove(self, name: str) -> None:
        """Take a node out, and its permit back."""
        self._nodes.pop(name, None)

    # ------------------------------------------------------------------ permits

    def wait(self, name: str, head_bytes: int, oldest_ns: int) -> None:
        """Let a node wait for a permit; its next part has so many bytes."""
        self._nodes[name].waiting = _Waiting(head_bytes, oldest_ns)

    def leave(self, name: str) -> None:
        """Note that a node has nothing to send, or cannot."""
        node = self._nodes.get(name)
        if node is not None:
            node.waiting, node.credit_bytes = None, 0

    def take(self, name: str) -> int | None:
        """Give a node a permit if it is its turn; return how many bytes it covers."""
        node = self._nodes[name]
        if node.waiting is None or node.is_sending or self._next() != name:
            return None
        self._turns += 1
        node.is_sending, node.turn = True, self._turns
        return node.credit_bytes

    def done(self, name: str, sent_bytes: int) -> None:
        """Take a permit back, and charge what was sent with it."""
        node = self._nodes.get(name)
        if node is None:
            return
        node.is_sending = False
        node.credit_bytes = max(0, node.credit_bytes - sent_bytes)
        self._charge(node, sent_bytes)

    def sent_live(self, name: str, sent_bytes: int) -> None:
        """Charge a new part, which waited for nothing."""
        node = self._nodes.get(name)
        if node is not None:
            self._charge(node, sent_bytes)

    def _charge(self, node: _NodeAccount, sent_bytes: int) -> None:
        node.charge(sent_bytes)
        self._total.charge(sent_bytes)

    def _next(self) -> str | None:
        """Return whose turn it is; None: nobody may send now."""
        sending = sum(node.is_sending for node in self._nodes.values())
        if sending >= self.settings.permits or self._total.wait_s() > 0:
            return None
        # Whoever has to wait for its own rate does not keep the others waiting.
        waiting = {
            name: (node, node.waiting)
            for name, node in self._nodes.items()
            if node.waiting is not None and not node.is_sending and node.wait_s() <= 0
        }
        if not waiting:
            return None
        self._give_rounds(list(waiting.values()))
        covered = [
            (node.turn, want.oldest_ns, name)
            for name, (node, want) in waiting.items()
            if node.credit_bytes >= want.head_bytes
        ]
        return min(covered)[2]

    def _give_rounds(self, waiting: list[tuple[_NodeAccount, _Waiting]]) -> None:
        """Give as many rounds as it takes until somebody's credit covers its next part."""
        quantum = self.settings.quantum_bytes
        rounds = min(
            max(0, math.ceil((want.head_bytes - node.credit_bytes) / quantum))
            for node, want in waiting
        )
        # A head of no bytes at all is covered without a round, and would send alone for ever.
        if rounds == 0 and all(node.credit_bytes == 0 for node, _ in waiting):
            rounds = 1
        for node, _ in waiting:
            node.credit_bytes += rounds * quantum

    def wake_s(self, name: str) -> float:
        """Return when to ask again; infinity: when another node gives its permit back."""
        node = self._nodes.get(name)
        if node is None or node.waiting is None:
            return math.inf
        wait_s = max(node.wait_s(), self._total.wait_s())
        return self._clock.monotonic_s() + wait_s if wait_s > 0 else math.inf

    # -------------------------------------------------------------------- rates

    def set_rate(self, bytes_s: float | None, name: str | None = None) -> None:
        """Change the rate of one node, or of all together; it holds from now on."""
        if bytes_s is not None and not bytes_s > 0:
            raise BadInput(f"a rate of {bytes_s}", hint="use a positive number, or None for none")
        if name is None:
            self._total.change(bytes_s)
        else:
            self._nodes[name].rate.change(bytes_s)

    def rate(self, name: str | None = None) -> float | None:
        """Return the rate that is set, of one node or of all together."""
        return self._total.bytes_s if name is None else self._nodes[name].rate.bytes_s

    def pace(self, name: str) -> float | None:
        """Return how fast a node catches up at most by its own history; None: as fast as it can."""
        return self._nodes[name].pace.bytes_s

    def came_back(self, name: str) -> None:
        """Begin slowly with a node that was away."""
        self._nodes[name].pace.change(self.settings.slow_start_bytes_s)

    def went_well(self, name: str) -> None:
        """Note a clean quantum: the node may get twice as much."""
        pace = self._nodes[name].pace
        if pace.bytes_s is not None:
            faster = 2 * pace.bytes_s
            pace.change(None if faster >= self.settings.slow_start_end_bytes_s else faster)

    def was_busy(self, name: str) -> None:
        """Note that a node could not keep up: it gets half as much."""
        pace = self._nodes[name].pace
        current = pace.bytes_s or self.settings.slow_start_end_bytes_s
        pace.change(max(self.settings.slowest_bytes_s, current / 2))
