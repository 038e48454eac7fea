"""Salvage: read whatever is sound out of a damaged directory into a new quiver.

Segments whose every checksum is right are copied as they are. What is sound in the others, bundle
by bundle, and what the write-ahead log holds, goes into the WAL of the new quiver under the same
numbers; its owner seals it. Of a bundle with damaged slots the sound ones are saved, with a note of
what is missing: it stays damaged for subscribers, and its rows readable for who asks for them.
Quarantine is searched too: what a start set aside may be readable here. Subscribers keep their
progress, as far as the ledger can be read.

The new quiver has a new id, and nobody who was attached to the old one may go on, as after a
restore. What was lost is recorded as damaged for every subscriber that still waited for it, when
the new quiver is opened: then the equation holds again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import NamedTuple

import pyarrow as pa

from holdfast.errors import BadInput, Damaged
from holdfast.quiver.base import names
from holdfast.quiver.base.bundle import Encoded, encode_arrow, encode_raw
from holdfast.quiver.base.frame import BODY_BYTES_MAX, NO_WATERMARK, NOTHING, FrameKind, Totals
from holdfast.quiver.base.held_bundle import HeldBundle
from holdfast.quiver.base.identity import QuiverIdentity
from holdfast.quiver.ledger.ledger import LedgerState
from holdfast.quiver.log.replay import Replay, WalContent, read_wal_file
from holdfast.quiver.log.wal import HEADER_BYTES, SEQ_BLOCK, HeaderFault, NewerVersion
from holdfast.quiver.segments import manifest
from holdfast.quiver.segments.segment import Bundle, Catalog, Segment
from holdfast.quiver.tools.assemble import Assembly, OnRead, check_apart, fenced
from holdfast.quiver.tools.changes import readable_of
from holdfast.quiver.tools.inspect import QuiverFinding, Severity, inspect
from holdfast.quiver.tools.loose import LooseSegment, headless_content
from holdfast.seam import Seam
from holdfast.seam.disk import DirEntry, Disk, entries_of, read_pages
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
    # Of those: with what is left of their rows, because some of their slots are damaged.
    in_part: Totals = NOTHING
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
    # Everything is read twice, once to count and once to write: the WAL's header has to say how
    # much was accepted before the first frame is written, and memory does not hold what is
    # salvaged.
    result, seqs_in_part = _count(wreck, Salvaged(identity.quiver_id))
    assembly = Assembly(seam, target, identity)
    for segment in wreck.whole:
        assembly.copy_segment(segment.path, lambda _: None)
    total = result.from_damaged_segments.plus(*result.from_log)
    assembly.write_wal(_bundles(wreck), total, _accepted(wreck, result), _seq_limit(wreck))
    # Looked up in the new directory, which has its segments and its log by now, and no ledger yet.
    state = _fit(fenced(inventory.ledger.state, now_ns), seam, target, seqs_in_part)
    assembly.write_ledger(state, inventory.ledger.next_number)
    assembly.finish(None)
    result.subscribers = list(state.subscribers)
    return result


def _bundles(wreck: Wreck) -> Iterator[HeldBundle]:
    for damaged in wreck.damaged:
        yield from (one.held for one in wreck.bundles_of(damaged))
    yield from wreck.log


# ----------------------------------------------------------------------- counting


def _count(wreck: Wreck, result: Salvaged) -> tuple[Salvaged, set[int]]:
    """Read everything once, to know what comes out of it before any of it is written.

    Returns with it which bundles are saved in part.
    """
    result.segments_copied = len(wreck.whole)
    result.from_log = _totals(wreck.log)
    whole = NOTHING
    for segment in wreck.whole:
        whole = whole.plus(segment.summary.bundles, segment.summary.events)
    spooled: set[int] = set()
    in_part: set[int] = set()
    for damaged in wreck.damaged:
        _count_range(wreck, damaged, result, spooled, in_part)
    result.saved = whole.plus(*result.from_damaged_segments).plus(*result.from_log)
    _count_holes(wreck, result, spooled)
    result.findings = wreck.findings
    return result, in_part


def _count_range(
    wreck: Wreck, damaged: DamagedRange, result: Salvaged, spooled: set[int], in_part: set[int]
) -> None:
    """Count what can be read of a range of seqs whose segments are all damaged."""
    name, unverified = damaged.name, NOTHING
    in_log = [h for h in wreck.log if name.first_seq <= h.seq <= name.last_seq]
    saved = partly = NOTHING
    slots: set[str] = set()
    for held, is_verified, damaged_slots in wreck.bundles_of(damaged):
        spooled.add(held.seq)
        saved = saved.plus(1, held.events)
        unverified = unverified if is_verified else unverified.plus(1, held.events)
        if damaged_slots:
            in_part.add(held.seq)
            partly = partly.plus(1, held.events)
            slots.update(damaged_slots)
    known = saved.plus(*_totals(in_log))
    lost = Totals(max(0, name.bundles - known.bundles), max(0, name.events - known.events))
    result.from_damaged_segments = result.from_damaged_segments.plus(*saved)
    result.unverified = result.unverified.plus(*unverified)
    result.in_part = result.in_part.plus(*partly)
    result.lost = result.lost.plus(*lost)
    what = f"damaged: {saved.bundles} of {name.bundles} bundles saved from it"
    if partly != NOTHING:
        what += f", {partly.bundles} of them without {', '.join(sorted(slots))}"
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
    """Return where numbering goes on: behind everything that anything tells of.

    A block beyond everything, since files that are lost entirely may have given out more: skipping
    numbers costs nothing, using one twice would put two bundles under it.
    """
    limits = [content.header.seq_limit for content in wreck.inventory.wal]
    last = max(wreck.inventory.last_seq, wreck.replay.last_seq)
    return max([*limits, wreck.inventory.ledger.state.floor_seq, last + 1]) + SEQ_BLOCK


def _fit(state: LedgerState, seam: Seam, target: PurePath, seqs_in_part: set[int]) -> LedgerState:
    """Return the state with accounts that can hold.

    What is missing to a subscriber is recorded as damaged when the quiver is opened. One that has
    resolved more than was accepted, because the count of that is lost, gets the difference as
    accepted.
    Within a bundle that is saved in part, rows are no longer those that somebody resolved: what is
    left of it waits as a whole.
    """
    inventory = inspect(seam.disk, target)
    readable = readable_of(seam, inventory)
    subscribers = {}
    for name, known in state.subscribers.items():
        rows = {seq: row for seq, row in known.partial.items() if seq not in seqs_in_part}
        subscriber = replace(known, partial=rows)
        waiting, _ = readable.waiting(subscriber)
        expected = subscriber.pending(inventory.accepted)
        surplus = Totals(
            max(0, waiting.bundles - expected.bundles), max(0, waiting.events - expected.events)
        )
        before = subscriber.accepted_before.plus(-surplus.bundles, -surplus.events)
        subscribers[name] = replace(subscriber, accepted_before=before)
    return replace(state, subscribers=subscribers)


class SavedBundle(NamedTuple):
    """What could be read of a bundle."""

    held: HeldBundle
    # Whether checksums say that it is right.
    is_verified: bool
    # What it lacks.
    damaged_slots: tuple[str, ...]


@dataclass
class DamagedRange:
    """Segments of one range of seqs, none of which is whole."""

    name: names.SegmentName
    segments: list[Segment] = field(default_factory=list)


class Wreck:
    """What there is: whole segments, damaged ones, and the write-ahead log."""

    def __init__(self, disk: Disk, root: PurePath, on_read: OnRead) -> None:
        self.inventory = inspect(disk, root)
        self.whole: list[Segment] = []
        self.damaged: list[DamagedRange] = []
        # What was left out, and why.
        self.findings: list[QuiverFinding] = []
        self._disk = disk
        self._root = root
        self._on_read = on_read
        self._sort_segments()
        self.replay = self._replay()
        # What the log holds beyond the whole segments, in order.
        self.log = [self.replay.bundles[seq] for seq in sorted(self.replay.bundles)]

    def _list(self, folder: str) -> Iterator[tuple[PurePath, str, DirEntry]]:
        """Yield what is in a folder: its path, and the name it had before any quarantine."""
        path = self._root / folder
        for entry in entries_of(self._disk, path):
            plain = entry.name
            if folder == names.QUARANTINE_DIR:
                plain = names.without_quarantine_number(entry.name)
            yield path / entry.name, plain, entry

    def tell(
        self,
        path: PurePath,
        what: str,
        severity: Severity = Severity.WARNING,
        name: names.SegmentName | None = None,
    ) -> None:
        """Note what was left out or lost."""
        where = str(path.relative_to(self._root))
        seqs = () if name is None else ((name.first_seq, name.last_seq),)
        act = "look for it in a backup, or ask its producers to send it again"
        self.findings.append(QuiverFinding(severity, where, what, act, seqs))

    # ---------------------------------------------------------------- segments

    def _sort_segments(self) -> None:
        """Tell whole segments from damaged ones, also among what a start set aside."""
        ranges: dict[tuple[int, int], DamagedRange] = {}
        for folder in (names.SEGMENTS_DIR, names.QUARANTINE_DIR):
            for path, plain, entry in self._list(folder):
                name = names.parse_segment_dir(plain)
                segment = self._open(path, name) if name is not None and entry.is_dir else None
                if name is not None and segment is not None:
                    known = ranges.setdefault((name.first_seq, name.last_seq), DamagedRange(name))
                    known.segments.append(segment)
        for rivals in ranges.values():
            whole = next((s for s in rivals.segments if self._is_whole(s)), None)
            if whole is None:
                self.damaged.append(rivals)
            else:
                self.whole.append(whole)

    def _open(self, path: PurePath, name: names.SegmentName) -> Segment | None:
        if name.segment_seq in self.inventory.ledger.state.deleted_segments:
            return None
        try:
            summary = manifest.read(self._disk, path)
        except manifest.NewerManifest as newer:
            self.tell(path, f"written by a newer program: {newer}", Severity.ERROR, name)
            return None
        except (OSError, manifest.ManifestFault):
            return LooseSegment(self._disk, path, name)
        if summary.quiver_id not in self.inventory.own_ids:
            self.tell(path, f"a segment of another quiver, {summary.quiver_id}: left out")
            return None
        return Segment(self._disk, path, summary)

    def _is_whole(self, segment: Segment) -> bool:
        """Whether every byte is what was written, under the name that says so."""
        if isinstance(segment, LooseSegment):
            return False
        try:
            segment.stored_table()
            found = read_pages(self._disk, segment.path / names.MANIFEST).view
            if manifest.sound_copies(bytes(found)) < manifest.COPIES:
                return False
            for file in segment.files:
                for index, batch in enumerate(file.summary.batches):
                    file.batch(index)
                    self._on_read(batch.length)
                file.check_frame()
        except Damaged:
            return False
        return names.segment_dir(segment.summary.name) == segment.path.name

    # --------------------------------------------------------------------- WAL

    def _replay(self) -> Replay:
        """Return what the log holds beyond the whole segments."""
        catalog = Catalog()
        for segment in self.whole:
            catalog.add(segment)
        replay = Replay(catalog, keeps_payloads=True)
        replay.walk_all([*self.inventory.wal, *self._other_wal_files()])
        return replay

    def _other_wal_files(self) -> Iterator[WalContent]:
        """Yield the WAL files without a header, and those in quarantine."""
        own = {content.path for content in self.inventory.wal}
        for folder in (names.WAL_DIR, names.QUARANTINE_DIR):
            for path, plain, entry in self._list(folder):
                number = names.parse_wal_file(plain)
                is_file = number is not None and not entry.is_dir
                if not is_file or entry.size_bytes <= HEADER_BYTES or path in own:
                    continue
                assert number is not None
                content = self._read_wal(path, number)
                if content is not None:
                    yield content

    def _read_wal(self, path: PurePath, number: int) -> WalContent | None:
        """Return a file that a start would not read, if anything in it is sound."""
        try:
            content = read_wal_file(self._disk, path)
        except OSError as error:
            self.tell(path, f"it cannot be read: {error.strerror}", Severity.ERROR)
            return None
        except HeaderFault:
            found = headless_content(self._disk, path, number)
            if found is None:
                self.tell(path, "it has neither a header nor a sound frame", Severity.ERROR)
            return found
        except NewerVersion as newer:
            self.tell(path, f"written by a newer program: {newer}", Severity.ERROR)
            return None
        owner = content.header.quiver_id
        if owner not in self.inventory.own_ids:
            self.tell(path, f"a WAL file of another quiver, {owner}: left out")
            return None
        return content

    # ------------------------------------------------------------------ bundles

    def bundles_of(self, damaged: DamagedRange) -> Iterator[SavedBundle]:
        """Yield what can be read of damaged segments.

        Each bundle comes once: out of the log if that holds it, too, or else whole if it can be had
        whole anywhere.
        """
        done: set[int] = set()
        has_parts = False
        for in_part in (False, True):
            # Those with checksums first.
            for segment in sorted(damaged.segments, key=lambda s: isinstance(s, LooseSegment)):
                for one in _readable(segment) if has_parts or not in_part else ():
                    seq = one.held.seq
                    known = seq in done or seq in self.replay.bundles
                    if known or self.replay.catalog.covers(seq):
                        continue
                    if one.damaged_slots and not in_part:
                        has_parts = True
                        continue
                    done.add(seq)
                    yield one


def _totals(bundles: list[HeldBundle]) -> Totals:
    """Return how many bundles and events these are."""
    return Totals(len(bundles), sum(held.events for held in bundles))


def _readable(segment: Segment) -> Iterator[SavedBundle]:
    """Yield the bundles of a segment that can be read, whole or in part."""
    is_verified = not isinstance(segment, LooseSegment)
    if isinstance(segment, LooseSegment):
        segment = segment.again()  # what it reads is forgotten with it
    events = sum(segment.bundle_table.column("events").to_pylist())
    for bundle in segment.bundles():
        if (
            bundle.kind == FrameKind.CONTROL
            and bundle.events == 0
            and events < segment.summary.events
        ):
            continue  # where rows are missing nobody knows that this never had any
        held = _held(bundle, may_lack_slots=is_verified)
        if held is not None:
            yield SavedBundle(held, is_verified, bundle.damaged_slots)


def _held(bundle: Bundle, *, may_lack_slots: bool) -> HeldBundle | None:
    """Return a bundle as it was appended, or its sound slots; None if it cannot be had like that.

    Only checksums tell a slot that is damaged from one that is read wrongly.
    """
    try:
        encoded = _encode(bundle)
    except (Damaged, BadInput, pa.ArrowException, ValueError, KeyError):
        return None
    # Rows are missing that nobody could name. Less than was appended is not the bundle; it counts
    # as lost.
    if encoded.events != bundle.events and not (may_lack_slots and bundle.damaged_slots):
        return None
    return HeldBundle(
        bundle.seq,
        bundle.kind,
        bundle.ingestion_ns,
        NO_WATERMARK if bundle.watermark_ns is None else bundle.watermark_ns,
        bundle.producer,
        bundle.epoch,
        encoded.events,
        encoded.payload,
    )


def _encode(bundle: Bundle) -> Encoded:
    if bundle.kind == FrameKind.CONTROL:
        return Encoded(FrameKind.CONTROL, b"", 0)
    if bundle.kind == FrameKind.ARROW:
        return encode_arrow(bundle.sound_slots, BODY_BYTES_MAX, bundle.damaged_slots)
    ((slot, batch),) = bundle.slots.items()
    headers = [None if h is None else json.loads(h) for h in batch.column("headers").to_pylist()]
    return encode_raw(slot, bundle.payloads, headers, BODY_BYTES_MAX)
