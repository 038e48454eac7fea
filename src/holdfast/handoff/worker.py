"""One data node's worker: what waits for it, offered, sent and committed.

    unresolved segments ─▶ offer ─▶ send what it needs ─▶ commit
                             │          │
                             └──────────┴─ ACK, HAVE, EXPIRED: commit      BUSY: the node waits
                                           RETRY: the part waits           REJECT, CONFLICT: held
                                           WRONG_NODE: all wait until it is rebound

New parts and catch-up are one loop. For a node that is up the newest part goes first, and needs no
permit; then a quantum of what it missed, oldest first, and so on in turns: neither keeps the other
waiting for longer than one call. There is one call at a time: nothing is sent twice at once.

Nothing blocks the head. A part that fails waits by itself, longer each time. One that the node
refuses, or that is damaged here, is *held*: unresolved, passed over, with its reason. That needs no
durability, because a note that is lost is made again by the next offer. When a whole call fails,
fewer parts go at a time, down to one: a part that breaks the connection is found and waits alone.

A worker is a state machine: `begin` gives the next call, `end` takes its result, and `due_s` says
when to ask again. It starts no thread and waits for nothing.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from holdfast.errors import HoldfastError, NotAllowed, OwnerGone, StorageFailed
from holdfast.handoff.calls import OfferParts, PartsReply, Result, SendParts
from holdfast.handoff.monitor import Monitor, NodeState
from holdfast.handoff.owners import Owners
from holdfast.handoff.points import HandoffPoint
from holdfast.handoff.scheduler import Scheduler
from holdfast.quiver.ledger.subscriber import Outcome
from holdfast.quiver.read.parts import PartReader
from holdfast.quiver.segments.segment import Segment
from holdfast.replica.messages import HELD, RESOLVED, AnswerKind, NodeHealth, PartAnswer
from holdfast.replica.part import PartId, part_id, part_of
from holdfast.replica.transport import OutgoingPart
from holdfast.seam import Seam

# Why a part is held that cannot be sent because of this machine's disk.
DAMAGED = "damaged"
# Why nothing is sent to a node that did not answer yet.
NOT_MET = "it was not met yet"
# What BUSY means when the node does not say for how long.
BUSY_S = 1.0


@dataclass(frozen=True)
class WorkerSettings:
    """How a worker waits."""

    # After a failed call: the first pause, doubling up to the second, each drawn at random.
    node_pause_min_s: float = 1.0
    node_pause_max_s: float = 60.0
    # After a part failed.
    part_pause_min_s: float = 1.0
    part_pause_max_s: float = 600.0
    # A part that failed so often is held.
    attempts_max: int = 16
    # Of the quiver: how long a pin holds, at most.
    max_pin_s: float = 3600.0


@dataclass(frozen=True)
class HeldPart:
    """A part that waits for an operator."""

    part: PartId
    kind: str
    reason: str
    size_bytes: int
    since_ns: int


@dataclass
class _Failing:
    """A part that failed, and when it is tried again."""

    # How often it failed, and how often for sure by its own fault.
    failures: int
    attempts: int
    next_s: float
    reason: str
    # How many parts the node had taken by then: if it takes others meanwhile, it is the part.
    taken: int


@dataclass
class WorkerCounters:
    """What a worker did since it began."""

    answers: Counter[str] = field(default_factory=Counter)
    retries: Counter[str] = field(default_factory=Counter)
    sent_parts: int = 0
    sent_bytes: int = 0
    committed_parts: int = 0
    filtered_parts: int = 0
    failed_calls: int = 0


class Worker:
    """Sends to one data node. The caller holds one lock around it."""

    def __init__(
        self,
        name: str,
        seam: Seam,
        reader: PartReader,
        owners: Callable[[], Owners],
        monitor: Monitor,
        scheduler: Scheduler,
        settings: WorkerSettings | None = None,
    ) -> None:
        self.name = name
        self.counters = WorkerCounters()
        self.held: dict[PartId, HeldPart] = {}
        self.last_error: str | None = None
        # Why it sends nothing although the node answers; None: nothing is in the way.
        self.refusal: str | None = NOT_MET
        # The node that is bound to the name: every call is meant for it, and for no other.
        self._node_id = ""
        # Another reader attached under its name, or it was unregistered: this worker is over.
        self.is_over = False
        self.reader = reader
        self._seam = seam
        self._clock = seam.clock
        self._randomness: random.Random = seam.randomness
        self._owners = owners
        self._monitor = monitor
        self._scheduler = scheduler
        self._settings = settings or WorkerSettings()
        self._segment_versions: tuple[int, ...] = ()
        self._failing: dict[PartId, _Failing] = {}
        # What was offered, is needed, and is to be sent next.
        self._needed: list[OutgoingPart] = []
        self._in_call: dict[PartId, Segment] = {}
        self._has_permit = False
        self._is_calling = False
        self._look_again = False
        self._was_live = False
        self._was_up = False
        # Parts from here on are new: sealed since the node was last seen to come back.
        self._live_from_seq = 0
        self._batch_max = scheduler.settings.parts_max
        self._failures = 0
        self._next_s = -math.inf
        # Up to where it was looked who owns what, under which owners.
        self._filtered: tuple[Owners, int, int] | None = None

    # ------------------------------------------------------------------- asking

    def begin(self) -> OfferParts | SendParts | None:
        """Return what to do now; None: nothing, before `due_s` or before there is news."""
        if self.is_over or self._is_calling:
            return None
        call = None
        try:
            self._filter()
            self._look_again = True
            while call is None and self._look_again:
                self._look_again = False
                call = self._next_call()
        except HoldfastError as error:
            self._note_local(error)
        if call is None:
            self._leave()
            return None
        self._is_calling = True
        return call

    def due_s(self) -> float:
        """Return when to ask again at the latest; infinity: when there is news."""
        if self.is_over or self._is_calling:
            return math.inf
        now_s = self._clock.monotonic_s()
        busy_s = self._monitor.busy_until_s(self.name)
        waits = [one.next_s for one in self._failing.values()]
        waits += [self._next_s, busy_s, self._scheduler.wake_s(self.name)]
        return min((one for one in waits if one > now_s), default=math.inf)

    def _next_call(self) -> OfferParts | SendParts | None:
        if self._needed:
            needed, self._needed = tuple(self._needed), []
            if self._may_send():
                return self._send(needed)
        if not self._may_send():
            return None
        live = self._live()
        # In turns, so that a node with much new data catches up nevertheless.
        if live is not None and not self._was_live:
            return self._offer([live], is_live=True)
        return self._catch_up() or (self._offer([live], is_live=True) if live else None)

    def _may_send(self) -> bool:
        is_up = self._monitor.state(self.name) is NodeState.UP
        if is_up and not self._was_up:
            self._came_back()
        if self._monitor.state(self.name) is NodeState.DOWN:
            self._was_up = False
        is_free = self._clock.monotonic_s() >= self._next_s
        return is_up and is_free and self.refusal is None and not self.reader.subscriber.paused

    def _came_back(self) -> None:
        self._was_up = True
        self._failures, self._next_s = 0, -math.inf
        newest = next(self.reader.waiting_newest(0), None)
        self._live_from_seq = 0 if newest is None else newest.summary.last_seq + 1
        self._scheduler.came_back(self.name)

    def _filter(self) -> None:
        """Resolve what this node does not own, also while it is away: others wait for the disk."""
        owners, reopened = self._owners(), self.reader.subscriber.reopened
        looked_to = 0
        if self._filtered is not None and self._filtered[:1] == (owners,):
            looked_to = self._filtered[2] if self._filtered[1] == reopened else 0
        end = looked_to
        for segment in self.reader.waiting(looked_to):
            summary = segment.summary
            end = summary.last_seq + 1
            owning = owners.owners(summary.quiver_id, summary.first_seq, end)
            if self.name not in owning:
                self.reader.resolve(segment, Outcome.FILTERED, "not an owner")
                self.counters.filtered_parts += 1
        self._filtered = (owners, reopened, end)

    # ----------------------------------------------------------------- choosing

    def _ready(self, segments: Iterator[Segment]) -> Iterator[Segment]:
        """Yield what may be offered now: owned, and neither held nor waiting after a failure.

        What was sealed since `_filter` looked may not be this node's, and is not looked at yet.
        """
        now_s = self._clock.monotonic_s()
        looked_to = 0 if self._filtered is None else self._filtered[2]
        for segment in segments:
            if segment.summary.last_seq >= looked_to:
                continue
            part = part_id(segment.summary)
            failing = self._failing.get(part)
            if part not in self.held and (failing is None or failing.next_s <= now_s):
                yield segment

    def _live(self) -> Segment | None:
        return next(self._ready(self.reader.waiting_newest(self._live_from_seq)), None)

    def _catch_up(self) -> OfferParts | None:
        """Return the next quantum of what the node missed, if it has a permit."""
        ready = self._ready(self.reader.waiting())
        head = next(ready, None)
        if head is None:
            return None
        summary = head.summary
        self._scheduler.wait(self.name, summary.size_bytes, summary.min_ingestion_ns)
        budget_bytes = self._scheduler.take(self.name)
        if budget_bytes is None:
            return None
        self._has_permit = True
        chosen, total_bytes = [head], summary.size_bytes
        for segment in ready:
            total_bytes += segment.summary.size_bytes
            if total_bytes > budget_bytes or len(chosen) >= self._batch_max:
                break
            chosen.append(segment)
        return self._offer(chosen, is_live=False)

    def _offer(self, segments: list[Segment], *, is_live: bool) -> OfferParts | None:
        self._was_live = is_live
        self._in_call = {}
        parts = []
        for segment in segments:
            outgoing = self._outgoing(segment)
            if outgoing is not None:
                parts.append(outgoing)
                self._in_call[outgoing.part.id] = segment
        if not parts:
            # They are held now, or gone: others may be ready.
            self._look_again = True
            self._give_back(0)
            return None
        return OfferParts(self._node_id, tuple(parts), is_live)

    def _outgoing(self, segment: Segment) -> OutgoingPart | None:
        disk, identity = self._seam.disk, part_id(segment.summary)
        try:
            part = part_of(disk, segment.path, segment.summary)
        except OSError as error:
            if segment in self.reader.waiting():  # or it was removed meanwhile
                self._hold(identity, DAMAGED, f"a file cannot be found: {error}")
            return None
        if part.segment_version not in self._segment_versions:
            known = ", ".join(map(str, self._segment_versions))
            reason = f"segment version {part.segment_version}; the node takes {known}"
            self._hold(identity, "version", reason)
            return None
        return OutgoingPart(part, disk, segment.path)

    def _send(self, parts: tuple[OutgoingPart, ...]) -> SendParts:
        call = SendParts(self._node_id, parts, self._was_live)
        segments = [self._in_call[one.part.id] for one in parts]
        self.reader.pin(segments, call.timeout_s, self._settings.max_pin_s)
        return call

    # ---------------------------------------------------------------- answering

    def end(self, call: OfferParts | SendParts, result: Result) -> None:
        """Take the result of a call."""
        self._is_calling = False
        if self.is_over:
            return
        try:
            if call.node_id != self._node_id:
                # It was rebound meanwhile: what the node before it has, the new one has not.
                self._needed = []
            elif isinstance(result, HoldfastError):
                self._failed(call, result)
            elif isinstance(result, PartsReply):
                self._answered(call, result)
            else:
                raise AssertionError(f"BUG: {result!r} is no reply")
        except HoldfastError as error:
            self._note_local(error)
        if not self._needed:
            self._give_back(call.size_bytes if isinstance(call, SendParts) else 0)

    def _answered(self, call: OfferParts | SendParts, reply: PartsReply) -> None:
        is_send = isinstance(call, SendParts)
        is_clean = True
        for one in call.parts:
            identity = one.part.id
            if identity in reply.damaged:
                self._hold(identity, DAMAGED, reply.damaged[identity])
            answer = reply.answers.get(identity)
            if answer is None:
                is_clean &= identity in reply.gone or identity in reply.damaged
                continue
            is_clean &= answer.kind in RESOLVED or answer.kind is AnswerKind.NEED
            self._settle(one, answer, is_send=is_send)
        self._monitor_saw(reply)
        kinds = {answer.kind: answer for answer in reply.answers.values()}
        if AnswerKind.WRONG_NODE in kinds:
            # Another node is at the address, and no probe has noticed yet.
            self._needed = []
            self.refusal = kinds[AnswerKind.WRONG_NODE].reason or "another node answers: rebind it"
        elif AnswerKind.BUSY in kinds and not self._needed:
            # Nothing more before it asked for it.
            self._scheduler.was_busy(self.name)
        elif is_send and is_clean:
            self._batch_max = min(self._scheduler.settings.parts_max, 2 * self._batch_max)
            if not call.is_live:
                self._scheduler.went_well(self.name)

    def _monitor_saw(self, reply: PartsReply) -> None:
        """Believe answers as much as probes."""
        busy = [one for one in reply.answers.values() if one.kind is AnswerKind.BUSY]
        # What it needs all the same goes first: a node with much damage takes only sound copies.
        if busy and not self._needed:
            waits = [BUSY_S if one.retry_after_s is None else one.retry_after_s for one in busy]
            self._monitor.busy(self.name, max(waits))
        if reply.answers:
            self.last_error, self._failures = (busy[0].reason or None) if busy else None, 0

    def _settle(self, one: OutgoingPart, answer: PartAnswer, *, is_send: bool) -> None:
        """Do what an answer means for one part."""
        identity, kind = one.part.id, answer.kind
        self.counters.answers[kind] += 1
        if kind is AnswerKind.NEED and not is_send:
            self._needed.append(one)
        elif kind in RESOLVED and (is_send or kind is not AnswerKind.ACK):
            self._commit(one, answer, is_send=is_send)
        elif kind in HELD:
            self._hold(identity, kind, answer.reason or "the node gave no reason")
        elif kind not in (AnswerKind.BUSY, AnswerKind.WRONG_NODE):
            reason = answer.reason if kind is AnswerKind.RETRY else f"the node answered {kind}"
            self._delay(identity, reason, counts=True)

    def _commit(self, one: OutgoingPart, answer: PartAnswer, *, is_send: bool) -> None:
        self._seam.reached(HandoffPoint.ANSWERED)
        reason = "" if answer.kind is AnswerKind.ACK else str(answer.kind)
        self.reader.resolve(self._in_call[one.part.id], Outcome.ACKED, reason)
        self._seam.reached(HandoffPoint.COMMITTED)
        self._failing.pop(one.part.id, None)
        self.counters.committed_parts += 1
        if is_send:
            self.counters.sent_parts += 1
            self.counters.sent_bytes += one.part.size_bytes

    # ------------------------------------------------------------------ failing

    def _failed(self, call: OfferParts | SendParts, error: HoldfastError) -> None:
        """Let the node wait, and find out whether it was a part."""
        self.counters.failed_calls += 1
        self.last_error = str(error)
        self._failures += 1
        pause_s = self._pause_s(
            self._failures, self._settings.node_pause_min_s, self._settings.node_pause_max_s
        )
        self._next_s = self._clock.monotonic_s() + pause_s
        if isinstance(error, OwnerGone | NotAllowed):
            self._monitor.missed(self.name, str(error))
        if isinstance(call, SendParts):
            self._batch_max = max(1, len(call.parts) // 2)
            if len(call.parts) == 1:
                self._delay(call.parts[0].part.id, str(error), counts=False)

    def _delay(self, part: PartId, reason: str, *, counts: bool) -> None:
        """Let a part wait, longer each time; one that failed too often is held.

        The node may be to blame for a call that failed: that counts for the part only if the node
        took others since the last time.
        """
        self.counters.retries[reason.partition(":")[0][:40]] += 1
        known = self._failing.get(part)
        failures = 1 if known is None else known.failures + 1
        attempts, taken = (0, -1) if known is None else (known.attempts, known.taken)
        if counts or self.counters.committed_parts > taken:
            attempts += 1
        if attempts >= self._settings.attempts_max:
            self._hold(part, "retry", f"{attempts} attempts failed, the last: {reason}")
            return
        pause_s = self._pause_s(
            failures, self._settings.part_pause_min_s, self._settings.part_pause_max_s
        )
        # After the node's own pause others go first, or one part would have all the turns.
        next_s = max(self._clock.monotonic_s(), self._next_s) + pause_s
        taken = self.counters.committed_parts
        self._failing[part] = _Failing(failures, attempts, next_s, reason, taken)
        self._sweep()

    def _hold(self, part: PartId, kind: str, reason: str) -> None:
        self._failing.pop(part, None)
        segment = self._in_call.get(part)
        size_bytes = 0 if segment is None else segment.summary.size_bytes
        self.held[part] = HeldPart(part, kind, reason, size_bytes, self._clock.wall_ns())
        self._sweep()

    def _sweep(self) -> None:
        """Forget notes of parts that were resolved or dropped meanwhile."""
        if len(self.held) + len(self._failing) < self._sweep_at:
            return
        waiting = {part_id(segment.summary) for segment in self.reader.waiting()}
        self.held = {part: one for part, one in self.held.items() if part in waiting}
        self._failing = {part: one for part, one in self._failing.items() if part in waiting}
        self._sweep_at = 2 * max(1000, len(self.held) + len(self._failing))

    _sweep_at = 1000

    def _pause_s(self, failures: int, least_s: float, most_s: float) -> float:
        """Return a pause of up to twice the last, so that many senders do not come as a wave."""
        ceiling_s = min(most_s, least_s * 2.0 ** min(64, max(failures, 1) - 1))
        return self._randomness.uniform(ceiling_s / 2, ceiling_s)

    def _note_local(self, error: HoldfastError) -> None:
        """Take note of a failure of this machine: its ledger, or its generation."""
        self.last_error = str(error)
        self._needed = []
        if isinstance(error, StorageFailed):
            self._next_s = self._clock.monotonic_s() + self._settings.node_pause_min_s
        else:
            self.is_over = True

    # ------------------------------------------------------------------ permits

    def _give_back(self, sent_bytes: int) -> None:
        """Give a permit back; new parts had none, and are charged all the same."""
        if self._has_permit:
            self._has_permit = False
            self._scheduler.done(self.name, sent_bytes)
            self._scheduler.leave(self.name)
            self._want_more()
        elif sent_bytes:
            self._scheduler.sent_live(self.name, sent_bytes)

    def _want_more(self) -> None:
        """Take part in the next round at once: whoever asks first must not get all of them."""
        head = next(self._ready(self.reader.waiting()), None)
        if head is not None and self._may_send():
            summary = head.summary
            self._scheduler.wait(self.name, summary.size_bytes, summary.min_ingestion_ns)

    def _leave(self) -> None:
        """Do not keep others waiting for a turn that this node cannot use."""
        self._give_back(0)
        head = next(self._ready(self.reader.waiting()), None) if not self.is_over else None
        if head is None or not self._may_send():
            self._scheduler.leave(self.name)

    # ---------------------------------------------------------------- operators

    def met(self, health: NodeHealth, refusal: str | None, *, is_new_process: bool) -> None:
        """Take note of a node's statement, and of whether it is the right node."""
        self.refusal = refusal
        if refusal is None:
            self._node_id = health.node_id
        self._segment_versions = health.segment_versions
        if is_new_process:
            # It may be an upgrade: what was held for its version is offered again.
            self.release(kind="version")

    def rebound(self) -> None:
        """Wait for the next node that answers, and believe the one before no more."""
        self._node_id, self.refusal = "", "it was not met since it was rebound"
        self._needed = []

    def waits_for(self, part: PartId) -> tuple[str, str]:
        """Return how a part waits, and why: held, sending, delayed after a failure, or waiting."""
        if (held := self.held.get(part)) is not None:
            return "held", f"{held.kind}: {held.reason}"
        if self._is_calling and part in self._in_call:
            return "sending", ""
        if (failing := self._failing.get(part)) is not None:
            return "delayed", f"{failing.failures} failed, the last: {failing.reason}"
        return "waiting", self.refusal or ""

    def release(self, part: PartId | None = None, *, kind: str | None = None) -> int:
        """Offer held parts again: one, those held for one reason, or all; return how many."""
        released = [
            identity
            for identity, one in self.held.items()
            if part in (None, identity) and kind in (None, one.kind)
        ]
        for identity in released:
            del self.held[identity]
        return len(released)

    def retry(self) -> None:
        """Wait for nothing any longer: neither the node's pause nor that of any part."""
        self._failures, self._next_s = 0, -math.inf
        for failing in self._failing.values():
            failing.next_s = -math.inf

    def discard(self, part: PartId, reason: str = "discarded") -> bool:
        """Give a part up for this node; return whether it still waited."""
        self.held.pop(part, None)
        self._failing.pop(part, None)
        for segment in self.reader.waiting():
            if part_id(segment.summary) == part:
                return self.reader.resolve(segment, Outcome.DROPPED, reason)
        return False

    def stop(self) -> None:
        """Detach; what is on its way may still arrive, and is then answered with HAVE."""
        self.is_over = True
        self._scheduler.remove(self.name)
        self.reader.close()
