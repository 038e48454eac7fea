"""What operators may ask of the senders of a process: one verb of its control socket.

A request names an `action`, and perhaps one sender (`component`, `core_id`); the answer is a list
of records, some of each sender, in plain JSON. So the answers of several workers are one list, too.
An action that knows nothing of the node or part that is named gives no records: another worker may.

What takes long works in turns, because that socket serves one request at a time: its first record
has `next`, which the next request repeats as `after`; None says that nothing is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any, TypeAlias

from holdfast.errors import BadInput, StorageFailed, WrongQuiver
from holdfast.handoff.comparison import (
    SENDER,
    NodeStatements,
    RunningSender,
    find_differences,
    find_gaps,
)
from holdfast.handoff.membership import subscriber_of
from holdfast.handoff.repair import TURN_PARTS, RepairPosition, repair
from holdfast.handoff.sender import Handoff
from holdfast.handoff.statistics import backlog_statistics
from holdfast.handoff.syncpoint import SyncPoint
from holdfast.handoff.worker import Worker
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.quiver.ledger.subscriber import Outcome
from holdfast.quiver.read.parts import waiting_segments
from holdfast.quiver.segments.segment import Segment
from holdfast.replica.messages import Holding
from holdfast.replica.part import PartId, content_checksum, part_id
from holdfast.seam import Seam

VERB = "handoff"
# How long an action may take at most: a turn, and the longest call that it began in it.
ANSWER_S = 120.0
# Of one list; the answer says how many were left out.
RECORDS_MAX = 10_000

Request: TypeAlias = dict[str, Any]
HandoffRecord: TypeAlias = dict[str, Any]
OperatorAction: TypeAlias = Callable[[RunningSender, Request], Iterable[HandoffRecord]]


class HandoffVerbs:
    """Answers for all senders of a process. Safe to use from any thread; some actions wait."""

    def __init__(self, senders: Callable[[], Iterable[RunningSender]], seam: Seam) -> None:
        self._senders = senders
        self._seam = seam
        self._actions: dict[str, OperatorAction] = {
            "senders": lambda sender, _: [{"quiver_ids": list(sender.handoff.quiver_ids)}],
            "status": self._status,
            "ls": self._list,
            "show": self._show,
            "pause": lambda sender, request: _paused(sender.handoff, request, is_paused=True),
            "resume": lambda sender, request: _paused(sender.handoff, request, is_paused=False),
            "rate": _rate,
            "retry": _retry,
            "release": _release,
            "discard": _discard,
            "drop": _drop,
            "add": _add,
            "forget": _forget,
            "rebind": _rebind,
            "drain": _drain,
            "gaps": _gaps,
            "verify": self._verify,
            "repair": self._repair,
            "syncpoint": lambda sender, _: [{"token": str(sender.handoff.sync_point())}],
            "reached": _reached,
        }

    def __call__(self, request: Request) -> dict[str, Any]:
        """Do what is asked, for every sender that is meant."""
        name = request.get("action")
        action = self._actions.get(name) if isinstance(name, str) else None
        if action is None:
            known = ", ".join(self._actions)
            raise BadInput(f"there is no action {name!r}"[:200], hint=f"there are {known}")
        senders = list(self._senders())
        if not senders:
            raise BadInput(
                "this gateway sends to no data nodes",
                hint="give its graph file an exporter of type `nodes`",
            )
        # Sender by sender, without a transaction around them: each has a quiver and a ledger of its
        # own. Every action can be asked again, and says what it found done already.
        try:
            records = [
                {"component": sender.name, "core_id": sender.core_id, **record}
                for sender in senders
                if request.get("component") in (None, sender.name)
                and request.get("core_id") in (None, sender.core_id)
                for record in action(sender, request)
            ]
        except OSError as error:
            raise StorageFailed(
                f"the disk failed: {error.strerror}",
                hint="some senders may have done it: look with `status`, then ask again",
                path=error.filename,
            ) from error
        left_out = max(0, len(records) - RECORDS_MAX)
        return {"records": records[:RECORDS_MAX], "left_out": left_out}

    # ------------------------------------------------------------------- looking

    def _status(self, sender: RunningSender, request: Request) -> Iterator[HandoffRecord]:
        handoff, wanted = sender.handoff, _text_or_none(request, "node")
        for one in backlog_statistics(handoff, self._seam.clock.wall_ns()):
            if wanted in (None, one.name):
                held = [{**asdict(part), "part": str(part.part)} for part in one.held]
                age_s = self._seam.clock.monotonic_s() - handoff.monitor.since_s(one.name)
                yield {
                    "node": one.name,
                    **asdict(one),
                    "address": sender.address_of(one.name),
                    "is_added": one.name in handoff.membership.added,
                    "held": held,
                    "state_age_s": max(0.0, age_s),
                    "total_rate_bytes_s": handoff.scheduler.rate(),
                }

    def _list(self, sender: RunningSender, request: Request) -> Iterator[HandoffRecord]:
        """Yield the sealed parts that wait, oldest first, node by node."""
        handoff, now_ns = sender.handoff, self._seam.clock.wall_ns()
        # Under the lock, so that a part is not shown as waiting that is settled while it is listed.
        # Segments are in memory; nothing here waits for a disk or a node.
        with handoff.lock:
            for name in _meant(handoff, request):
                worker = handoff.workers.get(name)
                for segment in _waiting(handoff, name):
                    state, reason = "waiting", "the node is not in the configuration"
                    if worker is not None:
                        state, reason = worker.waits_for(part_id(segment.summary))
                    if state == "held" or not request.get("held"):
                        age_s = (now_ns - segment.summary.min_ingestion_ns) / 1e9
                        yield {
                            "node": name,
                            **_about(segment),
                            "oldest_age_s": max(0.0, age_s),
                            "state": state,
                            "reason": reason,
                        }

    def _show(self, sender: RunningSender, request: Request) -> Iterator[HandoffRecord]:
        """Yield what is known of one part: here, and at every node."""
        part, handoff = PartId.parse(_text(request, "part")), sender.handoff
        if part.quiver_id not in handoff.quiver_ids:
            return
        with handoff.lock:
            for segment in handoff.quiver.segments():
                if part_id(segment.summary) == part:
                    yield {
                        "node": SENDER,
                        **_about(segment),
                        "state": "stored",
                        "reason": "",
                        "folder": str(segment.path),
                        "checksum": content_checksum(segment.summary),
                    }
            for name in handoff.membership.bound:
                state, reason = _state(handoff, name, part)
                says = _says(handoff, name, part)
                yield {
                    "node": name,
                    "part": str(part),
                    "state": state,
                    "reason": reason,
                    "says": says,
                }

    # ----------------------------------------------------------------- comparing

    def _verify(self, sender: RunningSender, request: Request) -> Iterator[HandoffRecord]:
        """Compare the checksums of a page of parts."""
        ids = sender.handoff.quiver_ids
        match request.get("after"):
            case None:
                quiver_id, from_seq = ids[0], 0
            case [str(quiver_id), int(from_seq)] if quiver_id in ids:
                pass
            case _:
                raise _bad_after()
        with NodeStatements(sender) as statements:
            found, parts, next_seq = find_differences(
                statements, self._seam.disk, quiver_id, from_seq, TURN_PARTS
            )
        following = None if next_seq is None else [quiver_id, next_seq]
        # A quiver that was restored has a new id, and parts under both: they follow each other.
        if following is None and quiver_id != ids[-1]:
            following = [ids[ids.index(quiver_id) + 1], 0]
        yield {"next": following, "compared_parts": parts}
        for name, reason in statements.unknown.items():
            yield {"node": name, "problem": reason}
        for one in found:
            yield {"part": str(one.part), "problem": one.problem, "checksums": one.checksums}

    def _repair(self, sender: RunningSender, request: Request) -> Iterator[HandoffRecord]:
        """Fill gaps for one turn."""
        after: RepairPosition | None = None
        match request.get("after"):
            case None:
                pass
            case [str(node), str(quiver_id), int(seq)]:
                after = node, quiver_id, seq
            case _:
                raise _bad_after()
        wanted = _text_or_none(request, "node")
        with NodeStatements(sender) as statements:
            done = repair(statements, self._seam.clock, wanted, after)
        yield {"next": None if done.next_position is None else list(done.next_position)}
        for name, reason in statements.unknown.items():
            if wanted in (None, name):
                yield {"node": name, "problem": reason}
        for one in done.parts:
            yield {**one._asdict(), "part": str(one.part)}


def _gaps(sender: RunningSender, request: Request) -> Iterator[HandoffRecord]:
    """Yield what nodes lack, and beside it what nobody can say.

    A node that does not answer has a record of its own: a list without it would read as "nothing
    is missing". What the ledger says was lost for it is known all the same.
    """
    wanted = _text_or_none(request, "node")
    with NodeStatements(sender) as statements:
        for gap in find_gaps(statements):
            if wanted in (None, gap.node):
                yield asdict(gap)
        for name, reason in statements.unknown.items():
            if wanted in (None, name):
                settled = statements.settled.get(name)
                lost = [] if settled is None else settled.losses
                yield {
                    "node": name,
                    "problem": reason,
                    "lost": [[first, end, how.name.lower()] for first, end, how in lost],
                }
        for name, settled in statements.settled.items():
            if settled.losses_left_out and wanted in (None, name):
                count = settled.losses_left_out
                text = f"{count} older losses are only in the lines of the ledger"
                yield {"node": name, "problem": text, "lost": []}


def _reached(sender: RunningSender, request: Request) -> Iterator[HandoffRecord]:
    """Yield how far the nodes are with the sync points that are this sender's."""
    tokens = request.get("tokens")
    if not isinstance(tokens, list):
        raise BadInput("`tokens` is missing", hint="send a list of sync points")
    for token in tokens:
        point = SyncPoint.parse(str(token))
        try:
            found = sender.handoff.reached(point)
        except WrongQuiver:
            continue  # another sender's
        fields = asdict(found)
        yield {**fields, "is_reached": found.is_reached, "is_complete": found.is_complete}


