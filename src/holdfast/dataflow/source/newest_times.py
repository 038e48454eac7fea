"""The newest event time of sealed bundles, of events that are not dated in the future.

Summaries answer nearly always. Rows are looked at only where a summary cannot tell: a segment that
is read in part, or one with a row dated after its arrival.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.quiver.envelope import TimeFlag
from holdfast.quiver.segment import Segment

# Answers about rows that are kept; each is a few numbers.
ANSWERS_MAX = 4096

_Key = tuple[str, int, int]


class NewestTimes:
    """Looks at segments, and remembers what it saw. One thread."""

    def __init__(self) -> None:
        self._newest: OrderedDict[_Key, int | None] = OrderedDict()

    def newest_us(self, segments: Iterable[Segment], from_seq: int, end_seq: int) -> int | None:
        """Return the newest time in a range of seqs, of events not dated in the future."""
        times = [
            time_us
            for segment in segments
            if segment.summary.last_seq >= from_seq
            and segment.summary.first_seq < end_seq
            and (time_us := self._latest_us(segment, from_seq, end_seq)) is not None
        ]
        return max(times, default=None)

    def _latest_us(self, segment: Segment, from_seq: int, end_seq: int) -> int | None:
        summary = segment.summary
        most = summary.clamped_max_event_us
        if most is None:
            return None
        is_whole = from_seq <= summary.first_seq and end_seq > summary.last_seq
        if is_whole and most * 1000 <= summary.min_ingestion_ns:
            return most
        first, end = max(from_seq, summary.first_seq), min(end_seq, summary.last_seq + 1)
        key = (str(segment.path), first, end)
        if key not in self._newest:
            _remember(self._newest, key, _latest_row(segment, from_seq, end_seq))
        return self._newest[key]


def _remember(answers: OrderedDict[_Key, int | None], key: _Key, answer: int | None) -> None:
    answers[key] = answer
    while len(answers) > ANSWERS_MAX:
        answers.popitem(last=False)


def _latest_row(segment: Segment, from_seq: int, end_seq: int) -> int | None:
    found = []
    for batch in _envelopes(segment):
        seqs = batch.column("_seq")
        wanted = pc.and_(pc.greater_equal(seqs, from_seq), pc.less(seqs, end_seq))
        flags = batch.column("_event_time_flag")
        wanted = pc.and_(wanted, pc.not_equal(flags, int(TimeFlag.IN_FUTURE)))
        times = batch.column("_event_time").filter(wanted).cast(pa.int64())
        found.append(pc.max(times).as_py())
    return max((time_us for time_us in found if time_us is not None), default=None)


def _envelopes(segment: Segment) -> Iterator[pa.RecordBatch]:
    for file in segment.files:
        for place in range(len(file.summary.batches)):
            yield file.batch(place)
