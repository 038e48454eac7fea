"""What a gateway tells of itself: plain records, of which metrics and `status` are made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from holdfast.dead_letters.queue import DeadLettersStatistics
from holdfast.deliver.statistics import DestinationStatistics
from holdfast.handoff.membership import SUBSCRIBER_PREFIX
from holdfast.handoff.statistics import BacklogStatistics
from holdfast.quiver import Statistics
from holdfast.quiver.statistics import SubscriberStatistics
from holdfast.receive.receiver import ReceiverStatistics

if TYPE_CHECKING:  # a gateway that serves nobody has no Flight
    from holdfast.remote.server import ServerStatistics

GatewayState = Literal["new", "replaying", "running", "stopping", "stopped"]


@dataclass(frozen=True)
class DestinationFigures:
    """One destination of one quiver."""

    name: str
    quiver: str
    core_id: int
    figures: DestinationStatistics


@dataclass(frozen=True)
class HandoffFigures:
    """One data node, as the sender of one quiver sees it."""

    # The exporter in the graph file.
    name: str
    quiver: str
    core_id: int
    backlog: BacklogStatistics


@dataclass(frozen=True)
class GatewayStatistics:
    """A moment's picture of one gateway process."""

    worker: int
    state: GatewayState
    uptime_s: float
    quivers: dict[str, tuple[Statistics, ...]]
    receivers: dict[str, ReceiverStatistics]
    destinations: tuple[DestinationFigures, ...]
    dead_letters: DeadLettersStatistics | None
    # Why it would refuse an event right now, by quiver.
    refusing: dict[str, str]
    # Memory and processor time of the process.
    resident_bytes: int
    cpu_seconds: float
    flight: ServerStatistics | None = None
    handoffs: tuple[HandoffFigures, ...] = ()


@dataclass(frozen=True)
class StoredFigures:
    """The part of the statistics that is counted off the loop."""

    quivers: dict[str, tuple[Statistics, ...]]
    dead_letters: DeadLettersStatistics | None
    refusing: dict[str, str]
    rejected: Statistics | None = None

    def of_data_nodes(self) -> Iterator[tuple[str, int, SubscriberStatistics]]:
        """Yield quiver, core and account of everything that waits for a data node."""
        for quiver, cores in self.quivers.items():
            for core in cores:
                for one in core.subscribers:
                    if one.name.startswith(SUBSCRIBER_PREFIX):
                        yield quiver, core.core_id, one


def resident_bytes() -> int:
    """Return the memory of this process; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0  # not Linux
