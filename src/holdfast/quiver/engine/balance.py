"""The balance of accounts: what the ledger says must agree with what is there.

Per subscriber: accepted = sum of outcomes + pending. `accepted` is counted by the writer, outcomes
by the ledger, pending by looking at the data. At every start the three are compared; what was
accepted and is neither resolved nor there is damage, and gets that outcome, so that the equation
holds again and nobody waits for what will never come.

The other way round, the ledger may know of more than the log does: damage at the very end of a log
looks like a torn tail that was never accepted. Who has an outcome for a bundle proves that it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from holdfast.quiver.base.frame import NOTHING, Totals
from holdfast.quiver.base.held_bundle import HeldBundle
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.quiver.ledger.ledger import Ledger, LedgerState, resolution
from holdfast.quiver.ledger.subscriber import Outcome, Resolution, Subscriber
from holdfast.quiver.log.quarantine import Damage
from holdfast.quiver.read.readable_bundles import ReadableBundles


class Balance(NamedTuple):
    """One subscriber's account, in bundles and in events."""

    subscriber: str
    accepted: Totals
    outcomes: dict[Outcome, Totals]
    pending: Totals
    pending_bytes: int

    @property
    def holds(self) -> bool:
        """Whether the equation is true."""
        total = self.pending
        for counts in self.outcomes.values():
            total = total.plus(*counts)
        return total == self.accepted


def balance(subscriber: Subscriber, readable: ReadableBundles) -> Balance:
    """Return the account of a subscriber; pending is counted by looking at the data.

    The caller holds the ledger's lock. What is appended meanwhile is on neither side.
    """
    last_seq, accepted = readable.extent()
    pending, pending_bytes = readable.waiting(subscriber, last_seq)
    before = subscriber.accepted_before
    return Balance(
        subscriber.name,
        Totals(accepted.bundles - before.bundles, accepted.events - before.events),
        {outcome: subscriber.counts.get(outcome, NOTHING) for outcome in Outcome},
        pending,
        pending_bytes,
    )


def proven(ledger: Ledger, readable: ReadableBundles, accepted: Totals) -> Totals:
    """Return what was accepted at least, by the log or by what the ledger says.

    Three independent witnesses for the same number; the largest is right, because each of them can
    only forget. Per subscriber that is what came before it, what it resolved, and what still
    waits.
    """
    for subscriber in ledger.state.subscribers.values():
        found, _ = readable.waiting(subscriber)
        known = subscriber.accepted_before.plus(*subscriber.resolved_totals).plus(*found)
        accepted = Totals(*map(max, accepted, known))
    return accepted


def write_off_lost(ledger: Ledger, lost: Sequence[tuple[HeldBundle, str]], now_ns: int) -> None:
    """Let bundles that are lost, one by one, have that outcome for all who wait for them."""
    with ledger.lock:
        # What somebody has already resolved is no loss to them, and a second outcome would break
        # the equation from the other side.
        lines = [
            resolution(
                now_ns,
                subscriber.name,
                held.seq,
                held.seq + 1,
                Outcome.DAMAGED,
                Totals(1, held.events - subscriber.partial.get(held.seq, 0)),
                reason,
            )
            for subscriber in ledger.state.subscribers.values()
            for held, reason in lost
            if subscriber.unresolved(held.seq, held.seq + 1)
        ]
        if lines:
            ledger.resolve(lines)
            ledger.sync()


# Why something was written off that no damage explains.
NO_LONGER_THERE = "no longer there"


def reconcile(
    ledger: Ledger,
    readable: ReadableBundles,
    accepted: Totals,
    damages: Sequence[Damage],
    now_ns: int,
) -> list[Resolution]:
    """Write off what is neither resolved nor there; return the lines written.

    Runs once per start, single-threaded. After it `Balance.holds` is true for everyone, and stays
    true, because from here on writer and ledger only ever move both sides together.
    """
    lines: list[Resolution] = []
    for subscriber in ledger.state.subscribers.values():
        expected = subscriber.pending(accepted)
        found, _ = readable.waiting(subscriber)
        # Both are compared: a bundle without events is missing in one count only.
        missing = Totals(expected.bundles - found.bundles, expected.events - found.events)
        if missing != NOTHING:
            lines += _write_off(subscriber, missing, readable, damages, now_ns)
    if lines:
        ledger.resolve(lines)
        ledger.sync()
    return lines