# ---------------------------------------------------------------------- changing


def _paused(handoff: Handoff, request: Request, *, is_paused: bool) -> Iterator[HandoffRecord]:
    """Pause or resume a node's reader: nothing is planned for it, and what waits is kept."""
    with handoff.lock:
        for name in _meant(handoff, request):
            reader = _worker(handoff, name).reader
            if is_paused:
                reader.pause()
            else:
                reader.resume()
            yield {"node": name, "is_paused": is_paused}


def _rate(sender: RunningSender, request: Request) -> Iterator[HandoffRecord]:
    """Change a rate until the next start, where the configuration counts again."""
    handoff, bytes_s = sender.handoff, request.get("bytes_s")
    if bytes_s is not None and not isinstance(bytes_s, int | float):
        raise BadInput("`bytes_s` is no rate", hint="send a number, or null for none")
    with handoff.lock:
        if request.get("node") is None:
            handoff.scheduler.set_rate(bytes_s)
            yield {"node": None, "rate_bytes_s": bytes_s}
        else:
            for name in _meant(handoff, request):
                _worker(handoff, name)
                handoff.scheduler.set_rate(bytes_s, name)
                yield {"node": name, "rate_bytes_s": bytes_s}
    handoff.quiver.arrivals.notify()


def _retry(sender: RunningSender, request: Request) -> Iterator[HandoffRecord]:
    handoff = sender.handoff
    with handoff.lock:
        for name in _meant(handoff, request):
            _worker(handoff, name).retry()
            yield {"node": name}
    handoff.quiver.arrivals.notify()


