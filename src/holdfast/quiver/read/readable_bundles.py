"""Every bundle that can be read, sealed or not, in the order of the seqs.

Readers see what is on stable storage and nothing further. Sealed bundles come from the segments,
the newest from the buffers; where the one ends and the other begins is nobody else's business.

Nothing here locks the writer or the sealer out, so every look is a race with a buffer being handed
over, a segment being added, or one being removed. The order of reading settles each of them. A
bundle moves from the open buffer to the sealer to the catalog and from there to the trash; readers
look in that same direction, so a bundle that moves is found at its next station, never at neither.
What is found at both is left out once.
"""

from __future__ import annotations

import bisect
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from holdfast.errors import Damaged
from holdfast.quiver.base.bundle import decode_arrow, raw_head
from holdfast.quiver.base.frame import NOTHING, FrameKind, Totals
from holdfast.quiver.base.held_bundle import HeldBundle, Unread
from holdfast.quiver.ledger.subscriber import Subscriber
from holdfast.quiver.log.writer_state import OpenBuffer, WriterCounters
from holdfast.quiver.segments.segment import (
    Bundle,
    BundleRef,
    Catalog,
    Segment,
    SegmentIndex,
    held_bundle,
)

SEQ_MAX = 2**63 - 1
# Bundle tables kept as Python lists; one is some MB for a segment of tiny bundles.
INDEXES_MAX = 8
# Bundles that are not sealed yet of which the slots are looked at, when ages are asked for.
LOOKED_AT_MAX = 2000


class NewestBundles(Protocol):
    """What was accepted last: the writer, or what a tool found in the log of a quiver."""

    buffer: OpenBuffer
    synced_seq: int
    published: tuple[int, Totals]
    counters: WriterCounters


