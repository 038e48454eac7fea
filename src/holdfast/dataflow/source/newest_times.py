"""The newest event time of sealed segments, of events that are not dated in the future.

Old data may be read long after its time. One event in it that is dated 2099 counts as its arrival
and some minutes in a quiver's summaries, and would take the watermark to the present: all the
others would be late. Summaries tell where there may be such a row; only there the rows are read.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.quiver.envelope import TimeFlag
from holdfast.quiver.segment import Segment


class NewestTimes:
    """Looks at each segment once. One thread."""

    def __init__(self) -> None:
        # By segment, of those that are there.
        self._newest: dict[str, int | None] = {}

    def newest_us(self, segments: Sequence[Segment]) -> int | None:
        """Return the newest time in some segments; None if they have no such event."""
        self._newest = {
            segment.path.name: self._newest[segment.path.name]
            if segment.path.name in self._newest
            else _newest_us(segment)
            for segment in segments
        }
        return max((time for time in self._newest.values() if time is not None), default=None)


def _newest_us(segment: Segment) -> int | None:
    summary = segment.summary
    newest = summary.clamped_max_event_us
    if newest is None or newest * 1000 <= summary.min_ingestion_ns:
        return newest
    found = [
        _newest_row_us(file.batch(place))
        for file in segment.files
        for place in range(len(file.summary.batches))
    ]
    return max((time for time in found if time is not None), default=None)


def _newest_row_us(batch: pa.RecordBatch) -> int | None:
    flags = batch.column("_event_time_flag")
    given = batch.column("_event_time").filter(pc.not_equal(flags, int(TimeFlag.IN_FUTURE)))
    newest: int | None = pc.max(given.cast(pa.int64())).as_py()
    return newest
