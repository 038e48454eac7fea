"""The quivers of a gateway while they are open: what fills each, what empties it, how it stands.

`runtime.py` opens them and starts and stops what is connected; whatever is asked of them in between
is answered here. Counting takes the locks of quivers, and time: never on the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from holdfast.dead_letters.queue import DeadLetterQueue
from holdfast.deliver.destination import Destination
from holdfast.deliver.direct import DirectDestination
from holdfast.errors import BadInput
from holdfast.graph.node_senders import NodeSenders
from holdfast.graph.paths import DestinationPlan, QuiverPlan
from holdfast.graph.statistics import DestinationFigures, HandoffFigures, StoredFigures
from holdfast.graph.worker_quivers import WorkerQuivers
from holdfast.handoff.statistics import backlog_statistics
from holdfast.receive.receiver import Receiver

# Who does not take this much is not ready: an ordinary event, or a small batch of them.
ORDINARY_BYTES = 64 * 1024

# The name of the dead letters where others have the name of a quiver.
HANDLERS = "dead_letters"
# And of what goes by without being kept.
DIRECT = "none"


@dataclass(frozen=True)
class Outlet:
    """A destination of one quiver, and the plan it was made from."""

    plan: DestinationPlan
    core_id: int
    destination: Destination

    @property
    def name(self) -> str:
        """The name of the destination."""
        return self.plan.name


@dataclass
class OpenQuiver:
    """A quiver of the graph while it is open, and what is connected to it."""

    plan: QuiverPlan
    store: WorkerQuivers
    outlets: list[Outlet] = field(default_factory=list)
    receivers: dict[str, Receiver] = field(default_factory=dict)
    # What takes its segments to data nodes.
    senders: NodeSenders | None = None

    @property
    def running(self) -> QuiverPlan:
        """What runs now, with the destinations of this moment."""
        return replace(
            self.plan,
            destinations=tuple(plans_of(self.outlets)),
            to_nodes=None if self.senders is None else self.senders.node,
        )


class OpenQuivers:
    """All of them, and the dead letters with their handlers."""

    def __init__(self) -> None:
        self.quivers: list[OpenQuiver] = []
        # What delivers rejected events.
        self.handlers: list[Outlet] = []
        self.dead_letters: DeadLetterQueue | None = None
        # Where nothing is kept: what delivers, and what listens.
        self.direct: list[DirectDestination] = []
        self.direct_receivers: dict[str, Receiver] = {}

    def __iter__(self) -> Iterator[OpenQuiver]:
        return iter(self.quivers)

    @property
    def letters(self) -> DeadLetterQueue:
        """The dead letters, which are open."""
        assert self.dead_letters is not None, "BUG: not open"
        return self.dead_letters

    def find(self, quiver: str) -> OpenQuiver:
        """Return the quiver of a name."""
        return next(one for one in self.quivers if one.plan.name == quiver)

    @property
    def receivers(self) -> dict[str, Receiver]:
        """All that listens, by name."""
        kept = {name: one for quiver in self.quivers for name, one in quiver.receivers.items()}
        return kept | self.direct_receivers

    @property
    def outlets(self) -> list[Outlet]:
        """All that delivers, the handlers of rejected events included."""
        return [*(outlet for quiver in self.quivers for outlet in quiver.outlets), *self.handlers]

    def outlets_of(self, quiver: str) -> list[Outlet]:
        """Return those of a quiver, or of the dead letters, to be changed."""
        return self.handlers if quiver == HANDLERS else self.find(quiver).outlets

    def outlets_to(self, name: str) -> list[Outlet]:
        """Return the outlets of a destination: one for each quiver that may hold its events."""
        found = [outlet for outlet in self.outlets if outlet.name == name]
        if not found:
            known = ", ".join(sorted({outlet.name for outlet in self.outlets}))
            raise BadInput(
                f"there is no destination {name!r}"[:200],
                hint=f"destinations of this gateway: {known}",
            )
        return found

    @property
    def senders(self) -> list[NodeSenders]:
        """What sends to data nodes."""
        return [one.senders for one in self.quivers if one.senders is not None]

    # ----------------------------------------------------------------- counting

    def stored(self) -> StoredFigures:
        """Count what waits."""
        return StoredFigures(
            {one.plan.name: one.store.statistics() for one in self.quivers},
            self.letters.statistics(),
            self.refusing(),
            self.letters.rejected.statistics() if self.handlers else None,
        )

    def figures(self, stored: StoredFigures) -> Iterator[DestinationFigures]:
        """Yield what every destination is doing, from one count of each quiver for all of them."""
        for quiver in self.quivers:
            name = quiver.plan.name
            counted = {one.core_id: one for one in stored.quivers[name]}
            for one in quiver.outlets:
                figures = one.destination.statistics(counted.get(one.core_id))
                yield DestinationFigures(one.name, name, one.core_id, figures)
        for direct in self.direct:
            yield DestinationFigures(direct.name, DIRECT, 0, direct.statistics())
        for one in self.handlers:
            figures = one.destination.statistics(stored.rejected)
            yield DestinationFigures(one.name, HANDLERS, 0, figures)

    def backlogs(self, now_ns: int) -> Iterator[HandoffFigures]:
        """Yield what waits for every data node, part by part."""
        for quiver in self.quivers:
            for runner in () if quiver.senders is None else quiver.senders.runners:
                for one in backlog_statistics(runner.handoff, now_ns):
                    yield HandoffFigures(runner.name, quiver.plan.name, runner.core_id, one)

    def refusing(self) -> dict[str, str]:
        """Ask each quiver whether it would take an ordinary event, without appending one."""
        found = {}
        for one in self.quivers:
            refusal = one.store.quiver.refusal(ORDINARY_BYTES)
            if refusal is not None:
                found[one.plan.name] = refusal.message
        return found


def plans_of(outlets: Iterable[Outlet]) -> list[DestinationPlan]:
    """Return the destinations of outlets; several of one name deliver to the same."""
    return list({outlet.name: outlet.plan for outlet in outlets}.values())
