"""Salvage: read whatever is sound out of a damaged directory into a new quiver.

Segments whose every checksum is right are copied as they are. What is sound in the others, bundle
by bundle, and what the write-ahead log holds, goes into the WAL of the new quiver under the same
numbers; its owner seals it. Quarantine is searched too: what a start set aside may be readable
here. Subscribers keep their progress, as far as the ledger can be read.

The new quiver has a new id, and nobody who was attached to the old one may go on, as after a
restore. What was lost is recorded as damaged for every subscriber that still waited for it, when
the new quiver is opened: then the equation holds again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from holdfast.quiver.base import names
from holdfast.quiver.base.frame import NOTHING, Totals
from holdfast.quiver.base.held_bundle import HeldBundle
from holdfast.quiver.base.identity import QuiverIdentity
from holdfast.quiver.ledger.ledger import LedgerState
from holdfast.quiver.log.wal import SEQ_BLOCK
from holdfast.quiver.tools.assemble import Assembly, OnRead, check_apart
from holdfast.quiver.tools.backup import fenced
from holdfast.quiver.tools.findings import QuiverFinding, Severity
from holdfast.quiver.tools.inspect import inspect
from holdfast.quiver.tools.offline import shelf_of
from holdfast.quiver.tools.wreck import DamagedRange, Wreck, totals
from holdfast.seam import Seam
from holdfast.seam.randomness import random_uuid


@dataclass
class Salvaged:
    """What was saved, and what was not."""

    quiver_id: str
    segments_copied: int = 0
    saved: Totals = NOTHING
    # Of those: bundle by bundle out of damaged segments, and out of the write-ahead log.
    from_damaged_segments: Totals = NOTHING
    from_log: Totals = NOTHING
    # Of those: read without a checksum that says that they are right.
    unverified: Totals = NOTHING
    # As far as is known: names and headers that are lost themselves tell nothing.
    lost: Totals = NOTHING
    subscribers: list[str] = field(default_factory=list)
    findings: list[QuiverFinding] = field(default_factory=list)


def salvage(seam: Seam, source: PurePath, target: PurePath, on_read: OnRead) -> Salvaged:
    """Read what is sound in `source` into a new quiver in `target`."""
    check_apart(source, target)
    wreck = Wreck(seam.disk, source, on_read)
    inventory, now_ns = wreck.inventory, seam.clock.wall_ns()
    identity = QuiverIdentity(
        random_uuid(seam.randomness), now_ns, tuple(sorted(inventory.own_ids))
    )
    result = _count(wreck, Salvaged(identity.quiver_id))
    assembly = Assembly(seam, target, identity)
    for segment in wreck.whole:
        assembly.copy_segment(segment.path, lambda _: None)
    total = result.from_damaged_segments.plus(*result.from_log)
    assembly.write_wal(_bundles(wreck), total, _accepted(wreck, result), _seq_limit(wreck))
    state = _fit(fenced(inventory.ledger.state, now_ns), seam, target)
    assembly.write_ledger(state, inventory.ledger.next_number)
    assembly.finish(None)
    result.subscribers = list(state.subscribers)
    return result


def _bundles(wreck: Wreck) -> Iterator[HeldBundle]:
    for damaged in wreck.damaged:
        yield from (held for held, _ in wreck.bundles_of(damaged))
    yield from wreck.log


# ----------------------------------------------------------------------- counting


def _count(wreck: Wreck, result: Salvaged) -> Salvaged:
    """Read everything once, to know what comes out of it before any of it is written."""
    result.segments_copied = len(wreck.whole)
    result.from_log = totals(wreck.log)
    whole = NOTHING
    for segment in wreck.whole:
        whole = whole.plus(segment.summary.bundles, segment.summary.events)
    spooled: set[int] = set()
    for damaged in wreck.damaged:
        _count_range(wreck, damaged, result, spooled)
    result.saved = whole.plus(*result.from_damaged_segments).plus(*result.from_log)
    _count_holes(wreck, result, spooled)
    result.findings = wreck.findings
    return result


def _count_range(wreck: Wreck, damaged: DamagedRange, result: Salvaged, spooled: set[int]) -> None:
    name, unverified = damaged.name, NOTHING
    in_log = [h for h in wreck.log if name.first_seq <= h.seq <= name.last_seq]
    saved = NOTHING
    for held, verified in wreck.bundles_of(damaged):
        spooled.add(held.seq)
        saved = saved.plus(1, held.events)
        unverified = unverified if verified else unverified.plus(1, held.events)
    known = saved.plus(*totals(in_log))
    lost = Totals(max(0, name.bundles - known.bundles), max(0, name.events - known.events))
    result.from_damaged_segments = result.from_damaged_segments.plus(*saved)
    result.unverified = result.unverified.plus(*unverified)
    result.lost = result.lost.plus(*lost)
    what = f"damaged: {saved.bundles} of {name.bundles} bundles saved from it"
    if unverified != NOTHING:
        what += ", without checksums to prove them"
    severity = Severity.ERROR if lost != NOTHING else Severity.WARNING
    wreck.tell(damaged.segments[0].path, what, severity, name)


def _count_holes(wreck: Wreck, result: Salvaged, spooled: set[int]) -> None:
    """Count what holes in the log swallowed, unless a segment had it."""
    for content, damage in wreck.replay.real_damages():
        if damage.first_seq in spooled:
            continue
        lost = Totals(damage.bundles or 0, damage.events or 0)
        result.lost = result.lost.plus(*lost)
        count = "nothing tells how many" if damage.bundles is None else lost.bundles
        what = f"{damage.reason} at byte {damage.offset}: {count} bundles lost"
        first, last = damage.first_seq or 0, damage.last_seq
        seqs = names.SegmentName(0, first, first if last is None else last, *lost)
        wreck.tell(content.path, what, Severity.ERROR, seqs)


# ------------------------------------------------------------------- carrying on


def _accepted(wreck: Wreck, result: Salvaged) -> Totals:
    """Return what was ever accepted, as far as anything tells."""
    known = wreck.inventory.accepted
    found = wreck.inventory.ledger.state.deleted.plus(*result.saved).plus(*result.lost)
    return Totals(max(known.bundles, found.bundles), max(known.events, found.events))


def _seq_limit(wreck: Wreck) -> int:
    """Return where numbering goes on: behind everything that anything tells of."""
    limits = [content.header.seq_limit for content in wreck.inventory.wal]
    last = max(wreck.inventory.last_seq, wreck.replay.last_seq)
    return max([*limits, wreck.inventory.ledger.state.floor_seq, last + 1]) + SEQ_BLOCK


def _fit(state: LedgerState, seam: Seam, target: PurePath) -> LedgerState:
    """Return the state with accounts that can hold.

    What is missing to a subscriber is recorded as damaged when the quiver is opened. One that has
    resolved more than was accepted, because the count of that is lost, gets the difference as
    accepted.
    """
    inventory = inspect(seam.disk, target)
    shelf = shelf_of(seam, inventory)
    subscribers = {}
    for name, subscriber in state.subscribers.items():
        waiting, _ = shelf.waiting(subscriber)
        expected = subscriber.pending(inventory.accepted)
        surplus = Totals(
            max(0, waiting.bundles - expected.bundles), max(0, waiting.events - expected.events)
        )
        before = subscriber.accepted_before.plus(-surplus.bundles, -surplus.events)
        subscribers[name] = replace(subscriber, accepted_before=before)
    return replace(state, subscribers=subscribers)