def vanished(written_off: Sequence[Resolution]) -> list[Damage]:
    """Return what was written off without any trace of it: whole files that are gone.

    Several subscribers miss the same range, each by what it had not resolved. One damage is
    reported per range, with the largest count: that of whoever had read least.
    """
    found: dict[tuple[int, int], Damage] = {}
    for line in written_off:
        first, end = line.start.seq, line.end.seq
        if line.reason != NO_LONGER_THERE or line.counts == NOTHING:
            continue
        known = found.get((first, end))
        if known is None or (known.bundles or 0) < line.counts.bundles:
            last_seq = max(first, end - 1)
            found[first, end] = Damage(
                "log or segments", NO_LONGER_THERE, 0, 0, first, last_seq, *line.counts
            )
    return list(found.values())


def with_known_start(
    damage: Damage, spans: Iterable[tuple[int, int]], state: LedgerState
) -> Damage:
    """Name damage of unknown extent from the first seq on that nothing vouches for.

    The log alone names it from the last bundle on that it read itself, which may be none. What a
    segment or another file of the log holds was not in it, and what every subscriber has resolved
    is no loss to any.
    """
    if damage.first_seq is None or damage.last_seq is not None or damage.bundles is not None:
        return damage
    decided_seq = min((s.high_water_seq for s in state.subscribers.values()), default=0)
    vouched_for = IntervalSet([(0, decided_seq), *spans])
    return replace(damage, first_seq=vouched_for.first_missing(damage.first_seq))


def spans_of(readable: ReadableBundles) -> list[tuple[int, int]]:
    """Return the seqs that can be read, as ranges; a segment counts as a whole."""
    covered, tail = readable.snapshot()
    spans = [(s.summary.first_seq, s.summary.last_seq + 1) for s in covered]
    # A buffer may reach over a log file that is gone.
    return [*spans, *IntervalSet((one.seq, one.seq + 1) for held in tail for one in held)]


def _write_off(
    subscriber: Subscriber,
    missing: Totals,
    readable: ReadableBundles,
    damages: Sequence[Damage],
    now_ns: int,
) -> list[Resolution]:
    """Return lines that resolve the empty ranges; the first carries the count.

    How many bundles are missing is known exactly, where they were is not: numbers that were never
    given out leave the same holes. So the whole count goes on the first line, the other ranges are
    closed with a count of zero, and the sum is right however many ranges there are.
    """
    lines = []
    for first, end, reason in _empty_ranges(subscriber, missing, readable, damages):
        counts, missing = missing, NOTHING
        lines.append(
            resolution(now_ns, subscriber.name, first, end, Outcome.DAMAGED, counts, reason)
        )
    if missing != NOTHING:
        # No hole anywhere, and yet the count is short: the loss gets a line with an empty range,
        # which resolves no seq and only carries the count.
        seq = subscriber.high_water_seq
        reason = NO_LONGER_THERE
        lines.append(
            resolution(now_ns, subscriber.name, seq, seq, Outcome.DAMAGED, missing, reason)
        )
    return lines


def _empty_ranges(
    subscriber: Subscriber, missing: Totals, readable: ReadableBundles, damages: Sequence[Damage]
) -> list[tuple[int, int, str]]:
    """Return where the missing bundles may have been: where something is damaged, or anywhere.

    Known damage is preferred because it gives the reader a reason that names a file. Only if it
    does not account for all that is missing is every other hole written off too: which of them
    held the rest, nobody can tell any more.
    """
    ranges: list[tuple[int, int, str]] = []
    explained_bundles = 0
    for damage in damages:
        if damage.first_seq is not None and damage.last_seq is not None:
            first_seq = max(damage.first_seq, subscriber.start_seq)
            for first, end in subscriber.resolved.holes(first_seq, damage.last_seq + 1):
                # A damaged file says which seqs it spans, not which of them survive elsewhere,
                # such as in a segment sealed from the same log. A range with anything readable in
                # it is left alone.
                if next((r for r in readable.refs(first) if r.seq < end), None) is None:
                    ranges.append((first, end, f"{damage.source}: {damage.reason}"))
                    explained_bundles += damage.bundles or 0
    if explained_bundles >= missing.bundles:
        return ranges
    known = {(first, end) for first, end, _ in ranges}
    low = subscriber.start_seq
    for first, end in sorted(spans_of(readable)):
        holes = subscriber.resolved.holes(low, max(low, first))
        ranges += [(*hole, NO_LONGER_THERE) for hole in holes if hole not in known]
        low = max(low, end)
    return ranges


def balance_fields(account: Balance) -> dict[str, Any]:
    """Return a subscriber's account as JSON can hold it."""
    return {
        "subscriber": account.subscriber,
        "accepted": account.accepted._asdict(),
        "outcomes": {o.name.lower(): counts._asdict() for o, counts in account.outcomes.items()},
        "pending": account.pending._asdict(),
        "pending_bytes": account.pending_bytes,
        "holds": account.holds,
    }
