"""The catalog: which segments there are, in the order of their seqs."""

from __future__ import annotations

import bisect
import threading

from holdfast.quiver.segments.batch_cache import BatchCache
from holdfast.quiver.segments.segment import Segment


class Catalog:
    """All sealed segments. Readers take snapshots; only recovery and the sealer change it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._segments: tuple[Segment, ...] = ()
        self._next_segment_seq = 1
        # What all segments occupy on disk.
        self.size_bytes = 0
        self._cache = BatchCache()

    def snapshot(self) -> tuple[Segment, ...]:
        """Return all segments, oldest seq first."""
        return self._segments

    def add(self, segment: Segment) -> None:
        """Make a durable segment visible; what is read of all of them shares one memory."""
        for file in segment.files:
            file.cache = self._cache
        with self._lock:
            place = bisect.bisect_right(
                self._segments, segment.summary.first_seq, key=lambda s: s.summary.first_seq
            )
            self._segments = (*self._segments[:place], segment, *self._segments[place:])
            self._next_segment_seq = max(self._next_segment_seq, segment.summary.segment_seq + 1)
            self.size_bytes += segment.disk_bytes

    def remove(self, segment: Segment) -> None:
        """Make a segment invisible that is about to go."""
        with self._lock:
            self._segments = tuple(s for s in self._segments if s is not segment)
            self.size_bytes -= segment.disk_bytes

    def reserve(self, segment_seq: int) -> None:
        """Never give out this number, or a lower one, again (a damaged segment had it)."""
        with self._lock:
            self._next_segment_seq = max(self._next_segment_seq, segment_seq + 1)

    def next_segment_seq(self) -> int:
        """Return the number for the next segment; a failed seal leaves a gap."""
        with self._lock:
            self._next_segment_seq += 1
            return self._next_segment_seq - 1

    def find(self, seq: int) -> Segment | None:
        """Return the segment whose range holds `seq`."""
        segments = self._segments
        if not segments or seq > segments[-1].summary.last_seq:
            return None  # as for nearly every bundle that recovery asks about
        place = bisect.bisect_right(segments, seq, key=lambda s: s.summary.first_seq) - 1
        if place >= 0 and segments[place].summary.last_seq >= seq:
            return segments[place]
        return None

    def covers(self, seq: int) -> bool:
        """Whether the bundle with this seq, if it was ever accepted, is in a segment."""
        return self.find(seq) is not None
