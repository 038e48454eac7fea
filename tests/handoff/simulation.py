"""A sender and its data nodes in one process and one thread, with time that is made up.

The sender is real: a quiver on a simulated disk, with its ledger, and everything of `handoff`. The
nodes and the network are made up: a call, what a node does with it, and the reply each happen at
their own time, and between them anything may happen: a node or the sender dies, the network is cut,
a disk is full, nodes come and go. A seed says all of it, and repeats it.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, Literal

from tests.handoff.clock import VirtualClock
from tests.quiver.machine import quiet

from holdfast.errors import HoldfastError, OwnerGone
from holdfast.handoff.calls import NodeCall, PartsReply, SendParts
from holdfast.handoff.fake import FakeNode, FakeTransport
from holdfast.handoff.membership import subscriber_of
from holdfast.handoff.monitor import MonitorSettings
from holdfast.handoff.prober import Prober
from holdfast.handoff.scheduler import MIB, SchedulerSettings
from holdfast.handoff.sender import Handoff, HandoffSettings
from holdfast.handoff.worker import Worker
from holdfast.quiver import Quiver, QuiverConfig, SubscriberOptions
from holdfast.quiver.base.config import LedgerConfig, RetentionConfig
from holdfast.replica.part import PartId, part_id
from holdfast.seam import Seam
from holdfast.seam.simulated import SimulatedCrash, SimulatedDisk

ROOT = PurePath("/q")
# A few parts may wait for a node; more are dropped if another owner holds them, or refused.
DROPS_COPIED = SubscriberOptions(max_segment_bytes=MIB, on_full="drop_copied")
GONE = OwnerGone("no answer in time", hint="wait")


def sim_config() -> QuiverConfig:
    """Return a configuration under which the quiver does nothing by itself."""
    return replace(
        quiet(),
        ledger=LedgerConfig(flush_interval_s=3600.0),
        retention=RetentionConfig(tick_s=3600.0, size_cap_bytes=64 * MIB),
        control=False,
    )


@dataclass
class Network:
    """How bad it is: the chance of each mishap, for each call."""

    lose_request: float = 0.05
    lose_answer: float = 0.05
    late_request: float = 0.03
    repeat: float = 0.05
    cut_short: float = 0.05


class Simulation:
    """One history."""

    def __init__(
        self,
        seed: int,
        nodes: int = 5,
        settings: HandoffSettings | None = None,
        network: Network | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.clock = VirtualClock()
        self.disk = SimulatedDisk()
        self.network = network or Network()
        self.settings = settings or HandoffSettings(
            replicas=self.random.choice([None, 1, 2, 3]),
            block_seqs=self.random.choice([10, 30, 1000]),
            scheduler=SchedulerSettings(permits=self.random.choice([1, 2, 4])),
            monitor=MonitorSettings(probe_interval_s=5.0),
            subscriber=self.random.choice([SubscriberOptions(), DROPS_COPIED]),
        )
        self.names = [chr(ord("a") + number) for number in range(nodes)]
        # Who answers under a name now, and who ever did so rightly.
        self.at: dict[str, FakeNode] = {}
        self.ever: dict[str, list[FakeNode]] = {}
        self.cut: set[str] = set()
        self.accepted: dict[int, bytes] = {}
        self.sealed: dict[PartId, dict[str, bytes]] = {}
        self.log: list[str] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._ids = itertools.count(1)
        self._life = 0
        self._written = 0
        for name in self.names:
            self.new_node(name)
        self.start()

    # ------------------------------------------------------------------- sender

    def start(self) -> None:
        """Begin a process of the sender."""
        self._life += 1
        seam = Seam(self.disk, self.clock, random.Random(self.random.random()))
        self.quiver = Quiver.open(ROOT, sim_config(), seam=seam)
        # Its thread would do things at moments that no seed says; `tick` does them.
        self.quiver._engine.keeper.close()
        self.handoff = Handoff(self.quiver, seam, self.settings)
        self.handoff.configure(self.names)

    def crash(self, how: Literal["kill", "power"]) -> None:
        """End the process, or the whole machine, and begin again."""
        self.say(f"sender: {how}")
        survivor = self.disk.kill() if how == "kill" else self.disk.power_loss(self.random)
        with contextlib.suppress(SimulatedCrash):
            self.quiver.close()
        self.disk = survivor
        self.start()

    def append(self, bundles: int = 1, size_bytes: int = 10) -> None:
        """Accept some bundles."""
        for _ in range(bundles):
            self._written += 1
            payload = f"{self._written}:".encode().ljust(size_bytes, b".")
            if self.quiver.refusal() is not None:
                self.run(1.0)  # as long as an append waits while other owners are asked
            receipt = self.quiver.append_raw([payload])
            self.accepted[receipt.seq] = payload

    def flush(self) -> None:
        """Seal what is open, and note what was sealed."""
        self.quiver.flush()
        self.note_sealed()

    def note_sealed(self) -> None:
        for segment in self.quiver.segments():
            part = part_id(segment.summary)
            if part not in self.sealed:
                entries = self.disk.list(segment.path)
                files = {one.name: self.disk.read(segment.path / one.name) for one in entries}
                self.sealed[part] = files

    def tick(self) -> None:
        """Do what the quiver's keeper does by time."""
        self.quiver._engine.ledger.sync()
        self.quiver._engine.retention.tick()

    # -------------------------------------------------------------------- nodes

    def new_node(self, name: str) -> FakeNode:
        """Put a node with an empty disk where a name leads to."""
        node = self.at[name] = FakeNode(f"node-{next(self._ids)}")
        self.ever.setdefault(name, []).append(node)
        return node

    # --------------------------------------------------------------------- time

    def say(self, what: str) -> None:
        self.log.append(f"{self.clock.now_s - 1000:9.3f} {what}")

    def at_s(self, when_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when_s, next(self._numbers), what))

    def run(self, seconds: float) -> None:
        """Let time pass, and everything happen that is due."""
        end_s = self.clock.now_s + seconds
        while True:
            self.drive()
            due_s = min([task.due_s() for _, task in self.tasks()], default=end_s)
            if self._events:
                due_s = min(due_s, self._events[0][0])
            if due_s > end_s:
                self.clock.now_s = end_s
                return
            self.clock.now_s = max(self.clock.now_s, due_s)
            while self._events and self._events[0][0] <= self.clock.now_s:
                heapq.heappop(self._events)[2]()

    def tasks(self) -> list[tuple[str, Any]]:
        return [
            *((name, worker) for name, worker in self.handoff.workers.items()),
            *((name, prober) for name, prober in self.handoff.probers.items()),
        ]

    def drive(self) -> None:
        """Let everybody begin what is due."""
        self.handoff.filter_orphans()
        for name, task in self.tasks():
            call = task.begin()
            if call is not None:
                self._begin(name, task, call)

    # ------------------------------------------------------------------ network

    def _begin(self, name: str, task: Worker | Prober, call: NodeCall) -> None:
        """Put a call on its way: it arrives, is done, and is answered, or not."""
        now_s, chance = self.clock.now_s, self.random.random
        deadline_s = now_s + call.timeout_s
        life, network, answered = self._life, self.network, [False]

        def finish(result: Any) -> None:
            if not answered[0]:
                answered[0] = True
                if life == self._life:
                    task.end(call, result)  # type: ignore[arg-type]

        self.at_s(deadline_s, lambda: finish(GONE))
        if chance() < network.lose_request:
            return
        takes_s = self.random.uniform(0.001, 0.1)
        if chance() < network.late_request:
            takes_s += call.timeout_s

        def arrive() -> None:
            if name in self.cut:
                return
            result = self._do(name, call, life)
            lost = chance() < network.lose_answer
            if not lost and result is not None:
                back_s = self.clock.now_s + self.random.uniform(0.001, 0.1)
                self.at_s(back_s, lambda: None if name in self.cut else finish(result[0]))

        self.at_s(now_s + takes_s, arrive)

    def _do(self, name: str, call: NodeCall, life: int) -> tuple[Any] | None:
        """Let a node do what it is asked; None if there is nobody to answer."""
        cuts = False
        if isinstance(call, SendParts):
            if life != self._life:
                return None
            cuts = self.random.random() < self.network.cut_short
            if cuts:
                # The node dies, or the connection, after some of the parts.
                call = call._replace(parts=call.parts[: self.random.randrange(len(call.parts))])
        repeats = int(self.random.random() < self.network.repeat)
        transport = FakeTransport(lambda: self.at.get(name), repeats=repeats)
        try:
            result = call.run(transport)
        except HoldfastError as error:
            return (error,)
        if cuts and not (isinstance(result, PartsReply) and result.answers):
            return (GONE,)
        return (result,)

    # ------------------------------------------------------------------ settling

    def settle(self) -> None:
        """Mend everything, and let time pass until nothing moves any more."""
        self.say("everything is mended")
        self.cut.clear()
        self.network = Network(0, 0, 0, 0, 0)
        for name in (None, *self.handoff.workers):
            self.handoff.scheduler.set_rate(None, name)
        for node in self.at.values():
            node.capacity_bytes = None
            if not node.is_up:
                node.restart()
        self.flush()
        for _ in range(200):
            self.tick()
            for worker in self.handoff.workers.values():
                worker.release()
                if worker.reader.subscriber.paused:
                    worker.reader.resume()
            self.run(120.0)
            if not self.waiting():
                return
        raise AssertionError(f"it does not settle: {self.waiting()}")

    def waiting(self) -> dict[str, list[tuple[int, int]]]:
        """Return what still waits for nodes, held parts apart."""
        found = {}
        for name, worker in self.handoff.workers.items():
            ranges = [
                (segment.summary.first_seq, segment.summary.last_seq)
                for segment in worker.reader.waiting()
                if part_id(segment.summary) not in worker.held
            ]
            if ranges:
                found[name] = ranges
        return found

    # ------------------------------------------------------------------ checking

    def problems(self) -> list[str]:
        """Return where the promise is broken: each event at each owner once, or lost, or held."""
        found = []
        for name, nodes in self.ever.items():
            for node in nodes:
                found += _twice(name, node)
                found += self._different(name, node)
        for name in self.handoff.membership.bound:
            found += self._missing(name)
        return found

    def _different(self, name: str, node: FakeNode) -> list[str]:
        return [
            f"{name}: {one.part.id} is not what was sealed"
            for one in node.adopted
            if self.sealed.get(one.part.id) != one.files
        ]

    def _missing(self, name: str) -> list[str]:
        subscriber = self.quiver.subscriber(subscriber_of(name))
        worker = self.handoff.workers.get(name)
        held = [] if worker is None else list(worker.held)
        there = [part for node in self.ever[name] for part in node.history]
        lost = [(first, end) for first, end, _ in subscriber.losses]
        owners, found = self.handoff.membership.owners, []
        for seq in self.accepted:
            is_there = any(part.first_seq <= seq <= part.last_seq for part in there)
            is_lost = any(first <= seq < end for first, end in lost)
            is_held = any(part.first_seq <= seq <= part.last_seq for part in held)
            is_owner = name in owners.owners(self.quiver.quiver_id, seq, seq + 1)
            waits = seq not in subscriber.resolved
            if not is_owner or seq < subscriber.start_seq:
                continue
            # What was dropped for a node may be there: it took it, and could not say so.
            is_unheard = is_there and is_lost and subscriber.options.on_full == "drop_copied"
            if is_unheard or (waits and worker is None):
                continue
            if is_there + is_lost + is_held != 1:
                found.append(f"{name}: {seq} there {is_there}, lost {is_lost}, held {is_held}")
        return found


def _twice(name: str, node: FakeNode) -> list[str]:
    """Return which seqs a node adopted more than once."""
    found, end = [], -1
    for part in sorted(node.history):
        if part.first_seq <= end:
            found.append(f"{name}: {part} was applied twice, or overlaps another")
        end = part.last_seq
    return found
