"""Sync points: has everything that was accepted before a moment reached every data node?

A sync point is a text that says what was accepted by then, and which nodes there were; nothing is
stored for it. It counts accepted bundles, also those that are not sealed yet, and all nodes that
are known, also those that are down, orphaned or draining: a promise about some would be none.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.errors import BadInput, WrongQuiver
from holdfast.handoff.membership import subscriber_of
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.quiver.quiver import Quiver


class SyncPoint(NamedTuple):
    """A moment: all seqs before `end_seq`, for these nodes."""

    quiver_id: str
    end_seq: int
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        """Return it as a text that can be kept anywhere."""
        fields = [self.quiver_id, self.end_seq, list(self.nodes)]
        return urlsafe_b64encode(json.dumps(fields, separators=(",", ":")).encode()).decode()

    @classmethod
    def parse(cls, text: str) -> SyncPoint:
        """Return what `str` gave; raise `BadInput` for anything else."""
        try:
            match json.loads(urlsafe_b64decode(text.encode())):
                case [str(quiver_id), int(end_seq), [*nodes]] if end_seq >= 0:
                    return cls(quiver_id, end_seq, tuple(str(name) for name in nodes))
        except ValueError:
            pass
        raise BadInput(f"{text[:40]!r} is not a sync point", hint="give what `create` printed")


@dataclass(frozen=True)
class SyncPointReached:
    """How far the nodes are with a sync point."""

    # By node: seqs before the point that still wait for it.
    waiting: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    # By node: seqs before the point that it lost (dropped, expired, damaged) and has not.
    lost: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    # Nodes that were forgotten since.
    forgotten: tuple[str, ...] = ()

    @property
    def is_reached(self) -> bool:
        """Whether nothing before the point waits any more."""
        return not self.waiting

    @property
    def is_complete(self) -> bool:
        """Whether every node of the point got everything before it that it owns."""
        return self.is_reached and not self.lost and not self.forgotten


def create(quiver: Quiver, nodes: tuple[str, ...]) -> SyncPoint:
    """Return the sync point of this moment."""
    return SyncPoint(quiver.quiver_id, quiver.end_seq, nodes)


def look(quiver: Quiver, point: SyncPoint, seen: Callable[[str], IntervalSet]) -> SyncPointReached:
    """Return how far the nodes are; `seen` says what a node has, whatever the ledger lost to it."""
    if point.quiver_id != quiver.quiver_id:
        raise WrongQuiver(
            f"the sync point is of quiver {point.quiver_id}, this is {quiver.quiver_id}",
            hint="create another one",
            path=str(quiver.directory),
        )
    waiting, lost, forgotten = {}, {}, []
    for name in point.nodes:
        if subscriber_of(name) not in quiver.subscribers():
            forgotten.append(name)
            continue
        subscriber = quiver.subscriber(subscriber_of(name))
        # Numbers that no bundle has are holes, too, until a part behind them is resolved.
        seqs = quiver.waiting(subscriber.name, from_seq=subscriber.high_water_seq, limit=1)
        if seqs and seqs[0] < point.end_seq:
            waiting[name] = list(subscriber.resolved.holes(subscriber.start_seq, point.end_seq))
        losses = IntervalSet(
            (first, min(end, point.end_seq))
            for first, end, _ in subscriber.losses
            if first < point.end_seq
        ).without(seen(name))
        if losses:
            lost[name] = list(losses)
    return SyncPointReached(waiting, lost, tuple(forgotten))