def _release(sender: RunningSender, request: Request) -> Iterator[HandoffRecord]:
    handoff = sender.handoff
    text = _text_or_none(request, "part")
    part = None if text is None else PartId.parse(text)
    with handoff.lock:
        for name in _meant(handoff, request):
            worker = handoff.workers.get(name)
            if worker is not None and (released := worker.release(part)):
                yield {"node": name, "released": released}
    handoff.quiver.arrivals.notify()


def _discard(sender: RunningSender, request: Request) -> Iterator[HandoffRecord]:
    """Give one part up; without a node, for every node that holds it."""
    handoff, part = sender.handoff, PartId.parse(_text(request, "part"))
    with handoff.lock:
        for name in _meant(handoff, request):
            worker = handoff.workers.get(name)
            if request.get("node") is None and (worker is None or part not in worker.held):
                continue
            for segment in _waiting(handoff, name):
                if part_id(segment.summary) == part:
                    yield from _give_up(handoff, name, segment, request, "discarded")


def _drop(sender: RunningSender, request: Request) -> Iterator[HandoffRecord]:
    """Give up every part that waits for a node and whose newest event came before a moment."""
    handoff, before_ns = sender.handoff, request.get("before_ns")
    if not isinstance(before_ns, int) or request.get("node") is None:
        raise BadInput("`node` or `before_ns` is missing", hint="send a name and a number")
    with handoff.lock:
        for name in _meant(handoff, request):
            for segment in _waiting(handoff, name):
                if segment.summary.max_ingestion_ns < before_ns:
                    yield from _give_up(handoff, name, segment, request, "dropped by an operator")


