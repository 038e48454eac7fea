"""Bundles decided, or taken back, by their numbers: for data that is not read in order.

Cursor and lease decide what they handed out. Dead letters are looked at by people and programs, now
this one and now that one, for months; whatever decides them names them. This needs no engine, only
what a reader needs, so that tools can do it in a directory without an owner, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from holdfast.errors import UnknownPosition
from holdfast.quiver.base.frame import NOTHING, Totals
from holdfast.quiver.ledger.ledger import resolution
from holdfast.quiver.ledger.subscriber import Outcome, Resolution, Subscriber
from holdfast.quiver.read.attachment import ReadableQuiver
from holdfast.quiver.read.readable_bundles import ReadableBundles
from holdfast.quiver.segments.segment import BundleRef


def waiting_refs(
    readable: ReadableBundles, subscriber: Subscriber, from_seq: int = 0
) -> Iterator[BundleRef]:
    """Yield the bundles that wait for a subscriber, from a seq on, in order."""
    for ref in readable.refs(max(from_seq, subscriber.start_seq)):
        if ref.seq not in subscriber.resolved:
            yield ref


def resolve_bundles(
    store: ReadableQuiver, name: str, seqs: Collection[int], outcome: Outcome, reason: str
) -> Totals:
    """Decide bundles of a subscriber, durably; return what was not decided before.

    A seq that is not there, or is decided already, is passed over: doing it again changes nothing.
    """
    lines: list[Resolution] = []
    decided, now_ns = NOTHING, store.clock.wall_ns()
    with store.ledger.lock:
        subscriber = store.ledger.subscriber(name)
        for ref in _refs_of(store.readable, subscriber, set(seqs)):
            counts = Totals(1, ref.events - subscriber.partial.get(ref.seq, 0))
            decided = decided.plus(*counts)
            # Numbers that were given out and never stored (a failed group, a restart) belong to
            # the bundle behind them. Decided with it, they do not hold the high-water mark back
            # for ever.
            first = ref.owned_from
            # Neighbours share a line: a purge of a million dead letters is one line, not a
            # million.
            if lines and lines[-1].end.seq == first:
                last = lines.pop()
                first, counts = last.start.seq, last.counts.plus(*counts)
            lines.append(resolution(now_ns, name, first, ref.seq + 1, outcome, counts, reason))
        if lines:
            store.ledger.resolve(lines)
            store.ledger.sync()
    if lines:
        store.freed()
        store.arrivals.notify()
    return decided


def _refs_of(
    readable: ReadableBundles, subscriber: Subscriber, seqs: set[int]
) -> Iterator[BundleRef]:
    """Yield what waits of some seqs, each with the unused numbers before it."""
    wanted = {seq for seq in seqs if seq >= subscriber.start_seq}
    if not wanted:
        return
    # From the bundle before the first one on: numbers between them belong to the first.
    before = next(readable.refs_back(min(wanted)), None)
    start = subscriber.start_seq if before is None else before.seq + 1
    for ref in readable.refs(max(start, subscriber.start_seq)):
        if ref.seq > max(wanted):
            return
        if ref.seq in wanted and ref.seq not in subscriber.resolved:
            yield ref


def replay_range(store: ReadableQuiver, name: str, first_seq: int, end_seq: int) -> Totals:
    """Take back the outcomes of a range, so that what is still there is handed out again.

    It counts as accepted once more, so that the subscriber's account stays true.
    """
    with store.ledger.lock:
        subscriber = store.ledger.subscriber(name)
        if not subscriber.start_seq <= first_seq < end_seq:
            raise UnknownPosition(
                f"no range from {first_seq} to {end_seq} for a subscriber that starts at "
                f"{subscriber.start_seq}",
                hint="name a range from its start on, first before end",
            )
        again = NOTHING
        for ref in store.readable.refs(first_seq):
            if ref.seq >= end_seq:
                break
            if ref.seq in subscriber.resolved:
                again = again.plus(1, ref.events)
        # Taking outcomes back does not change what they counted; the ledger never subtracts.
        # Instead the account begins that much earlier, so accepted = outcomes + pending holds with
        # the bundles counted twice: once as they were resolved, once as they wait again.
        before = subscriber.accepted_before.plus(-again.bundles, -again.events)
        store.ledger.change(
            "reopen", name, first_seq=first_seq, end_seq=end_seq, accepted_before=list(before)
        )
        store.ledger.sync()
    store.arrivals.notify()
    return again
