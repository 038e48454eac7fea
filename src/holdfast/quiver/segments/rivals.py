"""Rivals: segments that hold the same range of seqs, of which only one may be read.

A seal whose last step failed and could not be taken back leaves one, and so does whoever moves a
repaired segment back beside the one that was made in its place. The one that holds most is kept.
The others are mere copies only if every byte of the kept one proves sound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from holdfast.errors import Damaged
from holdfast.quiver.segments.segment import Segment


class Choice(NamedTuple):
    """Which of some rivals to read, and what to do with the others."""

    kept: Segment
    # Nothing is lost with these.
    copies: list[Segment]
    # Something may be in these that is nowhere else.
    doubtful: list[Segment]


def choices(segments: Iterable[Segment]) -> Iterator[Choice]:
    """Yield one choice for each range of seqs, in the order in which they first come."""
    ranges: dict[tuple[int, int], list[Segment]] = {}
    for segment in segments:
        summary = segment.summary
        ranges.setdefault((summary.first_seq, summary.last_seq), []).append(segment)
    return (_choose(rivals) for rivals in ranges.values())


def _choose(rivals: Sequence[Segment]) -> Choice:
    if len(rivals) == 1:
        return Choice(rivals[0], [], [])
    unreadable = {segment.path: _unreadable_parts(segment) for segment in rivals}
    kept = max(rivals, key=lambda s: (-unreadable[s.path], s.summary.events, s.summary.bundles))
    copies: list[Segment] = []
    doubtful: list[Segment] = []
    for other in rivals:
        if other is not kept:
            sure = not unreadable[kept.path] and _holds(other) == _holds(kept)
            (copies if sure else doubtful).append(other)
    return Choice(kept, copies, doubtful)


def _holds(segment: Segment) -> tuple[object, ...]:
    summary = segment.summary
    return summary.quiver_id, summary.bundles, summary.events, summary.payload_bytes


def _unreadable_parts(segment: Segment) -> int:
    """Return how many record batches, beginnings and ends of files, and tables are damaged."""
    damaged = 0
    for file in segment.files:
        for place in range(len(file.summary.batches)):
            try:
                file.batch(place)
            except Damaged:
                damaged += 1
        try:
            file.check_frame()
        except Damaged:
            damaged += 1
    try:
        segment.stored_table()
    except Damaged:
        damaged += 1
    return damaged
