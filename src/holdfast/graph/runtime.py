"""The gateway: opens the quivers, delivers what they hold, and then lets receivers fill them.

    start     quivers and dead letters (replaying what a crash left), then destinations are made
              and pipelines registered, so that everyone is known when the first event is accepted,
              then Flight is served and receivers listen; only when nothing can fail any more is
              the first event sent
    stop      receivers and destinations, within one deadline; then Flight and the quivers are
              closed

Whatever is accepted is on disk before its sender hears of it, so a stop that hurries, and a kill,
lose nothing; a stop that has time sends what is under way and leaves nothing to replay.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.dataflow.driver.state_dir import StateDir
from holdfast.dataflow.driver.wire import Access
from holdfast.dead_letters.queue import DeadLetterQueue
from holdfast.deliver.context import DeliveryContext, Taps
from holdfast.deliver.destination import Destination
from holdfast.deliver.direct import DirectDestination, DirectInlet
from holdfast.deliver.redrive import SendUnits, serve_replay
from holdfast.deliver.statistics import Losses
from holdfast.errors import BadInput, HoldfastError
from holdfast.graph.delivery import chain_of, delivery_context
from holdfast.graph.model import Graph, Node
from holdfast.graph.node_senders import NodeSenders
from holdfast.graph.open_quivers import HANDLERS, OpenQuiver, OpenQuivers, Outlet, plans_of
from holdfast.graph.paths import (
    DestinationPlan,
    ProcessorSteps,
    QuiverPlan,
    dead_letters_directory,
    direct_plan,
    plan,
    readers,
    state_dir,
)
from holdfast.graph.serving import Serving, is_served
from holdfast.graph.statistics import (
    DestinationFigures,
    GatewayState,
    GatewayStatistics,
    HandoffFigures,
    StoredFigures,
    resident_bytes,
)
from holdfast.graph.worker_quivers import WorkerQuivers
from holdfast.handoff.membership import SUBSCRIBER_PREFIX
from holdfast.handoff.runner import HandoffRunner
from holdfast.quiver import Position
from holdfast.receive.before_buffer import BeforeBuffer
from holdfast.receive.receiver import Inlet, LeadThrough, Receiver, ReceiverContext
from holdfast.seam import Seam

# How often the cap is divided again among a quiver and those that are being drained beside it, and
# is looked whether a destination lost something.
KEEP_HOUSE_S = 5.0

log = logging.getLogger("holdfast.graph")


class Gateway:
    """A graph in this process. One event loop uses it."""

    def __init__(self, graph: Graph, seam: Seam | None = None, *, worker: int = 0) -> None:
        self.graph = graph
        self.worker = worker
        self.state: GatewayState = "new"
        self._seam = seam or Seam()
        self._started_s = self._seam.clock.monotonic_s()
        self.taps = Taps(self._seam.clock)
        self._quivers = OpenQuivers()
        self._serving: Serving | None = None
        self._opened = ExitStack()
        # Whether all quivers are open.
        self._is_open = False
        self._housekeeping: asyncio.Task[None] | None = None
        # How many events waited for each destination when it was stopped; None: not counted.
        self.left_events: dict[str, int] | None = None

    # ------------------------------------------------------------------ starting

    async def start(self) -> None:
        """Open everything and go; raises a `HoldfastError` and leaves nothing open if it cannot."""
        self.state = "replaying"
        try:
            await _to_its_end(self._open)
            await _to_its_end(self._make_destinations)
            self._is_open = True
            await _to_its_end(self._serve)
            self._tell_policies()
            for quiver in self._quivers:
                inlet = quiver.store.quiver
                await self._start_receivers(quiver.plan, inlet, quiver.receivers)
            await self._start_direct()
        except BaseException:
            await self.stop(0.0)
            raise
        for outlet in self._quivers.outlets:
            outlet.destination.start()
        for senders in self._quivers.senders:
            senders.start()
        self._housekeeping = asyncio.create_task(self._keep_house())
        self.state = "running"

    def _open(self) -> None:
        """Open every quiver, replaying what a crash left; blocks."""
        workers = self.graph.settings.workers
        for one in plan(self.graph):
            config = one.config.as_config()
            store = WorkerQuivers.open(one.directory, config, self.worker, workers, self._seam)
            self._opened.callback(store.close)
            self._quivers.quivers.append(OpenQuiver(one, store))
        letters = DeadLetterQueue.open(
            self._dead_letters_directory(), self.graph.settings.dead_letters, seam=self._seam
        )
        self._quivers.dead_letters = letters
        self._opened.callback(letters.close)

    def _dead_letters_directory(self) -> Path:
        """Return where this worker keeps its dead letters: a quiver has one owner only."""
        directory = dead_letters_directory(self.graph)
        if self.worker == 0:
            return directory
        return directory.with_name(f"{directory.name}-{self.worker:02d}")

    def _make_destinations(self) -> None:
        """Attach every subscriber before anything is received: so it gets the first events, too."""
        # One by one: if a later one cannot be made, `stop` ends those that were.
        for quiver in self._quivers:
            for one in quiver.plan.destinations:
                quiver.outlets += self._outlets_of(quiver.plan.name, one)
            if quiver.plan.to_nodes is not None:
                quiver.senders = self._senders_of(quiver, quiver.plan.to_nodes)
        for name, node in self.graph.handlers.items():
            handler = DestinationPlan(name, (node,))
            self._quivers.handlers += self._outlets_of(HANDLERS, handler)
        direct = direct_plan(self.graph)
        for one in () if direct is None else direct.destinations:
            context = self._context_of(one)
            self._quivers.direct.append(DirectDestination(context))
        self._register_pipelines()
        self._tell_leftovers()
        if self.worker == 0:
            self._tell_former_workers()
            self._tell_former_quivers()

    def _register_pipelines(self) -> None:
        """Keep events for the pipelines of the file from the first one on: Spark starts slowly."""
        if not self.graph.settings.spark.run:
            return
        for reader in readers(self.graph):
            is_closed = StateDir(state_dir(self.graph, reader.pipeline)).is_closed
            for core in self._quivers.find(reader.quiver).store.cores:
                is_known = reader.subscriber in core.quiver.subscribers()
                if is_known and is_closed:
                    core.quiver.unregister(reader.subscriber, reason="the pipeline is closed")
                elif not is_known and not is_closed:
                    core.quiver.register(reader.subscriber, start=reader.start)

    def _serve(self) -> None:
        """Serve the quivers to pipelines and other machines, if anybody may ask for them."""
        if not is_served(self.graph):
            return
        stores = {one.plan.name: one.store for one in self._quivers}
        self._serving = serving = Serving(self.graph, stores, self.worker, self._seam)
        self._opened.callback(serving.close)
        log.info("flight: listens on %s", serving.location)

    def _outlets_of(self, quiver: str, one: DestinationPlan) -> list[Outlet]:
        """Return what delivers to a destination: one per quiver that may hold its events."""
        context = self._context_of(one)
        if quiver == HANDLERS:
            return [Outlet(one, 0, Destination(context, self._quivers.letters.rejected))]
        cores = self._quivers.find(quiver).store.cores
        return [Outlet(one, core.core_id, Destination(context, core.quiver)) for core in cores]

    def _context_of(self, one: DestinationPlan) -> DeliveryContext:
        folders = self.graph.base_dir, self.graph.data_dir
        return delivery_context(one, self._quivers.letters, self.taps, self._seam, *folders)

    def _senders_of(self, quiver: OpenQuiver, node: Node) -> NodeSenders:
        workers = self.graph.settings.workers
        return NodeSenders(node, quiver.store, workers, self._seam, self.graph.base_dir)

    def _tell_leftovers(self) -> None:
        """Say which subscribers hold data back without being in the graph."""
        self._quivers.letters.keep_only(self.graph.handlers.keys())
        pipelines = {reader.subscriber for reader in readers(self.graph)}
        for quiver in self._quivers:
            known = {one.name for one in quiver.plan.destinations} | pipelines
            for name in sorted(set(quiver.store.quiver.subscribers()) - known):
                if quiver.senders is not None and name.startswith(SUBSCRIBER_PREFIX):
                    continue  # they tell of nodes that are gone themselves
                log.warning(
                    "%s is no longer a destination of %s, and what waits for it is kept (until "
                    "retention.orphan_ttl, if that is set); drop it with "
                    "`holdfast quiver drop-subscriber %s %s`",
                    name,
                    quiver.plan.name,
                    quiver.store.main.engine.root,
                    name,
                )

    def _tell_former_workers(self) -> None:
        """Say where dead letters lie that nobody counts or sends since there are fewer workers."""
        directory = dead_letters_directory(self.graph)
        for beside in sorted(directory.parent.iterdir()):
            stem, _, number = beside.name.rpartition("-")
            if stem != directory.name or not number.isdecimal():
                continue
            if int(number) >= self.graph.settings.workers:
                log.warning(
                    "the dead letters of a former worker are in %s; `holdfast dlq ls --worker %d` "
                    "shows them, and a replay needs more than %d workers again",
                    beside,
                    int(number),
                    int(number),
                )

    def _tell_former_quivers(self) -> None:
        """Say where events lie that nobody delivers, since the file names no quiver there."""
        cores = sorted(path.parent for path in self.graph.data_dir.glob("*/core-*/FORMAT"))
        known = {one.plan.directory for one in self._quivers}
        for core in cores:
            if core.parent not in known:
                log.warning(
                    "%s is no quiver of the file: what waits in it is not delivered; "
                    "`holdfast quiver show %s` tells what that is",
                    core,
                    core,
                )

    def _tell_policies(self) -> None:
        """Say for every destination what happens at its limits, before anything does."""
        for outlet in self._quivers.outlets:
            log.info("destination %s: events wait for %s", outlet.name, outlet.plan.delivery.limits)

    async def _start_direct(self) -> None:
        """Begin to receive and deliver without keeping anything, if the file asks for that."""
        one = direct_plan(self.graph)
        if one is None:
            return
        log.warning(
            "persistence is off: nothing is kept, and receivers answer when %s have acknowledged",
            ", ".join(to.name for to in one.destinations),
        )
        for direct in self._quivers.direct:
            await direct.start()
        inlet = DirectInlet(self._quivers.direct, self._seam.clock)
        await self._start_receivers(one, inlet, self._quivers.direct_receivers)

    async def _start_receivers(
        self, filled: QuiverPlan, inlet: Inlet, receivers: dict[str, Receiver]
    ) -> None:
        """Listen, last of all: what is accepted from here on has to be stored and delivered."""
        for node in filled.receivers:
            context = ReceiverContext(
                name=node.name,
                quiver=inlet,
                dead_letters=self._quivers.letters,
                seam=self._seam,
                base_dir=self.graph.base_dir,
                reuse_port=self.graph.settings.workers > 1,
                before=self._before(node.name, filled.before.get(node.name, ())),
            )
            receiver: Receiver = node.component.code.make(node.config, context)
            receivers[node.name] = receiver
            await receiver.start()
            log.info("receiver %s: listens on %s", node.name, ", ".join(receiver.addresses))

    def _before(self, receiver: str, steps: ProcessorSteps) -> LeadThrough | None:
        """Return the processors between a receiver and its quiver."""
        if not steps:
            return None
        names = ", ".join(step.node.name for step in steps)
        log.warning("receiver %s: %s before the buffer: what is dropped is lost", receiver, names)
        return BeforeBuffer(receiver, chain_of(steps).process, self._seam.clock).passed

    async def _keep_house(self) -> None:
        """Log losses, and give quivers that drain a new share of the cap, now and then.

        A count that fails must not end this: the next round may succeed.
        """
        losses = Losses()
        while True:
            try:
                await self._look_for(losses)
            except (HoldfastError, OSError) as error:
                log.warning("cannot count what destinations lost: %s", error)
            await asyncio.sleep(KEEP_HOUSE_S)
            for quiver in self._quivers:
                if quiver.store.adopted:
                    quiver.store.share_cap()

    async def _look_for(self, losses: Losses) -> None:
        """Log what destinations have lost since the last look."""
        now_s, stored = self._seam.clock.monotonic_s(), await self._count_stored()
        looked = [
            (one.quiver, one.core_id, one.name, one.figures.lost_events)
            for one in self._figures(stored)
            if one.quiver != HANDLERS
        ]
        looked += [
            (quiver, core_id, one.name, one.lost_events)
            for quiver, core_id, one in stored.of_data_nodes()
        ]
        for quiver, core_id, name, lost_events in looked:
            cores = self._quivers.find(quiver).store.cores
            root = next(core.engine.root for core in cores if core.core_id == core_id)
            losses.look((quiver, core_id, name), name, lost_events, root, now_s)

    # ------------------------------------------------------------------ stopping

    async def stop(
        self, drain_s: float | None = None, *, others: Iterable[Awaitable[None]] = ()
    ) -> None:
        """Stop receivers and destinations, each within `drain_s`; then close the quivers.

        All at once: a slow client must not use up the time of deliveries, which would then be cut
        off in the middle and be sent again after the next start. What is accepted meanwhile waits.
        `others` are waited for, too, before anything is closed: drivers that still read.
        Cancelled, it hurries: what is under way is left, and the quivers are closed at once.
        """
        if self.state == "stopped":
            return
        if drain_s is None:
            drain_s = self.graph.settings.drain
        self.state = "stopping"
        if self._housekeeping is not None:
            self._housekeeping.cancel()
        try:
            running: list[Receiver | Destination | NodeSenders] = [
                *self._quivers.receivers.values(),
                *(outlet.destination for outlet in self._quivers.outlets),
                *self._quivers.senders,
            ]
            await _all([*(one.stop(drain_s) for one in running), *others])
            await _all(direct.stop(drain_s) for direct in self._quivers.direct)
            self.left_events = await self.lag_events()
        except asyncio.CancelledError:
            await _all(outlet.destination.stop(0.0) for outlet in self._quivers.outlets)
            await _all(senders.stop(0.0) for senders in self._quivers.senders)
            raise
        finally:
            self._is_open = False
            # A cancelled stop still closes: that is what "at once" leaves to do.
            await asyncio.shield(asyncio.to_thread(self._opened.close))
            self.state = "stopped"

    # ------------------------------------------------------------------ changing

    def running(self) -> list[QuiverPlan]:
        """Return what runs now, with the destinations of this moment."""
        return [one.running for one in self._quivers]

    def running_handlers(self) -> list[DestinationPlan]:
        """Return the handlers of rejected events that run now."""
        return plans_of(self._quivers.handlers)

    async def add_destination(self, quiver: str, one: DestinationPlan) -> None:
        """Begin to deliver to a destination, where it was if it is known, else from the oldest."""
        outlets = await asyncio.to_thread(self._outlets_of, quiver, one)
        for outlet in outlets:
            outlet.destination.start()
        self._quivers.outlets_of(quiver).extend(outlets)

    async def remove_destination(self, quiver: str, name: str) -> None:
        """Stop delivering to a destination; what waits for it is kept."""
        held = self._quivers.outlets_of(quiver)
        leaving = [outlet for outlet in held if outlet.name == name]
        await _all(outlet.destination.stop(self.graph.settings.drain) for outlet in leaving)
        held[:] = [outlet for outlet in held if outlet.name != name]

    async def send_to_nodes(self, quiver: str, node: Node | None) -> None:
        """Send a quiver's segments to other data nodes, or to none; what waits is kept."""
        sent = self._quivers.find(quiver)
        senders = sent.senders
        if senders is not None and node is not None and senders.can_become(node):
            await asyncio.to_thread(senders.become, node)
            return
        if senders is not None:
            await senders.stop(self.graph.settings.drain)
            sent.senders = None
        if node is not None:
            sent.senders = await asyncio.to_thread(self._senders_of, sent, node)
            sent.senders.start()

    def reload_receiver(self, quiver: str, node: Node) -> bool:
        """Give a receiver new settings; whether it could take them without a restart."""
        filled = self._quivers.find(quiver)
        take = getattr(filled.receivers.get(node.name), "reload", None)
        if take is None or not take(node.config):
            return False
        receivers = [node if one.name == node.name else one for one in filled.plan.receivers]
        filled.plan = replace(filled.plan, receivers=tuple(receivers))
        return True

    # ----------------------------------------------------------------- operating

    @property
    def addresses(self) -> dict[str, list[str]]:
        """Where each receiver listens."""
        return {name: one.addresses for name, one in self._quivers.receivers.items()}

    @property
    def handoffs(self) -> Mapping[str, tuple[HandoffRunner, ...]]:
        """The senders to data nodes by exporter, one for each quiver of this process."""
        return {one.node.name: one.runners for one in self._quivers.senders}

    @property
    def access(self) -> Access | None:
        """How pipelines reach the quivers; None if they are not served."""
        return None if self._serving is None else self._serving.access

    async def statistics(self) -> GatewayStatistics:
        """Return a picture of this moment."""
        stored = await self._count_stored()
        return GatewayStatistics(
            worker=self.worker,
            state=self.state,
            uptime_s=self._seam.clock.monotonic_s() - self._started_s,
            quivers=stored.quivers,
            receivers={name: one.statistics() for name, one in self._quivers.receivers.items()},
            destinations=tuple(self._figures(stored)),
            dead_letters=stored.dead_letters,
            refusing=stored.refusing,
            resident_bytes=resident_bytes(),
            handoffs=await asyncio.to_thread(self._backlogs),
            cpu_seconds=time.process_time(),
            flight=None if self._serving is None else self._serving.statistics(),
        )

    async def _count_stored(self) -> StoredFigures:
        """Count what waits; that takes locks and time, so not on the loop."""
        if not self._is_open:
            return StoredFigures({}, None, {})
        return await asyncio.to_thread(self._quivers.stored)

    def _backlogs(self) -> tuple[HandoffFigures, ...]:
        return tuple(self._quivers.backlogs(self._seam.clock.wall_ns()))

    def _figures(self, stored: StoredFigures) -> Iterable[DestinationFigures]:
        return self._quivers.figures(stored) if self._is_open else ()

    async def not_ready(self) -> list[str]:
        """Return why senders should not be sent here right now; empty if they should."""
        if self.state != "running":
            return [f"the gateway is {self.state}"]
        refusing = await asyncio.to_thread(self._quivers.refusing)
        return [f"{name} refuses: {why}" for name, why in refusing.items()]

    async def lag_events(self) -> dict[str, int]:
        """Return how many events wait for each destination."""
        found: Counter[str] = Counter()
        stored = await self._count_stored()
        for one in self._figures(stored):
            found[one.name] += one.figures.lag_events
        for quiver, _, account in stored.of_data_nodes():
            senders = self._quivers.find(quiver).senders
            if senders is not None:
                node = account.name.removeprefix(SUBSCRIBER_PREFIX)
                found[f"{senders.node.name}/{node}"] += account.pending.events
        return found

    def pause(self, name: str) -> None:
        """Deliver nothing to a destination until `resume`; events wait for it."""
        for outlet in self._quivers.outlets_to(name):
            outlet.destination.pause()

    def resume(self, name: str) -> None:
        """Go on delivering."""
        for outlet in self._quivers.outlets_to(name):
            outlet.destination.resume()

    async def skip(self, name: str, position: Position, reason: str) -> None:
        """Make a dead letter of the event that holds a destination up, and continue behind it."""
        outlets = self._quivers.outlets_to(name)
        found = [one for one in outlets if one.destination.holds(position)]
        if len(found) > 1:
            cores = ", ".join(str(one.core_id) for one in found)
            raise BadInput(
                f"event {position.seq}/{position.row} holds {name!r} up in cores {cores}",
                hint="fix what fails; it is not clear which of them is meant",
            )
        if not found or not await found[0].destination.skip(position, reason):
            held = [one.destination.statistics().held for one in outlets]
            named = ", ".join(f"{one.seq}/{one.row}" for one in held if one is not None)
            raise BadInput(
                f"event {position.seq}/{position.row} does not hold {name!r} up",
                hint=f"held now, as `holdfast destination ls` shows: {named or 'nothing'}",
            )

    def tap(self, name: str, after: int) -> dict[str, Any]:
        """Return samples of the events on their way to a destination."""
        if all(one.name != name for one in self._quivers.direct):
            self._quivers.outlets_to(name)
        return dict(self.taps.read(name, after))

    async def replay_dead_letters(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send undelivered letters of one destination once more, beside its own loop."""
        letters = self._quivers.dead_letters
        if letters is None:
            raise BadInput("the gateway is not open yet", hint="try again in a moment")

        def sender_to(name: str) -> SendUnits | None:
            running: list[Destination | DirectDestination] = [*self._quivers.direct]
            running += [outlet.destination for outlet in self._quivers.outlets]
            return next((one.redrive for one in running if one.name == name), None)

        return await serve_replay(letters, request, sender_to)


async def _to_its_end(work: Callable[[], None]) -> None:
    """Do something in a thread, and do not go away before it is over, also when cancelled."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


async def _all(work: Iterable[Awaitable[None]]) -> None:
    """Run all of these at once and to their end; a failure of one is logged, and stops no other."""
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, Exception):
            log.error("something did not stop cleanly", exc_info=outcome)
