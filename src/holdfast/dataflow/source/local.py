"""A quiver that the source opens itself: for data directories that no gateway has open.

The process that plans the query owns the directory then, and appends nothing. A second driver on
the same directory is refused by its lock; one that comes over a restart, by the generation.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from holdfast.dataflow.source.gateway import Piece, Planned
from holdfast.dataflow.source.newest_times import NewestTimes
from holdfast.dataflow.source.options import SourceOptions
from holdfast.dataflow.watermark.claims import NOTHING_CLAIMED_US
from holdfast.dataflow.watermark.statement import Statement
from holdfast.errors import BadConfig
from holdfast.quiver import Position, Quiver, QuiverConfig, Range
from holdfast.quiver.segment import Segment
from holdfast.quiver.shelf import SEQ_MAX
from holdfast.quiver.statement import EventTimeStatement
from holdfast.seam import Seam

# Planned ranges that are kept until they are committed; Spark has one or two at a time.
RANGES_MAX = 64


def load_config(reference: str) -> QuiverConfig:
    """Return the configuration that `module:name` names; the default one without a name."""
    if not reference:
        return QuiverConfig()
    module, _, name = reference.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadConfig(
            f"there is no quiver_config {reference!r}: {error}",
            hint="write module:name, of a QuiverConfig or of a function that returns one",
        ) from error
    config = found() if callable(found) else found
    if not isinstance(config, QuiverConfig):
        raise BadConfig(
            f"quiver_config {reference!r} is {type(config).__name__}",
            hint="name a QuiverConfig, or a function that returns one",
        )
    return config


def _earliest_promise(known: EventTimeStatement, producers: Sequence[str]) -> int | None:
    """Return how far the slowest of some producers has come; None if there are none."""
    promised = [known.producer_watermarks.get(name, NOTHING_CLAIMED_US) for name in producers]
    return min(promised) // 1000 if promised else None


class LocalGateway:
    """A quiver in a directory, opened here."""

    def __init__(self, path: str, options: SourceOptions, seam: Seam | None = None) -> None:
        self._idle_after_us = int(options.idle_after * 1e6)
        self._producers = options.producers
        self._path = path
        self._quiver = Quiver.open(path, load_config(options.quiver_config), seam=seam)
        self._times = NewestTimes()
        self._newest_us: int | None = None
        self._ranges: dict[int, Range] = {}
        try:
            self._quiver.flush()  # what a crash left in the log; nothing is appended here later
            self._cursor = self._quiver.cursor(
                options.subscriber, start=options.start, on_data_loss=options.on_data_loss
            )
        except BaseException:
            self._quiver.close()
            raise

    @property
    def name(self) -> str:
        """The directory."""
        return self._path

    @property
    def quiver_id(self) -> str:
        """The quiver's identity."""
        return self._quiver.quiver_id

    def position(self) -> int:
        """Return the first seq that is not acknowledged."""
        return self._cursor.position.seq

    def newest(self) -> int:
        """Return the end of what is sealed."""
        segments = self._quiver.segments()
        return segments[-1].summary.last_seq + 1 if segments else self.position()

    def plan(
        self, start_seq: int, end_seq: int | None, max_rows: int, max_bytes: int
    ) -> Planned | None:
        """Pin the next bundles."""
        if end_seq is not None and start_seq >= end_seq:
            return None
        planned = self._cursor.plan(
            max_events=max_rows, max_bytes=max_bytes, start=Position(start_seq), sealed_only=True
        )
        return None if planned is None else self._keep(planned)

    def replan(self, start_seq: int, end_seq: int) -> Planned:
        """Pin a range again."""
        start = max(Position(start_seq), self._cursor.position)
        return self._keep(self._cursor.replan(start, Position(end_seq)))

    def _keep(self, planned: Range) -> Planned:
        self._ranges[planned.end.seq] = planned
        while len(self._ranges) > RANGES_MAX:
            del self._ranges[min(self._ranges)]
        start_seq, end_seq = planned.start.seq, planned.end.seq
        newest_us = self._times.newest_us(self._segments(start_seq), start_seq, end_seq)
        return Planned(start_seq, end_seq, planned.events, newest_us)

    def pieces(self, start_seq: int, end_seq: int) -> list[Piece]:
        """Return the parts of segments that make up a range."""
        position = self._cursor.position
        first_row = position.row if position.seq == start_seq else 0
        found = []
        for segment in self._segments(start_seq):
            summary = segment.summary
            first, end = max(start_seq, summary.first_seq), min(end_seq, summary.last_seq + 1)
            if first < end:
                row = first_row if first == start_seq else 0
                found.append(Piece(str(segment.path), first, end, row, summary.size_bytes))
        return found

    def acknowledge(self, end_seq: int) -> None:
        """Resolve everything before a seq."""
        position = self._cursor.position
        if position.seq >= end_seq:
            return
        planned = self._ranges.get(end_seq)
        if planned is None or planned.start != position:
            planned = self._cursor.replan(position, Position(end_seq))
        self._cursor.commit(planned)
        self._ranges = {end: kept for end, kept in self._ranges.items() if end > end_seq}

    def statement(self, position_seq: int, claimed_us: int) -> Statement:
        """Say what waits from a seq on."""
        known = self._quiver.statement(Position(position_seq), claim_us=claimed_us)
        newest_us = self._times.newest_us(self._quiver.segments(), 0, SEQ_MAX)
        if newest_us is not None:  # its segment may be deleted by the next time
            self._newest_us = max(newest_us, self._newest_us or 0)
        quiet_us = (known.clock_ns - known.quiet_since_ns) // 1000
        is_idle = not known.pending_events and quiet_us >= self._idle_after_us
        producers_us = _earliest_promise(known, self._producers)
        clock_us = known.clock_ns // 1000
        return Statement(known.min_event_us, self._newest_us, is_idle, clock_us, producers_us)

    def close(self) -> None:
        """Detach, and let go of the directory."""
        self._quiver.close()

    def _segments(self, from_seq: int) -> list[Segment]:
        return [s for s in self._quiver.segments() if s.summary.last_seq >= from_seq]
