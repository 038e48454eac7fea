"""Building a segment: from accepted bundles to durable Arrow files under a final name.

    1. make the temporary directory     4. sync the directory
    2. data files, each synced          5. rename to the final name
    3. bundle table, manifest, synced   6. sync the parent directory: only now is it sealed

Nothing in a bundle may stop a seal, or one strange batch would hold up everything behind it: what
Arrow will not write together, and schemas beyond `segment.max_files`, go into an opaque file.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath

import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64_hexdigest

from holdfast.quiver.base import names
from holdfast.quiver.base.columns import numbers, texts
from holdfast.quiver.base.config import QuiverConfig
from holdfast.quiver.base.frame import NO_WATERMARK
from holdfast.quiver.base.held_bundle import HeldBundle
from holdfast.quiver.base.points import QuiverPoint
from holdfast.quiver.segments import manifest
from holdfast.quiver.segments.bundle_table import BUNDLE_SCHEMA, PLACE_TYPE
from holdfast.quiver.segments.file import write_data_file
from holdfast.quiver.segments.manifest import FileSummary, ProducerSummary, Summary
from holdfast.quiver.segments.rows import OPAQUE, Group
from holdfast.quiver.segments.segment import Segment
from holdfast.quiver.segments.table import TableMaker
from holdfast.seam.disk import Disk, remove_tree, write_file

# (seq, slot index, file, first row, rows).
RowPlaces = list[tuple[int, int, int, int, int]]


class SegmentBuilder:
    """Writes segments. One thread at a time."""

    def __init__(
        self, disk: Disk, segments_dir: PurePath, quiver_id: str, config: QuiverConfig
    ) -> None:
        self.table_maker = TableMaker(config)
        self._disk = disk
        self._segments_dir = segments_dir
        self._quiver_id = quiver_id
        self._config = config
        self._attempts = itertools.count(1)

    def build(self, bundles: Sequence[HeldBundle], segment_seq: int) -> Segment:
        """Seal `bundles`; on an error nothing is visible, and the temporary files are removed."""
        building = self._segments_dir / names.building_dir(segment_seq, next(self._attempts))
        name = names.SegmentName(
            segment_seq,
            bundles[0].seq,
            bundles[-1].seq,
            len(bundles),
            sum(held.events for held in bundles),
        )
        final = self._segments_dir / names.segment_dir(name)
        try:
            self._disk.make_dir(building, QuiverPoint.SEAL_MAKE_DIR)
            summary = self._write_files(building, bundles, segment_seq)
            self._disk.sync_dir(building, QuiverPoint.SEAL_SYNC_DIR)
            self._disk.rename(building, final, QuiverPoint.SEAL_RENAME)
            self._disk.sync_dir(self._segments_dir, QuiverPoint.SEAL_SYNC_PARENT)
        except OSError:
            self._take_back(final, building)
            raise
        return Segment(self._disk, final, summary)

    def _take_back(self, final: PurePath, building: PurePath) -> None:
        """Remove a failed attempt, so that the next one does not store the bundles twice.

        What cannot be removed now is swept at the next start, which also drops a segment that has
        the same range as another.
        """
        try:
            if self._disk.exists(final):
                self._disk.rename(final, building, QuiverPoint.SEAL_RENAME)
            if self._disk.exists(building):
                remove_tree(self._disk, building, QuiverPoint.RECOVER_SWEEP)
        except OSError:
            return

    def _write_files(
        self, building: PurePath, bundles: Sequence[HeldBundle], segment_seq: int
    ) -> Summary:
        places: RowPlaces = []
        files: list[FileSummary] = []
        clamped: list[pa.Array] = []
        for made in self.table_maker.tables(bundles):
            path = building / names.data_file(len(files), made.group.slot or OPAQUE)
            _note_places(places, made.group, len(files))
            compression = self._config.segment.compression
            files.append(write_data_file(self._disk, path, made, compression))
            clamped.append(made.clamped_us)
        table = _bundle_table(bundles, places)
        write_file(self._disk, building / names.BUNDLES, [table], "seal.bundles")
        times = pc.min_max(pa.chunked_array(clamped, pa.int64())).as_py()
        summary = self._summarize(bundles, segment_seq, files, table, times)
        encoded = manifest.encode(summary)
        write_file(self._disk, building / names.MANIFEST, [encoded], "seal.manifest")
        return summary

    def _summarize(
        self,
        bundles: Sequence[HeldBundle],
        segment_seq: int,
        files: Sequence[FileSummary],
        bundle_table: pa.Buffer,
        clamped_us: dict[str, int | None],
    ) -> Summary:
        return Summary(
            version=manifest.VERSION,
            quiver_id=self._quiver_id,
            segment_seq=segment_seq,
            first_seq=bundles[0].seq,
            last_seq=bundles[-1].seq,
            bundles=len(bundles),
            events=sum(held.events for held in bundles),
            payload_bytes=sum(len(held.payload) for held in bundles),
            size_bytes=sum(file.size_bytes for file in files) + bundle_table.size,
            min_ingestion_ns=min(held.ingestion_ns for held in bundles),
            max_ingestion_ns=max(held.ingestion_ns for held in bundles),
            clamped_min_event_us=clamped_us["min"],
            clamped_max_event_us=clamped_us["max"],
            files=tuple(files),
            bundle_table_checksum=xxh3_64_hexdigest(bundle_table),
            producers=_newest(_producers(bundles), self._config.producers.max_count),
        )


def _note_places(places: RowPlaces, group: Group, file: int) -> None:
    row = 0
    for seq, _, index, _, count in group.shares:
        if group.kind == OPAQUE and places and places[-1][:3] == (seq, index, file):
            # One raw event after the other, as opaque rows.
            _, _, _, first_row, rows = places[-1]
            places[-1] = (seq, index, file, first_row, rows + count)
        else:
            places.append((seq, index, file, row, count))
        row += count


def _bundle_table(bundles: Sequence[HeldBundle], places: RowPlaces) -> pa.Buffer:
    """Return the bundle table as the bytes of an Arrow file."""
    places.sort()
    columns = [[place[number] for place in places] for number in (2, 3, 4)]
    values = pa.StructArray.from_arrays(
        [numbers(column, kind.type) for column, kind in zip(columns, PLACE_TYPE, strict=True)],
        fields=list(PLACE_TYPE),
    )
    counts = Counter([place[0] for place in places])
    offsets = itertools.accumulate([counts[held.seq] for held in bundles], initial=0)
    batch = pa.record_batch(
        [
            numbers([held.seq for held in bundles], pa.int64()),
            numbers([held.kind for held in bundles], pa.int8()),
            numbers([held.ingestion_ns for held in bundles], pa.int64()),
            numbers([_watermark(held) for held in bundles], pa.int64()),
            texts([held.producer for held in bundles]),
            numbers([held.epoch for held in bundles], pa.int64()),
            numbers([held.events for held in bundles], pa.int32()),
            numbers([len(held.payload) for held in bundles], pa.int64()),
            pa.ListArray.from_arrays(numbers(list(offsets), pa.int32()), values),
        ],
        schema=BUNDLE_SCHEMA,
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, BUNDLE_SCHEMA) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _watermark(held: HeldBundle) -> int | None:
    return None if held.watermark_ns == NO_WATERMARK else held.watermark_ns


def _producers(bundles: Sequence[HeldBundle]) -> dict[str, ProducerSummary]:
    newest: dict[str, ProducerSummary] = {}
    for held in bundles:
        if held.producer is None:
            continue
        known = newest.get(held.producer)
        given = [_watermark(held), known.watermark_ns if known else None]
        watermark_ns = max((each for each in given if each is not None), default=None)
        if known is not None and known.epoch >= held.epoch:
            same = known.epoch == held.epoch
            newest[held.producer] = replace(
                known,
                bundles=known.bundles + same,
                events=known.events + held.events * same,
                watermark_ns=watermark_ns,
            )
        else:
            newest[held.producer] = ProducerSummary(
                held.epoch, held.seq, 1, held.events, held.ingestion_ns, watermark_ns
            )
    return newest


def _newest(producers: dict[str, ProducerSummary], max_count: int) -> dict[str, ProducerSummary]:
    by_age = sorted(producers.items(), key=lambda item: (item[1].time_ns, item[1].seq))
    return dict(by_age[: -max_count - 1 : -1])
