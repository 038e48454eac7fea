"""Reading replicas together: each part once, from any place that has it.

Several data nodes have copies of the same parts, and each may lack some. What they have together is
the union of their ranges of seqs, by the quiver that the manifests name; a range that two of them
have is one range with two copies. Parts that were cut differently (a range sealed again after a
crash, a part that overlaps two others) do not change that: of a part whose beginning is taken from
elsewhere only the rest is read.

A copy that cannot be read is replaced by the next. Once rows of it were given away, only by one
of the same folder: that is the same file, byte for byte, so its rows come in the same order. Any
other part of the same range has the same rows, but perhaps not in the same order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

import pyarrow as pa

from holdfast.errors import (
    Damaged,
    HoldfastError,
    NotAllowed,
    ObjectMissing,
    Overloaded,
    OwnerGone,
    StoreUnavailable,
    UnknownPosition,
    WrongQuiver,
)
from holdfast.quiver.ledger.intervals import IntervalSet
from holdfast.remote.stored import StoredSegment

# What one place cannot give and another may; anything else is wrong with what was asked for.
_ELSEWHERE = (
    *(Damaged, NotAllowed, Overloaded, OwnerGone, UnknownPosition, WrongQuiver),
    *(ObjectMissing, StoreUnavailable),
)

log = logging.getLogger("holdfast.replica")

Place = TypeVar("Place")


class SegmentCopy(NamedTuple, Generic[Place]):
    """A sealed segment at one of the places that have its rows."""

    place: Place
    # Of the place; the quiver that the manifest names may be another one.
    quiver_id: str
    segment: StoredSegment


class CopiedRange(NamedTuple, Generic[Place]):
    """Bundles to be read once."""

    first_seq: int
    end_seq: int
    # All of the same range. The first is to be read, and the others if it cannot be.
    copies: tuple[SegmentCopy[Place], ...]


def each_once(found: Iterable[SegmentCopy[Place]]) -> Iterator[CopiedRange[Place]]:
    """Yield everything that is somewhere, each bundle once, in the order of seqs for each quiver.

    The places take turns in being the first, so that all of them work.
    """
    quivers: dict[str, dict[tuple[int, int], list[SegmentCopy[Place]]]] = {}
    for one in found:
        ranges = quivers.setdefault(one.segment.quiver_id or one.quiver_id, {})
        # Sorted like this, the longer of two parts with the same beginning comes first.
        ranges.setdefault((one.segment.first_seq, -one.segment.last_seq), []).append(one)
    turn = 0
    for ranges in quivers.values():
        taken = IntervalSet()
        for (first_seq, _), copies in sorted(ranges.items()):
            end_seq = copies[0].segment.last_seq + 1
            for start, end in list(taken.holes(first_seq, end_seq)):
                begin = turn % len(copies)
                turn += 1
                yield CopiedRange(start, end, (*copies[begin:], *copies[:begin]))
            taken.add(first_seq, end_seq)


def read_any(
    copies: Sequence[SegmentCopy[Place]],
    read: Callable[[SegmentCopy[Place]], pa.RecordBatchReader],
) -> pa.RecordBatchReader:
    """Return the rows of the first copy that can be read, whichever of them breaks off meanwhile.

    Raises what was wrong with a copy, with the reasons of all of them, if none is left.
    """
    if len(copies) == 1:
        return read(copies[0])
    reading = _AnyCopyReader(copies, read)
    return pa.RecordBatchReader.from_batches(reading.schema, reading.rows())


class _AnyCopyReader(Generic[Place]):
    """Rows of one range, from one copy after the other."""

    def __init__(
        self,
        copies: Sequence[SegmentCopy[Place]],
        read: Callable[[SegmentCopy[Place]], pa.RecordBatchReader],
    ) -> None:
        self._left = list(copies)
        self._read = read
        self._failures: list[HoldfastError] = []
        self._given_rows = 0
        # The folder of which rows were given away.
        self._folder = ""
        self._reader = self._open()
        self.schema = self._reader.schema

    def _open(self) -> pa.RecordBatchReader:
        while self._left:
            copy = self._left.pop(0)
            if self._given_rows and copy.segment.name != self._folder:
                continue
            try:
                reader = self._read(copy)
            except _ELSEWHERE as error:
                self._failures.append(error)
            else:
                self._folder = copy.segment.name
                return reader
        raise self._failed()

    def rows(self) -> Iterator[pa.RecordBatch]:
        while True:
            skip = self._given_rows
            try:
                for batch in self._reader:
                    rest = batch.slice(min(skip, batch.num_rows))
                    skip -= batch.num_rows - rest.num_rows
                    if rest.num_rows:
                        yield rest
                        self._given_rows += rest.num_rows
                return
            except _ELSEWHERE as error:
                log.warning("a copy of %s cannot be read on: %s", self._folder, error.message)
                self._failures.append(error)
                self._reader = self._open()

    def _failed(self) -> HoldfastError:
        """Return the error about a node that may come back, if there was one; else the last."""
        gone = [one for one in self._failures if isinstance(one, OwnerGone)]
        worst = (gone or self._failures)[-1]
        reasons = "; ".join(dict.fromkeys(one.message for one in self._failures))
        return type(worst)(
            f"{len(self._failures)} copies of a part cannot be read: {reasons}",
            hint="read again when a data node that has it is back, or repair the part",
            path=worst.path,
        )