def _give_up(
    handoff: Handoff, name: str, segment: Segment, request: Request, reason: str
) -> Iterator[HandoffRecord]:
    """Write the exact range of a part into the ledger as dropped; `plan`: only say so."""
    part, is_lost = part_id(segment.summary), False
    if not request.get("plan"):
        worker = handoff.workers.get(name)
        if worker is None:
            subscriber = subscriber_of(name)
            is_lost = handoff.quiver.resolve_segment(subscriber, segment, Outcome.DROPPED, reason)
        else:
            is_lost = worker.discard(part, reason)
    yield {"node": name, **_about(segment), "is_dropped": is_lost}


def _add(sender: RunningSender, request: Request) -> Iterator[HandoffRecord]:
    """Keep data for one more data node; `plan`: only say whether that could be."""
    name, address = _text(request, "node"), _text(request, "address")
    added = sender.add(name, address, is_planned=bool(request.get("plan")))
    yield {"node": name, **added._asdict()}


def _forget(sender: RunningSender, request: Request) -> Iterator[HandoffRecord]:
    handoff, mode = sender.handoff, request.get("mode")
    if mode not in ("drop", "reassign"):
        raise BadInput(f"the mode is {mode!r}"[:200], hint="send drop or reassign")
    wanted = _text(request, "node")
    with handoff.lock:
        # Also one whose account a crash left open: see `Handoff.forget`.
        is_known = subscriber_of(wanted) in handoff.quiver.subscribers()
        waiting = _waiting(handoff, wanted) if is_known else []
    # Without that lock: a configuration takes the sender's own first.
    if is_known:
        yield {
            "node": wanted,
            "pending_parts": len(waiting),
            "pending_bytes": sum(one.disk_bytes for one in waiting),
            "reassigned_parts": 0 if request.get("plan") else sender.forget(wanted, mode),
        }


def _rebind(sender: RunningSender, request: Request) -> Iterator[HandoffRecord]:
    """Unbind a name; say what only the former node has, by the last statements of all."""
    handoff = sender.handoff
    with handoff.lock:
        for name in _meant(handoff, request):
            was, alone = handoff.membership.bound[name].node_id, _alone(handoff, name)
            if not request.get("plan"):
                handoff.rebind(name)
            yield {"node": name, "was_node_id": was, "alone": alone}


