"""Which sealed segments may hold wanted rows, by their summaries alone.

Only summaries are read, which are in memory: a query over a year of data asks here first, and
opens the few segments whose event times overlap. Summaries may include too much and never too
little.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.errors import UnknownPosition
from holdfast.quiver.ledger.subscriber import Position
from holdfast.quiver.read.scan import Span, TimeRange
from holdfast.quiver.segments.manifest import OPAQUE
from holdfast.quiver.segments.segment import Segment
from holdfast.remote.wire import Fields


@dataclass(frozen=True)
class StoredSegment:
    """A sealed segment that may hold wanted rows."""

    name: str
    first_seq: int
    last_seq: int
    # Rows and bytes of the record batches that may hold some.
    rows: int
    size_bytes: int
    # Of all events of the segment, those dated in the future clamped; None: it has none.
    min_event_us: int | None = None
    max_event_us: int | None = None
    # The quiver that its manifest names. A restored quiver has a new id, its segments the old one.
    quiver_id: str = ""

    def to_fields(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_fields(cls, fields: Fields) -> StoredSegment:
        """Return what `to_fields` gave."""
        return cls(
            fields.text("name"),
            fields.whole("first_seq"),
            fields.whole("last_seq"),
            fields.whole("rows"),
            fields.whole("size_bytes"),
            fields.whole_or_none("min_event_us"),
            fields.whole_or_none("max_event_us"),
            fields.text("quiver_id", ""),
        )


def stored_segments(
    segments: Sequence[Segment],
    slot: str,
    times: TimeRange,
    start: Position | None = None,
    end: Position | None = None,
) -> list[StoredSegment]:
    """Return the segments, of those in order, that may hold rows of a slot, times and positions.

    A range that begins before everything that is left is refused: some of it is gone.
    """
    oldest_seq = segments[0].summary.first_seq if segments else None
    if start is not None and (oldest_seq is None or start.seq < oldest_seq):
        left = "nothing is left" if oldest_seq is None else f"what is left begins at {oldest_seq}"
        raise UnknownPosition(
            f"the range begins at bundle {start.seq}, and {left}",
            hint="the rest was processed, or dropped for want of room; ask for what is left",
        )
    span = Span(start, end)
    wanted = [s for s in segments if span.overlaps(s.summary.first_seq, s.summary.last_seq)]
    return [found for segment in wanted for found in _with_rows(segment, slot, times)]


def _with_rows(segment: Segment, slot: str, times: TimeRange) -> Iterator[StoredSegment]:
    summary = segment.summary
    batches = [
        batch
        for file in summary.files
        if file.slot == slot or file.kind == OPAQUE
        for batch in file.batches
        if times.may_hold(batch)
    ]
    if batches:
        yield StoredSegment(
            segment.path.name,
            summary.first_seq,
            summary.last_seq,
            sum(batch.rows for batch in batches),
            sum(batch.length for batch in batches),
            summary.clamped_min_event_us,
            summary.clamped_max_event_us,
            summary.quiver_id,
        )
