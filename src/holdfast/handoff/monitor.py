"""Which data nodes can be reached now.

    DOWN ──2 good probes, and the damping is over──▶ UP ──one miss──▶ SUSPECT ──3 misses──▶ DOWN
                                                     ▲ │                 │
                                  writable again ────┘ ▼ not writable    └─ one good probe ─▶ UP
                                                    BUSY
    REMOVED: forgotten by an operator.    ORPHANED: no longer in the configuration.

Level-triggered: whoever asks gets the state of this moment, worked out from what was last seen, and
an event that is missed costs nothing. What sends see counts as a probe does.

A node that comes and goes is damped: after each fall it stays down for a time that doubles up to a
minute, so that it costs neither a busy loop nor a log line per second, and still gets its turn.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.seam.clock import Clock

log = logging.getLogger("holdfast.handoff")


class NodeState(StrEnum):
    """What can be done with a data node now."""

    UP = "up"
    SUSPECT = "suspect"
    DOWN = "down"
    BUSY = "busy"
    REMOVED = "removed"
    ORPHANED = "orphaned"


@dataclass(frozen=True)
class MonitorSettings:
    """How often nodes are asked, and what is made of the answers."""

    probe_interval_s: float = 2.0
    # One answer takes no longer, or it is a miss.
    probe_timeout_s: float = 2.0
    # Misses in a row that make a node DOWN.
    misses_max: int = 3
    # Good answers in a row that bring it back.
    good_min: int = 2
    # It stays down at least so long: the first for a first fall, doubling up to the second.
    damping_min_s: float = 1.0
    damping_max_s: float = 60.0
    # After so long without a fall the damping begins anew.
    damping_forget_s: float = 300.0


@dataclass
class _Watched:
    """What was last seen of a node."""

    is_down: bool = True
    # Nothing was heard of it yet: the first good answer is enough.
    is_met: bool = False
    misses: int = 0
    good: int = 0
    is_writable: bool = True
    busy_until_s: float = -math.inf
    damping_s: float = 0.0
    damped_until_s: float = -math.inf
    fell_s: float = -math.inf
    next_probe_s: float = -math.inf
    boot_id: str | None = None
    last_error: str | None = None
    # Set for good: REMOVED or ORPHANED.
    gone: NodeState | None = None
    logged: NodeState = NodeState.DOWN
    changes: int = 0
    since_s: float = field(default=-math.inf)


class Monitor:
    """The states of all data nodes. The caller holds one lock around it."""

    def __init__(self, clock: Clock, settings: MonitorSettings | None = None) -> None:
        self.settings = settings or MonitorSettings()
        # Called with the name after a node's state changed: only to wake whoever waits.
        self.on_change: Callable[[str], None] = lambda name: None
        self._clock = clock
        self._nodes: dict[str, _Watched] = {}

    def add(self, name: str) -> None:
        """Watch a node; one that was removed or orphaned begins anew."""
        known = self._nodes.get(name)
        if known is None or known.gone is not None:
            self._nodes[name] = _Watched(since_s=self._clock.monotonic_s())

    def remove(self, name: str) -> None:
        """Note that a node was forgotten."""
        self._leave(name, NodeState.REMOVED)

    def orphan(self, name: str) -> None:
        """Note that a node is no longer configured, although data waits for it."""
        self._leave(name, NodeState.ORPHANED)

    def _leave(self, name: str, gone: NodeState) -> None:
        self._nodes.setdefault(name, _Watched()).gone = gone
        self._tell(name)

    # ------------------------------------------------------------------- asking

    def state(self, name: str) -> NodeState:
        """Return the state of a node at this moment."""
        seen = self._nodes.get(name)
        if seen is None:
            return NodeState.REMOVED
        if seen.gone is not None:
            return seen.gone
        if seen.is_down:
            return NodeState.DOWN
        if seen.misses:
            return NodeState.SUSPECT
        is_free = seen.is_writable and self._clock.monotonic_s() >= seen.busy_until_s
        return NodeState.UP if is_free else NodeState.BUSY

    def healthy_nodes(self) -> frozenset[str]:
        """Return the names of the nodes that take parts now."""
        return frozenset(name for name in self._nodes if self.state(name) is NodeState.UP)

    def states(self) -> dict[str, NodeState]:
        """Return the state of every node."""
        return {name: self.state(name) for name in self._nodes}

    def next_probe_s(self, name: str) -> float:
        """Return when a node is to be asked next; never, if it is not ours any more."""
        seen = self._nodes.get(name)
        return math.inf if seen is None or seen.gone is not None else seen.next_probe_s

    def busy_until_s(self, name: str) -> float:
        """Return until when a node asked to be left alone."""
        return self._nodes[name].busy_until_s

    def last_error(self, name: str) -> str | None:
        """Return what the last miss said; None after a good answer."""
        return self._nodes[name].last_error

    def since_s(self, name: str) -> float:
        """Return since when a node has its state, by the monotonic clock."""
        return self._nodes[name].since_s

    def changes(self, name: str) -> int:
        """Return how often the state of a node changed."""
        return self._nodes[name].changes

    # ------------------------------------------------------------------- seeing

    def begin_probe(self, name: str) -> None:
        """Note that a node is being asked."""
        self._nodes[name].next_probe_s = self._clock.monotonic_s() + self.settings.probe_interval_s

    def good(self, name: str, *, is_writable: bool = True, boot_id: str | None = None) -> bool:
        """Note a good answer; return whether the node was started anew since the last."""
        seen = self._nodes[name]
        is_new = boot_id is not None and boot_id != seen.boot_id
        seen.boot_id = boot_id or seen.boot_id
        seen.misses, seen.last_error = 0, None
        seen.is_writable = is_writable
        seen.good += 1
        now_s = self._clock.monotonic_s()
        enough = seen.good >= self.settings.good_min and now_s >= seen.damped_until_s
        if seen.is_down and (enough or not seen.is_met):
            seen.is_down = False
        seen.is_met = True
        self._tell(name)
        return is_new

    def missed(self, name: str, error: str) -> None:
        """Note that a node did not answer, or not in time."""
        seen = self._nodes[name]
        seen.good, seen.last_error = 0, error
        seen.misses += 1
        if seen.misses >= self.settings.misses_max and not seen.is_down:
            self._fall(seen)
        self._tell(name)

    def busy(self, name: str, retry_after_s: float) -> None:
        """Note that a node is alive and asked to be left alone for a while."""
        seen = self._nodes[name]
        seen.misses = 0
        seen.busy_until_s = max(seen.busy_until_s, self._clock.monotonic_s() + retry_after_s)
        self._tell(name)

    def _fall(self, seen: _Watched) -> None:
        now_s, limits = self._clock.monotonic_s(), self.settings
        if now_s - seen.fell_s > limits.damping_forget_s:
            seen.damping_s = 0.0
        seen.damping_s = min(limits.damping_max_s, max(limits.damping_min_s, 2 * seen.damping_s))
        seen.is_down, seen.fell_s, seen.damped_until_s = True, now_s, now_s + seen.damping_s

    def _tell(self, name: str) -> None:
        """Log a change, once, and wake whoever waits for one."""
        seen, state = self._nodes[name], self.state(name)
        if state is seen.logged:
            return
        error = f": {seen.last_error}" if seen.last_error else ""
        level = logging.INFO if state in (NodeState.UP, NodeState.SUSPECT) else logging.WARNING
        log.log(level, "data node %r is %s, was %s%s", name, state, seen.logged, error)
        seen.logged, seen.changes, seen.since_s = state, seen.changes + 1, self._clock.monotonic_s()
        self.on_change(name)
