"""How far a subscriber is, in segments: high-water mark, gap set, and who is outstanding.

The ledger knows bundles, and that is what delivery goes by. Operators think in files: which of them
may go, and who keeps them. All of it follows from the bundles (a segment is resolved for a
subscriber when each bundle of it is), so nothing here is stored.

What is unresolved are the holes of the subscriber's intervals, of which there are few, so it is
found by bisection: a quiver of 100,000 segments and a handful of holes costs a handful of looks.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.quiver.ledger.subscriber import Subscriber
from holdfast.quiver.segments.segment import Segment

# Ranges of the gap set that are told one by one; beyond that there is their number.
GAPS_TOLD_MAX = 100


class SegmentProgress(NamedTuple):
    """One subscriber, by the numbers of segments."""

    # It and all before it are resolved; 0 if the first is not.
    high_water_segment: int
    # Segments beyond the one behind it that are resolved, on disk or removed.
    gap_segments: int
    # The same as ranges of numbers, first and last, the lowest first; `GAPS_TOLD_MAX` at most.
    gap_set: tuple[tuple[int, int], ...]


def unresolved_places(segments: Sequence[Segment], subscriber: Subscriber) -> Iterator[range]:
    """Yield where segments are of which something waits for a subscriber, oldest seq first."""
    if not segments:
        return
    told = 0
    for first_seq, end_seq in subscriber.resolved.holes(
        subscriber.start_seq, segments[-1].summary.last_seq + 1
    ):
        begin = bisect.bisect_left(segments, first_seq, key=lambda one: one.summary.last_seq)
        end = bisect.bisect_left(segments, end_seq, key=lambda one: one.summary.first_seq)
        begin = max(begin, told)  # a segment with two holes waits once
        if begin < end:
            yield range(begin, end)
            told = end


def segment_progress(
    segments: Sequence[Segment], subscriber: Subscriber, deleted: IntervalSet
) -> SegmentProgress:
    """Return how far a subscriber is; `deleted` are the numbers of segments that are gone.

    A segment goes only when every subscriber has resolved it, so those count as resolved.
    """
    newest = max((one.summary.segment_seq for one in segments[-1:]), default=0)
    newest = max(newest, *(end - 1 for _, end in deleted), 0)
    waiting = list(unresolved_places(segments, subscriber))
    if not waiting:
        return SegmentProgress(newest, 0, ())
    first_waiting = segments[waiting[0].start].summary.segment_seq
    resolved = IntervalSet(
        (max(first, first_waiting), end) for first, end in deleted if end > first_waiting
    )
    borders = [*(place.start for place in waiting[1:]), len(segments)]
    for begin, end in zip((place.stop for place in waiting), borders, strict=True):
        if begin < end:
            numbers = (segments[begin].summary.segment_seq, segments[end - 1].summary.segment_seq)
            resolved.add(numbers[0], numbers[1] + 1)
    gaps = tuple((first, end - 1) for first, end in resolved)
    count = sum(last - first + 1 for first, last in gaps)
    return SegmentProgress(first_waiting - 1, count, gaps[:GAPS_TOLD_MAX])


def outstanding(segments: Sequence[Segment], subscribers: Iterable[Subscriber]) -> dict[int, int]:
    """Return how many segments wait for how many subscribers: for none of them, for one, …"""
    # At each place by how much the number of those who wait changes there.
    changes = [0] * (len(segments) + 1)
    known = list(subscribers)
    for subscriber in known:
        for place in unresolved_places(segments, subscriber):
            changes[place.start] += 1
            changes[place.stop] -= 1
    found = dict.fromkeys(range(len(known) + 1), 0)
    waiting = 0
    for change in changes[:-1]:
        waiting += change
        found[waiting] += 1
    return found