def _alone(handoff: Handoff, name: str) -> list[list[Any]]:
    """Return what no other node says that it stores, and this one said: quiver, first, end.

    It is what an operator has to know before a name is bound to another node: these are copies that
    nobody will count any more.
    """
    found: list[list[Any]] = []
    for quiver_id in handoff.quiver_ids:
        stored, others = IntervalSet(), IntervalSet()
        for other, prober in handoff.probers.items():
            said = prober.holdings.get(quiver_id, Holding(quiver_id)).stored
            if other == name:
                stored = said
            else:
                others = others.union(said)
        found += [[quiver_id, first, end] for first, end in stored.without(others)]
    return found


def _drain(sender: RunningSender, request: Request) -> Iterator[HandoffRecord]:
    handoff = sender.handoff
    with handoff.lock:
        for name in _meant(handoff, request):
            handoff.drain(name)
            pending = len(_waiting(handoff, name))
            yield {"node": name, "is_drained": handoff.is_drained(name), "pending_parts": pending}


# ----------------------------------------------------------------------- helping


def _meant(handoff: Handoff, request: Request) -> list[str]:
    """Return the names of the nodes that a request is about; all if it names none."""
    wanted = _text_or_none(request, "node")
    known = handoff.quiver.subscribers()
    return [
        name
        for name in sorted(handoff.membership.bound)
        if wanted in (None, name) and subscriber_of(name) in known
    ]


def _worker(handoff: Handoff, name: str) -> Worker:
    worker = handoff.workers.get(name)
    if worker is None:
        raise BadInput(
            f"data node {name!r} is not in the configuration: nothing is sent to it",
            hint="configure it again, or forget it",
        )
    return worker


def _waiting(handoff: Handoff, name: str) -> list[Segment]:
    subscriber = handoff.quiver.subscriber(subscriber_of(name))
    return list(waiting_segments(handoff.quiver.segments(), subscriber))


def _about(segment: Segment) -> HandoffRecord:
    summary = segment.summary
    return {
        "part": str(part_id(summary)),
        "size_bytes": segment.disk_bytes,
        "bundles": summary.bundles,
        "events": summary.events,
        "min_ingestion_ns": summary.min_ingestion_ns,
        "max_ingestion_ns": summary.max_ingestion_ns,
    }


def _state(handoff: Handoff, name: str, part: PartId) -> tuple[str, str]:
    """Return what the sender knows of a part for a node."""
    subscriber = handoff.quiver.snapshot(subscriber_of(name))
    for first, end, outcome in subscriber.losses:
        if first < part.end_seq and part.first_seq < end:
            return outcome.name.lower(), f"seqs {first} to {end - 1}"
    if name not in handoff.membership.owners.owners(*part[:2], part.end_seq):
        return "not an owner", ""
    if part.end_seq <= subscriber.start_seq:
        return "before its time", f"it was added at seq {subscriber.start_seq}"
    if not subscriber.unresolved(part.first_seq, part.end_seq):
        return "settled", ""
    worker = handoff.workers.get(name)
    return ("waiting", "") if worker is None else worker.waits_for(part)


def _says(handoff: Handoff, name: str, part: PartId) -> str:
    """Return what a node said of a part in its last statement."""
    prober = handoff.probers.get(name)
    if prober is None or not prober.is_bound:
        return "nothing: it was not met"
    holding = prober.holdings.get(part.quiver_id, Holding(part.quiver_id))
    if holding.stored.covers(part.first_seq, part.end_seq):
        return "stored"
    if holding.seen.covers(part.first_seq, part.end_seq):
        return "seen"
    return "not there"


def _bad_after() -> BadInput:
    return BadInput("`after` is not what an answer gave", hint="send `next` of the last record")


def _text(request: Request, name: str) -> str:
    value = _text_or_none(request, name)
    if value is None:
        raise BadInput(f"`{name}` is missing", hint="send text")
    return value


def _text_or_none(request: Request, name: str) -> str | None:
    value = request.get(name)
    if value is not None and not isinstance(value, str):
        raise BadInput(f"`{name}` is not text", hint="send text, or leave it out")
    return value
