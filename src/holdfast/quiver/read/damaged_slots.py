"""Which bundles of a segment lack slots, for a reader that looks at one slot.

A slot lies in files of its own, so its rows can be read whatever happened to the others. But rows
of one slot refer to rows of another (an attribute to its span), and one whose other half is damaged
looks like one that never had any. Bundles know what they lack; here the same is found out for all
bundles of a segment at once, by reading every record batch of it, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import pyarrow as pa

from holdfast.errors import Damaged
from holdfast.quiver.base import compute as pc
from holdfast.quiver.segments.data_file import DataFile
from holdfast.quiver.segments.segment import UNKNOWN_SLOT, Segment

# Which slots of a row's bundle cannot be read; null where all can.
DAMAGED_SLOTS = pa.field("_damaged_slots", pa.list_(pa.string()))
# Of the bundle with a seq.
SlotsOf = Callable[[int], tuple[str, ...]]


class SegmentDamage:
    """What the bundles of a segment lack; read when it is first asked for."""

    def __init__(self, segment: Segment, was_removed: Callable[[Segment], bool]) -> None:
        self._segment = segment
        self._was_removed = was_removed

    def slots_of(self, seq: int) -> tuple[str, ...]:
        """Return the slots of a bundle that cannot be read."""
        return self._by_seq.get(seq, ())

    @cached_property
    def _by_seq(self) -> Mapping[int, tuple[str, ...]]:
        files = self._segment.files
        damaged = {n: rows for n, file in enumerate(files) if (rows := _damaged_rows(file))}
        # Files that retention removed meanwhile look like damaged ones.
        if not damaged or self._was_removed(self._segment):
            return {}
        found: dict[int, tuple[str, ...]] = {}
        index = self._segment.index()
        for place, seq in enumerate(index.seqs):
            slots = {
                files[number].summary.slot or UNKNOWN_SLOT: None
                for number, first, rows in index.places(place)
                for start, end in damaged.get(number, ())
                if rows and first < end and start < first + rows
            }
            if slots:
                found[seq] = tuple(slots)
        return found


def _damaged_rows(file: DataFile) -> list[tuple[int, int]]:
    """Return the rows of a file that cannot be read, as ranges."""
    damaged, first = [], 0
    for index, batch in enumerate(file.summary.batches):
        try:
            file.batch(index)
        except Damaged:
            damaged.append((first, first + batch.rows))
        first += batch.rows
    return damaged


def flagged(batch: pa.RecordBatch, slots_of: SlotsOf) -> pa.RecordBatch:
    """Return rows with what their bundles lack beside them; as they are if that is nothing."""
    runs = pc.run_end_encode(batch.column("_seq"))
    slots = [list(slots_of(seq)) or None for seq in runs.values.to_pylist()]
    if not any(slots):
        return batch
    flags: list[list[str] | None] = []
    for missing, end in zip(slots, runs.run_ends.to_pylist(), strict=True):
        flags += [missing] * (end - len(flags))
    return batch.append_column(DAMAGED_SLOTS, pa.array(flags, DAMAGED_SLOTS.type))