class ReadableBundles:
    """All readable bundles. Safe to use from many threads."""

    def __init__(
        self,
        catalog: Catalog,
        writer: NewestBundles,
        sealing: Callable[[], Iterable[OpenBuffer]] = tuple,
    ) -> None:
        """Read segments, then the buffers that `sealing` returns, then the writer's."""
        self._catalog = catalog
        self._writer = writer
        self._sealing = sealing
        self._indexes: OrderedDict[int, SegmentIndex] = OrderedDict()
        self._lock = threading.Lock()

    def tail(self, from_seq: int = 0, *, synced_only: bool = True) -> list[list[HeldBundle]]:
        """Return the bundles from a seq on that are not in segments, by buffer, oldest first."""
        # What is not counted yet is not read: it could be resolved before it was accepted.
        newest_seq = self.newest_seq() if synced_only else SEQ_MAX
        # The open buffer before the sealer's: if it is handed over meanwhile, it is found there.
        # One read of the attribute: the writer replaces the buffer object, and two reads could be
        # of two.
        open_bundles = self._writer.buffer.bundles
        lists = [buffer.bundles for buffer in self._sealing()]
        # Handed over between the two reads: it is in the sealer's list already.
        if open_bundles and all(open_bundles is not bundles for bundles in lists):
            lists.append(open_bundles)
        tail = []
        for bundles in lists:
            first = bisect.bisect_left(bundles, from_seq, key=_seq_of)
            end = bisect.bisect_right(bundles, newest_seq, key=_seq_of)
            if first < end:
                tail.append(bundles[first:end])
        return tail

    def snapshot(
        self, from_seq: int = 0, *, synced_only: bool = True
    ) -> tuple[tuple[Segment, ...], list[list[HeldBundle]]]:
        """Return segments and tail such that no bundle is in both and none is missed."""
        # The tail first: a buffer sealed in between is then in the catalog as well, and left out.
        tail = self.tail(from_seq, synced_only=synced_only)
        segments = self._catalog.snapshot()
        return segments, [held for held in tail if not _overlaps(held, segments)]

    def refs(self, from_seq: int, *, sealed_only: bool = False) -> Iterator[BundleRef]:
        """Yield the readable bundles from a seq on, in order, up to the first not sealed."""
        end = from_seq
        for part in self._parts(from_seq):
            if sealed_only and isinstance(part, list):
                return
            places, ref_at = self._look_into(part, from_seq, SEQ_MAX)
            for place in places:
                ref = ref_at(place, end)
                yield ref
                # The next bundle owns every number from here on that no bundle has.
                end = ref.seq + 1

    def refs_back(self, before_seq: int) -> Iterator[BundleRef]:
        """Yield the readable bundles before a seq, newest first.

        A reference names the unused numbers in front of its bundle, which are known only once the
        next older bundle is. So each is yielded one step late.
        """
        newer: BundleRef | None = None
        for part in reversed(self._parts(0)):
            if _first_seq(part) >= before_seq:
                continue  # without reading its table: far back there are very many of these
            places, ref_at = self._look_into(part, 0, before_seq)
            for place in reversed(places):
                ref = ref_at(place, 0)
                if newer is not None:
                    yield newer._replace(owned_from=ref.seq + 1)
                newer = ref
        if newer is not None:
            yield newer

    def newest_seq(self) -> int:
        """Return a seq that no bundle which can be read exceeds."""
        return min(self._writer.published[0], self._writer.synced_seq)

    def _parts(self, from_seq: int) -> list[Segment | list[HeldBundle]]:
        """Return segments and buffers that may hold anything from a seq on, in order."""
        segments, tail = self.snapshot(from_seq)
        first = max(0, bisect.bisect_right(segments, from_seq, key=_first_seq) - 1)
        if first < len(segments) and segments[first].summary.last_seq < from_seq:
            first += 1
        parts: list[Segment | list[HeldBundle]] = [*segments[first:], *tail]
        if segments and tail and tail[0][0].seq < segments[-1].summary.last_seq:
            # A damaged segment was replayed from the log, and lies between others.
            parts.sort(key=_first_seq)
        return parts

    def _look_into(
        self, part: Segment | list[HeldBundle], from_seq: int, before_seq: int
    ) -> tuple[range, Callable[[int, int], BundleRef]]:
        """Return the places of a part's bundles between two seqs, and what makes references."""
        if isinstance(part, list):
            first = bisect.bisect_left(part, from_seq, key=_seq_of)
            end = bisect.bisect_left(part, before_seq, key=_seq_of)
            return range(first, end), lambda place, owned_from: _held_ref(part[place], owned_from)
        index = self._index_unless_removed(part)
        if index is None:
            return range(0), _no_ref
        first = bisect.bisect_left(index.seqs, from_seq)
        end = bisect.bisect_left(index.seqs, before_seq)
        return range(first, end), index.ref

    def bundle(self, seq: int) -> Bundle | None:
        """Return one bundle, or None if there is none with this seq."""
        # `tail` cuts each buffer at `seq`, so a bundle that is there is the first of its buffer.
        for held in (one for buffer in self.tail(seq) for one in buffer[:1]):
            if held.seq == seq:
                return held_bundle(held)
        segment = self._catalog.find(seq)
        index = None if segment is None else self._index_unless_removed(segment)
        if segment is None or index is None:
            return None
        place = bisect.bisect_left(index.seqs, seq)
        if place == len(index.seqs) or index.seqs[place] != seq:
            return None
        return segment.bundle_at(index, place)

    def oldest_seq(self) -> int | None:
        """Return the seq of the oldest bundle, None if there is none."""
        return next((ref.seq for ref in self.refs(0)), None)

    def unused_before(self, first_seq: int) -> int:
        """Return from which number on no readable bundle lies before that of a segment."""
        segments = self._catalog.snapshot()
        place = bisect.bisect_left(segments, first_seq, key=_first_seq)
        end_seq = segments[place - 1].summary.last_seq + 1 if place else 0
        # Of a damaged segment the log may hold bundles that lie between others.
        held = [one.seq for buffer in self.tail(end_seq) for one in buffer if one.seq < first_seq]
        return max([end_seq, *(seq + 1 for seq in held)])

    # ----------------------------------------------------------------- counting

    def extent(self) -> tuple[int, Totals]:
        """Return the newest seq that can be read, and what was accepted up to it, together."""
        while True:
            bundles, synced_seq = self._writer.buffer.bundles, self._writer.synced_seq
            last_seq, accepted = self._writer.published
            # A group that is written and not synced yet is accepted, and not readable.
            hidden = [held for held in bundles[:] if synced_seq < held.seq <= last_seq]
            if bundles is self._writer.buffer.bundles:  # or else it was handed over: look again
                accepted = accepted.plus(-len(hidden), -sum(held.events for held in hidden))
                return min(last_seq, synced_seq), accepted

    def accepted_payload_bytes(self) -> int:
        """Return the payload bytes appended since the quiver was opened."""
        return self._writer.counters.payload_bytes

    def waiting(self, subscriber: Subscriber, through_seq: int = SEQ_MAX) -> tuple[Totals, int]:
        """Return what is there and not resolved for a subscriber, and its payload bytes.

        Segments that are resolved or unresolved as a whole are counted by their summaries.
        """
        segments, tail = self.snapshot()
        bundles = events = size_bytes = 0
        touched: list[Segment] = []
        for segment in segments:
            summary = segment.summary
            first, end = summary.first_seq, summary.last_seq + 1
            if end - 1 <= through_seq and self._untouched(subscriber, first, end):
                bundles += summary.bundles
                events += summary.events
                size_bytes += summary.payload_bytes
            elif end > subscriber.start_seq and not subscriber.resolved.covers(first, end):
                touched.append(segment)
        total = Totals(bundles, events)
        for segment in touched:
            refs = [r for r in self._index_refs(segment) if r.seq <= through_seq]
            total, size_bytes = _add_unresolved(subscriber, refs, total, size_bytes)
        for buffer in tail:
            refs = [_held_ref(held, held.seq) for held in buffer if held.seq <= through_seq]
            total, size_bytes = _add_unresolved(subscriber, refs, total, size_bytes)
        return total, size_bytes

    def oldest_waiting_ns(self, subscriber: Subscriber) -> int | None:
        """Return when the oldest bundle that waits for a subscriber was ingested."""
        segments, tail = self.snapshot()
        for segment in segments:
            first, end = segment.summary.first_seq, segment.summary.last_seq + 1
            if end <= subscriber.start_seq or not subscriber.unresolved(first, end):
                continue
            if self._untouched(subscriber, first, end):
                return segment.summary.min_ingestion_ns
            for ref in self._index_refs(segment):
                if _waits(subscriber, ref.seq):
                    return ref.ingestion_ns
        held = (held for buffer in tail for held in buffer if _waits(subscriber, held.seq))
        return next((one.ingestion_ns for one in held), None)

    def oldest_waiting_by_slot(self, subscriber: Subscriber) -> dict[str, int]:
        """Return when the oldest bundle of each slot that waits for a subscriber was ingested.

        A bundle table is read only where a slot may have its oldest: normally one for all. Of what
        is not sealed yet the oldest `LOOKED_AT_MAX` are looked at, so a slot may be missing whose
        bundles are all younger.
        """
        found: dict[str, int] = {}
        segments, tail = self.snapshot()
        for segment in segments:
            # Looked at first: of very many segments nearly all have nothing that is not found yet.
            missing = {file.slot for file in segment.summary.files if file.slot not in found}
            if not missing:
                continue
            first, end = segment.summary.first_seq, segment.summary.last_seq + 1
            if end <= subscriber.start_seq or not subscriber.unresolved(first, end):
                continue
            if len(segment.summary.slots) == 1 and self._untouched(subscriber, first, end):
                found[missing.pop()] = segment.summary.min_ingestion_ns
                continue
            for slot, ingestion_ns in self._slots_waiting(segment, subscriber):
                if slot in missing:
                    found[slot] = ingestion_ns
                    missing.remove(slot)
                if not missing:
                    break
        waiting = (held for buffer in tail for held in buffer if _waits(subscriber, held.seq))
        for held in itertools.islice(waiting, LOOKED_AT_MAX):
            for slot in _slots_of(held):
                found.setdefault(slot, held.ingestion_ns)
        return found

    def _slots_waiting(self, segment: Segment, subscriber: Subscriber) -> Iterator[tuple[str, int]]:
        """Yield slot and time of the bundles of a segment that wait, oldest first."""
        try:
            index = self._index(segment)
        except Damaged:
            return
        for place, seq in enumerate(index.seqs):
            if _waits(subscriber, seq):
                ingestion_ns = index.ref(place, seq).ingestion_ns
                for number, _, _ in index.places(place):
                    yield segment.summary.files[number].slot, ingestion_ns

    def unresolved(self, subscriber: Subscriber, segment: Segment) -> Totals:
        """Return what of a segment is not resolved for a subscriber."""
        first, end = segment.summary.first_seq, segment.summary.last_seq + 1
        if self._untouched(subscriber, first, end):
            return Totals(segment.summary.bundles, segment.summary.events)
        return _add_unresolved(subscriber, self._index_refs(segment), NOTHING, 0)[0]

    def _untouched(self, subscriber: Subscriber, first: int, end: int) -> bool:
        """Whether a segment waits as a whole, so that its summary has the count. This keeps
        counting what waits proportional to the number of segments: a bundle table is opened
        only for the few segments in which a subscriber stands.
        """
        if subscriber.start_seq > first or subscriber.resolved.overlaps(first, end):
            return False
        partial = subscriber.partial
        return not (partial and any(first <= seq < end for seq in partial))

    def _index_refs(self, segment: Segment) -> list[BundleRef]:
        """Return all references of a segment; none if its table is damaged.

        For counting only. What cannot be read cannot wait, and the reader that meets the damage
        records it; raising here would keep retention from working because of one bad block.
        """
        try:
            index = self._index(segment)
        except Damaged:
            return []
        return [index.ref(place, seq) for place, seq in enumerate(index.seqs)]

    def _index_unless_removed(self, segment: Segment) -> SegmentIndex | None:
        """Return the index of a segment, None if retention removed it since it was found."""
        try:
            return self._index(segment)
        except Damaged:
            if any(known is segment for known in self._catalog.snapshot()):
                raise
            return None

    def _index(self, segment: Segment) -> SegmentIndex:
        """Return a segment's bundle table as lists.

        Reading it is slow, so it is done without the lock.
        """
        key = segment.summary.segment_seq
        with self._lock:
            found = self._indexes.get(key)
            if found is not None:
                self._indexes.move_to_end(key)
                return found
        # Two threads may read the same table. That wastes a read; holding the lock would stop
        # every reader of the quiver behind one slow disk.
        index = segment.index()
        with self._lock:
            self._indexes[key] = index
            while len(self._indexes) > INDEXES_MAX:
                self._indexes.popitem(last=False)
        return index


