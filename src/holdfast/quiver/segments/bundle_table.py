"""The bundle table of a segment: one row per bundle; and how it is rebuilt when it is damaged.

The rows themselves carry `_seq`, `_row` and `_ingestion_time`, so a damaged table costs no event:
it is rebuilt from the data files, as many bundles and events as the summary tells. What only the
table knew is lost: producers with their epochs and watermarks, and slots without rows. Bundles
without rows (control) are counted under numbers that nothing else uses.

Where record batches are damaged as well, nobody can tell what was in them. Whatever bundle may have
had rows there points into the damage, so that reading it says so, instead of returning less than
was appended.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import pyarrow as pa

from holdfast.errors import Damaged
from holdfast.quiver.base import compute as pc
from holdfast.quiver.base.bundle import read_stream
from holdfast.quiver.base.frame import FrameKind
from holdfast.quiver.segments.manifest import ARROW, OPAQUE, RAW, FileSummary, Summary

# All numbers are signed: Spark has no others.
PLACE_TYPE = pa.struct([("file", pa.int32()), ("first_row", pa.int32()), ("rows", pa.int32())])
BUNDLE_SCHEMA = pa.schema(
    [
        ("seq", pa.int64()),
        ("kind", pa.int8()),
        ("ingestion_ns", pa.int64()),
        ("watermark_ns", pa.int64()),
        ("producer", pa.string()),
        ("epoch", pa.int64()),
        ("events", pa.int32()),
        ("payload_bytes", pa.int64()),
        ("places", pa.list_(PLACE_TYPE)),
    ]
)

_KINDS = {ARROW: FrameKind.ARROW, RAW: FrameKind.RAW}


class RowFile(Protocol):
    """A data file that is read batch by batch."""

    @property
    def summary(self) -> FileSummary:
        """What the manifest says about it."""

    def batch(self, index: int) -> pa.RecordBatch:
        """Return a record batch; raise `Damaged` if its bytes are not what was written."""


class _RowRange(NamedTuple):
    file: int
    first_row: int
    rows: int


@dataclass
class _FoundBundle:
    """What the rows tell about one bundle."""

    kind: FrameKind
    ingestion_us: int
    events: int = 0
    places: list[_RowRange] = field(default_factory=list)


class _Gap(NamedTuple):
    """A damaged record batch, and the seqs (inclusive) that may have had rows in it."""

    place: _RowRange
    first_seq: int
    last_seq: int


class _Run(NamedTuple):
    """Consecutive rows of one bundle."""

    seq: int
    start: int
    rows: int


def rebuild(summary: Summary, files: Sequence[RowFile]) -> pa.RecordBatch:
    """Return a bundle table made from the rows."""
    found: dict[int, _FoundBundle] = {}
    gaps: list[_Gap] = []
    for number, file in enumerate(files):
        gaps += _read_file(summary, number, file, found)
    # A bundle that may have lost rows is made to fail when it is read. Returning the rows that are
    # left would pass off a part for the whole.
    for gap in gaps:
        for seq, bundle in found.items():
            if gap.first_seq <= seq <= gap.last_seq:
                bundle.places.append(gap.place)
    _add_missing(summary, found, gaps)
    return _as_table(summary, found)


def _read_file(
    summary: Summary, number: int, file: RowFile, found: dict[int, _FoundBundle]
) -> Iterator[_Gap]:
    """Note the bundles of one file, and yield its gaps."""
    first_row, last_seq = 0, summary.first_seq
    damaged: list[_RowRange] = []
    for index, described in enumerate(file.summary.batches):
        try:
            batch = file.batch(index)
        except Damaged:
            damaged.append(_RowRange(number, first_row, 1))
        else:
            runs = list(_runs(batch.column("_seq")))
            # A bundle whose first row here is its first row at all has none in the gap before.
            fresh = batch.column("_row")[0].as_py() == 0
            yield from (_Gap(place, last_seq, runs[0].seq - fresh) for place in damaged)
            damaged, last_seq = [], runs[-1].seq
            for run in runs:
                _note_run(found, file.summary, batch, run, _RowRange(number, first_row, run.rows))
        first_row += described.rows
    yield from (_Gap(place, last_seq, summary.last_seq) for place in damaged)


def _runs(seqs: pa.Array) -> Iterator[_Run]:
    encoded = pc.run_end_encode(seqs)
    start = 0
    for seq, end in zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True):
        yield _Run(seq, start, end - start)
        start = end


def _note_run(
    found: dict[int, _FoundBundle],
    file: FileSummary,
    batch: pa.RecordBatch,
    run: _Run,
    place: _RowRange,
) -> None:
    """Add consecutive rows of one bundle to what is known of it."""
    place = place._replace(first_row=place.first_row + run.start)
    bundle = found.get(run.seq)
    if bundle is None:
        stored_as = file.kind
        if file.kind == OPAQUE:
            stored_as = batch.column("slot_kind")[run.start].as_py()
        time_us = batch.column("_ingestion_time")[run.start].value
        bundle = found[run.seq] = _FoundBundle(_KINDS[stored_as], time_us)
    bundle.events += _events(file, batch, run)
    last = bundle.places[-1] if bundle.places else None
    if last is not None and (last.file, last.first_row + last.rows) == place[:2]:
        bundle.places[-1] = last._replace(rows=last.rows + place.rows)
    else:
        bundle.places.append(place)


def _events(file: FileSummary, batch: pa.RecordBatch, run: _Run) -> int:
    """Return how many events some rows hold: an opaque row may hold a whole stream."""
    if file.kind != OPAQUE:
        return run.rows
    events = 0
    for row in range(run.start, run.start + run.rows):
        is_stream = batch.column("slot_kind")[row].as_py() == ARROW
        payload = batch.column("payload")[row].as_buffer()
        events += read_stream(payload).num_rows if is_stream else 1
    return events


def _add_missing(summary: Summary, found: dict[int, _FoundBundle], gaps: Sequence[_Gap]) -> None:
    """Add the bundles that the summary counts and no row tells of.

    The summary says how many bundles and events there are; the rows account for some. What is
    missing is put under free numbers, those inside of gaps first, so that every count is right and
    reading them reports the damage.
    """
    events = summary.events - sum(bundle.events for bundle in found.values())
    time_us = summary.min_ingestion_ns // 1000
    for seq, gap in itertools.islice(_free(summary, found, gaps), summary.bundles - len(found)):
        if gap is None:
            found[seq] = _FoundBundle(FrameKind.CONTROL, time_us)
        else:
            found[seq] = _FoundBundle(FrameKind.RAW, time_us, events, [gap.place])
            events = 0
    for gap in gaps:
        for seq in found if events else ():
            if gap.first_seq <= seq <= gap.last_seq:
                found[seq].events += events
                events = 0
                break


def _free(
    summary: Summary, found: dict[int, _FoundBundle], gaps: Sequence[_Gap]
) -> Iterator[tuple[int, _Gap | None]]:
    """Yield numbers that no row has: those of the gaps first, each number once."""
    known = set(found)
    everything: Iterable[tuple[Sequence[int], _Gap | None]] = [
        *((range(gap.first_seq, gap.last_seq + 1), gap) for gap in gaps),
        # The first and the last number of a segment are bundles, or it would have other ones.
        ((summary.first_seq, summary.last_seq), None),
        (range(summary.first_seq, summary.last_seq + 1), None),
    ]
    for seqs, gap in everything:
        for seq in seqs:
            if seq not in known:
                known.add(seq)
                yield seq, gap


def _as_table(summary: Summary, found: dict[int, _FoundBundle]) -> pa.RecordBatch:
    rows = []
    for seq in sorted(found):
        bundle = found[seq]
        rows.append(
            {
                "seq": seq,
                "kind": int(bundle.kind),
                "ingestion_ns": bundle.ingestion_us * 1000,
                "watermark_ns": None,
                "producer": None,
                "epoch": 0,
                "events": bundle.events,
                # Nobody knows; what is counted by it stays about right.
                "payload_bytes": summary.payload_bytes * bundle.events // max(1, summary.events),
                "places": [place._asdict() for place in bundle.places],
            }
        )
    return pa.RecordBatch.from_pylist(rows, BUNDLE_SCHEMA)
