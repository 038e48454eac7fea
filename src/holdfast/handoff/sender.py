"""The sender: a worker and a prober for each data node, and what operators may change.

    configure   the names of the configuration: new ones begin with what comes from now on, missing
                ones are orphaned: kept, and told
    add         a node that no configuration names; it begins with what comes from now on, too
    forget      give up what waits for a node (`drop`), or let others have it (`reassign`)
    rebind      let whoever answers under a name take the place of the node that was bound to it
    drain       place nothing new on a node; what waits for it is still sent

All state is under one lock, and nothing under it waits for a network. Below it only locks of the
quiver are taken. `is_copied` is called by the quiver's retention, which holds its own locks: so it
takes none, and looks at statements that are replaced as a whole.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Literal

from holdfast.errors import BadInput, UnknownSubscriber
from holdfast.handoff.membership import SUBSCRIBER_PREFIX, Membership, subscriber_of
from holdfast.handoff.monitor import Monitor, MonitorSettings
from holdfast.handoff.owners import BLOCK_SEQS, Owners, Placement
from holdfast.handoff.points import HandoffPoint
from holdfast.handoff.prober import Prober
from holdfast.handoff.scheduler import Scheduler, SchedulerSettings
from holdfast.handoff.syncpoint import SyncPoint, SyncPointReached, create, look
from holdfast.handoff.worker import Worker, WorkerSettings
from holdfast.quiver.base.identity import identity_or_none
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.quiver.ledger.subscriber import Outcome, SubscriberOptions
from holdfast.quiver.quiver import Quiver
from holdfast.quiver.read.parts import waiting_segments
from holdfast.seam import Seam

log = logging.getLogger("holdfast.handoff")


@dataclass(frozen=True)
class HandoffSettings:
    """What the configuration says of all data nodes."""

    # How many of them own a part; None: all.
    replicas: int | None = None
    block_seqs: int = BLOCK_SEQS
    monitor: MonitorSettings = field(default_factory=MonitorSettings)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    # What may wait for one node. Without a limit the quiver's own cap refuses.
    subscriber: SubscriberOptions = field(default_factory=SubscriberOptions)


class Handoff:
    """Sends the parts of one quiver to its data nodes. Safe to use from many threads."""

    def __init__(self, quiver: Quiver, seam: Seam, settings: HandoffSettings | None = None) -> None:
        self.lock = threading.RLock()
        self.settings = settings or HandoffSettings()
        self.quiver = quiver
        self.monitor = Monitor(seam.clock, self.settings.monitor)
        self.scheduler = Scheduler(seam.clock, self.settings.scheduler)
        self.membership = Membership(seam.disk, quiver.directory)
        self.workers: dict[str, Worker] = {}
        self.probers: dict[str, Prober] = {}
        self._seam = seam
        self._configured: frozenset[str] = frozenset()
        # Of nodes without a worker: up to where it was looked who owns what, under which owners.
        self._looked: dict[str, tuple[Owners, int, int]] = {}
        identity = identity_or_none(seam.disk, quiver.directory)
        # What parts of this quiver are called by: its own id, and those from before a restore.
        self.quiver_ids = (quiver.quiver_id, *(() if identity is None else identity.former_ids))
        quiver.tell_copied(self.is_copied)

    # --------------------------------------------------------------- membership

    def configure(self, names: Collection[str]) -> None:
        """Take over the names of the configuration."""
        with self.lock:
            for name in names:
                subscriber_of(name)
            self._recover(names)
            self.membership.take_over(names)
            self._configured = frozenset(names) | self.membership.added.keys()
            for name in sorted(self._configured - set(self.membership.bound)):
                self._add(name)
            for name in self.membership.bound:
                if name in self._configured:
                    self._attach(name)
                else:
                    self._orphan(name)
            self.membership.replace(self._placement(self.quiver.end_seq))

    def _recover(self, names: Collection[str]) -> None:
        """Know the nodes again that the ledger keeps data for, and MEMBERS does not name.

        If it names nobody, it was lost: the nodes of now, and those that are no longer configured,
        own everything. Else a crash left half of an addition or of a `forget`: such a node owns
        nothing, and is here for being seen, and forgotten.
        """
        accounts = {
            name.removeprefix(SUBSCRIBER_PREFIX): name
            for name in self.quiver.subscribers()
            if name.startswith(SUBSCRIBER_PREFIX)
        }
        unknown = accounts.keys() - self.membership.bound.keys()
        placement = None
        if unknown and not self.membership.owners.placements:
            starts = [self.quiver.subscriber(one).start_seq for one in accounts.values()]
            nodes = tuple(sorted({*accounts, *names}))
            replicas, block_seqs = self.settings.replicas, self.settings.block_seqs
            placement = Placement(min(starts), nodes, replicas, block_seqs)
        elif unknown := unknown - set(names):
            log.warning(
                "data is kept for %s, which is no data node: an addition or a `forget` was "
                "interrupted; add it again, or forget it",
                ", ".join(sorted(unknown)),
            )
        if unknown:
            self.membership.keep(sorted(unknown), placement)

    def _placement(self, from_seq: int, without: str | None = None) -> Placement:
        """Return who shares what is accepted from a seq on."""
        nodes = sorted(
            name
            for name, one in self.membership.bound.items()
            if name in self._configured and not one.is_draining and name != without
        )
        return Placement(from_seq, tuple(nodes), self.settings.replicas, self.settings.block_seqs)

    def add(self, name: str, address: str) -> bool:
        """Keep data for a node that no configuration names; False if it was added already."""
        with self.lock:
            if name in self._configured:
                if self.membership.added.get(name) == address:
                    return False
                raise BadInput(
                    f"there is a data node {name!r} already",
                    hint="choose another name; where it is, the configuration says, or forget it",
                )
            self._add(name, address)
            self._configured |= {name}
            self._attach(name)
            return True

    def _add(self, name: str, address: str | None = None) -> None:
        """Keep data for a node from now on, and then say that it owns some.

        After a crash between the two, and if it is an orphan, it has been registered for a while.
        What was accepted since is others': a placement of the past is not rewritten, because they
        may have it already, or wait for it.
        """
        subscriber, from_seq = subscriber_of(name), self.quiver.end_seq
        if subscriber not in self.quiver.subscribers():
            self.quiver.register(subscriber, start="latest", options=self.settings.subscriber)
            from_seq = self.quiver.subscriber(subscriber).start_seq
        nodes = tuple(sorted({*self._placement(from_seq).nodes, name}))
        replicas, block_seqs = self.settings.replicas, self.settings.block_seqs
        placement = Placement(from_seq, nodes, replicas, block_seqs)
        self.membership.add(name, placement, address)

    def _attach(self, name: str) -> None:
        if name in self.workers and not self.workers[name].is_over:
            return
        self.monitor.add(name)
        self.scheduler.add(name)
        # If its subscriber was lost with a ledger, it is offered all that is there, and has most.
        reader = self.quiver.part_reader(
            subscriber_of(name), start="oldest", options=self.settings.subscriber
        )
        if reader.subscriber.options != self.settings.subscriber:
            self.quiver.set_options(subscriber_of(name), self.settings.subscriber)
        worker = self.workers[name] = Worker(
            name,
            self._seam,
            reader,
            lambda: self.membership.owners,
            self.monitor,
            self.scheduler,
            self.settings.worker,
        )
        self.probers[name] = Prober(
            worker,
            self._seam.clock,
            self.monitor,
            self.membership,
            self._not_owned,
            self.quiver.quiver_id,
        )

    def _orphan(self, name: str) -> None:
        """Keep what waits for a node that is no longer configured, and say so."""
        self.monitor.orphan(name)
        if (worker := self.workers.pop(name, None)) is not None:
            worker.stop()
            self.probers.pop(name)
        log.warning(
            "data node %r is no longer in the configuration: what waits for it is kept (forget it, "
            "or configure it again)",
            name,
        )

    def forget(self, name: str, mode: Literal["drop", "reassign"]) -> int:
        """Remove a node for good; return how many parts others have to get instead.

        In this order, so that a crash between two steps leaves a state from which `forget` can be
        repeated: others wait for the parts, or the ledger says which are lost; the node owns
        nothing; its own account is closed.
        """
        with self.lock:
            subscriber = subscriber_of(name)
            if name not in self.membership.bound and subscriber not in self.quiver.subscribers():
                raise BadInput(
                    f"no data node {name!r}",
                    hint=f"there are {', '.join(self.membership.bound) or 'none'}",
                )
            if (worker := self.workers.pop(name, None)) is not None:
                worker.stop()
                self.probers.pop(name)
            self._configured -= {name}
            owners, reassigned = self.membership.owners, 0
            if mode == "reassign":
                owners, reassigned = self._reassign(name)
                self._seam.reached(HandoffPoint.REOPENED)
            else:
                self._give_up(name)
            owners = owners.changed(self._placement(self.quiver.end_seq, without=name))
            self.membership.forget(name, owners)
            self._seam.reached(HandoffPoint.FORGOTTEN)
            with contextlib.suppress(UnknownSubscriber):
                self.quiver.unregister(subscriber, reason=f"forgotten ({mode})")
            self.monitor.remove(name)
            return reassigned

    def _give_up(self, name: str) -> None:
        """Write which parts exactly a node loses: closing its account says only how much."""
        subscriber = subscriber_of(name)
        with contextlib.suppress(UnknownSubscriber):
            state = self.quiver.subscriber(subscriber)
            for segment in list(waiting_segments(self.quiver.segments(), state)):
                summary = segment.summary
                part = (summary.quiver_id, summary.first_seq, summary.last_seq + 1)
                if name in self.membership.owners.owners(*part):
                    self.quiver.resolve_segment(subscriber, segment, Outcome.DROPPED, "forgotten")

    def _reassign(self, name: str) -> tuple[Owners, int]:
        """Reopen what waits for a node for those who own it without that node."""
        subscriber = self.quiver.subscriber(subscriber_of(name))
        before = self.membership.owners
        waiting = subscriber.resolved.holes(subscriber.start_seq, self.quiver.end_seq)
        after = before.without(name, list(waiting))
        reopened: dict[str, IntervalSet] = {}
        count = 0
        for segment in waiting_segments(self.quiver.segments(), subscriber):
            summary = segment.summary
            part = (summary.quiver_id, summary.first_seq, summary.last_seq + 1)
            if name not in before.owners(*part):
                continue
            for other in after.owners(*part) - before.owners(*part):
                start_seq = self.quiver.subscriber(subscriber_of(other)).start_seq
                reopened.setdefault(other, IntervalSet()).add(max(part[1], start_seq), part[2])
                count += 1
        for other, ranges in reopened.items():
            for first_seq, end_seq in ranges:
                self.quiver.replay(subscriber_of(other), first_seq, end_seq)
        return after, count

    def rebind(self, name: str) -> None:
        """Let whoever answers under a name next take the place of the node bound to it."""
        with self.lock:
            self.membership.unbind(name)
            if name in self.probers:
                self.probers[name].rebound()

    def drain(self, name: str) -> None:
        """Place nothing new on a node."""
        with self.lock:
            self.membership.drain(name, self._placement(self.quiver.end_seq, without=name))

    def is_drained(self, name: str) -> bool:
        """Whether nothing waits for a node any more, of what it owns."""
        with self.lock:
            subscriber = self.quiver.subscriber(subscriber_of(name))
            end_seq = self.membership.owners.placements[-1].from_seq
            return subscriber.high_water_seq >= end_seq

    # --------------------------------------------------------------------- looking

    def healthy_nodes(self) -> frozenset[str]:
        """Return the names of the data nodes that take parts now."""
        with self.lock:
            return self.monitor.healthy_nodes()

    def sync_point(self) -> SyncPoint:
        """Return the sync point of this moment, of all nodes that are known."""
        with self.lock:
            return create(self.quiver, tuple(sorted(self.membership.bound)))

    def reached(self, point: SyncPoint) -> SyncPointReached:
        """Return how far the nodes are with a sync point."""
        with self.lock:
            return look(self.quiver, point, self.seen)

    def seen(self, name: str) -> IntervalSet:
        """Return which seqs a node said, last, that it has or had; none if it was not met.

        What the ledger lost to it may be there: the node took it, and its answer was lost, or
        somebody repaired it. Nothing more than a statement is needed to know that. Takes no lock.
        """
        prober = self.probers.get(name)
        found = IntervalSet()
        if prober is not None and prober.is_bound:
            for quiver_id in self.quiver_ids:
                if (holding := prober.holdings.get(quiver_id)) is not None:
                    found = found.union(holding.seen)
        return found

    def is_copied(self, subscriber: str, quiver_id: str, first_seq: int, end_seq: int) -> bool:
        """Whether another owner than this subscriber's node still holds a range.

        That is: it is bound and a member, and lists the range as stored, in a statement that it was
        asked for because of this. So the first answer is no, and it is asked. Asked by the quiver
        before it drops anything (`on_full: drop_copied`). Takes no lock.
        """
        owners = self.membership.owners.owners(quiver_id, first_seq, end_seq)
        holders = [
            prober
            for name, prober in list(self.probers.items())
            if name in owners
            and subscriber_of(name) != subscriber
            and prober.is_bound
            and prober.stores(quiver_id, first_seq, end_seq)
        ]
        # Each that does not vouch is asked: one may be down.
        if any(prober.vouches() for prober in holders):
            return True
        if holders:
            self.quiver.arrivals.notify()
        return False

    def _not_owned(self, name: str, seen: IntervalSet) -> Iterator[tuple[int, int]]:
        """Yield seqs that are none of a node's, that it has not seen, and that are settled.

        Settled means resolved for every node: what still waits for one may be reassigned to this.
        """
        owners, known = self.membership.owners, self.quiver.subscribers()
        own = self.quiver.subscriber(subscriber_of(name))
        settled = IntervalSet([(own.start_seq, self.quiver.end_seq)]).without(seen)
        for subscriber in map(subscriber_of, self.membership.bound):
            if subscriber in known:
                other = self.quiver.subscriber(subscriber)
                for hole in list(other.resolved.holes(other.start_seq, self.quiver.end_seq)):
                    settled.remove(*hole)
        for start, end in settled:
            yield from owners.not_owned(name, self.quiver.quiver_id, start, end)

    def filter_orphans(self) -> None:
        """Resolve what nodes without a worker do not own: their backlog must not grow for ever."""
        with self.lock:
            for name in self.membership.bound.keys() - self.workers.keys():
                subscriber = subscriber_of(name)
                if subscriber not in self.quiver.subscribers():
                    continue
                state, owners = self.quiver.subscriber(subscriber), self.membership.owners
                # What was looked at under these owners is not looked at again: it may be much.
                looked = self._looked.get(name)
                end = looked[2] if looked and looked[:2] == (owners, state.reopened) else 0
                for segment in list(waiting_segments(self.quiver.segments(), state, end)):
                    summary = segment.summary
                    end = summary.last_seq + 1
                    if name not in owners.owners(summary.quiver_id, summary.first_seq, end):
                        self.quiver.resolve_segment(
                            subscriber, segment, Outcome.FILTERED, "not an owner"
                        )
                self._looked[name] = (owners, state.reopened, end)

    def close(self) -> None:
        """Detach from the quiver; what waits, waits."""
        with self.lock:
            for worker in self.workers.values():
                worker.stop()