def _overlaps(held: Sequence[HeldBundle], segments: Sequence[Segment]) -> bool:
    """Whether a segment was made of a buffer: it has grown since, or lost its first bundle."""
    place = bisect.bisect_right(segments, held[-1].seq, key=_first_seq) - 1
    return place >= 0 and segments[place].summary.last_seq >= held[0].seq


def _seq_of(held: HeldBundle) -> int:
    return held.seq


def _first_seq(part: Segment | list[HeldBundle]) -> int:
    return part[0].seq if isinstance(part, list) else part.summary.first_seq


def _no_ref(place: int, owned_from: int) -> BundleRef:
    raise AssertionError("BUG: a segment that was removed has no places")


def _held_ref(held: HeldBundle, owned_from: int) -> BundleRef:
    return BundleRef(held.seq, held.events, len(held.payload), held.ingestion_ns, owned_from)


def _slots_of(held: HeldBundle) -> list[str]:
    """Return the slots of a bundle that is not sealed; none if its bytes wait on the disk."""
    if isinstance(held.payload, Unread) or held.kind is FrameKind.CONTROL:
        return []
    if held.kind is FrameKind.RAW:
        return [raw_head(held.content())[0]]
    return [slot.name for slot in decode_arrow(held.content())]


def _waits(subscriber: Subscriber, seq: int) -> bool:
    return seq >= subscriber.start_seq and seq not in subscriber.resolved


def _add_unresolved(
    subscriber: Subscriber, refs: Sequence[BundleRef], total: Totals, size_bytes: int
) -> tuple[Totals, int]:
    for ref in refs:
        if _waits(subscriber, ref.seq):
            total = total.plus(1, ref.events - subscriber.partial.get(ref.seq, 0))
            size_bytes += ref.size_bytes
    return total, size_bytes
